"""Studies 'ablation' (Table 2), 'streams' (Table 3) and 'sweep' (Figure 8): the contribution of
each part of CADE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.analysis.tuning import (
    PARAMETERS,
    Problem,
    difference_of,
    estimate,
    format_setting,
    metric_of,
    payoffs,
    problems,
    searched,
    with_streams,
)
from sdgbias.methods import stats
from sdgbias.methods.cade import Divergence, Floats, Ints, Stream
from sdgbias.methods.search import RANGES, Packed, row_payoff
from sdgbias.types import Task, View

#: Table 2 adds the parameters in this order; a step is named after the last one added.
STEPS = ("full", "+alpha", "+lambda", "+beta", "+tau")
#: A gate threshold above every confidence keeps no Full answer; 0 keeps them all.
OPEN, SHUT = 2.0, 0.0
STREAMS: tuple[Stream, ...] = ("img", "full", "full+img")
DIVERGENCES: tuple[Divergence, ...] = ("kl", "js")
POINTS = 41


@dataclass(frozen=True)
class Variant:
    """Payoffs of the test rows under one variant of CADE, and under ``versus``, the variant it is
    compared with (None if there is none)."""

    columns: dict[str, object]
    note: str
    payoff: Floats
    versus: str
    before: Floats | None


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """The three studies. Every search is the paper's, on val; values are on the test split; test
    'all' pools the tests, each with its own settings. ablation: accuracy or mae, and gain, the
    payoff over the previous step. streams: the same, and gain over the Full view's argmax. sweep:
    on val and on test (method). For numbers, Full is the number that its likeliest first digit
    leads to."""
    all_problems, records = problems(run), list[dict[str, object]]()
    for task in Task:
        of_task = [p for p in all_problems if p.task is task]
        variants = []
        for p in of_task:
            packed, steps = p.rows(p.test), _retuned(p, settings)
            variants.append([*_ablation(packed, steps), *_streams(p, packed, settings)])
            records += _sweep(p, packed, steps[-1])
        for p, of_problem in zip(of_task, variants, strict=True):
            for v in of_problem:
                records += _reported(task, v, p.place[p.test], {**p.columns, "note": v.note})
        if len(of_task) > 1:
            place = np.concatenate([p.place[p.test] for p in of_task])
            for same in zip(*variants, strict=True):
                records += _reported(
                    task,
                    _pooled(same),
                    place,
                    {"task": task.value, "note": "each test with its own setting"},
                )
    return table(records)


def _reported(
    task: Task, v: Variant, place: Ints, columns: dict[str, object]
) -> Iterator[dict[str, object]]:
    study = str(v.columns["study"])
    more = {**{k: x for k, x in v.columns.items() if k != "study"}, **columns}
    yield row(study, metric_of(task), estimate(task, v.payoff, place), **more)
    if v.before is not None:
        gain = stats.paired(v.payoff - v.before, place, difference_of(task))
        yield row(study, "gain", gain.estimate, p=gain.p, versus=v.versus, **more)


def _pooled(same: Sequence[Variant]) -> Variant:
    before = [v.before for v in same if v.before is not None]
    payoff = np.concatenate([v.payoff for v in same])
    return Variant(
        same[0].columns, "", payoff, same[0].versus, np.concatenate(before) if before else None
    )


def _retuned(p: Problem, settings: AnalysisSettings) -> list[Floats]:
    """(4,) setting of each step: the parameters added so far are searched in Table G's ranges, the
    others are off."""
    off = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (OPEN, OPEN))
    ranges = ((*RANGES[p.task][:free], *off[free:]) for free in range(1, 5))
    return [np.array([0.0, 0.0, 0.0, SHUT]), *(searched(p, settings, each) for each in ranges)]


def _ablation(packed: Packed, steps: list[Floats]) -> Iterator[Variant]:
    """Parameter retuned: a separate search for each step. zeroed: the last step's setting with the
    later parameters off."""
    final = steps[-1]
    zeroed = [
        steps[0],
        *(np.append(np.where(np.arange(3) < free, final[:3], 0.0), OPEN) for free in (1, 2, 3)),
        final,
    ]
    for mode, chosen in (("retuned", steps), ("zeroed", zeroed)):
        before, versus = None, ""
        for name, setting in zip(STEPS, chosen, strict=True):
            now = payoffs(packed, setting)
            columns: dict[str, object] = {"study": "ablation", "method": name, "parameter": mode}
            yield Variant(columns, _words(setting), now, versus, before)
            before, versus = now, name


def _words(setting: Floats) -> str:
    if setting[3] == SHUT:
        return "argmax of Full"
    return (
        f"image stream, no gate; {format_setting(setting[:3])}"
        if setting[3] == OPEN
        else format_setting(setting)
    )


def _streams(p: Problem, packed: Packed, settings: AnalysisSettings) -> Iterator[Variant]:
    """Table 3: image stream x divergence, each tuned separately; the gate always uses p_full."""
    full = payoffs(packed, np.array([0.0, 0.0, 0.0, SHUT]))
    for stream in STREAMS:
        for divergence in DIVERGENCES:
            other = with_streams(p, stream, divergence)
            setting = searched(other, settings)
            columns: dict[str, object] = {"study": "streams", "method": stream}
            columns["parameter"] = divergence
            after = payoffs(other.rows(other.test), setting)
            yield Variant(columns, format_setting(setting), after, View.FULL.value, full)


def _sweep(p: Problem, packed: Packed, best: Floats) -> Iterator[dict[str, object]]:
    """Figure 8: one parameter over its whole range, the other three at the tuned optimum."""
    val = p.rows(p.val)
    for which, name in enumerate(PARAMETERS):
        low, high = RANGES[p.task][which]
        grid = np.linspace(low, high, POINTS)
        line = np.tile(best, (POINTS, 1))
        line[:, which] = grid
        columns = {
            **p.columns,
            "parameter": name,
            "note": f"{low:g} to {high:g}, {POINTS} points; optimum {format_setting(best)}",
        }
        yield row("sweep", "optimum", float(best[which]), n=len(p.val), **columns)
        for method, some, rows_ in (("val", val, p.val), ("test", packed, p.test)):
            for x, value in zip(
                grid, _estimates(p.task, row_payoff(some, line), p.place[rows_]), strict=True
            ):
                yield row("sweep", metric_of(p.task), value, method=method, x=float(x), **columns)


def _estimates(task: Task, payoff: Floats, place: Ints) -> list[stats.Estimate]:
    """(C, n) payoffs -> the estimate of each of the C rows, computed together."""
    kind: stats.Kind = "share" if task is Task.MCQ else "amount"
    columns = (stats.ValueColumn("", x, kind) for x in (payoff if task is Task.MCQ else -payoff))
    one = np.zeros(len(place), dtype=np.int64)
    return [by_group.estimate(0) for by_group in stats.measure(columns, one, 1, [place])]
