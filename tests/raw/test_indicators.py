"""The indicator table and its bins."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from sdgbias import files
from sdgbias.errors import InputError
from sdgbias.raw import indicators
from sdgbias.raw.clusters import countries
from sdgbias.raw.indicators import (
    Indicator,
    RegressionTask,
    bins,
    directions,
    letter_directions,
    load_indicators,
    load_regression_tasks,
)
from sdgbias.raw.series import SERIES
from sdgbias.types import PILLARS, TOLERANCES
from tests.builders.item_tables import indicator


def terciles(
    decimals: int = 0, limits: tuple[float, float] = (0.0, 100.0), suffix: str = " %"
) -> Indicator:
    return dataclasses.replace(
        indicator("sanitation"), decimals=decimals, limits=limits, suffix=suffix
    )


def test_the_table_is_app_b() -> None:
    mcq, regression = load_indicators(), load_regression_tasks()
    assert [len({i.family for i in mcq if i.pillar == p}) for p in PILLARS] == [5, 4, 3]
    assert [sum(t.pillar == p for t in regression) for p in PILLARS] == [4, 4, 1]
    codes = "2.2.1 2.2.2 3.8.1 7.1.1 6.1.1 6.2.1 3.9.2 4.1.2"
    assert {i.sdg for i in mcq} >= set(codes.split())
    asks = {(i.sdg, i.series[0].name) for i in mcq if i.family in ("water", "sanitation")}
    assert asks == {
        ("1.4.1", "sp_acs_bsrvh2o"),
        ("6.1.1", "sh_h2o_safe"),
        ("1.4.1", "sp_acs_bsrvsan"),
        ("6.2.1", "sh_san_safe"),
    }, "at least basic services are SDG 1.4.1, safely managed ones 6.1.1 and 6.2.1"
    targets = [t.target for t in regression]
    assert {name: targets.count(name) for name in TOLERANCES} == {
        "under5_mort": 2,
        "women_bmi": 2,
        "asset_index": 1,
        "sanitation_index": 2,
        "water_index": 1,
        "women_edu": 1,
    }


def test_every_entry_of_the_table_is_whole() -> None:
    mcq, regression = load_indicators(), load_regression_tasks()
    lower = {i.slug for i in mcq if i.polarity == "lower"}
    assert lower == {"stunting", "wasting", "physical_inactivity", "wash_mortality"}
    assert {ref.name for i in mcq for ref in i.series} <= set(SERIES)
    for task in regression:
        assert task.target not in (*task.template.required, *task.template.used)
        assert task.tolerance == TOLERANCES[task.target]
    entries = (*mcq, *regression)
    texts = [entry.question for entry in entries]
    assert len(set(texts)) == len({e.template.reasoning for e in entries}) == len(entries) == 23
    places = [name.split(",")[0] for name in countries()["name"]]
    assert not [(name, text) for name in places for text in texts if name in text]
    assert all("tile" in e.template.required for e in entries)
    evidence = [(*e.template.required, *e.template.used) for e in entries]
    assert all(len(set(names)) == len(names) for names in evidence), "each kind once"
    assert [e.slug for e in entries if "nightlights" in e.template.required] == ["electricity"]


def test_thresholds_make_the_labels_and_an_edge_belongs_to_the_upper_range() -> None:
    made = bins(indicator("stunting"), np.array([25.0]))
    assert made.labels == ("below 20 %", "20 % to under 30 %", "30 % or more")
    assert "".join(made.letters(np.array([0, 19.999, 20, 29.999, 30, 99]))) == "AABBCC"
    shdi = bins(indicator("shdi"), np.array([]))
    assert shdi.labels == ("below 0.550", "0.550 to under 0.700", "0.700 or more")
    wash = bins(indicator("wash_mortality"), np.arange(1.0, 91.0))
    long = ("below 31 per 100,000", "31 to under 60 per 100,000", "60 per 100,000 or more")
    assert wash.labels == long, "a long unit is said once in the middle range"


@pytest.mark.parametrize("seed", range(12))
def test_tercile_ranges_cover_everything_exclude_each_other_and_none_is_empty(seed: int) -> None:
    rng = np.random.default_rng(seed)
    decimals = int(rng.integers(0, 4))
    draws = [
        rng.uniform(0, 100, rng.integers(3, 50)),
        rng.choice(rng.uniform(0, 3, 4), 40),
        np.repeat([5.0, 100.0, 40.0], rng.integers(1, 30, 3)),
        rng.normal(0, 0.01, 20) + 50,
    ]
    for values in draws:
        made = bins(terciles(decimals), values)
        if not made.labels:
            assert "differ" in made.reason or "every cluster" in made.reason
            continue
        assert len(made.labels) == len(set(made.labels)) == len(made.edges) + 1 in (2, 3)
        assert all(low < high for low, high in zip(made.edges, made.edges[1:], strict=False))
        assert all(round(edge, decimals) == edge for edge in made.edges)  # what is shown decides
        assert sorted(set(made.letters(values))) == list("ABC")[: len(made.labels)]
        probes = np.concatenate([values, [-1e9, 1e9], made.edges])
        inside = np.array([[low <= p < high for p in probes] for low, high in _ranges(made.edges)])
        assert (inside.sum(axis=0) == 1).all()
        assert [list("ABC")[column.argmax()] for column in inside.T] == list(made.letters(probes))
        assert bins(terciles(decimals), rng.permutation(values)) == made


def _ranges(edges: tuple[float, ...]) -> list[tuple[float, float]]:
    ends = [-np.inf, *edges, np.inf]
    return list(itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("values", "labels", "reason"),
    [
        ([], (), "no value for any cluster"),
        ([np.nan, np.nan], (), "no value for any cluster"),
        ([7, 7, 7], (), "every cluster has the value 7 (n = 3)"),
        ([7.1, 7.2], (), "values from 7.1 to 7.2 don't differ at 0 decimals"),
        ([10, 90, np.nan], ("below 37 %", "37 % or more"), ""),
        ([0] * 8 + [50, 60], ("below 50 %", "50 % or more"), ""),
        ([3] * 2 + [100] * 7, ("below 100 %", "100 %"), ""),
    ],
)
def test_degenerate_data(values: list[float], labels: tuple[str, ...], reason: str) -> None:
    made = bins(terciles(), np.array(values, dtype=float))
    assert (made.labels, made.reason) == (labels, reason)


def test_shares_of_answers_decide_the_edges_even_where_there_are_thresholds() -> None:
    values = np.random.default_rng(3).uniform(0, 100, 20_000)

    made = bins(indicator("stunting"), values, (0.40, 0.39, 0.21))

    letters = made.letters(values)
    shares = [float((letters == letter).mean()) for letter in "ABC"]
    assert shares == pytest.approx([0.40, 0.39, 0.21], abs=0.01)
    assert "Table B" in made.source
    parted = bins(indicator("stunting"), np.repeat([10.0, 60.0], [70, 30]), (0.40, 0.39, 0.21))
    assert len(parted.labels) == 2, "values that one edge alone can part give two options"


def test_letters_refuse_nan_and_missing_options() -> None:
    with pytest.raises(ValueError, match="NaN"):
        bins(indicator("stunting"), np.array([1.0])).letters(np.array([np.nan]))
    with pytest.raises(ValueError, match="has the value 1"):
        bins(terciles(), np.array([1.0])).letters(np.array([1.0]))


def test_directions() -> None:
    assert directions("higher", 3) == ("pessimistic", "conservative", "optimistic")
    assert directions("lower", 3) == ("optimistic", "conservative", "pessimistic")
    assert directions("higher", 2) == ("pessimistic", "optimistic")
    assert directions("lower", 2) == ("optimistic", "pessimistic")
    for polarity in ("higher", "lower"):
        first, *middle, last = letter_directions(polarity, 5)
        assert (first, last) == directions(polarity, 2) and middle == ["conservative"] * 3
    with pytest.raises(InputError, match="valid: higher, lower"):
        directions("up", 3)
    with pytest.raises(InputError, match="valid: 2, 3"):
        directions("lower", 4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mcq.stunting.pillar", "Health", "Basic Services"),
        ("mcq.stunting.template.required", ["radar"], "nightlights"),
        ("mcq.stunting.template.required", [], "at least 1 item"),
        ("mcq.stunting.thresholds", [30, 20], "don't increase"),
        ("mcq.stunting.thresholds", [20.5, 30], "don't write"),
        ("mcq.stunting.sdg", 6.1, "valid string"),
        ("mcq.stunting.colour", "red", "Unexpected keyword"),
        ("regression.water_security.target", "water", "water_index"),
    ],
)
def test_a_wrong_field_of_the_table_is_named(
    monkeypatch: pytest.MonkeyPatch, field: str, value: object, message: str
) -> None:
    table = files.packaged_yaml("indicators.yaml")
    section, slug, *within, last = field.split(".")
    entry = table[section][slug]
    (entry[within[0]] if within else entry)[last] = value
    monkeypatch.setattr(indicators, "packaged_yaml", lambda _: table)
    kind = Indicator if section == "mcq" else RegressionTask

    with pytest.raises(ValidationError) as caught:
        indicators.read_entries(section, kind)

    assert slug in str(caught.value) and last in str(caught.value) and message in str(caught.value)
