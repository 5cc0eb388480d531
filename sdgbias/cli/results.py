"""What the results say: the headline table, any query, two models compared, and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sdgbias.cli.application import RESULTS, app
from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    RunsOption,
    csv_text,
    print_estimates,
    print_json,
    print_table,
    query_table,
    show,
)
from sdgbias.errors import UsageError, argument, one_of
from sdgbias.types import FACET, MASS_FLOOR

if TYPE_CHECKING:
    import pandas as pd


@app.command(
    rich_help_panel=RESULTS,
    epilog="Example: sdgbias results --sql 'SELECT model, value FROM metrics LIMIT 5'",
)
def results(
    what: Annotated[
        str, Argument(help="headline; tables (what the file contains); or a model.")
    ] = "headline",
    results: ResultsOption = DEFAULT_RESULTS,
    sql: Annotated[
        str, Option(help="Any query; the public view is metrics(run_id, model, ..., ci_high).")
    ] = "",
    csv: Annotated[bool, Option("--csv", help="Comma-separated values instead of text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the headline table, or the answer to any SQL query.

    Each suite has a table with a line for each model; every number has its 95 % interval and n.
    --json has every view, test and prompt; --csv has those of the questions. `results tables` lists
    the tables, columns, metrics and methods that a query can name; `results MODEL` shows one model.
    """
    from sdgbias import store, suites
    from sdgbias.report.leaderboard import COMPARED

    if what == "tables":
        from sdgbias.report import contents

        listed = contents.read(results)
        show(listed, as_json, contents.lines(listed))
        return
    if csv and as_json:
        raise UsageError("give --csv or --json, not both")
    if sql and what != "headline":
        raise UsageError(f"give {what} or --sql, not both; a query names its model itself")
    if sql:
        table = store.ask(results, sql)
        show(table, as_json, [_text(table, csv)])
        return
    with store.held_open(results):
        model = "" if what == "headline" else _model(results, what)
        suite_of = _newest(results, model)
        public = [run for run, suite in suite_of.items() if not suites.named(suite).private]
        not_people = [run for run in public if not suites.named(suite_of[run]).attributes]
        metrics = query_table(results, "newest", public, floor=MASS_FLOOR)
        groups = query_table(results, "groups", not_people) if not_people else None
        compared = metrics["method"].isin(COMPARED) & metrics["value"].notna()
        choices = metrics[compared & (metrics["metric"] == "accuracy")]
        several = bool(choices.groupby("suite")["model"].nunique().max() > 1)
        if not not_people:
            metrics = metrics.drop(columns="suite")
        if csv:
            typer.echo(_text(metrics, csv))
        elif as_json:
            people, recalls = (_people(results, model, name) for name in ("people", "recalls"))
            print_json({"metrics": metrics, "people": people, "recall": recalls, "own": groups})
        else:
            shares = metrics["metric"].str.startswith("share_")
            own_metrics = metrics[metrics["run_id"].isin(not_people) & ~shares]
            _print_headline(results, model, own_metrics, groups, several)


def _text(table: pd.DataFrame, csv: bool) -> str:
    """The rows of a query; NULL is an empty cell, which pandas writes in four ways."""
    if csv:
        return csv_text(table)
    if table.empty:
        return "no rows"
    cells = table.apply(
        lambda c: c if c.dtype.kind in "fM" else c.astype(object).where(c.notna(), "")
    )
    return str(cells.to_string(index=False, na_rep=""))


def _model(results: Path, name: str) -> str:
    """A model that has a run. Raises UsageError for any other name."""
    from sdgbias import store

    models = set(store.query(results, "SELECT DISTINCT model FROM runs")["model"])
    if name not in models:
        raise UsageError(f"{one_of('model', name, models)}; or: headline, tables")
    return name


def _newest(results: Path, model: str) -> dict[str, str]:
    """Newest run of each model, or of this one -> its suite."""
    from sdgbias import store, suites

    sql = """SELECT run_id, suite FROM runs WHERE list_contains($runs, run_id)
             AND $model IN ('', model)"""
    given = {"runs": suites.newest_runs(results), "model": model}
    return dict(store.query(results, sql, given).itertuples(index=False))


def _people(results: Path, model: str, name: str) -> pd.DataFrame | None:
    """The rows of a query about the newest runs on people, or about those of this model."""
    from sdgbias import store

    chosen = store.latest_runs(results, FACET, per_benchmark=True)
    if not chosen:
        return None
    table = query_table(results, name, chosen)
    return table[table["model"] == model] if model else table


def _print_headline(
    results: Path,
    model: str,
    own_metrics: pd.DataFrame,
    groups: pd.DataFrame | None,
    several: bool,
) -> None:
    """The headline of every suite, of all models or of this one, and of own questions. several:
    there are models that `compare` takes."""
    from sdgbias.report import headlines

    sections = headlines.sections(results, model)
    for title, rows in sections:
        typer.echo(f"{title}\n")
        print_table(rows)
        typer.echo()
    if len(own_metrics):
        typer.echo(
            "Own questions: accuracy in %, and gain in points; where letters are improbable,"
            " candidate mass in %\n"
        )
        print_estimates(own_metrics)
        typer.echo()
    if groups is not None and len(groups):
        typer.echo("Own questions: accuracy of the best group minus the worst, in points\n")
        print_estimates(groups)
        typer.echo()
    if not sections and not len(own_metrics):
        typer.echo(f"{results}: no run is published yet. Next: sdgbias evaluate MODEL")
        return
    if several:
        typer.echo(
            "Overlapping intervals don't mean that two models are equal; sdgbias compare ONE OTHER"
            " runs the paired test."
        )
    typer.echo("Every view, test and prompt: sdgbias results --json")


