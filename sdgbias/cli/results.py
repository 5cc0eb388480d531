"""`sdgbias results` and `sdgbias report`: the headline table, any query, and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    print_table,
    printed,
    say_json,
)
from sdgbias.cli.wandb import log_beside_report
from sdgbias.errors import UsageError, one_of
from sdgbias.types import FACET

if TYPE_CHECKING:
    import pandas as pd


def results(
    what: Annotated[str, typer.Argument()] = "headline",
    results: ResultsOption = DEFAULT_RESULTS,
    sql: str = "",
    csv: Annotated[bool, typer.Option("--csv")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the headline: a line a model for each suite, every number with its 95 % interval and n;
    or the answer to --sql. --json has every view, test and prompt, --csv those of questions;
    `results tables` lists the tables, columns, metrics and methods that a query can name, `results
    MODEL` has one model alone. Runs on own questions have a table of their own, by suite.

    Args:
        what: headline; tables: what the file holds; or a model.
        sql: Any query; the public view is metrics(run_id, model, ..., ci_high).
        csv: Comma-separated instead of a table.
    """
    from sdgbias import store

    if what == "tables":
        from sdgbias.report import contents

        found = contents.read(results)
        say_json(found) if as_json else typer.echo("\n".join(contents.lines(found)))
        return
    if csv and as_json:
        raise UsageError("give --csv or --json, not both")
    if sql and what != "headline":
        raise UsageError(f"give {what} or --sql, not both; a query names its model itself")
    if sql:
        table = store.ask(results, sql)
        say_json(table) if as_json else typer.echo(_text(table, csv))
        return
    with store.held_open(results):
        model = "" if what == "headline" else _model(results, what)
        runs = _newest(results, model)
        if csv:
            typer.echo(_text(_metrics(results, runs), csv))
        elif as_json:
            parts = {"metrics": _metrics(results, runs), "people": _people(results, model)}
            say_json(parts | {"own": _groups(results, runs)})
        else:
            _headline(results, runs, model)


def _text(table: pd.DataFrame, csv: bool) -> str:
    return table.to_csv(index=False).rstrip("\n") if csv else table.to_string(index=False)


def _model(results: Path, name: str) -> str:
    """A model that has a run. Raises UsageError for any other name."""
    from sdgbias import store

    models = set(store.query(results, "SELECT DISTINCT model FROM runs")["model"])
    if name not in models:
        raise UsageError(f"{one_of('model', name, models)}; or: headline, tables")
    return name


def _newest(results: Path, model: str) -> dict[str, str]:
    """Newest run of each model, or of this one, on questions -> its suite."""
    from sdgbias import store, suites

    sql = "SELECT run_id, suite FROM runs WHERE $model IN ('', model)"
    suite_of: dict[str, str] = dict(
        store.query(results, sql, {"model": model}).itertuples(index=False)
    )
    return {
        run: suite_of[run]
        for run in suites.newest_runs(results)
        if run in suite_of and not suites.named(suite_of[run]).private
    }


def _metrics(results: Path, runs: Mapping[str, str]) -> pd.DataFrame:
    """The pooled numbers of these runs, by model, task, test and method."""
    table = printed(results, "newest", runs)
    # the column is there where there is more to tell apart than models
    return table if _own(runs) else table.drop(columns="suite")


def _people(results: Path, model: str) -> pd.DataFrame | None:
    """Disparities of the newest runs on people, or of those of this model."""
    from sdgbias import store

    chosen = store.latest_runs(results, FACET, per_benchmark=True)
    if not chosen:
        return None
    table = printed(results, "people", chosen)
    return table[table["model"] == model] if model else table


def _own(runs: Mapping[str, str]) -> dict[str, str]:
    """Those of the runs that are on custom questions."""
    from sdgbias import suites

    return {run: suite for run, suite in runs.items() if not suites.named(suite).attributes}


def _groups(results: Path, runs: Mapping[str, str]) -> pd.DataFrame | None:
    """Disparities of the runs on custom questions."""
    custom = _own(runs)
    return printed(results, "groups", custom) if custom else None


