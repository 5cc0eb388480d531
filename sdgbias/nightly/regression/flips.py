"""Flips: questions whose answer changed from right to wrong, or back, between two runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.run import missing
from sdgbias.files import packaged_sql
from sdgbias.types import NEEDS_SCORES

COLUMNS = ["task", "test", "method", "item_id", "gold", "was", "now", "better"]
#: Methods whose flips are stored: the answer with all evidence, and CADE's.
METHODS = ["full", "cade"]
#: Of a model that gives no scores.
TEXT_ONLY = ["full", "full_generated"]


def examples(
    results: Path, old: str, new: str, suite: str, limit: int, breached: Collection[str] = ()
) -> pd.DataFrame:
    """At most ``limit`` rows of table ``flips`` without night, model, suite and runs. Order: right
    to wrong first; every question once before any question twice; methods in ``breached`` before
    others; highest confidence first (of the Full view, sum of both runs). Deterministic."""
    methods = TEXT_ONLY if NEEDS_SCORES in missing(results, new).values() else METHODS
    sql = packaged_sql("nights.sql")["flips"].format(reported=suites.named(suite).reported("p"))
    given = {"new": new, "old": old, "methods": methods, "breached": sorted(breached)}
    return store.query(results, sql, given | {"limit": limit}, runs=[new, old])[COLUMNS]
