"""The tables that a run of SDGBiasBench stores: the analysis, and the items as the report shows
them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias.benchmark.prompts import view_cells
from sdgbias.errors import DataValidationError
from sdgbias.progress import Progress
from sdgbias.raw.images.composite import side_by_side
from sdgbias.suites import sdg
from sdgbias.suites.extra_prompts import extra_cells
from sdgbias.suites.suite import EvalSettings, Images, StoredScores, Suite
from sdgbias.types import TESTS, Task

PREVIEWS = 120
#: Columns of an item that are stored as they are.
_CARD = [
    *("item_id", "cluster_id", "country", "year", "urban", "pillar", "indicator"),
    *("indicator_title", "unit", "question", "split", "image_id"),
]


def cells(benchmark: Path, settings: EvalSettings) -> pd.DataFrame:
    """Every cell of a benchmark: the paper's views, and those of extra prompts."""
    prompts = sdg.read_table(benchmark, "prompts")
    extra = extra_cells(sdg.load_items(benchmark), prompts, settings.passes, settings.seed)
    # each text stands in four cells or more: a category takes 4 bytes of each
    cells = view_cells(prompts.astype({"text": "category"}))
    return cells if extra.empty else pd.concat([cells, extra], ignore_index=True)


def tables(
    benchmark: Path,
    scored: StoredScores,
    settings: EvalSettings,
    images: Images,
    progress: Progress,
) -> dict[str, pd.DataFrame]:
    """The rows of every store table for one run, except scores and failures. Raises
    DataValidationError where the predictions break a rule."""
    items = sdg.load_items(benchmark)
    summary = sdg.summarise(items, scored, settings, progress)
    check_predictions(summary.predictions, items)
    cards = pd.concat([item_cards(task, table) for task, table in items.items()], ignore_index=True)
    cards["wealth"] = wealth_terciles(items)
    shown = preview_images(items, summary.predictions)
    return {
        "items": cards,
        "predictions": summary.predictions,
        "cade_params": summary.params,
        "decoded": sdg.decoded_numbers(items[Task.REGRESSION], scored, settings.mode),
        "numbers": summary.metrics,
        "previews": pd.DataFrame(
            {"image_id": shown, "png": [side_by_side(images[i]) for i in shown]}
        ),
    }


def check_predictions(predictions: pd.DataFrame, items: dict[Task, pd.DataFrame]) -> None:
    """The last check before anything is published: expectations/predictions.json. Raises
    DataValidationError; the scores are kept."""
    from sdgbias.benchmark import quality

    verdict = quality.check(
        "predictions",
        predictions,
        tables={f"items_{task}": table for task, table in items.items()},
    )
    for finding in (*verdict.of("gate"), *verdict.of("quarantine")):
        raise DataValidationError(
            f"predictions: rule {finding.rule} broken {finding.count} time(s): {finding.message};"
            " nothing is published, scores are kept: build the benchmark again, then evaluate"
        )


def item_cards(task: Task, items: pd.DataFrame) -> pd.DataFrame:
    """The fields of an item for the report: question, options, context, gold."""
    from sdgbias.benchmark.prompts import context_lines

    cards = items[_CARD].copy()
    # a benchmark of an earlier version doesn't state what its pictures show
    cards["modalities"] = items.get("modalities")
    cards["task"] = task.value
    if task is Task.MCQ:
        options = items[["option_a", "option_b", "option_c"]].to_numpy(dtype=object)
        cards["options"] = [
            json.dumps([text for text in row if text], ensure_ascii=False) for row in options
        ]
        cards["gold"], cards["gold_value"] = items["answer"].astype(str), items["value"]
        cards["polarity"], cards["target"], cards["tolerance"] = items["polarity"], "", np.nan
        lines = {t.value: context_lines(items, t) for t in TESTS[task]}
    else:
        cards["gold"], cards["gold_value"] = items["answer"].map("{:.1f}".format), items["answer"]
        cards["options"], cards["polarity"] = "{}", ""
        cards["target"] = items["target"].astype(str)
        cards["tolerance"] = items["tolerance"]
        lines = {}
        for t in TESTS[task]:
            parts = [context_lines(rows, t, str(name)) for name, rows in items.groupby("target")]
            joined = pd.concat(parts) if parts else pd.Series(dtype="str")
            lines[t.value] = joined.reindex(items.index)
    cards = cards.astype({"gold_value": float, "tolerance": float})
    contexts = zip(*lines.values(), strict=True)
    cards["context"] = [json.dumps(dict(zip(lines, row, strict=True))) for row in contexts]
    return cards


def wealth_terciles(items: dict[Task, pd.DataFrame]) -> np.ndarray:
    """'poorest', 'middle', 'richest' per item of all tasks, in their order: thirds of the asset
    index over the distinct clusters. '' where the index is unknown or the same everywhere."""
    table = pd.concat(
        [frame[["cluster_id", "asset_index"]] for frame in items.values()], ignore_index=True
    )
    places = table.drop_duplicates("cluster_id")["asset_index"].astype(float).dropna().to_numpy()
    if len(places) < 3 or places.min() == places.max():
        return np.full(len(table), "", dtype=object)
    cuts = np.quantile(places, [1 / 3, 2 / 3])
    names = np.array(["poorest", "middle", "richest"], dtype=object)
    values = table["asset_index"].to_numpy(dtype=float)
    return np.where(np.isnan(values), "", names[np.searchsorted(cuts, values, side="right")])


def preview_images(items: dict[Task, pd.DataFrame], predictions: pd.DataFrame) -> list[str]:
    """Images kept for the report's question browser: test items that CADE fixed, broke or left,
    spread over pillars."""
    table = items[Task.MCQ]
    wide = predictions[(predictions["task"] == Task.MCQ.value) & (predictions["split"] == "test")]
    wide = wide.pivot_table(
        index=["item_id", "test"], columns="method", values="correct", aggfunc="first"
    ).reset_index()
    if not {"full", "cade"} <= set(wide.columns):
        return sorted(set(table["image_id"]))[:PREVIEWS]
    kind = np.select(
        [wide["cade"] & ~wide["full"].astype(bool), wide["full"] & ~wide["cade"].astype(bool)],
        ["fixed", "broken"],
        "same",
    )
    wide = (
        wide.assign(kind=kind)
        .merge(table[["item_id", "pillar", "image_id"]], on="item_id")
        .sort_values(["item_id", "test"])
    )
    picked = wide.groupby(["pillar", "kind"], sort=True).head(max(1, PREVIEWS // 9))
    return sorted(set(picked["image_id"]))[:PREVIEWS]


SUITE = Suite(
    name=sdg.NAME,
    title="Places (sdg)",
    version=sdg.ANALYSIS,
    cluster_unit="place",
    identity=sdg.identity,
    cells=cells,
    generations_needed=sdg.generations_needed,
    starts_needed=sdg.starts_needed,
    answer_kinds={task.value: task.value for task in Task},
    tests={task.value: [test.value for test in tests] for task, tests in TESTS.items()},
    tables=tables,
    # DuckDB reads a column of a million rows in a second; the map `attributes` of the view
    # `questions` it first builds for each of them
    filters={
        "pillar": "pillar",
        "indicator": "indicator_title",
        "country": "country",
        "urban": "urban",
    },
    attributes=("country", "urban", "wealth", "pillar", "photo"),
    signatures=True,
    docs="benchmark",
)
