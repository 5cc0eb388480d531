"""`sdgbias plan` and `sdgbias evaluate`: what scoring a model costs, and scoring it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    GENERATIONS,
    BenchmarkOption,
    GeneratedOption,
    JsonOption,
    ResultsOption,
    SearchOption,
    choice,
    print_findings,
    printed,
    say_json,
    tell,
)
from sdgbias.errors import UsageError
from sdgbias.progress import silent, update
from sdgbias.types import NEEDS_PICTURES

if TYPE_CHECKING:
    from sdgbias.registry.spec import ModelSpec

#: Results of first looks, beside the results file.
FIRST_LOOK = "first-look.duckdb"

PassesOption = Annotated[
    str,
    typer.Option(
        help=(
            "Extra prompts: all, none, or names with commas: table_j, content_free (contextual"
            " calibration), paraphrases (other wordings)."
        )
    ),
]


def plan(
    model: Annotated[list[str], typer.Argument()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    image_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    task: str = "",
    passes: PassesOption = "all",
    rate: Annotated[float | None, typer.Option(min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """What scoring would cost: prompts and tokens, naive and planned, counted with the model's
    tokenizer, no weights loaded; the memory of each GPU, GPU hours, and money at --rate.

    Hours are those of the model's timed runs in --results, first looks (evaluate --limit) included,
    for as many prompts.

    Args:
        model: Names of registered models (sdgbias models).
        image_tokens: Tokens a picture, instead of the model's own (LLaVA-1.5: 576).
        task: mcq or regression alone; default: both.
        rate: Price of one GPU for an hour, in any currency.
    """
    from sdgbias.registry import entries
    from sdgbias.scoring.cost import Counted, cost, hours
    from sdgbias.suites.extra_prompts import choose

    root = entries.find_root()
    chosen = choice("--task", task, ("", "mcq", "regression"))
    counted = Counted(chosen, image_tokens, choose(passes))
    progress = silent if as_json else update
    costs = []
    for spec in [entries.load(root, name) for name in model]:
        counts = cost(spec, root, benchmark, counted, progress)
        estimate = hours(spec, counts["asked"], (results, results.with_name(FIRST_LOOK)), rate)
        costs.append({**counts, "estimate": estimate})
    if as_json:
        say_json(costs[0] if len(costs) == 1 else costs)
    else:
        tell("plan", costs=costs, rate=rate, needs_pictures=NEEDS_PICTURES)
        typer.echo(f"Next: sdgbias evaluate {' '.join(model)} --benchmark {benchmark}")


def evaluate(
    model: Annotated[list[str], typer.Argument()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    search: SearchOption = "random",
    draws: Annotated[int, typer.Option(min=1)] = 10_000,
    seed: int = 0,
    numerics: str = "exact",
    mode: str = "replace",
    limit: Annotated[int | None, typer.Option(min=5)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    passes: PassesOption = "all",
    generated: GeneratedOption = "T1",
    entry: Path | None = None,
    outcome_file: Annotated[Path | None, typer.Option("--outcome")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score models under four views x T1-T5, tune CADE on val, publish the test results.

    A model is a name of the registry; or a folder or hub id, which is then scored as `sdgbias
    register-model` would propose it, without an entry. With several, the next one starts when one
    is published.

    Args:
        model: Names of registered models (sdgbias models), or folders and hub ids that aren't.
        draws: Random-search draws for CADE (paper: 10,000).
        seed: Seed of the search.
        numerics: exact, or reference (the authors' floors).
        mode: Regression: replace (CADE's digit in the free answer, as the authors do) or continue
            (decode on after the digit; twice the cost).
        limit: A first look at so many questions of each kind, in first-look.duckdb.
        batch_size: Prompts per batch; default: the registry entry's.
        entry: Registry file to read instead of registry/models/MODEL.yaml.
        outcome_file: Write the outcome as JSON; the process then ends with its parent.
    """
    from dataclasses import asdict, replace

    from sdgbias.nightly import gpus, process

    if len(model) > 1 and (entry or outcome_file):
        raise UsageError("--entry and --outcome are about one model; name one")
    if not (entry or outcome_file):
        for name in model:
            _check(name)
    if limit:
        from sdgbias.benchmark.first_look import first_look
        from sdgbias.suites import benchmark_card

        benchmark_card(benchmark)  # a folder that is no benchmark is named before it is read
        benchmark = first_look(benchmark, results.parent / "first-look", limit)
        results = results.with_name(FIRST_LOOK)
    runs: list[dict[str, object]] = []
    for name in model:
        with process.report_outcome(outcome_file) as told:
            update("importing the engine")
            from sdgbias.registry import entries
            from sdgbias.scoring import evaluate as evaluation
            from sdgbias.suites.extra_prompts import choose
            from sdgbias.suites.suite import EvalSettings

            root = entries.find_root()
            spec = entries.read(entry) if entry else _spec(root, name)
            if entry and spec.name != name:
                raise UsageError(f"--entry {entry} is the entry of {spec.name}, not of {name}")
            if batch_size:
                spec = replace(spec, batch_size=batch_size)
            gpus.claim(spec)
            update("loading the model")
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
                    generated=choice("--generated", generated, GENERATIONS),
                ),
                update,
            )
            told |= asdict(outcome)
        runs.append({"model": spec.name, **asdict(outcome)})
        if not as_json:
            reasons = printed(results, "failures", [outcome.run_id])
            tell(
                "evaluated",
                name=spec.name,
                o=outcome,
                results=results,
                failed=reasons.to_dict("records"),
            )
    if outcome_file is None or as_json:
        table = printed(results, "evaluated", [run["run_id"] for run in runs])
        if as_json:
            say_json({"results": str(results), "runs": runs, "metrics": table})
        else:
            typer.echo(f"\n{table.to_string(index=False)}\n")
            ids = [str(run["run_id"]) for run in runs]
            print_findings(results, ids, f"sdgbias report --results {results}")


def _named(name: str) -> bool:
    """Whether it is a name of the registry, not a folder or hub id."""
    return "/" not in name and not Path(name).is_dir()


def _check(name: str) -> None:
    """RegistryError for a model that isn't there, before any engine is imported."""
    from sdgbias.registry import entries, propose

    root = entries.find_root()
    if _named(name):
        entries.load(root, name)
    else:
        propose.check_folder(name, root)


def _spec(root: Path, name: str) -> ModelSpec:
    """The entry of a name; for a folder or hub id, the entry that `register-model` would propose
    were there none of it, so that no settings of another model of this folder are taken."""
    from sdgbias.errors import RegistryError
    from sdgbias.registry import entries

    if _named(name):
        return entries.load(root, name)
    from sdgbias.registry import propose
    from sdgbias.scoring import admission

    host = admission.here(root)
    found = propose.propose(name, root, host, propose.Request(), propose.NO_ENTRY)
    if found.obstacle:
        raise RegistryError(
            f"{name}: {found.obstacle}; what else can be done: sdgbias register-model {name}"
            " --dry-run"
        )
    return found.spec
