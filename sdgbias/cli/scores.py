"""What scoring a model costs, scoring it, and CADE on the benchmark authors' prediction tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from sdgbias.cli.application import SCORES, app, group
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    BenchmarkOption,
    DrawsOption,
    GeneratedOption,
    JsonOption,
    Numerics,
    NumericsOption,
    PassesOption,
    ResultsOption,
    SearchOption,
    SeedOption,
    choice,
    print_estimates,
    print_findings,
    print_json,
    query_table,
    registered,
)
from sdgbias.errors import SdgbiasError, UsageError, argument
from sdgbias.progress import begin, silent, update
from sdgbias.types import MASS_FLOOR, NEEDS_PICTURES

if TYPE_CHECKING:
    from sdgbias.registry.spec import ModelSpec
    from sdgbias.scoring.session import Outcome

#: Results of first looks, beside the results file.
FIRST_LOOK = "first-look.duckdb"


@app.command(rich_help_panel=SCORES, epilog="Example: sdgbias plan NAME --passes none")
def plan(
    model: Annotated[list[str], Argument(help="Names of registered models (sdgbias models).")],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    image_tokens: Annotated[
        int | None,
        Option(min=1, help="Tokens per picture, instead of the model's own (LLaVA-1.5: 576)."),
    ] = None,
    task: Annotated[
        Literal["mcq", "regression"] | None, Option(help="One task alone. Default: both.")
    ] = None,
    passes: PassesOption = "all",
    as_json: JsonOption = False,
) -> None:
    """Estimate what scoring a model would cost.

    Prompts and tokens, naive and planned, are counted with the model's tokenizer; no weights are
    loaded. Hours of a device (a GPU, or the CPU where the runs had none) are scaled from the
    model's timed runs in --results, first looks (evaluate --limit) included.
    """
    from sdgbias.scoring.cost import cost, hours
    from sdgbias.suites.extra_prompts import choose

    costs = []
    for root, spec in [registered(name) for name in model]:
        counts = cost(
            spec,
            root,
            benchmark,
            task=task or "",
            image_tokens=image_tokens,
            passes=choose(passes),
            progress=silent if as_json else update,
        )
        estimate = hours(spec, counts["asked"], (results, results.with_name(FIRST_LOOK)))
        costs.append({**counts, "estimate": estimate})
    if as_json:
        print_json(costs[0] if len(costs) == 1 else costs)
        return
    typer.echo("\n\n".join(map(cost_text, costs)))
    if len(costs) > 1 and all(c["estimate"]["runs"] for c in costs):
        total = {key: sum(c["estimate"][key] for c in costs) for key in costs[0]["estimate"]}
        typer.echo(f"\n{len(costs)} models: {_hours_text(total)}")
    typer.echo(f"Next: sdgbias evaluate {' '.join(model)} --benchmark {argument(benchmark)}")


def cost_text(c: Mapping[str, Any]) -> str:
    """What scoring one model takes: prompts and tokens in a table, and hours."""
    rows = {
        "naive (every cell a pass)": (c["prompts_naive"], c["tokens_naive"]),
        "plain Full view only": (c["prompts_full"], c["tokens_full"]),
        "distinct prompts": (c["prompts_planned"], c["tokens_distinct"]),
        "planned (shared beginnings)": (c["prompts_planned"], c["tokens_planned"]),
    }
    if c["prompts_extra"]:
        rows["extra passes add"] = (c["prompts_extra"], c["tokens_extra"])
    pictures, full = "no pictures", f"plain Full {NEEDS_PICTURES}"
    if c["prompts_full"]:
        pictures = f"{c['image_tokens']} tokens a picture"
        full = f"{c['ratio_full']:.2f} of plain Full only"
    without = ", both without extra passes" if c["prompts_extra"] else ""
    return "\n".join(
        [
            f"{c['model']}: {c['items']:,} questions, {pictures}\n",
            f"{'':28} {'prompts':>12} {'tokens':>15}",
            *(f"{name:28} {prompts:>12,} {n:>15,}" for name, (prompts, n) in rows.items()),
            f"\nplanned: {c['ratio_naive']:.1f} times fewer tokens than naive, {full}{without}\n",
            _hours_text(c["estimate"])
            or "device hours: not known without a timed run; a few questions are enough: sdgbias"
            f" evaluate {c['model']} --limit 50",
        ]
    )


def _hours_text(e: Mapping[str, Any]) -> str:
    """Device hours with their range, '' without a timed run."""
    if not e["runs"]:
        return ""
    runs = f"{e['runs']} measured run{'s' * (e['runs'] > 1)}"
    return f"device hours: {e['hours']:.3g} ({e['low']:.3g} to {e['high']:.3g}), by {runs}"


@app.command(rich_help_panel=SCORES, epilog="Example: sdgbias evaluate tiny-llava --limit 50")
def evaluate(
    model: Annotated[
        list[str],
        Argument(help="Names of registered models (sdgbias models), or folders and hub ids."),
    ],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    search: SearchOption = "random",
    draws: DrawsOption = 10_000,
    seed: SeedOption = 0,
    numerics: NumericsOption = "exact",
    mode: Annotated[
        Literal["replace", "continue"],
        Option(
            help=(
                "Regression: CADE's digit replaces that of the free answer, as the authors do, or"
                " decoding continues from it (twice the cost)."
            )
        ),
    ] = "replace",
    limit: Annotated[
        int | None,
        Option(min=5, help="Take a first look at so many questions of each kind."),
    ] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Prompts per batch. Default: the registry entry's.")
    ] = None,
    passes: PassesOption = "all",
    generated: GeneratedOption = "T1",
    entry: Annotated[
        Path | None, Option(help="Registry file to read instead of registry/models/MODEL.yaml.")
    ] = None,
    outcome_file: Annotated[
        Path | None,
        Option(
            "--outcome", help="Write the outcome to this JSON file; end with the parent process."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score models, tune CADE and publish the results.

    Every question is asked under four views and five context tests. CADE is tuned on the validation
    questions and measured on the test questions. A folder or hub id is scored as `sdgbias
    register-model` would propose it, without an entry. Several models are scored one after the
    other. A first look (--limit) has results of its own, in first-look.duckdb.
    """
    from dataclasses import asdict, replace

    from sdgbias.nightly import gpus, process

    if len(model) > 1 and (entry or outcome_file):
        raise UsageError("--entry and --outcome are about one model; name one")
    model, by_name = list(dict.fromkeys(model)), dict[str, str]()
    for one in model:
        if (other := by_name.setdefault(Path(one).name.lower(), one)) != one:
            raise UsageError(
                f"{other} and {one} would have one name in the results; rename a folder, or"
                f" register it under another name: sdgbias register-model {argument(one)} --name"
                " NAME"
            )
    if not (entry or outcome_file):
        for name in model:
            _require(name)
    if limit:
        from sdgbias.benchmark.first_look import first_look
        from sdgbias.suites import benchmark_card

        benchmark_card(benchmark)  # a folder that is no benchmark is named before it is read
        benchmark = first_look(benchmark, results.parent / "first-look", limit)
        results = results.with_name(FIRST_LOOK)
    runs: list[dict[str, object]] = []
    for name in model:
        with (
            _json_of_failure(results, runs) if as_json else nullcontext(),
            process.report_outcome(outcome_file) as reported,
        ):
            if len(model) > 1:
                begin(f"evaluate {name}")
            update("importing the engine")
            from sdgbias.registry import entries
            from sdgbias.scoring import evaluate as evaluation
            from sdgbias.suites.extra_prompts import choose
            from sdgbias.suites.suite import EvalSettings

            root = entries.find_root()
            spec = entries.read(entry) if entry else spec_of(root, name)
            if entry and spec.name != name:
                raise UsageError(f"--entry {entry} is the entry of {spec.name}, not of {name}")
            if batch_size:
                spec = replace(spec, batch_size=batch_size)
            gpus.claim(spec)
            update("loading the model")
            settings = EvalSettings(
                draws=draws,
                seed=seed,
                numerics=numerics,
                mode=mode,
                passes=choose(passes),
                search=search,
                generated=generated,
            )
            outcome = evaluation.evaluate(spec, root, benchmark, results, settings, update)
            reported |= asdict(outcome)
            reported["outcome"] = "published" if outcome.published else "unchanged"
        runs.append({"model": spec.name, **asdict(outcome)})
        if not as_json:
            _print_run(spec.name, outcome, results)
    if as_json:
        _print_runs(results, runs)
    elif outcome_file is None:
        ids = [str(run["run_id"]) for run in runs]
        typer.echo()
        print_estimates(query_table(results, "evaluated", ids, floor=MASS_FLOOR))
        typer.echo()
        print_findings(results, ids, f"sdgbias report --results {argument(results)}")


