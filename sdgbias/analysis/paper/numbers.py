"""The numbers of the tables by study, in one form: those that the results hold, and those that
follow from them (means over the tests, relative changes, letters, sweeps, costs).

Columns: run_id, ``KEY`` without study, value, n, ci_low, ci_high, and status: why there is no
value, '' where it isn't known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.analysis.paper.results import KEY, PaperResults
from sdgbias.methods import stats
from sdgbias.methods.stats import SMALLEST
from sdgbias.scoring.timing import DECODE, FORCE, SCORE
from sdgbias.suites.rows import FEWER, HEADLINE
from sdgbias.types import LETTERS, NEEDS_PICTURES, NEEDS_SCORES, TESTS, VIEWS, Task

MCQ_TESTS = [test.value for test in TESTS[Task.MCQ]]
_NAMES = [name for name in KEY if name != "study"]
_VALUES = ["value", "n", "ci_low", "ci_high"]
COLUMNS = ["run_id", *_NAMES, *_VALUES, "status"]
TOO_FEW = f"a group of fewer than {SMALLEST} pictures has no value"


def of_study(e: PaperResults, study: str) -> pd.DataFrame:
    """All numbers of a study of the chosen runs; '' is the headline."""
    found: pd.DataFrame = e.kept(("numbers", study), lambda: _SOURCES.get(study, _stored)(e, study))
    return found


def _complete(frame: pd.DataFrame, **same: Any) -> pd.DataFrame:
    """The frame with every column of ``COLUMNS``: ``same`` in all rows, else those of ``KEY`` and
    no interval. The first of rows with one key stays."""
    given: dict[str, Any] = {
        **KEY,
        "n": np.nan,
        "ci_low": np.nan,
        "ci_high": np.nan,
        "status": "",
        **same,
    }
    missing = {name: value for name, value in given.items() if name not in frame or name in same}
    return frame.assign(**missing)[COLUMNS].drop_duplicates(["run_id", *_NAMES])


def _stored(e: PaperResults, study: str) -> pd.DataFrame:
    """``versus`` tells apart the numbers of a study that compares with several views alone."""
    frame = _with_status(e, study)
    frame = frame[frame["x"].isna()]
    frame = frame.assign(n=frame["n"].where(frame["n"] > 0))
    return _complete(frame if study == "directions" else frame.assign(versus=""))


def _with_status(e: PaperResults, study: str) -> pd.DataFrame:
    """The stored numbers of a study, with the status of those that have a reason in place of a
    value."""
    stored = e.study(study)
    reasons = stored["missing_reason"]
    status = ("not in store: " + reasons.mask(reasons == FEWER, TOO_FEW)).where(reasons != "", "")
    # of what the model can't have nothing was counted; of a group that is too small its rows were
    unasked = reasons.isin([NEEDS_PICTURES, NEEDS_SCORES])
    return stored.assign(status=status, n=stored["n"].mask(unasked))


def _headline(e: PaperResults, study: str) -> pd.DataFrame:
    stored = _complete(_with_status(e, HEADLINE), versus="", parameter="")
    whole = stored[(stored["pillar"] == "all") & (stored["indicator"] == "all")]
    whole = whole[whole["value"].notna()]
    mcq = whole[(whole["task"] == "mcq") & whole["metric"].isin(["accuracy", "accuracy_gain"])]
    means = _means_over_tests(mcq, pooled=True)
    accuracy = means[means["metric"] == "accuracy"].pivot(
        index="run_id", columns="method", values="value"
    )
    accuracy = accuracy.reindex(columns=["full", "cade"])
    ratio = (accuracy["cade"] - accuracy["full"]) / accuracy["full"].replace(0, np.nan)
    gains = _complete(
        ratio.rename("value").reset_index(), test="mean", method="cade", metric="relative_gain"
    )
    changes = _regression_changes(e, whole[whole["task"] == "regression"])
    return pd.concat([stored, means, gains, changes], ignore_index=True)


def _means_over_tests(rows: pd.DataFrame, pooled: bool = False) -> pd.DataFrame:
    """Means over T1 to T5, as test 'mean'; without a value if one is missing. ``pooled``: with the
    interval of the pooled answers, but only where pool and mean agree, i.e. where every test has
    the same questions; else without an interval, n summed."""
    same = ["run_id", *(name for name in _NAMES if name != "test")]
    values, n = (
        rows.pivot(index=same, columns="test", values=name).reindex(columns=MCQ_TESTS)
        for name in ("value", "n")
    )
    mean = values.mean(axis=1, skipna=False)
    made = pd.DataFrame({"value": mean, "n": n.sum(axis=1)})
    if pooled:
        pool = rows[rows["test"] == "all"].set_index(same)[_VALUES].reindex(mean.index)
        agree = (pool["value"] - mean).abs() < 1e-9
        made = pool.where(agree).assign(value=mean, n=pool["n"])
    return _complete(made.reset_index(), test="mean")


def _regression_changes(e: PaperResults, rows: pd.DataFrame) -> pd.DataFrame:
    """CADE's change of the error and of interval accuracy, relative to the Original; the change of
    interval accuracy paired, where the run was analysed."""
    paired = e.study("regression").query(
        "metric == 'interval_accuracy_change' and indicator == 'all'"
    )
    made = [_complete(paired, metric="interval_accuracy_gain", versus="")]
    values = rows.pivot(index=["run_id", "test", "metric"], columns="method", values="value")
    values = values.reindex(columns=["full", "cade"]).reset_index()
    change = values["cade"] - values["full"]
    relative = change / values["full"].replace(0, np.nan)
    for metric, name, value in (
        ("mae", "relative_mae_change", relative),
        ("interval_accuracy", "interval_accuracy_gain", change),
        ("interval_accuracy", "relative_interval_gain", relative),
    ):
        frame = values.assign(value=value)[values["metric"] == metric]
        made.append(_complete(frame, task="regression", method="cade", metric=name))
    return pd.concat(made).drop_duplicates(["run_id", *_NAMES])


def _with_headline(e: PaperResults, study: str) -> pd.DataFrame:
    """Debiasing methods beside the views and CADE."""
    return _complete(pd.concat([of_study(e, ""), _stored(e, study)]))


def _ablation(e: PaperResults, study: str) -> pd.DataFrame:
    """The steps of the ablation; the first is the plain accuracy, where it wasn't analysed."""
    headline = of_study(e, "")
    plain = headline[(headline["metric"] == "accuracy") & (headline["method"] == "full")]
    first = [_complete(plain, parameter=mode) for mode in ("retuned", "zeroed")]
    return _complete(pd.concat([_stored(e, study).dropna(subset="value"), *first]))


