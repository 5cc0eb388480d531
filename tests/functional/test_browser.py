"""Pages in a real browser: the report as files and `sdgbias serve` as a process, on a wide screen
and a phone, light and dark, by keyboard, with people blurred, without scripts."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.benchmark import quality
from sdgbias.benchmark.quality.evaluate import TableVerdict
from sdgbias.benchmark.quality.page import write_page
from sdgbias.report.build import write_night, write_report
from sdgbias.types import PILLARS
from tests.builders.chromium import MARKS, Screen, arrive, emulate, start, until
from tests.builders.commands import REPOSITORY, environment, refused
from tests.builders.nights import name as night_name
from tests.builders.nights import publish_nights, publish_persons, told_night
from tests.builders.studies import analyse_fake

pytestmark = MARKS
WIDE: Screen = (1280, 900, False, "light")
PHONE: Screen = (360, 760, True, "dark")
SCREENS = {"wide-light": WIDE, "phone-dark": PHONE}
RUN, BEFORE = "fake-optimist-3", "fake-optimist-2"
SERVED = (
    "/",
    "/nights",
    f"/nights/{night_name(3)}",
    "/numbers",
    "/numbers?suite=people&metric=disparity",
    "/models",
    "/models/fake-optimist",
    "/models/unfair",
    "/questions",
    f"/questions?run={RUN}&flipped=true",
    f"/questions/{RUN}/mcq/1?test=T2",
    f"/compare?a={BEFORE}&b={RUN}",
    "/runs",
)
#: "5 of 5" once a page with charts to choose in has drawn them.
DRAWN = "document.documentElement.dataset.figures"
#: A page of the report is at most so many screens of 800 pixels long.
MOST_SCREENS = 6

FAULTS = (REPOSITORY / "tests/builders/page_faults.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nights of three models on places, with studies; one model on people."""
    path = publish_persons(publish_nights(tmp_path_factory.mktemp("pages") / "sdgbias.duckdb"))
    for run in (RUN, "fake-pessimist-1"):
        analyse_fake(path, run)
    return path


