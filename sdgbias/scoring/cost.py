"""The cost of scoring a benchmark before any model is loaded: prompts and tokens, under the paper's
protocol and as planned.

Naive is the paper's protocol: every cell (view x test of an item) is a separate forward pass.
Planned is what sdgbias does: each distinct prompt once, with common prefixes of the prompts about
one picture prefilled once (engines/hf/shared_prefix.py). Both are counted over the paper's views
alone, so that they are comparable; what extra prompts add to the plan is reported separately.
Tokens are exact: counted with the model's tokenizer and chat template, over the same trees that the
engine builds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sdgbias import suites, templates
from sdgbias.engines.hf import token_tree
from sdgbias.errors import ModelError, UsageError, first_line
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.shards import ImageReader
from sdgbias.scoring.plan import Plan, as_prompts, askable, chunks, make_plan
from sdgbias.types import (
    ANSWER_TOKENS,
    DIGITS,
    LETTERS,
    NEEDS_PICTURES,
    OPTION_LETTERS,
    ModelSpec,
    View,
)

if TYPE_CHECKING:
    from sdgbias.engines.hf.tokens import CandidateTokens

TOKENIZED = ("hf", "vllm")
_ENCODED = 4096  # prompts tokenized at once


@dataclass(frozen=True)
class Cost:
    """*_naive, *_full, *_distinct, *_planned: the paper's views without extra prompts. *_full:
    Full-view prompts alone, the plain evaluation that the paper compares CADE's price with.
    images_*: encodings of a picture. *_extra: what extra prompts add to the planned counts.
    asked: task -> distinct prompts of each view, summed; answer_tokens: the most that generated
    answers may have."""

    model: str
    items: int
    prompts_naive: int
    prompts_full: int
    prompts_planned: int
    prompts_extra: int
    tokens_naive: int
    tokens_full: int
    tokens_distinct: int
    tokens_planned: int
    tokens_extra: int
    images_naive: int
    images_full: int
    images_planned: int
    images_extra: int
    image_tokens: int
    asked: dict[str, int]
    answer_tokens: int

    def json(self) -> str:
        ratios = {
            "ratio_naive": self.tokens_naive / max(self.tokens_planned, 1),
            "ratio_full": self.tokens_planned / self.tokens_full if self.tokens_full else None,
        }
        rounded = {k: v if v is None else round(v, 3) for k, v in ratios.items()}
        return json.dumps({**asdict(self), **rounded}, indent=2)

    def lines(self) -> list[str]:
        return templates.lines("cost", c=self, needs_pictures=NEEDS_PICTURES)


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
    *,
    progress: Progress = silent,
) -> Cost:
    """Counts for one registered model on one benchmark. Raises UsageError for an engine without a
    tokenizer here."""
    if spec.backend not in TOKENIZED:
        raise UsageError(
            f"{spec.name}: backend {spec.backend} has no tokenizer to count with; plan works for:"
            f" {', '.join(TOKENIZED)}"
        )
    from sdgbias.engines.hf.loading import tree_tokens
    from sdgbias.engines.hf.processor import load_processor
    from sdgbias.engines.hf.prompting import template_of, token_paths
    from sdgbias.engines.hf.tokens import find_candidates
    from sdgbias.engines.hub_errors import BROKEN

    processor, template = load_processor(spec, root), template_of(spec)
    image_tokens, task = counted.image_tokens, counted.task
    asked = suites.EvalSettings(passes=counted.passes)
    cells = suites.of(benchmark).cells(benchmark, asked)
    cells = askable(cells[cells["task"] == task] if task else cells, spec)
    plan = make_plan(cells, spec.name)
    paper = cells["view"].isin([view.value for view in View]).to_numpy()
    rows = plan.distinct
    picture: tuple[bytes, ...] = (b"",)
    pictured = rows.loc[rows["image_id"] != "", "image_id"]
    if image_tokens is None and len(pictured):
        picture = ImageReader(benchmark)[str(pictured.iloc[0])]
    parts = len(picture)
    paths: list[np.ndarray] = []
    for start in each(progress, "counting tokens", range(0, len(rows), _ENCODED)):
        part = rows.iloc[start : start + _ENCODED]
        prompts = as_prompts(part.to_dict("records"), defaultdict(lambda: picture))
        try:
            paths += token_paths(processor, prompts, image_tokens, template)
        except (ValueError, *BROKEN) as error:
            why = first_line(error)
            raise ModelError(
                f"{spec.name}: its processor can't take these prompts ({type(error).__name__}:"
                f" {why}); try them one by one: sdgbias models parity {spec.name}"
            ) from None
    lengths = pd.Series([len(path) for path in paths], index=rows["key"])
    of_cells = plan.cells["key"].map(lengths)
    full = cells["view"].to_numpy() == "full"
    by_key = dict(zip(rows["key"], paths, strict=True))
    size, limit = spec.batch_size, tree_tokens(spec, root)
    tokens = find_candidates(
        processor.tokenizer, LETTERS + DIGITS, LETTERS.lower() + OPTION_LETTERS
    )
    bare = plan if paper.all() else make_plan(cells[paper], spec.name)
    of_bare = [by_key[key] for key in bare.distinct["key"]]
    tokens_planned, images = _planned(bare, _leaves(bare, of_bare, tokens), size, limit)
    tokens_all, images_all = (
        (tokens_planned, images)
        if bare is plan
        else _planned(plan, _leaves(plan, paths, tokens), size, limit)
    )
    shown = (cells["image_id"] != "").to_numpy()
    one = int((paths[0] == -1).sum()) if len(paths) else 0
    return Cost(
        model=spec.name,
        items=int(cells[["task", "item_id"]].drop_duplicates().shape[0]),
        prompts_naive=int(paper.sum()),
        prompts_full=int(full.sum()),
        prompts_planned=bare.planned,
        prompts_extra=plan.planned - bare.planned,
        tokens_naive=int(of_cells[paper].sum()),
        tokens_full=int(of_cells[full].sum()),
        tokens_distinct=sum(map(len, of_bare)),
        tokens_planned=tokens_planned,
        tokens_extra=tokens_all - tokens_planned,
        images_naive=int((shown & paper).sum()) * parts,
        images_full=int((shown & full).sum()) * parts,
        images_planned=images * parts,
        images_extra=(images_all - images) * parts,
        image_tokens=one // parts + 1 if one else 0,
        asked=_asked(plan),
        answer_tokens=_answer_tokens(plan, spec),
    )


def _asked(plan: Plan) -> dict[str, int]:
    counts = plan.cells.groupby(["task", "view"], sort=True)["key"].nunique()
    return {str(task): int(n) for task, n in counts.groupby("task", sort=True).sum().items()}


def _answer_tokens(plan: Plan, spec: ModelSpec) -> int:
    """Tokens of the answers that are generated by default: letters of the Full view at T1, a number
    for every prompt of regression, free words about every picture of people."""
    limits, total = {**ANSWER_TOKENS, **spec.max_new_tokens}, 0
    for task, cells in plan.cells.groupby("task"):
        letters = task == "mcq"
        if letters:
            cells = cells[(cells["view"] == "full") & (cells["test"] == "T1")]
        limit = limits[str(task) if str(task) in limits else "people"]
        total += cells["key"].nunique() * limit
    return int(total)


def _leaves(
    plan: Plan, paths: Sequence[np.ndarray], tokens: CandidateTokens
) -> list[list[np.ndarray]]:
    """What a tree holds of each prompt: its tokens, and where its candidates may come after a lone
    space, those with the space behind them."""
    found = []
    for path, asked in zip(paths, plan.distinct["candidates"], strict=True):
        spaced = not tokens.needs_space.isdisjoint(asked)
        found.append([path, np.append(path, tokens.space or 0)] if spaced else [path])
    return found


def _planned(
    plan: Plan, leaves: Sequence[list[np.ndarray]], size: int, limit: int | None
) -> tuple[int, int]:
    """(tokens prefilled, pictures encoded) when the chunks of the plan are scored in trees of at
    most ``limit`` tokens (None: each prompt alone)."""
    ids = plan.distinct["image_id"].tolist()
    tokens = pictures = start = 0
    while start < len(ids):
        end = chunks(ids, start, size)
        groups: dict[str, list[list[np.ndarray]]] = {}
        for image_id, of_one in zip(ids[start:end], leaves[start:end], strict=True):
            groups.setdefault(image_id, []).append(of_one)
        for image_id, own in groups.items():
            alone = limit is None or len(own) == 1
            tokens += (
                sum(len(of_one[0]) for of_one in own)
                if limit is None or alone
                else token_tree.prefilled([path for of_one in own for path in of_one], limit)
            )
            pictures += bool(image_id) * (len(own) if alone else 1)
        start = end
    return tokens, pictures
