"""The report in a real browser: no request, no script error, no sideways scrolling, and the
question browser works."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sdgbias.report.build import write_report
from tests.builders.chromium import MARKS, emulate
from tests.builders.results import publish_fake

pytestmark = MARKS
SCREENS = {"desktop-light": (1280, 900, False, "light"), "phone-dark": (375, 812, True, "dark")}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(publish_fake(folder / "sdgbias.duckdb"), folder)


def show(chrome: Any, page: Path, screen: str) -> None:
    emulate(chrome, SCREENS[screen])
    chrome.get(page.as_uri())


def position(chrome: Any) -> tuple[int, int]:
    at, _, total = chrome.find_element("id", "position").text.partition(" of ")
    return int(at), int(total)


def choose(chrome: Any, name: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(chrome.find_element("name", name)).select_by_value(value)


def click(chrome: Any, element_id: str) -> None:
    chrome.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})",
        chrome.find_element("id", element_id),
    )
    chrome.find_element("id", element_id).click()


@pytest.mark.parametrize("screen", SCREENS)
def test_page_loads_alone_and_fits(chrome: Any, page: Path, screen: str, tmp_path: Path) -> None:
    chrome.get_log("performance")
    show(chrome, page, screen)
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file://", "data:"))] == []
    assert page.as_uri() in asked
    wide = chrome.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    for value, _ in [("T1", 0), ("T5", 0), ("", 0)]:
        choose(chrome, "test", value)
        wide = chrome.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
    assert [e for e in chrome.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    dark = chrome.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == screen.endswith("dark")
    for folder in filter(None, (str(tmp_path), os.environ.get("SDGBIAS_SCREENSHOTS"))):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shot(chrome, Path(folder) / f"report-{screen}.png")


def shot(chrome: Any, path: Path) -> None:
    """The whole page, as long as it is."""
    width, height = chrome.execute_script(
        "return [innerWidth, document.scrollingElement.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16000), "scale": 0.5}
    taken = chrome.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(taken["data"]))
    assert path.stat().st_size > 10_000


def test_filters_and_steps(chrome: Any, page: Path) -> None:
    show(chrome, page, "desktop-light")
    at, total = position(chrome)
    assert (at, total) == (1, 120)
    first = chrome.find_element("id", "question").text
    click(chrome, "next")
    assert position(chrome)[0] == 2
    assert chrome.find_element("id", "question").text != first
    click(chrome, "previous")
    click(chrome, "previous")
    assert position(chrome)[0] == total  # wraps around
    choose(chrome, "model", "fake-pessimist")
    choose(chrome, "outcome", "broken")
    assert 0 < position(chrome)[1] < total
    assert "broken by CADE" in chrome.find_element("id", "question").text
    choose(chrome, "outcome", "")
    choose(chrome, "model", "")
    assert position(chrome) == (1, total)


def test_no_match_can_be_undone(chrome: Any, page: Path) -> None:
    show(chrome, page, "desktop-light")
    chrome.execute_script(
        "document.querySelector('select[name=pillar]').append(new Option('none', 'none'))"
    )
    choose(chrome, "pillar", "none")
    assert chrome.find_element("id", "position").text == "0 of 0"
    assert not chrome.find_element("id", "question").is_displayed()
    click(chrome, "reset")
    assert position(chrome) == (1, 120)


def test_keyboard_alone(chrome: Any, page: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    show(chrome, page, "desktop-light")
    ActionChains(chrome).send_keys(Keys.TAB).perform()
    assert chrome.switch_to.active_element.text == "Skip to the page"
    ActionChains(chrome).send_keys(Keys.ENTER).perform()
    assert chrome.switch_to.active_element.get_attribute("id") == "main"
    chrome.execute_script("document.getElementById('next').focus()")
    ActionChains(chrome).send_keys(Keys.ARROW_RIGHT).send_keys(Keys.ENTER).send_keys(
        Keys.ARROW_LEFT
    ).perform()
    assert position(chrome)[0] == 2


def test_question_text_is_never_markup(chrome: Any, page: Path) -> None:
    show(chrome, page, "desktop-light")
    assert "</script><b>&?" in chrome.find_element("id", "question").text
    assert chrome.find_elements("css selector", "#question b") == []
    crops = chrome.find_elements("css selector", "#question .crop")
    assert len(crops) == 3
    assert all("data:image/webp" in c.value_of_css_property("background-image") for c in crops)
    assert len(chrome.find_elements("css selector", "#question .bars figure")) == 4
    assert len(chrome.find_elements("css selector", "#question .terms tbody tr")) == 4
