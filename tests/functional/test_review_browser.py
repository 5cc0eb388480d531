"""The review sheet in a real browser: alone, by keyboard, on a phone; verdicts stay, are saved,
loaded and imported."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sdgbias.benchmark.review import load_verdicts
from sdgbias.benchmark.review.sheet import write_sheets
from sdgbias.benchmark.review.verdicts import import_reviews, read_verdicts
from tests.builders.chromium import MARKS, emulate, start
from tests.builders.review import write_benchmark

pytestmark = MARKS
SCREENS = {"desktop-light": (1280, 900, False, "light"), "phone-dark": (375, 812, True, "dark")}


@pytest.fixture(scope="module")
def benchmark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("review") / "benchmark", parts=2)


@pytest.fixture(scope="module")
def sheets(benchmark_folder: Path) -> Path:
    out = benchmark_folder.parent / "sheets"
    assert write_sheets(benchmark_folder, out, share=0.1, reviewers=["anna", "ben"])["items"] > 100
    return out


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory, saved: Path) -> Iterator[Any]:
    driver = start(tmp_path_factory.mktemp("chrome"), downloads=saved)
    yield driver
    driver.quit()


EMPTY = """
const done = arguments[0];
indexedDB.open("sdgbias-review", 1).onsuccess = (event) => {
  const change = event.target.result.transaction("kept", "readwrite");
  change.objectStore("kept").clear();
  change.oncomplete = () => { event.target.result.close(); done(); };
};
"""


#: Whether the page would ask a person who leaves it to wait: it is still writing verdicts.
HOLDS = """
const leaving = new Event("beforeunload", { cancelable: true });
return !window.dispatchEvent(leaving);
"""


def show(chrome: Any, folder: Path, screen: str = "desktop-light", forget: bool = True) -> None:
    until(lambda: not chrome.execute_script(HOLDS))
    emulate(chrome, SCREENS[screen])
    chrome.get((folder / "sheet.html").as_uri())
    until(lambda: text(chrome, "total") not in ("", "0"))
    if forget:
        chrome.execute_async_script(EMPTY)
        chrome.refresh()
    until(lambda: text(chrome, "key") != "")


def until(true: Any) -> None:
    end = time.monotonic() + 600
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def text(chrome: Any, element_id: str) -> str:
    return str(chrome.find_element("id", element_id).text)


def at(chrome: Any) -> int:
    return int(chrome.find_element("id", "at").get_property("value"))


def press(chrome: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    for key in keys:
        before = text(chrome, "key")
        ActionChains(chrome).send_keys(key).perform()
        if key in "a12345":
            until(lambda before=before: text(chrome, "key") != before)


def choose(chrome: Any, element_id: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(chrome.find_element("id", element_id)).select_by_value(value)


def save(chrome: Any, saved: Path, name: str) -> Path:
    (saved / name).unlink(missing_ok=True)
    chrome.find_element("id", "save").click()
    until(
        lambda: (
            (saved / name).is_file()
            and (saved / name).stat().st_size
            and not list(saved.glob("*.crdownload"))
        )
    )
    return saved / name


@pytest.mark.parametrize("screen", SCREENS)
def test_sheet_loads_alone_and_fits(chrome: Any, sheets: Path, screen: str) -> None:
    chrome.get_log("performance"), chrome.get_log("browser")
    show(chrome, sheets, screen)
    widths = "return [...document.images].map((i) => i.complete && i.naturalWidth)"
    until(lambda: chrome.execute_script(widths) == [32, 32])
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"].endswith("WillBeSent")]
    assert [url for url in sent if not url.startswith(("file://", "data:"))] == []
    wide, inner = chrome.execute_script(
        "const e = document.scrollingElement; return [e.scrollWidth, e.clientWidth]"
    )
    assert wide <= inner
    assert [e for e in chrome.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    tall = "[...document.querySelectorAll('button, select')].every((b) => b.offsetHeight >= 44)"
    assert chrome.execute_script(f"return {tall}"), "a thumb hits every button"


def test_an_item_shows_what_is_to_be_judged(
    chrome: Any, sheets: Path, benchmark_folder: Path
) -> None:
    show(chrome, sheets)
    choose(chrome, "show", "all")
    while not text(chrome, "key").startswith("mcq-"):
        press(chrome, "a")
    items = pd.read_parquet(benchmark_folder / "items_mcq.parquet").set_index("item_id")
    item = items.loc[int(text(chrome, "key").removeprefix("mcq-"))]
    assert text(chrome, "question") == item["question"]
    assert text(chrome, "gold") == item["answer"]
    shown = chrome.find_elements("css selector", "#options li span:last-child")
    options = [e.text for e in shown if e.is_displayed()]
    assert options == [item[f"option_{letter}"] for letter in "abc"]
    assert chrome.find_element("css selector", "#options .gold span").text == item["answer"]
    place = text(chrome, "place")
    assert str(item["country"]) in place and str(item["year"]) in place
    assert f"asset_index={item['asset_index']:.1f}" in text(chrome, "context")
    assert "<i>test</i> " in text(chrome, "basis"), "data is never markup"
    assert item["cluster_id"] in text(chrome, "cluster")


def test_by_keyboard_kept_saved_and_loaded(
    chrome: Any, sheets: Path, saved: Path, tmp_path: Path
) -> None:
    from selenium.webdriver import ActionChains, Keys

    show(chrome, sheets)
    keys = list(read_verdicts(sheets / "anna.csv").index)
    assert text(chrome, "key") == keys[0]
    press(chrome, "a", "3")
    press(chrome, "c")
    ActionChains(chrome).send_keys('late, "or" not a 4').perform()  # the digit is text here
    ActionChains(chrome).send_keys(Keys.ESCAPE).perform()
    press(chrome, "4")
    assert text(chrome, "key") == keys[3] and text(chrome, "done") == f"3 of {len(keys)}"
    press(chrome, "1", Keys.ARROW_LEFT, "u")  # given and taken back
    assert at(chrome) == 4 and text(chrome, "done") == f"3 of {len(keys)}"

    show(chrome, sheets, forget=False)
    assert (
        text(chrome, "key") == keys[3] and text(chrome, "done") == f"3 of {len(keys)}"
    )  # goes on at the first open one
    got = read_verdicts(save(chrome, saved, "anna.csv"))
    assert list(got.index) == keys
    assert got["verdict"].tolist()[:4] == ["accept", "reject", "reject", ""]
    assert got["reason"].tolist()[:4] == ["", "wrong-gold", "ambiguous", ""]
    assert got["comment"].iloc[2] == 'late, "or" not a 4'

    show(chrome, sheets)  # another machine
    assert text(chrome, "done") == f"0 of {len(keys)}"
    other = tmp_path / "anna.csv"
    commas = (saved / "anna.csv").read_bytes().decode("utf-8-sig")
    semicolons = commas.replace(",", ";").replace('"late;', '"late,')
    other.write_bytes(f"sep=;\r\n{semicolons}".encode())
    chrome.find_element("id", "file").send_keys(str(other))
    until(lambda: text(chrome, "done") == f"3 of {len(keys)}")
    assert read_verdicts(save(chrome, saved, "anna.csv")).equals(got)
    choose(chrome, "show", "reject")
    assert text(chrome, "total") == "2" and text(chrome, "key") == keys[1]


#: Chooses ben and presses a key before his verdicts are read: it belongs to nobody.
PRESSED_TOO_EARLY = """
    const who = document.getElementById("who");
    who.value = "ben";
    who.dispatchEvent(new Event("change"));
    document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "a", bubbles: true}));
