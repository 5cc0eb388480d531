"""`sdgbias cade search|apply`: CADE on the benchmark authors' prediction tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sdgbias.cli.options import SearchOption, choice, group
from sdgbias.errors import UsageError

cade_app = group("CADE on the benchmark authors' prediction tables.")

TablesOption = Annotated[
    Path,
    typer.Option(
        "--pred-dir", help="Folder with <task>_T<k> and <task>_T<k>_text tables (.csv, .parquet)."
    ),
]
TaskOption = Annotated[str, typer.Option("--task", help="mcq or regression.")]
LevelOption = Annotated[str, typer.Option("--level", help="Context test: 1 to 5, or T1 to T5.")]
OutOption = Annotated[
    Path, typer.Option("--out", help="Folder for cade_predictions.csv and cade_config.json.")
]
NumericsOption = Annotated[
    str,
    typer.Option(
        "--numerics", help="exact, or reference (1e-9 floors; a missing view is uniform)."
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option("--tolerance", help="Interval-accuracy tolerance; default: Table F by target."),
]


def _cade(pred_dir: Path, task: str, level: str, out: Path, numerics: str, **more: Any) -> None:
    from sdgbias.benchmark.release import predictions
    from sdgbias.types import ContextTest, Task

    kind = Task(choice("--task", task, tuple(t.value for t in Task)))
    rules = choice("--numerics", numerics, ("exact", "reference"))
    number = choice("--level", level.strip().upper().removeprefix("T"), tuple("12345"))
    test = ContextTest(f"T{number}")
    config = predictions.run(pred_dir, kind, test, out, numerics=rules, **more)
    shown = {"params": config["params"], "test": config["metrics"]["test"]}
    typer.echo(json.dumps(shown, indent=2))
    for line in predictions.reservations(config):
        typer.echo(f"note: {line}", err=True)
    typer.echo(f"wrote {out / 'cade_predictions.csv'} and {out / 'cade_config.json'}", err=True)


@cade_app.command("search")
def cade_search(
    pred_dir: TablesOption,
    task: TaskOption,
    level: LevelOption,
    out: OutOption,
    numerics: NumericsOption = "exact",
    search: SearchOption = "random",
    draws: Annotated[int, typer.Option(min=1)] = 10_000,
    seed: int = 0,
    tolerance: ToleranceOption = None,
    objective: str = "mae",
) -> None:
    """Tune CADE on the val rows of a model's tables, then apply it to all rows.

    Args:
        draws: Random-search draws.
        seed: Seed of the search.
        objective: What regression is tuned on: mae (the paper's, pooled over all targets) or
            tolerance (the error over each target's tolerance).
    """
    from sdgbias.benchmark.release.predictions import Tuning

    kind = choice("--search", search, ("random", "exact"))
    tuned_on = choice("--objective", objective, ("mae", "tolerance"))
    _cade(
        pred_dir,
        task,
        level,
        out,
        numerics,
        params=Tuning(kind, draws, seed, tuned_on),
        tolerance=tolerance,
    )


@cade_app.command("apply")
def cade_apply(
    pred_dir: TablesOption,
    task: TaskOption,
    level: LevelOption,
    out: OutOption,
    alpha: float | None = None,
    lambda_kl: Annotated[float | None, typer.Option("--lambda-kl")] = None,
    beta: float | None = None,
    tau: float | None = None,
    params: Path | None = None,
    numerics: NumericsOption = "exact",
    tolerance: ToleranceOption = None,
) -> None:
    """Apply CADE with given hyper-parameters to a model's tables.

    Args:
        alpha: Context penalty.
        lambda_kl: How much image-context divergence strengthens it.
        beta: Question-prior penalty.
        tau: Confidence gate: Full answers at least this sure are kept; 0 keeps all.
        params: JSON with the four values, e.g. a cade_config.json.
    """
    from sdgbias.benchmark.release.predictions import read_params
    from sdgbias.types import CadeParams

    given = {"alpha": alpha, "lambda_kl": lambda_kl, "beta": beta, "tau": tau}
    absent = [name for name, value in given.items() if value is None]
    if params is not None and len(absent) < len(given):
        raise UsageError(
            "give either --params FILE or --alpha, --lambda-kl, --beta, --tau, not both"
        )
    if params is None and len(absent) == len(given):
        raise UsageError(
            "give --params FILE or --alpha, --lambda-kl, --beta, --tau; to tune them: sdgbias cade"
            " search"
        )
    for name in absent if params is None else ():
        typer.echo(f"--{name.replace('_', '-')} not given: 0", err=True)
    numbers = CadeParams(**{name: value or 0.0 for name, value in given.items()})
    chosen = read_params(params) if params else numbers
    _cade(pred_dir, task, level, out, numerics, params=chosen, tolerance=tolerance)
