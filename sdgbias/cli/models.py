"""`sdgbias models`: what is registered, whether its engines agree, and what becomes of it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from sdgbias.cli.application import MODELS, group
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    BenchmarkOption,
    DryRunOption,
    JsonOption,
    ModelArgument,
    ProbeBenchmark,
    ResultsOption,
    YesOption,
    ask_probes,
    confirmed,
    print_json,
    print_table,
    probe_benchmark,
    query_table,
    registered,
    show,
)
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    InputError,
    RegistryError,
    SdgbiasError,
    StoreError,
    UsageError,
    argument,
    one_of,
)
from sdgbias.progress import update
from sdgbias.types import ENABLED, QUARANTINED, RETIRED, STATES

if TYPE_CHECKING:
    from sdgbias.nightly.watch import Release
    from sdgbias.types import Prompt

ReasonOption = Annotated[str, Option("--reason", help="One line: why, and what would change it.")]


models_app = group("models", MODELS)


@models_app.callback(epilog="Example: sdgbias models --state enabled")
def models(
    context: typer.Context,
    state: Annotated[
        Literal["candidate", "enabled", "quarantined", "retired"] | None,
        Option(help="Only models in this state."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List, show, enable, retire and remove registered models.

    Without a command, the models are listed; if a file is broken, it is reported after the others,
    and the exit code is 4. A candidate is enabled, may be quarantined and enabled again, and is
    retired in the end; a retired model can be enabled again.
    """
    if context.invoked_subcommand is not None:
        return
    from sdgbias.registry import entries

    readable, broken = entries.load_readable(entries.find_root())
    shown = [spec for spec in readable.values() if state in (None, spec.state)]
    if as_json:
        rows = [
            entries.to_dict(s) | {"reason": s.reason, "until": s.until, "suites": entries.suites(s)}
            for s in shown
        ]
        print_json({"models": rows, "broken": broken})
    elif shown:
        lines = [
            (s.name, s.backend, s.state, s.until, ",".join(entries.suites(s)), s.reason)
            for s in shown
        ]
        print_table([("model", "backend", "state", "until", "suites", "reason"), *lines])
        counts = Counter(spec.state for spec in shown)
        states = ", ".join(f"{counts[each]} {each}" for each in STATES if counts[each])
        typer.echo(f"\nModels: {states}. Next: sdgbias models show NAME")
    else:
        none = f"No model is {state}" if state else "No model yet"
        typer.echo(f"{none}. Next: sdgbias register-model REPO")
    for line in broken.values():
        typer.echo(f"broken: {line}", err=True)
    if broken:
        raise RegistryError(
            f"{len(broken)} of {len(broken) + len(readable)} entries can't be read"
            f" ({', '.join(sorted(broken))}); fix the files"
        )


