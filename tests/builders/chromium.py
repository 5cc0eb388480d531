"""A real Chromium for the tests of pages: how it is found, started, and told which screen it
has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed (pip install -e '.[dev]')")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason=(
            "chromium and chromedriver are not installed (apt-get install chromium chromium-driver)"
        ),
    ),
]
#: width, height, mobile, colour scheme
Screen = tuple[int, int, bool, str]
#: Seconds that a page or a script may take on a busy machine.
WAIT = 600


def start(profile: Path, *, scripts: bool = True, downloads: Path | None = None) -> Any:
    """A driver with a profile of its own; console messages and requests are logged. ``downloads``:
    where saved files go."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "no-first-run",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{flag}")
    wishes: dict[str, object] = {}
    if not scripts:
        wishes["profile.managed_default_content_settings.javascript"] = 2
    if downloads is not None:
        wishes |= {
            "download.default_directory": str(downloads),
            "download.prompt_for_download": False,
        }
    if wishes:
        options.add_experimental_option("prefs", wishes)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    driver.set_page_load_timeout(WAIT)
    driver.set_script_timeout(WAIT)  # 30 s without
    return driver


def until(chrome: Any, true: Callable[[Any], object]) -> None:
    """Waits until ``true`` of the browser; an element of a page that was just left is none yet."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    left = [StaleElementReferenceException]
    WebDriverWait(chrome, WAIT, ignored_exceptions=left).until(true)


def arrive(chrome: Any, part: str) -> None:
    """Waits for the page whose address has this part. A command that follows a link or sends a form
    may return before the browser has left the page."""
    ready = "return document.readyState"
    until(
        chrome, lambda _: part in chrome.current_url and chrome.execute_script(ready) == "complete"
    )


def emulate(chrome: Any, screen: Screen) -> None:
    """Gives the browser a screen and a colour scheme."""
    width, height, mobile, scheme = screen
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {
            "width": width,
            "height": height,
            "deviceScaleFactor": 2 if mobile else 1,
            "mobile": mobile,
        },
    )
    chrome.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
