"""CADE's hyper-parameters: what each part contributes, 'ablation' (Table 2), 'streams' (Table 3)
and 'sweep' (Figure 8), and what a better search gains, 'search'.

Every search sees val rows alone; values are on the test split. Of numbers, Full is the number that
its likeliest first digit leads to. Test 'all' pools the tests, each with its own setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sdgbias.analysis.calls import StudyRow, Values
from sdgbias.analysis.outcomes import TaskOutcome, pooled
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.analysis.run import RunData, TaskCell, once
from sdgbias.methods import search, stats
from sdgbias.methods.cade import Floats, Form, Ints, Stream, Streams, usable
from sdgbias.methods.search import RANGES, Ranges, SearchSettings, take
from sdgbias.types import CadeParams, Task

PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")
#: Table 2 adds the parameters in this order; a step is named after the last one added.
STEPS = ("full", "+alpha", "+lambda", "+beta", "+tau")
#: A gate threshold above every confidence keeps no Full answer; 0 keeps them all.
OPEN, SHUT = 2.0, 0.0
FULL_ARGMAX = np.array([0.0, 0.0, 0.0, SHUT])
STREAMS: tuple[Stream, ...] = ("img", "full", "full+img")
#: What the streams are compared with: the Full view, by another name than that of its stream.
BASELINE = "argmax of Full"
#: Points of a sweep, folds of the cross-validation over places.
POINTS, FOLDS = 41, 5
SEARCHES = ("random", "exact", "exact_centred")


@dataclass(frozen=True)
class Problem:
    """One task under one context test. usable: indices of the cell's rows with an image view and a
    known payoff for every candidate; s, payoff and place (n,) cover only these rows. val, test:
    indices into them. place: cluster codes, the same in all problems of a run."""

    cell: TaskCell
    usable: Ints
    s: Streams
    payoff: Floats
    place: Ints
    val: Ints
    test: Ints

    @property
    def metric(self) -> str:
        return "accuracy" if self.cell.task is Task.MCQ else "mae"

    def earned(self, setting: Floats, which: Ints) -> Floats:
        """(n,) payoff of some rows under one setting."""
        packed = search.pack(take(self.s, which), self.payoff[which])
        return search.row_payoff(packed, setting[None])[0]

    def searched(self, settings: AnalysisSettings, ranges: Ranges | None = None) -> Floats:
        """(4,) the setting that the paper's search finds on the val rows."""
        how = SearchSettings(settings.draws, settings.seed, ranges)
        rows = take(self.s, self.val), self.payoff[self.val]
        return as_vector(search.random_search(*rows, self.cell.task, how).params)

    def estimates(self, payoffs: Sequence[Floats], which: Ints) -> list[stats.Estimate]:
        """Accuracy or MAE of some rows from each of several payoffs (n,)."""
        mcq = self.cell.task is Task.MCQ
        kind: stats.Kind = "share" if mcq else "amount"
        columns = (stats.ValueColumn("", x if mcq else -x, kind) for x in payoffs)
        one, place = np.zeros(len(which), dtype=np.int64), self.place[which]
        return [table.estimate() for table in stats.measure(columns, one, 1, [place])]

    def outcome(
        self,
        payoffs: Mapping[str, Floats],
        notes: Mapping[str, str],
        at: Mapping[str, object] = {},
    ) -> TaskOutcome:
        """The test rows' payoffs by method as answers: hit is what each earned."""
        errors = {} if self.cell.task is Task.MCQ else {m: -x for m, x in payoffs.items()}
        return TaskOutcome(
            self.cell.task,
            self.cell.test.value,
            self.cell.items.iloc[self.usable[self.test]].reset_index(drop=True),
            self.place[self.test],
            choice=dict.fromkeys(payoffs, self.test),
            hit=payoffs,
            error=errors,
            notes=notes,
            at=at,
        )


def problems(run: RunData) -> list[Problem]:
    """Every cell of a run that has rows for tuning and for reporting, in the order of tasks and
    tests."""
    return once(run, problems, lambda: list(_problems([*run.mcq, *run.regression])))


