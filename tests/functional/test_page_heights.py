"""The report of several models and nights in a real browser: no page is long, the leaderboard sorts
and compares, people are uncovered one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sdgbias.analysis import paper
from sdgbias.analysis.paper import results as stored
from sdgbias.report.build import write_report
from tests.builders.chromium import MARKS, emulate
from tests.builders.many_nights import Size, fill

pytestmark = MARKS
SCREENS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nights")
    results = fill(made, Size(models=5, nights=2, every=4, questions=30, people=60, draws=50))
    tables = paper.build(stored.load(results))
    return write_report(results, made / "report", tables=tables).parent


def test_no_page_scrolls_sideways_on_a_phone(chrome: Any, folder: Path) -> None:
    emulate(chrome, (390, 800, True, "light"))
    wide = {}
    for page in sorted(folder.glob("*.html")):
        chrome.get(page.as_uri())
        wide[page.name] = chrome.execute_script("return document.documentElement.scrollWidth")
    assert {name: width for name, width in wide.items() if width > 390} == {}


def test_no_page_is_longer_than_eight_screens(chrome: Any, folder: Path) -> None:
    emulate(chrome, (1280, 800, False, "light"))
    tall = {}
    for page in sorted(folder.glob("*.html")):
        chrome.get(page.as_uri())
        height, width = chrome.execute_script(
            "const e = document.documentElement; return [e.scrollHeight, e.scrollWidth]"
        )
        assert width <= 1280, f"{page.name} scrolls sideways"
        tall[page.name] = height / 800
    assert len([name for name in tall if name.startswith("model-")]) == 5
    assert {name: screens for name, screens in tall.items() if screens > SCREENS} == {}


def names(chrome: Any) -> list[str]:
    return [
        r.get_attribute("data-model") for r in chrome.find_elements("css selector", "[data-model]")
    ]


def test_the_leaderboard_sorts_and_compares(chrome: Any, folder: Path) -> None:
    emulate(chrome, (1280, 800, False, "light"))
    chrome.get((folder / "index.html").as_uri())
    first = names(chrome)
    sorts = chrome.find_elements("css selector", ".sorts")
    sorts[0].click()
    assert names(chrome) == sorted(first)
    recall = next(i for i, s in enumerate(sorts) if s.text == "Recall")
    sorts[recall].click()
    numbers = [
        row.find_elements("css selector", "th,td")[recall].get_attribute("data-sort")
        for row in chrome.find_elements("css selector", "[data-model]")
    ]
    known = [float(n) for n in numbers if n]
    assert known == sorted(known, reverse=True) and len(set(known)) > 1
    assert numbers[-1] == "", "the model that was not understood stays last"
    ci = chrome.find_element("css selector", "#board small.ci")
    assert ci.is_displayed(), "no fact needs a click"
    chrome.find_element("id", "show-ci").click()
    assert not ci.is_displayed()
    picks = chrome.find_elements("css selector", ".pick")
    one, other = (
        p.find_element("xpath", "ancestor::tr").get_attribute("data-model") for p in picks[:2]
    )
    for pick in picks[:2]:
        pick.click()
    said = chrome.find_element("id", "picked").text
    assert "On the same questions" in said and one in said and other in said
    assert not picks[2].is_enabled(), "two at a time"


def test_people_are_paged_and_uncovered_one_by_one(chrome: Any, folder: Path) -> None:
    emulate(chrome, (1280, 800, False, "light"))
    chrome.get((folder / "fairness.html").as_uri())
    blurred = (
        "return [...document.querySelectorAll('.example:not([hidden]) img')]"
        ".map((image) => getComputedStyle(image).filter)"
    )
    assert chrome.execute_script(blurred) == ["blur(28px)"] * 6
    chrome.execute_script("document.querySelector('.example:not([hidden]) .frame').click()")
    assert chrome.execute_script(blurred) == ["none"] + ["blur(28px)"] * 5
    chrome.execute_script("document.getElementById('after').click()")
    assert chrome.execute_script(blurred) == ["blur(28px)"] * 6
    assert chrome.find_element("id", "page-of").text.startswith("2 of ")
