"""Studies 'calibration' and 'selective': is the model's confidence reliable, and is CADE's score?

Before: the Full view's softmax over the candidates. After: the same where CADE keeps the Full
answer; elsewhere the softmax of CADE's scores, which are uncalibrated and not probabilities.
Confidence is the largest of them. Expected calibration error uses 15 bins of equal width or of
equal mass. Risk is the error rate among the most confident answers, in steps of 5 % coverage; its
area (AURC) is the mean over the steps. Ties in confidence stay in item order.
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
    """The risk at each coverage, and the area below it: a mean of shares, whose interval is that of
    a share with the spread of the linearised statistic (percentiles of resampled areas cover 87 to
    94 %)."""
    for s, a in _by_method(m):
        n, first = len(a.hit), np.argsort(-a.confidence, kind="stable")
        wrong, place = 1.0 - a.hit[first], a.place[first]
        covered = -(np.arange(1, STEPS + 1) * -n // STEPS)
        risks = [stats.share(wrong[:end], place[:end]) for end in covered]
        for k, e in enumerate(risks, start=1):
            yield m.row(s, "risk", e, parameter="coverage", x=k / STEPS)
        risk = np.array([e.value for e in risks])
        # a row counts in its own step and in all later ones
        later, of_risk = (np.cumsum(w[::-1])[::-1] for w in (1 / covered, risk / covered))
        step = np.arange(n) * STEPS // n
        influence = (wrong * later[step] - of_risk[step]) * n / STEPS
        area = stats.linearised(float(risk.mean()), influence, place, "share")
        yield m.row(s, "aurc", area, note=f"mean risk over {STEPS} steps of coverage")
