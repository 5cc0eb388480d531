"""Metric rows of the predictions of one task and test, with the sampling unit of each interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdgbias.benchmark.prompts import option_letters
from sdgbias.methods import metrics, stats
from sdgbias.methods.answers import TRUNCATED
from sdgbias.raw.indicators import DIRECTIONS, letter_directions
from sdgbias.suites import sdg_censoring
from sdgbias.suites.rows import numbers
from sdgbias.suites.suite import StoredScores
from sdgbias.types import DIGITS, GENERATED, TESTS, ContextTest, Task, View

IMAGE_FREE = tuple(
    view + suffix for view in (View.Q_ONLY.value, View.CTX_Q.value) for suffix in ("", GENERATED)
)


#: Columns of the test split's answers, (R,) each (`_answer_columns`); asked: the tests of the
#: questions that were asked.
Answers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class AnswerMetric:
    """A metric of results. values: the answers -> (R,) numbers, NaN where an answer doesn't count
    for it. shown: (R,) bool; a group without any such answer has no row. versus: the method that it
    compares with."""

    name: str
    values: Callable[[Answers], np.ndarray]
    kind: stats.Kind = "share"
    shown: Callable[[Answers], np.ndarray] | None = None
    versus: str = ""


def among(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(R,) values of the (R,) bool rows, NaN of others."""
    return np.where(rows, values, np.nan)


def present_options(items: pd.DataFrame, task: Task) -> np.ndarray:
    """(N, K) the candidates that each item has."""
    if task is Task.REGRESSION:
        return np.ones((len(items), len(DIGITS)), dtype=bool)
    return np.column_stack(
        [(items[f"option_{c.lower()}"] != "").to_numpy() for c in option_letters(items)]
    )


def candidates(items: pd.DataFrame, task: Task) -> str:
    """The candidates of a task's items: the letters of their option columns, or the digits."""
    return option_letters(items) if task is Task.MCQ else DIGITS


def directions_of(polarity: np.ndarray, count: np.ndarray, width: int) -> np.ndarray:
    """(N, width + 1) direction of each letter of N questions with so many options, '' of letters
    that a question lacks and where its indicator's polarity isn't recorded; the last is that of no
    letter."""
    table = {
        (p, int(k)): letter_directions(p, int(k)) if p else ("",) * int(k)
        for p in set(polarity)
        for k in set(count)
    }
    of_items = np.full((len(polarity), width + 1), "", dtype=object)
    for (p, k), directions in table.items():
        of_items[(polarity == p) & (count == k), :k] = directions
    return of_items


