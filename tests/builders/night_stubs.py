"""Nights whose models are a few lines of Python in a real process, and whose benchmark is a
name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from sdgbias.nightly import attempt
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job

NOW = datetime(2026, 11, 21, 1, 30, 7, tzinfo=UTC)
NIGHT = "2026-11-21T0130"


def entry(root: Path, name: str, **fields: object) -> Path:
    path = root / "registry" / "models" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {
        "name": name,
        "title": name,
        "backend": "planted",
        "repo": "planted",
        "revision": "1",
        "state": "enabled",
        "batch_size": 8,
    }
    path.write_text(yaml.safe_dump({**plain, **fields}))
    return path


def settings(root: Path, *names: str, **more: object) -> NightOptions:
    """A registry of these planted models, a benchmark that is a name, and where results go."""
    for name in names:
        entry(root, name)
    (root / "registry" / "models").mkdir(parents=True, exist_ok=True)
    benchmark = root / "benchmark"
    benchmark.mkdir(exist_ok=True)
    (benchmark / "benchmark.json").write_text(json.dumps({"benchmark_id": "b1", "suite": "sdg"}))
    options = NightOptions(
        root / "results" / "r.duckdb", root / "report", [benchmark], root=root, timezone="UTC"
    )
    return replace(options, **more)  # type: ignore[arg-type]


def job(root: Path, name: str = "m", **more: object) -> Job:
    folder = root / "results" / "r.nights" / NIGHT
    plain = Job(
        NIGHT,
        name,
        "sdg",
        root / "benchmark",
        folder / f"registry/{name}.yaml",
        "cpu",
        120.0,
        "k",
        folder / f"logs/{name}-sdg.log",
        root,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def stub(*codes: str) -> Callable[[Job, Path, int], Sequence[str]]:
    """Attempt n runs the n-th piece of code (the last one from then on); `out` is where its outcome
    goes, `tell` writes it."""
    head = (
        "import json, os, sys, time, signal, pathlib\nout = pathlib.Path(sys.argv[1])\ntell ="
        " lambda **outcome: out.write_text(json.dumps(outcome))\n"
    )

    def argv(job: Job, results: Path, number: int) -> Sequence[str]:
        return [
            sys.executable,
            "-c",
            head + codes[min(number, len(codes)) - 1],
            str(attempt.outcome_file(job, number)),
            job.model,
        ]

    return argv


def by_model(**codes: str) -> Callable[[Job, Path, int], Sequence[str]]:
    """Each model runs its own code; the name as Python spells it (good_1 for good-1)."""
    return lambda job, results, number: stub(codes[job.model.replace("-", "_")])(
        job, results, number
    )


PUBLISH = "tell(run_id=f'{sys.argv[2]}-1', scored=10, planned=12, failed=2, outcome='published')"
