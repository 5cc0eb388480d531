"""The ranges that options of multiple-choice questions and units state in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

_NUMBER = re.compile(r"(?<![\d.])[-−]?\d+(?:\.\d+)?")


class Range(NamedTuple):
    """Lowest and highest value of an option, and whether each of them is included."""

    low: float
    high: float
    low_in: bool
    high_in: bool


def option_range(text: str) -> Range | None:
    """The range of values that an option's text covers: 'below 20 %' -> (-inf, 20, True, False);
    None without a number.

    'X to under Y' excludes its upper end, 'X-Y' includes both; a number alone is the top of a scale
    ('100 %'). A denominator such as 'per 100,000' isn't a bound; a hyphen between two numbers is a
    dash, not a minus.
    """
    plain = re.sub(r"\bper\s+[\d,.]+", "", text.lower())
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", plain)
    plain = re.sub(r"(?<=\d)\s*%?\s*[-–—]\s*(?=\d)", " to ", plain)
    numbers = [float(n.replace("−", "-")) for n in _NUMBER.findall(plain)]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    if len(numbers) > 1:
        return Range(low, high, True, not re.search(r"\b(?:under|below|less than)\b|<", plain))
    if re.search(r"\bor more\b|\band (?:more|above)\b|\bor above\b|\bat least\b|≥|>=", plain):
        return Range(low, np.inf, True, True)
    if re.search(r"\bor less\b|\bat most\b|\bup to\b|≤|<=", plain):
        return Range(-np.inf, high, True, True)
    if re.search(r"\b(?:below|under|less than|fewer than)\b|<", plain):
        return Range(-np.inf, high, True, False)
    if re.search(r"\b(?:above|over|more than)\b|>", plain):
        return Range(low, np.inf, False, True)
    return Range(low, high, True, True)


def _ranges(options: Sequence[str]) -> tuple[list[Range], bool]:
    """(the ranges of the options that state one, whether all non-empty options do)."""
    ranges = [option_range(text) for text in options if text.strip()]
    stated = [r for r in ranges if r is not None]
    return stated, len(stated) == len(ranges)


def bins_ascend(options: Sequence[str]) -> bool:
    """Options ascend: no bound of an option is below that of the previous option, and the last is
    above the first."""
    stated, every = _ranges(options)
    if not every or len(stated) < 2:
        return not stated  # words only: nothing to compare; numbers in some options only: broken
    return (
        all(a.low <= b.low and a.high <= b.high for a, b in pairwise(stated))
        and stated[0][:2] != stated[-1][:2]
    )


def bins_cover(options: Sequence[str], unit: str) -> bool:
    """Options are exclusive and cover the scale: each range begins where the previous one ends, and
    that number belongs to exactly one of them; nothing is left below the first or above the last.
    """
    stated, every = _ranges(options)
    if not every or not stated:
        return True  # words can't be compared; mixtures are left to bins-ordered
    low, high = unit_range(unit)
    touch = all(a.high == b.low and a.high_in != b.low_in for a, b in pairwise(stated))
    return touch and stated[0].low <= low and stated[-1].high >= high


def unit_range(unit: str) -> tuple[float, float]:
    """Lowest and highest value that a unit allows; infinite when it names no range."""
    if unit.startswith(("%", "percent")):
        return 0.0, 100.0
    stated = re.search(r"(\d+(?:\.\d+)?)\s*[-–]\s*(\d+(?:\.\d+)?)", unit)
    return (float(stated[1]), float(stated[2])) if stated else (-np.inf, np.inf)
