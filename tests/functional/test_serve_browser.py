"""`sdgbias serve` for real: the command as a process, Chromium before it. Journeys, keyboard,
phone, dark, contrast, blurred people."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sdgbias import store
from tests.builders.chromium import MARKS, Screen, arrive, emulate, until
from tests.builders.commands import REPOSITORY, environment, refused
from tests.builders.nights import name as night_name
from tests.builders.nights import publish_nights, publish_persons

pytestmark = MARKS
WIDE: Screen = (1280, 900, False, "light")
PHONE: Screen = (360, 760, True, "dark")
RUN, BEFORE = "fake-optimist-3", "fake-optimist-2"
PAGES = (
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

#: What a person who sees badly, or uses no mouse, would stumble over: a list of sentences, empty
#: when there is nothing.
FAULTS = r"""
const faults = [];
document.querySelectorAll('details').forEach((d) => { d.open = true; });
for (const e of document.querySelectorAll('select, input:not([type=hidden]), textarea'))
  if (!e.labels.length || !e.labels[0].textContent.trim())
    faults.push('no label: ' + e.outerHTML.slice(0, 90));
for (const t of document.querySelectorAll('table')) {
  if (!t.caption || !t.caption.textContent.trim())
    faults.push('no caption: ' + t.textContent.slice(0, 60));
  if ([...t.querySelectorAll('th')].some((h) => !h.scope || !h.textContent.trim()))
    faults.push('head without scope or words: ' + t.caption.textContent);
}
for (const s of document.querySelectorAll('svg'))
  if (s.getAttribute('aria-hidden') !== 'true'
      && !(s.getAttribute('role') === 'img' && s.getAttribute('aria-label')))
    faults.push('picture without words: ' + s.outerHTML.slice(0, 90));
for (const i of document.images) if (!i.alt) faults.push('no alt: ' + i.src);
for (const r of document.querySelectorAll('.scroll'))
  if (r.tabIndex !== 0 || !r.getAttribute('aria-label'))
    faults.push('region out of reach of the keyboard');
for (const a of document.querySelectorAll('a, button'))
  if (!(a.textContent.trim() || a.getAttribute('aria-label')))
    faults.push('link without words: ' + a.outerHTML);
for (const tag of ['main', 'header', 'footer', 'h1'])
  if (document.querySelectorAll(tag).length !== 1) faults.push('not one ' + tag);
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
if (new Set(ids).size < ids.length) faults.push('an id twice');
const navs = [...document.querySelectorAll('nav')].map((n) => n.getAttribute('aria-label'));
if (new Set(navs).size < navs.length) faults.push('two navigations of one name: ' + navs);
let level = 0;
for (const h of document.querySelectorAll('h1, h2, h3, h4')) {
  const now = Number(h.tagName[1]);
  if (now > level + 1) faults.push(`${h.tagName} after h${level}: ${h.textContent}`);
  level = now;
}
const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
function behind(e) {
  for (let at = e; at; at = at.parentElement) {
    const c = rgb(getComputedStyle(at).backgroundColor);
    if (c.length && (c.length < 4 || c[3] > 0)) return c;
  }
  return [255, 255, 255];
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  const unseen = ['SCRIPT', 'TITLE', 'OPTION', 'OPTGROUP'].includes(e.tagName);
  if (!walker.currentNode.data.trim() || !e.checkVisibility() || unseen) continue;
  const style = getComputedStyle(e);
  const front = light(rgb(e.closest('svg') ? style.fill : style.color));
  const pair = [front, light(behind(e))].sort((a, b) => b - a);
  const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (contrast < 4.5)
    faults.push(`contrast ${contrast.toFixed(2)}: ${e.textContent.trim().slice(0, 40)}`);
}
if (document.scrollingElement.scrollWidth > innerWidth) faults.push('scrolls sideways');
return faults;
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_persons(publish_nights(tmp_path_factory.mktemp("serve") / "sdgbias.duckdb"))


@pytest.fixture(scope="module")
def address(results: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "sdgbias.cli",
        "serve",
        "--results",
        str(results),
        "--port",
        "0",
        "--wait",
        "0.2",
    ]
    server = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    said = server.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", said)
    assert found, said
    yield found.group()
    server.send_signal(signal.SIGINT)
    _, errors = server.communicate(timeout=600)
    assert "Traceback" not in errors, errors