def direction_columns(says: np.ndarray, count: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of Answers on the direction of each answer. says, count (R,): the direction of
    the chosen letter, '' for none; number of options."""
    of = {direction: says == direction for direction in DIRECTIONS}
    return {**of, "three": (count >= 3) & (says != ""), "two": (count == 2) & (says != "")}


def compared_columns(a: Answers, task: Task) -> dict[str, np.ndarray]:
    """The columns of Answers on how texts were read and on what the Full view answers to the same
    question, from ``how``, ``method``, ``in_full`` (bool) and of both the answer and Full
    (``full_*``) ``pred``, ``correct``, ``error`` and ``value`` as far as the task has them."""
    measure, answer = ("error", "value") if task is Task.REGRESSION else ("correct", "pred")
    return {
        "parsed": a["how"] != "",
        "unparsed": (a["how"] == "unparsed") | (a["how"] == "empty"),
        "truncated": a["how"] == TRUNCATED,
        "refused": a["how"] == "refusal",
        "compared": (a["method"] == "cade") & a["in_full"],
        "over_generated": np.isin(a["method"], ("cade", "full")),
        "gain": a[measure] - a[f"full_{measure}"],
        "changed": np.asarray(a[answer] != a[f"full_{answer}"], dtype=bool),
    }


def _cells(rows: pd.DataFrame, task: Task, scored: StoredScores) -> np.ndarray:
    """(R,) the cell whose prompt each of R rows (item_id, test, method) answers, -1 for none."""
    cell = np.full(len(rows), -1)
    groups: Any = rows.groupby(["test", "method"]).indices
    for (test, method), at in groups.items():
        view = task.value, str(test), str(method).removesuffix(GENERATED)
        cell[at] = scored.cells_of(view, rows["item_id"].iloc[at])
    return cell


def prompts_of(rows: pd.DataFrame, task: Task, scored: StoredScores) -> np.ndarray:
    """(R,) what answers without a picture are counted by: their prompt, or where a context line
    has names alone the question's Q-only prompt, because T3, T4 and T5 then ask one question."""
    bare = [test.value for test in ContextTest if not test.has_values]
    names_alone = rows["method"].isin(IMAGE_FREE) & rows["test"].isin(bare)
    method = rows["method"].where(~names_alone, View.Q_ONLY.value)
    return scored.prompt_of[_cells(rows.assign(method=method), task, scored)]


def _answer_columns(
    answers: pd.DataFrame, items: pd.DataFrame, task: Task, scored: StoredScores
) -> Answers:
    """The answers of the test split with what their metrics are made of: numbers and flags. A frame
    with the texts of items and prompts would be ten times as large."""
    item = pd.Index(items["item_id"]).get_indexer(answers["item_id"])
    (test, tests), (method, methods) = (
        pd.factorize(answers[name], sort=True) for name in ("test", "method")
    )
    cell = _cells(answers, task, scored)
    generated = np.char.endswith(np.array(methods, dtype=str), GENERATED)[method]
    score = np.where(generated, -1, scored.score_of[cell])  # a generated answer has no scores
    top = scored.scores["top_token"]
    # a number of several digits that is one token begins with its first digit
    first = top.where(~_numeric(top), top.str[:1])
    letters, present = candidates(items, task), present_options(items, task)
    named = np.append(pd.Index(list(letters)).get_indexer(pd.Index(first)), -1)[score]
    tie, near_tie = metrics.tie_flags(scored.logits, scored.near)
    correct = answers["correct"].to_numpy(dtype=float)
    if task is Task.REGRESSION:  # imported: interval accuracy is unknown without a tolerance
        has_tolerance = np.isfinite(items["tolerance"].to_numpy(dtype=float))
        correct = np.where(has_tolerance[item], correct, np.nan)

    def beside(name: str) -> np.ndarray:
        """(R,) the row with the answer of a method to the same question, -1 for none."""
        question = item * len(tests) + test
        of_method = np.flatnonzero(np.asarray(methods == name)[method])
        row_of = np.full(len(items) * len(tests), -1)
        row_of[question[of_method]] = of_method
        return np.asarray(row_of[question])

    def of(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.where(rows >= 0, values[rows], np.nan)

    full = beside("full")
    columns: dict[str, np.ndarray] = {
        # only compared for equality, and integers are faster
        "cluster_id": pd.factorize(items["cluster_id"], sort=True)[0][item],
        "prompt": prompts_of(answers, task, scored),
        "test": np.asarray(tests, dtype=object)[test],
        "method": np.asarray(methods, dtype=object)[method],
        "pillar": items["pillar"].to_numpy(dtype=object)[item],
        "indicator": items["indicator"].to_numpy(dtype=object)[item],
        "correct": correct,
        "mass": np.append(scored.scores["mass"].to_numpy(dtype=float), np.nan)[score],
        # C is no answer to a question of two options
        "off_candidate": (named < 0) | ~present[item, named],
        "tie": tie[score],
        "near_tie": near_tie[score],
        "correct_generated": of(beside(f"full{GENERATED}"), correct),
        "how": answers["how"].to_numpy(dtype=object),
        "in_full": full >= 0,
        "kept": answers["kept"].to_numpy(dtype=float),
    }
    if task is Task.MCQ:
        pred, names = pd.factorize(answers["pred"])
        pred = np.array([letters.index(n) if n else len(letters) for n in names], int)[pred]
        count = present.sum(axis=1)
        polarity = items["polarity"].to_numpy(dtype=object)
        says = directions_of(polarity, count, present.shape[1])[item, pred]
        columns |= direction_columns(says, count[item])
        columns |= {"pred": pred, "full_pred": pred[full], "full_correct": of(full, correct)}
    else:
        for name in ("error", "value"):
            columns[name] = answers[name].to_numpy(dtype=float)
            columns[f"full_{name}"] = of(full, columns[name])
    columns |= compared_columns(columns, task)
    return columns


def _share_of(direction: str) -> AnswerMetric:
    return AnswerMetric(f"share_{direction}", lambda a: among(a["three"], a[direction]))


#: Of every method, unless its rows are all NaN.
_READ = (
    AnswerMetric("unparsed_rate", lambda a: a["unparsed"], shown=lambda a: a["parsed"]),
    AnswerMetric("truncated_rate", lambda a: a["truncated"], shown=lambda a: a["parsed"]),
)
_SCORED = (
    AnswerMetric("candidate_mass", lambda a: a["mass"], "fraction"),
    AnswerMetric(
        "off_candidate_rate", lambda a: a["off_candidate"], shown=lambda a: ~np.isnan(a["mass"])
    ),
    AnswerMetric("tie_rate", lambda a: a["tie"]),
    AnswerMetric("near_tie_rate", lambda a: among(~np.isnan(a["tie"]), a["near_tie"])),
)
#: CADE against the Full view on the same rows.
_FULL = View.FULL.value
_CHANGED = AnswerMetric("changed_rate", lambda a: among(a["compared"], a["changed"]), versus=_FULL)
#: A method against the generated answer to the Full prompt, on the same questions: of Full, what
#: choosing among the candidates gains; of CADE, its whole gain over standard inference.
_OVER_GENERATED = AnswerMetric(
    "gain_over_generated",
    lambda a: among(a["over_generated"], a["correct"] - a["correct_generated"]),
    "difference",
    versus=f"{View.FULL}{GENERATED}",
)
#: The metrics of a task in their order. A new one is a line here: results, pages, W&B and the
#: regression check take it from here. The check makes the columns from stored answers
#: (nightly/regression/measured.py): one that `compared_columns` can't make is made there as well.
METRICS: Mapping[Task, Sequence[AnswerMetric]] = {
    Task.MCQ: (
        AnswerMetric("accuracy", lambda a: a["correct"]),
        *map(_share_of, DIRECTIONS),
        AnswerMetric("share_optimistic_two_option", lambda a: among(a["two"], a["optimistic"])),
        *_READ,
        AnswerMetric("refusal_rate", lambda a: a["refused"], shown=lambda a: a["parsed"]),
        *_SCORED,
        AnswerMetric(
            "accuracy_gain", lambda a: among(a["compared"], a["gain"]), "difference", versus=_FULL
        ),
        _CHANGED,
        AnswerMetric("fixed_rate", lambda a: among(a["compared"], a["gain"] > 0), versus=_FULL),
        AnswerMetric("broken_rate", lambda a: among(a["compared"], a["gain"] < 0), versus=_FULL),
        AnswerMetric("kept_rate", lambda a: among(a["compared"], a["kept"])),
        _OVER_GENERATED,
    ),
    Task.REGRESSION: (
        AnswerMetric("mae", lambda a: a["error"], "amount"),
        AnswerMetric("interval_accuracy", lambda a: a["correct"]),
        *_READ,
        *_SCORED,
        AnswerMetric("mae_change", lambda a: among(a["compared"], a["gain"]), "mean", versus=_FULL),
        _CHANGED,
        _OVER_GENERATED,
    ),
}


class _Groups(NamedTuple):
    """A grouping of R answers. code (R,): each answer's group, -1 for none. names (g rows): of each
    group test, method, attribute, group, indicator, and how deep it lies among all answers."""

    code: np.ndarray
    names: pd.DataFrame


def _groupings(a: Answers, task: Task) -> Iterator[_Groups]:
    """By test and method: all, by pillar, and by indicator within its pillar. Test 'all' pools
    T1..T5; a method that answers fewer tests than were asked (full_generated at T1) has none."""
    order = [test.value for test in TESTS[task]]
    test = np.array([order.index(t) for t in a["test"]], dtype=np.int64)
    keys = {name: pd.factorize(a[name], sort=True) for name in ("method", "pillar", "indicator")}
    method = keys["method"][0]
    counts = [len(np.unique(test[method == m])) for m in range(len(keys["method"][1]))]
    complete = (np.array(counts) == len(np.unique(a.get("asked", test))))[method]
    everywhere = np.ones(len(test), dtype=bool)
    for depth, level in enumerate(((), ("pillar",), ("pillar", "indicator"))):
        # custom questions have no pillar
        within = (a["pillar"] != "") if level else everywhere
        for pooled, keep in ((False, everywhere), (True, complete)):
            codes = [np.full(len(test), len(order)) if pooled else test, method]
            codes += [keys[name][0] for name in level]
            code, first = _combined(codes, keep & within)
            names = pd.DataFrame(
                {
                    "test": "all" if pooled else a["test"][first],
                    "method": a["method"][first],
                    "attribute": "pillar" if depth else "",
                    "group": a["pillar"][first] if depth else "",
                    "indicator": a["indicator"][first] if depth == 2 else "all",
                    "depth": depth,
                }
            )
            yield _Groups(code, names)


def _combined(codes: Sequence[np.ndarray], keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((R,) code of each combination of codes, in their order, -1 where not kept, (g,) the first
    row of each)."""
    rows = np.flatnonzero(keep)
    whole = np.zeros(len(rows), dtype=np.int64)
    for code in codes:
        whole = whole * (int(code.max(initial=0)) + 1) + code[rows]
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    out = np.full(len(keep), -1, dtype=np.int64)
    out[rows] = inverse.reshape(-1)
    return out, rows[first]


def _numeric(tokens: pd.Series) -> pd.Series:
    """Whether each token is a number of several ASCII digits."""
    return tokens.str.fullmatch(r"[0-9]{2,}").fillna(False).astype(bool)


def metric_rows(
    items: pd.DataFrame,
    task: Task,
    frame: pd.DataFrame,
    scored: StoredScores,
    judged: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Rows of ``numbers`` of the test split, of all questions, by pillar, and by indicator within
    its pillar. Test 'all' pools T1..T5. clusters: number of places or distinct prompts that the
    interval counts; note: why there is no interval, 'too few places' or 'too few prompts' where
    they don't suffice for one. `judged`: the uncertainty due to withheld scores, with a column
    test."""
    tests = scored.cells.loc[scored.cells["task"] == task.value, "test"].unique()
    answers = _answer_columns(frame[frame["split"] == "test"], items, task, scored)
    answers = {**answers, "asked": tests}
    blocks = measured(answers, METRICS[task], task)
    prompts = answers["prompt"]
    for groups in _groupings(answers, task):
        blocks.append(_distinct_prompts(groups, prompts))
    if judged is not None:
        columns = {str(name): judged[name].to_numpy() for name in judged} | {"asked": tests}
        columns["prompt"] = prompts_of(judged, task, scored)
        columns["cluster_id"] = pd.factorize(judged["cluster_id"], sort=True)[0]
        metrics_of = [AnswerMetric(*metric) for metric in sdg_censoring.METRICS[task]]
        blocks += measured(columns, metrics_of, task)
    rows = pd.concat(blocks, ignore_index=True)
    order = ["test", "method", "depth", "group", "indicator"]  # 'all' comes after T1 to T5
    rows = rows.sort_values(order, kind="stable", ignore_index=True)
    return numbers(rows.drop(columns="depth").assign(task=task.value))


def measured(
    answers: Answers, metrics_of: Sequence[AnswerMetric], task: Task
) -> list[pd.DataFrame]:
    """Rows of each metric in each group of answers (`_groupings`). Without a picture many rows
    share one prompt and hence one answer: there the interval is the wider of that over distinct
    prompts and that over places."""
    free = np.isin(answers["method"].astype(str), IMAGE_FREE)
    clusters = [np.where(free, answers["prompt"], -1), answers["cluster_id"]]
    blocks = []
    for groups in _groupings(answers, task):
        size = len(groups.names)
        values = (stats.ValueColumn(m.name, m.values(answers), m.kind) for m in metrics_of)
        parts = []
        for metric, by_group in zip(
            metrics_of, stats.measure(values, groups.code, size, clusters), strict=True
        ):
            shown = by_group.n > 0
            if metric.shown is not None:
                rows = (groups.code >= 0) & metric.shown(answers)
                shown &= np.bincount(groups.code[rows], minlength=size) > 0
            parts.append(_numbers(by_group, np.flatnonzero(shown), metric.versus))
        # one frame of all metrics: a frame of each takes ten times as long as its numbers
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        names = groups.names.take(columns.pop("at")).reset_index(drop=True)
        blocks.append(pd.concat([names, pd.DataFrame(columns)], axis=1))
    return blocks


def _numbers(by_group: stats.MeansByGroup, shown: np.ndarray, versus: str) -> dict[str, np.ndarray]:
    """The numbers of the shown groups, an array each."""
    columns = {
        "at": shown,
        "metric": np.full(len(shown), by_group.metric, dtype=object),
        "versus": np.full(len(shown), versus, dtype=object),
        **{"value": by_group.value[shown], "n": by_group.n[shown]},
        **{"low": by_group.low[shown], "high": by_group.high[shown]},
        "clusters": by_group.clusters[shown],
        "note": np.full(len(shown), "", dtype=object),
    }
    for row in np.flatnonzero(np.isnan(columns["low"])):
        unit = ("prompt", "place")[by_group.way[shown[row]]]
        e = by_group.estimate(int(shown[row]))
        columns["note"][row] = f"too few {unit}s" if e.too_few else e.missing_interval(unit)
    return columns


def _distinct_prompts(groups: _Groups, prompt: np.ndarray) -> pd.DataFrame:
    """Rows of the number of distinct prompts of the groups of Q-only."""
    size, rows = len(groups.names), groups.code >= 0
    n = np.bincount(groups.code[rows], minlength=size)
    pairs = np.unique(np.stack([groups.code[rows], prompt[rows]]), axis=1)
    columns = {
        "metric": "distinct_prompts",
        "value": np.bincount(pairs[0], minlength=size).astype(float),
        **{"n": n, "low": np.nan, "high": np.nan, "clusters": 0, "note": ""},
    }
    rows_of = groups.names.join(pd.DataFrame(columns))
    return rows_of[rows_of["method"] == View.Q_ONLY.value]
