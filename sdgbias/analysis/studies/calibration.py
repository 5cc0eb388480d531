"""Studies 'calibration' and 'selective': is the model's confidence reliable, and is CADE's score?

Before: the Full view's softmax over the candidates. After: the same where CADE keeps the Full
answer; elsewhere the softmax of CADE's scores, which are uncalibrated and not probabilities.
Confidence is the largest of them. Expected calibration error uses 15 bins of equal width or of
equal mass; its interval is a BCa bootstrap over places, because resampling alone inflates it. Risk
is the error rate among the most confident answers, in steps of 5 % coverage; its area (AURC) is the
mean over the steps. Ties in confidence stay in item order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.outcomes import CADE
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Floats, Ints, argmax_view, log_softmax
from sdgbias.methods.stats.intervals import wilson
from sdgbias.types import Task, View

STUDY = "calibration"
BINS, STEPS = 15, 20


@dataclass(frozen=True)
class Judged:
    """n answered test rows of one method: log_p (n, K), gold (n,), confidence (n,), hit (n,), place
    (n,) codes."""

    log_p: Floats
    gold: Ints
    confidence: Floats
    hit: Floats
    place: Ints


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """ECE, Brier, NLL, reliability curve, risk-coverage curve and AURC of Full and CADE, per test
    and pooled."""
    records: list[dict[str, object]] = []
    cells = answers.reportable(run, Task.MCQ)
    places = [o.place for o in answers.pools(run, Task.MCQ)]
    parts = {
        cell.test.value: _methods(cell, place) for cell, place in zip(cells, places, strict=False)
    }
    if len(parts) > 1:
        both = [m for m in (View.FULL.value, CADE) if all(m in part for part in parts.values())]
        parts["all"] = {m: _pool([part[m] for part in parts.values()]) for m in both}
    elif parts:
        parts["all"] = next(iter(parts.values()))
    for test, judged in parts.items():
        records += _test(judged, test, settings)
    return table(records)


def distributions(cell: TaskCell, method: str) -> tuple[Floats, Ints] | None:
    """(N, K) log-probabilities and (N,) choice of 'full' or 'cade' (None if CADE wasn't tuned)."""
    decided = answers.decision(cell)
    if method == CADE and decided is None:
        return None
    if decided is None:
        full = log_softmax(cell.known(View.FULL), cell.present)
        return full, argmax_view(full, cell.present)
    s, d, usable = decided
    full = log_softmax(cell.known(View.FULL), s.valid)
    if method == View.FULL.value:
        return full, s.base
    kept = (d.kept & np.isfinite(full).any(axis=1))[:, None]
    return np.where(kept, full, log_softmax(d.score, s.valid)), np.where(usable, d.choice, -1)


def _methods(cell: TaskCell, place: Ints) -> dict[str, Judged]:
    """The answers of each method on the test rows; methods without an answer are left out."""
    judged = {}
    for method in (View.FULL.value, CADE):
        distribution = distributions(cell, method)
        if distribution is None or not (cell.test_rows & (distribution[1] >= 0)).any():
            continue
        log_p, choice = distribution
        mask = cell.test_rows & (choice >= 0)
        of_choice = log_p[np.arange(len(choice)), np.maximum(choice, 0)]
        hit = metrics.correct(cell.gold, choice).astype(float)
        places = place[choice[cell.test_rows] >= 0]
        judged[method] = Judged(
            log_p[mask], cell.gold[mask], np.exp(of_choice[mask]), hit[mask], places
        )
    return judged


def _pool(parts: Sequence[Judged]) -> Judged:
    names = (field.name for field in fields(Judged))
    return Judged(*(np.concatenate([getattr(j, name) for j in parts]) for name in names))


def _test(
    judged: dict[str, Judged], test: str, settings: AnalysisSettings
) -> list[dict[str, object]]:
    """All rows of one test. Methods, binnings and the risk curve share one resampling, so their
    sums are stacked as columns."""
    if not judged:
        return []
    places = 1 + max(int(j.place.max()) for j in judged.values())
    columns: dict[tuple[str, str], Floats] = {}
    binned = {}
    for m, j in judged.items():
        binned[m] = {
            "width": metrics.equal_width(j.confidence, BINS),
            "mass": metrics.equal_mass(j.confidence, BINS),
        }
        step = np.empty(len(j.hit), dtype=np.int64)
        step[np.argsort(-j.confidence, kind="stable")] = np.arange(len(j.hit)) * STEPS // len(j.hit)
        for name, bin_of in binned[m].items():
            columns[m, name] = _place_sums(j.place, bin_of, j.confidence - j.hit, places, BINS)
        columns[m, "wrong"] = _place_sums(j.place, step, 1.0 - j.hit, places, STEPS)
        columns[m, "rows"] = _place_sums(j.place, step, np.ones(len(j.hit)), places, STEPS)
    sums = np.concatenate(list(columns.values()), axis=1)
    sums = sums[sums.any(axis=1)]  # places of this test
    ends = np.cumsum([c.shape[1] for c in columns.values()]).tolist()
    at = {key: slice(*ends) for key, ends in zip(columns, pairwise([0, *ends]), strict=True)}
    enough = len(sums) >= stats.FEWEST
    draws = stats.replicates(sums, settings.bootstrap, settings.seed) if enough else None
    records = []
    for m, j in judged.items():
        common: dict[str, object] = {"test": test, "method": m}
        loss = metrics.negative_log_likelihood(j.log_p, j.gold)
        for metric, value in (
            ("brier", stats.amount(metrics.brier(np.exp(j.log_p), j.gold), j.place)),
            ("nll", stats.amount(loss, j.place)),
            ("confidence", stats.fraction(j.confidence, j.place)),
            ("accuracy", stats.share(j.hit, j.place)),
        ):
            records.append(row(STUDY, metric, value, **common))
        for name, bin_of in binned[m].items():
            ece = _ece(sums, draws, at[m, name], at[m, "rows"], len(j.hit))
            note = f"{BINS} bins of equal {name}"
            records.append(row(STUDY, f"ece_{name}", ece, **common, note=note))
            records += _reliability(j, bin_of, name, common)
        records += _selective(
            sums, draws, slice(at[m, "wrong"].start, at[m, "rows"].stop), len(j.hit), common
        )
    return records


def _reliability(
    j: Judged, bin_of: Ints, name: str, common: dict[str, object]
) -> list[dict[str, object]]:
    (accuracy,) = stats.measure([stats.ValueColumn("accuracy", j.hit)], bin_of, BINS, [j.place])
    mean = np.bincount(bin_of, weights=j.confidence, minlength=BINS) / np.maximum(accuracy.n, 1)
    records = []
    for b in np.flatnonzero(accuracy.n):
        at = {"attribute": "bin", "group": f"{b + 1:02d}", "x": float(mean[b])}
        records.append(row(STUDY, f"reliability_{name}", accuracy.estimate(int(b)), **common, **at))
    return records


def _ece(sums: Floats, draws: Floats | None, bins: slice, rows: slice, n: int) -> stats.Estimate:
    gaps, count = sums[:, bins], sums[:, rows].sum(axis=1)
    value = metrics.calibration_error(gaps.sum(axis=0), np.array(n))
    if draws is None:
        return stats.Estimate(float(value), n, clusters=len(sums))
    each = metrics.calibration_error(draws[:, bins], draws[:, rows].sum(axis=1))
    left = metrics.calibration_error(gaps.sum(axis=0) - gaps, n - count)
    low, high = stats.interval(
        value[None], each[:, None], left[:, None], sizes=count, within=(0.0, 1.0)
    )
    return stats.Estimate(float(value), n, float(low[0]), float(high[0]), len(sums))


def _selective(
    sums: Floats, draws: Floats | None, columns: slice, n: int, common: dict[str, object]
) -> list[dict[str, object]]:
    def curve(both: Floats) -> Floats:
        risk = metrics.risk_curve(both[..., :STEPS], both[..., STEPS:])
        return np.concatenate([risk, np.nanmean(risk, axis=-1, keepdims=True)], axis=-1)

    total, rows = sums[:, columns].sum(axis=0), sums[:, columns][:, STEPS:].sum(axis=1)
    value = curve(total)
    low = high = np.full(STEPS + 1, np.nan)
    if draws is not None:
        low, high = stats.interval(value, curve(draws[:, columns]), sizes=rows, within=(0.0, 1.0))
        low[:STEPS], high[:STEPS] = _unvaried(sums[:, columns][:, STEPS:], value, low, high)
    covered = np.cumsum(total[STEPS:]).astype(int)

    def estimate(k: int, n: int) -> stats.Estimate:
        return stats.Estimate(float(value[k]), n, float(low[k]), float(high[k]), len(sums))

    records = []
    for k in np.flatnonzero(covered):
        at = {"parameter": "coverage", "x": round((k + 1) / STEPS, 2)}
        records.append(row("selective", "risk", estimate(k, int(covered[k])), **common, **at))
    note = f"mean risk over {STEPS} steps of coverage"
    return [*records, row("selective", "aurc", estimate(STEPS, n), **common, note=note)]


def _unvaried(rows: Floats, risk: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """(STEPS,) bounds of the risk at each coverage from (G, STEPS) rows. Where every draw gives the
    same risk, because all or none of the answers are right, places count as rows (`wilson`)."""
    covered = np.cumsum(rows, axis=1)
    places = np.count_nonzero(covered, axis=0)
    none, df = np.zeros(STEPS), np.maximum(places - 1.0, 1.0)
    of_share = wilson(risk[:STEPS], covered.sum(axis=0), none, places, df)
    alike = low[:STEPS] >= high[:STEPS]
    low, high = (
        np.where(alike, share, drawn[:STEPS])
        for share, drawn in zip(of_share, (low, high), strict=True)
    )
    none = alike & (places < stats.FEWEST)
    return np.where(none, np.nan, low), np.where(none, np.nan, high)


def _place_sums(place: Ints, group: Ints, values: Floats, places: int, groups: int) -> Floats:
    """(places, groups) sums of (n,) values."""
    sums = np.bincount(place * groups + group, weights=values, minlength=places * groups)
    return sums.astype(float).reshape(places, groups)