def _streams(e: PaperResults, study: str) -> pd.DataFrame:
    stored = _stored(e, study)
    return pd.concat([stored, _means_over_tests(stored[stored["pillar"] == "all"])])


def _leans(e: PaperResults, study: str) -> pd.DataFrame:
    """Which way answers lean: over all wordings of a run's questions, where it was asked several,
    else of the plain question. A number of prompts has no interval."""
    worded = e.study("wordings").query("metric != 'not_run'")["run_id"].unique()
    plain = of_study(e, "")
    made = pd.concat([_stored(e, "wordings"), plain[~plain["run_id"].isin(worded)]])
    prompts = made["metric"] == "distinct_prompts"
    return made.assign(n=made["n"].mask(prompts), ci_low=made["ci_low"].mask(prompts, np.nan))


def _letters(e: PaperResults, study: str) -> pd.DataFrame:
    """Shares of answers that are A, B or C (metric), clustered by place."""
    each = ", ".join(f"count_if(pred = '{letter}')::BIGINT AS {letter}" for letter in LETTERS)
    places = e.ask(
        f"""SELECT run_id, method, test, coalesce(cluster_id, '') AS place, count(*)::BIGINT AS n,
            {each} FROM answers WHERE list_contains($runs, run_id) AND task = 'mcq' AND
            split = 'test' GROUP BY ALL ORDER BY ALL"""
    )
    rows = []
    for pooled in (False, True):
        same = ["run_id", "method", *([] if pooled else ["test"])]
        for key, part in places.groupby(same):
            at = dict(zip(same, key, strict=True))
            rows += [at | {"metric": a, **_share(part, a)} for a in LETTERS]
    return _complete(
        pd.DataFrame(rows, columns=["run_id", "method", "test", "metric", *_VALUES]).fillna(
            {"test": "all"}
        )
    )


