"""The command line. Each command imports what it needs when it runs, so that `sdgbias --help` answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sdgbias.cli_bars import Bars
from sdgbias.cli_data import raw_app, release_app, review_app
from sdgbias.errors import SdgbiasError, UsageError, one_of

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="sdgbias",
    help="How biased is a vision-language model about sustainable development, and how much of it can be taken out?\n\n"
    "A first run: make demo. Step by step: sample, build, evaluate, results, report.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cade_app = typer.Typer(help="CADE on the benchmark authors' prediction tables.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(cade_app, name="cade")
app.add_typer(raw_app, name="raw")
app.add_typer(review_app, name="review")
app.add_typer(release_app, name="release")

RawOption = Annotated[Path, typer.Option("--raw", help="Raw folder in SustainBench's layout.")]
BenchmarkOption = Annotated[Path, typer.Option("--benchmark", help="Benchmark folder made by `sdgbias build`.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Results file (DuckDB); score shards lie beside it.")]
DEFAULT_RAW, DEFAULT_BENCHMARK, DEFAULT_RESULTS = Path("data/raw"), Path("data/benchmark"), Path("results/sdgbias.duckdb")


def _step(what: str) -> Callable[[int, int], None]:
    bars = Bars()
    return lambda done, total: bars(what, done, total)


@app.command()
def sample(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = DEFAULT_RAW,
    clusters: Annotated[int, typer.Option(min=1, help="Number of survey clusters over all countries.")] = 300,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    countries: Annotated[str, typer.Option(help="DHS country codes, comma-separated; empty: eight default ones.")] = "",
    images: Annotated[bool, typer.Option("--images/--no-images", help="Draw tiles and photos.")] = True,
) -> None:
    """Write a synthetic raw folder in SustainBench's layout, whose images truly carry the signal."""
    from sdgbias.sample import write_sample

    chosen = [c.strip() for c in countries.split(",") if c.strip()] or None
    write_sample(out, clusters, seed, chosen, images, _step("drawing clusters"))
    more = "" if images else " --no-images"
    typer.echo(f"{out}: {clusters} synthetic clusters. Next: sdgbias build --raw {out} --indicators {out}/indicators{more}")


@app.command()
def build(
    raw: RawOption = DEFAULT_RAW,
    indicators: Annotated[
        Path | None, typer.Option(help="Indicator series folder. Default: RAW/indicators if it exists, else data/indicators.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Benchmark folder to write.")] = DEFAULT_BENCHMARK,
    mcq: Annotated[
        int | None, typer.Option(min=0, help="Number of distinct multiple-choice questions; default: all. Paper: 100000.")
    ] = None,
    regression: Annotated[int | None, typer.Option(min=0, help="Number of regression questions; default: all. Paper: 50000.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the stratified draw.")] = 0,
    max_gap: Annotated[
        int, typer.Option(min=0, help="Most years between a value and the survey, where an indicator says nothing else.")
    ] = 10,
    split: Annotated[str, typer.Option(help="id: the authors' rule; place: no country in both val and test.")] = "id",
    keep_bins: Annotated[Path | None, typer.Option(help="Earlier benchmark folder whose answer options are used again.")] = None,
    review: Annotated[Path | None, typer.Option(help="Verdicts of `sdgbias review import` (reviews.parquet).")] = None,
    review_action: Annotated[str, typer.Option(help="What happens to rejected items: drop (others are drawn) or mark.")] = "drop",
    images: Annotated[
        bool | None,
        typer.Option(
            "--images/--no-images", help="Draw the pictures (default, except for a sample without); nothing can be evaluated without."
        ),
    ] = None,
    layout: Annotated[
        str, typer.Option(help="composite: one picture per place; several: photo, tile and night lights apart.")
    ] = "composite",
    stretch: Annotated[str, typer.Option(help="Contrast of the tile: authors or percentile.")] = "authors",
    stretch_for: Annotated[str, typer.Option(help="Another stretch for some countries, e.g. KH=percentile,NP=percentile.")] = "",
    bands: Annotated[str, typer.Option(help="Colours of the tile: true-colour, false-colour (NIR, red, green) or swir.")] = "true-colour",
    nightlights: Annotated[str, typer.Option(help="Night lights: log, linear or none.")] = "log",
    photos: Annotated[int, typer.Option(min=1, help="Street photos per place (layout several only).")] = 1,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that draw pictures; default: one per CPU.")] = None,
    stage: Annotated[
        str, typer.Option(help="One stage only: clusters, images, series, items, prompts, card, check (used by dvc.yaml).")
    ] = "",
) -> None:
    """Build a benchmark: clusters -> images -> series -> questions -> prompts, then the quality gate.

    Everything is resumable: run the same command again after an interruption. The paper's size: --mcq 100000 --regression 50000.
    """
    from sdgbias import build as stages
    from sdgbias.images.store import ImageSettings
    from sdgbias.review import load_verdicts

    if indicators is None:
        indicators = raw / "indicators" if (raw / "indicators").is_dir() else Path("data/indicators")
    source, bars = indicators, Bars()
    if images is None and (images := not stages.made_without_images(raw)) is False:
        typer.echo(f"{raw}: a sample without pictures; questions are built without them and can't be evaluated", err=True)
    settings = ImageSettings(layout, stretch, _pairs("--stretch-for", stretch_for), bands, nightlights, photos) if images else None
    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: stages.build_clusters(raw, out),
        "images": lambda: _said_of_images(*stages.build_images(raw, out, settings, workers, bars)),
        "series": lambda: stages.build_series(source, out),
        "items": lambda: stages.build_items(
            out, mcq, regression, seed, max_gap=max_gap, split=split, keep_bins=keep_bins,
            review=load_verdicts(review) if review else None, review_figures=review.with_suffix(".json") if review else None,
            review_action=review_action,
        ),
        "prompts": lambda: stages.build_prompts(out),
        "card": lambda: stages.build_card(out),
        "check": lambda: _gate(out),
    }  # fmt: skip
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
            raise UsageError(f"{option} {text!r}: write COUNTRY=VALUE, several separated by commas, e.g. KH=percentile")
    return tuple((name, value) for name, _, value in parts)


