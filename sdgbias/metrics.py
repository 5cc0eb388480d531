"""Per-row metrics: f(gold, prediction) that know no groups, models or files. Groups and intervals are in stats.py."""

from __future__ import annotations

import numpy as np

from sdgbias.cade import Bools, Floats, Ints

#: Decimal inputs such as 27.1 - 22.1 miss their exact value by less than this (Table F is inclusive).
SLACK = 1e-9


def correct(gold: Ints, choice: Ints) -> Bools:
    """(N,) candidate indices -> (N,) bool. A choice of -1 (no answer) is never correct."""
    return (choice == gold) & (choice >= 0)


def absolute_error(gold: Floats, value: Floats) -> Floats:
    """(N,) |prediction - gold| in the target's unit; NaN where there is no prediction."""
    return np.abs(value - gold)


def within_tolerance(error: Floats, tolerance: Floats) -> Bools:
    """(N,) interval accuracy's hit (App. C.3, Table F): |error| <= tolerance, inclusive; a missing prediction is a miss."""
    return np.nan_to_num(error, nan=np.inf) <= tolerance + SLACK
