"""The benchmark authors' formats: prediction tables, and benchmarks as JSONL and images."""

from __future__ import annotations

from pathlib import Path

from sdgbias.files import json_object


def is_release(benchmark: Path) -> bool:
    """Whether a benchmark's folder was created by `sdgbias release import`."""
    return bool(json_object(benchmark / "origin.json").get("release", False))
