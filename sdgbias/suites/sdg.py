"""SDGBiasBench as a suite: prompts of a benchmark folder, and from their scores to predictions and
metric rows.

Everything is measured on the test split; CADE is tuned on val, per test (Table G, App. C.4). In
every array the N rows are the items sorted by item_id and the K columns their candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdgbias.benchmark.prompts import option_letters, view_cells
from sdgbias.errors import InputError
from sdgbias.methods import metrics, stats
from sdgbias.methods.answers import parse_number, with_first_digit
from sdgbias.methods.bounds import between, fill
from sdgbias.methods.cade import Numerics, argmax_view, decide, streams
from sdgbias.methods.search import Kind, SearchResult, constants, take, tune
from sdgbias.raw.indicators import letter_directions
from sdgbias.suites import sdg_censoring
from sdgbias.suites.suite import EvalSettings, Scored
from sdgbias.types import DIGITS, OPTION_LETTERS, SDG, TESTS, ContextTest, Task, View

NAME = SDG
#: Bumped when what is made of scores changes (how an answer is read, a metric), so that older runs
#: are made anew.
ANALYSIS = "3"
_ITEM = ("item_id", "cluster_id", "pillar", "indicator", "answer", "split")
#: Columns without which nothing can be asked or concluded.
_NEEDED = {
    "prompts": ("task", "item_id", "test", "text", "image_id", "candidates"),
    "items_mcq": (*_ITEM, "option_a", "option_b"),
    "items_regression": (*_ITEM, "target"),
}
#: With fewer val rows than this, CADE's parameters are those of a few questions, and results say so.
FEWEST_VAL = 50
IMAGE_FREE = (View.Q_ONLY.value, View.CTX_Q.value)
#: An estimate and what its interval counts: 'places' or 'prompts'.
Judged = tuple[stats.Estimate, str]


def candidates(items: pd.DataFrame, task: Task) -> str:
    """The candidates of a task's items: the letters of their option columns, or the digits."""
    return option_letters(items) if task is Task.MCQ else DIGITS


def identity(settings: EvalSettings) -> dict[str, object]:
    """What a run's id and a night's key hang on besides model and benchmark: the settings of an
    evaluation, this suite's version and the constants of its analysis. JSON values."""
    return {
        "seed": settings.seed,
        "draws": settings.draws,
        "numerics": settings.numerics,
        "mode": settings.mode,
        "passes": list(settings.passes),
        "search": settings.search,
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
    cells: pd.DataFrame, distinct: pd.DataFrame, can_force: bool = True
) -> pd.DataFrame:
    """The ``distinct`` prompts whose number is decoded, with column forced: every regression prompt
    of the paper's views, the Full ones (T2, T5) once for each first digit, where the engine can
    force a start."""
    numbers = cells[
        (cells["task"] == Task.REGRESSION.value) & cells["view"].isin([view.value for view in View])
    ]
    full = set(numbers.loc[numbers["view"] == View.FULL.value, "key"])
    rows = distinct[distinct["key"].isin(set(numbers["key"]))].copy()
    rows["forced"] = rows["key"].isin(full) & can_force
    return rows


def read_table(benchmark: Path, name: str) -> pd.DataFrame:
    path = benchmark / f"{name}.parquet"
    if not path.is_file():
        raise InputError(
            f"{path}: not there; build the benchmark first: sdgbias build --raw RAW --indicators"
            f" DIR --out {benchmark}"
        )
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: can't be read ({str(error).splitlines()[0]}); build it again: sdgbias build"
        ) from None
    if lost := [column for column in _NEEDED.get(name, ()) if column not in table.columns]:
        raise InputError(
            f"{path}: missing column(s) {', '.join(lost)}; build it again: sdgbias build --stage"
            f" {name if name == 'prompts' else 'items'} --out {benchmark}"
        )
    return table


