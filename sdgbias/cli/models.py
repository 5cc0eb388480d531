"""`sdgbias models`: what is registered, whether its engines agree, and what becomes of it."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from sdgbias.cli.fetch import fetch_models
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    choice,
    print_table,
    printed,
    probed,
    probed_benchmark,
    say_json,
    tell,
)
from sdgbias.cli.prompt import show_prompt
from sdgbias.cli.register import register_model
from sdgbias.cli.watch import watch_models
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    RegistryError,
    StoreError,
    UsageError,
)
from sdgbias.progress import update
from sdgbias.types import CANDIDATE, ENABLED, QUARANTINED, RETIRED, STATES

models_app = typer.Typer(
    help=(
        "The registered models: what they are, whether their engines agree, and what becomes of"
        " them.\n\ncandidate -> enabled -> quarantined -> enabled ... -> retired; a retired one is"
        " reopened as a candidate."
    ),
    invoke_without_command=True,
    rich_markup_mode=None,
)
NameArgument = Annotated[str, typer.Argument(help="Name of a registered model (sdgbias models).")]
ReasonOption = Annotated[str, typer.Option(help="One line: why, and what would change it.")]
ProbeBenchmark = Annotated[
    Path | None,
    typer.Option(
        "--benchmark",
        envvar="SDGBIAS_BENCHMARK",
        help=(
            f"Benchmark folder; default: {DEFAULT_BENCHMARK}, or one made for this check where it"
            " isn't built."
        ),
    ),
]


@models_app.callback()
def models(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_models()


@models_app.command("list")
def list_models(
    state: str = "",
    as_json: JsonOption = False,
) -> None:
    """List the registered models (also without `list`). A broken file is reported and hides no
    other; exit code 4.

    Args:
        state: Only models in this state: candidate, enabled, quarantined or retired.
    """
    from sdgbias.registry import changes, entries

    if state:
        choice("--state", state, STATES)
    found, broken = entries.load_readable(entries.find_root())
    shown = [spec for spec in found.values() if state in ("", spec.state)]
    if as_json:
        rows = [
            {
                **changes.to_dict(spec),
                "reason": spec.reason,
                "until": spec.until,
                "suites": entries.suites(spec),
            }
            for spec in shown
        ]
        say_json({"models": rows, "broken": broken})
    else:
        lines = [
            (s.name, s.backend, s.state, s.until, ",".join(entries.suites(s)), s.reason)
            for s in shown
        ]
        counts = Counter(spec.state for spec in shown)
        states = ", ".join(f"{counts[each]} {each}" for each in STATES if counts[each])
        if shown:
            print_table([("model", "backend", "state", "until", "suites", "reason"), *lines])
            typer.echo(f"\nModels: {states}. Next: sdgbias models show NAME")
        else:
            none = f"No model is {state}" if state else "No model yet"
            typer.echo(f"{none}. Next: sdgbias register-model REPO")
    for line in broken.values():
        typer.echo(f"broken: {line}", err=True)
    if broken:
        raise RegistryError(
            f"{len(broken)} of {len(broken) + len(found)} entries can't be read"
            f" ({', '.join(sorted(broken))}); fix the files"
        )


@models_app.command("show")
def show_model(
    name: NameArgument, results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False
) -> None:
    """One model: its entry, the memory it needs, the last check of its engines, its last nights and
    runs."""
    from sdgbias.registry import changes, entries, machine
    from sdgbias.scoring.parity import read_verdict, verdict_path

    spec = entries.load(entries.find_root(), name)
    if as_json:
        past: dict[str, Any] = {
            title: printed(results, title, model=name) if results.exists() else []
            for title in ("nights", "runs")
        }
        say_json({**changes.to_dict(spec), "check": read_verdict(results.parent, name), **past})
        return
    weights = machine.weights_gib((spec.params_b or 0) * 1e9, spec.dtype)
    shared = max(1, machine.gpus_of(spec))
    past = {title: _told_of(results, title, name) for title in ("nights", "runs")}
    tell(
        "model",
        name=name,
        entry=changes.to_yaml(spec),
        gib=machine.need(weights, shared) if weights else 0,
        devices=shared,
        told=read_verdict(results.parent, name),
        path=verdict_path(results.parent, name),
        past=past if results.exists() else {"nights": f"none: {results} doesn't exist"},
    )


def _told_of(results: Path, title: str, name: str) -> str:
    try:
        table = printed(results, title, model=name)
    except StoreError as error:
        return f"can't be read: {error}"
    return "none" if table.empty else "\n" + table.to_string(index=False)


@models_app.command("enable")
def enable_model(
    name: NameArgument,
    check: Annotated[bool, typer.Option("--check/--no-check")] = True,
    probes: Annotated[int, typer.Option(min=6)] = 12,
    benchmark: ProbeBenchmark = None,
    results: ResultsOption = DEFAULT_RESULTS,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
) -> None:
    """Evaluate a model in every night. Its probes must pass first; otherwise nothing changes.

    Args:
        check: Score a few probes first; enabled only if they pass.
        probes: Number of probes.
        dry_run: Score the probes, and change nothing.
    """
    from sdgbias.registry import changes, entries
    from sdgbias.scoring import parity

    root = entries.find_root()
    path, spec = changes.moved(root, name, ENABLED)
    if check:
        verdict = probed(spec, root, benchmark, probes)
        typer.echo(f"{name}: {verdict.line}")
        if verdict.stored:
            parity.save(results.parent, dict(verdict.stored))
        if not verdict.passed:
            kind = EnginesDisagree if verdict.stored else InfrastructureError
            raise kind(
                f"{name} is not enabled: {verdict.line}; fix that, or: sdgbias models enable"
                f" {name} --no-check"
            )
    if dry_run:
        typer.echo(f"{name} would be enabled (--dry-run)")
        return
    changes.set_state(root, name, ENABLED)
    if check:
        changes.set_ways(root, name, verdict.entry or spec)
    typer.echo(f"{path}: {name} is enabled. Next: sdgbias evaluate {name}")


@models_app.command("quarantine")
def quarantine_model(
    name: NameArgument,
    reason: ReasonOption = "",
    until: str = "",
    days: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Quarantine an enabled model for a while, or until it is enabled again.

    Args:
        until: Date (2026-11-30) from which on the nightly tries again; default: until it is
            enabled.
        days: Instead of --until: so many days from today.
    """
    from sdgbias.registry import entries

    if until and days is not None:
        raise UsageError("--until and --days name the same day twice; give one of them")
    today = date.today()
    end = (today + timedelta(days=days)).isoformat() if days is not None else until
    if entries.is_date(end) and end <= today.isoformat():
        raise UsageError(
            f"--until {end}: not after today ({today}); the nightly would evaluate {name} at once:"
            f" sdgbias models enable {name}"
        )
    _move(
        name,
        QUARANTINED,
        reason,
        end,
        f"; {'tried again from ' + end if end else 'until: sdgbias models enable ' + name}",
    )


