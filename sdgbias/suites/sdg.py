"""SDGBiasBench as a suite: prompts of a benchmark folder, and from their scores to predictions and
metric rows.

Everything is measured on the test split; CADE is tuned on val, per test (Table G, App. C.4). In
every array the N rows are the items sorted by item_id and the K columns their candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.extensions import take as take_rows

from sdgbias.benchmark.prompts import view_cells
from sdgbias.errors import InputError, argument
from sdgbias.files import build_command, reading
from sdgbias.methods import metrics, stats
from sdgbias.methods.bounds import between, fill
from sdgbias.methods.cade import Form, argmax_view, decide, streams, usable
from sdgbias.methods.protocol import constants
from sdgbias.progress import Progress, silent
from sdgbias.suites import sdg_censoring
from sdgbias.suites.sdg_metrics import candidates, metric_rows, present_options
from sdgbias.suites.sdg_numbers import digit_values, free_values, generated_letters, sign_of
from sdgbias.suites.suite import Abilities, EvalSettings, StoredScores
from sdgbias.types import DIGITS, GENERATED, OPTION_LETTERS, SDG, TESTS, ContextTest, Task, View

if TYPE_CHECKING:
    from sdgbias.methods.search import SearchResult

NAME = SDG
#: Bumped when the processing of scores changes (parsing an answer, a metric), so that older runs
#: are recomputed.
ANALYSIS = "7"
_ITEM = ("item_id", "cluster_id", "pillar", "indicator", "answer", "split")
#: Columns required to build prompts and compute results.
_NEEDED = {
    "prompts": ("task", "item_id", "test", "text", "image_id", "candidates"),
    "items_mcq": (*_ITEM, "option_a", "option_b"),
    "items_regression": (*_ITEM, "target"),
}
#: With fewer val rows than this, CADE's parameters rest on a few questions, and the results carry a
#: note.
FEWEST_VAL = 50


def identity(settings: EvalSettings) -> dict[str, object]:
    """Settings that enter a run's id and a night's key, besides model and benchmark: the evaluation
    settings, this suite's version and the constants of its analysis. JSON values."""
    return {
        **asdict(settings),
        "passes": list(settings.passes),
        "analysis": ANALYSIS,
        **constants(),
        "confidence": stats.LEVEL,
    }


def load_items(benchmark: Path) -> dict[Task, pd.DataFrame]:
    """items_mcq and items_regression of a benchmark folder, sorted by item_id."""
    return {
        task: read_table(benchmark, f"items_{task.value}").sort_values("item_id", ignore_index=True)
        for task in Task
    }


def load_prompts(benchmark: Path) -> pd.DataFrame:
    """All cells of a benchmark folder (one row per item x test x view)."""
    return view_cells(read_table(benchmark, "prompts"))


def generations_needed(
    cells: pd.DataFrame,
    distinct: pd.DataFrame,
    settings: EvalSettings = EvalSettings(),
    abilities: Abilities = Abilities(),
) -> pd.DataFrame:
    """The ``distinct`` prompts that are answered freely, with column task.

    Regression: every prompt of the paper's views. Multiple choice: settings.generated. A model
    without scores is asked as the papers asked closed models: Full only, at all tests, or all views
    where settings.generated says so.
    """
    scores, wanted = abilities.gives_scores, settings.generated
    full = cells["view"] == (View.FULL.value if scores else richest_view(cells))
    every = cells["view"].isin([view.value for view in View])
    at_t1 = cells["test"].isin([ContextTest.T1.value, *_only_test(cells)])
    numbers = (cells["task"] == Task.REGRESSION.value) & (
        every if scores or wanted == "views" else full
    )
    letters = (cells["task"] == Task.MCQ.value) & {
        "T1": full & (at_t1 | (not scores)),
        "all": full,
        "views": every,
        "none": full & (not scores),
    }[wanted]
    tasks = cells[numbers | letters].drop_duplicates("key").set_index("key")["task"]
    rows = distinct[distinct["key"].isin(tasks.index)]
    return rows.assign(task=rows["key"].map(tasks))