def _print_runs(results: Path, runs: list[dict[str, object]]) -> None:
    table = query_table(results, "evaluated", [run["run_id"] for run in runs], floor=MASS_FLOOR)
    print_json({"results": str(results), "runs": runs, "metrics": table})


@contextmanager
def _json_of_failure(results: Path, runs: list[dict[str, object]]) -> Iterator[None]:
    """Around the evaluation of a model: where it fails, the runs before it are printed."""
    try:
        yield
    except SdgbiasError:
        if runs:
            _print_runs(results, runs)
        raise


def _print_run(name: str, outcome: Outcome, results: Path) -> None:
    """How many prompts a run has, how many were scored now, and why others have no score."""
    from sdgbias.wording import many

    o = outcome
    extra = f", {o.extra:,} more of extra passes" if o.extra else ""
    without = f", {o.unanswerable:,} that it can't answer" if o.unanswerable else ""
    typer.echo(
        f"{name}: run {o.run_id}: {many(o.naive, 'cell')} of the paper's views,"
        f" {many(o.planned - o.extra, 'distinct prompt')}{extra}: {o.scored:,} scored now,"
        f" {o.cached:,} from the cache, {o.failed} failed{without}"
    )
    failures = query_table(results, "failures", [o.run_id]).to_dict("records")
    for f in failures:
        typer.echo(f"{name}: {f['n']:,} failed with {f['kind']}: {f['message']}")


