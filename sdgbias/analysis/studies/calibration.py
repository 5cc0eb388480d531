"""Studies 'calibration' and 'selective': is the model's confidence reliable, and is CADE's score?

Before: the Full view's softmax over the candidates. After: the same where CADE keeps the Full
answer; elsewhere the softmax of CADE's scores, which are uncalibrated and not probabilities.
Confidence is the largest of them. Expected calibration error uses 15 bins of equal width or of
equal mass; its interval is a BCa bootstrap over places, because resampling alone inflates it. Risk
is the error rate among the most confident answers, in steps of 5 % coverage; its area (AURC) is the
mean over the steps. Ties in confidence stay in item order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Measurement, Sample, StudyRow, Values
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Floats, Ints, argmax_view, log_softmax
from sdgbias.methods.stats.intervals import wilson
from sdgbias.types import Task, View

BINS, STEPS = 15, 20
BINNINGS = {"width": metrics.equal_width, "mass": metrics.equal_mass}


def judged(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome]:
    """The answers of Full and CADE by test and pooled, with the (n,) confidence, squared distance
    and negative log-likelihood of each, NaN without an answer."""
    outcomes = []
    for o in answers.pools(run, Task.MCQ)[:-1]:
        [cell] = o.cells
        o = replace(o, choice={}, hit={})
        for method in (View.FULL.value, CADE):
            log_p, choice = distributions(cell, method) or (None, np.full(0, -1))
            if log_p is None or not (cell.test_rows & (choice >= 0)).any():
                continue
            has_answer, of_choice = choice >= 0, np.maximum(choice, 0)
            each = {
                "confidence": np.exp(log_p[np.arange(len(choice)), of_choice]),
                "brier": metrics.brier(np.exp(log_p), cell.gold),
                "nll": metrics.negative_log_likelihood(log_p, cell.gold),
            }
            more = {
                f"{name} of {method}": np.where(has_answer, values, np.nan)[cell.test_rows]
                for name, values in each.items()
            }
            o = answers.answered(replace(o, more={**o.more, **more}), cell, method, choice)
        outcomes.append(o)
    yield from outcomes
    if outcomes:
        yield answers.pooled(outcomes)


def distributions(cell: TaskCell, method: str) -> tuple[Floats, Ints] | None:
    """(N, K) log-probabilities and (N,) choice of 'full' or 'cade' (None if CADE wasn't tuned)."""
    decided = answers.decision(cell)
    if method == CADE and decided is None:
        return None
    if decided is None:
        full = log_softmax(cell.filled(View.FULL), cell.present)
        return full, argmax_view(full, cell.present)
    s, d, usable = decided
    full = log_softmax(cell.filled(View.FULL), s.valid)
    if method == View.FULL.value:
        return full, s.base
    log_p = np.where(d.kept[:, None], full, log_softmax(d.score, s.valid))
    return log_p, np.where(usable, d.choice, -1)


def confidence(o: TaskOutcome, method: str) -> Values:
    return {"confidence": o.more[f"confidence of {method}"]}


def losses(o: TaskOutcome, method: str) -> Values:
    return {name: o.more[f"{name} of {method}"] for name in ("brier", "nll")}


# ----------------------------------------------------------------------
# statistics of confidences


class _Answers(NamedTuple):
    """n answered rows of a method: confidence, hit (n,); place (n,) codes below ``places``, which
    all methods share."""

    confidence: Floats
    hit: Floats
    place: Ints
    places: int

    def sums(self, group: Ints, values: Floats, groups: int) -> Floats:
        """(places, groups) sums of (n,) values."""
        size = self.places * groups
        sums = np.bincount(self.place * groups + group, weights=values, minlength=size)
        return sums.astype(float).reshape(self.places, groups)


def _by_method(m: Measurement) -> Iterator[tuple[Sample, _Answers]]:
    has_answer = [~np.isnan(s.values["confidence"]) for s in m.samples]
    either = np.logical_or.reduce(has_answer)
    place, places = stats.codes(m.clusters[0][either])
    for s, rows in zip(m.samples, has_answer, strict=True):
        hit = m.o.hit[str(s.columns["method"])][rows]
        yield s, _Answers(s.values["confidence"][rows], hit, place[rows[either]], places)


def reliability(m: Measurement) -> Iterator[StudyRow]:
    """The calibration error of each binning, and the accuracy of each bin at its confidence."""
    for s, a in _by_method(m):
        for name, binning in BINNINGS.items():
            bin_of = binning(a.confidence, BINS)
            note = f"{BINS} bins of equal {name}"
            yield m.row(s, f"ece_{name}", _calibration_error(m, a, bin_of), note=note)
            hits = stats.ValueColumn("accuracy", a.hit)
            (accuracy,) = stats.measure([hits], bin_of, BINS, [a.place])
            total = np.bincount(bin_of, weights=a.confidence, minlength=BINS)
            for b in np.flatnonzero(accuracy.n):
                e, x = accuracy.estimate(int(b)), float(total[b] / accuracy.n[b])
                group = f"{b + 1:02d}"
                yield m.row(s, f"reliability_{name}", e, attribute="bin", group=group, x=x)


def _calibration_error(m: Measurement, a: _Answers, bin_of: Ints) -> stats.Estimate:
    """The error, plus or minus the 95 % quantile of the error by which the gaps of resampled places
    are off. Chance adds to each gap, so that the error of resampled answers lies above their own:
    its percentiles could leave the value out."""
    gaps, n = a.sums(bin_of, a.confidence - a.hit, BINS), len(a.hit)
    value = float(metrics.calibration_error(gaps.sum(axis=0), np.array(n)))
    if a.places < stats.FEWEST:
        return stats.Estimate(value, n, clusters=a.places)
    rows = np.bincount(a.place, minlength=a.places).astype(float)
    sums = np.column_stack([gaps, rows])
    draws = stats.replicates(sums, m.settings.bootstrap, m.settings.seed)
    apart = draws[:, :-1] / draws[:, -1:] - gaps.sum(axis=0) / n
    off = np.quantile(np.abs(apart).sum(axis=1), stats.LEVEL)
    half = float(off * stats.widening(stats.effective(rows)))
    return stats.Estimate(value, n, max(0.0, value - half), min(1.0, value + half), a.places)


def selective(m: Measurement) -> Iterator[StudyRow]:
    """The risk at each coverage, and the area below it."""
    for s, a in _by_method(m):
        n = len(a.hit)
        step = np.empty(n, dtype=np.int64)
        step[np.argsort(-a.confidence, kind="stable")] = np.arange(n) * STEPS // n
        rows = a.sums(step, np.ones(n), STEPS)
        sums = np.concatenate([a.sums(step, 1.0 - a.hit, STEPS), rows], axis=1)
        value = _risks(sums.sum(axis=0))
        low = high = np.full(STEPS + 1, np.nan)
        if a.places >= stats.FEWEST:
            draws = _risks(stats.replicates(sums, m.settings.bootstrap, m.settings.seed))
            low, high = stats.interval(value, draws, sizes=rows.sum(axis=1), within=(0.0, 1.0))
            low[:STEPS], high[:STEPS] = _unvaried(rows, value, low, high)
        covered = np.cumsum(rows.sum(axis=0)).astype(int)
        note = f"mean risk over {STEPS} steps of coverage"
        for k in [*np.flatnonzero(covered), STEPS]:
            ends = float(low[k]), float(high[k]), a.places
            if k == STEPS:
                yield m.row(s, "aurc", stats.Estimate(float(value[k]), n, *ends), note=note)
            else:
                e, x = (
                    stats.Estimate(float(value[k]), int(covered[k]), *ends),
                    round((k + 1) / STEPS, 2),
                )
                yield m.row(s, "risk", e, parameter="coverage", x=x)


def _risks(sums: Floats) -> Floats:
    """(..., 2 STEPS) errors and rows of the steps -> (..., STEPS + 1) risks, and their mean."""
    risk = metrics.risk_curve(sums[..., :STEPS], sums[..., STEPS:])
    return np.concatenate([risk, np.nanmean(risk, axis=-1, keepdims=True)], axis=-1)


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
