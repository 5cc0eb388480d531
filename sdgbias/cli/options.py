"""Options and output that several commands share."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from sdgbias.errors import UsageError, argument, one_of
from sdgbias.progress import update
from sdgbias.types import Generation

if TYPE_CHECKING:
    import pandas as pd

    from sdgbias.registry.spec import ModelSpec
    from sdgbias.scoring.admission import Verdict

DEFAULT_RAW, DEFAULT_BENCHMARK, DEFAULT_RESULTS = (
    Path("data/raw"),
    Path("data/benchmark"),
    Path("results/sdgbias.duckdb"),
)
Search = Literal["random", "exact"]
Numerics = Literal["exact", "reference"]

RawOption = Annotated[
    Path,
    Option(
        "--raw",
        envvar="SDGBIAS_RAW",
        show_envvar=False,
        help="Raw data in SustainBench's layout.",
    ),
]
BenchmarkOption = Annotated[
    Path,
    Option(
        "--benchmark",
        envvar="SDGBIAS_BENCHMARK",
        show_envvar=False,
        help="Benchmark folder made by `sdgbias build`.",
    ),
]
ProbeBenchmark = Annotated[
    Path | None,
    Option(
        "--benchmark",
        envvar="SDGBIAS_BENCHMARK",
        show_envvar=False,
        help=(
            f"Benchmark folder. Default: {DEFAULT_BENCHMARK} if it is built, else a small one made"
            " for this check."
        ),
    ),
]
ResultsOption = Annotated[
    Path,
    Option("--results", envvar="SDGBIAS_RESULTS", show_envvar=False, help="Results file (DuckDB)."),
]
OutOption = Annotated[Path, Option("--out", help="Benchmark folder to write.")]
JsonOption = Annotated[bool, Option("--json", help="JSON instead of text.")]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would be done; write nothing.")]
YesOption = Annotated[bool, Option("--yes", help="Do it without asking.")]
SeedOption = Annotated[int, Option("--seed", min=0, max=2**32 - 1, help="Seed of the search.")]
SameBytesSeed = Annotated[int, Option("--seed", help="Seed; the same seed gives the same bytes.")]
DrawsOption = Annotated[
    int, Option("--draws", min=1, help="Random-search draws for CADE (paper: 10,000).")
]
DataDocsOption = Annotated[
    bool,
    Option(
        help=(
            "Also write Great Expectations' own pages to OUT/data_docs (they load their styles"
            " from the internet)."
        )
    ),
]
SearchOption = Annotated[
    Search, Option("--search", help="random: as in the paper; exact: over all breakpoints.")
]
NumericsOption = Annotated[
    Numerics,
    Option("--numerics", help="exact, or reference: with the authors' floors of 1e-9."),
]
PassesOption = Annotated[
    str,
    Option(
        help=("Extra prompts: all, none, or a comma-separated list of table_j and paraphrases.")
    ),
]
GeneratedOption = Annotated[
    Generation,
    Option(
        help=(
            "Which multiple-choice answers are also generated as text: T1 (Full at T1), all (Full"
            " at all tests), views (all views) or none."
        )
    ),
]
ModelArgument = Annotated[str, Argument(help="Name of a registered model (sdgbias models).")]
RunsOption = Annotated[
    list[str] | None,
    Option("--run", help="Run id; may be repeated. Default: the newest run of each model."),
]


def choice(option: str, value: str, valid: tuple[str, ...]) -> Any:
    """`value` when it is among `valid`; else UsageError that lists them."""
    if value not in valid:
        raise UsageError(f"{option}: {one_of('value', value, valid)}")
    return value


def probe_benchmark(given: Path | None) -> Path | None:
    """The benchmark that probes are drawn from: the one named, else the default one where it is
    built, else None."""
    built = (DEFAULT_BENCHMARK / "benchmark.json").is_file()
    return given or (DEFAULT_BENCHMARK if built else None)


def ask_probes(spec: ModelSpec, root: Path, benchmark: Path | None, probes: int) -> Verdict:
    """Asks a model a few questions, on GPUs that nothing else holds."""
    from sdgbias.nightly import gpus
    from sdgbias.nightly.regression.policy import least_mass
    from sdgbias.scoring import admission

    gpus.claim(spec)
    folder, floor = probe_benchmark(benchmark), least_mass(root)
    return admission.probe(spec, root, folder, probes, floor=floor, progress=update)


def registered(name: str) -> tuple[Path, ModelSpec]:
    """(root of the registry, the entry of a model). Raises RegistryError."""
    from sdgbias.registry import entries

    root = entries.find_root()
    return root, entries.load(root, name)


def confirmed(yes: bool, question: str, default: bool = False) -> bool:
    """Whether --yes is given, nobody can be asked, or the person agrees."""
    return yes or not sys.stdin.isatty() or typer.confirm(question, default=default)


def comma_list(text: str) -> list[str]:
    """The names in the value of an option, such as `one,two`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def print_table(rows: list[tuple[str, ...]], indent: str = "") -> None:
    """Print rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(indent + "  ".join(cells).rstrip())


def print_estimates(table: pd.DataFrame) -> None:
    """Print numbers of a query in columns, each with its interval and n as one text, in per cent or
    points or its own unit; why there is none in its place."""
    from sdgbias.methods.stats import Estimate
    from sdgbias.wording import written

    value = next(name for name in ("value", "accuracy", "disparity") if name in table)
    low, high = ("ci_low", "ci_high") if "ci_low" in table else ("low", "high")
    columns = [c for c in table if c not in (value, low, high, "n", "missing_reason", "run_id")]
    rows = [(*map(str, columns), f"{value} [95 % interval] n")]
    for row in table.to_dict("records"):
        e = Estimate.of_row({**row, "value": row[value]}, low, high)
        shown = written(e, str(row.get("metric", value))).cell if e.value == e.value else ""
        rows.append(
            (*(str(row[c]) for c in columns), shown or str(row.get("missing_reason", "none")))
        )
    print_table(rows)


def print_findings(results: Path, run_ids: Iterable[str], onward: str) -> None:
    """Print the answers of the report's first screen on these runs alone, and the next command."""
    from sdgbias.report.build import ReportPages

    for answer in ReportPages(results, list(run_ids), night=None).shared["answers"]:
        typer.echo(answer.text)
    typer.echo(f"Next: {onward}")


