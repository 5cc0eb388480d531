"""Deterministic rules: the instrument's behaviour beside a second implementation of the same rule.

Every check is a share of matching cases or a count, and passes only if exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.analysis.selfcheck.checks import Check, check, p_same
from sdgbias.benchmark import items
from sdgbias.methods.answers import with_first_digit
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import indicator
from sdgbias.scoring.plan import make_plan
from sdgbias.suites import SUITES, EvalSettings, sdg
from sdgbias.types import DIGITS, View

PART, NAME = "rules", "rules"
_TEXTS = ("45.0", "0.3", "-1.2", "The rate is 112.4", "no idea", "", "I can't tell", "-", "none.")


def checks(benchmark: Path, seed: int) -> Iterator[Check]:
    """All rules. Reads the benchmark's prompts; scores nothing."""
    yield from _first_digits()
    yield from _gold_values(seed)
    yield from _prompts(benchmark)


def _exact(what: str, truth: float, measured: float, n: int) -> Check:
    return check(PART, NAME, what, truth, Estimate(measured, n), p_same(truth, measured))


def _first_digits() -> Iterator[Check]:
    """METHODS of the authors' code: the first digit is replaced; without a number the value is
    0.0."""

    def again(text: str, digit: str) -> float:
        found = re.search(r"-?\d+(?:\.\d+)?", text)
        if found is None:
            return 0.0
        at = re.search(r"\d", found[0]).start()  # type: ignore[union-attr]
        return float(found[0][:at] + digit + found[0][at + 1 :])

    same = [
        with_first_digit(text, digit, reference=True) == again(text, digit)
        for text in _TEXTS
        for digit in DIGITS
    ]
    what = "answers with another first digit, as the authors' code makes them"
    yield _exact(what, 1.0, float(np.mean(same)), len(same))


def _gold_values(seed: int) -> Iterator[Check]:
    """National values of two series at random years: the nearest year, then the order of the
    series, then the earlier year, by linear search."""
    rng = np.random.default_rng([seed, 11])
    entry = indicator("stunting")
    limits = {ref.name: ref.max_gap or items.MAX_GAP for ref in entry.series}
    order = list(limits)
    blank = {"region": "", "stratum": "all", "source": ""}
    known = {
        (f"C{at:02}", str(name), int(year)): float(value)
        for at in range(40)
        for name, year, value in zip(
            rng.choice(order, 6), rng.integers(2000, 2021, 6), rng.uniform(0, 60, 6), strict=True
        )
    }
    places = pd.DataFrame({"iso3": [f"C{at:02}" for at in range(40)]}).assign(
        year=2010, gdl_region="", urban=""
    )
    series = pd.DataFrame(
        [
            {"iso3": iso3, "series": name, "year": year, "value": value, **blank}
            for (iso3, name, year), value in known.items()
        ]
    )
    found = items.lookup_values(places, series, entry, items.MAX_GAP)
    same = []
    for iso3, got in zip(found["iso3"], found["value"], strict=True):
        near = [
            (abs(year - 2010), order.index(name), year, value)
            for (place, name, year), value in known.items()
            if place == iso3 and abs(year - 2010) <= limits[name]
        ]
        same.append(got == min(near)[3] if near else np.isnan(got))
    what = "gold values of the nearest year, then the order of the series"
    yield _exact(what, 1.0, float(np.mean(same)), len(same))


def _prompts(benchmark: Path) -> Iterator[Check]:
    """Cells and distinct prompts of the paper's views, counted directly, with extra prompts sent as
    well."""
    table = sdg.read_table(benchmark, "prompts")
    rows = list(
        zip(table["text"], table["image_id"], table["candidates"], table["test"], strict=True)
    )
    seen = {(text, image, options) for text, image, options, _ in rows}
    seen |= {(text, "", options) for text, _, options, _ in rows}
    every = SUITES[sdg.NAME].cells(benchmark, EvalSettings(passes=("table_j",)))
    plan = make_plan(every, "")
    paper = every["view"].isin([view.value for view in View])
    of_paper = plan.paper()
    yield _exact("cells of the paper's views", 4.0 * len(rows), float(paper.sum()), len(every))
    yield _exact(
        "distinct prompts of the paper's views", float(len(seen)), float(len(of_paper)), len(every)
    )
