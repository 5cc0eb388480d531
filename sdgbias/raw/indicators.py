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
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sdgbias.errors import InputError, one_of
from sdgbias.types import CONTEXT_NAMES, LETTERS, MODALITIES, PILLARS, TOLERANCES

#: Where a value may come from, most local first.
LEVELS = ("subnational", "urban-rural", "national")
POLARITIES = ("higher", "lower")
DIRECTIONS = ("pessimistic", "conservative", "optimistic")
#: What a question can rest on: a part of its picture, or a context variable (its label column).
EVIDENCE = (*MODALITIES, *CONTEXT_NAMES)
_FILE = "sdgbias/data/indicators.yaml"


@dataclass(frozen=True)
class SeriesRef:
    """One series that an indicator may use; `max_gap`: its own limit in years from the survey
    (None: the build's)."""

    name: str
    max_gap: int | None = None


@dataclass(frozen=True)
class Template:
    """What App. B.2 has experts define for every question. required: the evidence (EVIDENCE)
    without which there is no item; used: what else bears on the answer; reasoning: the construct to
    be inferred, and how the value is to be read."""

    required: tuple[str, ...]
    used: tuple[str, ...]
    reasoning: str


@dataclass(frozen=True)
class Indicator:
    """One MCQ indicator; `thresholds` is empty where the bins are terciles, `limits` is the closed
    valid range, `family` the construct of the paper that it asks about."""

    slug: str
    title: str
    pillar: str
    sdg: str
    unit: str
    suffix: str
    series: tuple[SeriesRef, ...]
    levels: tuple[str, ...]
    polarity: str
    thresholds: tuple[float, ...]
    bins_source: str
    limits: tuple[float, float]
    decimals: int
    family: str
    template: Template
    question: str


@dataclass(frozen=True)
class RegressionTask:
    """One regression task; its context is all of Table E but its target."""

    slug: str
    title: str
    pillar: str
    sdg: str
    unit: str
    target: str
    tolerance: float
    template: Template
    question: str


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
        return np.array(list(LETTERS), dtype=object)[
            np.searchsorted(np.asarray(self.edges), numbers, side="right")
        ]


def bins(indicator: Indicator, values: np.ndarray) -> Bins:
    """The options of an indicator, given its value at every distinct cluster (N,), NaN ignored.

    Established thresholds hold whatever the data. Terciles are rounded to the displayed decimals,
    so that what is shown is what decides; where fewer ranges can be told apart there are two
    options, and none with a single value (see `reason`).
    """
    if indicator.thresholds:
        return Bins(
            indicator.thresholds, _labels(indicator, indicator.thresholds), indicator.bins_source
        )
    numbers = np.sort(np.asarray(values, dtype=float))
    numbers = numbers[~np.isnan(numbers)]
    edges = _tercile_edges(numbers, indicator.decimals)
    if edges:
        return Bins(edges, _labels(indicator, edges), indicator.bins_source)
    if not len(numbers):
        reason = "no value for any cluster"
    elif numbers[0] == numbers[-1]:
        reason = f"all {len(numbers)} clusters have the same value {numbers[0]:g}"
    else:
        reason = (
            f"values from {numbers[0]:g} to {numbers[-1]:g} don't differ at {indicator.decimals}"
            " decimals"
        )
    return Bins((), (), indicator.bins_source, reason)


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


def load_indicators(path: Path | None = None) -> tuple[Indicator, ...]:
    """The MCQ indicators in the table's order (pillar order); `path` reads another table. Raises
    InputError."""
    return _load(path)[0]


def load_regression_tasks(path: Path | None = None) -> tuple[RegressionTask, ...]:
    """The regression tasks in the table's order; `path` reads another table. Raises InputError."""
    return _load(path)[1]


def indicator(slug: str) -> Indicator:
    """One MCQ indicator by slug; an unknown slug lists the valid ones."""
    table = {entry.slug: entry for entry in load_indicators()}
    if slug not in table:
        raise InputError(one_of("indicator", slug, table))
    return table[slug]


