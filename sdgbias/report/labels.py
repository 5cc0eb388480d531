"""Formats numbers, times and names for the pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sdgbias import suites
from sdgbias.analysis.night_text import number as number
from sdgbias.methods.stats import Estimate
from sdgbias.vocabulary import WORDS

NBSP, DASH = "\u00a0", "\u2013"
NO_INTERVAL = "no interval"
ALL_TESTS, NOT_ANALYSED = "all tests", "not analysed: sdgbias analyse"


@dataclass(frozen=True)
class WrittenEstimate:
    """An estimate as text: '61.0', ' %', '48.8–72.0', '490'."""

    value: str
    unit: str
    ci: str
    n: str

    @property
    def aside(self) -> str:
        """'(95 % CI 48.8–72.0, n = 490)'."""
        ci = self.ci if self.ci.startswith(NO_INTERVAL) else f"95{NBSP}% CI {self.ci}"
        return f"({ci}, n{NBSP}={NBSP}{self.n})"

    def __str__(self) -> str:
        return f"{self.value}{self.unit} {self.aside}"


def form(metric: str) -> tuple[float, int, bool]:
    """(scale, digits, signed) of a metric's numbers, from the vocabulary: shares in per cent with
    one digit, differences with their sign."""
    signed = metric in SIGNED
    return (1.0, WORDS.metrics[metric].digits, signed) if metric in PLAIN else (100.0, 1, signed)


def unit_of(metric: str) -> str:
    """' %', ' points' of a difference, '' of a metric with a unit of its own."""
    return "" if metric in PLAIN else f"{NBSP}points" if metric in SIGNED else f"{NBSP}%"


def written(e: Estimate, metric: str = "accuracy") -> WrittenEstimate:
    """An estimate of a metric as every page, command and card shows it."""
    value, unit = amount(e.value, metric, unit=False), unit_of(metric)
    return WrittenEstimate(value, unit, interval(e, *form(metric)), f"{e.n:,}")


def percent(e: Estimate) -> str:
    """'61.0 %'."""
    return amount(e.value, "accuracy")


def interval(
    e: Estimate | None, scale: float = 100.0, digits: int = 1, signed: bool = False
) -> str:
    """'41.0-45.5' (en dash), or '-1.2 to +0.4' when signed; 'no interval' if there is none, with
    the number of clusters where that is too few."""
    if e is not None and e.too_few and e.low != e.low:
        return f"{NO_INTERVAL}: {e.clusters} cluster{'' if e.clusters == 1 else 's'}"
    if e is None or e.low != e.low or e.high != e.high:
        return NO_INTERVAL
    low, high = number(scale * e.low, digits, signed), number(scale * e.high, digits, signed)
    return f"{low} to {high}" if signed or e.low < 0 else f"{low}{DASH}{high}"


def sign_of(e: Estimate) -> int:
    """1 or -1 when the interval excludes zero, else 0."""
    return 0 if e.low != e.low or e.low <= 0 <= e.high else (1 if e.value > 0 else -1)


#: Metrics with a unit of their own; all others are shares, shown in per cent.
PLAIN = {name for name, word in WORDS.metrics.items() if word.unit in ("own", "change")}
#: Differences, shown with their sign.
SIGNED = {name for name, word in WORDS.metrics.items() if word.unit in ("points", "change")}
#: Direction of improvement: 1 higher, -1 lower.
BETTER = {
    name: 1 if word.better == "higher" else -1
    for name, word in WORDS.metrics.items()
    if word.better
}
TASKS = {task: word.name for task, word in WORDS.tasks.items()}
SUITES = {name: suite.title for name, suite in suites.SUITES.items()}
VERDICTS = {verdict: word.name for verdict, word in WORDS.verdicts.items()}


def title(metric: str) -> str:
    """'accuracy_gain' -> 'Accuracy gain over Full'; the metric's name if it has no title
    ('share_A': 'Share A')."""
    text = metric.replace("_", " ")
    word = WORDS.metrics.get(metric)
    return word.name if word else text[:1].upper() + text[1:]


def group(pillar: str) -> str:
    """A row of custom questions by group, from its pillar: 'colour: red' of 'colour=red', 'colour:
    best minus worst' of 'colour:max-min'."""
    column, apart = pillar.removesuffix(":max-min"), pillar.endswith(":max-min")
    return f"{column}: best minus worst" if apart else pillar.replace("=", ": ", 1)


def amount(value: float | None, metric: str, unit: bool = True) -> str:
    """A value of a metric: '52.3 %', '+1.2 points', '14.20'; 'none' if there is no value."""
    if value is None or value != value:
        return "none"
    scale, digits, signed = form(metric)
    return number(scale * value, digits, signed) + (unit_of(metric) if unit else "")


def interval_of(row: Mapping[str, Any], metric: str) -> str:
    """The 95 % interval in the metric's format, without the unit."""
    return interval(Estimate.of_row(row), *form(metric))


def count(n: int | float | None) -> str:
    return "none" if n is None else f"{int(n):,}"


def span(counts: Iterable[int], to: str = " to ") -> str:
    """'18' or '12 to 18' of several counts; '' for none."""
    ordered = sorted(counts)
    return to.join(dict.fromkeys(f"{n:,}" for n in (*ordered[:1], *ordered[-1:])))


def when(at: datetime | None) -> str:
    """'21 Nov 2026, 01:30 UTC': times in the results are UTC."""
    return f"{at.day} {at:%b %Y, %H:%M} UTC" if at is not None else "unknown"


def lasted(seconds: float | None) -> str:
    """'2 h 05 min', '3 min 20 s', '0.4 s'."""
    if seconds is None or seconds != seconds or seconds < 0:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f}{NBSP}s" if seconds < 10 else f"{seconds:.0f}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NBSP}min {rest:02d}{NBSP}s"
    return f"{minutes // 60}{NBSP}h {minutes % 60:02d}{NBSP}min"


def size(n: int) -> str:
    """Bytes as '12 kB'."""
    return (
        f"{n}{NBSP}B"
        if n < 1000
        else f"{n / 1000:.0f}{NBSP}kB"
        if n < 1_000_000
        else f"{n / 1e6:.1f}{NBSP}MB"
    )


def url(path: str, **params: object) -> str:
    """A path with its parameters; empty ones are left out."""
    kept = {k: v for k, v in params.items() if v not in ("", None, False)}
    return f"{path}?{urlencode(kept)}" if kept else path


def worst(verdicts: Mapping[str, int]) -> str:
    """The most severe of these verdicts; '' for none."""
    there = [verdict for verdict, n in verdicts.items() if n and verdict in WORDS.verdicts]
    return max(there, key=lambda verdict: WORDS.verdicts[verdict].severity, default="")
