"""The command line. Each command imports what it needs when it runs, so that `sdgbias --help`
answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias import lifeline
from sdgbias.cli import people as cli_people
from sdgbias.cli import store as cli_store
from sdgbias.cli.analysis import add_to as add_lab
from sdgbias.cli.cade import cade_app
from sdgbias.cli.data import raw_app, release_app, review_app
from sdgbias.cli.gate import add_to as add_gate
from sdgbias.cli.models import add_to as add_register
from sdgbias.cli.models import models_app
from sdgbias.cli.night import add_to as add_night
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RAW,
    DEFAULT_RESULTS,
    Bars,
    BenchmarkOption,
    RawOption,
    ResultsOption,
    SearchOption,
    choice,
    close_bars,
)
from sdgbias.cli.serve import add_to as add_serve
from sdgbias.cli.stack import add_to as add_stack
from sdgbias.cli.suite import suite_app
from sdgbias.cli.wandb import offline_runs, wandb_app
from sdgbias.errors import SdgbiasError, UsageError, one_of
from sdgbias.types import FACET, SUITES

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="sdgbias",
    help=(
        "How biased is a vision-language model about sustainable development, and how much of it"
        " can be taken out?\n\nA first run: make demo. Step by step: sample, build, evaluate,"
        " results, report."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(cade_app, name="cade")
app.add_typer(raw_app, name="raw")
app.add_typer(review_app, name="review")
app.add_typer(release_app, name="release")
app.add_typer(models_app, name="models")
app.add_typer(cli_people.people_app, name="people")
app.add_typer(suite_app, name="suite")
app.add_typer(wandb_app, name="wandb")
app.add_typer(cli_store.store_app, name="store")
add_lab(app)
add_serve(app)
add_gate(app)
add_stack(app)
add_register(app)
add_night(app)

PassesOption = Annotated[
    str,
    typer.Option(
        help=(
            "Extra passes for baselines and Table J: none, cheap, costly, all, or names of passes"
            " and methods with commas."
        )
    ),
]


def _step(what: str) -> Callable[[int, int], None]:
    bars = Bars()
    return lambda done, total: bars(what, done, total)


@app.command()
def sample(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = DEFAULT_RAW,
    clusters: Annotated[
        int, typer.Option(min=1, help="Number of survey clusters over all countries.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    countries: Annotated[
        str, typer.Option(help="DHS country codes, comma-separated; empty: eight default ones.")
    ] = "",
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Draw tiles and photos.")
    ] = True,
    suite: Annotated[
        str,
        typer.Option(help="sdg: places in SustainBench's layout; facet: people in FACET's layout."),
    ] = "sdg",
    people: Annotated[
        int, typer.Option(min=1, help="Number of pictures of people (suite facet).")
    ] = 600,
) -> None:
    """Write a synthetic raw folder: places whose images truly carry the signal, or schematic people
    (--suite facet)."""
    from sdgbias.raw.synthetic import write_sample

    if draw := _SAMPLES.get(choice("--suite", suite, SUITES)):
        draw(out, people, seed)
        return
    chosen = [c.strip() for c in countries.split(",") if c.strip()] or None
    write_sample(out, clusters, seed, chosen, images, _step("drawing clusters"))
    more = "" if images else " --no-images"
    typer.echo(
        f"{out}: {clusters} synthetic clusters. Next: sdgbias build --raw {out} --indicators"
        f" {out}/indicators{more}"
    )


@app.command()
def build(
    raw: RawOption = DEFAULT_RAW,
    indicators: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Indicator series folder. Default: RAW/indicators if it exists, else"
                " data/indicators."
            )
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Benchmark folder to write.")] = DEFAULT_BENCHMARK,
    mcq: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of distinct multiple-choice questions; default: all. Paper: 100000."
        ),
    ] = None,
    regression: Annotated[
        int | None,
        typer.Option(min=0, help="Number of regression questions; default: all. Paper: 50000."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the stratified draw.")] = 0,
    max_gap: Annotated[
        int,
        typer.Option(
            min=0,
            help="Most years between a value and the survey, where an indicator sets no limit of its own.",
        ),
    ] = 10,
    split: Annotated[
        str, typer.Option(help="id: the authors' rule; place: no country in both val and test.")
    ] = "id",
    keep_bins: Annotated[
        Path | None,
        typer.Option(help="Earlier benchmark folder whose answer options are used again."),
    ] = None,
    review: Annotated[
        Path | None, typer.Option(help="Verdicts of `sdgbias review import` (reviews.parquet).")
    ] = None,
    review_action: Annotated[
        str, typer.Option(help="What happens to rejected items: drop (others are drawn) or mark.")
    ] = "drop",
    images: Annotated[
        bool | None,
        typer.Option(
            "--images/--no-images",
            help=(
                "Draw the pictures (default, except for a sample without); nothing can be evaluated"
                " without."
            ),
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="composite: one picture per place; several: photo, tile and night lights apart."
        ),
    ] = "composite",
    stretch: Annotated[
        str, typer.Option(help="Contrast of the tile: authors or percentile.")
    ] = "authors",
    stretch_for: Annotated[
        str,
        typer.Option(help="Another stretch for some countries, e.g. KH=percentile,NP=percentile."),
    ] = "",
    bands: Annotated[
        str,
        typer.Option(
            help="Colours of the tile: true-colour, false-colour (NIR, red, green) or swir."
        ),
    ] = "true-colour",
    nightlights: Annotated[str, typer.Option(help="Night lights: log, linear or none.")] = "log",
    photos: Annotated[
        int, typer.Option(min=1, help="Street photos per place (layout several only).")
    ] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that draw pictures; default: one per CPU.")
    ] = None,
    stage: Annotated[
        str,
        typer.Option(
            help=(
                "One stage only: clusters, images, series, items, prompts, card, check (used by"
                " dvc.yaml)."
            )
        ),
    ] = "",
) -> None:
    """Build a benchmark: clusters -> images -> series -> questions -> prompts, then the quality
    gate.

    Everything is resumable: run the same command again after an interruption. The paper's size:
    --mcq 100000 --regression 50000.
    """
    from sdgbias.benchmark import build as stages
    from sdgbias.benchmark.review import load_verdicts
    from sdgbias.raw.images.build import ImageSettings

    if indicators is None:
        indicators = (
            raw / "indicators" if (raw / "indicators").is_dir() else Path("data/indicators")
        )
    source, bars = indicators, Bars()
    if images is None and (images := not stages.made_without_images(raw)) is False:
        typer.echo(
            f"{raw}: a sample without pictures; questions are built without them and can't be"
            " evaluated",
            err=True,
        )
    settings = (
        ImageSettings(
            layout, stretch, _pairs("--stretch-for", stretch_for), bands, nightlights, photos
        )
        if images
        else None
    )
    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: stages.build_clusters(raw, out),
        "images": lambda: _said_of_images(*stages.build_images(raw, out, settings, workers, bars)),
        "series": lambda: stages.build_series(source, out),
        "items": lambda: stages.build_items(
            out,
            mcq,
            regression,
            seed,
            max_gap=max_gap,
            split=split,
            keep_bins=keep_bins,
            review=load_verdicts(review) if review else None,
            review_figures=review.with_suffix(".json") if review else None,
            review_action=review_action,
        ),
        "prompts": lambda: stages.build_prompts(out),
        "card": lambda: stages.build_card(out),
        "check": lambda: _gate(out),
    }
    if stage and stage not in steps:
        raise UsageError(f"--stage: {one_of('stage', stage, steps)}")
    for name in [stage] if stage else list(steps):
        steps[name]()
    if not stage or stage == "check":
        _print_card(out)


def _pairs(option: str, text: str) -> tuple[tuple[str, str], ...]:
    """'KH=percentile,NP=percentile' -> pairs."""
    parts = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for name, equals, value in parts:
        if not (name and equals and value):
            raise UsageError(
                f"{option} {text!r}: write COUNTRY=VALUE, several separated by commas, e.g."
                " KH=percentile"
            )
    return tuple((name, value) for name, _, value in parts)


def _said_of_images(rendered: int, reused: int) -> None:
    if rendered or reused:
        typer.echo(f"images: {rendered} drawn, {reused} unchanged and kept")


#: Suite -> what draws its sample, where it isn't places.
_SAMPLES = {
    FACET: lambda out, people, seed: cli_people.sample(
        cli_people.RAW if out == DEFAULT_RAW else out, people, seed
    )
}


def _gate(out: Path) -> None:
    from sdgbias.benchmark import quality

    for warning in quality.run_gate(out, docs=True).warnings:
        typer.echo(f"  warning: {warning}", err=True)


def _print_card(out: Path) -> None:
    card = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))
    counts = card["counts"]
    if "items_mcq" not in counts:
        what = ", ".join(f"{n} {name}" for name, n in counts.items() if name == "people")
        typer.echo(f"{out}: benchmark {card['benchmark_id']} of {what}, passed the quality gate")
        return
    typer.echo(
        f"{out}: benchmark {card['benchmark_id']}, {counts['items_mcq']} MCQs x T1-T5,"
        f" {counts['items_regression']} regression questions, {counts['clusters_used']} of"
        f" {counts['clusters']} clusters. {card['licence']}."
    )
    for rule, n in card["quarantined"].items():
        typer.echo(f"  left out: {rule} {n}")
    for kind in ("mcq", "regression"):
        for line in card["notes"].get(kind, {}).get("short", []):
            typer.echo(f"  quota not filled: {kind}: {line}")


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="Name of a registered model (sdgbias models).")],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    image_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens a picture, instead of the model's own (LLaVA-1.5: 576)."),
    ] = None,
    task: Annotated[str, typer.Option(help="mcq or regression alone; default: both.")] = "",
    passes: PassesOption = "cheap",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """What scoring would cost: prompts and tokens, naive and planned, counted with the model's
    tokenizer, no weights loaded."""
    from sdgbias.registry import entries
    from sdgbias.scoring import cost
    from sdgbias.suites.extra_prompts import choose

    root = entries.find_root()
    chosen = choice("--task", task, ("", "mcq", "regression"))
    found = cost.cost(
        entries.load(root, model),
        root,
        benchmark,
        image_tokens=image_tokens,
        results=results,
        task=chosen,
        passes=choose(passes),
        progress=None if as_json else Bars(),
    )
    typer.echo(found.json() if as_json else "\n".join(found.lines()))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Name of a registered model (sdgbias models).")],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    search: SearchOption = "random",
    draws: Annotated[
        int, typer.Option(min=1, help="Random-search draws for CADE (paper: 10,000).")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    numerics: Annotated[
        str, typer.Option(help="exact, or reference (the authors' floors).")
    ] = "exact",
    mode: Annotated[
        str,
        typer.Option(help="Regression answers: continue (decode after CADE's digit) or replace."),
    ] = "continue",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Prompts per batch; default: the registry entry's.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Engines, each in a process of its own; default: 1, with --ray as many as fit.",
        ),
    ] = None,
    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster (HOST:PORT, or auto).")
    ] = "",
    passes: PassesOption = "cheap",
    entry: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Registry file to read instead of registry/models/MODEL.yaml, e.g. a night's copy"
                " of it."
            )
        ),
    ] = None,
    outcome_file: Annotated[
        Path | None,
        typer.Option(
            "--outcome",
            help=("Write the outcome as JSON; the process then ends with its parent."),
        ),
    ] = None,
) -> None:
    """Score a registered model under four views x T1-T5, tune CADE on val, publish the test
    results."""
    from dataclasses import asdict, replace

    from sdgbias.nightly import process

    with process.report_outcome(outcome_file) as told:
        from sdgbias.registry import entries
        from sdgbias.scoring import evaluate as evaluation
        from sdgbias.suites.extra_prompts import choose
        from sdgbias.suites.suite import EvalSettings

        root = entries.find_root()
        spec = entries.read(entry) if entry else entries.load(root, model)
        if spec.name != model:
            raise UsageError(f"--entry {entry} is the entry of {spec.name}, not of {model}")
        if batch_size:
            spec = replace(spec, batch_size=batch_size)
        outcome = evaluation.evaluate(
            spec,
            root,
            benchmark,
            results,
            EvalSettings(
                draws=draws,
                seed=seed,
                numerics=choice("--numerics", numerics, ("exact", "reference")),
                mode=choice("--mode", mode, ("continue", "replace")),
                passes=choose(passes),
                search=choice("--search", search, ("random", "exact")),
            ),
            pool=evaluation.Pool(workers, ray),
            progress=Bars(),
        )
        told |= asdict(outcome)
    typer.echo(
        f"{model}: run {outcome.run_id}: {outcome.naive:,} cells of the paper's views,"
        f" {outcome.planned - outcome.extra:,} distinct prompts"
        f"{f', {outcome.extra:,} more of extra passes' if outcome.extra else ''}:"
        f" {outcome.scored:,} scored now, {outcome.cached:,} from the cache,"
        f" {outcome.failed}"
        f" failed{f', {outcome.unanswerable:,} that it can not answer' if outcome.unanswerable else ''}."
        f" Next: sdgbias results --results {results}"
    )


@app.command()
def results(
    results: ResultsOption = DEFAULT_RESULTS,
    sql: Annotated[
        str,
        typer.Option(help="Any query; the public view is metrics(run_id, model, ..., ci_high)."),
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated instead of a table.")] = False,
) -> None:
    """Print the headline table, and disparities of the runs on people and on own questions (not
    with --csv); or the answer to --sql. Runs on own questions stand in the table, which then names
    the suite."""
    from sdgbias import store, suites
    from sdgbias.cli.demo import CUSTOM, PEOPLE

    people = groups = None
    if not sql:
        if chosen := [] if csv else store.latest_runs(results, FACET, per_benchmark=True):
            people = store.query(results, PEOPLE, [chosen])
        suite_of: dict[str, str] = dict(
            store.query(results, "SELECT run_id, suite FROM runs").itertuples(index=False)
        )
        runs = [
            run
            for run in suites.newest_runs(results)
            if suites.named(suite_of[run]).items_table == "items"
        ]
        marks = ", ".join("?" for _ in runs) or "''"
        # the column is there where there is more to tell apart than models
        column = "suite, " if {suite_of[run] for run in runs} - set(suites.SUITES) else ""
        sql = (
            f"SELECT {column}model, task, test, method, metric, round(value, 4) AS value, n, round(ci_low,"
            " 4) AS ci_low, round(ci_high, 4) AS ci_high FROM metrics WHERE pillar = 'all' AND"
            " indicator = 'all' AND method IN ('q_only', 'ctx_q', 'img_q', 'full', 'cade') AND"
            " metric IN ('accuracy', 'mae', 'interval_accuracy', 'accuracy_gain', 'mae_change')"
            f" AND run_id IN ({marks}) ORDER BY {column}model, task, metric, test, method"
        )
        table = store.query(results, sql, runs)
        custom = [] if csv else [run for run in runs if suites.named(suite_of[run]).custom]
        groups = store.query(results, CUSTOM, [custom]) if custom else None
    else:
        table = store.ask(results, sql)
    if people is None or len(table):
        typer.echo(table.to_csv(index=False).rstrip("\n") if csv else table.to_string(index=False))
    if people is not None:
        said = (
            "Pictures of people: difference of recall between groups, all classes pooled, 95 %"
            " interval\n"
        )
        typer.echo(f"\n{said}" if len(table) else said)
        typer.echo(people.to_string(index=False))
    if groups is not None and len(groups):
        typer.echo("\nOwn questions: accuracy of the best group minus the worst, 95 % interval\n")
        typer.echo(groups.to_string(index=False))


@app.command()
def report(
    results: ResultsOption = DEFAULT_RESULTS,
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder for index.html and the pages beside it. Default: reports/latest; of earlier"
                " runs reports/NIGHT or RUN."
            )
        ),
    ] = None,
    benchmark: Annotated[
        list[Path] | None,
        typer.Option(
            help=(
                "Benchmark folder whose Data Docs and card are published beside it; may be given"
                " several times, once a suite."
            )
        ),
    ] = None,
    figures: Annotated[
        bool,
        typer.Option(
            "--figures", help="Also every figure as SVG and PNG (300 dpi) in OUT/figures."
        ),
    ] = False,
    rank_planted: Annotated[
        bool,
        typer.Option("--rank-planted", help="Planted models in the leaderboard of measured ones."),
    ] = False,
    wandb: Annotated[
        bool, typer.Option("--wandb/--no-wandb", help="Also write an offline W&B run per model.")
    ] = False,
    changed: Annotated[
        bool,
        typer.Option(
            "--changed",
            help=(
                "Only the page of the last night where no run, analysis or version changed since"
                " the last report."
            ),
        ),
    ] = False,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="Of this run, not of the newest; may be given several times."),
    ] = None,
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of", help="As it was after this night (2026-11-21T0130) or day (2026-11-21)."
        ),
    ] = "",
) -> None:
    """Write the self-contained HTML report of the newest run of each model: an overview and a page
    per group of studies."""
    from sdgbias import store
    from sdgbias.report import build as html
    from sdgbias.report import freshness

    then = cli_store.then(results, run, as_of)
    out = out or Path("reports") / ("latest" if then is None else as_of or (run or [""])[0])
    asked, benchmarks = (figures, rank_planted), tuple(benchmark or ())
    if changed and then is None and freshness.is_fresh(results, out, benchmarks, asked):
        typer.echo(
            f"report: {html.write_night(results, out)}; the other pages stay as they are: nothing"
            " in them changed"
        )
        return
    from sdgbias.analysis import paper
    from sdgbias.analysis.paper import results as stored

    among = then.runs if then else None
    made = (
        paper.build(stored.load(results, among=among))
        if store.latest_runs(results, among=among)
        else None
    )
    page = html.write_report(
        results,
        out,
        benchmarks,
        tables=made,
        print_figures=figures,
        rank_planted=rank_planted,
        then=then,
    )
    if then is None:
        freshness.stamp(results, out, benchmarks, asked)
    if wandb:
        offline_runs(results, out / "wandb")
    typer.echo(f"report: {page}")


@app.command()
def demo(
    results: ResultsOption = DEFAULT_RESULTS,
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/latest"),
) -> None:
    """The main job end to end: dvc repro, then the Prefect flow `nightly` over every enabled model,
    report, W&B offline."""
    from sdgbias.cli.demo import run

    run(results, report)


def main() -> None:
    """Entry point: errors a person can fix are one line and an exit code of their own
    (errors.py). What a night started ends with it."""
    lifeline.watch()
    try:
        app()
    except SdgbiasError as error:
        close_bars()
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo(
            "stopped; what is finished is kept: run the same command again to go on", err=True
        )
        sys.exit(130)


if __name__ == "__main__":
    main()