"""


def test_two_reviewers_do_not_mix_and_the_adjudicator_decides(
    chrome: Any, sheets: Path, saved: Path, benchmark_folder: Path, tmp_path: Path
) -> None:
    show(chrome, sheets)
    press(chrome, "a", "2", "a")
    first = save(chrome, saved, "anna.csv")
    chrome.execute_script(PRESSED_TOO_EARLY)
    until(lambda: text(chrome, "done").startswith("0 of"))
    show(chrome, sheets, forget=False)
    assert text(chrome, "done").startswith("0 of"), "nothing was kept for ben"
    press(chrome, "a", "a", "5")
    second = save(chrome, saved, "ben.csv")
    out = tmp_path / "reviews.parquet"
    found = import_reviews(first, second, benchmark_folder, out)
    assert (found["agreed"], found["open"]) == (1, 2)
    chrome.find_element("id", "file").send_keys(str(found["to_adjudicate"]))
    until(lambda: text(chrome, "total") == "2")
    assert chrome.find_element("id", "who").get_property("value") == "adjudicator"
    assert "anna" in text(chrome, "said") and "ben" in text(chrome, "said")
    press(chrome, "2")
    chrome.find_element("css selector", "#verdict [data-verdict=accept]").click()
    third = save(chrome, saved, "adjudicator.csv")
    assert len(read_verdicts(third)) == 2
    import_reviews(first, second, benchmark_folder, out, third)
    assert load_verdicts(out)["verdict"].value_counts().to_dict() == {"accepted": 2, "rejected": 1}
    choose(chrome, "who", "anna")
    until(lambda: text(chrome, "done").startswith("3 of"))


def test_a_picture_that_was_not_copied_is_named(chrome: Any, sheets: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sheets, tmp_path / "copy"))
    shutil.rmtree(copy / "images")
    show(chrome, copy)
    until(lambda: "picture is missing" in text(chrome, "pictures"))


def test_without_images(chrome: Any, tmp_path: Path) -> None:
    bare = write_benchmark(tmp_path / "bare", each=3, images=False)
    made = write_sheets(bare, tmp_path / "sheets", share=0.1)
    assert made["images"] == 0 and made["without_image"] == made["items"]
    show(chrome, made["out"])
    assert "no image" in text(chrome, "pictures")
