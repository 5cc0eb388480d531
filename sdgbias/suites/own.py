"""A suite of custom questions: its cells, and the tables that a run stores.

Multiple choice with 2 to 10 options, stored in SDGBiasBench's layout: task mcq, one test (T1 with
contexts, else T5, as Table E names them), the views that the folder has, and CADE where it has a
view with a picture and rows to tune on. Everything is measured on split test; errors are clustered
by the column that the folder names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.benchmark.own_spec import UNKNOWN
from sdgbias.benchmark.prompts import option_letters, view_cells
from sdgbias.errors import InputError
from sdgbias.methods import metrics, stats
from sdgbias.progress import Progress
from sdgbias.raw.images.composite import encode_jpeg, open_picture
from sdgbias.suites import sdg, sdg_metrics, sdg_tables
from sdgbias.suites.facet import NONE_RIGHT
from sdgbias.suites.rows import ALL, FEWER, Group, numbers
from sdgbias.suites.suite import EvalSettings, Images, StoredScores, Suite
from sdgbias.types import OPTION_LETTERS, ContextTest, Task, View

#: Bumped when the processing of answers changes, so that older runs are recomputed.
ANALYSIS = "6"
#: Field ``kind`` of a benchmark's card.
KIND = "own"
PREVIEW_SIDE = 448


def load_items(benchmark: Path) -> pd.DataFrame:
    """items_own of a benchmark folder, sorted by item_id, with the option columns that any question
    uses (at least A and B) and no pillars."""
    items = sdg.read_table(benchmark, "items_own").sort_values("item_id", ignore_index=True)
    columns = [f"option_{c.lower()}" for c in OPTION_LETTERS[2:]]
    unused = [name for name in columns if (items[name] == "").all()]
    return items.drop(columns=unused).assign(pillar="", indicator="")


def load_prompts(benchmark: Path) -> pd.DataFrame:
    """The cells of a benchmark folder: one test, and the views that a question has.

    Without contexts CTX+Q is the prompt of Q-only: it is kept where there are pictures, because
    CADE uses it there as the paper does at T5, and is not reported as a separate method.
    """
    prompts = sdg.read_table(benchmark, "prompts")
    cells, test = view_cells(prompts), prompts["test"].min()  # T1 before T5
    views = {view.value for view in View}
    if test == ContextTest.T5.value and not (cells["image_id"] != "").any():
        views = {View.Q_ONLY.value}
    is_shown = cells["view"].isin([view.value for view in View if view.has_image])
    kept = (cells["test"] == test) & cells["view"].isin(views)
    return cells[kept & (~is_shown | (cells["image_id"] != ""))].reset_index(drop=True)


def identity(settings: EvalSettings) -> dict[str, object]:
    """Settings that enter a run's id besides model, benchmark and version."""
    named = sdg.identity(settings)
    return {name: value for name, value in named.items() if name not in ("mode", "passes")}


def tables(
    benchmark: Path,
    scored: StoredScores,
    settings: EvalSettings,
    images: Images,
    progress: Progress,
) -> dict[str, pd.DataFrame]:
    """The rows of every store table for one run, except scores and failures. Raises InputError
    where no answer was scored, DataValidationError where the predictions break a rule."""
    items = load_items(benchmark)
    summary = sdg.summarise({Task.MCQ: items}, scored, settings, progress)
    answers, rows = summary.predictions, summary.metrics
    if not (items["context"] != "").any():  # CTX+Q is Q-only there
        answers = answers[answers["method"] != View.CTX_Q.value].reset_index(drop=True)
        rows = rows[rows["method"] != View.CTX_Q.value]
    if answers.empty:
        raise InputError(f"{benchmark}: no question was scored; nothing to conclude")
    no_numbers = items[:0].assign(tolerance=0.0, answer=0.0)
    sdg_tables.check_predictions(answers, {Task.MCQ: items, Task.REGRESSION: no_numbers})
    pictured = items[items["image_id"] != ""]
    shown = sdg_tables.preview_images({Task.MCQ: pictured}, answers) if len(pictured) else []
    previews = [encode_jpeg(open_picture(images[i][0]), 80, PREVIEW_SIDE) for i in shown]
    more = metric_rows(items, answers, scored, seed=settings.seed)
    return {
        "items": item_cards(items, benchmark),
        "predictions": answers,
        "cade_params": summary.params,
        "numbers": pd.concat([rows, more], ignore_index=True),
        "previews": pd.DataFrame({"image_id": shown, "png": previews}),
    }


def item_cards(items: pd.DataFrame, benchmark: Path) -> pd.DataFrame:
    """The stored fields of a question, in the columns of the first suite; unused columns stay
    empty. source_id: its id in the author's table; groups: its levels, as JSON."""
    options = items[[f"option_{c.lower()}" for c in option_letters(items)]].to_numpy(dtype=object)
    test = ContextTest.T1 if (items["context"] != "").any() else ContextTest.T5
    title = str(json.loads((benchmark / "benchmark.json").read_text("utf-8")).get("title", ""))
    renamed = items.rename(columns={"answer": "gold", "own_id": "source_id"})
    names = ["item_id", "cluster_id", "question", "split", "polarity", "image_id", "gold"]
    return renamed[[*names, "source_id", "groups"]].assign(
        task=Task.MCQ.value,
        options=[json.dumps([t for t in row if t], ensure_ascii=False) for row in options],
        gold_value=np.nan,
        tolerance=np.nan,
        target="",
        indicator_title=title,
        context=[json.dumps({test.value: text}, ensure_ascii=False) for text in items["context"]],
        **dict.fromkeys(("country", "urban", "wealth", "unit", "pillar", "indicator"), ""),
    )


