"""Studies 'transfer' and 'few_shot': do CADE's hyper-parameters carry over, and how many val rows
do they need?

All tuning here takes the best of the random draws on all val rows of the source, with the same
draws for every source. The paper's first stage, 20 % of the rows, would leave too few rows for a
small source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.analysis.tuning import (
    Problem,
    display_value,
    draws_of,
    estimate,
    format_setting,
    metric_of,
    payoff_sums,
    problems,
)
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats, Ints
from sdgbias.methods.search import Packed, mean_payoff, row_payoff
from sdgbias.types import Task

STUDY, FEW = "transfer", "few_shot"
ALL, OTHERS = "all", "others"
#: val rows per few-shot size, and how many samples of each; draws for single countries; fewest val
#: and test rows of a country.
SIZES, SAMPLES, COUNTRY_DRAWS, SMALLEST = (50, 200, 1000), 20, 2_000, 50


@dataclass(frozen=True)
class Applied:
    """Payoff (n,) of each test row under one setting, and the setting as text."""

    note: str
    payoff: Floats


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """Between tests, pillars and countries of one run (by; level 'source->target'): accuracy or mae
    of the source's setting on the target's test rows, and loss: payoff of the target's own setting
    minus that, paired by item (positive: transferring costs). Countries are compared with all
    others. few_shot: x val rows, drawn by whole places."""
    found, made = problems(run), list[dict[str, object]]()
    for task in Task:
        mine = [(p, p.rows(p.test)) for p in found if p.task is task]
        made += _between_tests(mine, settings)
        for p, packed in mine:
            made += _between_groups(p, packed, "pillar", settings)
            made += _between_groups(p, packed, "country", settings)
            made += _few_shot(p, packed, settings)
    return table(made)


def between(runs: Sequence[RunData], settings: AnalysisSettings) -> dict[str, pd.DataFrame]:
    """The same between models (by 'model', level 'A->B'): run_id of the model to which a setting is
    applied -> its rows."""
    solved = [{(p.task, p.cell.test): p for p in problems(run)} for run in runs]
    tuned = [{key: _tuned(p, settings) for key, p in mine.items()} for mine in solved]
    out = {}
    for target, mine in zip(runs, solved, strict=True):
        made: list[dict[str, object]] = []
        for key, p in mine.items():
            each = zip(runs, tuned, strict=True)
            sources = {run.model: theirs[key] for run, theirs in each if key in theirs}
            found = _apply(p.rows(p.test), sources)
            place, own, test = p.place[p.test], found[target.model], p.cell.test.value
            made += _compared(p.task, place, own, found, "model", target.model, test=test)
        out[str(target.run["run_id"])] = table(made)
    return out


def _tuned(p: Problem, settings: AnalysisSettings) -> Floats:
    """(4,) the best of the draws on all val rows; the first in case of ties."""
    draws = draws_of(p.task, settings.draws, settings.seed)
    return _best(draws, payoff_sums(p.rows(p.val), draws))


def _best(draws: Floats, sums: Floats) -> Floats:
    return np.asarray(draws[int(np.argmax(sums))])


def _apply(packed: Packed, sources: Mapping[str, Floats], note: str = "") -> dict[str, Applied]:
    payoffs = row_payoff(packed, np.array(list(sources.values())))
    return {
        name: Applied(note + format_setting(setting), payoff)
        for (name, setting), payoff in zip(sources.items(), payoffs, strict=True)
    }


def _compared(
    task: Task,
    place: Ints,
    own: Applied,
    sources: Mapping[str, Applied],
    by: str,
    target: str,
    at: Ints | None = None,
    **more: object,
) -> Iterator[dict[str, object]]:
    """Each source's setting beside the target's own. place (n,) of the test rows; `at`: positions
    of the target's rows among them."""
    which = slice(None) if at is None else at
    for source, applied in sources.items():
        columns = {"task": task.value, "by": by, "level": f"{source}->{target}", **more}
        columns["note"] = applied.note
        value = estimate(task, applied.payoff[which], place[which])
        yield row(STUDY, metric_of(task), value, **columns)
        if applied is not own:
            loss = stats.paired(own.payoff[which] - applied.payoff[which], place[which])
            yield row(STUDY, "loss", loss.estimate, p=loss.p, **columns)


