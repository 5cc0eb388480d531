"""The report's further pages in a real browser: light, dark and on a phone; no request, no error,
no sideways scrolling; selects work."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sdgbias.report.build import write_report
from sdgbias.types import PILLARS
from tests.builders.chromium import MARKS, emulate, start
from tests.builders.results import publish_fake
from tests.builders.studies import analyse_fake

pytestmark = MARKS
SCREENS = {
    "light": (1280, 900, False, "light"),
    "dark": (1280, 900, False, "dark"),
    "phone": (375, 812, True, "dark"),
}
FIGURES = {"methods": 6, "parameters": 6, "groups": 6, "harm": 8, "compare": 2}
READY = "return document.documentElement.dataset.figures || ''"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    results = publish_fake(out / "sdgbias.duckdb")
    for run in ("fake-optimist-1", "fake-pessimist-2"):
        analyse_fake(results, run)
    return write_report(results, out).parent


def show(chrome: Any, page: Path, screen: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    emulate(chrome, SCREENS[screen])
    chrome.get(page.as_uri())
    WebDriverWait(chrome, 600).until(lambda driver: driver.execute_script(READY))


# dark colours are the phone's, too
@pytest.mark.parametrize("screen", ["light", pytest.param("dark", marks=pytest.mark.long), "phone"])
@pytest.mark.parametrize("name", FIGURES)
def test_page_draws_alone_and_fits(chrome: Any, folder: Path, name: str, screen: str) -> None:
    chrome.get_log("performance")
    page = folder / f"{name}.html"
    show(chrome, page, screen)
    assert chrome.execute_script(READY) == f"{FIGURES[name]} of {FIGURES[name]}"
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    asked = {
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert [e for e in chrome.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    wide = chrome.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    drawn = (
        "return [...document.querySelectorAll('.plot')].map((p) => (p.querySelector('.live svg') ||"
        " p.querySelector('svg, img')).getBoundingClientRect().right -"
        " p.getBoundingClientRect().right)"
    )
    assert all(beyond <= 1 for beyond in chrome.execute_script(drawn))
    named = (
        "return [...document.querySelectorAll('select')].every((s) => s.labels.length === 1 &&"
        " s.labels[0].textContent.trim())"
    )
    assert chrome.execute_script(named)
    if os.environ.get("SDGBIAS_SCREENSHOTS"):
        out = Path(os.environ["SDGBIAS_SCREENSHOTS"])
        out.mkdir(parents=True, exist_ok=True)
        shot(chrome, out / f"{name}-{screen}.png")


def shot(chrome: Any, path: Path) -> None:
    width, height = chrome.execute_script(
        "return [innerWidth, document.scrollingElement.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16000), "scale": 0.6}
    taken = chrome.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(taken["data"]))


def choose(chrome: Any, figure: str, name: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    select = chrome.find_element("css selector", f"#{figure}-controls select[name=pick_{name}]")
    chrome.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", select
    )
    Select(select).select_by_value(value)


def table(chrome: Any, figure: str) -> list[list[str]]:
    return chrome.execute_script(
        f"return [...document.querySelectorAll('#{figure} tbody tr')].map((r) =>"
        " [...r.children].map((c) => c.textContent))"
    )


def marks(chrome: Any, figure: str) -> str:
    return chrome.execute_script(f"return document.querySelector('#{figure} .live svg').outerHTML")


def wait_for(chrome: Any, found: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(chrome, 600).until(lambda _: found())


def test_a_choice_changes_chart_table_and_words(chrome: Any, folder: Path) -> None:
    show(chrome, folder / "methods.html", "light")
    before = marks(chrome, "methods-accuracy")
    assert ["vdd", "50.0"] in [[r[0], r[3]] for r in table(chrome, "methods-accuracy")]
    choose(chrome, "methods-accuracy", "test", "T1")
    wait_for(
        chrome, lambda: ["vdd", "51.0"] in [[r[0], r[3]] for r in table(chrome, "methods-accuracy")]
    )
    assert marks(chrome, "methods-accuracy") != before
    label = chrome.execute_script(
        "return document.querySelector('#methods-accuracy .plot').getAttribute('aria-label')"
    )
    assert ", T1, " in label
    assert "T1" in chrome.find_element("css selector", "#methods-accuracy .choice").text


def test_a_choice_holds_for_every_figure_that_offers_it(chrome: Any, folder: Path) -> None:
    show(chrome, folder / "methods.html", "light")
    choose(chrome, "methods-accuracy", "model", "fake-pessimist (planted)")
    said = "return [...document.querySelectorAll('select[name=pick_model]')].map((s) => s.value)"
    wait_for(chrome, lambda: set(chrome.execute_script(said)) == {"fake-pessimist (planted)"})
    assert (
        "fake-pessimist (planted)"
        in chrome.find_element("css selector", "#directions .choice").text
    )


def test_panels_follow_the_selects_of_the_first(chrome: Any, folder: Path) -> None:
    show(chrome, folder / "parameters.html", "light")
    assert len(chrome.find_elements("css selector", "#sweep .live svg")) == 4
    assert len(chrome.find_elements("css selector", "#sweep-controls select")) == 3
    assert {r[0] for r in table(chrome, "sweep")} == {"alpha", "lambda", "beta", "tau"}


def test_an_empty_choice_says_so(chrome: Any, folder: Path) -> None:
    show(chrome, folder / "harm.html", "light")
    nothing = chrome.find_element("css selector", "#harm-fixed .nothing")
    assert not nothing.is_displayed()
    choose(chrome, "harm-fixed", "pillar", PILLARS[0])
    choose(chrome, "harm-fixed", "task", "Estimate")
    wait_for(chrome, nothing.is_displayed)
    assert table(chrome, "harm-fixed") == []
    choose(chrome, "harm-fixed", "pillar", "all pillars")
    wait_for(chrome, lambda: not nothing.is_displayed())


def test_numbers_appear_on_hover(chrome: Any, folder: Path) -> None:
    from selenium.webdriver import ActionChains

    show(chrome, folder / "methods.html", "light")
    mark = chrome.find_elements("css selector", "#methods-gain .live .mark-symbol path")[0]
    chrome.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", mark
    )
    ActionChains(chrome).move_to_element(mark).perform()
    wait_for(chrome, lambda: chrome.find_elements("css selector", "#vg-tooltip-element.visible"))
    said = chrome.find_element("id", "vg-tooltip-element").text
    assert "95 % CI" in said
    assert "48" in said


def test_pages_without_scripts_still_show_figures(folder: Path, tmp_path: Path) -> None:
    chrome = start(tmp_path, scripts=False)
    try:
        chrome.get((folder / "harm.html").as_uri())
        plots = chrome.find_elements("css selector", ".plot > svg")
        assert len(plots) == FIGURES["harm"]
        assert all(p.size["width"] > 200 for p in plots)
        assert chrome.find_elements("css selector", "select") == []
    finally:
        chrome.quit()