def metric_rows(
    items: pd.DataFrame,
    answers: pd.DataFrame,
    scored: StoredScores,
    *,
    draws: int = 2_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Rows in addition to the first suite's: letters (share_A: how often a letter is chosen,
    recall_A: how often it is chosen where it is right), and accuracy by group of each of the
    author's group columns and its disparity (the best minus the worst group). Split test; test
    'all' is the suite's one test. Where a view shows no picture, questions may share a prompt: the
    interval is the wider of that over clusters and that over distinct prompts."""
    gold = items[["item_id", "cluster_id", "answer", "groups"]]
    joined = answers[answers["split"] == "test"].merge(gold, on="item_id")
    keys = scored.cells[["item_id", "view", "key"]].rename(columns={"view": "method"})
    joined = joined.merge(keys, on=["item_id", "method"], how="left").fillna({"key": ""})
    levels = pd.DataFrame([json.loads(text) for text in joined["groups"]], dtype=str)
    rows: list[dict[str, object]] = []
    for (task, test, method), of_run in joined.groupby(["task", "test", "method"], sort=True):
        depends_on = ["cluster_id", "key"] if method in sdg_metrics.IMAGE_FREE else ["cluster_id"]
        units = [stats.codes(of_run[name].to_numpy(dtype=str))[0] for name in depends_on]
        by_group = _by_group(of_run, levels.loc[of_run.index], units, draws, seed)
        silent = not (of_run["correct"] == 1).any()  # 0 minus 0 would look like fairness
        for group, metric, e in (*_letters(of_run, units), *by_group):
            row = {"task": task, "method": method, **group._asdict(), "metric": metric}
            why = FEWER if np.isnan(e.value) else None
            if silent and metric == "disparity":
                e, why = stats.nothing(e.n), NONE_RIGHT
            row |= e.columns() | {"missing_reason": why}
            rows += [row | {"test": test}, row | {"test": "all"}]
    return numbers(pd.DataFrame(rows))


def _letters(
    answers: pd.DataFrame, units: Sequence[np.ndarray]
) -> Iterator[tuple[Group, str, stats.Estimate]]:
    """The metrics of each letter; the answers that name none are `unparsed_rate`."""
    gold, chosen = (answers[name].to_numpy(dtype=str) for name in ("answer", "pred"))
    columns = []
    for letter in sorted((set(gold) | set(chosen)) - {""}):
        hits = (chosen == letter).astype(float)
        columns.append(stats.ValueColumn(f"share_{letter}", hits))
        of_gold = np.where(gold == letter, hits, np.nan)
        columns.append(stats.ValueColumn(f"recall_{letter}", of_gold))
    for table in stats.measure(columns, np.zeros(len(gold), dtype=np.int64), 1, units):
        if table.n[0]:
            yield ALL, table.metric, table.estimate(0)


def _by_group(
    answers: pd.DataFrame, levels: pd.DataFrame, units: Sequence[np.ndarray], draws: int, seed: int
) -> Iterator[tuple[Group, str, stats.Estimate]]:
    """Accuracy by level of every group column, and the difference between the best and the worst
    level of at least ``stats.SMALLEST`` questions; none with fewer than two known levels."""
    hits = answers["correct"].to_numpy(dtype=float)
    column = stats.ValueColumn("accuracy", hits)
    for name in map(str, levels):
        code, names = pd.factorize(levels[name], sort=True)
        by = code.astype(np.int64)
        (table,) = stats.measure([column], by, len(names), units, smallest=stats.SMALLEST)
        for at, level in enumerate(names):
            yield Group(name, level), "accuracy", table.estimate(at)
        given = names[code] != UNKNOWN
        if len(set(code[given])) > 1:
            means = (
                stats.group_means(hits[given], code[given], unit[given], draws=draws, seed=seed)
                for unit in units
            )
            apart = stats.widest([stats.disparity(m, metrics.max_min).estimate() for m in means])
            yield Group(name, "max", "min"), "disparity", apart


def noted(card: Mapping[str, object]) -> dict[str, object]:
    """The part of the benchmark's card that a run keeps for the pages: what is left out, and
    why."""
    fields = ("title", "version", "cluster_by", "views", "views_left_out", "cade_left_out")
    return {"own": {name: card.get(name, "") for name in fields}}


def suite(benchmark: Path, card: Mapping[str, object]) -> Suite:
    """The suite of a benchmark of custom questions."""
    return Suite(
        name=str(card["suite"]),
        title=str(card.get("title") or card["suite"]),
        version=f"own-{ANALYSIS}",
        cluster_unit=str(card.get("cluster_by") or "question"),
        identity=identity,
        cells=lambda folder, settings: load_prompts(folder),
        generations_needed=sdg.generations_needed,
        answer_kinds={Task.MCQ.value: "mcq"},
        tests={Task.MCQ.value: [ContextTest.T1.value, ContextTest.T5.value]},
        tables=tables,
        noted=noted,
        unpublished="answers to your own questions: their terms are yours",
    )