ModelOrRun = Annotated[str, Argument(help="A model, or a run id.")]


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias compare tiny-llava tiny-qwen")
def compare(
    one: ModelOrRun,
    other: ModelOrRun,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Compare two models on the questions that both answered.

    It prints the difference in accuracy by method and test, with its 95 % interval, p and n, and
    the smallest difference that so many questions can detect. For a model, its newest run on a
    benchmark that both were asked is taken.
    """
    from sdgbias import notebook
    from sdgbias.methods.stats import Estimate
    from sdgbias.vocabulary import METHODS
    from sdgbias.wording import ALL_TESTS, number, p_value, written

    pairs = notebook.compare(one, other, results)
    if as_json:
        print_json(pairs)
        return
    rows: list[tuple[str, ...]] = [
        ("method", "test", "difference", "95 % interval", "p", "n", "smallest shown")
    ]
    for row in pairs.to_dict("records"):
        e = Estimate.of_row(row)
        shown, least = written(e, "accuracy_gain"), number(100 * row["mde"])
        cells = (row["method"], row["test"], shown.value, shown.ci, p_value(row["p"]), shown.n)
        rows.append((*cells, least))
    typer.echo(f"Accuracy of {one} minus {other}, percentage points\n")
    print_table(rows)
    typer.echo()
    when = {"full": "With all evidence", "cade": "After CADE"}
    if METHODS["full"] not in set(pairs["method"]):  # one of them gives text alone
        when = {"full_generated": "With all evidence, in words"}
    for method, evidence in when.items():
        for row in pairs[pairs["method"] == METHODS[method]].head(1).to_dict("records"):
            at = "" if row["test"] == ALL_TESTS else f", at {row['test']}"
            typer.echo(f"{evidence}{at}, {_finding(one, other, row)}")


def _finding(one: str, other: str, row: Mapping[Any, Any]) -> str:
    """'a is more accurate than b by 4.2 points (95 % CI ..., n = 325).'"""
    from sdgbias.methods.stats import Estimate
    from sdgbias.wording import number, p_value, sign_of, written

    e = Estimate.of_row(row)
    sign = sign_of(e) if row["p"] < 0.05 else 0  # of few places the exact p may be above it
    if sign > 0:
        by = number(100 * e.value)
        bounds = written(e, "accuracy_gain").aside
        return f"{one} is more accurate than {other} by {by} points {bounds}."
    if sign < 0:
        turned = {**row, "value": -e.value, "ci_low": -e.high, "ci_high": -e.low}
        return _finding(other, one, turned)
    least = f"; so many questions show one of {number(100 * row['mde'])} points or more"
    if row["mde"] != row["mde"]:  # a difference without an interval
        least = ""
    p = f", p = {p_value(row['p'])}" if sign_of(e) else ""
    return f"no difference can be stated: {written(e, 'accuracy_gain')}{p}{least}."


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias report --out my/report")
def report(
    results: ResultsOption = DEFAULT_RESULTS,
    out: Annotated[
        Path | None,
        Option(
            help=(
                "Folder for index.html and the other pages. Default: reports/latest; with --run,"
                " reports/RUN."
            )
        ),
    ] = None,
    benchmark: Annotated[
        list[Path] | None,
        Option(
            help=(
                "Benchmark folder whose quality page and card are added; may be repeated, once for"
                " each suite."
            )
        ),
    ] = None,
    rank_planted: Annotated[
        bool, Option("--rank-planted", help="Rank planted models together with measured ones.")
    ] = False,
    last_night: Annotated[
        bool, Option("--last-night", help="Write only the page of the last night.")
    ] = False,
    run: RunsOption = None,
) -> None:
    """Write the report as self-contained HTML pages.

    It shows the newest run of each model: an overview, and a page for each group of studies.
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
    tables = None
    with store.held_open(results):  # a night that publishes meanwhile waits for its end
        if store.latest_runs(results, among=among):
            tables = paper.build(stored.load(results, among=among))
    page = html.write_report(
        results,
        out,
        tuple(benchmark or ()),
        tables=tables,
        rank_planted=rank_planted,
        among=among,
        tell=typer.echo,
    )
    typer.echo(f"report: {page}\nNext: open it, or sdgbias serve --results {argument(results)}")


def _runs_of_report(results: Path, run_ids: list[str]) -> list[str]:
    """The runs that `--run` names. Says which of them have lost their details to retention. Raises
    StoreError for an unknown run, UsageError for two of one model on one benchmark."""
    from sdgbias import store

    sql = """SELECT run_id, model, benchmark_id FROM runs WHERE finished_at IS NOT NULL AND
             list_contains(?, run_id)"""
    runs = store.query(results, sql, [run_ids])
    for run_id in run_ids:
        if run_id not in set(runs["run_id"]):
            raise store.unknown_run(results, run_id)
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
