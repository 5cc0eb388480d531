"""Planted models through the whole pipeline: benchmark -> prompts -> engine -> cache -> CADE ->
results file -> the metrics view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from sdgbias import store
from sdgbias.analysis.selfcheck import truth
from sdgbias.analysis.selfcheck.checks import (
    Check,
    check,
    p_at_most,
    p_mean,
    p_same,
    p_share,
)
from sdgbias.analysis.selfcheck.plants import Plant
from sdgbias.analysis.selfcheck.truth import Population
from sdgbias.engines.planted import Habits
from sdgbias.methods import stats
from sdgbias.methods.stats import Estimate
from sdgbias.progress import Progress
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.scoring import evaluate
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import (
    DIGITS,
    LETTERS,
    PILLARS,
    TESTS,
    CadeParams,
    ContextTest,
    Task,
    View,
)
from sdgbias.vocabulary import METHODS

#: (view, test) combinations that differ; all others repeat one of these.
CELLS = (
    (View.Q_ONLY, ContextTest.T1),
    (View.IMG_Q, ContextTest.T1),
    (View.CTX_Q, ContextTest.T1),
    (View.CTX_Q, ContextTest.T2),
    (View.FULL, ContextTest.T1),
    (View.FULL, ContextTest.T2),
    (View.FULL, ContextTest.T3),
)
#: How far below the known optimum CADE's accuracy may truly lie after a search on a benchmark's val
#: rows.
LOSS = 0.08


@dataclass(frozen=True)
class Found:
    """The results of one run, read from the results file. metrics: rows of the metrics view with
    indicator 'all'."""

    plant: Plant
    seed: int
    metrics: pd.DataFrame
    params: pd.DataFrame
    predictions: pd.DataFrame
    scores: pd.DataFrame

    def estimate(
        self, task: Task, test: str, method: str, metric: str, pillar: str = "all"
    ) -> Estimate | None:
        """One value of the metrics view; None if the run has none."""
        at = {"task": task.value, "test": test, "method": method, "metric": metric}
        at["pillar"] = pillar
        mine = np.logical_and.reduce([self.metrics[name] == value for name, value in at.items()])
        found = self.metrics[mine].to_dict("records")
        return Estimate.of_row(found[0]) if found else None

    def check(self, what: str, truth: float, found: Estimate, p: float, **more: Any) -> Check:
        return check(self.plant.name, what, truth, found, p, **more)


def run(plant: Plant, benchmark: Path, results: Path, *, seed: int, draws: int) -> Found:
    """Evaluate one planted model into a separate results file and read it back."""
    settings = EvalSettings(draws=draws, seed=seed, generated="none")
    spec = plant.spec(benchmark, seed)
    outcome = evaluate.evaluate(spec, benchmark, benchmark, results, settings)

    def read(columns: str, table: str, where: str = "true") -> pd.DataFrame:
        sql = f"SELECT {columns} FROM {table} WHERE run_id = ? AND {where}"
        return store.query(results, sql, [outcome.run_id])

    return Found(
        plant,
        seed,
        read("*", "metrics", "indicator = 'all'"),
        read("*", "cade_params"),
        read("task, item_id, test, method, pred, correct, split", "predictions"),
        read("task, item_id, test, view, logits", "scores", "test IN ('T1', 'T2', 'T5')"),
    )


def checks(found: Found, people: dict[Task, Population], copies: int) -> Iterator[Check]:
    """All checks of this planted model on this benchmark."""
    mcq, regression = people[Task.MCQ], people[Task.REGRESSION]
    if len(mcq.gold):
        yield from _answers(found, mcq)
        yield from _image_use(found, mcq)
        yield from _optimum(found, mcq)
    if len(regression.gold):
        yield from _numbers(found, regression)
    for task, p in people.items():
        if len(p.gold):
            yield from _cade(found, task, p, copies)


def _places(p: Population) -> int:
    return len(set(p.place[p.test]))


def _probabilities(h: Habits, p: Population, test: ContextTest, view: View) -> np.ndarray | None:
    """(n, K) probabilities of each answer on the test rows; None where some rows share one random
    draw, so that a share of answers has no useful expected value."""
    mu, sd = truth.expected_logits(h, p, test, view)
    chance = truth.choice_probability(mu, sd, p.present)[p.test]
    one_draw = truth.shared(p, test, view)[p.test]
    settled = chance.max(axis=1) > 1 - 1e-9
    return None if (one_draw & ~settled).any() or not len(chance) else chance


def _share(
    found: Found, what: str, e: Estimate | None, expected: np.ndarray, headline: bool = False
) -> Iterator[Check]:
    """A share of the metrics view against the mean of (n,) probabilities."""
    if e is None or not len(expected):
        return
    known = float(expected.mean())
    settled = float(np.sum(expected * (1 - expected))) < 1e-6
    if e.n != len(expected):
        p = 0.0  # the metric counts different rows from those planted
    elif settled:
        p = p_same(known, e.value)
    elif not np.isfinite(e.low + e.high):
        return  # too few places or prompts: the instrument reports no interval
    else:
        p = p_share(known, e.value, e.low, e.high)
    yield found.check(what, known, e, p, headline=headline)


def _answers(found: Found, p: Population) -> Iterator[Check]:
    """Accuracy by view and test, and answer directions by pillar (the planted signatures)."""
    rows = np.flatnonzero(p.test)
    three = p.present[rows].all(axis=1) & (p.says[rows] >= 0).all(axis=1)
    for view, test in CELLS:
        chance = _probabilities(found.plant.habits, p, test, view)
        if chance is None:
            continue
        hit = chance[np.arange(len(rows)), p.gold[rows]]
        where = f"{METHODS[view]} at {test.value}"
        e = found.estimate(Task.MCQ, test.value, view.value, "accuracy")
        first = view is View.FULL and test is ContextTest.T1
        yield from _share(found, f"accuracy, {where}", e, hit, headline=first)
        if test is not ContextTest.T1:
            continue
        for number, pillar in enumerate(PILLARS, 1):
            mine = three & (p.pillar[rows] == pillar)
            for rank, says in enumerate(DIRECTIONS):
                expected = np.where(p.says[rows] == rank, chance, 0.0).sum(axis=1)[mine]
                e = found.estimate(Task.MCQ, test.value, view.value, f"share_{says}", pillar)
                signs = view is View.Q_ONLY and found.plant.name == "signs"
                shown = signs and len(expected) > 0 and bool(expected.mean() > 0.5)
                what = f"{says} answers in pillar {number}, {where}"
                yield from _share(found, what, e, expected, headline=shown)


def _image_use(found: Found, p: Population) -> Iterator[Check]:
    """Gain from the picture beyond the context: accuracy of Full minus CTX+Q (Figure 5), paired by
    item."""
    correct = found.predictions[found.predictions["task"] == "mcq"].pivot_table(
        index="item_id", columns=["test", "method"], values="correct", aggfunc="first"
    )
    for test in truth.STATED:
        full, context = (
            _probabilities(found.plant.habits, p, test, view) for view in (View.FULL, View.CTX_Q)
        )
        if full is None or context is None:
            continue
        rows = np.flatnonzero(p.test)
        known = float((full - context)[np.arange(len(rows)), p.gold[rows]].mean())
        mine = correct.reindex(p.item_id[rows])
        with_picture, without = (mine[test.value, v].astype(float) for v in ("full", "ctx_q"))
        difference = (with_picture - without).to_numpy()
        e = stats.mean(difference, p.place[rows], "difference")
        p_value = p_mean(known, e.value, e.low, e.high, _places(p) - 1)
        if float(np.sum(full * (1 - full)) + np.sum(context * (1 - context))) < 1e-6:
            p_value = p_same(known, e.value)
        what = f"image use, Full minus CTX+Q at {test.value}"
        yield found.check(what, known, e, p_value, headline=test is ContextTest.T1)


def _numbers(found: Found, p: Population) -> Iterator[Check]:
    """Mean absolute error and interval accuracy of the freely decoded numbers."""
    rows, df = np.flatnonzero(p.test), _places(p) - 1
    for view, test in (
        (View.Q_ONLY, ContextTest.T5),
        (View.CTX_Q, ContextTest.T2),
        (View.IMG_Q, ContextTest.T2),
        (View.FULL, ContextTest.T2),
    ):
        chance = _probabilities(found.plant.habits, p, test, view)
        if chance is None:
            continue
        off = np.abs(truth.numbers(p, test, view)[rows] - p.answer[rows, None])  # (n, 10)
        near = (chance * (off <= p.tolerance[rows, None] + 1e-9)).sum(axis=1)
        where = f"{METHODS[view]} at {test.value}"
        e = found.estimate(Task.REGRESSION, test.value, view.value, "interval_accuracy")
        shown = view is View.FULL and found.plant.name == "prior"
        yield from _share(found, f"interval accuracy, {where}", e, near, headline=shown)
        e = found.estimate(Task.REGRESSION, test.value, view.value, "mae")
        if e is None:
            continue
        each = (chance * off).sum(axis=1)
        variance = (chance * (off - each[:, None]) ** 2).sum(axis=1)
        known, spread = float(each.mean()), float(variance.sum() ** 0.5 / len(rows))
        p_value = p_mean(known, e.value, e.low, e.high, df, spread=spread)
        if variance.sum() < 1e-9:
            p_value = p_same(known, e.value)
        elif p_value != p_value:
            continue  # too few places or prompts: the instrument reports no interval
        yield found.check(f"mean absolute error, {where}", known, e, p_value)


def _views(found: Found, task: Task, test: ContextTest, p: Population) -> dict[View, np.ndarray]:
    """(N, K) stored logits of the four views, NaN where an item lacks the candidate."""
    s = found.scores[(found.scores["task"] == task.value) & (found.scores["test"] == test.value)]
    out = {}
    for view in View:
        z = np.full(p.present.shape, np.nan)
        known = s[s["view"] == view.value].set_index("item_id")["logits"].reindex(p.item_id)
        for i, values in enumerate(known):
            z[i, : len(values)] = np.asarray(values, dtype=float)
        out[view] = z
    return out


def _cade(found: Found, task: Task, p: Population, copies: int) -> Iterator[Check]:
    """CADE in the run: tuned on val rows only, every answer equal to the paper's equations, and the
    gain equal to the process's expected gain for the tuned parameters."""
    h, df = found.plant.habits, _places(p) - 1
    letters = LETTERS if task is Task.MCQ else DIGITS
    label = "MCQ" if task is Task.MCQ else "numbers"
    metric = "accuracy_gain" if task is Task.MCQ else "mae_change"
    n_val = int((p.split == "val").sum())
    for test in TESTS[task]:
        mine = found.params[
            (found.params["task"] == task.value) & (found.params["test"] == test.value)
        ]
        e = found.estimate(task, test.value, "cade", metric)
        if mine.empty or e is None:
            continue
        if e.low != e.low and df + 1 >= stats.FEWEST:
            # the change is the same in every place: it is compared as it stands
            e = replace(e, low=e.value, high=e.value)
        at = f"{label} at {test.value}"
        given = mine.iloc[0]
        tuned_on = Estimate(int(given["n_val"]), n_val)
        same = p_same(n_val, tuned_on.value)
        yield found.check(f"rows that CADE is tuned on, {at}", n_val, tuned_on, same)
        params = CadeParams(*(float(given[c]) for c in ("alpha", "lambda_kl", "beta", "tau")))
        if test in (ContextTest.T1, ContextTest.T2, ContextTest.T5):
            choice = truth.cade_choice(_views(found, task, test, p), params)
            q = found.predictions[found.predictions["method"] == "cade"]
            q = q[(q["task"] == task.value) & (q["test"] == test.value)]
            said = q.set_index("item_id")["pred"].reindex(p.item_id).to_numpy()
            agree = float((said == np.array(list(letters))[choice]).mean())
            what = f"answers that the paper's equations give, {at}"
            yield found.check(what, 1.0, Estimate(agree, len(choice)), p_same(1.0, agree))
        if h.noise:
            # prompt noise of a shared Q-only prompt is one draw: the gain of this very draw isn't
            # known
            continue
        known = truth.expected_gain(h, p, task, test, params, copies, found.seed)
        if task is Task.MCQ and not (h.prior or h.context_weight or h.image_weight):
            # no answer is likelier than another, whatever the setting
            known = replace(known, value=0.0, error=0.0)
        # mae_change counts errors, payoffs are minus errors
        sign = 1.0 if task is Task.MCQ else -1.0
        p_value = p_mean(
            sign * known.value, e.value, e.low, e.high, df, error=known.error, spread=known.spread
        )
        shown = task is Task.MCQ and test in (ContextTest.T1, ContextTest.T5)
        gain = "gain" if task is Task.MCQ else "change of the mean absolute error"
        more = {"error": known.error, "headline": shown}
        yield found.check(f"CADE's {gain}, {at}", sign * known.value, e, p_value, **more)
        if found.plant.no_gain and shown and df >= 1:
            se = max((e.high - e.low) / 2 / float(stdtrit(df, 0.975)), known.spread)
            what = f"no gain where none is possible, {at}"
            yield found.check(what, 0.0, e, p_at_most(0.0, e.value, se, df))