def _is_name(model: str) -> bool:
    """Whether it is a name of the registry, not a folder or hub id."""
    return "/" not in model and not Path(model).is_dir()


def _require(model: str) -> None:
    """RegistryError for a model that doesn't exist, before any engine is imported."""
    from sdgbias.registry import entries, propose

    root = entries.find_root()
    entries.load(root, model) if _is_name(model) else propose.check_folder(model, root)


def spec_of(root: Path, model: str) -> ModelSpec:
    """The entry of a name; for a folder or hub id, the entry that `register-model` would propose
    if it had none, so that no settings of another model of this folder are used."""
    from sdgbias.errors import RegistryError
    from sdgbias.registry import entries

    if _is_name(model):
        return entries.load(root, model)
    from sdgbias.registry import propose
    from sdgbias.scoring import admission

    host = admission.here(root)
    proposal = propose.propose(model, root, host, propose.Request(), propose.NO_ENTRY)
    if proposal.obstacle:
        raise RegistryError(
            f"{model}: {proposal.obstacle}; what else can be done: sdgbias register-model"
            f" {argument(model)} --dry-run"
        )
    spec = proposal.spec
    registered = entries.load_readable(root)[0].get(spec.name)
    if registered and _source(root, registered) != _source(root, spec):
        raise RegistryError(
            f"{model}: the results would name it {spec.name}, as the model that is registered from"
            f" {registered.repo}; give it another name: sdgbias register-model {argument(model)}"
            " --name NAME"
        )
    return spec


def _source(root: Path, spec: ModelSpec) -> str:
    """The folder of a model, or its hub id."""
    from sdgbias.engines.fingerprint import folder_of

    folder = folder_of(spec, root)
    return str(folder.resolve()) if folder else spec.repo


