"""Which prompts are distinct, and in which order they are scored.

Of the 20 view x test cells of a question only the distinct prompts are scored: at T5 Full equals
IMG+Q and CTX+Q equals Q-only, IMG+Q and Q-only are the same under every test, and text-only prompts
repeat across the items of an indicator. Two cells share a prompt when text, image bytes and
candidates agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdgbias.registry.spec import ModelSpec
from sdgbias.types import IMAGE_FREE, VIEWS, Prompt, View

_SAME = ["candidates", "image_id", "text"]


@dataclass(frozen=True)
class Plan:
    """distinct: one row per distinct prompt (key, text, image_id, candidates, uses), in scoring
    order. cells: the benchmark's prompts with the key of the distinct prompt that answers them
    (task, item_id, test, view, key)."""

    distinct: pd.DataFrame
    cells: pd.DataFrame

    @property
    def naive(self) -> int:
        return len(self.cells)

    @property
    def planned(self) -> int:
        return len(self.distinct)

    def only(self, keys: Collection[str]) -> Plan:
        """The part of the plan that these prompts answer."""
        return Plan(
            self.distinct[self.distinct["key"].isin(keys)].reset_index(drop=True),
            self.cells[self.cells["key"].isin(keys)].reset_index(drop=True),
        )

    def paper(self) -> frozenset[str]:
        """Keys of the distinct prompts of the paper's views; the others belong to extra prompts
        alone and don't enter a comparison with the paper's cells."""
        views = [view.value for view in View]
        return frozenset(self.cells.loc[self.cells["view"].isin(views), "key"])


def askable(prompts: pd.DataFrame, spec: ModelSpec) -> pd.DataFrame:
    """The cells that a model can be asked: all, or for a language model those without a picture,
    whether of the views or of extra prompts."""
    if spec.pictured:
        return prompts
    useless = [view for view in VIEWS if view not in IMAGE_FREE]
    pictured = prompts["view"].isin(useless) | (prompts["image_id"] != "")
    return prompts[~pictured].reset_index(drop=True)


def as_prompts(
    rows: Iterable[Mapping[Any, Any]], images: Mapping[str, tuple[bytes, ...]]
) -> list[Prompt]:
    """Rows of a plan (text, candidates, image_id) with their pictures."""
    batch = []
    for row in rows:
        shown = row["image_id"]
        batch.append(Prompt(row["text"], row["candidates"], images[shown] if shown else (), shown))
    return batch


def prompt_key(fingerprint: str, candidates: str, image_id: str, text: str) -> str:
    """32 hex digits over everything that can change a score: engine and weights (fingerprint),
    candidates, image, text."""
    parts = (fingerprint, candidates, image_id, text)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def make_plan(prompts: pd.DataFrame, fingerprint: str) -> Plan:
    """Distinct prompts in the order that lets an engine reuse most.

    All prompts about one picture are adjacent, sorted by common prefix; pictures with the longest
    prompts come first, so that a chunk that is too large fails at once; prompts without a picture
    come last. prompts: task, item_id, test, view, text, image_id, candidates. The order of its rows
    does not matter.
    """
    groups = prompts.groupby(_SAME, sort=True)
    distinct = groups.size().rename("uses").reset_index()
    rows = zip(*(distinct[name].tolist() for name in _SAME), strict=True)
    distinct["key"] = [prompt_key(fingerprint, *row) for row in rows]
    cells = prompts[["task", "item_id", "test", "view"]].copy()
    cells["key"] = distinct["key"].to_numpy()[groups.ngroup().to_numpy()]
    longest = -distinct["text"].str.len().groupby(distinct["image_id"]).transform("max")
    ranked = distinct.assign(bare=distinct["image_id"] == "", longest=longest)
    ranked = ranked.sort_values(
        ["bare", "longest", "image_id", "text", "candidates"], kind="stable", ignore_index=True
    ).astype({"text": "str"})
    return Plan(
        ranked[["key", "text", "image_id", "candidates", "uses"]], cells.reset_index(drop=True)
    )


def chunk_end(image_id: list[str], start: int, size: int) -> int:
    """End of the chunk that begins at row ``start``: about ``size`` prompts, and whole pictures
    unless one has more prompts than that."""
    end = min(start + size, len(image_id))
    if end == len(image_id) or image_id[end] == "":
        return end
    first = image_id.index(image_id[end], start)  # first row of the picture that would be split
    return first if first > start else end
