"""Options that several command groups share, and how a wrong value is told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sdgbias.errors import UsageError, one_of
from sdgbias.progress import update

if TYPE_CHECKING:
    import pandas as pd

    from sdgbias.registry.spec import ModelSpec
    from sdgbias.scoring.admission import Verdict

RawOption = Annotated[
    Path,
    typer.Option(
        "--raw",
        envvar="SDGBIAS_RAW",
        show_envvar=False,
        help="Raw folder in SustainBench's layout.",
    ),
]
BenchmarkOption = Annotated[
    Path,
    typer.Option(
        "--benchmark",
        envvar="SDGBIAS_BENCHMARK",
        show_envvar=False,
        help="Benchmark folder made by `sdgbias build`.",
    ),
]
BenchmarksOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--benchmark",
        help=(
            "Benchmark folder; may be given several times, once a suite. Default: those of"
            " SDGBIAS_BENCHMARK or the project, and of data."
        ),
    ),
]
ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results",
        envvar="SDGBIAS_RESULTS",
        show_envvar=False,
        help="Results file (DuckDB).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
SearchOption = Annotated[
    str,
    typer.Option("--search", help="random (as the paper) or exact (breakpoints in closed form)."),
]
DEFAULT_RAW, DEFAULT_BENCHMARK, DEFAULT_RESULTS = (
    Path("data/raw"),
    Path("data/benchmark"),
    Path("results/sdgbias.duckdb"),
)


GeneratedOption = Annotated[
    str,
    typer.Option(
        help=(
            "Multiple-choice answers that are also generated: T1 (Full at T1), all (Full at all"
            " tests), views (all views), none."
        )
    ),
]
GENERATIONS = ("T1", "all", "views", "none")


def group(about: str) -> typer.Typer:
    """Commands below one name, which alone prints their help."""
    return typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)


def choice(option: str, value: str, valid: tuple[str, ...]) -> Any:
    """`value` when it is among `valid`; else UsageError that lists them."""
    if value not in valid:
        raise UsageError(f"{option}: {one_of('value', value, valid)}")
    return value


def probed_benchmark(given: Path | None) -> Path | None:
    """The benchmark that probes are drawn from: the one named, else the default one where it is
    built, else None."""
    built = (DEFAULT_BENCHMARK / "benchmark.json").is_file()
    return given or (DEFAULT_BENCHMARK if built else None)


def probed(spec: ModelSpec, root: Path, benchmark: Path | None, probes: int) -> Verdict:
    """Asks a model a few questions, on GPUs that nothing else holds."""
    from sdgbias.nightly import gpus
    from sdgbias.nightly.regression.policy import least_mass
    from sdgbias.scoring import admission

    gpus.claim(spec)
    folder, floor = probed_benchmark(benchmark), least_mass(root)
    return admission.probe(spec, root, folder, probes, floor=floor, progress=update)


def print_table(rows: list[tuple[str, ...]], indent: str = "") -> None:
    """Print rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(indent + "  ".join(cells).rstrip())


def print_findings(results: Path, run_ids: Iterable[str], onward: str) -> None:
    """Print the answers of the report's first screen on these runs alone, and the next command."""
    from sdgbias.report.build import ReportPages

    for answer in ReportPages(results, list(run_ids), night=None).shared["answers"]:
        typer.echo(answer.text)
    typer.echo(f"Next: {onward}")


def printed(
    results: Path, name: str, runs: Iterable[object] | None = None, **given: object
) -> pd.DataFrame:
    """A table of data/printed.sql, of these runs."""
    from sdgbias import store
    from sdgbias.files import packaged_sql

    asked = given if runs is None else {"runs": list(runs)}
    return store.query(results, packaged_sql("printed.sql")[name], asked)


def say(found: object, as_json: bool, text: str, /, **values: Any) -> None:
    """Print a value as JSON, or by the template data/texts/<text>.txt.j2, which gets ``values``."""
    say_json(found) if as_json else tell(text, **values)


def tell(text: str, /, **values: Any) -> None:
    """Print the template data/texts/<text>.txt.j2 with these values."""
    from sdgbias import templates

    typer.echo("\n".join(templates.lines(text, **values)))


def check_quality(benchmark: Path, data_docs: bool = False) -> None:
    """The quality gate of a benchmark; prints its warnings. Raises DataValidationError."""
    from sdgbias.benchmark import quality

    update("checking the benchmark")
    for warning in quality.run_gate(benchmark, data_docs=data_docs).warnings:
        typer.echo(f"  warning: {warning}", err=True)


def say_json(found: object) -> None:
    """Print a value as JSON: a table as a list of rows, a number that isn't there as null."""
    typer.echo(json.dumps(_plain(found), indent=2, ensure_ascii=False, default=str))


def _plain(found: Any) -> Any:
    if is_dataclass(found) and not isinstance(found, type):
        found = asdict(found)
    elif hasattr(found, "to_dict"):  # a table; pandas is not imported for those who have none
        found = found.to_dict("records")
    elif hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, dict):
        return {str(key): _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return None if type(found).__name__ in ("NaTType", "NAType") or found != found else found
