"""Options that several command groups share, and how a wrong value is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sdgbias.errors import UsageError, one_of

RawOption = Annotated[Path, typer.Option("--raw", help="Raw folder in SustainBench's layout.")]
BenchmarkOption = Annotated[Path, typer.Option("--benchmark", help="Benchmark folder made by `sdgbias build`.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Results file (DuckDB); score shards lie beside it.")]
SearchOption = Annotated[str, typer.Option("--search", help="random (the paper's protocol) or exact (breakpoints in closed form).")]
DEFAULT_RAW, DEFAULT_BENCHMARK, DEFAULT_RESULTS = Path("data/raw"), Path("data/benchmark"), Path("results/sdgbias.duckdb")


def choice(option: str, value: str, valid: tuple[str, ...]) -> Any:
    """`value` when it is among `valid`; else UsageError that lists them."""
    if value not in valid:
        raise UsageError(f"{option}: {one_of('value', value, valid)}")
    return value
