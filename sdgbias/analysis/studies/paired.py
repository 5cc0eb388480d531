"""Study 'paired': CADE against each view on the same questions, with the minimum detectable gain.
Also comparisons between models and between nights.

Two standard errors are reported: rows clustered by place (by = 'cluster'), the project's default,
and by country (by = 'country'), which also covers dependence between places of one country (places
are nested in countries). McNemar's counts are tested with one vote per place, and shown in
addition, not instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.errors import UsageError
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats
from sdgbias.types import Task, View

STUDY = "paired"
SAME = ["item_id", "gold", "gold_value", "question", "options", "evidence"]


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """CADE against Full and every other view, by test: gain, its two intervals, MDE, McNemar."""
    made: list[dict[str, object]] = []
    for task in Task:
        for o in answers.pools(run, task):
            if CADE not in o.hit:
                continue
            for view in (
                v for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY) if v.value in o.hit
            ):
                made += _versus(o, view.value)
    return _finish(made)


def between_models(runs: Sequence[RunData]) -> pd.DataFrame:
    """Every pair of models on their common questions, and the leaderboard's groups per test.

    Rows of study 'between_models': gain of the first model over the second (level 'A minus B'), for
    Full and for CADE. Study 'leaderboard': metric 'group', value accuracy (numbers: interval
    accuracy), note the letters; models that share a letter can't be told apart at 5 % (pairs by
    clustered t tests, Holm). Raises UsageError if two runs are of the same model.
    """
    names = [run.model for run in runs]
    if len(set(names)) < len(names):
        raise UsageError(
            f"model {next(n for n in names if names.count(n) > 1)!r} is given twice; compare its"
            " nights with between_nights"
        )
    made: list[dict[str, object]] = []
    groups: list[dict[str, object]] = []
    for task in Task:
        found = {run.model: {o.test: o for o in answers.pools(run, task)} for run in runs}
        for one, other in combinations(names, 2):
            for test in found[one]:
                if test in found[other]:
                    made += _pair(
                        found[one][test],
                        found[other][test],
                        f"{one} minus {other}",
                        "between_models",
                        "models",
                    )
        for test in sorted({test for tests in found.values() for test in tests}):
            groups += _leaderboard(
                {name: tests[test] for name, tests in found.items() if test in tests}
            )
    return pd.concat([_finish(made), table(groups)], ignore_index=True)


def between_nights(old: RunData, new: RunData) -> pd.DataFrame:
    """The same model before and after, on the questions unchanged between the two runs; rows of
    study 'between_nights'.

    The note counts the excluded questions. Raises UsageError if the runs are of different models.
    """
    if old.model != new.model:
        raise UsageError(
            f"runs of {old.model!r} and {new.model!r}: two models, not two nights; compare them"
            " with between_models"
        )
    made: list[dict[str, object]] = []
    for task in Task:
        before = {o.test: o for o in answers.pools(old, task)}
        for o in answers.pools(new, task):
            if o.test in before:
                made += _pair(o, before[o.test], "new minus old", "between_nights", "nights")
    return _finish(made)


def _finish(made: list[dict[str, object]]) -> pd.DataFrame:
    for metric in ("gain", "mcnemar"):
        for by in sorted({str(r["by"]) for r in made}):
            answers.adjust([r for r in made if str(r["metric"]).endswith(metric) and r["by"] == by])
    return table(made)


def _versus(o: TaskOutcome, view: str) -> list[dict[str, object]]:
    difference, level = o.hit[CADE] - o.hit[view], f"{CADE} minus {view}"
    unit = _unit(o, view, difference)
    gain = "accuracy_gain" if o.task is Task.MCQ else "interval_accuracy_gain"
    common: dict[str, object] = {
        "task": o.task.value,
        "test": o.test,
        "method": CADE,
        "level": level,
    }
    made = _tested(STUDY, gain, difference, unit, {**common, "by": "cluster"})
    by_place, note = stats.two_way(difference, o.place, o.country)
    test = stats.paired(difference, o.country)
    made.append(row(STUDY, gain, by_place, **common, by="country", p=test.p, note=note))
    mde = stats.Estimate(
        stats.minimum_detectable(test.se, test.df), test.estimate.n, float("nan"), float("nan")
    )
    return [*made, row(STUDY, "mde", mde, **common, by="country", note=note)]


def _unit(o: TaskOutcome, view: str, difference: Floats) -> np.ndarray:
    """What the differences are clustered by: places, or the prompts of a view that many places
    share, where that claims less."""
    if not answers.image_free(view, o.test):
        return o.place
    units = [o.place, answers.prompts(o.items)]
    each = [stats.mean(difference, unit) for unit in units]
    return units[each.index(stats.widest(each))]


def _tested(
    study: str, metric: str, difference: Floats, place: np.ndarray, columns: dict[str, object]
) -> list[dict[str, object]]:
    """Mean difference with clustered interval and p, its minimum detectable effect, and McNemar's
    counts and p."""
    test = stats.paired(difference, place)
    up, down = stats.net_signs(difference, place)
    fixed, broken = int((difference > 0).sum()), int((difference < 0).sum())
    mde = stats.Estimate(
        stats.minimum_detectable(test.se, test.df), test.estimate.n, float("nan"), float("nan")
    )
    return [
        row(study, metric, test.estimate, **columns, p=test.p),
        row(study, "mde", mde, **columns, note="two-sided 5 %, power 80 %"),
        row(
            study,
            "mcnemar",
            test.estimate,
            **columns,
            p=stats.sign_test(up, down),
            note=f"{fixed} better, {broken} worse; by place {up} to {down}",
        ),
    ]


def _common(one: TaskOutcome, other: TaskOutcome) -> tuple[np.ndarray, np.ndarray, int]:
    """Positions of the common questions (same wording and same gold), and how many of either run
    were left out."""
    if one.items is other.items or one.items[SAME].equals(other.items[SAME]):
        return np.arange(len(one.items)), np.arange(len(one.items)), 0

    def key(o: TaskOutcome) -> pd.Index:
        test = (
            np.repeat("", len(o.items))
            if o.test != "all"
            else (o.items.groupby("item_id").cumcount().astype(str)).to_numpy()
        )
        frame = o.items[SAME].fillna({"gold_value": 0.0}).assign(test=test)
        return pd.Index(pd.util.hash_pandas_object(frame, index=False))

    a, b = key(one), key(other)
    mine = np.flatnonzero(a.isin(b))
    theirs = b.get_indexer(a[mine])
    return mine, theirs, len(a) + len(b) - 2 * len(mine)


def _pair(
    one: TaskOutcome, other: TaskOutcome, level: str, study: str, by: str
) -> list[dict[str, object]]:
    mine, theirs, left = _common(one, other)
    made = []
    for method in (View.FULL.value, CADE):
        if len(mine) and method in one.hit and method in other.hit:
            gain = "accuracy_gain" if one.task is Task.MCQ else "interval_accuracy_gain"
            columns: dict[str, object] = {
                "task": one.task.value,
                "test": one.test,
                "method": method,
                "by": by,
                "level": level,
            }
            found = _tested(
                study,
                gain,
                one.hit[method][mine] - other.hit[method][theirs],
                one.place[mine],
                columns,
            )
            found[0]["note"] = f"{left} rows not in both" if left else ""
            made += found
    return made


def _leaderboard(found: dict[str, TaskOutcome]) -> list[dict[str, object]]:
    """Letters per method over the questions common to all these models."""
    made = []
    first = next(iter(found.values()))
    at = {next(iter(found)): np.arange(len(first.items))}
    for name, o in list(found.items())[1:]:
        mine, theirs, _ = _common(first, o)
        at[name] = np.full(len(first.items), -1)
        at[name][mine] = theirs
    shared = np.all([where >= 0 for where in at.values()], axis=0)
    for method in (View.FULL.value, CADE):
        models = [name for name, o in found.items() if method in o.hit]
        if not models or not shared.any():
            continue
        hits = np.stack([found[name].hit[method][at[name][shared]] for name in models])
        said, _, _ = stats.leaderboard(hits, first.place[shared])
        for name, letters, hit in zip(models, said, hits, strict=True):
            estimate = stats.share(hit, first.place[shared])
            made.append(
                row(
                    "leaderboard",
                    "group",
                    estimate,
                    task=first.task.value,
                    test=first.test,
                    method=method,
                    by="model",
                    level=name,
                    note=letters,
                )
            )
    return made
