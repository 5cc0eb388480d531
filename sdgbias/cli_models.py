"""`sdgbias models list|check`: what is registered, and whether its engines agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli_bars import Bars
from sdgbias.cli_options import DEFAULT_BENCHMARK, DEFAULT_RESULTS, ResultsOption
from sdgbias.errors import GateError

models_app = typer.Typer(help="The registered models, and whether their engines agree.", invoke_without_command=True, rich_markup_mode=None)


@models_app.callback()
def models(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_models()


@models_app.command("list")
def list_models() -> None:
    """List the registered models (also without `list`)."""
    from sdgbias import registry

    for spec in registry.load_all(registry.find_root()).values():
        state = "enabled" if spec.enabled else f"disabled: {spec.disabled_reason}"
        typer.echo(f"{spec.name:24} {spec.backend:8} {spec.repo:44} {state}")


@models_app.command("check")
def check_model(
    name: Annotated[str, typer.Argument(help="Name of a registered model (sdgbias models).")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="A backend (the same entry on it) or another model; may be repeated. Default: every backend of the same weights."
        ),
    ] = None,
    benchmark: Annotated[
        Path | None, typer.Option(help=f"Benchmark folder; default: {DEFAULT_BENCHMARK}, or one made for this check where it isn't built.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    probes: Annotated[int, typer.Option(min=6, help="Number of prompts to compare on.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the draw of probes.")] = 0,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Largest difference in log-probability; default: 1e-3 for float32, 5e-2 for half precision.")
    ] = None,
) -> None:
    """Score a few prompts on every engine that serves a model, alone and in batches, and compare them one by one.

    The verdict lies beside the results file as parity/NAME.json. `sdgbias evaluate` publishes nothing for a model that disagrees.
    """
    from sdgbias import parity, registry

    root = registry.find_root()
    spec = registry.load(root, name)
    others = parity.counterparts(spec, root, against or ())
    folder = benchmark or (DEFAULT_BENCHMARK if (DEFAULT_BENCHMARK / "benchmark.json").is_file() else None)
    found = parity.probes(folder, probes, seed)
    told = parity.check(spec, root, found, others, must=bool(against), seed=seed, tolerance=tolerance, progress=Bars())
    told, path = parity.keep(results.parent, told)
    typer.echo("\n".join([*parity.lines(told), f"wrote {path}"]))
    if told["reasons"]:
        raise GateError(f"{name}: {told['reasons'][0]}; its runs are not published until a check agrees: {told['again']}")
