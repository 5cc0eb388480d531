"""Planted models through the whole pipeline: benchmark -> prompts -> engine -> cache -> CADE ->
results file -> the metrics view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from sdgbias import store
from sdgbias.analysis.run import TaskCell, load
from sdgbias.analysis.selfcheck import truth
from sdgbias.analysis.selfcheck.checks import Check, p_at_most, p_mean, p_same, p_share
from sdgbias.analysis.selfcheck.plants import Plant
from sdgbias.analysis.selfcheck.truth import Population
from sdgbias.engines.planted import Habits
from sdgbias.methods import stats
from sdgbias.methods.stats import Estimate
from sdgbias.progress import Progress
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.scoring import evaluate
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import DIGITS, LETTERS, PILLARS, TESTS, CadeParams, ContextTest, Task, View
from sdgbias.vocabulary import METHODS

_T1, _T2, _T5 = ContextTest.T1, ContextTest.T2, ContextTest.T5
#: (view, test) combinations that differ; all others repeat one of these.
CELLS = (
    *((View.Q_ONLY, _T1), (View.IMG_Q, _T1), (View.CTX_Q, _T1), (View.CTX_Q, _T2)),
    *((View.FULL, _T1), (View.FULL, _T2), (View.FULL, ContextTest.T3)),
)
#: Those of numbers.
NUMBERS = ((View.Q_ONLY, _T5), (View.CTX_Q, _T2), (View.IMG_Q, _T2), (View.FULL, _T2))
#: How far below the known optimum CADE's accuracy may truly lie after a search on a benchmark's val
#: rows.
LOSS = 0.08


@dataclass(frozen=True)
class PlantRun:
    """The results of one run, read from the results file. metrics: rows of the metrics view with
    indicator 'all'. cells: its scores and tuned parameters."""

    plant: Plant
    seed: int
    metrics: pd.DataFrame
    n_val: Mapping[tuple[str, str], int]
    predictions: pd.DataFrame
    cells: Mapping[tuple[Task, ContextTest], TaskCell]

    def estimate(
        self, task: Task, test: str, method: str, metric: str, pillar: str = "all"
    ) -> Estimate | None:
        """One value of the metrics view; None if the run has none."""
        m = self.metrics
        at = (m["task"] == task) & (m["test"] == test) & (m["method"] == method)
        rows = m[at & (m["metric"] == metric) & (m["pillar"] == pillar)].to_dict("records")
        return Estimate.of_row(rows[0]) if rows else None

    def check(self, what: str, truth: float, e: Estimate, p: float, **more: Any) -> Check:
        """``more``: error and headline of the check."""
        return Check(self.plant.name, what, truth, e.value, e.n, e.low, e.high, p, **more)

    def compare(
        self,
        what: str,
        e: Estimate | None,
        expected: np.ndarray,
        variance: np.ndarray,
        df: int = 0,
        **more: Any,
    ) -> Iterator[Check]:
        """An estimate against the mean of (n,) expected values with their (n,) variances: of a
        share, or with ``df`` of a mean. None where the instrument reports no interval, because
        there are too few places or prompts."""
        if e is None or not len(expected):
            return
        mean, total = float(expected.mean()), float(variance.sum())
        if e.n != len(expected):
            p = 0.0  # the metric counts different rows from those planted
        elif total < 1e-6:
            p = p_same(mean, e.value)
        elif not np.isfinite(e.low + e.high):
            return
        elif df:
            p = p_mean(mean, e.value, e.low, e.high, df, spread=total**0.5 / len(expected))
        else:
            p = p_share(mean, e.value, e.low, e.high)
        yield self.check(what, mean, e, p, **more)


def run(plant: Plant, benchmark: Path, results: Path, *, seed: int, draws: int) -> PlantRun:
    """Evaluate one planted model into a separate results file and read it back."""
    settings = EvalSettings(draws=draws, seed=seed, generated="none")
    spec = plant.spec(benchmark, seed)
    outcome = evaluate.evaluate(spec, benchmark, benchmark, results, settings)

    def read(columns: str, table: str) -> pd.DataFrame:
        return store.query(
            results, f"SELECT {columns} FROM {table} WHERE run_id = ?", [outcome.run_id]
        )

    metrics = read("*", "metrics")
    tuned = read("task, test, n_val", "cade_params").itertuples(index=False)
    return PlantRun(
        plant,
        seed,
        metrics[metrics["indicator"] == "all"],
        {(task, test): int(n) for task, test, n in tuned},
        read("task, item_id, test, method, pred, correct", "predictions"),
        load(results, outcome.run_id).cells,
    )


def checks(run: PlantRun, people: dict[Task, Population], copies: int) -> Iterator[Check]:
    """All checks of this planted model on this benchmark."""
    mcq, regression = people[Task.MCQ], people[Task.REGRESSION]
    if len(mcq.gold):
        yield from _answers(run, mcq)
        yield from _image_use(run, mcq)
        yield from _optimum(run, mcq)
    if len(regression.gold):
        yield from _numbers(run, regression)
    for task, p in people.items():
        if len(p.gold):
            yield from _cade(run, task, p, copies)


def _df(p: Population) -> int:
    """Degrees of freedom of a mean that is clustered by place."""
    return len(set(p.place[p.test])) - 1


def probabilities(h: Habits, p: Population, test: ContextTest, view: View) -> np.ndarray | None:
    """(n, K) probabilities of each answer on the test rows; None where some rows share one random
    draw, so that a share of answers has no useful expected value."""
    mu, sd = truth.expected_logits(h, p, test, view)
    chance = truth.choice_probability(mu, sd, p.present)[p.test]
    one_draw = truth.shared(p, test, view)[p.test]
    settled = chance.max(axis=1) > 1 - 1e-9
    return None if (one_draw & ~settled).any() or not len(chance) else chance


def _of_draw(chance: np.ndarray) -> np.ndarray:
    """Variance of what happens with these probabilities."""
    return chance * (1 - chance)


def _answers(run: PlantRun, p: Population) -> Iterator[Check]:
    """Accuracy by view and test, and answer directions by pillar (the planted signatures)."""
    rows = np.flatnonzero(p.test)
    three = p.present[rows].all(axis=1) & (p.says[rows] >= 0).all(axis=1)
    for view, test in CELLS:
        chance = probabilities(run.plant.habits, p, test, view)
        if chance is None:
            continue
        hit = chance[np.arange(len(rows)), p.gold[rows]]
        where = f"{METHODS[view]} at {test.value}"
        e = run.estimate(Task.MCQ, test, view, "accuracy")
        first = (view, test) == (View.FULL, _T1)
        yield from run.compare(f"accuracy, {where}", e, hit, _of_draw(hit), headline=first)
        if test is not _T1:
            continue
        for number, pillar in enumerate(PILLARS, 1):
            of_pillar = three & (p.pillar[rows] == pillar)
            for rank, says in enumerate(DIRECTIONS):
                share = np.where(p.says[rows] == rank, chance, 0.0).sum(axis=1)[of_pillar]
                e = run.estimate(Task.MCQ, test, view, f"share_{says}", pillar)
                signs = view is View.Q_ONLY and run.plant.name == "signs"
                shown = signs and len(share) > 0 and bool(share.mean() > 0.5)
                what = f"{says} answers in pillar {number}, {where}"
                yield from run.compare(what, e, share, _of_draw(share), headline=shown)


def _image_use(run: PlantRun, p: Population) -> Iterator[Check]:
    """Gain from the picture beyond the context: accuracy of Full minus CTX+Q (Figure 5), paired by
    item."""
    correct = run.predictions[run.predictions["task"] == "mcq"].pivot_table(
        index="item_id", columns=["test", "method"], values="correct", aggfunc="first"
    )
    rows, h = np.flatnonzero(p.test), run.plant.habits
    for test in truth.STATED:
        full, context = (probabilities(h, p, test, view) for view in (View.FULL, View.CTX_Q))
        if full is None or context is None:
            continue
        expected = (full - context)[np.arange(len(rows)), p.gold[rows]]
        paired = correct.reindex(p.item_id[rows])
        with_picture, without = (paired[test.value, v].astype(float) for v in ("full", "ctx_q"))
        e = stats.mean((with_picture - without).to_numpy(), p.place[rows], "difference")
        mean, p_value = float(expected.mean()), p_same(float(expected.mean()), e.value)
        if float(np.sum(_of_draw(full)) + np.sum(_of_draw(context))) >= 1e-6:
            p_value = p_mean(mean, e.value, e.low, e.high, _df(p))
        what = f"image use, Full minus CTX+Q at {test.value}"
        yield run.check(what, mean, e, p_value, headline=test is _T1)


def _numbers(run: PlantRun, p: Population) -> Iterator[Check]:
    """Mean absolute error and interval accuracy of the freely decoded numbers."""
    rows = np.flatnonzero(p.test)
    for view, test in NUMBERS:
        chance = probabilities(run.plant.habits, p, test, view)
        if chance is None:
            continue
        off = np.abs(truth.numbers(p, test, view)[rows] - p.answer[rows, None])  # (n, 10)
        near = (chance * (off <= p.tolerance[rows, None] + 1e-9)).sum(axis=1)
        where = f"{METHODS[view]} at {test.value}"
        e = run.estimate(Task.REGRESSION, test, view, "interval_accuracy")
        shown = view is View.FULL and run.plant.name == "prior"
        what = f"interval accuracy, {where}"
        yield from run.compare(what, e, near, _of_draw(near), headline=shown)
        e = run.estimate(Task.REGRESSION, test, view, "mae")
        each = (chance * off).sum(axis=1)
        variance = (chance * (off - each[:, None]) ** 2).sum(axis=1)
        yield from run.compare(f"mean absolute error, {where}", e, each, variance, _df(p))


def _cade(run: PlantRun, task: Task, p: Population, copies: int) -> Iterator[Check]:
    """CADE in the run: tuned on val rows only, every answer equal to the paper's equations, and the
    gain equal to the process's expected gain for the tuned parameters."""
    mcq, n_val = task is Task.MCQ, int((p.split == "val").sum())
    label, metric = ("MCQ", "accuracy_gain") if mcq else ("numbers", "mae_change")
    for test in TESTS[task]:
        cell, e = run.cells.get((task, test)), run.estimate(task, test, "cade", metric)
        if cell is None or cell.params is None or e is None:
            continue
        at, n = f"{label} at {test.value}", run.n_val[task, test]
        what = f"rows that CADE is tuned on, {at}"
        yield run.check(what, n_val, Estimate(n, n_val), p_same(n_val, n))
        if test in (_T1, _T2, _T5):
            share = _same_answers(run, cell, cell.params)
            what = f"answers that the paper's equations give, {at}"
            yield run.check(what, 1.0, Estimate(share, len(p.gold)), p_same(1.0, share))
        # prompt noise of a shared Q-only prompt is one draw: the gain of this very draw isn't known
        if not run.plant.habits.noise:
            expected = truth.expected_gain(
                run.plant.habits, p, task, test, cell.params, copies, run.seed
            )
            yield from _gain(run, expected, e, at, _df(p), headline=mcq and test in (_T1, _T5))


