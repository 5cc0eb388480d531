"""The page Fairness in a real browser: people are blurred until a reader asks to see them, and
nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sdgbias.analysis import analyse
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.report.build import write_report
from tests.builders.chromium import MARKS
from tests.builders.people import publish_people

pytestmark = MARKS


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    results = publish_people(folder)
    analyse.analyse(results, settings=AnalysisSettings(draws=100, bootstrap=100))
    return write_report(results, folder / "report").with_name("fairness.html")


def blurs(chrome: Any) -> set[str]:
    return set(
        chrome.execute_script(
            "return [...document.images].map((image) => getComputedStyle(image).filter)"
        )
    )


def test_people_are_blurred_until_asked_for(chrome: Any, page: Path) -> None:
    from selenium.webdriver import Keys

    chrome.get(page.as_uri())
    assert len(chrome.find_elements("css selector", ".example img")) == 60
    assert blurs(chrome) == {"blur(28px)"}
    box = chrome.find_element("id", "show-people")
    chrome.execute_script("arguments[0].focus()", box)
    box.send_keys(Keys.SPACE)  # by keyboard alone
    assert blurs(chrome) == {"none"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert blurs(chrome) == {"blur(28px)"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    chrome.refresh()
    assert blurs(chrome) == {"blur(28px)"}  # asked for anew on every visit


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_it_fits_and_runs(chrome: Any, page: Path, width: int, scheme: str) -> None:
    from selenium.webdriver.support.ui import Select, WebDriverWait

    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    chrome.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    chrome.get(page.as_uri())
    WebDriverWait(chrome, 600).until(
        lambda c: c.execute_script("return document.documentElement.dataset.figures")
    )
    ready, asked = chrome.execute_script("return document.documentElement.dataset.figures").split(
        " of "
    )
    assert ready == asked
    wide = chrome.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    Select(chrome.find_element("id", "outcome")).select_by_value("unread")
    shown = [e for e in chrome.find_elements("css selector", ".example") if e.is_displayed()]
    assert 0 < len(shown) < 60 and {e.get_attribute("data-outcome") for e in shown} == {"unread"}
    assert [e for e in chrome.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
