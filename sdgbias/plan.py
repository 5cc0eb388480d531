"""Which prompts are distinct, and in which order they are scored.

Of the 20 view x test cells of a question only the distinct prompts are scored: at T5 Full is IMG+Q and CTX+Q is Q-only,
IMG+Q and Q-only are the same under every test, and text-only prompts repeat across the items of an indicator. Two cells
are the same prompt when text, image bytes and candidates agree.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pandas as pd

_SAME = ["candidates", "image_id", "text"]


@dataclass(frozen=True)
class Plan:
    """distinct: one row per distinct prompt (key, text, image_id, candidates, uses), in scoring order.
    cells: the benchmark's prompts with the key of the distinct prompt that answers them (task, item_id, test, view, key)."""

    distinct: pd.DataFrame
    cells: pd.DataFrame

    @property
    def naive(self) -> int:
        return len(self.cells)

    @property
    def planned(self) -> int:
        return len(self.distinct)


def prompt_key(fingerprint: str, candidates: str, image_id: str, text: str) -> str:
    """32 hex digits over everything that can change a score: engine and weights (fingerprint), candidates, image, text."""
    parts = (fingerprint, candidates, image_id, text)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def make_plan(prompts: pd.DataFrame, fingerprint: str) -> Plan:
    """Distinct prompts, longest first (so a batch that is too large shows at once), ties by text and image.

    prompts: task, item_id, test, view, text, image_id, candidates. The order of its rows does not matter.
    """
    groups = prompts.groupby(_SAME, sort=True)
    distinct = groups.size().rename("uses").reset_index()
    rows = zip(distinct["candidates"], distinct["image_id"], distinct["text"], strict=True)
    distinct["key"] = [prompt_key(fingerprint, c, i, t) for c, i, t in rows]
    cells = prompts[["task", "item_id", "test", "view"]].copy()
    cells["key"] = distinct["key"].to_numpy()[groups.ngroup().to_numpy()]
    order = pd.DataFrame({"image": distinct["image_id"] == "", "length": -distinct["text"].str.len()})
    distinct = distinct.loc[order.sort_values(["image", "length"], kind="stable").index].reset_index(drop=True)
    return Plan(distinct[["key", "text", "image_id", "candidates", "uses"]], cells.reset_index(drop=True))
