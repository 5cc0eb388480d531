"""The benchmark's intended use and the terms of its data: one packaged text
(data/intended_use.yaml) for dataset cards, releases and model pages."""

from __future__ import annotations

from functools import cache
from typing import Any

from sdgbias.files import packaged_yaml


@cache
def intended_use() -> dict[str, Any]:
    """summary: two sentences for places with little room. for, not_for, terms: sentences, one a
    point."""
    return dict(packaged_yaml("intended_use.yaml"))