def _problems(cells: Sequence[TaskCell]) -> Iterator[Problem]:
    names = [name for cell in cells for name in cell.items["cluster_id"]]
    code = pd.factorize(np.array(names, dtype=object), sort=True)[0].astype(np.int64)
    places = np.split(code, np.cumsum([len(cell.items) for cell in cells])[:-1])
    for cell, place in zip(cells, places, strict=False):
        s = cell.streams()
        rows = np.flatnonzero(usable(s.valid, cell.payoff))
        val, test = np.flatnonzero(cell.val[rows]), np.flatnonzero(cell.test_rows[rows])
        if val.size and test.size:
            of_rows = take(s, rows), cell.payoff[rows], place[rows]
            yield Problem(cell, rows, *of_rows, val, test)


def as_vector(params: CadeParams) -> Floats:
    """(4,) alpha, lambda_kl, beta, tau."""
    return np.array([params.alpha, params.lambda_kl, params.beta, params.tau])


def listed(setting: Iterable[float]) -> str:
    """A setting, or its first parameters, as text for a note."""
    return ", ".join(
        f"{name} {value:.4g}" for name, value in zip(PARAMETERS, setting, strict=False)
    )


def gain(o: TaskOutcome, method: str) -> Values:
    """What an answer earned: 1 or 0 for a letter, minus the error of a number."""
    return {"gain": o.hit[method]}


# ----------------------------------------------------------------------
# the contribution of each part


def _with_pools(
    run: RunData, of_problem: Callable[[Problem], Sequence[TaskOutcome]]
) -> Iterator[TaskOutcome]:
    """The outcomes of each problem, and each pooled over the tests of its task, where there are
    several."""
    for task in Task:
        outcomes = [of_problem(p) for p in problems(run) if p.cell.task is task]
        yield from (o for of_test in outcomes for o in of_test)
        for same in zip(*outcomes, strict=True) if len(outcomes) > 1 else ():
            notes = dict.fromkeys(same[0].notes, "each test with its own setting")
            yield replace(pooled(same), notes=notes)


def retuned(p: Problem, settings: AnalysisSettings) -> list[Floats]:
    """(4,) setting of each step: the parameters added so far are searched in Table G's ranges, the
    others are off."""
    off = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (OPEN, OPEN))
    ranges = [(*RANGES[p.cell.task][:free], *off[free:]) for free in range(1, 5)]

    def search_each() -> list[Floats]:
        return [FULL_ARGMAX, *(p.searched(settings, each) for each in ranges)]

    return once(p, (retuned, settings), search_each)


def steps(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome]:
    """Parameter retuned: a separate search for each step. zeroed: the last step's setting with the
    later parameters off."""

    def of_problem(p: Problem) -> list[TaskOutcome]:
        first, *_, final = searched = retuned(p, settings)
        some = (
            np.append(np.where(np.arange(3) < free, final[:3], 0.0), OPEN) for free in (1, 2, 3)
        )
        outcomes = []
        for mode, of_mode in (("retuned", searched), ("zeroed", [first, *some, final])):
            by_step = dict(zip(STEPS, of_mode, strict=True))
            payoffs = {name: p.earned(setting, p.test) for name, setting in by_step.items()}
            notes = {name: _words(setting) for name, setting in by_step.items()}
            outcomes.append(p.outcome(payoffs, notes, {"parameter": mode}))
        return outcomes

    return _with_pools(run, of_problem)


def _words(setting: Floats) -> str:
    if setting[3] == SHUT:
        return "argmax of Full"
    return (
        f"image stream, no gate; {listed(setting[:3])}" if setting[3] == OPEN else listed(setting)
    )


