"""What a benchmark folder asks, whichever suite it belongs to.

Suites: what is asked and what is concluded from the scores. A suite never sees a model.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from sdgbias.errors import InputError, one_of
from sdgbias.suites import facet, sdg
from sdgbias.suites.extra_prompts import extra_cells
from sdgbias.types import SUITES


def benchmark_card(benchmark: Path) -> dict[str, object]:
    """benchmark.json of a finished folder. Raises InputError when there is none, when it can't be
    read, or when it names no suite of this version."""
    path = benchmark / "benchmark.json"
    if not path.exists():
        raise InputError(
            f"{path}: no benchmark here; build one first: sdgbias build --raw RAW --indicators DIR"
            f" --out {benchmark}"
        )
    try:
        card: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        str(card["benchmark_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = {KeyError: "no benchmark_id in it", TypeError: "no JSON object"}.get(
            type(error), (str(error).splitlines() or [type(error).__name__])[0]
        )
        raise InputError(
            f"{path}: can't be read as a benchmark's card ({why}); write it again: sdgbias build"
            f" --stage card --out {benchmark}"
        ) from None
    if suite_of(card) not in SUITES:
        raise InputError(
            f"{path}: {one_of('suite', suite_of(card), SUITES)}; build the benchmark again"
        )
    return card


def suite_of(card: dict[str, object]) -> str:
    """The suite of a card; folders made before there were two belong to the first."""
    return str(card.get("suite", sdg.NAME))


def cells(benchmark: Path, suite: str, passes: tuple[str, ...] = (), seed: int = 0) -> pd.DataFrame:
    """Every cell of a benchmark: the paper's views, and for the first suite those of extra passes
    (passes.py)."""
    if suite == facet.NAME:
        return facet.load_prompts(benchmark)
    extra = extra_cells(
        sdg.load_items(benchmark), sdg.read_table(benchmark, "prompts"), passes, seed
    )
    return pd.concat([sdg.load_prompts(benchmark), extra], ignore_index=True)