cade_app = group("cade", SCORES, "Tune and apply CADE on the authors' prediction tables.")
TablesOption = Annotated[
    Path,
    Option(
        "--pred-dir", help="Folder with <task>_T<k> and <task>_T<k>_text tables (.csv, .parquet)."
    ),
]
TaskOption = Annotated[Literal["mcq", "regression"], Option("--task", help="Kind of questions.")]
LevelOption = Annotated[str, Option("--level", help="Context test: 1 to 5, or T1 to T5.")]
CadeFolder = Annotated[
    Path, Option("--out", help="Folder for cade_predictions.csv and cade_config.json.")
]
ToleranceOption = Annotated[
    float | None,
    Option("--tolerance", help="Interval-accuracy tolerance; default: Table F by target."),
]


def _cade(
    pred_dir: Path, task: str, level: str, out: Path, numerics: Numerics, **more: Any
) -> None:
    from sdgbias import templates
    from sdgbias.benchmark.release import predictions
    from sdgbias.types import ContextTest, Task

    named = "T" + level.strip().upper().removeprefix("T")
    test = ContextTest(choice("--level", named, tuple(ContextTest)))
    config = predictions.run(pred_dir, Task(task), test, out, numerics=numerics, **more)
    print_json({"params": config["params"], "test": config["metrics"]["test"]})
    for line in templates.lines("cade_notes", c=config):
        typer.echo(line, err=True)
    typer.echo(f"wrote {out / 'cade_predictions.csv'} and {out / 'cade_config.json'}", err=True)


@cade_app.command(
    "search",
    epilog="Example: sdgbias cade search --pred-dir my/tables --task mcq --level T1 --out my/cade",
)
def cade_search(
    pred_dir: TablesOption,
    task: TaskOption,
    level: LevelOption,
    out: CadeFolder,
    numerics: NumericsOption = "exact",
    search: SearchOption = "random",
    draws: DrawsOption = 10_000,
    seed: SeedOption = 0,
    tolerance: ToleranceOption = None,
) -> None:
    """Tune CADE on the validation rows, then apply it to all rows."""
    from sdgbias.methods.search import SearchSettings

    tuning = search, SearchSettings(draws, seed)
    _cade(pred_dir, task, level, out, numerics, params=tuning, tolerance=tolerance)


@cade_app.command(
    "apply",
    epilog=(
        "Example: sdgbias cade apply --pred-dir my/tables --task mcq --level T1 --out my/cade"
        " --alpha 1"
    ),
)
def cade_apply(
    pred_dir: TablesOption,
    task: TaskOption,
    level: LevelOption,
    out: CadeFolder,
    alpha: Annotated[float | None, Option(help="Context penalty.")] = None,
    lambda_kl: Annotated[
        float | None,
        Option("--lambda-kl", help="Weight of the image-context divergence in that penalty."),
    ] = None,
    beta: Annotated[float | None, Option(help="Question-prior penalty.")] = None,
    tau: Annotated[
        float | None,
        Option(help="Confidence gate: Full answers at least this confident are kept; 0: all."),
    ] = None,
    params: Annotated[
        Path | None, Option(help="JSON with the four values, e.g. a cade_config.json.")
    ] = None,
    numerics: NumericsOption = "exact",
    tolerance: ToleranceOption = None,
) -> None:
    """Apply CADE with given hyper-parameters to a model's tables."""
    from sdgbias.benchmark.release.predictions import read_params
    from sdgbias.types import CadeParams

    values = {"alpha": alpha, "lambda_kl": lambda_kl, "beta": beta, "tau": tau}
    given = any(value is not None for value in values.values())
    if given == (params is not None):
        raise UsageError(
            "give either --params FILE or some of --alpha, --lambda-kl, --beta, --tau (the others"
            " are 0); to tune them: sdgbias cade search"
        )
    chosen = CadeParams(**{name: value or 0.0 for name, value in values.items()})
    if params is not None:
        chosen = read_params(params)
    _cade(pred_dir, task, level, out, numerics, params=chosen, tolerance=tolerance)
