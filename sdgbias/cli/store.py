"""`sdgbias store`: results that grow."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sdgbias.cli.application import MAINTENANCE, group
from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    YesOption,
    confirmed,
    print_json,
)
from sdgbias.errors import StoreError, argument
from sdgbias.progress import update

if TYPE_CHECKING:
    from collections.abc import Mapping

store_app = group(
    "store", MAINTENANCE, "Sizes, retention, removal of runs and checks of the results file."
)


@store_app.command(epilog="Example: sdgbias store keep --nights 90")
def keep(
    results: ResultsOption = DEFAULT_RESULTS,
    nights: Annotated[int, Option(min=1, help="Keep the details of so many newest nights.")] = 90,
    per_model: Annotated[
        int, Option(min=1, help="Keep those of so many newest runs of each model and suite.")
    ] = 3,
    apply: Annotated[
        bool, Option("--apply", help="Remove them; without it, they are only listed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the details (scores and answers) of old runs.

    Metrics, verdicts and nights are always kept. So are the details of one run of each model and
    month, of the newest run of each model, of accepted runs, and of runs that the newest verdicts
    compare.
    """
    from sdgbias.store import maintenance
    from sdgbias.wording import many, size

    planned = (
        maintenance.apply(results, nights, per_model, datetime.now(UTC))
        if apply
        else maintenance.plan(results, nights, per_model)
    )
    going = planned[planned["kept"] == ""]
    kept = planned.loc[planned["kept"] != "", "kept"].value_counts().sort_index()
    for why, n in () if as_json else kept.items():
        typer.echo(f"kept, {why}: {many(n, 'run')}", err=True)
    if as_json:
        print_json({"applied": apply, "runs": planned})
        return
    for run in going.to_dict("records"):
        typer.echo(f"{run['run_id']}  {run['finished_at']:%Y-%m-%d}  {size(int(run['bytes']))}")
    again = "" if apply or going.empty else ". To do it: the same command with --apply"
    typer.echo(
        f"Details of {len(going)} of {len(planned)} runs {'are' if apply else 'would be'} removed,"
        f" {size(int(going['bytes'].sum()))}{again}"
    )


@store_app.command(epilog="Example: sdgbias store remove RUN")
def remove(
    run_ids: Annotated[list[str], Argument(metavar="RUN...", help="Run ids to remove.")],
    results: ResultsOption = DEFAULT_RESULTS,
    yes: YesOption = False,
) -> None:
    """Remove runs that were made by mistake.

    Their numbers, answers and verdicts are deleted. The scores of their prompts stay in the cache,
    from which `sdgbias evaluate` publishes such a run again in seconds.
    """
    from sdgbias.store import maintenance
    from sdgbias.wording import many

    names = ", ".join(run_ids)
    if not confirmed(yes, f"Remove {names} for good?"):
        typer.echo("Nothing is removed.")
        return
    removed = maintenance.remove(results, run_ids)
    models = ", ".join(sorted(set(removed["model"])))
    gone = f"{many(len(removed), 'run')} of {models} {'is' if len(removed) == 1 else 'are'} removed"
    typer.echo(f"{results}: {gone}. Next: sdgbias report --results {argument(results)}")


@store_app.command(epilog="Example: sdgbias store compact")
def compact(results: ResultsOption = DEFAULT_RESULTS) -> None:
    """Remove files that nothing refers to, and shrink the DuckDB file.

    Run it while no night is running.
    """
    from sdgbias.store import maintenance
    from sdgbias.wording import many, size

    done = maintenance.compact(results, update)
    typer.echo(f"orphans: {many(done.orphans, 'file')}, {size(done.orphan_bytes)}")
    typer.echo(f"{results}: {size(done.before)} before, {size(done.after)} now")


@store_app.command(epilog="Example: sdgbias store check")
def check(results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False) -> None:
    """Print the sizes of the results, and check that every file is as it was written.

    The exit code is 7 if a file of a run or a night is missing or damaged. Orphans are files that
    nothing refers to.
    """
    from sdgbias.store import maintenance, night_files
    from sdgbias.wording import many

    about, broken = maintenance.info(results), maintenance.check(results, update)
    of_nights = night_files.faults(results)
    n = len(broken) + len(of_nights)
    if as_json:
        nights = [{"why": why, "file": str(path)} for path, why in of_nights]
        runs = [{"why": why, **asdict(one)} for one, why in broken]
        print_json({**about, "broken": runs + nights})
    else:
        _print_sizes(about)
        for one, why in broken:
            typer.echo(f"{why}: {one.file} (run {one.run_id})")
        for path, why in of_nights:
            typer.echo(f"{why}: {path}")
    if n:
        raise StoreError(
            f"{results}: {many(n, 'file is', 'files are')} missing or damaged; bring back"
            " what is lost from a copy, or move it away and evaluate again"
        )
    if not as_json:
        typer.echo(f"{results}: every file is as it was written")


def _print_sizes(about: Mapping[str, Any]) -> None:
    """Runs, nights, and bytes by table."""
    from sdgbias.wording import many, size

    range_ = f", {about['oldest']} to {about['newest']}" if about["runs"] else ""
    runs, models, nights = (many(about[f"{name}s"], name) for name in ("run", "model", "night"))
    typer.echo(f"{about['results']}: {runs} of {models}, {nights}{range_}")
    caches, orphans = about["score_caches"], about["orphans"]
    rows: list[tuple[str, int, str]] = [
        ("DuckDB file", about["duckdb_bytes"], ""),
        ("Parquet files", about["details_bytes"], f"in {about['details']}"),
        *(
            (f"  {name}", of["bytes"], f"{many(of['files'], 'file')}, {many(of['rows'], 'row')}")
            for name, of in about["tables"].items()
        ),
        ("score caches", caches["bytes"], many(caches["files"], "file")),
        ("orphans", orphans["bytes"], f"{many(orphans['files'], 'file')}; sdgbias store compact"),
    ]
    for name, n_bytes, note in rows:
        typer.echo(f"  {name:16} {size(n_bytes):>10}  {note}".rstrip())
    if n := about["runs_without_details"]:
        keep = many(n, "run keeps its", "runs keep their")
        typer.echo(f"  {keep} metrics only, since sdgbias store keep")