def _optimum(found: Found, p: Population) -> Iterator[Check]:
    """A model with a prior on top of picture evidence only: without the prior just that evidence
    remains, and CADE should come close to it (T1, T5)."""
    h = found.plant.habits
    other = h.noise or h.context_weight or h.context_noise
    if other or not (h.image_weight and h.image_noise and h.prior):
        return
    rows, df = np.flatnonzero(p.test), _places(p) - 1
    bare = truth.choice_probability(
        h.image_weight * p.image_share, np.full(len(p.gold), h.image_noise), p.present
    )
    best = float(bare[rows, p.gold[rows]].mean())
    for test in (ContextTest.T1, ContextTest.T5):
        e = found.estimate(Task.MCQ, test.value, "cade", "accuracy")
        if e is None or df < 1:
            continue
        se = (e.high - e.low) / 2 / float(stdtrit(df, 0.975))
        p_value = p_at_most(LOSS - best, -e.value, se, df)
        what = f"CADE's accuracy within {LOSS} of the known optimum at {test.value}"
        yield found.check(what, best, e, p_value, headline=test is ContextTest.T1)


def small_benchmark(
    folder: Path,
    clusters: int,
    mcq: int,
    regression: int,
    seed: int,
    progress: Progress,
) -> Path:
    """A synthetic benchmark with pictures, built by the regular stages."""
    from sdgbias.benchmark import build
    from sdgbias.raw import synthetic

    synthetic.write_sample(folder / "raw", clusters, seed, progress=progress, workers=1)
    raw, out, counts = folder / "raw", folder / "benchmark", build.Draw(mcq, regression)
    build.build(raw, raw / "indicators", out, counts, progress=progress)
    return out