def _same_answers(run: PlantRun, cell: TaskCell, params: CadeParams) -> float:
    """The share of CADE's answers in the run that the second writing of its equations gives."""
    letters = np.array(list(LETTERS if cell.task is Task.MCQ else DIGITS))
    choice = letters[truth.cade_choice(cell.logits, params)]
    rows = run.predictions[run.predictions["method"] == "cade"]
    rows = rows[(rows["task"] == cell.task) & (rows["test"] == cell.test)]
    answers = rows.set_index("item_id")["pred"].reindex(cell.items["item_id"]).to_numpy()
    return float((answers == choice).mean())


def _gain(
    run: PlantRun, expected: truth.Expected, e: Estimate, at: str, df: int, headline: bool
) -> Iterator[Check]:
    """What CADE changes in accuracy, or in the mean absolute error: payoffs are minus errors."""
    h, mcq = run.plant.habits, at.startswith("MCQ")
    if mcq and not (h.prior or h.context_weight or h.image_weight):
        # no answer is likelier than another, whatever the setting
        expected = replace(expected, value=0.0, error=0.0)
    if e.low != e.low and df + 1 >= stats.FEWEST:
        # the change is the same in every place: it is compared as it stands
        e = replace(e, low=e.value, high=e.value)
    value = expected.value if mcq else -expected.value
    p = p_mean(value, e.value, e.low, e.high, df, error=expected.error, spread=expected.spread)
    what = f"CADE's {'gain' if mcq else 'change of the mean absolute error'}, {at}"
    yield run.check(what, value, e, p, error=expected.error, headline=headline)
    if run.plant.no_gain and headline and df >= 1:
        se = max(_standard_error(e, df), expected.spread)
        what = f"no gain where none is possible, {at}"
        yield run.check(what, 0.0, e, p_at_most(0.0, e.value, se, df))


