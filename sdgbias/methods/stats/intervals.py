"""Estimates with their n, their clusters and a 95 % interval.

Items of one DHS cluster share an image and survey answers, so they are not independent; nor are
the answers to one prompt that many items share. The variance is the cluster jackknife (CV3:
MacKinnon, Nielsen & Webb 2023), the quantile t at Satterthwaite's degrees of freedom (Bell &
McCaffrey 2002). For clusters of one size that is CR1 and t on clusters minus one; where some
clusters hold much of the rows it is wider. Below ``FEWEST`` clusters there is no interval.

No interval leaves the range of its metric: shares get a Wilson interval at the effective sample
size with the t quantile, paired differences of right and wrong an adjusted Wald interval at the
same size (`difference_bounds`), non-negative amounts (MAE) one on the log scale, fractions (means
of numbers from 0 to 1) one on the logit scale.

No interval has width zero. Where all clusters have one mean, shares and differences count clusters
as rows; of any other kind there is no interval, and `Estimate.missing_interval` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sdgbias.methods.cade import Floats, Ints

LEVEL = 0.95
#: Below this many clusters the variation between them can't be estimated, and there is no interval.
FEWEST = 5

#: Range of a metric: any number; 0 or 1 in each row; -1, 0 or 1 in each row (right minus wrong); 0
#: or more; from 0 to 1.
Kind = Literal["mean", "share", "difference", "amount", "fraction"]
#: A standard deviation below this share of the value is rounding, as are variances below its
#: square.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """value with its n (rows), its interval and the clusters that the interval counts (0: none are
    counted). NaN bounds where an interval can't be had (`missing_interval`)."""

    value: float
    n: int
    low: float = float("nan")
    high: float = float("nan")
    clusters: int = 0

    @classmethod
    def of_row(cls, row: Mapping[Any, Any], low: str = "ci_low", high: str = "ci_high") -> Estimate:
        """The estimate of a row of the store (value, n, ci_low, ci_high and, where it is selected,
        clusters); NULL is NaN, a missing n is 0."""
        n, clusters = (row.get(k) for k in ("n", "clusters"))
        names = ("value", low, high)
        value, start, end = (float("nan") if row[k] is None else float(row[k]) for k in names)
        return cls(
            value,
            0 if n is None or n != n else int(n),
            start,
            end,
            0 if clusters is None or clusters != clusters else int(clusters),
        )

    def columns(self, unit: str = "cluster") -> dict[str, object]:
        """The columns of a row of results: value, n, low, high, clusters, and as note why there is
        no interval."""
        return {
            **{"value": self.value, "n": self.n, "low": self.low, "high": self.high},
            **{"clusters": self.clusters, "note": self.missing_interval(unit)},
        }

    @property
    def too_few(self) -> bool:
        """Whether there is a value, but too few clusters for its interval."""
        return self.value == self.value and 0 < self.clusters < FEWEST

    def missing_interval(self, unit: str = "cluster") -> str:
        """Why a value has no interval, '' where it has one or where its clusters aren't counted."""
        if self.value != self.value or not self.clusters or self.low == self.low:
            return ""
        if self.too_few:
            many = f"{self.clusters} {unit}{'s' * (self.clusters != 1)}"
            return f"{many}: too few for an interval"
        return f"no interval: the value is the same in every {unit}"


@dataclass(frozen=True)
class Spread:
    """How far the means of g groups of rows vary: variance, df (g,), NaN below two clusters, and
    clusters (g,)."""

    variance: Floats
    df: Floats
    clusters: Ints


def codes(keys: ArrayLike) -> tuple[Ints, int]:
    """(N,) keys -> ((N,) codes, number of distinct keys). Codes follow the sorted keys, so row
    order never shows."""
    k = np.asarray(keys)
    if k.size == 0:
        return np.zeros(0, dtype=np.int64), 0
    if (
        k.dtype.kind in "iu" and k.min() >= 0 and k.max() < 8 * k.size + 1024
    ):  # already small codes: close gaps without a sort
        seen = np.zeros(int(k.max()) + 1, dtype=bool)
        seen[k] = True
        return (np.cumsum(seen) - 1)[k].astype(np.int64), int(seen.sum())
    names, inverse = np.unique(k, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64), len(names)


