"""How numbers and times are written: the one writer of an estimate (value, interval, n) for pages,
commands, messages, W&B and cards, and what it is made of. Units and formats are those of the
vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sdgbias.methods.stats import Estimate
from sdgbias.vocabulary import Word, metric_word

NBSP, DASH, _MINUS = "\u00a0", "\u2013", "−"
#: Without a space at which a line could end.
CI = f"95{NBSP}%{NBSP}CI"
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
        return f"({labelled(self.ci, CI)}, n{NBSP}={NBSP}{self.n})"

    @property
    def cell(self) -> str:
        """'61.0 [48.8–72.0] 490', of a table whose heads have the unit."""
        return f"{self.value} [{self.ci}] {self.n}"

    def __str__(self) -> str:
        return f"{self.value}{self.unit} {self.aside}"


def labelled(ci: str, label: str = "CI") -> str:
    """'CI 48.8–72.0'; 'no interval' as it is."""
    return ci if ci.startswith(NO_INTERVAL) else f"{label} {ci}"


def written(e: Estimate, metric: str | Word = "accuracy") -> WrittenEstimate:
    """An estimate of a metric as every page, command, message and card shows it. The interval is
    '41.0–45.5', or '-1.2 to +0.4' of a difference; 'no interval' if there is none, with the number
    of clusters where that is too few."""
    word = metric if isinstance(metric, Word) else metric_word(metric)
    value, unit = amount(e.value, word, unit=False), unit_of(word)
    return WrittenEstimate(value, unit, _interval(e, word), f"{e.n:,}")


def _interval(e: Estimate, word: Word) -> str:
    if e.low != e.low or e.high != e.high:
        return f"{NO_INTERVAL}: {many(e.clusters, 'cluster')}" if e.too_few else NO_INTERVAL
    clear = word.format[0] == "+" and not e.low <= 0 <= e.high
    low, high = (_bound(end, word, clear) for end in (e.low, e.high))
    return f"{low} to {high}" if word.format[0] == "+" or e.low < 0 else f"{low}{DASH}{high}"


def _bound(end: float, word: Word, clear: bool) -> str:
    """An end of an interval. clear: the interval excludes zero, so that none of its ends may read
    as zero: '+0.03' in place of '0.0'."""
    text = amount(end, word, unit=False)
    if clear and text.strip("0.") == "":
        text = _signless_zero(f"{word.scale * end:+.1g}") if abs(end) > 1e-4 else text
    return text


def amount(value: float | None, metric: str | Word, unit: bool = True) -> str:
    """A value of a metric: '52.3 %', '+1.2 points', '14.20'; 'none' if there is no value."""
    if value is None or value != value:
        return "none"
    word = metric if isinstance(metric, Word) else metric_word(metric)
    text = _signless_zero(format(word.scale * value, f"{word.format[:-3]},{word.format[-3:]}"))
    return text + (unit_of(word) if unit else "")


def unit_of(metric: str | Word) -> str:
    """' %', ' points' of a difference, '' of a metric with a unit of its own."""
    word = metric if isinstance(metric, Word) else metric_word(metric)
    return f"{NBSP}{word.unit}" if word.unit else ""


def percent(e: Estimate) -> str:
    """'61.0 %'."""
    return amount(e.value, "accuracy")


def interval_of(row: Mapping[str, Any], metric: str) -> str:
    """The 95 % interval of a row of the store in the metric's format, without the unit."""
    return written(Estimate.of_row(row), metric).ci


def number(value: float, digits: int = 1, signed: bool = False) -> str:
    """'1,234.5' with a true minus sign (U+2212); 'n/a' for NaN."""
    return "n/a" if value != value else _signless_zero(f"{value:{'+' * signed},.{digits}f}")


def _signless_zero(text: str) -> str:
    zero = float(text.replace(",", "")) == 0
    return (text.lstrip("+-") if zero else text).replace("-", _MINUS)


def p_value(p: float | None) -> str:
    """'0.042', '< 0.001'; '' for NaN and None."""
    return "" if p is None or p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def sign_of(e: Estimate) -> int:
    """1 or -1 when the interval excludes zero, else 0."""
    return 0 if e.low != e.low or e.low <= 0 <= e.high else (1 if e.value > 0 else -1)


def title(metric: str) -> str:
    """'accuracy_gain' -> 'Accuracy gain over Full'."""
    return metric_word(metric).name


def is_difference(metric: str) -> bool:
    """Whether a metric is a difference, shown with its sign."""
    return metric_word(metric).format[0] == "+"


def is_share(metric: str) -> bool:
    """Whether a metric is a share, or a difference of shares: shown in per cent or points."""
    return metric_word(metric).scale != 1


def group(pillar: str) -> str:
    """A row of custom questions by group, from its pillar: 'colour: red' of 'colour=red', 'colour:
    best minus worst' of 'colour:max-min'."""
    column, apart = pillar.removesuffix(":max-min"), pillar.endswith(":max-min")
    return f"{column}: best minus worst" if apart else pillar.replace("=", ": ", 1)


def count(n: int | float | None) -> str:
    return "none" if n is None else f"{int(n):,}"


def many(n: int, one: str, several: str = "") -> str:
    """'1 model', '1,200 models'."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"


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
        return f"{seconds:.{1 if seconds < 10 else 0}f}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NBSP}min {rest:02d}{NBSP}s"
    return f"{minutes // 60}{NBSP}h {minutes % 60:02d}{NBSP}min"


def size(n: int) -> str:
    """Bytes as '12 kB' or '1.2 GB'."""
    thousands = min(4, max(0, len(str(int(n))) - 1) // 3)
    unit = ("B", "kB", "MB", "GB", "TB")[thousands]
    return f"{n / 1000**thousands:.{int(thousands > 1)}f}{NBSP}{unit}"