def _standard_error(e: Estimate, df: int) -> float:
    return (e.high - e.low) / 2 / float(stdtrit(df, 0.975))


def _optimum(run: PlantRun, p: Population) -> Iterator[Check]:
    """A model with a prior on top of picture evidence only: without the prior just that evidence
    remains, and CADE should come close to it (T1, T5)."""
    h, rows, df = run.plant.habits, np.flatnonzero(p.test), _df(p)
    other = h.noise or h.context_weight or h.context_noise
    if other or df < 1 or not (h.image_weight and h.image_noise and h.prior):
        return
    bare = truth.choice_probability(
        h.image_weight * p.image_share, np.full(len(p.gold), h.image_noise), p.present
    )
    best = float(bare[rows, p.gold[rows]].mean())
    for test in (_T1, _T5):
        if e := run.estimate(Task.MCQ, test, "cade", "accuracy"):
            p_value = p_at_most(LOSS - best, -e.value, _standard_error(e, df), df)
            what = f"CADE's accuracy within {LOSS} of the known optimum at {test.value}"
            yield run.check(what, best, e, p_value, headline=test is _T1)


def small_benchmark(
    folder: Path, clusters: int, mcq: int, regression: int, seed: int, progress: Progress
) -> Path:
    """A synthetic benchmark with pictures, built by the regular stages."""
    from sdgbias.benchmark import build
    from sdgbias.raw import synthetic

    synthetic.write_sample(folder / "raw", clusters, seed, progress=progress, workers=1)
    raw, out, counts = folder / "raw", folder / "benchmark", build.Draw(mcq, regression)
    build.build(raw, raw / "indicators", out, counts, progress=progress)
    return out
