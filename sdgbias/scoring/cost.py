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
#: Seconds per prompt of each task of a model's runs. Prompts without candidates (p1 of people) are
#: answered freely alone; of the others both phases count.
_PACE = """
SELECT run_id, task, sum(seconds_measured ORDER BY phase, "view")
       / coalesce(sum(prompts) FILTER (phase = 'score'), sum(prompts)) AS pace
FROM timings JOIN runs USING (run_id) WHERE model = ?
GROUP BY ALL HAVING pace > 0 AND bool_and(untimed = 0) ORDER BY ALL
"""


def cost(
    spec: ModelSpec,
    root: Path,
    benchmark: Path,
    *,
    task: str = "",
    image_tokens: int | None = None,
    passes: tuple[str, ...] = (),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Counts for one registered model on one benchmark. ``task``: 'mcq' or 'regression' alone;
    ``image_tokens``: per picture, instead of the model's number; ``passes``: prompts beyond the
    paper's views.

    prompts_*, tokens_*: *_naive, every cell of the paper's views; *_full, Full-view cells alone,
    the plain evaluation that the paper compares CADE's price with; *_distinct and *_planned of the
    paper's views; *_extra, what extra prompts add to the planned counts. asked: task -> distinct
    prompts of each view, summed. Raises UsageError for an engine without a tokenizer here."""
    if spec.backend not in TOKENIZED:
        raise UsageError(
            f"{spec.name}: backend {spec.backend} has no tokenizer to count with; models of"
            f" {' and '.join(TOKENIZED)} have, and are asked the same prompts: sdgbias plan NAME"
        )
    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings(passes=passes))
    cells = askable(cells[cells["task"] == task] if task else cells, spec).reset_index(drop=True)
    plan, images = make_plan(cells, spec.name), ImageReader(benchmark)
    pictured = plan.distinct.loc[plan.distinct["image_id"] != "", "image_id"]
    # every picture has as many tokens as the first
    picture = images[pictured.iloc[0]] if image_tokens is None and len(pictured) else (b"",)
    paths = _tokenize(spec, root, plan.distinct, picture, image_tokens, progress)
    paper, full = cells["view"].isin([view.value for view in View]), cells["view"] == "full"
    lengths = plan.cells["key"].map({key: len(path) for key, path in paths.items()})
    (prompts, planned), (all_prompts, all_planned) = (
        _planned(spec, part, paths) for part in (cells[paper], cells)
    )
    tokens = {"naive": int(lengths[paper].sum()), "full": int(lengths[full].sum())}
    tokens["distinct"] = int(lengths[paper & ~plan.cells["key"].duplicated()].sum())
    of_pictures = int((next(iter(paths.values())) == -1).sum()) if paths else 0
    by_task = plan.cells.groupby(["task", "view"])["key"].nunique().groupby("task").sum()
    return {
        "model": spec.name,
        "items": len(cells[["task", "item_id"]].drop_duplicates()),
        "prompts_naive": int(paper.sum()),
        "prompts_full": int(full.sum()),
        "prompts_planned": prompts,
        "prompts_extra": all_prompts - prompts,
        **{f"tokens_{what}": n for what, n in tokens.items()},
        "tokens_planned": planned,
        "tokens_extra": all_planned - planned,
        "image_tokens": of_pictures // len(picture) + 1 if of_pictures else 0,
        "asked": {str(task): int(n) for task, n in by_task.items()},
        "ratio_naive": round(tokens["naive"] / max(planned, 1), 3),
        "ratio_full": round(planned / tokens["full"], 3) if tokens["full"] else None,
    }


def _tokenize(
    spec: ModelSpec,
    root: Path,
    rows: pd.DataFrame,
    picture: tuple[bytes, ...],
    image_tokens: int | None,
    progress: Progress,
) -> dict[str, np.ndarray]:
    """Key -> the tokens of each distinct prompt, -1 for those of a picture; ``picture``: in place
    of each question's."""
    from sdgbias.engines.hf.processor import load_chat
    from sdgbias.engines.hub_errors import BROKEN

    chat = load_chat(spec, root)
    paths: list[np.ndarray] = []
    for start in each(progress, "counting tokens", range(0, len(rows), _ENCODED)):
        part = rows.iloc[start : start + _ENCODED].to_dict("records")
        prompts = as_prompts(part, defaultdict(lambda: picture))
        try:
            paths += chat.token_paths(prompts, image_tokens)
        except (ValueError, *BROKEN) as error:
            why = first_line(error)
            raise ModelError(
                f"{spec.name}: its processor can't take these prompts ({type(error).__name__}:"
                f" {why}); try them one by one: sdgbias models parity {spec.name}"
            ) from None
    return dict(zip(rows["key"], paths, strict=True))


def _planned(
    spec: ModelSpec, cells: pd.DataFrame, paths: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """(distinct prompts of the cells, tokens that are prefilled when the chunks of their plan are
    scored), those about one picture behind one beginning where the engine shares it."""
    from sdgbias.engines.hf.inputs import common_length

    options = read(spec, WeightOptions)
    # vLLM shares beginnings by itself
    shares = bool(options.share_prefix) if isinstance(options, HfOptions) else True
    rows = make_plan(cells, spec.name).distinct
    ids, keys, tokens, start = rows["image_id"].tolist(), rows["key"].tolist(), 0, 0
    while start < len(ids):
        end = chunk_end(ids, start, spec.batch_size)
        groups = defaultdict[str, list[np.ndarray]](list)
        for image_id, key in zip(ids[start:end], keys[start:end], strict=True):
            groups[image_id].append(paths[key])
        for image_id, group in groups.items():
            together = shares and bool(image_id) and len(group) > 1
            begun = common_length([path.tolist() for path in group]) if together else 0
            tokens += sum(map(len, group)) - begun * (len(group) - 1)
        start = end
    return len(rows), tokens


def hours(spec: ModelSpec, prompts: Mapping[str, int], results: Sequence[Path]) -> dict[str, Any]:
    """Hours of one device (a GPU, or the CPU) for so many prompts of each task, at the pace of the
    model's runs in ``results`` whose prompts were all timed: mean, lowest and highest, None without
    such a run, and how many runs they are."""
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
