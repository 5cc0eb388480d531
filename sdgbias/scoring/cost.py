"""What scoring a benchmark costs, before any model is loaded: prompts and tokens, under the paper's
protocol and as planned, and hours by the time that the model's earlier runs took.

Naive is the paper's protocol: every cell (view x test of an item) is a separate forward pass.
Planned is what sdgbias does: each distinct prompt once, and what the prompts about one picture
begin with, the picture included, once for all of them (engines/hf/engine.py). Both are counted over
the paper's views alone, so that they are comparable; what extra prompts add to the plan is reported
separately. Tokens are exact: counted with the model's tokenizer and chat template.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import store, suites
from sdgbias.engines.options import HfOptions, WeightOptions, read
from sdgbias.errors import ModelError, UsageError, first_line
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.shards import ImageReader
from sdgbias.registry import machine
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.plan import as_prompts, askable, chunk_end, make_plan
from sdgbias.types import View

TOKENIZED = ("hf", "vllm")
_ENCODED = 4096  # prompts tokenized at once
#: Seconds per prompt of each task of a model's runs.
_PACE = """
SELECT run_id, task, sum(seconds_measured) / sum(prompts) FILTER (phase = 'score') AS pace
FROM timings JOIN runs USING (run_id) WHERE model = ?
GROUP BY ALL HAVING pace > 0 AND bool_and(untimed = 0) ORDER BY ALL
"""


@dataclass(frozen=True)
class Counted:
    """What is counted. task: 'mcq' or 'regression' alone. image_tokens: tokens per picture, instead
    of the model's number. passes: prompts beyond the paper's views."""

    task: str = ""
    image_tokens: int | None = None
    passes: tuple[str, ...] = ()


def cost(
    spec: ModelSpec,
    root: Path,
    benchmark: Path,
    counted: Counted = Counted(),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Counts for one registered model on one benchmark. prompts_*, tokens_*: *_naive, every cell of
    the paper's views; *_full, Full-view cells alone, the plain evaluation that the paper compares
    CADE's price with; *_distinct and *_planned of the paper's views; *_extra, what extra prompts
    add to the planned counts. asked: task -> distinct prompts of each view, summed. Raises
    UsageError for an engine without a tokenizer here."""
    if spec.backend not in TOKENIZED:
        raise UsageError(
            f"{spec.name}: backend {spec.backend} has no tokenizer to count with; plan works for:"
            f" {', '.join(TOKENIZED)}"
        )
    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings(passes=counted.passes))
    cells = askable(cells[cells["task"] == counted.task] if counted.task else cells, spec)
    cells = cells.reset_index(drop=True)
    plan = make_plan(cells, spec.name)
    paths, parts = _tokenize(spec, root, ImageReader(benchmark), plan.distinct, counted, progress)
    options = read(spec, WeightOptions)
    # vLLM shares beginnings by itself
    shares = bool(options.share_prefix) if isinstance(options, HfOptions) else True

    def planned(cells: pd.DataFrame) -> tuple[int, int]:
        rows = make_plan(cells, spec.name).distinct
        of_rows = [paths[key] for key in rows["key"]]
        return len(rows), _prefilled(rows["image_id"].tolist(), of_rows, spec.batch_size, shares)

    paper, full = cells["view"].isin([view.value for view in View]), cells["view"] == "full"
    lengths = plan.cells["key"].map({key: len(path) for key, path in paths.items()})
    tokens_naive, tokens_full = int(lengths[paper].sum()), int(lengths[full].sum())
    prompts, tokens = planned(cells[paper])
    all_prompts, all_tokens = planned(cells)
    image_tokens = int((next(iter(paths.values())) == -1).sum()) if paths else 0
    by_task = plan.cells.groupby(["task", "view"])["key"].nunique().groupby("task").sum()
    return {
        "model": spec.name,
        "items": len(cells[["task", "item_id"]].drop_duplicates()),
        "prompts_naive": int(paper.sum()),
        "prompts_full": int(full.sum()),
        "prompts_planned": prompts,
        "prompts_extra": all_prompts - prompts,
        "tokens_naive": tokens_naive,
        "tokens_full": tokens_full,
        "tokens_distinct": sum(len(paths[key]) for key in set(plan.cells.loc[paper, "key"])),
        "tokens_planned": tokens,
        "tokens_extra": all_tokens - tokens,
        "image_tokens": image_tokens // parts + 1 if image_tokens else 0,
        "asked": {str(task): int(n) for task, n in by_task.items()},
        "ratio_naive": round(tokens_naive / max(tokens, 1), 3),
        "ratio_full": round(tokens / tokens_full, 3) if tokens_full else None,
    }