def _share(counts: pd.DataFrame, letter: str) -> dict[str, float]:
    hits, n = counts[letter].to_numpy(), counts["n"].to_numpy()
    place = pd.factorize(counts["place"])[0]
    values = np.repeat([1.0, 0.0], [hits.sum(), (n - hits).sum()])
    clusters = np.concatenate([np.repeat(place, hits), np.repeat(place, n - hits)])
    found = stats.share(values, clusters)
    return dict(zip(_VALUES, (found.value, found.n, found.low, found.high), strict=True))


#: How far below the best value of a curve its plateau may lie.
PLATEAU = 0.005
NO_PLATEAU = "not in store: none: the curve falls again before the end of the range"


def plateau(curve: pd.Series) -> float:
    """The smallest x (index) from which a curve never falls more than PLATEAU below its best value;
    NaN where fewer than two points do so."""
    low = curve.index[curve < curve.max() - PLATEAU]
    flat = curve.index if not len(low) else curve.index[curve.index > low.max()]
    return float(flat.min()) if len(flat) > 1 else np.nan


def _sweep(e: PaperResults, study: str) -> pd.DataFrame:
    """What Figure 8 shows of each curve: the tuned value, the best on val (the smallest of several)
    and where its plateau begins; the accuracy there, the lowest and the highest on test."""
    frame = e.study(study)
    tuned = _stored(e, study).query("metric == 'optimum'")
    rows: list[dict[Any, Any]] = []
    points = frame[frame["metric"] == "accuracy"].sort_values("x")
    for (run, test, parameter), part in points.groupby(["run_id", "test", "parameter"]):
        val, there = (part[part["method"] == split] for split in ("val", "test"))
        if val.empty or there.empty:
            continue
        at: dict[Any, Any] = {"run_id": run, "test": test, "parameter": parameter}
        at["method"] = ""
        best = float(val["x"].iloc[int(val["value"].argmax())])
        flat = plateau(val.set_index("x")["value"])
        rows += [
            at | {"metric": "best_on_val", "value": best},
            at | {"metric": "plateau_from", "value": flat, "status": NO_PLATEAU},
        ]
        ends = there.sort_values("value", kind="stable")
        shown = {"lowest": ends.iloc[:1], "highest": ends.iloc[-1:]}
        shown["test_there"] = there[there["x"] == best]
        mine = (tuned["run_id"] == run) & (tuned["test"] == test)
        shown["tuned"] = tuned[mine & (tuned["parameter"] == parameter)]
        for metric, points_there in shown.items():
            rows += [
                at | {"metric": metric} | row for row in points_there[_VALUES].to_dict("records")
            ]
    columns = ["run_id", "test", "parameter", "method", "metric", *_VALUES, "status"]
    return _complete(pd.DataFrame(rows, columns=columns).fillna({"status": ""}))


def _costs(e: PaperResults, study: str) -> pd.DataFrame:
    """What the four views cost (Tables K and L), from the seconds that a run's batches took."""
    views = ", ".join(f"'{view}'" for view in VIEWS)
    times = e.ask(
        f"""FROM timings WHERE list_contains($runs, run_id) AND "view" IN ({views}) ORDER BY ALL"""
    )
    counted = e.ask(
        f"""SELECT run_id, "view", sum(n_tokens)::DOUBLE AS tokens, count(*) AS n FROM scores WHERE
            list_contains($runs, run_id) AND "view" IN ({views}) AND n_tokens > 0 GROUP BY ALL"""
    )
    rows: list[Mapping[str, object]] = []
    for run in e.runs:
        lacks = set(e.missing(run).values())
        mine = times[times["run_id"] == run.run_id]
        for task in ("mcq", "regression"):
            part = mine[mine["task"] == task]
            if mine.empty or not part.empty:  # else the benchmark has no such questions
                rows += _by_question(run, lacks, part, task, timed=len(mine) > 0)
        tokens = counted[counted["run_id"] == run.run_id].set_index("view")
        rows += _by_view(run, lacks, mine[mine["phase"] == SCORE], tokens, timed=len(mine) > 0)
    columns = ["run_id", "task", "test", "method", "metric", "value", "n", "status"]
    frame = pd.DataFrame(rows, columns=columns).fillna({"task": "mcq", "test": "all"})
    return _complete(frame.assign(n=frame["n"].where(frame["value"].notna())))