@models_app.command("retire")
def retire_model(name: NameArgument, reason: ReasonOption = "") -> None:
    """Put a model aside for good. Its results stay; `sdgbias models reopen` makes it a candidate
    again."""
    _move(name, RETIRED, reason)


@models_app.command("reopen")
def reopen_model(name: NameArgument, reason: ReasonOption = "reopened, not checked yet") -> None:
    """Make a retired model a candidate again."""
    _move(name, CANDIDATE, reason, more=f"; next: sdgbias models enable {name}")


@models_app.command("remove")
def remove_model(
    name: NameArgument,
    results: ResultsOption = DEFAULT_RESULTS,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Delete the entry of a model that was added by mistake. A model that was measured and is no
    longer wanted is retired instead; its results stay in either case."""
    from sdgbias.registry import changes, entries

    root = entries.find_root()
    spec = entries.load(root, name)
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Remove {name} ({spec.state})?"):
        typer.echo("Nothing is removed.")
        return
    path = changes.remove(root, name)
    runs = list(printed(results, "runs", model=name)["run_id"]) if results.exists() else []
    kept = f" {len(runs)} of its runs stay in {results}." if runs else ""
    onward = f"sdgbias store remove {runs[0]}" if runs else "sdgbias models"
    typer.echo(f"{path}: removed.{kept} Next: {onward}")


def _move(name: str, state: str, reason: str, until: str = "", more: str = "") -> None:
    from sdgbias.registry import changes, entries

    if not reason.strip():
        raise UsageError(
            f"--reason is empty: give the reason in one line {name} becomes {state}, and what would"
            " change it"
        )
    path = changes.set_state(entries.find_root(), name, state, reason=reason, until=until)
    typer.echo(f"{path}: {name} is {state}: {reason.strip()}{more}")


@models_app.command("parity")
def compare_engines(
    name: NameArgument,
    against: list[str] | None = None,
    benchmark: ProbeBenchmark = None,
    results: ResultsOption = DEFAULT_RESULTS,
    probes: Annotated[int, typer.Option(min=6)] = 64,
    seed: int = 0,
    tolerance: Annotated[float | None, typer.Option(min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Score a few prompts on every engine that serves a model, alone and in batches, and compare
    them one by one.

    The verdict lies beside the results file as parity/NAME.json. `sdgbias evaluate` publishes
    nothing for a model that disagrees.

    Args:
        against: A backend (the same entry on it) or another model; may be repeated. Default: every
            backend of the same weights.
        probes: Number of prompts to compare on.
        seed: Seed of the draw of probes.
        tolerance: Largest difference in log-probability; default: 1e-3 for float32, 5e-2
            for half precision.
    """
    from sdgbias.nightly import gpus
    from sdgbias.registry import entries
    from sdgbias.scoring import parity
    from sdgbias.scoring.probes import probes as choose_probes

    root = entries.find_root()
    spec = entries.load(root, name)
    others = parity.counterparts(spec, root, against or ())
    for one in (spec, *others.values()):  # in turn, on the same GPUs
        gpus.claim(one)
    found = choose_probes(probed_benchmark(benchmark), probes, seed, spec.views)
    told = parity.check(
        spec,
        root,
        found,
        others,
        must=bool(against),
        tolerance=tolerance,
        progress=update,
    )
    told, path = parity.save(results.parent, told)
    say_json(told) if as_json else typer.echo("\n".join([*parity.lines(told), f"wrote {path}"]))
    if told["reasons"]:
        raise EnginesDisagree(
            f"{name}: {told['reasons'][0]}; its runs are not published until a check agrees:"
            f" {told['again']}"
        )


models_app.command("add")(register_model)
models_app.command("fetch")(fetch_models)
models_app.command("watch")(watch_models)
models_app.command("prompt")(show_prompt)
