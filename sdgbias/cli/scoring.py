"""`sdgbias plan` and `sdgbias evaluate`: what scoring a model costs, and scoring it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    printed,
    say_json,
    tell,
)
from sdgbias.errors import UsageError
from sdgbias.progress import silent, update

if TYPE_CHECKING:
    from sdgbias.scoring.plan import Part
    from sdgbias.types import ModelSpec

PassesOption = Annotated[
    str,
    typer.Option(
        help=(
            "Extra passes for baselines and Table J: none, cheap, costly, all, or names of passes"
            " and methods with commas."
        )
    ),
]


def plan(
    model: Annotated[list[str], typer.Argument()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    image_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    task: str = "",
    passes: PassesOption = "cheap",
    gpu: str = "",
    rate: Annotated[float | None, typer.Option(min=0)] = None,
    gpu_hours: Annotated[float, typer.Option(min=0)] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """What scoring would cost: prompts and tokens, naive and planned, counted with the model's
    tokenizer, no weights loaded; memory, GPU hours with an interval, and money at --rate.

    Hours are judged by the model's measured runs in --results, else by the stated throughput of the
    GPU: an estimate within a factor of three or so.

    Args:
        model: Names of registered models (sdgbias models).
        image_tokens: Tokens a picture, instead of the model's own (LLaVA-1.5: 576).
        task: mcq or regression alone; default: both.
        gpu: Kind of GPU, such as h100 or l4; default: the entry's, else h100.
        rate: Price of one GPU for an hour, in any currency.
        gpu_hours: GPU hours of a night: says how many nights it takes.
    """
    from sdgbias.registry import entries
    from sdgbias.scoring import cost, estimate
    from sdgbias.suites.extra_prompts import choose

    root = entries.find_root()
    chosen = choice("--task", task, ("", "mcq", "regression"))
    counted = cost.Counted(chosen, image_tokens, choose(passes))
    progress = silent if as_json else update
    found = []
    for spec in [entries.load(root, name) for name in model]:
        one = cost.cost(spec, root, benchmark, counted, progress=progress)
        found.append((one, estimate.estimate(spec, one, results, gpu)))
    if as_json:
        say_json(estimate.as_json(found, rate))
    else:
        typer.echo("\n".join(estimate.lines(found, rate)))
        if gpu_hours and all(one.basis for _, one in found):
            nights = sum(one.hours for _, one in found) / gpu_hours
            typer.echo(f"nights: about {nights:.1f} of {gpu_hours:g} GPU hours each")


def evaluate(
    model: Annotated[list[str], typer.Argument()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    results: ResultsOption = DEFAULT_RESULTS,
    search: SearchOption = "random",
    draws: Annotated[int, typer.Option(min=1)] = 10_000,
    seed: int = 0,
    numerics: str = "exact",
    mode: str = "continue",
    limit: Annotated[int | None, typer.Option(min=5)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    ray: Annotated[str, typer.Option(metavar="ADDRESS")] = "",
    part: Annotated[str, typer.Option(metavar="I/N")] = "",
    passes: PassesOption = "cheap",
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
        mode: Regression answers: continue (decode after CADE's digit) or replace.
        limit: A first look at so many questions of each kind: stored in first-look.duckdb beside
            the results, on no leaderboard.
        batch_size: Prompts per batch; default: the registry entry's.
        workers: Engines, each in a process of its own; default: 1, with --ray as many as fit.
        ray: Run on this Ray cluster (HOST:PORT, or auto).
        part: Only score part I of N into the cache beside the results, where another evaluate,
            without this option, publishes the run: parts may run on several machines over a shared
            folder.
        entry: Registry file to read instead of registry/models/MODEL.yaml, e.g. a night's copy of
            it.
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
        results = results.parent / "first-look.duckdb"
    one_part = _part(part)
    runs: list[dict[str, object]] = []
    for name in model:
        with process.report_outcome(outcome_file) as told:
            from sdgbias.registry import entries
            from sdgbias.scoring import estimate
            from sdgbias.scoring import evaluate as evaluation
            from sdgbias.suites.extra_prompts import choose
            from sdgbias.suites.suite import EvalSettings

            root = entries.find_root()
            spec = entries.read(entry) if entry else _spec(root, name)
            if entry and spec.name != name:
                raise UsageError(f"--entry {entry} is the entry of {spec.name}, not of {name}")
            if batch_size:
                spec = replace(spec, batch_size=batch_size)
            if not ray:
                gpus.claim(spec, workers)
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
                pool=evaluation.Pool(workers, ray, one_part),
                progress=update,
            )
            told |= asdict(outcome)
        runs.append({"model": spec.name, **asdict(outcome)})
        if not as_json:
            of: dict[str, Any] = {"failed": [], "time": ""}
            if not one_part:
                reasons = printed(results, "failures", [outcome.run_id])
                time = estimate.compared(results, outcome.run_id, spec)
                of = {"failed": reasons.to_dict("records"), "time": time}
            tell("evaluated", name=spec.name, o=outcome, part=part, results=results, **of)
    if (outcome_file is None and not one_part) or as_json:
        table = printed(results, "evaluated", [run["run_id"] for run in runs])
        if as_json:
            say_json({"results": str(results), "runs": runs, "metrics": table})
        else:
            typer.echo("\n" + table.to_string(index=False))


def _part(text: str) -> Part | None:
    """'2/3' as a part of a plan, '' as None. Raises UsageError."""
    from sdgbias.scoring.plan import Part

    if not text:
        return None
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UsageError(f"--part {text}: give I/N with I from 1 to N, such as 2/3")
    return Part(int(number), int(of))


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
    """The entry of a name; for a folder or hub id without one, the entry that `register-model`
    would propose."""
    from sdgbias.errors import RegistryError
    from sdgbias.registry import entries

    if _named(name):
        return entries.load(root, name)
    from sdgbias.registry import propose
    from sdgbias.scoring import parity

    found = propose.propose(name, root, parity.here(root), propose.Request())
    if found.obstacle:
        raise RegistryError(
            f"{name}: {found.obstacle}; what else can be done: sdgbias register-model {name}"
            " --dry-run"
        )
    return found.spec