def spread_of(sums: Floats, rows: Floats, group: Ints | None = None, groups: int = 1) -> Spread:
    """Spread of the mean of each group from its clusters: (P,) sums of residuals and (P,) rows of
    each cluster (none of zero rows), (P,) group codes below ``groups``.

    With w a cluster's share of the rows, the variance is (G - 1) / G times the sum of (residual sum
    / (rows (1 - w)))^2. The degrees of freedom are 2 E(V)^2 / var(V) where rows are
    normal and independent.
    """
    code = np.zeros(len(rows), dtype=np.int64) if group is None else group

    def total(values: Floats) -> Floats:
        return np.bincount(code, weights=values, minlength=groups).astype(float)

    many, n = np.bincount(code, minlength=groups), total(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = rows / n[code]
        variance = (many - 1) / many * total((sums / (1 - w)) ** 2) / n**2
        # expectation and variance of the above under independent rows of one variance
        diagonal, cross = w / (1 - w), (w / (1 - w)) ** 2
        df = total(diagonal) ** 2 / (total(diagonal**2) + total(cross) ** 2 - total(cross**2))
    lone = many < 2
    df = np.clip(df, 1.0, np.maximum(many - 1, 1))
    return Spread(np.where(lone, np.nan, variance), np.where(lone, np.nan, df), many)


def drop_missing(values: ArrayLike, *keys: ArrayLike) -> tuple[Floats, list[np.ndarray]]:
    """(N,) values as floats and their keys, rows with NaN left out."""
    x = np.asarray(values, dtype=float)
    ok = ~np.isnan(x)
    if ok.all():
        return x, [np.asarray(k) for k in keys]
    return x[ok], [np.asarray(k)[ok] for k in keys]


def bounds(
    value: Floats, n: Floats, spread: Spread, kind: Kind, changed: Floats | None = None
) -> tuple[Floats, Floats]:
    """(low, high) of (g,) values of one kind; NaN below ``FEWEST`` clusters, where a bound isn't
    finite, and where the clusters of a mean, an amount or a fraction don't vary. changed (g,): the
    share of rows that aren't 0, of differences."""
    from scipy.special import expit, logit, stdtrit  # 0.2 s, not for every command

    t = stdtrit(np.nan_to_num(spread.df, nan=1.0), 0.5 + LEVEL / 2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        half = t * spread.variance**0.5
        half = np.where(half <= t * ROUNDING * np.abs(value), np.nan, half)
        if kind == "share":
            low, high = wilson(value, n, spread.variance, spread.clusters, spread.df)
        elif kind == "difference":
            assert changed is not None
            low, high, _ = difference_bounds(value, changed, n, spread)
        elif kind == "amount":
            factor = np.exp(half / value)
            low, high = value / factor, value * factor
        elif kind == "fraction":
            at, off = logit(value), half / (value * (1 - value))
            low, high = expit(at - off), expit(at + off)
        else:
            low, high = value - half, value + half
    none = (spread.clusters < FEWEST) | ~np.isfinite(low + high)
    return np.where(none, np.nan, low), np.where(none, np.nan, high)


def nothing(n: int = 0) -> Estimate:
    """The result for no rows, or for too few."""
    return Estimate(float("nan"), n)


def widest(estimates: Sequence[Estimate]) -> Estimate:
    """Of one value clustered in several ways, the estimate that claims least: one without an
    interval, else the widest."""
    none = [e for e in estimates if e.low != e.low]
    return (
        min(none, key=lambda e: e.clusters)
        if none
        else max(estimates, key=lambda e: e.high - e.low)
    )


def effective_rows(simple: Floats, n: Floats, spread: Spread) -> Floats:
    """Independent rows that n clustered ones are worth: n over the design effect, the clustered
    variance over ``simple``, that of a mean of n independent rows (Kish 1965); at most n, at least
    1.

    Where the clusters don't vary the design effect can't be seen: clusters count as rows, the
    cautious choice. One cluster counts as one row.
    """
    clusters = spread.clusters.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.minimum(n, np.maximum(1.0, n * simple / spread.variance))
    alike = (simple <= ROUNDING / np.maximum(n, 1)) | (spread.variance <= ROUNDING * simple)
    return np.where(clusters < 2, 1.0, np.where(alike, clusters, rows))


def wilson(
    p: Floats, n: Floats, variance: Floats, groups: ArrayLike, df: Floats
) -> tuple[Floats, Floats]:
    """Wilson bounds of shares p at the effective number of rows (`effective_rows`), with the t
    quantile of df for the normal one; all arrays of one shape. NaN where p is NaN."""
    from scipy.special import stdtrit

    spread = Spread(variance, df, np.asarray(groups))
    effective = effective_rows(p * (1 - p) / np.maximum(n, 1), n, spread)
    z = stdtrit(np.nan_to_num(df, nan=1.0), 0.5 + LEVEL / 2)
    centre = (p + z * z / (2 * effective)) / (1 + z * z / effective)
    half = (
        z / (1 + z * z / effective) * (p * (1 - p) / effective + z * z / (4 * effective**2)) ** 0.5
    )
    # of 0 and 1 the ends are 0 and 1, which rounding would miss by 1e-17
    low, high = np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)
    return np.minimum(p, low), np.maximum(p, high)


def difference_bounds(
    value: Floats, changed: Floats, n: Floats, spread: Spread
) -> tuple[Floats, Floats, Floats]:
    """(low, high, standard error) of (g,) means of paired differences that are -1, 0 or 1.
    changed (g,): the share of rows that aren't 0.

    The adjusted Wald interval of Bonett and Price (2012, Eq. 7), which adds one gain and one loss
    to the rows, at the effective number of rows, with the t quantile. It holds where few answers
    change, and where none does its width is not zero. Coverage: tests/methods/test_difference.py.
    """
    from scipy.special import stdtrit

    with np.errstate(invalid="ignore"):
        simple = (changed - value**2) / np.maximum(n, 1)
        rows = effective_rows(simple, n, spread)
        centre, moved = value * rows / (rows + 2), (changed * rows + 2) / (rows + 2)
        error = ((moved - centre**2) / (rows + 2)) ** 0.5
    half = stdtrit(np.nan_to_num(spread.df, nan=1.0), 0.5 + LEVEL / 2) * error
    return np.maximum(-1.0, centre - half), np.minimum(1.0, centre + half), error