def query_table(
    results: Path, name: str, runs: Iterable[object] | None = None, **given: object
) -> pd.DataFrame:
    """A table of data/printed.sql, of these runs."""
    from sdgbias import store
    from sdgbias.files import packaged_sql

    values = given if runs is None else given | {"runs": list(runs)}
    return store.query(results, packaged_sql("printed.sql")[name], values)


def print_next_evaluation(benchmark: Path) -> None:
    onward = f"sdgbias evaluate MODEL --benchmark {argument(benchmark)}"
    typer.echo(f"Next: {onward} (sdgbias models lists them)")


def check_quality(benchmark: Path, data_docs: bool = False) -> None:
    """The quality gate of a benchmark; prints its warnings. Raises DataValidationError."""
    from sdgbias.benchmark import quality

    update("checking the benchmark")
    for warning in quality.run_gate(benchmark, data_docs=data_docs).warnings:
        typer.echo(f"  warning: {warning}", err=True)


def show(value: object, as_json: bool, lines: Iterable[object]) -> None:
    """Print a value as JSON, or the lines that say it."""
    if as_json:
        print_json(value)
    else:
        typer.echo("\n".join(map(str, lines)))


def print_json(value: object) -> None:
    """Print a value as JSON: a table as a list of rows; a missing or infinite number, which JSON
    can't write, as null; a time with its zone, which is UTC where it names none."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False, default=_text))


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV; lists and structs as JSON, of which no element is rounded or left out."""

    def cell(value: Any) -> Any:
        if not (isinstance(value, dict | list) or getattr(value, "ndim", False)):
            return value
        return json.dumps(_plain(value), ensure_ascii=False, default=str)

    return table.map(cell).to_csv(index=False).rstrip("\n")


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return str(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif hasattr(value, "to_dict"):  # a table; pandas is not imported for those who have none
        value = value.to_dict("records")
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if type(value).__name__ in ("NaTType", "NAType") or value in (math.inf, -math.inf):
        return None
    return None if value != value else value
