"""Numbers, times and names as the pages say them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sdgbias.report.data import METHODS
from sdgbias.report.words import DASH, NBSP, number

#: Metrics in a unit of their own; every other one is a share, shown in per cent.
PLAIN = {"mae", "mae_change", "distinct_prompts"}
#: Differences, shown with their sign.
SIGNED = {"accuracy_gain", "mae_change", "disparity"}
#: What is better: 1 higher, -1 lower; metrics that are not here have no better end and are listed by name of the model.
BETTER = {
    "accuracy": 1, "accuracy_gain": 1, "interval_accuracy": 1, "recall": 1, "candidate_mass": 1, "fixed_rate": 1, "mae": -1, "mae_change": -1,
    "unparsed_rate": -1, "off_candidate_rate": -1, "broken_rate": -1, "refusal_rate": -1, "false_yes_rate": -1,
}  # fmt: skip
TITLES = {
    "accuracy": "Accuracy", "accuracy_gain": "Accuracy gain over Full", "interval_accuracy": "Interval accuracy", "mae": "Mean absolute error",
    "mae_change": "Change of MAE from Full", "recall": "Recall", "disparity": "Disparity", "candidate_mass": "Candidate mass",
    "off_candidate_rate": "Off-candidate rate", "unparsed_rate": "Unparsed rate", "refusal_rate": "Refusal rate",
    "false_yes_rate": "Yes about a wrong class", "no_rate": "Says no", "unknown_rate": "Says unknown", "changed_rate": "Answers changed by CADE",
    "fixed_rate": "Answers fixed by CADE", "broken_rate": "Answers broken by CADE", "kept_rate": "Answers kept by the confidence gate",
    "share_pessimistic": "Share pessimistic", "share_conservative": "Share conservative", "share_optimistic": "Share optimistic",
    "share_optimistic_two_option": "Share optimistic, two options", "distinct_prompts": "Distinct Q-only prompts",
}  # fmt: skip
TASKS = {"mcq": "Multiple choice", "regression": "Estimates", "direct": "Direct question", "choice": "Single choice"}
SUITES = {"sdg": "Places (sdg)", "facet": "People (facet)"}
VIEWS = METHODS | {"full_argmax": "Full, likeliest letter"}
VERDICTS = {"PASS": "Pass", "BREACH": "Breach", "INSUFFICIENT_EVIDENCE": "Not enough evidence", "MISSING": "Missing"}
#: The verdict that stands for several: the first of these that occurs.
WORST = ("BREACH", "MISSING", "INSUFFICIENT_EVIDENCE", "PASS")


def title(metric: str) -> str:
    """'accuracy_gain' -> 'Accuracy gain over Full'; a metric without a title by its name."""
    return TITLES.get(metric, metric.replace("_", " ").capitalize())


def amount(value: float | None, metric: str, unit: bool = True) -> str:
    """A value of a metric: '52.3 %', '+1.2 points', '14.20'; 'none' where there is none."""
    if value is None or value != value:
        return "none"
    if metric in PLAIN:
        return number(value, 0 if metric == "distinct_prompts" else 2, metric in SIGNED)
    after = "" if not unit else f"{NBSP}points" if metric in SIGNED else f"{NBSP}%"
    return number(100 * value, 1, metric in SIGNED) + after


def tick(value: float, metric: str) -> str:
    """A value on an axis: '52.5 %', '+2.5', '14'."""
    plain = metric in PLAIN
    text = number(value if plain else 100 * value, 2, metric in SIGNED)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if plain or metric in SIGNED else f"{text}{NBSP}%"


def interval(row: Mapping[str, Any], metric: str) -> str:
    """The 95 % interval in the metric's own form, without the unit."""
    low, high = row.get("ci_low"), row.get("ci_high")
    if low is None or high is None or low != low or high != high:
        return "no interval"
    a, b = amount(low, metric, unit=False), amount(high, metric, unit=False)
    return f"{a} to {b}" if metric in SIGNED or low < 0 else f"{a}{DASH}{b}"


def count(n: int | float | None) -> str:
    return "none" if n is None else f"{int(n):,}"


def when(at: datetime | None) -> str:
    """'21 Nov 2026, 01:30 UTC': times of the results are UTC."""
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
    return f"{n}{NBSP}B" if n < 1000 else f"{n / 1000:.0f}{NBSP}kB" if n < 1_000_000 else f"{n / 1e6:.1f}{NBSP}MB"


def url(path: str, **params: object) -> str:
    """A path with its parameters; empty ones are left out."""
    kept = {k: v for k, v in params.items() if v not in ("", None, False)}
    return f"{path}?{urlencode(kept)}" if kept else path


def parsed(text: str | None, kind: type = dict) -> Any:
    """JSON of the results; an empty ``kind`` where there is none or it isn't one."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        found = None
    return found if isinstance(found, kind) else kind()


def worst(verdicts: Mapping[str, int]) -> str:
    """The verdict that stands for all of these counts; '' for none."""
    return next((v for v in WORST if verdicts.get(v)), "")