def show(chrome: Any, url: str, screen: Screen = WIDE) -> None:
    emulate(chrome, screen)
    chrome.get(url)


def requests(chrome: Any) -> set[str]:
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    return {
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    }


@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide-light", "phone-dark"])
def test_every_page_reads_well_alone_and_for_everyone(
    chrome: Any, address: str, screen: Screen
) -> None:
    requests(chrome)
    for page in PAGES:
        show(chrome, address + page, screen)
        assert chrome.execute_script(FAULTS) == [], page
        assert chrome.title.endswith("· sdgbias")
    assert {url for url in requests(chrome) if not url.startswith(address)} == set()
    assert [e for e in chrome.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []


def test_the_faults_are_found_where_there_are_some(chrome: Any, address: str) -> None:
    show(chrome, address + "/runs")
    chrome.execute_script("""const main = document.querySelector('main');
      const p = document.createElement('p'); p.textContent = 'faint'; p.className = 'faint';
      main.append(p, document.createElement('select'), document.createElement('h4'));
      p.style.color = '#bbb'; main.append(document.createElement('table'));""")
    said = " ".join(chrome.execute_script(FAULTS))
    for fault in ("contrast", "faint", "no label", "H4 after", "no caption"):
        assert fault in said, fault


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

    show(chrome, address + "/")
    press(Keys.TAB)
    assert focused().text == "Skip to the page" and focused().is_displayed()
    press(Keys.ENTER)
    until(chrome, lambda _: focused().get_attribute("id") == "main")
    assert "1 model in breach: fake-optimist" in chrome.find_element("tag name", "main").text
    follow("Questions of fake-optimist, sdg")
    arrive(chrome, f"run={RUN}")

    Select(chrome.find_element("name", "outcome")).select_by_value("wrong")
    Select(chrome.find_element("name", "test")).select_by_value("T2")
    box = chrome.find_element("name", "flipped")
    chrome.execute_script("arguments[0].focus()", box)
    press(Keys.SPACE)
    words = chrome.find_element("name", "q")
    words.send_keys("stunting", Keys.ENTER)
    arrive(chrome, "q=stunting")
    badges = [b.text for b in chrome.find_elements("css selector", "tbody .badge")]
    assert (
        badges
        and set(badges) == {"wrong"}
        and all("unting" in r.text for r in chrome.find_elements("css selector", "tbody tr"))
    )
    assert (
        chrome.find_element("name", "q").get_attribute("value") == "stunting"
        and chrome.find_element("name", "flipped").is_selected()
    )
    listed = chrome.current_url

    follow(chrome.find_element("css selector", "tbody th a").text)
    arrive(chrome, "/mcq/")
    assert "CADE answers" in chrome.find_element("tag name", "main").text
    assert (
        chrome.execute_script(
            "return document.images[0].complete && document.images[0].naturalWidth"
        )
        == 448
    )
    follow("T3")
    arrive(chrome, "test=T3")
    assert "You may consider" in chrome.find_element("tag name", "main").text
    follow("Back to the questions")
    arrive(chrome, "/questions?")
    assert dict(p.split("=") for p in chrome.current_url.split("?")[1].split("&")) == {
        k: v for k, v in (p.split("=") for p in listed.split("?")[1].split("&")) if v
    } | {"task": "mcq", "method": "full"}


def test_choices_change_the_leaderboard(chrome: Any, address: str, results: Path) -> None:
    from selenium.webdriver.support.ui import Select

    show(chrome, address + "/numbers")
    lines = (
        "return [...document.querySelectorAll('.plot .mark-line path')].map((l) =>"
        " l.getAttribute('d')).join(' ')"
    )
    before = chrome.execute_script(lines)
    Select(chrome.find_element("name", "method")).select_by_visible_text("CADE")
    Select(chrome.find_element("name", "test")).select_by_value("T5")
    chrome.find_element("css selector", ".controls button").click()
    arrive(chrome, "test=T5")
    assert chrome.execute_script(lines) != before
    value = store.query(
        results,
        "SELECT value FROM metrics WHERE run_id = ? AND task = 'mcq' AND metric = 'accuracy' AND"
        " method = 'cade' AND test = 'T5' AND pillar = 'all' AND indicator = 'all'",
        [RUN],
    )["value"][0]
    row = next(
        r.text
        for r in chrome.find_elements("css selector", "tbody tr")
        if "fake-optimist" in r.text
    )
    assert f"{100 * value:.1f}" in row
    drawn = (
        "const s = document.querySelector('.plot svg').getBoundingClientRect(); return [s.width,"
        " s.height]"
    )
    assert min(chrome.execute_script(drawn)) > 150
    emulate(chrome, PHONE)
    width, inside = chrome.execute_script(
        "const p = document.querySelector('.plot'); return [document.documentElement.scrollWidth,"
        " p.scrollWidth - p.clientWidth]"
    )
    assert width <= PHONE[0] and inside <= 0, "the chart fits a phone"


def test_people_are_blurred_until_asked_for(chrome: Any, address: str) -> None:
    from selenium.webdriver import Keys

    blur = "return [...document.images].map((i) => getComputedStyle(i).filter)"
    for screen in (WIDE, PHONE):
        show(chrome, f"{address}/questions/unfair-0/choice/101", screen)
        assert chrome.execute_script(blur) == ["blur(28px)"]
        assert chrome.execute_script(FAULTS) == []
    box = chrome.find_element("id", "show-people")
    chrome.execute_script("arguments[0].focus()", box)
    box.send_keys(Keys.SPACE)
    assert chrome.execute_script(blur) == ["none"]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert chrome.execute_script(blur) == ["blur(28px)"]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    chrome.refresh()
    assert chrome.execute_script(blur) == ["blur(28px)"]


def heading(chrome: Any) -> str:
    return str(chrome.find_element("tag name", "h1").text)


def test_while_results_are_written_the_page_waits_and_comes_back(
    chrome: Any, address: str, results: Path
) -> None:
    code = (
        f"import duckdb, sys; c = duckdb.connect({str(results)!r}); print('held', flush=True);"
        " sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        show(chrome, address + "/runs?suite=people&page=1")
        until(chrome, lambda c: heading(c) == "The results are being written")
    finally:
        holder.communicate(timeout=600)
    until(chrome, lambda c: heading(c) == "Runs")
    chrome.get_log("browser")


def test_a_running_night_says_how_far_it_is(chrome: Any, address: str, results: Path) -> None:
    night = {"night": "2026-11-30T0130", "started_at": "2026-11-30T00:30:00", "status": "running"}
    store.upsert(
        results, {"nights": pd.DataFrame([night]).astype({"started_at": "datetime64[us]"})}
    )
    folder = results.parent / "nights" / str(night["night"])
    (folder / "registry").mkdir(parents=True)
    for model in "ab":
        (folder / "registry" / f"{model}.yaml").write_text("name: x")
    try:
        show(chrome, address + "/")
        assert chrome.find_element("css selector", "[role=status]").text == "0 of 2 done"
        done = {"night": night["night"], "model": "a", "suite": "sdg", "outcome": "published"}
        store.upsert(results, {"night_outcomes": pd.DataFrame([done])})
        # ten seconds pass at once
        chrome.execute_cdp_cmd(
            "Emulation.setVirtualTimePolicy",
            {"policy": "pauseIfNetworkFetchesPending", "budget": 11000},
        )
        until(
            chrome, lambda c: c.find_element("css selector", "[role=status]").text == "1 of 2 done"
        )
        assert chrome.find_element("tag name", "progress").get_attribute("value") == "1"
    finally:
        store.upsert(
            results,
            {
                "nights": (
                    pd.DataFrame([night | {"status": "interrupted"}]).astype(
                        {"started_at": "datetime64[us]"}
                    )
                )
            },
        )


def test_a_port_that_is_taken_is_said_in_a_line(results: Path, address: str) -> None:
    assert "choose another --port" in refused(
        2, "serve", "--results", results, "--port", address.rsplit(":", 1)[1]
    )