def regression_task(slug: str) -> RegressionTask:
    """One regression task by slug; an unknown slug lists the valid ones."""
    table = {entry.slug: entry for entry in load_regression_tasks()}
    if slug not in table:
        raise InputError(one_of("regression task", slug, table))
    return table[slug]


def _tercile_edges(numbers: np.ndarray, decimals: int) -> tuple[float, ...]:
    """One or two increasing edges, no range empty; () where rounded edges can't part the sorted
    values."""
    if not len(numbers):
        return ()

    def parts(edge: float) -> bool:
        return bool(numbers[0] < edge <= numbers[-1])

    wanted = np.round(np.quantile(numbers, [1 / 3, 2 / 3]), decimals)
    edges = tuple(sorted({float(edge) for edge in wanted if parts(edge)}))
    if len(edges) == 2:
        middle = np.searchsorted(numbers, edges[1], side="left") - np.searchsorted(
            numbers, edges[0], side="left"
        )
        return edges if middle else edges[:1]
    if edges:
        return edges
    distinct = np.unique(numbers)
    step = 10.0**-decimals
    gaps = [
        float(np.round(math.ceil(round(upper / step, 9)) * step, decimals))
        for upper in distinct[1:]
    ]
    gaps += [
        float(np.round(math.floor(round(upper / step, 9)) * step, decimals))
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
    first = [
        text.removesuffix(entry.suffix) if " " in entry.suffix.strip() else text for text in shown
    ]
    middle = [f"{low} to under {high}" for low, high in zip(first, shown[1:], strict=False)]
    return (
        f"below {shown[0]}",
        *middle,
        shown[-1] if edges[-1] == entry.limits[1] else f"{shown[-1]} or more",
    )


@cache
def _load(path: Path | None) -> tuple[tuple[Indicator, ...], tuple[RegressionTask, ...]]:
    name = _FILE if path is None else str(path)
    try:
        text = (
            files("sdgbias").joinpath("data/indicators.yaml").read_text("utf-8")
            if path is None
            else path.read_text("utf-8")
        )
        table = yaml.safe_load(text)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"{name} is no readable YAML table ({str(error).splitlines()[0]}); compare with {_FILE}"
        ) from error
    if not isinstance(table, dict) or set(table) != {"mcq", "regression"}:
        raise InputError(
            f"{name}: wants exactly the sections mcq and regression; compare with {_FILE}"
        )
    found: list[tuple[Any, ...]] = []
    for section, read in (("mcq", _indicator), ("regression", _regression)):
        entries = table[section]
        if not isinstance(entries, dict) or not entries:
            raise InputError(f"{name}: section {section} holds no entries; compare with {_FILE}")
        found.append(
            tuple(
                read(str(slug), _Fields(f"{name}: {section}.{slug}", fields))
                for slug, fields in entries.items()
            )
        )
    return found[0], found[1]


class _Fields:
    """Typed access to one entry of the table; every error names the entry and the field."""

    def __init__(self, where: str, fields: Any) -> None:
        if not isinstance(fields, dict):
            raise InputError(f"{where} is no mapping of fields; compare with {_FILE}")
        self.where, self.fields = where, dict(fields)

    def fail(self, name: str, wants: str) -> InputError:
        return InputError(
            f"{self.where}.{name} is {self.fields.get(name)!r}; wants {wants}; compare with {_FILE}"
        )

    def text(self, name: str, valid: tuple[str, ...] = (), empty: bool = False) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or not (value.strip() or empty):
            raise self.fail(name, "text")
        if valid and value not in valid:
            raise InputError(f"{self.where}: {one_of(name, value, valid)}")
        return value

    def numbers(self, name: str, values: Any, count: int) -> tuple[float, ...]:
        good = (
            isinstance(values, list)
            and len(values) == count
            and all(type(v) in (int, float) for v in values)
        )
        if not good or any(low >= high for low, high in pairwise(values)):
            raise self.fail(name, f"{count} increasing numbers")
        return tuple(float(v) for v in values)

    def known(self, names: str) -> None:
        extra = sorted(set(self.fields) - set(names.split()))
        if extra:
            raise InputError(f"{self.where}: {one_of('field', extra[0], names.split())}")