@pytest.fixture(scope="module")
def report(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report, with the page of a night in which a model lost accuracy."""
    folder = write_report(results, tmp_path_factory.mktemp("report")).parent
    night = told_night(tmp_path_factory.mktemp("told") / "r.duckdb")
    write_night(night, folder / "told")
    # a page that stands beside the report
    rules = quality.load_rules("clusters", REPOSITORY / "expectations")
    judged = TableVerdict("clusters", 2, (), {}, {}, np.ones(2, bool))
    page = folder / "told" / quality.PAGE
    write_page(page, {"clusters": rules}, {"clusters": judged}, {}, True)
    return folder


@pytest.fixture(scope="module")
def address(results: Path) -> Iterator[str]:
    command = f"{sys.executable} -m sdgbias.cli serve --results {results} --port 0 --wait 0.2"
    server = subprocess.Popen(
        command.split(),
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert url, line
    yield url.group()
    server.send_signal(signal.SIGINT)
    _, errors = server.communicate(timeout=600)
    assert "Traceback" not in errors, errors


def show(chrome: Any, url: str, screen: Screen = WIDE) -> None:
    emulate(chrome, screen)
    chrome.get(url)
    if "dataset.figures =" in chrome.page_source:  # its script draws them
        until(chrome, lambda c: c.execute_script(f"return {DRAWN}"))


def requested(chrome: Any) -> set[str]:
    """The addresses that the browser has asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"].endswith("WillBeSent")]
    return {url for url in sent if not url.startswith("data:")}


def complaints(chrome: Any) -> list[str]:
    """What the page wrote to the console as an error or a warning since the last call."""
    entries = chrome.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("screen", SCREENS)
def test_every_served_page_reads_well_for_everyone_and_asks_nobody_else(
    chrome: Any, address: str, screen: str
) -> None:
    requested(chrome), complaints(chrome)
    for page in SERVED:
        show(chrome, address + page, SCREENS[screen])
        assert chrome.execute_script(FAULTS) == [], page
        assert chrome.title.endswith("· sdgbias")
    assert {url for url in requested(chrome) if not url.startswith(address)} == set()
    assert complaints(chrome) == []


def test_the_faults_are_found_where_there_are_some(chrome: Any, address: str) -> None:
    show(chrome, address + "/runs")
    chrome.execute_script("""const main = document.querySelector('main');
      const p = document.createElement('p'); p.textContent = 'faint'; p.className = 'faint';
      main.append(p, document.createElement('select'), document.createElement('h4'));
      p.style.color = '#bbb'; main.append(document.createElement('table'));""")
    faults = " ".join(chrome.execute_script(FAULTS))
    for fault in ("contrast", "faint", "no label", "H4 after", "no caption"):
        assert fault in faults, fault


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_of_the_report_is_alone_drawn_and_short(
    chrome: Any, report: Path, screen: str
) -> None:
    requested(chrome), complaints(chrome)
    pages = sorted([*report.glob("*.html"), *report.glob("told/*.html")])
    assert len([page for page in pages if page.name.startswith("model-")]) >= 3
    wide, _, mobile, scheme = SCREENS[screen]
    for page in pages:
        show(chrome, page.as_uri(), (wide, 800, mobile, scheme))
        figures = chrome.execute_script(f"return {DRAWN}") or "none of none"
        ready, wanted = figures.split(" of ")
        assert ready == wanted, f"{page.name}: {ready} of {wanted} figures are drawn"
        width, inner, height = chrome.execute_script(
            "const e = document.scrollingElement; return [e.scrollWidth, e.clientWidth,"
            " e.scrollHeight]"
        )
        assert width <= inner, f"{page.name} scrolls sideways"
        assert mobile or height <= 800 * MOST_SCREENS, f"{page.name} is {height / 800} screens long"
        beyond = chrome.execute_script(
            "return [...document.querySelectorAll('.plot')].map((p) =>"
            " (p.querySelector('.live svg') || p.querySelector('svg, img'))"
            ".getBoundingClientRect().right - p.getBoundingClientRect().right)"
        )
        inside = all(pixels <= 1 for pixels in beyond)
        assert inside or page.name == "night.html", f"{page.name}: a figure leaves its frame"
        cut = chrome.execute_script(
            "return [...document.querySelectorAll('.plot svg text')].filter((t) =>"
            " t.checkVisibility() && t.getBoundingClientRect().left <"
            " t.closest('.plot').getBoundingClientRect().left - 1).map((t) => t.textContent)"
        )
        assert page.name != "night.html" or cut == [], "the words of a figure are cut"
        assert complaints(chrome) == [], page.name
    assert {url for url in requested(chrome) if not url.startswith("file:")} == set()


def test_a_journey_by_keyboard_from_last_night_to_one_question_and_back(
    chrome: Any, address: str
) -> None:
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import Select

    def press(*keys: str) -> None:
        ActionChains(chrome).send_keys(*keys).perform()

    def focused() -> Any:
        return chrome.switch_to.active_element

    def follow(link: str) -> None:
        for _ in range(80):
            press(Keys.TAB)
            if (focused().get_attribute("aria-label") or focused().text) == link:
                outline = focused().value_of_css_property("outline-style")
                assert outline != "none", f"nobody sees that {link} has the focus"
                press(Keys.ENTER)
                return
        raise AssertionError(f"no {link!r} within reach of the Tab key")

    def main() -> str:
        return str(chrome.find_element("tag name", "main").text)

    def query(url: str) -> dict[str, str]:
        pairs = (pair.split("=") for pair in url.split("?")[1].split("&"))
        return {name: value for name, value in pairs if value}

    show(chrome, address + "/")
    press(Keys.TAB)
    assert focused().text == "Skip to the page" and focused().is_displayed()
    press(Keys.ENTER)
    until(chrome, lambda _: focused().get_attribute("id") == "main")
    assert "1 model in breach: fake-optimist" in main()
    follow("Questions of fake-optimist, sdg")
    arrive(chrome, f"run={RUN}")

    Select(chrome.find_element("name", "outcome")).select_by_value("wrong")
    Select(chrome.find_element("name", "test")).select_by_value("T2")
    chrome.execute_script("arguments[0].focus()", chrome.find_element("name", "flipped"))
    press(Keys.SPACE)
    chrome.find_element("name", "q").send_keys("stunting", Keys.ENTER)
    arrive(chrome, "q=stunting")
    badges = [b.text for b in chrome.find_elements("css selector", "tbody .badge")]
    rows = [r.text for r in chrome.find_elements("css selector", "tbody tr")]
    assert set(badges) == {"wrong"} and all("unting" in row for row in rows)
    assert chrome.find_element("name", "q").get_attribute("value") == "stunting"
    assert chrome.find_element("name", "flipped").is_selected()
    listed = chrome.current_url

    follow(chrome.find_element("css selector", "tbody th a").text)
    arrive(chrome, "/mcq/")
    assert "CADE answers" in main()
    loaded = "const i = document.images[0]; return i.complete && i.naturalWidth"
    assert chrome.execute_script(loaded) == 448
    follow("T3")
    arrive(chrome, "test=T3")
    assert "You may consider" in main()
    follow("Back to the questions")
    arrive(chrome, "/questions?")
    assert query(chrome.current_url) == {**query(listed), "task": "mcq", "method": "full"}


def test_choices_change_the_served_leaderboard(chrome: Any, address: str) -> None:
    """tests/report/test_leaderboard.py compares its numbers with the store's."""
    from selenium.webdriver.support.ui import Select

    def drawn() -> str:
        paths = "[...document.querySelectorAll('.plot .mark-line path')]"
        return str(chrome.execute_script(f"return {paths}.map((l) => l.getAttribute('d')).join()"))

    show(chrome, address + "/numbers")
    before = drawn()
    Select(chrome.find_element("name", "method")).select_by_visible_text("CADE")
    Select(chrome.find_element("name", "test")).select_by_value("T5")
    chrome.find_element("css selector", ".controls button").click()
    arrive(chrome, "test=T5")
    assert drawn() != before
    emulate(chrome, PHONE)
    inside = "const p = document.querySelector('.plot'); return p.scrollWidth - p.clientWidth"
    assert chrome.execute_script(inside) <= 0, "the chart fits a phone"


def test_letters_of_many_models_leave_room_for_the_other_columns(chrome: Any, report: Path) -> None:
    show(chrome, (report / "index.html").as_uri())
    added = """const cell = document.querySelector('td.num .ci').parentElement;
        const room = cell.closest('table').parentElement;
        cell.insertAdjacentHTML('beforeend', `<span class="letters">${'ab '.repeat(40)}</span>`);
        return room.scrollWidth - room.clientWidth"""
    assert chrome.execute_script(added) <= 0


def test_choices_change_charts_tables_and_words_of_the_report(chrome: Any, report: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import Select

    def choose(figure: str, name: str, value: str) -> None:
        select = chrome.find_element("css selector", f"#{figure}-controls select[name=pick_{name}]")
        chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", select)
        Select(select).select_by_value(value)

    def table(figure: str) -> list[list[str]]:
        rows = f"[...document.querySelectorAll('#{figure} tbody tr')]"
        cells = "[...r.children].map((c) => c.textContent)"
        return list(chrome.execute_script(f"return {rows}.map((r) => {cells})"))

    def drawn(figure: str) -> str:
        svg = f"document.querySelector('#{figure} .live svg').outerHTML"
        return str(chrome.execute_script(f"return {svg}"))

    show(chrome, (report / "methods.html").as_uri())
    before = drawn("methods-accuracy")
    assert ["vdd", "50.0"] in [[r[0], r[3]] for r in table("methods-accuracy")]
    choose("methods-accuracy", "test", "T1")
    t1 = ["vdd", "51.0"]
    until(chrome, lambda _: t1 in [[r[0], r[3]] for r in table("methods-accuracy")])
    assert drawn("methods-accuracy") != before
    label = "document.querySelector('#methods-accuracy .plot').getAttribute('aria-label')"
    assert ", T1, " in chrome.execute_script(f"return {label}")
    choose("methods-accuracy", "model", "fake-pessimist (planted)")  # holds for every figure
    models = "[...document.querySelectorAll('select[name=pick_model]')].map((s) => s.value)"
    pessimist = {"fake-pessimist (planted)"}
    until(chrome, lambda c: set(c.execute_script(f"return {models}")) == pessimist)
    mark = chrome.find_elements("css selector", "#methods-gain .live .mark-symbol path")[0]
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(chrome).move_to_element(mark).perform()
    until(chrome, lambda c: c.find_elements("css selector", "#vg-tooltip-element.visible"))
    tip = chrome.find_element("id", "vg-tooltip-element").text
    assert "95 % CI" in tip and "48" in tip

    show(chrome, (report / "parameters.html").as_uri())
    assert len(chrome.find_elements("css selector", "#sweep .live svg")) == 4
    assert len(chrome.find_elements("css selector", "#sweep-controls select")) == 3
    assert {row[0] for row in table("sweep")} == {"alpha", "lambda", "beta", "tau"}

    show(chrome, (report / "harm.html").as_uri())
    nothing = chrome.find_element("css selector", "#harm-fixed .nothing")
    assert not nothing.is_displayed()
    choose("harm-fixed", "pillar", PILLARS[0])
    choose("harm-fixed", "task", "Estimate")
    until(chrome, lambda _: nothing.is_displayed())
    assert table("harm-fixed") == []


def test_an_example_question_is_whole_and_never_markup(chrome: Any, report: Path) -> None:
    """Folded, but for the first: prompt, options, scores, CADE's terms, picture."""
    show(chrome, (report / "questions.html").as_uri(), PHONE)
    first = chrome.find_element("css selector", "details.fold[open]")
    assert "</script><b>&?" in first.text and first.find_elements("css selector", "b") == []
    assert "VALID OPTIONS: A, B, C" in first.find_element("css selector", ".prompt").text
    assert len(first.find_elements("css selector", ".bars [role=group]")) == 4
    assert len(first.find_elements("css selector", "table tbody tr")) == 4
    picture = first.find_element("tag name", "img")
    assert chrome.execute_script("return arguments[0].naturalWidth", picture) > 100


def test_the_reports_leaderboard_sorts(chrome: Any, report: Path) -> None:
    def models() -> list[str]:
        rows = chrome.find_elements("css selector", "#board tbody th")
        return [row.get_attribute("data-sort") for row in rows]

    show(chrome, (report / "index.html").as_uri())
    first = models()
    chrome.find_elements("css selector", ".sorts")[0].click()
    assert models() == sorted(first) and len(first) > 1
    interval = chrome.find_element("css selector", "#board small.ci")
    assert interval.is_displayed(), "no fact needs a click"
    chrome.find_element("id", "show-ci").click()
    assert not interval.is_displayed()


@pytest.mark.parametrize("door", ["report", "serve"])
def test_people_are_blurred_until_asked_for_on_every_visit_and_on_paper(
    chrome: Any, address: str, report: Path, door: str
) -> None:
    from selenium.webdriver import Keys

    def blurs() -> set[str]:
        shown = (
            "[...document.querySelectorAll('.example:not([hidden]) img, .person img, figure img')]"
        )
        every = f"{shown}.map((image) => getComputedStyle(image).filter)"
        return set(chrome.execute_script(f"return {every}"))

    page = (report / "fairness.html").as_uri()
    page = page if door == "report" else f"{address}/questions/unfair-0/choice/101"
    for screen in SCREENS.values():
        show(chrome, page, screen)
        assert blurs() == {"blur(28px)"}, "covered at first"
    box = chrome.find_element("id", "show-people")
    chrome.execute_script("arguments[0].focus()", box)
    box.send_keys(Keys.SPACE)  # by keyboard alone
    assert blurs() == {"none"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert blurs() == {"blur(28px)"}, "covered on paper"
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    chrome.refresh()
    assert blurs() == {"blur(28px)"}, "asked for anew on every visit"
    if door == "report":  # one person is uncovered by a click
        chrome.execute_script("document.querySelector('.example:not([hidden]) .frame').click()")
        assert blurs() == {"none", "blur(28px)"}


def test_a_running_night_says_how_far_it_is(chrome: Any, address: str, results: Path) -> None:
    night = {"night": "2026-11-30T0130", "started_at": pd.Timestamp("2026-11-30T00:30:00")}

    def record(status: str) -> None:
        row = pd.DataFrame([{**night, "status": status}])
        store.upsert(results, {"nights": row.astype({"started_at": "datetime64[us]"})})

    record("running")
    entries = results.with_suffix(".nights") / str(night["night"]) / "registry"
    entries.mkdir(parents=True)
    for model in "ab":
        (entries / f"{model}.yaml").write_text("name: x")
    try:
        show(chrome, address + "/")
        assert chrome.find_element("css selector", "[role=status]").text == "0 of 2 done"
        done = {"night": night["night"], "model": "a", "suite": "sdg", "outcome": "published"}
        store.upsert(results, {"night_outcomes": pd.DataFrame([done])})
        # ten seconds pass at once
        clock = {"policy": "pauseIfNetworkFetchesPending", "budget": 11000}
        chrome.execute_cdp_cmd("Emulation.setVirtualTimePolicy", clock)
        until(
            chrome, lambda c: c.find_element("css selector", "[role=status]").text == "1 of 2 done"
        )
        assert chrome.find_element("tag name", "progress").get_attribute("value") == "1"
    finally:
        record("interrupted")


def test_pages_without_scripts_still_show_figures(report: Path, tmp_path: Path) -> None:
    chrome = start(tmp_path, scripts=False)
    try:
        chrome.get((report / "harm.html").as_uri())
        plots = chrome.find_elements("css selector", ".plot > svg")
        assert len(plots) > 5 and all(plot.size["width"] > 200 for plot in plots)
        assert chrome.find_elements("css selector", "select") == []
    finally:
        chrome.quit()


def test_250_connections_at_once_are_all_answered(address: str, results: Path) -> None:
    """More than the server has threads: they wait, none is refused. A taken port is said. One in
    25 asks for a page, which takes a tenth of a second, the others for a file."""
    port = int(address.rsplit(":", 1)[1])
    statuses: Counter[int] = Counter()

    async def ask(path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        statuses[int((await reader.read()).split(maxsplit=2)[1])] += 1
        writer.close()

    async def ask_together() -> None:
        paths = ["/runs", *["/static/icon.svg"] * 24] * 10
        await asyncio.gather(*map(ask, paths))

    asyncio.run(ask_together())
    assert statuses == {200: 250}
    assert "choose another --port" in refused(2, f"serve --results {results} --port {port}")
