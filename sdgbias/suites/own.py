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
from sdgbias.suites.rows import ALL, FEWER, Group, numbers
from sdgbias.suites.suite import EvalSettings, Images, StoredScores, Suite
from sdgbias.types import OPTION_LETTERS, ContextTest, Task, View

#: Bumped when the processing of answers changes, so that older runs are recomputed.
ANALYSIS = "2"
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
    cells = view_cells(prompts)
    test = prompts["test"].min()  # T1 before T5
    shown = cells["view"].isin([view.value for view in View if view.has_image])
    cells = cells[(cells["test"] == test) & (~shown | (cells["image_id"] != ""))]
    if test == ContextTest.T5.value and not (cells["image_id"] != "").any():
        cells = cells[cells["view"] == View.Q_ONLY.value]
    return cells.reset_index(drop=True)


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
    answers, metrics = summary.predictions, summary.metrics
    if not (items["context"] != "").any():  # CTX+Q is Q-only there
        answers = answers[answers["method"] != View.CTX_Q.value].reset_index(drop=True)
        metrics = metrics[metrics["method"] != View.CTX_Q.value]
    if answers.empty:
        raise InputError(f"{benchmark}: no question was scored; nothing to conclude")
    sdg_tables.check_predictions(answers, {Task.MCQ: items, Task.REGRESSION: _no_numbers()})
    more = metric_rows(items, answers, scored, seed=settings.seed)
    pictured = items[items["image_id"] != ""]
    shown = sdg_tables.preview_images({Task.MCQ: pictured}, answers) if len(pictured) else []
    return {
        "items": item_cards(items, benchmark),
        "predictions": answers,
        "cade_params": summary.params,
        "numbers": pd.concat([metrics, more], ignore_index=True),
        "previews": pd.DataFrame(
            {"image_id": shown, "png": [preview(images[i][0]) for i in shown]}
        ),
    }


def _no_numbers() -> pd.DataFrame:
    """Empty regression items, for a suite without any."""
    return pd.DataFrame({"item_id": [], "split": [], "answer": [], "tolerance": []}).astype(
        {"item_id": "int64", "split": "str"}
    )


def item_cards(items: pd.DataFrame, benchmark: Path) -> pd.DataFrame:
    """The stored fields of a question, in the columns of the first suite; unused columns stay
    empty. source_id: its id in the author's table; groups: its levels, as JSON."""
    letters = option_letters(items)
    options = items[[f"option_{c.lower()}" for c in letters]].to_numpy(dtype=object)
    test = ContextTest.T1 if (items["context"] != "").any() else ContextTest.T5
    title = str(json.loads((benchmark / "benchmark.json").read_text("utf-8")).get("title", ""))
    cards = items[["item_id", "cluster_id", "question", "split", "polarity", "image_id"]].copy()
    return cards.assign(
        task=Task.MCQ.value,
        options=[json.dumps([t for t in row if t], ensure_ascii=False) for row in options],
        gold=items["answer"],
        gold_value=np.nan,
        tolerance=np.nan,
        target="",
        indicator_title=title,
        source_id=items["own_id"],
        groups=items["groups"],
        context=[json.dumps({test.value: text}, ensure_ascii=False) for text in items["context"]],
        **dict.fromkeys(("country", "urban", "wealth", "unit", "pillar", "indicator"), ""),
    )


def preview(picture: bytes) -> bytes:
    """A picture for pages: at most 448 pixels a side."""
    image = open_picture(picture)
    return picture if max(image.size) <= PREVIEW_SIDE else encode_jpeg(image, 80, PREVIEW_SIDE)


#: What questions depend on each other by: an author's clusters, and without a picture prompts.
_DEPENDS_ON = ("cluster_id", "key")


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
    shown = scored.cells[["item_id", "view", "key"]].rename(columns={"view": "method"})
    joined = joined.merge(shown, on=["item_id", "method"], how="left").fillna({"key": ""})
    by_run = joined.groupby(["task", "test", "method"], sort=True)
    runs, run = list(by_run.size().index), np.asarray(by_run.ngroup(), dtype=np.int64)
    place, prompt = (stats.codes(joined[name].to_numpy(dtype=str))[0] for name in _DEPENDS_ON)
    prompt = np.where(joined["method"].isin(sdg_metrics.IMAGE_FREE), prompt, -1)
    values = [
        (at, ALL, table.metric, table.estimate(int(at)))
        for table in stats.measure(_letters(joined), run, len(runs), [place, prompt])
        for at in np.flatnonzero(table.n > 0)
    ]
    groups = pd.DataFrame([json.loads(text) for text in joined["groups"]])
    for name in groups.columns:
        level, levels = pd.factorize(groups[name].astype(str), sort=True)
        hits = joined["correct"].to_numpy(dtype=float)
        by, many = (run * len(levels) + level).astype(np.int64), len(runs) * len(levels)
        column = stats.ValueColumn("accuracy", hits)
        (table,) = stats.measure([column], by, many, [place, prompt], smallest=stats.SMALLEST)
        for at in np.flatnonzero(table.n > 0):
            which, of = divmod(int(at), len(levels))
            values.append((which, Group(name, levels[of]), table.metric, table.estimate(int(at))))
        for which in range(len(runs)):
            rows = (run == which) & (levels[level] != UNKNOWN)
            e = _disparity(hits[rows], level[rows], (place[rows], prompt[rows]), draws, seed)
            values += [(which, Group(name, "max", "min"), "disparity", e)] if e else []
    rows = [
        {"task": task, "test": at, "method": method, **group._asdict(), "metric": metric}
        | e.columns()
        | {"missing_reason": FEWER if np.isnan(e.value) else None}
        for which, group, metric, e in values
        for task, test, method in [runs[which]]
        for at in (str(test), "all")
    ]
    return numbers(pd.DataFrame(rows))


def _letters(joined: pd.DataFrame) -> Iterator[stats.ValueColumn]:
    """The metrics of each letter; the answers that name none are `unparsed_rate`."""
    gold, answer = (joined[name].to_numpy(dtype=str) for name in ("answer", "pred"))
    methods = joined["method"]
    for letter in sorted((set(gold) | set(answer)) - {""}):
        right, chosen = gold == letter, (answer == letter).astype(float)
        answered = methods.isin(methods[right | (chosen > 0)]).to_numpy()
        yield stats.ValueColumn(f"share_{letter}", np.where(answered, chosen, np.nan))
        yield stats.ValueColumn(f"recall_{letter}", np.where(right, chosen, np.nan))


def _disparity(
    hits: np.ndarray,
    level: np.ndarray,
    units: Sequence[np.ndarray],
    draws: int,
    seed: int,
) -> stats.Estimate | None:
    """The difference between the best and the worst levels of at least ``stats.SMALLEST``
    questions; None with fewer than two levels."""
    if len(set(level)) < 2:
        return None
    means = (
        stats.group_means(hits, level, unit, draws=draws, seed=seed)
        for unit in units
        if (unit >= 0).all()
    )
    return stats.widest([stats.disparity(of, metrics.max_min).estimate() for of in means])


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