@models_app.command(epilog="Example: sdgbias models watch --dry-run")
def watch(
    rules: Annotated[Path | None, Option(help="Rules; default: registry/watch.yaml.")] = None,
    dry_run: DryRunOption = False,
    webhook_env: Annotated[
        str, Option(help="Variable with the address that news are sent to, in one message.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Register new releases on the hub as candidates.

    New commits of registered models, and new repositories of watched owners and lists. Each is
    announced once, and examined again when it or a library changed (registry/seen.json). With
    `probe` in the rules, candidates that fit are fetched and asked a few questions; with `enable:
    when_admitted`, one that passes is enabled. Registered models stay unchanged.
    """
    from sdgbias.nightly import watch as looks

    def print_news(releases: list[Release]) -> None:
        show(releases, as_json, [one.line() for one in releases if one.news] or ["nothing new"])

    looks.run(rules, webhook_env, dry_run, print_news)


@models_app.command("show", epilog="Example: sdgbias models show tiny-llava")
def show_model(
    name: ModelArgument, results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False
) -> None:
    """Show a model's entry, memory, engine check, nights and runs."""
    from sdgbias.registry import entries, machine
    from sdgbias.scoring.parity import read_verdict, verdict_path

    spec, check = registered(name)[1], read_verdict(results.parent, name)
    titles = ("nights", "runs") if results.exists() else ()
    if as_json:
        past: dict[str, Any] = {"nights": [], "runs": []}
        past |= {title: query_table(results, title, model=name) for title in titles}
        print_json({**entries.to_dict(spec), "check": check, **past})
        return
    weights = machine.weights_gib((spec.params_b or 0) * 1e9, spec.dtype)
    devices = max(1, machine.gpus_of(spec))
    memory = "not known: the entry names no params_b"
    if weights:
        each = f" for each of {devices} devices" if devices > 1 else ""
        memory = f"about {machine.need(weights, devices):.1f} GiB{each}"
    typer.echo(f"{entries.to_yaml(spec)}\nmemory   {memory}")
    if check:
        probes = f"{check.get('checked_at', '')}, {check['probes']['n']} probes"
        details = "; ".join(check["reasons"]) or f"{probes}, {verdict_path(results.parent, name)}"
        typer.echo(f"check    {check['verdict']}: {details}")
    else:
        typer.echo(f"check    never: sdgbias models parity {name}")
    if not titles:
        typer.echo(f"nights   none: {results} doesn't exist")
    for title in titles:
        try:
            table = query_table(results, title, model=name)
        except StoreError as error:
            typer.echo(f"{title:8} can't be read: {error}")
        else:
            rows = "none" if table.empty else "\n" + table.to_string(index=False)
            typer.echo(f"{title:8} {rows}")


@models_app.command("enable", epilog="Example: sdgbias models enable NAME")
def enable_model(
    name: ModelArgument,
    check: Annotated[
        bool, Option("--check/--no-check", help="Score a few probes first, which must pass.")
    ] = True,
    probes: Annotated[int, Option(min=6, help="Number of probes.")] = 12,
    benchmark: ProbeBenchmark = None,
    results: ResultsOption = DEFAULT_RESULTS,
    dry_run: DryRunOption = False,
) -> None:
    """Evaluate a model in every night from now on.

    It may be a candidate, quarantined or retired. Its probes must pass first; otherwise it keeps
    its state.
    """
    from sdgbias.registry import entries
    from sdgbias.scoring import parity

    root = entries.find_root()
    path, spec = entries.moved(root, name, ENABLED)
    if check:
        verdict = ask_probes(spec, root, benchmark, probes)
        typer.echo(f"{name}: {verdict.line}")
        if verdict.stored:
            parity.save(results.parent, dict(verdict.stored))
        if not verdict.passed:
            raise verdict.kind(
                f"{name} is not enabled: {verdict.line}; fix that, or: sdgbias models enable"
                f" {name} --no-check"
            )
    if dry_run:
        typer.echo(f"{name} would be enabled (--dry-run)")
        return
    entries.set_state(root, name, ENABLED)
    if check:
        entries.set_ways(root, name, verdict.entry or spec)
    typer.echo(f"{path}: {name} is enabled. Next: sdgbias evaluate {name}")


@models_app.command(
    "quarantine",
    epilog='Example: sdgbias models quarantine NAME --reason "out of memory" --days 7',
)
def quarantine_model(
    name: ModelArgument,
    reason: ReasonOption = "",
    until: Annotated[
        str, Option(help="Date of the next try, e.g. 2026-11-30. Default: until it is enabled.")
    ] = "",
    days: Annotated[
        int | None,
        Option(min=1, max=36500, help="Number of days until the next try, instead of --until."),
    ] = None,
) -> None:
    """Quarantine a model until a date, or until it is enabled."""
    from sdgbias.nightly import night_options
    from sdgbias.registry import entries

    if until and days is not None:
        raise UsageError("--until and --days name the same day twice; give one of them")
    today = night_options.today()
    end = (today + timedelta(days=days)).isoformat() if days is not None else until
    if entries.is_date(end) and end <= today.isoformat():
        raise UsageError(
            f"--until {end}: not after today ({today}); the nightly would evaluate {name} at once:"
            f" sdgbias models enable {name}"
        )
    more = f"tried again from {end}" if end else f"until: sdgbias models enable {name}"
    _set_aside(name, QUARANTINED, reason, end, f"; {more}")


@models_app.command(
    "retire", epilog='Example: sdgbias models retire NAME --reason "replaced by NAME2"'
)
def retire_model(name: ModelArgument, reason: ReasonOption = "") -> None:
    """Set a model aside for good.

    Its results stay. `sdgbias models enable` takes it back.
    """
    _set_aside(name, RETIRED, reason)


def _set_aside(name: str, state: str, reason: str, until: str = "", more: str = "") -> None:
    from sdgbias.registry import entries

    if not reason.strip():
        raise UsageError(
            f"--reason is empty: say in one line why {name} becomes {state}, and what would change"
            " it"
        )
    path = entries.set_state(entries.find_root(), name, state, reason=reason, until=until)
    typer.echo(f"{path}: {name} is {state}: {reason.strip()}{more}")


@models_app.command("remove", epilog="Example: sdgbias models remove NAME")
def remove_model(
    name: ModelArgument, results: ResultsOption = DEFAULT_RESULTS, yes: YesOption = False
) -> None:
    """Delete the entry of a model that was added by mistake.

    A measured model that is no longer wanted should be retired instead. Its results stay in either
    case.
    """
    from sdgbias.registry import entries
    from sdgbias.wording import many

    root, spec = registered(name)
    if not confirmed(yes, f"Remove {name} ({spec.state})?"):
        typer.echo("Nothing is removed.")
        return
    path = entries.remove(root, name)
    runs = list(query_table(results, "runs", model=name)["run_id"]) if results.exists() else []
    kept, onward = "", "sdgbias models"
    if runs:
        stay = many(len(runs), "of its runs stays", "of its runs stay")
        kept = f" {stay} in {results}."
        onward = f"sdgbias store remove {' '.join(runs)} --results {argument(results)}"
    typer.echo(f"{path}: removed.{kept} Next: {onward}")


@models_app.command("fetch", epilog="Example: sdgbias models fetch NAME")
def fetch_models(
    names: Annotated[
        list[str] | None, Argument(help="Names of registered models (sdgbias models).")
    ] = None,
    enabled: Annotated[
        bool, Option("--enabled", help="Fetch every model that tonight's run would evaluate.")
    ] = False,
) -> None:
    """Download the pinned weights of registered models.

    They go to the cache of the hub's client (HF_HOME), and the size is printed first. The network
    is used even if HF_HUB_OFFLINE is set; evaluations use the cache alone. An interrupted download
    continues when the command is run again. The exit code is 8 if a model is not in the cache in
    the end.
    """
    from sdgbias.nightly.night_options import today
    from sdgbias.registry import entries, fetch, hub

    root = entries.find_root()
    chosen = {name: entries.load(root, name) for name in names or ()}
    if enabled:
        chosen |= entries.due(root, today())
    if not chosen:
        if not enabled:
            raise UsageError("name a model (sdgbias models), or give --enabled")
        typer.echo("No model is enabled. Next: sdgbias models enable NAME")
    failed = []
    for name, spec in chosen.items():
        if not fetch.is_on_hub(spec):
            typer.echo(f"{name}: nothing to fetch: it is no hub model")
        try:
            fetch.fetch(spec, typer.echo)
        except SdgbiasError as error:
            if hub.ends_all(error):
                raise
            failed.append(f"{name}: {error}")
            typer.echo(failed[-1])
    if failed:
        raise InfrastructureError(
            f"{len(failed)} of {len(chosen)} are not in the cache, the first: {failed[0]}"
        )


@models_app.command("parity", epilog="Example: sdgbias models parity NAME --against vllm")
def compare_engines(
    name: ModelArgument,
    against: Annotated[
        list[str] | None,
        Option(
            help=(
                "Another backend for the same entry, or another model; may be repeated. Default:"
                " every other backend of the same weights."
            )
        ),
    ] = None,
    benchmark: ProbeBenchmark = None,
    results: ResultsOption = DEFAULT_RESULTS,
    probes: Annotated[int, Option(min=6, help="Number of prompts to compare on.")] = 64,
    seed: Annotated[int, Option(min=0, help="Seed of the draw of prompts.")] = 0,
    tolerance: Annotated[
        float | None,
        Option(
            min=0,
            help="Largest difference in log-probability. Default: 1e-3; 5e-2 in half precision.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that the engines of a model give the same scores.

    A few prompts are scored on each engine, alone and in batches. The verdict is kept in
    parity/NAME.json beside the results file. If the engines disagree, `sdgbias evaluate` publishes
    nothing for the model.
    """
    from sdgbias.nightly import gpus
    from sdgbias.scoring import parity
    from sdgbias.scoring.probes import probes as choose_probes

    root, spec = registered(name)
    others = parity.counterparts(spec, root, against or ())
    for one in (spec, *others.values()):  # in turn, on the same GPUs
        gpus.claim(one)
    verdict = parity.check(
        spec,
        root,
        choose_probes(probe_benchmark(benchmark), probes, seed, spec.views),
        others,
        must=bool(against),
        tolerance=tolerance,
        progress=update,
    )
    verdict, path = parity.save(results.parent, verdict)
    show(verdict, as_json, [*parity.lines(verdict), f"wrote {path}"])
    if verdict["reasons"]:
        raise EnginesDisagree(
            f"{name}: {verdict['reasons'][0]}; its runs are not published until a check agrees:"
            f" {verdict['again']}"
        )


@models_app.command("prompt", epilog="Example: sdgbias models prompt NAME --test T1 --view full")
def show_prompt(
    name: ModelArgument,
    item: Annotated[str, Option(help="Id of the question. Default: the first one.")] = "",
    test: Annotated[str, Option(help="Test of the question, T1 to T5.")] = "T1",
    view: Annotated[
        Literal["full", "img_q", "ctx_q", "q_only"] | None,
        Option(help="Which evidence is shown. Default: full; ctx_q of a language model."),
    ] = None,
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
) -> None:
    """Print a prompt as the model gets it.

    It prints the text that the chat template makes, with special tokens, the token ids, the number
    of tokens of the picture, and the ids that can begin an answer. It needs the model's tokenizer
    and processor, not its weights. The date in the template is fixed, so that a prompt never
    changes from day to day.
    """
    from sdgbias.engines.hf.processor import load_chat
    from sdgbias.scoring.cost import TOKENIZED
    from sdgbias.types import NEEDS_PICTURES

    root, spec = registered(name)
    if spec.backend not in TOKENIZED:
        raise UsageError(
            f"{name}: backend {spec.backend} has no tokenizer here; models prompt works for:"
            f" {', '.join(TOKENIZED)}"
        )
    shown = view or spec.views[-1]
    if shown not in spec.views:
        raise UsageError(
            f"{name}: --view {shown} {NEEDS_PICTURES}; this model is asked: {', '.join(spec.views)}"
        )
    title, prompt = _find_prompt(benchmark, item, test, shown)
    typer.echo("\n".join([f"{name}, {title}", *load_chat(spec, root).describe(prompt)]))


def _find_prompt(benchmark: Path, item: str, test: str, view: str) -> tuple[str, Prompt]:
    """What is shown, in words, and the prompt. UsageError or InputError with the valid values."""
    from sdgbias import suites
    from sdgbias.raw.images.shards import ImageReader
    from sdgbias.types import Prompt

    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings())
    items = cells["item_id"].astype(str)
    chosen = item or str(items.iloc[0])
    of_item = cells[items == chosen]
    if of_item.empty:
        raise InputError(
            f"{benchmark}: no item {chosen!r}; the first are {', '.join(items.unique()[:3])}"
        )
    matching = of_item[(of_item["test"] == test) & (of_item["view"] == view)]
    if matching.empty:
        tests = of_item["test"].unique().tolist()
        raise UsageError(f"item {chosen}: {one_of('--test', test, tests)}")
    row = matching.iloc[0]
    pictures = ImageReader(benchmark)[row["image_id"]] if row["image_id"] else ()
    prompt = Prompt(row["text"], row["candidates"], pictures, row["image_id"])
    return f"item {chosen}, test {test}, view {view}", prompt