def _tokenize(
    spec: ModelSpec,
    root: Path,
    images: ImageReader,
    rows: pd.DataFrame,
    counted: Counted,
    progress: Progress,
) -> tuple[dict[str, np.ndarray], int]:
    """(key -> the tokens of each distinct prompt, -1 for those of a picture; pictures a question).
    Every picture has as many tokens as the first."""
    from sdgbias.engines.hf.processor import load_chat
    from sdgbias.engines.hub_errors import BROKEN

    chat = load_chat(spec, root)
    pictured = rows.loc[rows["image_id"] != "", "image_id"]
    picture: tuple[bytes, ...] = (b"",)
    if counted.image_tokens is None and len(pictured):
        picture = images[str(pictured.iloc[0])]
    paths: list[np.ndarray] = []
    for start in each(progress, "counting tokens", range(0, len(rows), _ENCODED)):
        part = rows.iloc[start : start + _ENCODED].to_dict("records")
        prompts = as_prompts(part, defaultdict(lambda: picture))
        try:
            paths += chat.token_paths(prompts, counted.image_tokens)
        except (ValueError, *BROKEN) as error:
            why = first_line(error)
            raise ModelError(
                f"{spec.name}: its processor can't take these prompts ({type(error).__name__}:"
                f" {why}); try them one by one: sdgbias models parity {spec.name}"
            ) from None
    return dict(zip(rows["key"], paths, strict=True)), len(picture)


def _prefilled(ids: list[str], paths: Sequence[np.ndarray], size: int, shares: bool) -> int:
    """Tokens that are prefilled when the chunks of the plan are scored, those about one picture
    behind one beginning where the engine shares it."""
    from sdgbias.engines.hf.inputs import common_length

    tokens = start = 0
    while start < len(ids):
        end = chunk_end(ids, start, size)
        groups: dict[str, list[np.ndarray]] = {}
        for image_id, path in zip(ids[start:end], paths[start:end], strict=True):
            groups.setdefault(image_id, []).append(path)
        for image_id, group in groups.items():
            together = shares and bool(image_id) and len(group) > 1
            begun = common_length([path.tolist() for path in group]) if together else 0
            tokens += sum(map(len, group)) - begun * (len(group) - 1)
        start = end
    return tokens


def hours(spec: ModelSpec, prompts: Mapping[str, int], results: Sequence[Path]) -> dict[str, Any]:
    """GPU hours (without a GPU: hours) for so many prompts of each task, at the pace of the model's
    runs in ``results`` whose prompts were all timed: mean, lowest and highest, None without such a
    run, and how many runs they are."""
    devices = max(1, machine.gpus_of(spec))
    stored = [store.query(path, _PACE, [spec.name]) for path in results if path.is_file()]
    runs = [run.set_index("task")["pace"] for rows in stored for _, run in rows.groupby("run_id")]
    runs = [pace for pace in runs if set(prompts) <= set(pace.index)]
    took = [devices * sum(n * pace[task] for task, n in prompts.items()) / 3600 for pace in runs]
    return {
        "hours": sum(took) / len(took) if took else None,
        "low": min(took, default=None),
        "high": max(took, default=None),
        "runs": len(took),
    }