def _headline(results: Path, runs: Mapping[str, str], model: str) -> None:
    """Print the headline of every suite, of all models or of this one."""
    from sdgbias.report import headlines

    said = False
    for title, rows in headlines.sections(results, model):
        typer.echo(f"{chr(10) * said}{title}\n")
        print_table(rows)
        said = True
    if custom := _own(runs):
        typer.echo(f"{chr(10) * said}Own questions: accuracy and gain, 95 % interval\n")
        typer.echo(_text(_metrics(results, custom).drop(columns="run_id"), False))
        said = True
    groups = _groups(results, runs)
    if groups is not None and len(groups):
        typer.echo("\nOwn questions: accuracy of the best group minus the worst, 95 % interval\n")
        typer.echo(_text(groups, False))
    if not said:
        typer.echo(f"{results}: no run is published yet. Next: sdgbias evaluate MODEL")
        return
    typer.echo(
        "\nIntervals that overlap don't say that two models are alike: sdgbias compare ONE OTHER"
        " has the paired test. Every view, test and prompt: sdgbias results --json"
    )


def report(
    results: ResultsOption = DEFAULT_RESULTS,
    out: Path | None = None,
    benchmark: list[Path] | None = None,
    rank_planted: Annotated[bool, typer.Option("--rank-planted")] = False,
    wandb: Annotated[bool, typer.Option("--wandb/--no-wandb")] = False,
    last_night: Annotated[bool, typer.Option("--last-night")] = False,
    run: Annotated[list[str] | None, typer.Option("--run")] = None,
) -> None:
    """Write the self-contained HTML report of the newest run of each model: an overview and a page
    per group of studies.

    Args:
        out: Folder for index.html and the pages beside it. Default: reports/latest; of earlier runs
            reports/RUN.
        benchmark: Benchmark folder whose quality page and card are published beside it; may be
            given several times, once a suite.
        rank_planted: Planted models in the leaderboard of measured ones.
        wandb: Also log a W&B run per model: offline unless WANDB_API_KEY is set.
        last_night: Only the page of the last night; the pages beside it stay as they are.
        run: Of this run, not of the newest; may be given several times.
    """
    from sdgbias import store
    from sdgbias.report import build as html

    among = _runs_of_report(results, run) if run else None
    out = out or Path("reports") / (run[0] if run else "latest")
    if last_night:
        if run:
            raise UsageError("--last-night is of the newest night; leave out --run")
        typer.echo(f"report: {html.write_night(results, out)}")
        return
    from sdgbias.analysis import paper
    from sdgbias.analysis.paper import results as stored
    from sdgbias.progress import update

    update("tables of the paper")
    with store.held_open(results):  # a night that publishes meanwhile waits for its end
        made = (
            paper.build(stored.load(results, among=among))
            if store.latest_runs(results, among=among)
            else None
        )
    page = html.write_report(
        results,
        out,
        tuple(benchmark or ()),
        tables=made,
        rank_planted=rank_planted,
        among=among,
        tell=typer.echo,
    )
    if wandb:
        log_beside_report(results, out / "wandb")
    typer.echo(f"report: {page}\nNext: open it, or sdgbias serve --results {results}")


def _runs_of_report(results: Path, run_ids: list[str]) -> list[str]:
    """The runs that `--run` names. Says which of them have lost their details to retention. Raises
    StoreError for an unknown run, UsageError for two of one model on one benchmark."""
    from sdgbias import store
    from sdgbias.errors import StoreError

    sql = """SELECT run_id, model, benchmark_id FROM runs WHERE finished_at IS NOT NULL AND
             list_contains(?, run_id)"""
    runs = store.query(results, sql, [run_ids])
    for run_id in run_ids:
        if run_id not in set(runs["run_id"]):
            raise StoreError(
                f"{results}: no finished run {run_id!r}; sdgbias results --sql 'SELECT run_id,"
                " model FROM runs' lists them"
            )
    twice = runs[runs.duplicated(["model", "benchmark_id"])]
    if len(twice):
        raise UsageError(
            f"--run: two runs of {twice['model'].iloc[0]} on one benchmark; a report shows one run"
            " of a model"
        )
    for run_id, at in store.dropped(results, run_ids).items():
        typer.echo(
            f"{run_id}: details removed by sdgbias store keep on {at:%Y-%m-%d}; the report shows"
            " its metrics only",
            err=True,
        )
    return run_ids