def starts_needed(
    benchmark: Path, scored: StoredScores, settings: EvalSettings, split: str
) -> dict[str, list[str]]:
    """Key -> the starts (a digit, behind the free answer's sign) after which mode `continue` still
    lacks an answer of the Full view: all ten on the questions of split 'val', on which CADE is
    tuned; on those of 'test' the digit that it then chooses."""
    items = load_items(benchmark)[Task.REGRESSION]
    scored_tests = set(scored.cells.loc[scored.cells["task"] == Task.REGRESSION.value, "test"])
    tests = [test for test in TESTS[Task.REGRESSION] if test.value in scored_tests]
    free = scored.spoken.get("", {})
    wanted: dict[str, dict[str, None]] = {}
    for test in tests if settings.mode == "continue" and len(items) else ():
        keys = view_logits(scored, items, Task.REGRESSION, test, View.FULL)[0]
        digits = [DIGITS] * len(items)
        if split == "test":
            choice = run_test(scored, items, Task.REGRESSION, test, settings).choice
            digits = [DIGITS[at] if at >= 0 else "" for at in choice.get("cade", ())]
        for key, of_key, side in zip(keys, digits, items["split"], strict=False):
            if side == split and key in free:
                starts = (sign_of(free[key]) + digit for digit in of_key)
                lacking = [start for start in starts if key not in scored.spoken.get(start, {})]
                wanted.setdefault(key, {}).update(dict.fromkeys(lacking))
    return {key: list(starts) for key, starts in wanted.items() if starts}


def richest_view(cells: pd.DataFrame) -> str:
    """The view that shows most of a question: Full, or less where a suite has no pictures."""
    views = set(cells["view"])
    order = (View.FULL, View.IMG_Q, View.CTX_Q, View.Q_ONLY)
    return next((view.value for view in order if view.value in views), View.FULL.value)


def _only_test(cells: pd.DataFrame) -> list[str]:
    """The test of a suite that has just one (custom questions without contexts)."""
    tests = cells["test"].unique()
    return list(tests) if len(tests) == 1 else []


def read_table(benchmark: Path, name: str) -> pd.DataFrame:
    path = benchmark / f"{name}.parquet"
    build = (
        f"build the benchmark: sdgbias build --raw RAW --indicators DIR --out {argument(benchmark)}"
    )
    with reading(path, build):
        table = pd.read_parquet(path)
    if lost := [column for column in _NEEDED.get(name, ()) if column not in table.columns]:
        raise InputError(
            f"{path}: missing column(s) {', '.join(lost)}; build it again:"
            f" {build_command(benchmark)}"
        )
    return table


@dataclass(frozen=True)
class TestResult:
    """One task under one context test. logits (N, K) per view, present (N, K), choice (N,) per
    method, and for regression value (N,) per method; how (N,) each generated answer was read (''
    where none was generated; 'number', 'option', or why it holds none: methods/answers.py); CADE's
    confidence, divergence and gate (N,); the search that tuned it (None without val rows); the
    uncertainty due to withheld scores (`sdg_censoring.judged`, None where every score of the task
    is exact)."""

    logits: Mapping[View, np.ndarray]
    present: np.ndarray
    choice: Mapping[str, np.ndarray]
    value: Mapping[str, np.ndarray]
    how: Mapping[str, np.ndarray]
    confidence: np.ndarray
    divergence: np.ndarray
    kept: np.ndarray
    search: SearchResult | None
    withheld: pd.DataFrame | None = None


