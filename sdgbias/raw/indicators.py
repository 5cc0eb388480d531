"""The indicator table (data/indicators.yaml): the questions, their series, options and polarity.

The 12 multiple-choice constructs (water and sanitation as two indicators each) and the 9 regression
tasks of App. B.3-B.5 of the paper. Cut points,
polarity and question wording are ours, because the paper prints none of them; the table gives the
source of every established threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from sdgbias.errors import InputError, one_of
from sdgbias.files import packaged_yaml
from sdgbias.formats import STRICT, Number, Text
from sdgbias.types import CONTEXT_NAMES, LETTERS, MODALITIES, PILLARS, TOLERANCES

#: Where a value may come from, most local first.
LEVELS = ("subnational", "urban-rural", "national")
POLARITIES = ("higher", "lower")
DIRECTIONS = ("pessimistic", "conservative", "optimistic")
#: What a question can rest on: a part of its picture, or a context variable (its label column).
EVIDENCE = (*MODALITIES, *CONTEXT_NAMES)


def _among(valid: tuple[str, ...]) -> AfterValidator:
    names: Any = Literal[valid]
    return AfterValidator(TypeAdapter(names).validate_python)


_Evidence = Annotated[str, _among(EVIDENCE)]
Q = TypeVar("Q", bound="AskedIndicator")
_OneLine = Annotated[Text, AfterValidator(lambda text: " ".join(text.split()))]


@dataclass(frozen=True)
class SeriesRef:
    """One series that an indicator may use; `max_gap`: its own limit in years from the survey
    (None: the build's)."""

    __pydantic_config__ = STRICT
    name: Text
    max_gap: Annotated[int, Field(ge=0)] | None = None


@dataclass(frozen=True)
class Template:
    """What App. B.2 has experts define for every question. required: the evidence (EVIDENCE)
    without which there is no item; used: what else bears on the answer; reasoning: the construct to
    be inferred, and how the value is to be read."""

    __pydantic_config__ = STRICT
    required: Annotated[tuple[_Evidence, ...], Field(min_length=1)]
    used: tuple[_Evidence, ...]
    reasoning: _OneLine


@dataclass(frozen=True)
class AskedIndicator:
    """What indicators and regression tasks have in common."""

    __pydantic_config__ = STRICT
    slug: str
    title: Text
    pillar: Annotated[str, _among(PILLARS)]
    sdg: Text
    unit: Text
    template: Template
    question: _OneLine


@dataclass(frozen=True)
class Indicator(AskedIndicator):
    """One MCQ indicator; `thresholds` is empty where the bins are terciles, `limits` is the closed
    valid range, `family` the construct of the paper that it asks about, `in_paper` whether it has
    the SDG code that the paper names for the construct."""

    suffix: str
    series: Annotated[tuple[SeriesRef, ...], Field(min_length=1)]
    levels: Annotated[tuple[Annotated[str, _among(LEVELS)], ...], Field(min_length=1)]
    polarity: Annotated[str, _among(POLARITIES)]
    limits: tuple[Number, Number]
    decimals: Annotated[int, Field(ge=0, le=6)]
    family: Text
    in_paper: bool = True
    thresholds: tuple[Number, Number] | tuple[()] = ()
    bins_source: Text = "terciles of the benchmark's clusters"

    @model_validator(mode="after")
    def _thresholds_divide_what_is_shown(self) -> Indicator:
        if any(round(edge, self.decimals) != edge for edge in self.thresholds):
            raise ValueError(f"{self.decimals} decimals don't write {self.thresholds} exactly")
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError(f"thresholds {self.thresholds} don't increase")
        return self


@dataclass(frozen=True)
class RegressionTask(AskedIndicator):
    """One regression task; its context is all of Table E but its target."""

    target: Annotated[str, _among(tuple(TOLERANCES))]
    tolerance: Number


@dataclass(frozen=True)
class Bins:
    """Ordered answer ranges: `labels[0]` lies below `edges[0]`, and a value on an edge belongs to
    the range above it.

    `edges` has one entry less than `labels`; both are empty where no valid option set exists, and
    `reason` says why.
    """

    edges: tuple[float, ...]
    labels: tuple[str, ...]
    source: str
    reason: str = ""

    def letters(self, values: np.ndarray) -> np.ndarray:
        """Gold letters (N,) of values (N,); A is the lowest range. Raises ValueError on NaN or
        without options."""
        if not self.labels:
            raise ValueError(f"no valid options: {self.reason}")
        numbers = np.asarray(values, dtype=float)
        if np.isnan(numbers).any():
            raise ValueError("a value is NaN; drop rows without a value before they are binned")
        places = np.searchsorted(np.asarray(self.edges), numbers, side="right")
        return np.array(list(LETTERS), dtype=object)[places]


def bins(
    indicator: Indicator, values: np.ndarray, shares: tuple[float, float, float] | None = None
) -> Bins:
    """The options of an indicator, given its value at every distinct cluster (N,), NaN ignored.

    Established thresholds hold whatever the data. Terciles are rounded to the displayed decimals,
    so that what is shown is what decides; where fewer ranges can be told apart there are two
    options, and none with a single value (see `reason`). With ``shares`` of the answers A, B and C,
    which sum to 1, the edges are the quantiles that give them, established thresholds or not.
    """
    numbers = np.sort(np.asarray(values, dtype=float))
    numbers = numbers[~np.isnan(numbers)]
    source = indicator.bins_source
    if shares is None:
        edges = indicator.thresholds or _quantile_edges(numbers, indicator.decimals)
    else:
        edges = _quantile_edges(numbers, indicator.decimals, (shares[0], shares[0] + shares[1]))
        source = "quantiles at the pillar's shares of answers in the paper's Table B"
    if edges:
        return Bins(edges, _labels(indicator, edges), source)
    if not len(numbers):
        reason = "no value for any cluster"
    elif numbers[0] == numbers[-1]:
        reason = f"every cluster has the value {numbers[0]:g} (n = {len(numbers)})"
    else:
        span = f"values from {numbers[0]:g} to {numbers[-1]:g}"
        reason = f"{span} don't differ at {indicator.decimals} decimals"
    return Bins((), (), source, reason)


def directions(polarity: str, n_options: int) -> tuple[str, ...]:
    """Direction of each letter, A first. Options ascend in value, so 'lower' (is better) makes A
    the optimistic answer.

    Two options have no middle and hence no 'conservative'. Raises InputError on another polarity or
    count.
    """
    if polarity not in POLARITIES:
        raise InputError(one_of("polarity", polarity, POLARITIES))
    if n_options not in (2, 3):
        raise InputError(one_of("number of options", n_options, ("2", "3")))
    rising = DIRECTIONS if n_options == 3 else (DIRECTIONS[0], DIRECTIONS[2])
    return rising if polarity == "higher" else rising[::-1]


def letter_directions(polarity: str, n_options: int) -> tuple[str, ...]:
    """`directions` for any number of options: of more than three all but the ends are
    conservative."""
    if n_options <= 3:
        return directions(polarity, n_options)
    first, middle, last = directions(polarity, 3)
    return (first, *[middle] * (n_options - 2), last)


@cache
def load_indicators() -> tuple[Indicator, ...]:
    """The MCQ indicators in the table's order (pillar order)."""
    return read_entries("mcq", Indicator)


@cache
def load_regression_tasks() -> tuple[RegressionTask, ...]:
    """The regression tasks in the table's order."""
    return read_entries("regression", RegressionTask)


def read_entries(section: str, kind: type[Q]) -> tuple[Q, ...]:
    """A section of the packaged table. Raises pydantic's ValidationError, which names the entry and
    every wrong field."""
    default = {"family": ""} if kind is Indicator else {}
    entries = {
        slug: {"slug": slug, **dict.fromkeys(default, slug), **fields}
        for slug, fields in packaged_yaml("indicators.yaml")[section].items()
    }
    return tuple(TypeAdapter(dict[str, kind]).validate_python(entries).values())  # type: ignore[valid-type]


def _quantile_edges(
    numbers: np.ndarray, decimals: int, at: tuple[float, float] = (1 / 3, 2 / 3)
) -> tuple[float, ...]:
    """One or two increasing edges, no range empty; () where rounded edges can't part the sorted
    values."""
    if not len(numbers):
        return ()

    def parts(edge: float) -> bool:
        return bool(numbers[0] < edge <= numbers[-1])

    wanted = np.round(np.quantile(numbers, at), decimals)
    edges = tuple(sorted({float(edge) for edge in wanted if parts(edge)}))
    if len(edges) == 2:
        low, high = np.searchsorted(numbers, edges, side="left")
        return edges if high > low else edges[:1]
    if edges:
        return edges
    distinct = np.unique(numbers)
    step = 10.0**-decimals
    gaps = [
        float(np.round(to_step(round(upper / step, 9)) * step, decimals))
        for to_step in (math.ceil, math.floor)
        for upper in distinct[1:]
    ]
    usable = sorted({edge for edge in gaps if parts(edge)})
    below = [int(np.searchsorted(numbers, edge, side="left")) for edge in usable]
    balance = [min(count, len(numbers) - count) for count in below]
    return (usable[int(np.argmax(balance))],) if usable else ()


def _labels(entry: Indicator, edges: tuple[float, ...]) -> tuple[str, ...]:
    """Option texts, lowest first: 'below 20 %', '20 % to under 30 %', '30 % or more' (or '100 %' at
    the top of the scale).
    """
    shown = [f"{edge:.{entry.decimals}f}{entry.suffix}" for edge in edges]
    # '12 to under 42 per 100,000' but '20 % to under 30 %': only a long unit is said once
    once = entry.suffix if " " in entry.suffix.strip() else ""
    first = [text.removesuffix(once) for text in shown]
    middle = [f"{low} to under {high}" for low, high in zip(first, shown[1:], strict=False)]
    last = shown[-1] if edges[-1] == entry.limits[1] else f"{shown[-1]} or more"
    return (f"below {shown[0]}", *middle, last)
