"""`sdgbias store`: how big the results are, what is kept, clearing up, damaged files."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, say, say_json
from sdgbias.progress import update

store_app = typer.Typer(
    help=(
        "Results that grow: sizes, retention, clearing up, damaged files. docs/reference/results.md"
        " says what lies where."
    ),
    no_args_is_help=True,
)


@store_app.command()
def info(
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Runs, nights, sizes by table (JSON: in bytes), orphans."""
    from sdgbias.store import maintenance

    found = maintenance.info(results)
    say(found, as_json, "store_info", found=found, size=maintenance.size)


@store_app.command()
def keep(
    results: ResultsOption = DEFAULT_RESULTS,
    nights: Annotated[int, typer.Option(min=1)] = 90,
    per_model: Annotated[int, typer.Option(min=1)] = 3,
    apply: Annotated[bool, typer.Option("--apply")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the details (scores, answers) of old runs; shows first what would go. Metrics,
    verdicts and nights stay for ever.

    Never removed: one run per model and month, the newest of each model, accepted runs, and what
    the newest verdicts compare.

    Args:
        nights: Details of the newest nights stay.
        per_model: Details of so many newest runs of each model and suite stay.
        apply: Do it; without, it is only shown.
    """
    from sdgbias.store import maintenance

    planned = (
        maintenance.apply(results, nights, per_model, datetime.now(UTC))
        if apply
        else maintenance.plan(results, nights, per_model)
    )
    going = planned[planned["kept"] == ""]
    kept = planned.loc[planned["kept"] != "", "kept"].value_counts().sort_index()
    for why, n in () if as_json else kept.items():
        typer.echo(f"kept, {why}: {n} runs", err=True)
    say(
        {"applied": apply, "runs": planned},
        as_json,
        "store_keep",
        applied=apply,
        going=going.to_dict("records"),
        many=len(planned),
        size=maintenance.size,
    )


@store_app.command()
def remove(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids to remove.")],
    results: ResultsOption = DEFAULT_RESULTS,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Remove runs that were made by mistake: their numbers, answers and verdicts.

    The scores of their prompts stay cached: `sdgbias evaluate` publishes such a run again in
    seconds.
    """
    from sdgbias.store import maintenance

    names = ", ".join(run_ids)
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Remove {names} for good?"):
        typer.echo("Nothing is removed.")
        return
    removed = maintenance.remove(results, run_ids)
    models = ", ".join(sorted(set(removed["model"])))
    runs = "1 run" if len(removed) == 1 else f"{len(removed)} runs"
    gone = f"{runs} of {models} {'is' if len(removed) == 1 else 'are'} removed"
    typer.echo(f"{results}: {gone}. Next: sdgbias report --results {results}")


@store_app.command()
def compact(
    results: ResultsOption = DEFAULT_RESULTS,
    caches: Annotated[bool, typer.Option("--caches")] = False,
) -> None:
    """Clear away files that nothing refers to, and copy the DuckDB file to a new one without holes.
    Run it while no night runs.

    Args:
        caches: Also score caches of models that no run refers to, untouched for a week.
    """
    from sdgbias.store import maintenance
    from sdgbias.store.maintenance import size

    done = maintenance.compact(results, caches=caches, now=datetime.now(UTC), progress=update)
    typer.echo(
        f"orphans: {done.orphans} files, {size(done.orphan_bytes)}; score caches: {done.caches},"
        f" {size(done.cache_bytes)}"
    )
    typer.echo(f"{results}: {size(done.before)} before, {size(done.after)} now")


@store_app.command()
def check(results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False) -> None:
    """Read every Parquet file and compare it with what was written; exit code 7 when one is missing
    or damaged."""
    from sdgbias.errors import StoreError
    from sdgbias.store import maintenance

    broken = maintenance.check(results, update)
    if as_json:
        say_json([{"why": why, **asdict(detail)} for detail, why in broken])
    for detail, why in [] if as_json else broken:
        typer.echo(f"{why}: {detail.file} (run {detail.run_id})")
    if broken:
        raise StoreError(
            f"{results}: {len(broken)} files are missing or damaged; bring them back from a copy,"
            " or move them away and evaluate again"
        )
    if not as_json:
        typer.echo(f"{results}: every file is as it was written")