def _missing(lacks: set[str], rows: pd.DataFrame, timed: bool, views: int) -> str:
    """Why these rows give no time, '' if they do. ``views``: how many views they need."""
    if not timed:
        return "not in store: the run is of a version that kept no times"
    if NEEDS_PICTURES in lacks and views > len(set(rows["view"])):
        return NEEDS_PICTURES
    if views > len(set(rows["view"])):
        return (
            NEEDS_SCORES if NEEDS_SCORES in lacks else "not in store: not all views have an answer"
        )
    if untimed := int(rows["untimed"].sum()):
        some = f"{untimed:,} of {int(rows['prompts'].sum()):,} prompts"
        return f"not in store: {some} came from the cache of a version that kept no times"
    return ""


def _by_question(
    run: Any, lacks: set[str], rows: pd.DataFrame, task: str, timed: bool
) -> list[Mapping[str, object]]:
    """Seconds of plain inference under Full (the first token's scores of a multiple-choice
    question, where the model gives any, else the free answer), and of CADE (the scores of the four
    views and, for a number, the answers of Full)."""
    phase, view = rows["phase"], rows["view"]
    scored = task == "mcq" and NEEDS_SCORES not in lacks
    full = rows[(view == "full") & (phase == (SCORE if scored else DECODE))]
    decoded = (task == "regression") & (view == "full") & phase.isin([DECODE, FORCE])
    cade = rows[(phase == SCORE) | decoded]
    why = _missing(lacks, full, timed, 1)
    four = _missing(lacks, cade[cade["phase"] == SCORE], timed, len(VIEWS)) or why
    n, plain = int(full["cells"].sum()), float(full["seconds_alone"].sum())
    made: list[Mapping[str, object]] = []
    for method, total, reason in (
        ("full", plain, why),
        ("cade", float(cade["seconds_measured"].sum()), four),
    ):
        known = not reason and n > 0
        at = {"run_id": run.run_id, "task": task, "method": method, "n": n, "status": reason}
        each = total / n if known else np.nan
        ratio = total / plain if known and plain else np.nan
        made.append(at | {"metric": "seconds_per_question", "value": each})
        made.append(at | {"metric": "relative_cost", "value": ratio})
    return made


def _by_view(
    run: Any, lacks: set[str], rows: pd.DataFrame, tokens: pd.DataFrame, timed: bool
) -> list[Mapping[str, object]]:
    """Each view's share of the seconds of scoring and of the prompts' tokens."""
    why = NEEDS_SCORES if NEEDS_SCORES in lacks else _missing(lacks, rows, timed, 0)
    spent = rows.groupby("view")[["seconds_measured", "prompts"]].sum()
    total = float(spent["seconds_measured"].sum())
    made: list[Mapping[str, object]] = []
    for view in VIEWS:
        absent = NEEDS_PICTURES in lacks and view not in spent.index
        reason = NEEDS_PICTURES if absent and timed else why
        known = not reason and total > 0 and view in spent.index
        seconds, n = map(float, spent.loc[view] if known else (np.nan, 0))
        asked = int(tokens["n"].get(view, 0))
        share = tokens["tokens"][view] / tokens["tokens"].sum() if asked else np.nan
        at = {"run_id": run.run_id, "method": view, "status": reason, "n": int(n)}
        lengths = "not in store: prompt lengths are missing"
        made += [
            at | {"metric": "runtime_share", "value": seconds / total if known else np.nan},
            at | {"metric": "seconds", "value": seconds},
            at | {"metric": "token_share", "value": share, "n": asked, "status": reason or lengths},
        ]
    return made


_SOURCES: Mapping[str, Callable[[PaperResults, str], pd.DataFrame]] = {
    "": _headline,
    "methods": _with_headline,
    "ablation": _ablation,
    "streams": _streams,
    "leans": _leans,
    "letters": _letters,
    "sweep": _sweep,
    "costs": _costs,
}
