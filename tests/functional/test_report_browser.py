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
from tests.builders.chromium import MARKS, emulate, until
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


def test_skip_link_by_keyboard(chrome: Any, page: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    show(chrome, page, "desktop-light")
    ActionChains(chrome).send_keys(Keys.TAB).perform()
    assert chrome.switch_to.active_element.text == "Skip to the page"
    ActionChains(chrome).send_keys(Keys.ENTER).perform()
    until(chrome, lambda c: c.switch_to.active_element.get_attribute("id") == "main")


@pytest.mark.parametrize("screen", SCREENS)
def test_an_example_question_is_whole(chrome: Any, page: Path, screen: str) -> None:
    """Folded examples of which the first is open: prompt, options, scores, CADE's terms, picture;
    text of a benchmark is never markup."""
    show(chrome, page.with_name("questions.html"), screen)
    first = chrome.find_element("css selector", "details.fold[open]")
    assert "</script><b>&?" in first.text and first.find_elements("css selector", "b") == []
    assert "VALID OPTIONS: A, B, C" in first.find_element("css selector", ".prompt").text
    assert len(first.find_elements("css selector", ".bars [role=group]")) == 4
    assert len(first.find_elements("css selector", "table tbody tr")) == 4
    width = "return arguments[0].naturalWidth"
    assert chrome.execute_script(width, first.find_element("tag name", "img")) > 100
    wide = chrome.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