@dataclass(frozen=True)
class TestResult:
    """One task under one context test: logits (N, K) per view, present (N, K), choice (N,) per
    method, and for regression value (N,) per method; CADE's confidence, divergence and gate (N,);
    the search that tuned it (None without val rows); what withheld scores leave open
    (`withheld.judged`, None where every score of the task is exact)."""

    test: ContextTest
    logits: Mapping[View, np.ndarray]
    present: np.ndarray
    choice: Mapping[str, np.ndarray]
    value: Mapping[str, np.ndarray]
    unparsed: Mapping[str, np.ndarray]
    confidence: np.ndarray
    divergence: np.ndarray
    kept: np.ndarray
    search: SearchResult | None
    withheld: pd.DataFrame | None = None


def view_logits(
    scored: Scored, items: pd.DataFrame, task: Task, test: ContextTest, view: View
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(keys (N,), logits (N, K), upper (N, K)) of one view x test; NaN where the item lacks the
    candidate or has no score (yet). logits are -inf where a score is withheld; upper is the largest
    value that a logit can truly have, NaN where it is exact."""
    c = scored.cells
    rows = c[(c["task"] == task.value) & (c["test"] == test.value) & (c["view"] == view.value)]
    keys = rows.set_index("item_id")["key"].reindex(items["item_id"])
    known = scored.scores.set_index("key").reindex(keys)
    logits, upper = np.full((2, len(items), len(candidates(items, task))), np.nan)
    for table, column in ((logits, known["logits"]), (upper, known["upper"])):
        for i, values in enumerate(column):
            if isinstance(values, np.ndarray):
                table[i, : len(values)] = values
    return keys.to_numpy(dtype=object), logits, upper


def _bounded(scored: Scored, task: Task) -> bool:
    """Whether any score of a task is known by its bound only."""
    bounded = scored.scores.loc[scored.scores["upper"].notna(), "key"]
    if bounded.empty:
        return False
    return bool(bounded.isin(scored.cells.loc[scored.cells["task"] == task.value, "key"]).any())


def gold_index(items: pd.DataFrame) -> np.ndarray:
    """(N,) index of the gold letter."""
    return (
        items["answer"]
        .map({letter: i for i, letter in enumerate(OPTION_LETTERS)})
        .to_numpy(dtype=np.int64)
    )


def present_options(items: pd.DataFrame, task: Task) -> np.ndarray:
    """(N, K) which candidates an item has."""
    if task is Task.REGRESSION:
        return np.ones((len(items), len(DIGITS)), dtype=bool)
    return np.column_stack(
        [(items[f"option_{c.lower()}"] != "").to_numpy() for c in option_letters(items)]
    )


def _spoken(scored: Scored) -> dict[tuple[str, str], str]:
    g = scored.generations
    return dict(zip(zip(g["key"], g["start"], strict=True), g["text"], strict=True))


def _free_values(
    keys: np.ndarray, spoken: Mapping[tuple[str, str], str]
) -> tuple[np.ndarray, np.ndarray]:
    """(values (N,), unparsed (N,)) of freely generated numbers; an answer without a number is 0.0
    (reference) and counted."""
    texts = [spoken.get((key, "")) if isinstance(key, str) else None for key in keys]
    numbers = [None if t is None else parse_number(t) for t in texts]
    values = [
        np.nan if t is None else (0.0 if n is None else n)
        for t, n in zip(texts, numbers, strict=True)
    ]
    return np.array(values, dtype=float), np.array(
        [t is not None and n is None for t, n in zip(texts, numbers, strict=True)], dtype=bool
    )


def digit_values(
    keys: np.ndarray, spoken: Mapping[tuple[str, str], str], mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """(values, unparsed), both (N, 10): the number that each first digit leads to. `continue` =
    greedy decoding after the forced digit, `replace` = the free answer with its first digit
    exchanged (the reference). The free answer's sign is kept by both. Where neither states a number
    the value is 0.0 (the reference) and unparsed is True."""
    values = np.full((len(keys), len(DIGITS)), np.nan)
    unparsed = np.zeros(values.shape, dtype=bool)
    for i, key in enumerate(keys):
        free = spoken.get((key, ""))
        if free is None:
            continue
        stated = parse_number(free)
        sign = "-" if (stated or 0.0) < 0 else ""
        for j, digit in enumerate(DIGITS):
            text = spoken.get((key, sign + digit)) if mode == "continue" else None
            number = parse_number(text) if text is not None else None
            values[i, j] = with_first_digit(free, digit) if number is None else number
            unparsed[i, j] = number is None and stated is None
    return values, unparsed


def decoded_numbers(items: pd.DataFrame, scored: Scored, mode: str) -> pd.DataFrame:
    """Regression: item_id, test, view, free, parsed, and by_digit (10 numbers, Full only) of every
    answer that was decoded."""
    spoken, blocks = _spoken(scored), []
    for test in TESTS[Task.REGRESSION] if len(items) else ():
        for view in View:
            keys = view_logits(scored, items, Task.REGRESSION, test, view)[0]
            free, unparsed = _free_values(keys, spoken)
            block = pd.DataFrame(
                {
                    "item_id": items["item_id"],
                    "test": test.value,
                    "view": view.value,
                    "free": free,
                    "parsed": ~unparsed,
                }
            )
            block["by_digit"] = (
                list(digit_values(keys, spoken, mode)[0]) if view is View.FULL else None
            )
            blocks.append(block[np.isfinite(free)])
    columns = ["item_id", "test", "view", "free", "parsed", "by_digit"]
    return pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=columns)


def run_test(
    scored: Scored,
    items: pd.DataFrame,
    task: Task,
    test: ContextTest,
    *,
    draws: int,
    seed: int,
    numerics: Numerics,
    mode: str,
    kind: Kind = "random",
) -> TestResult:
    """Predictions of every view and of CADE for one task x test. Where scores are withheld, a view
    says the largest of those that are known, and CADE takes the others at their bounds; InputError
    with numerics other than `exact`, whose bounds these are."""
    present = present_options(items, task)
    found = {view: view_logits(scored, items, task, test, view) for view in View}
    logits = {view: z for view, (_, z, _) in found.items()}
    bounded = _bounded(scored, task)
    if bounded and numerics != "exact":
        raise InputError(
            f"{task.value}: some scores of this model are withheld, and what that leaves open is"
            f" known for numerics exact only, not {numerics}; what is scored is kept: evaluate"
            " again with --numerics exact"
        )
    views = {view: between(z, upper) for view, (_, z, upper) in found.items()}
    full, ctx, img, q = (
        fill(views[view]) for view in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY)
    )
    s = streams(full, ctx, img, q, present, numerics=numerics)
    choice = {view.value: argmax_view(logits[view], present) for view in View}
    value: dict[str, np.ndarray] = {}
    unparsed: dict[str, np.ndarray] = {}
    n = len(items)
    if task is Task.MCQ:
        payoff = (np.arange(present.shape[1]) == gold_index(items)[:, None]).astype(float)
    else:
        spoken = _spoken(scored)
        for view in View:
            value[view.value], unparsed[view.value] = _free_values(found[view][0], spoken)
        by_digit, no_number = digit_values(found[View.FULL][0], spoken, mode)
        payoff = -np.abs(by_digit - items["answer"].to_numpy(dtype=float)[:, None])
    usable = s.valid.any(axis=1) & np.isfinite(payoff).all(axis=1)
    val = (items["split"] == "val").to_numpy() & usable
    search = (
        tune(take(s, val), payoff[val], task, search=kind, draws=draws, seed=seed)
        if val.any()
        else None
    )
    kept = np.zeros(n, dtype=bool)
    if search is not None:
        decision = decide(s, search.params)
        choice["cade"] = np.where(usable, decision.choice, -1)
        kept = decision.kept
        if task is Task.REGRESSION:
            picked = by_digit[np.arange(n), np.maximum(decision.choice, 0)]
            value["cade"] = np.where(choice["cade"] >= 0, picked, np.nan)
            unparsed["cade"] = (choice["cade"] >= 0) & no_number[
                np.arange(n), np.maximum(decision.choice, 0)
            ]
    judged = (
        sdg_censoring.judged(
            items, views, present, payoff, usable, search.params if search else None
        )
        if bounded
        else None
    )
    return TestResult(
        test,
        logits,
        present,
        choice,
        value,
        unparsed,
        s.confidence,
        s.divergence,
        kept,
        search,
        judged,
    )


def predictions(items: pd.DataFrame, task: Task, r: TestResult) -> pd.DataFrame:
    """Long table task, item_id, test, method, split, pred, value, correct, error, confidence, kl,
    kept - all items, val included."""
    blocks = []
    names = np.array([*candidates(items, task), ""], dtype=object)
    for method, choice in r.choice.items():
        block = pd.DataFrame(
            {
                "task": task.value,
                "item_id": items["item_id"],
                "test": r.test.value,
                "method": method,
                "split": items["split"],
                "pred": names[choice],
                "value": np.nan,
                "correct": False,
                "error": np.nan,
                "confidence": r.confidence,
                "kl": r.divergence,
                "kept": r.kept if method == "cade" else np.ones(len(items), dtype=bool),
            }
        )
        if task is Task.MCQ:
            block["correct"] = metrics.correct(gold_index(items), choice)
        else:
            error = metrics.absolute_error(items["answer"].to_numpy(dtype=float), r.value[method])
            block["value"], block["error"] = r.value[method], error
            block["correct"] = metrics.within_tolerance(
                error, items["tolerance"].to_numpy(dtype=float)
            )
        blocks.append(
            block[choice >= 0] if task is Task.MCQ else block[np.isfinite(r.value[method])]
        )
    return pd.concat(blocks, ignore_index=True)


def _groups(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    yield "all", "all", frame
    frame = frame[frame["pillar"] != ""]  # own questions have no pillars
    for pillar, part in frame.groupby("pillar", sort=True):
        yield str(pillar), "all", part
    for (within, indicator), part in frame.groupby(["pillar", "indicator"], sort=True):
        yield str(within), str(indicator), part


def _direction(items: pd.DataFrame) -> pd.DataFrame:
    """item_id -> what choosing each letter says (pessimistic, conservative, optimistic) and the number
    of options."""
    count = present_options(items, Task.MCQ).sum(axis=1)
    # a release may hold indicators whose polarity nobody has said: their answers have no direction
    table = {
        (p, int(k)): letter_directions(p, int(k)) if p else ("",) * int(k)
        for p in set(items["polarity"])
        for k in set(count)
    }
    rows = [table[(p, int(k))] for p, k in zip(items["polarity"], count, strict=True)]
    letters = option_letters(items)
    wide = [[*row, *[""] * (len(letters) - len(row))] for row in rows]
    frame = pd.DataFrame(wide, columns=[f"says_{c}" for c in letters], index=items.index)
    return frame.assign(item_id=items["item_id"], n_options=count)


def _judged(part: pd.DataFrame, values: ArrayLike, kind: stats.Kind = "share") -> Judged:
    """Mean of one value per row of ``part``, and what its interval counts. Without a picture many
    rows share one prompt and hence one answer: there the interval is the wider of that over places
    and that over distinct prompts."""
    by_place = stats.mean(values, part["cluster_id"], kind)
    if part.empty or str(part["method"].iloc[0]) not in IMAGE_FREE:
        return by_place, "places"
    by_prompt = stats.mean(values, part["prompt"], kind)
    chosen = stats.widest([by_prompt, by_place])
    return chosen, "prompts" if chosen is by_prompt else "places"


def _cell_metrics(part: pd.DataFrame, task: Task) -> Iterator[tuple[str, Judged]]:
    """Metrics of the rows of one method in one group."""
    if task is Task.MCQ:
        yield "accuracy", _judged(part, part["correct"])
        three = part[(part["n_options"] >= 3) & (part["says"] != "")]
        for says in ("pessimistic", "conservative", "optimistic") if len(three) else ():
            yield f"share_{says}", _judged(three, three["says"] == says)
        two = part[(part["n_options"] == 2) & (part["says"] != "")]
        if len(two):
            yield "share_optimistic_two_option", _judged(two, two["says"] == "optimistic")
    else:
        yield "mae", _judged(part, part["error"], "amount")
        yield "interval_accuracy", _judged(part, part["correct"])
        yield "unparsed_rate", _judged(part, part["unparsed"])
    if part["mass"].notna().any():
        yield "candidate_mass", _judged(part, part["mass"], "fraction")
        yield "off_candidate_rate", _judged(part, part["off_candidate"])


def _paired_metrics(part: pd.DataFrame, task: Task) -> Iterator[tuple[str, Judged]]:
    """CADE against the Full view on the same rows (columns *_full)."""
    if task is Task.MCQ:
        now, before = part["correct"].astype(float), part["correct_full"].astype(float)
        yield "accuracy_gain", _judged(part, now - before, "mean")
        yield "changed_rate", _judged(part, part["pred"] != part["pred_full"])
        yield "fixed_rate", _judged(part, now > before)
        yield "broken_rate", _judged(part, now < before)
        yield "kept_rate", _judged(part, part["kept"])
    else:
        yield "mae_change", _judged(part, part["error"] - part["error_full"], "mean")
        yield "changed_rate", _judged(part, part["value"] != part["value_full"])


def _parts(
    table: pd.DataFrame, task: Task
) -> Iterator[tuple[tuple[str, str, str, str], pd.DataFrame]]:
    """((test, method, pillar, indicator), rows) of every group. Test 'all' pools T1..T5."""
    for test, pool in [
        *((t.value, table[table["test"] == t.value]) for t in TESTS[task]),
        ("all", table),
    ]:
        for method, mine in pool.groupby("method", sort=True):
            for pillar, indicator, part in _groups(mine):
                yield (test, str(method), pillar, indicator), part


def metric_rows(
    items: pd.DataFrame,
    task: Task,
    frame: pd.DataFrame,
    scored: Scored,
    judged: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Rows task, test, method, pillar, indicator, metric, value, n, ci_low, ci_high, clusters, note
    of the test split. Test 'all' pools T1..T5. clusters: how many places or distinct prompts the
    interval counts; note: 'too few places' or 'too few prompts' where there is none for that.
    `judged`: what withheld scores leave open, with a column test."""
    known = scored.cells.merge(scored.scores[["key", "mass", "top_token"]], on="key", how="left")
    known = known.rename(columns={"view": "method"})[
        ["task", "item_id", "test", "method", "key", "mass", "top_token"]
    ]
    test = frame[frame["split"] == "test"].merge(
        items[["item_id", "cluster_id", "pillar", "indicator"]], on="item_id"
    )
    test = test.merge(known, on=["task", "item_id", "test", "method"], how="left")
    test["cluster_id"] = pd.factorize(test["cluster_id"], sort=True)[
        0
    ]  # only told apart from here on, and numbers are quicker
    test["prompt"] = pd.factorize(test["key"], sort=True)[0]
    names = candidates(items, task)
    test["off_candidate"] = ~test["top_token"].isin(list(names))
    if task is Task.MCQ:
        test = test.merge(_direction(items), on="item_id")
        letters = test[[f"says_{c}" for c in names]].to_numpy(dtype=object)
        test["says"] = letters[
            np.arange(len(test)), test["pred"].map(names.index).to_numpy(dtype=int)
        ]
    full = test.loc[
        test["method"] == "full", ["item_id", "test", "pred", "correct", "error", "value"]
    ]
    test = test.merge(full, on=["item_id", "test"], how="left", suffixes=("", "_full"))
    rows: list[tuple[object, ...]] = []
    for cell, part in _parts(test, task):
        found = list(_cell_metrics(part, task))
        if cell[1] == "cade":
            found += _paired_metrics(part[part["pred_full"].notna()], task)
        if cell[1] == "q_only":
            prompts = float(part["key"].nunique())
            count = stats.Estimate(prompts, len(part), float("nan"), float("nan"))
            found.append(("distinct_prompts", (count, "prompts")))
        rows += [(task.value, *cell, m, *_numbers(e, unit)) for m, (e, unit) in found]
    for cell, part in () if judged is None else _parts(judged, task):
        rows += [
            (task.value, *cell, m, *_numbers(e, "places"))
            for m, e in sdg_censoring.estimates(part, task)
        ]
    columns = [
        "task",
        "test",
        "method",
        "pillar",
        "indicator",
        "metric",
        "value",
        "n",
        "ci_low",
        "ci_high",
        "clusters",
        "note",
    ]
    return pd.DataFrame(rows, columns=columns)


def _numbers(e: stats.Estimate, unit: str) -> tuple[object, ...]:
    return e.value, e.n, e.low, e.high, e.clusters, f"too few {unit}" if e.too_few else ""


def tuning_note(items: pd.DataFrame, task: Task, n_val: int) -> str:
    """What a reader has to know of the val rows that CADE was tuned on; '' for nothing."""
    notes = [f"tuned on fewer than {FEWEST_VAL} val rows"] if n_val < FEWEST_VAL else []
    val = items[items["split"] == "val"]
    if task is Task.MCQ and val["answer"].nunique() < 2:
        notes.append("tuned on val rows with one gold answer")
    return "; ".join(notes)


@dataclass(frozen=True)
class Summary:
    predictions: pd.DataFrame
    metrics: pd.DataFrame
    params: pd.DataFrame


def summarise(
    items: Mapping[Task, pd.DataFrame],
    scored: Scored,
    *,
    draws: int,
    seed: int,
    numerics: Numerics = "exact",
    mode: str = "continue",
    search: Kind = "random",
) -> Summary:
    """From scores to predictions, metric rows and CADE parameters, for both tasks and all their
    tests."""
    all_predictions, all_metrics, params = [], [], []
    for task, table in items.items():
        if table.empty:
            continue
        blocks, judged = [], []
        asked = set(scored.cells.loc[scored.cells["task"] == task.value, "test"])
        for test in TESTS[task]:
            if test.value not in asked:
                continue  # own questions have one test
            r = run_test(
                scored,
                table,
                task,
                test,
                draws=draws,
                seed=seed,
                numerics=numerics,
                mode=mode,
                kind=search,
            )
            block = predictions(table, task, r)
            for method, flags in r.unparsed.items():
                rows = block["method"] == method
                lookup = pd.Series(flags, index=table["item_id"])
                block.loc[rows, "unparsed"] = block.loc[rows, "item_id"].map(lookup)
            blocks.append(block)
            if r.withheld is not None:
                judged.append(r.withheld.assign(test=test.value))
            if r.search is not None:
                p, found = r.search.params, r.search
                objective = "accuracy" if task is Task.MCQ else "negative MAE"
                params.append(
                    (
                        task.value,
                        test.value,
                        p.alpha,
                        p.lambda_kl,
                        p.beta,
                        p.tau,
                        "" if task is Task.MCQ else mode,
                        objective,
                        found.value,
                        found.n_val,
                        found.n_draws,
                        found.seed,
                        tuning_note(table, task, found.n_val),
                    )
                )
        frame = pd.concat(blocks, ignore_index=True)
        if task is Task.REGRESSION:
            frame["unparsed"] = frame["unparsed"].fillna(False).astype(bool)
        all_metrics.append(
            metric_rows(
                table, task, frame, scored, pd.concat(judged, ignore_index=True) if judged else None
            )
        )
        all_predictions.append(frame.drop(columns=["unparsed"], errors="ignore"))
    names = [
        "task",
        "test",
        "alpha",
        "lambda_kl",
        "beta",
        "tau",
        "mode",
        "objective",
        "val_value",
        "n_val",
        "n_draws",
        "seed",
        "note",
    ]
    if not all_metrics:
        raise InputError(
            "the benchmark holds no items; see its quarantine.parquet for the reasons, then build"
            " it again"
        )
    return Summary(
        pd.concat(all_predictions, ignore_index=True),
        pd.concat(all_metrics, ignore_index=True),
        pd.DataFrame(params, columns=names),
    )