def view_logits(
    scored: StoredScores, items: pd.DataFrame, task: Task, test: ContextTest, view: View
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(keys (N,), logits (N, K), upper (N, K)) of one view x test; NaN where the item lacks the
    candidate or has no score (yet). logits are -inf where a score is withheld; upper is an upper
    bound of the true logit, NaN where it is exact."""
    cell = scored.cells_of((task.value, test.value, view.value), items["item_id"])
    keys = pd.Series(take_rows(scored.cells["key"].array, cell, allow_fill=True), dtype=object)
    score = scored.score_of[cell]
    logits, upper = np.full((2, len(items), len(candidates(items, task))), np.nan)
    for table, stored in ((logits, scored.logits), (upper, scored.upper)):
        k = min(table.shape[1], stored.shape[1])
        table[:, :k] = stored[score, :k]
    return keys.to_numpy(), logits, upper


def _bounded(scored: StoredScores, task: Task) -> bool:
    """Whether any score of a task is known by its bound only."""
    bounded = scored.scores.loc[scored.scores["upper"].notna(), "key"]
    if bounded.empty:
        return False
    return bool(bounded.isin(scored.cells.loc[scored.cells["task"] == task.value, "key"]).any())


def gold_index(items: pd.DataFrame) -> np.ndarray:
    """(N,) index of the gold letter."""
    return items["answer"].map(OPTION_LETTERS.index).to_numpy(dtype=np.int64)


def decoded_numbers(items: pd.DataFrame, scored: StoredScores, mode: str) -> pd.DataFrame:
    """Regression: item_id, test, view, free, parsed, and by_digit (10 numbers, Full only) of every
    decoded answer."""
    blocks = []
    for test in TESTS[Task.REGRESSION] if len(items) else ():
        for view in View:
            keys = view_logits(scored, items, Task.REGRESSION, test, view)[0]
            free, how = free_values(keys, scored.spoken)
            block = pd.DataFrame(
                {
                    "item_id": items["item_id"],
                    "test": test.value,
                    "view": view.value,
                    "free": free,
                    "parsed": how == "number",
                }
            )
            block["by_digit"] = (
                list(digit_values(keys, scored.spoken, mode)[0]) if view is View.FULL else None
            )
            blocks.append(block[np.isfinite(free)])
    columns = ["item_id", "test", "view", "free", "parsed", "by_digit"]
    return pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=columns)


def run_test(
    scored: StoredScores,
    items: pd.DataFrame,
    task: Task,
    test: ContextTest,
    settings: EvalSettings,
) -> TestResult:
    """Predictions of every view and of CADE for one task x test. Where scores are withheld, a view
    chooses the largest of the known ones, and CADE takes the others at their bounds, where Full or
    IMG+Q has a known one; InputError with numerics other than `exact`, for which the bounds don't
    hold."""
    # numba: not for those who only need an id
    from sdgbias.methods.search import SearchSettings, take, tune

    present = present_options(items, task)
    by_view = {view: view_logits(scored, items, task, test, view) for view in View}
    logits = {view: z for view, (_, z, _) in by_view.items()}
    bounded = _bounded(scored, task)
    numerics = settings.numerics
    if bounded and numerics != "exact":
        raise InputError(
            f"{task.value}: some scores of this model are withheld, and what that leaves open is"
            f" known for numerics exact only, not {numerics}; what is scored is kept: evaluate"
            " again with --numerics exact"
        )
    views = {view: between(z, upper) for view, (_, z, upper) in by_view.items()}
    full, ctx, img, q = (
        fill(views[view]) for view in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY)
    )
    s = streams(full, ctx, img, q, present, Form(numerics))
    choice = {view.value: argmax_view(logits[view], present) for view in View}
    value: dict[str, np.ndarray] = {}
    how: dict[str, np.ndarray] = {}
    n = len(items)
    if task is Task.MCQ:
        names = np.array(list(candidates(items, task)))
        sets, which = np.unique(present, axis=0, return_inverse=True)
        letters = np.array(["".join(names[row]) for row in sets], dtype=object)[which.reshape(-1)]
        for view in View:
            answered, read = generated_letters(by_view[view][0], letters.tolist(), scored)
            if (read != "").any():
                choice[view.value + GENERATED], how[view.value + GENERATED] = answered, read
        payoff = (np.arange(present.shape[1]) == gold_index(items)[:, None]).astype(float)
    else:
        for view in View:
            value[view.value], how[view.value] = free_values(
                by_view[view][0], scored.spoken, scored.cut
            )
        by_digit, no_number = digit_values(by_view[View.FULL][0], scored.spoken, settings.mode)
        payoff = -np.abs(by_digit - items["answer"].to_numpy(dtype=float)[:, None])
    is_usable = usable(s.valid, payoff)
    # of bounds alone CADE would choose by chance
    seen = np.isfinite(np.concatenate([logits[View.FULL], logits[View.IMG_Q]], axis=1))
    answers = is_usable & seen.any(axis=1)
    val = (items["split"] == "val").to_numpy() & answers
    search = None
    if val.any():
        how_long = SearchSettings(settings.draws, settings.seed)
        search = tune(take(s, val), payoff[val], task, search=settings.search, settings=how_long)
    kept = np.zeros(n, dtype=bool)
    if search is not None:
        decision = decide(s, search.params)
        choice["cade"] = np.where(answers, decision.choice, -1)
        kept = decision.kept
        if task is Task.REGRESSION:
            picked = by_digit[np.arange(n), np.maximum(decision.choice, 0)]
            value["cade"] = np.where(choice["cade"] >= 0, picked, np.nan)
            lacking = no_number[np.arange(n), np.maximum(decision.choice, 0)]
            how["cade"] = np.where(
                choice["cade"] >= 0, np.where(lacking, "unparsed", "number"), ""
            ).astype(object)
    judged = None
    if bounded:
        params = search.params if search else None
        judged = sdg_censoring.judged(items, views, present, payoff, is_usable, params)
    return TestResult(
        logits, present, choice, value, how, s.confidence, s.divergence, kept, search, judged
    )


def predictions(items: pd.DataFrame, task: Task, test: ContextTest, r: TestResult) -> pd.DataFrame:
    """Long table task, item_id, test, method, split, pred, value, correct, error, confidence, kl,
    kept, how - all items, val included. A generated answer that states no letter has pred '' and is
    wrong."""
    blocks = []
    names = np.array([*candidates(items, task), ""], dtype=object)
    for method, choice in r.choice.items():
        how = r.how.get(method, np.full(len(items), "", dtype=object))
        if task is Task.MCQ:
            value = error = np.full(len(items), np.nan)
            correct = metrics.correct(gold_index(items), choice)
            answered = (choice >= 0) | (how != "")
        else:
            value, tolerance = r.value[method], items["tolerance"].to_numpy(dtype=float)
            error = metrics.absolute_error(items["answer"].to_numpy(dtype=float), value)
            correct = metrics.within_tolerance(error, tolerance)
            answered = np.isfinite(value)
        block = pd.DataFrame(
            {
                "task": task.value,
                "item_id": items["item_id"],
                "test": test.value,
                "method": method,
                "split": items["split"],
                "pred": names[choice],
                "value": value,
                "correct": correct,
                "error": error,
                "confidence": r.confidence,
                "kl": r.divergence,
                "kept": r.kept if method == "cade" else np.ones(len(items), dtype=bool),
                "how": how,
            }
        )
        blocks.append(block[answered])
    return pd.concat(blocks, ignore_index=True)


def tuning_note(items: pd.DataFrame, task: Task, n_val: int) -> str:
    """Caveat about the val rows on which CADE was tuned; '' for none."""
    notes = [f"tuned on fewer than {FEWEST_VAL} val rows"] if n_val < FEWEST_VAL else []
    val = items[items["split"] == "val"]
    if task is Task.MCQ and val["answer"].nunique() < 2:
        notes.append("tuned on val rows with one gold answer")
    test = items[items["split"] == "test"]
    shared = int(test["cluster_id"].isin(val["cluster_id"]).sum())
    if shared:
        notes.append(
            f"{shared:,} of {len(test):,} test questions are about a place of the val rows"
        )
    return "; ".join(notes)


@dataclass(frozen=True)
class Summary:
    predictions: pd.DataFrame
    metrics: pd.DataFrame
    params: pd.DataFrame


def summarise(
    items: Mapping[Task, pd.DataFrame],
    scored: StoredScores,
    settings: EvalSettings,
    progress: Progress = silent,
) -> Summary:
    """From scores to predictions, metric rows and CADE parameters, for both tasks and all their
    tests."""
    progress("tuning CADE", 0, 1)
    all_predictions, all_metrics, params = [], [], []
    for task, table in items.items():
        if table.empty:
            continue
        blocks, judged = [], []
        scored_tests = set(scored.cells.loc[scored.cells["task"] == task.value, "test"])
        for test in TESTS[task]:
            if test.value not in scored_tests:
                continue  # custom questions have one test
            r = run_test(scored, table, task, test, settings)
            blocks.append(predictions(table, task, test, r))
            if r.withheld is not None:
                judged.append(r.withheld.assign(test=test.value))
            if r.search is not None:
                search = r.search
                params.append(
                    {
                        "task": task.value,
                        "test": test.value,
                        **asdict(search.params),
                        "mode": "" if task is Task.MCQ else settings.mode,
                        "objective": "accuracy" if task is Task.MCQ else "negative MAE",
                        "val_value": search.value,
                        "n_val": search.n_val,
                        "n_draws": search.n_draws,
                        "seed": search.seed,
                        "note": tuning_note(table, task, search.n_val),
                    }
                )
        frame = pd.concat(blocks, ignore_index=True)
        withheld = pd.concat(judged, ignore_index=True) if judged else None
        all_metrics.append(metric_rows(table, task, frame, scored, withheld))
        all_predictions.append(frame.drop(columns="how"))
    if not all_metrics:
        raise InputError(
            "the benchmark holds no items; see its quarantine.parquet for the reasons, then build"
            " it again"
        )
    progress("tuning CADE", 1, 1)
    return Summary(
        pd.concat(all_predictions, ignore_index=True),
        pd.concat(all_metrics, ignore_index=True),
        pd.DataFrame(params, columns=None if params else ["task", "test"]),
    )