def _is_series(entry: Any) -> bool:
    gap = entry.get("max_gap", 0) if isinstance(entry, dict) else None
    return (
        type(gap) is int
        and gap >= 0
        and isinstance(entry.get("name"), str)
        and set(entry) <= {"name", "max_gap"}
    )


def _template(entry: _Fields, target: str = "") -> Template:
    """The evidence and reasoning of an entry; the target of a regression is no evidence for it."""
    lists = entry.fields.get("evidence")
    if not isinstance(lists, dict) or set(lists) != {"required", "used"}:
        raise entry.fail("evidence", "the lists required and used")
    named = [name for key in ("required", "used") for name in lists[key] or ()]
    if not lists["required"] or len(set(named)) < len(named):
        raise entry.fail("evidence", "at least one required, and each name once")
    for name in named:
        if name not in EVIDENCE or name == target:
            valid = [known for known in EVIDENCE if known != target]
            raise InputError(f"{entry.where}.evidence: {one_of('evidence', name, valid)}")
    return Template(
        tuple(lists["required"]),
        tuple(lists["used"] or ()),
        " ".join(entry.text("reasoning").split()),
    )


def _indicator(slug: str, entry: _Fields) -> Indicator:
    entry.known(
        "title pillar sdg unit suffix series levels polarity bins range decimals family evidence"
        " reasoning question"
    )
    cut = entry.fields.get("bins")
    thresholds: tuple[float, ...] = ()
    if cut == {"cut": "terciles"}:
        source = "terciles of the benchmark's clusters"
    elif isinstance(cut, dict) and set(cut) == {"thresholds", "source"} and cut["source"]:
        thresholds, source = entry.numbers("bins", cut["thresholds"], 2), str(cut["source"])
    else:
        raise entry.fail("bins", "{cut: terciles} or {thresholds: [low, high], source: text}")
    series = entry.fields.get("series")
    if not isinstance(series, list) or not series or not all(_is_series(s) for s in series):
        raise entry.fail("series", "a list of {name: series, max_gap: years}")
    levels = entry.fields.get("levels")
    if not isinstance(levels, list) or not levels or not set(levels) <= set(LEVELS):
        raise entry.fail("levels", f"a list out of {', '.join(LEVELS)}")
    decimals = entry.fields.get("decimals")
    if type(decimals) is not int or not 0 <= decimals <= 6:
        raise entry.fail("decimals", "a whole number from 0 to 6")
    if any(round(edge, decimals) != edge for edge in thresholds):
        raise entry.fail("decimals", f"enough digits to write the thresholds {thresholds} exactly")
    low, high = entry.numbers("range", entry.fields.get("range"), 2)
    return Indicator(
        slug=slug,
        title=entry.text("title"),
        pillar=entry.text("pillar", PILLARS),
        sdg=entry.text("sdg"),
        unit=entry.text("unit"),
        suffix=entry.text("suffix", empty=True),
        series=tuple(SeriesRef(str(s["name"]), s.get("max_gap")) for s in series),
        levels=tuple(levels),
        polarity=entry.text("polarity", POLARITIES),
        thresholds=thresholds,
        bins_source=source,
        limits=(low, high),
        decimals=decimals,
        family=entry.text("family") if "family" in entry.fields else slug,
        template=_template(entry),
        question=" ".join(entry.text("question").split()),
    )


def _regression(slug: str, entry: _Fields) -> RegressionTask:
    entry.known("title pillar sdg unit target tolerance evidence reasoning question")
    target = entry.text("target", tuple(TOLERANCES))
    if entry.fields.get("tolerance") != TOLERANCES[target]:
        raise entry.fail("tolerance", f"Table F's {TOLERANCES[target]}")
    return RegressionTask(
        slug=slug,
        title=entry.text("title"),
        pillar=entry.text("pillar", PILLARS),
        sdg=entry.text("sdg"),
        unit=entry.text("unit"),
        target=target,
        tolerance=TOLERANCES[target],
        template=_template(entry, target),
        question=" ".join(entry.text("question").split()),
    )
