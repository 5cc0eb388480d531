"""`sdgbias wandb log|report`: Weights & Biases, offline where no key is set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, ResultsOption, group
from sdgbias.errors import InfrastructureError, SdgbiasError
from sdgbias.progress import update

if TYPE_CHECKING:
    from sdgbias.report.wandb.log import Logged

wandb_app = group("Weights & Biases: a run per model and night, offline where no key is set.")

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the W&B runs; default: wandb beside the results file."),
]


def _folder(results: Path, folder: Path | None) -> Path:
    return folder or results.parent / "wandb"


@wandb_app.command("log")
def log(
    results: ResultsOption = DEFAULT_RESULTS,
    folder: DirOption = None,
    night: Annotated[
        str | None,
        typer.Option(
            help="Night, e.g. 2026-11-21T0130; default: the newest, or none where no night has run."
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="Only this run id; may be given several times."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also runs that were logged before.")
    ] = False,
) -> None:
    """Log a night's W&B runs, one per model: sent at once where WANDB_API_KEY is set, else written
    into a folder without any login and sent later with W&B's own `wandb sync`.

    They belong to the team and project that WANDB_ENTITY and WANDB_PROJECT name now (default: the
    key's own, sdgbias). WANDB_MODE=offline sends nothing.
    """
    from sdgbias.report.wandb.log import log_night

    target = _folder(results, folder)
    runs = log_night(results, target, night=night, run_ids=run or (), again=again, progress=update)
    failed = _print_outcome(runs, target)
    if failed:
        more = f" --night {night}" if night else ""
        raise InfrastructureError(
            f"W&B: {len(failed)} of {len(runs)} runs left out, {failed[0].run_id}:"
            f" {failed[0].failed}; the results are as before, again: sdgbias wandb log --results"
            f" {results}{more}"
        )


def _print_outcome(runs: list[Logged], target: Path) -> list[Logged]:
    """Print what was logged; returns the runs that were not."""
    waiting = [run for run in runs if run.folder and run.folder.name.startswith("offline-run-")]
    for reason in sorted({run.offline for run in waiting} - {""}):
        typer.echo(f"W&B can't be reached, the runs wait: {reason}", err=True)
    before = sum(1 for run in runs if not run.folder and not run.failed)
    failed = [run for run in runs if run.failed]
    sent = len(runs) - len(waiting) - before - len(failed)
    typer.echo(
        f"W&B: {sent} runs sent, {len(waiting)} wait in {target}"
        + (f", {before} logged before" if before else "")
        + (f". To send them: wandb sync {target}/wandb/offline-run-*" if waiting else "")
    )
    return failed


def log_beside_report(results: Path, target: Path) -> None:
    """What `sdgbias report --wandb` does: log the newest runs; whatever goes wrong is one line, the
    report stands."""
    from sdgbias.report.wandb.log import log_night

    try:
        for run in _print_outcome(log_night(results, target), target):
            typer.echo(f"W&B left out: {run.run_id}: {run.failed}", err=True)
    except SdgbiasError as error:
        typer.echo(f"W&B left out: {error}", err=True)


@wandb_app.command("report")
def report(
    entity: Annotated[
        str, typer.Option(envvar="WANDB_ENTITY", help="W&B team or user that owns the project.")
    ],
    project: Annotated[
        str, typer.Option(envvar="WANDB_PROJECT", help="W&B project that the runs were sent to.")
    ] = "sdgbias",
    results: ResultsOption = DEFAULT_RESULTS,
    folder: DirOption = None,
    draft: Annotated[
        bool, typer.Option("--draft", help="Save as a draft that only you see.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the text as Markdown to this file instead of sending anything."
        ),
    ] = None,
) -> None:
    """A W&B Report of the newest runs: the five questions of the overview, the leaderboard, the
    breaches of the last night, plots over nights.

    The same command again replaces it.

    Send the runs first: the plots over nights are drawn by W&B from them.
    Needs WANDB_API_KEY.
    """
    from sdgbias.report.wandb import team_report

    if out is not None:
        typer.echo(f"wrote {team_report.write_markdown(results, out)}")
        return
    address = team_report.publish(results, entity, project, _folder(results, folder), draft=draft)
    typer.echo(f"W&B report: {address}")
