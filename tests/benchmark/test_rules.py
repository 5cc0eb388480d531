"""Single rules where a rule's arithmetic has edges of its own."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from sdgbias.benchmark import quality
from sdgbias.benchmark.quality.ranges import option_range, unit_range
from sdgbias.benchmark.quality.stored import is_whole
from tests.builders.quality import SUITES, Tables, picture

INF = math.inf


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("below 21 %", (-INF, 21, True, False)),
        ("21 % to under 44 %", (21, 44, True, False)),
        ("16 to under 1,500 per 100,000", (16, 1500, True, False)),
        ("12 or more per 100,000", (12, INF, True, True)),
        ("100 %", (100, 100, True, True)),
        ("20-40", (20, 40, True, True)),
        ("20 % – 40 %", (20, 40, True, True)),
        ("-0.5 to under −0.1", (-0.5, -0.1, True, False)),
        ("at least 3", (3, INF, True, True)),
        ("at most 3", (-INF, 3, True, True)),
        ("more than 3", (3, INF, False, True)),
        ("low", None),
    ],
)
def test_option_range(text: str, found: tuple[float, float, bool, bool] | None) -> None:
    assert option_range(text) == found


@pytest.mark.parametrize(
    ("unit", "limits"),
    [("% of children", (0, 100)), ("index, 0-1", (0, 1)), ("deaths", (-INF, INF))],
)
def test_unit_range(unit: str, limits: tuple[float, float]) -> None:
    assert unit_range(unit) == limits


def broken(table: str, rule: str, frame: pd.DataFrame) -> list[int]:
    return [int(row) for row in quality.check(table, frame, SUITES).flags[rule]]


def judged(
    items: pd.DataFrame,
    rule: str,
    options: tuple[str, str, str],
    unit: str = "% of people",
    **more: object,
) -> bool:
    """Whether the first question keeps a rule with these options."""
    texts = dict(zip(("option_a", "option_b", "option_c"), options, strict=True))
    return not broken("items_mcq", rule, items.head(1).assign(unit=unit, **texts, **more))


@pytest.mark.parametrize(
    ("options", "unit", "holds"),
    [
        (("below 20 %", "20 % to under 30 %", "30 % or more"), "%", True),
        (("below 20 %", "20 % to under 100 %", "100 %"), "%", True),  # the top of the scale
        (("below 20 %", "20 % or more", ""), "%", True),
        (("low", "middle", "high"), "%", True),  # words can't be judged
        (("below 20 %", "20 % to under 30 %", "31 % or more"), "%", False),  # gap
        (("below 20 %", "15 % to under 30 %", "30 % or more"), "%", False),  # overlap
        (("0-20", "20-40", "40-100"), "%", False),  # 20 and 40 lie in two
        (("at most 20", "20 or more", ""), "%", False),
        (("below 20", "more than 20", ""), "%", False),  # 20 lies in none
        (
            ("below 20 %", "20 % to under 30 %", "30 % to under 60 %"),
            "%",
            False,
        ),  # nothing above 60
        (("10 % to under 20 %", "20 % or more", ""), "%", False),  # nothing below 10
        (("below 0.5", "0.5 to under 1", "1"), "deaths", False),  # no top is known
    ],
)
def test_bins_cover(options: tuple[str, str, str], unit: str, holds: bool, good: Tables) -> None:
    assert judged(good["items_mcq"], "bins-cover", options, unit) is holds


@pytest.mark.parametrize(
    ("value", "answer", "holds"),
    [
        (19.99, "A", True),
        (20.0, "A", False),
        (20.0, "B", True),
        (30.0, "B", False),
        (30.0, "C", True),
        (math.nan, "A", True),
        (5, "Z", True),
    ],
)
def test_gold_lies_in_its_option(value: float, answer: str, holds: bool, good: Tables) -> None:
    options, gold = ("below 20 %", "20 % to under 30 %", "30 % or more"), {"answer": answer}
    items = good["items_mcq"]
    assert judged(items, "gold-in-option", options, value=value, **gold) is holds


def test_the_context_is_the_second_line_of_a_prompt() -> None:
    mcq = (
        "Question: How high is it?\n{}Options: A. x; B. y\nVALID OPTIONS: A, B\nSTRICT OUTPUT:"
        " Return one.\nNothing else."
    )
    bare, line = mcq.format(""), "Context: Given: urban=Urban\n"
    texts = [
        mcq.format(line),
        bare,
        mcq.format(line + line),
        bare + "\n" + line,
        None,
        "Question: ?",
    ]
    frame = pd.DataFrame({"task": "mcq", "item_id": range(6), "test": "T1", "text": texts})
    frame[["image_id", "candidates"]] = ["", "AB"]
    assert broken("prompts", "prompt-text-form", frame) == [2, 4, 5]
    frame["item_id"], frame["test"] = 1, ["T1", "T5", "T2", "T3", "T4", "T1"]
    assert broken("prompts", "tests-differ-in-context-only", frame) == [2, 3, 4, 5]
    assert broken("prompts", "context-line-unexpected", frame.assign(test="T5")) == [0, 2]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_whole_pictures(kind: str) -> None:
    data = picture(7, 40, kind)
    assert is_whole([data, data])
    assert not is_whole([data, data[:-1]])
    assert not is_whole([data[1:]])
    assert not is_whole([b""])


@pytest.mark.parametrize(
    ("region", "stratum", "holds"),
    [
        ("", "urban", True),
        ("albr101", "all", True),
        ("albr101", "urban", False),  # Global Data Lab's regional values know no strata
        ("namr101", "all", False),
    ],
)
def test_region_of_country(region: str, stratum: str, holds: bool, good: Tables) -> None:
    frame = good["series"].head(1).assign(region=region, iso3="ALB", stratum=stratum)
    assert (not broken("series", "region-of-country", frame)) is holds