def _between_tests(
    found: Sequence[tuple[Problem, Packed]], settings: AnalysisSettings
) -> Iterator[dict[str, object]]:
    """Every test's setting on every test, and one setting for all of them."""
    if not found:
        return
    draws = draws_of(found[0][0].task, settings.draws, settings.seed)
    sums = {p.cell.test.value: payoff_sums(p.rows(p.val), draws) for p, _ in found}
    tuned = {name: _best(draws, one) for name, one in sums.items()}
    if len(found) > 1:
        tuned[ALL] = _best(draws, np.sum(list(sums.values()), axis=0))
    names = [p.cell.test.value for p, _ in found]
    task, places = found[0][0].task, [p.place[p.test] for p, _ in found]
    applied = [_apply(packed, tuned) for _, packed in found]
    for name, place, each in zip(names, places, applied, strict=True):
        yield from _compared(task, place, each[name], each, "test", name, test=name)
    if len(found) > 1:
        each_own = [each[n].payoff for each, n in zip(applied, names, strict=True)]
        own = Applied("each test with its own setting", np.concatenate(each_own))
        together = np.concatenate([each[ALL].payoff for each in applied])
        one = Applied(format_setting(tuned[ALL]), together)
        yield from _compared(task, np.concatenate(places), own, {"own": own, ALL: one}, "test", ALL)


def _between_groups(
    p: Problem, packed: Packed, by: str, settings: AnalysisSettings
) -> Iterator[dict[str, object]]:
    """Every pillar's setting on every pillar, and the setting tuned on all of them. For each
    country: its own setting there, the setting of all other countries there, and its setting on all
    others. Groups with too few val or test rows are left out."""
    keys = p.cell.items[by].to_numpy(dtype=str)[p.usable]
    val = {str(name): p.val[keys[p.val] == name] for name in np.unique(keys) if name}
    rows = {name: np.flatnonzero(keys[p.test] == name) for name in val}
    groups = [name for name in val if min(len(val[name]), len(rows[name])) >= SMALLEST]
    if len(groups) < 2:
        return
    country = by == "country"
    many = min(settings.draws, COUNTRY_DRAWS) if country else settings.draws
    draws = draws_of(p.task, many, settings.seed)
    sums = {name: payoff_sums(p.rows(val[name]), draws) for name in groups}
    whole = np.sum(list(sums.values()), axis=0)
    tuned = {name: _best(draws, one) for name, one in sums.items()}
    place, test = p.place[p.test], p.cell.test.value
    if not country:
        found = _apply(packed, {**tuned, ALL: _best(draws, whole)})
        for name in groups:
            more = {"pillar": name, "test": test}
            yield from _compared(p.task, place, found[name], found, by, name, rows[name], **more)
        return
    every = np.concatenate([rows[name] for name in groups])
    for name in groups:
        pair = {name: tuned[name], OTHERS: _best(draws, whole - sums[name])}
        found = _apply(packed, pair, f"best of {len(draws):,} draws; ")
        yield from _compared(p.task, place, found[name], found, by, name, rows[name], test=test)
        rest = np.setdiff1d(every, rows[name], assume_unique=True)
        away = {name: found[name]}
        yield from _compared(p.task, place, found[OTHERS], away, by, OTHERS, rest, test=test)


def _few_shot(
    p: Problem, packed: Packed, settings: AnalysisSettings
) -> Iterator[dict[str, object]]:
    """Test accuracy or MAE, and loss against all val rows, of settings tuned on x val rows: mean
    and 95 % range over samples."""
    draws = draws_of(p.task, settings.draws, settings.seed)
    best = _tuned(p, settings)
    full = row_payoff(packed, best[None])[0]
    note = f"all {len(p.val):,} val rows; {format_setting(best)}"
    columns = {**p.columns, "x": float(len(p.val)), "level": ALL, "note": note}
    yield row(FEW, metric_of(p.task), estimate(p.task, full, p.place[p.test]), **columns)
    rng = np.random.default_rng([settings.seed, 4])
    for size in SIZES:
        if size >= len(p.val):
            continue
        samples = (p.rows(_sample(p, size, rng)) for _ in range(SAMPLES))
        chosen = np.array([_best(draws, mean_payoff(rows, draws)) for rows in samples])
        values = mean_payoff(packed, np.vstack([best, chosen]))
        shown_each = np.array([display_value(p.task, v) for v in values[1:]])
        note = f"{SAMPLES} samples of whole places; interval: their 2.5 % to 97.5 %"
        for metric, x in ((metric_of(p.task), shown_each), ("loss", values[0] - values[1:])):
            low, high = np.quantile(x, [0.025, 0.975])
            spread = stats.Estimate(float(x.mean()), len(p.test), float(low), float(high))
            yield row(FEW, metric, spread, x=float(size), level=str(size), **p.columns, note=note)


def _sample(p: Problem, size: int, rng: np.random.Generator) -> Ints:
    """`size` val rows, place after place in random order; the last place may be cut short."""
    place = p.place[p.val]
    turn = rng.permutation(int(place.max()) + 1)[place]
    return np.sort(p.val[np.argsort(turn, kind="stable")[:size]])