def _said_of_images(rendered: int, reused: int) -> None:
    if rendered or reused:
        typer.echo(f"images: {rendered} drawn, {reused} unchanged and kept")


def _gate(out: Path) -> None:
    from sdgbias import quality

    for warning in quality.run_gate(out, docs=True).warnings:
        typer.echo(f"  warning: {warning}", err=True)


def _print_card(out: Path) -> None:
    card = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))
    counts = card["counts"]
    typer.echo(
        f"{out}: benchmark {card['benchmark_id']}, {counts['items_mcq']} MCQs x T1-T5, {counts['items_regression']} regression "
        f"questions, {counts['clusters_used']} of {counts['clusters']} clusters. {card['licence']}."
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
    image_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens a picture, instead of the model's own (LLaVA-1.5: 576).")] = None,
    task: Annotated[str, typer.Option(help="mcq or regression alone; default: both.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """What scoring would cost: prompts and tokens, naive and planned, counted with the model's tokenizer, no weights loaded."""
    from sdgbias import costs, registry

    root = registry.find_root()
    chosen = _choice("--task", task, ("", "mcq", "regression"))
    found = costs.cost(
        registry.load(root, model),
        root,
        benchmark,
        image_tokens=image_tokens,
        results=results,
        task=chosen,
        progress=None if as_json else Bars(),
    )
    typer.echo(found.json() if as_json else "\n".join(found.lines()))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Name of a registered model (sdgbias models).")],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    draws: Annotated[int, typer.Option(min=1, help="Random-search draws for CADE (paper: 10,000).")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    numerics: Annotated[str, typer.Option(help="exact, or reference (the authors' floors).")] = "exact",
    mode: Annotated[str, typer.Option(help="Regression answers: continue (decode after CADE's digit) or replace.")] = "continue",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Prompts per batch; default: the registry entry's.")] = None,
) -> None:
    """Score a registered model under four views x T1-T5, tune CADE on val, publish the test results."""
    from dataclasses import replace

    from sdgbias import evaluate as evaluation
    from sdgbias import registry

    root = registry.find_root()
    spec = registry.load(root, model)
    if batch_size:
        spec = replace(spec, batch_size=batch_size)
    outcome = evaluation.evaluate(
        spec, root, benchmark, results, draws=draws, seed=seed, numerics=_choice("--numerics", numerics, ("exact", "reference")),
        mode=_choice("--mode", mode, ("continue", "replace")), progress=Bars(),
    )  # fmt: skip
    typer.echo(
        f"{model}: run {outcome.run_id}: {outcome.naive:,} prompts asked, {outcome.planned:,} distinct, {outcome.scored:,} scored "
        f"now, {outcome.cached:,} from the cache, {outcome.failed} failed. Next: sdgbias results --results {results}"
    )


def _choice(option: str, value: str, valid: tuple[str, ...]) -> Any:
    if value not in valid:
        raise UsageError(f"{option}: {one_of('value', value, valid)}")
    return value


@app.command()
def results(
    results: ResultsOption = DEFAULT_RESULTS,
    sql: Annotated[str, typer.Option(help="Any query; the public view is metrics(run_id, model, ..., ci_high).")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated instead of a table.")] = False,
) -> None:
    """Print the headline table, or the answer to --sql."""
    from sdgbias import store

    if not sql:
        runs = store.latest_runs(results)
        marks = ", ".join("?" for _ in runs) or "''"
        sql = (
            "SELECT model, task, test, method, metric, round(value, 4) AS value, n, round(ci_low, 4) AS ci_low, round(ci_high, 4) "
            "AS ci_high FROM metrics WHERE pillar = 'all' AND indicator = 'all' AND metric IN ('accuracy', 'mae', "
            f"'interval_accuracy', 'accuracy_gain', 'mae_change') AND run_id IN ({marks}) ORDER BY model, task, metric, test, method"
        )
        table = store.query(results, sql, runs)
    else:
        table = store.query(results, sql)
    typer.echo(table.to_csv(index=False).rstrip("\n") if csv else table.to_string(index=False))


@app.command()
def report(
    results: ResultsOption = DEFAULT_RESULTS,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("reports/latest"),
    benchmark: Annotated[Path | None, typer.Option(help="Benchmark folder whose Data Docs and card are published beside it.")] = None,
    wandb: Annotated[bool, typer.Option("--wandb/--no-wandb", help="Also write an offline W&B run per model.")] = False,
) -> None:
    """Write the self-contained HTML report of the newest run of each model."""
    from sdgbias import store
    from sdgbias.report import html

    page = html.write_report(results, out, benchmark)
    if wandb:
        from sdgbias.report.wandb_run import log_run

        for run in store.latest_runs(results):
            typer.echo(f"W&B (offline): {log_run(results, run, out / 'wandb')}")
    typer.echo(f"report: {page}")


@app.command()
def models() -> None:
    """List the registered models."""
    from sdgbias import registry

    for spec in registry.load_all(registry.find_root()).values():
        state = "enabled" if spec.enabled else f"disabled: {spec.disabled_reason}"
        typer.echo(f"{spec.name:24} {spec.backend:8} {spec.repo:44} {state}")


@app.command("register-model")
def register_model(
    repo: Annotated[str, typer.Argument(help="Hub id (owner/name) or a local folder.")],
    name: Annotated[str, typer.Option(help="Name in the registry; default: the last part of REPO.")] = "",
    revision: Annotated[str, typer.Option(help="Commit (40 hex digits); asked from the hub when left out.")] = "",
    backend: Annotated[str, typer.Option(help="hf, planted, vllm or api.")] = "hf",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16; default: the config's.")] = "",
    enable: Annotated[bool, typer.Option("--enable/--disable", help="Take part in the nightly.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an entry of the same name.")] = False,
) -> None:
    """Add a model to the registry as registry/models/<name>.yaml, its revision pinned to a commit."""
    from dataclasses import replace

    from sdgbias import register, registry

    root = registry.find_root()
    spec = register.propose(repo, name=name or None, backend=backend, revision=revision or None, dtype=dtype or None)
    if not enable:
        spec = replace(spec, enabled=False, disabled_reason="registered with --disable")
    path = registry.write(root, spec, overwrite=overwrite)
    typer.echo(f"{path}: {spec.name} ({spec.backend}, {spec.dtype}, {spec.revision}). Next: sdgbias evaluate {spec.name}")


TablesOption = Annotated[Path, typer.Option("--pred-dir", help="Folder with <task>_T<k> and <task>_T<k>_text tables (.csv, .parquet).")]
TaskOption = Annotated[str, typer.Option("--task", help="mcq or regression.")]
LevelOption = Annotated[str, typer.Option("--level", help="Context test: 1 to 5, or T1 to T5.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder for cade_predictions.csv and cade_config.json.")]
NumericsOption = Annotated[str, typer.Option("--numerics", help="exact, or reference (1e-9 floors; a missing view is uniform).")]
ToleranceOption = Annotated[float | None, typer.Option("--tolerance", help="Interval-accuracy tolerance; default: Table F by target.")]


def _cade(pred_dir: Path, task: str, level: str, out: Path, numerics: str, **more: Any) -> None:
    from sdgbias.release import tables as release
    from sdgbias.types import Task

    kind = Task(_choice("--task", task, tuple(t.value for t in Task)))
    rules = _choice("--numerics", numerics, ("exact", "reference"))
    config = release.run(pred_dir, kind, release.parse_level(level), out, numerics=rules, **more)
    typer.echo(json.dumps({"params": config["params"], "test": config["metrics"]["test"]}, indent=2, default=str))  # type: ignore[index]
    typer.echo(f"wrote {out / 'cade_predictions.csv'} and {out / 'cade_config.json'}")


@cade_app.command("search")
def cade_search(
    pred_dir: TablesOption,
    task: TaskOption,
    level: LevelOption,
    out: OutOption,
    numerics: NumericsOption = "exact",
    draws: Annotated[int, typer.Option(min=1, help="Random-search draws.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    tolerance: ToleranceOption = None,
) -> None:
    """Tune CADE on the val rows of a model's tables, then apply it to all rows."""
    _cade(pred_dir, task, level, out, numerics, params=None, draws=draws, seed=seed, tolerance=tolerance)


@cade_app.command("apply")
def cade_apply(
    pred_dir: TablesOption,
    task: TaskOption,
    level: LevelOption,
    out: OutOption,
    alpha: Annotated[float | None, typer.Option(help="Context penalty.")] = None,
    lambda_kl: Annotated[float | None, typer.Option("--lambda-kl", help="How much image-context divergence strengthens it.")] = None,
    beta: Annotated[float | None, typer.Option(help="Question-prior penalty.")] = None,
    tau: Annotated[float | None, typer.Option(help="Confidence gate: Full answers at least this sure are kept; 0 keeps all.")] = None,
    params: Annotated[Path | None, typer.Option(help="JSON with the four values, e.g. a cade_config.json.")] = None,
    numerics: NumericsOption = "exact",
    tolerance: ToleranceOption = None,
) -> None:
    """Apply CADE with given hyper-parameters to a model's tables."""
    from sdgbias.release.tables import read_params
    from sdgbias.types import CadeParams

    given = {"alpha": alpha, "lambda_kl": lambda_kl, "beta": beta, "tau": tau}
    if params is not None and any(v is not None for v in given.values()):
        raise UsageError("give either --params FILE or --alpha, --lambda-kl, --beta, --tau, not both")
    if params is None and all(v is None for v in given.values()):
        raise UsageError("give --params FILE or --alpha, --lambda-kl, --beta, --tau; to tune them: sdgbias cade search")
    chosen = read_params(params) if params is not None else CadeParams(**{k: float(v or 0.0) for k, v in given.items()})
    for option, value in given.items():
        if params is None and value is None:
            typer.echo(f"--{option.replace('_', '-')} not given: 0", err=True)
    if min(chosen.alpha, chosen.lambda_kl, chosen.beta, chosen.tau) < 0:
        raise UsageError("alpha, lambda-kl, beta and tau can't be negative")
    _cade(pred_dir, task, level, out, numerics, params=chosen, tolerance=tolerance)


@app.command()
def demo(
    results: ResultsOption = DEFAULT_RESULTS,
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/latest"),
) -> None:
    """The main job end to end: dvc repro, then the Prefect flow `nightly` over every enabled model, report, W&B offline."""
    from sdgbias import demo as tour

    tour.run(results, report)


def main() -> None:
    """Entry point: errors a person can mend are one line and an exit code of their own (errors.py)."""
    try:
        app()
    except SdgbiasError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("stopped; what is finished is kept: run the same command again to go on", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