def streams(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome]:
    """Table 3: image stream x divergence (parameter), each tuned separately, beside the Full view;
    the gate always uses p_full. Neither changes which rows are usable."""

    def of_problem(p: Problem) -> list[TaskOutcome]:
        outcomes = []
        for divergence in ("kl", "js"):
            payoffs, notes = {BASELINE: p.earned(FULL_ARGMAX, p.test)}, dict[str, str]()
            for stream in STREAMS:
                s = p.cell.streams(Form(stream=stream, divergence=divergence))
                other = replace(p, s=take(s, p.usable))
                setting = other.searched(settings)
                payoffs[stream], notes[stream] = other.earned(setting, p.test), listed(setting)
            outcomes.append(p.outcome(payoffs, notes, {"parameter": divergence}))
        return outcomes

    return _with_pools(run, of_problem)


def sweep(run: RunData, settings: AnalysisSettings) -> Iterator[StudyRow]:
    """Figure 8: one parameter over its whole range, the other three at the tuned optimum, on val
    and on test (method)."""
    for p in problems(run):
        best = retuned(p, settings)[-1]
        packed = {"val": p.val, "test": p.test}
        rows = {m: search.pack(take(p.s, at), p.payoff[at]) for m, at in packed.items()}
        for which, (name, ends) in enumerate(zip(PARAMETERS, RANGES[p.cell.task], strict=True)):
            grid, line = np.linspace(*ends, POINTS), np.tile(best, (POINTS, 1))
            line[:, which] = grid
            note = f"{ends[0]:g} to {ends[1]:g}, {POINTS} points; optimum {listed(best)}"
            columns = {**_at(p), "parameter": name, "note": note}
            yield row("sweep", "optimum", float(best[which]), n=len(p.val), **columns)
            for method, at in packed.items():
                values = p.estimates([*search.row_payoff(rows[method], line)], at)
                for x, e in zip(grid, values, strict=True):
                    yield row("sweep", p.metric, e, method=method, x=float(x), **columns)


def _at(p: Problem) -> dict[str, object]:
    return {"task": p.cell.task.value, "test": p.cell.test.value}


# ----------------------------------------------------------------------
# searches


def searches(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    """The test rows under what each of `SEARCHES` finds (random: the paper's protocol); on val the
    same metric (val_...) and the four parameters. For exact_centred also held_out_...
    (cross-validation over places) and optimism (val minus held out)."""
    for p in problems(run):
        rows = take(p.s, p.val), p.payoff[p.val]
        how = SearchSettings(settings.draws, settings.seed)
        paper = search.random_search(*rows, p.cell.task, how)
        best = search.exact_search(*rows, p.cell.task, how)
        drawn = f"{how.draws:,} draws on {paper.n_search:,} val rows"
        notes = (
            f"{drawn}, the best 100 on all {paper.n_val:,}",
            "exact line searches, not centred",
            "exact line searches, centre of the plateau",
        )
        vectors = map(as_vector, (paper.params, best.peak, best.params))
        settings_of = dict(zip(SEARCHES, vectors, strict=True))
        words = {
            m: f"{note}; {listed(settings_of[m])}" for m, note in zip(SEARCHES, notes, strict=True)
        }
        yield p.outcome({m: p.earned(settings_of[m], p.test) for m in SEARCHES}, words)
        for method, setting in settings_of.items():
            columns = {**_at(p), "method": method, "note": words[method]}
            (tuned_on,) = p.estimates([p.earned(setting, p.val)], p.val)
            yield row("search", f"val_{p.metric}", tuned_on, **columns)
            for name, x in zip(PARAMETERS, setting, strict=True):
                yield row("search", name, float(x), n=len(p.val), **columns)
        held = search.held_out(*rows, p.cell.task, p.place[p.val], how, folds=FOLDS)
        if np.isfinite(held).all():  # at least two places
            columns, folds = {**_at(p), "method": SEARCHES[-1]}, f"{FOLDS} folds over places"
            (honest,) = p.estimates([held], p.val)
            yield row("search", f"held_out_{p.metric}", honest, **columns, note=folds)
            kind: stats.Kind = "difference" if p.cell.task is Task.MCQ else "mean"
            gap = stats.mean(
                p.earned(settings_of[SEARCHES[-1]], p.val) - held, p.place[p.val], kind
            )
            note = f"payoff tuned on all val rows minus held out; {folds}"
            yield row("search", "optimism", gap, **columns, note=note)
