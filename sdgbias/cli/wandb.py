"""`sdgbias wandb log|sync|report`: Weights & Biases, offline unless somebody asks for more."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, Bars, ResultsOption
from sdgbias.errors import InfrastructureError, SdgbiasError

if TYPE_CHECKING:
    from sdgbias.report.wandb.night_runs import Logged

wandb_app = typer.Typer(
    help="Weights & Biases: a run per model and night, offline until it is sent.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

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
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds for one run; what takes longer is left out and named."),
    ] = 120.0,
    again: Annotated[
        bool, typer.Option("--again", help="Also runs that were sent before.")
    ] = False,
) -> None:
    """Write a night's W&B runs, one per model, into a folder. Nothing is sent; no login is
    needed.

    They belong to the team and project that WANDB_ENTITY and WANDB_PROJECT name now (default: the
    key's own, sdgbias).
    """
    from sdgbias.report.wandb.night_runs import log_night

    target = _folder(results, folder)
    made = log_night(
        results,
        target,
        night=night,
        run_ids=run or (),
        timeout=timeout,
        again=again,
        progress=Bars(),
    )
    failed = told(made, target)
    if failed:
        more = f" --night {night}" if night else ""
        raise InfrastructureError(
            f"W&B: {len(failed)} of {len(made)} runs left out, {failed[0].run_id}:"
            f" {failed[0].failed}; the results are as before, again: sdgbias wandb log --results"
            f" {results}{more}"
        )


def told(made: list[Logged], target: Path) -> list[Logged]:
    """Says what was written; returns the runs that were not."""
    written = [m for m in made if m.folder]
    before = sum(1 for m in made if not m.folder and not m.failed)
    typer.echo(
        f"W&B (offline): {len(written)} runs in {target}"
        + (f", {before} sent before" if before else "")
        + (f". Next: sdgbias wandb sync --dir {target}" if written else "")
    )
    return [m for m in made if m.failed]


def offline_runs(results: Path, target: Path) -> None:
    """What `sdgbias report --wandb` does: the newest runs into a folder; whatever goes wrong is one
    line, the report stands."""
    from sdgbias.report.wandb.night_runs import log_night

    try:
        failed = told(log_night(results, target), target)
    except SdgbiasError as error:
        typer.echo(f"W&B left out: {error}", err=True)
        return
    for one in failed:
        typer.echo(f"W&B left out: {one.run_id}: {one.failed}", err=True)


@wandb_app.command("sync")
def sync(
    results: ResultsOption = DEFAULT_RESULTS,
    folder: DirOption = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one run.")] = 120.0,
    patience: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds until a server that doesn't respond counts as unreachable."
        ),
    ] = 10.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the files of runs that were sent.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what waits.")] = False,
) -> None:
    """Send the runs that wait, oldest first. What can't be sent now waits on; run this again as
    often as you like.

    Needs WANDB_API_KEY (or `wandb login`); WANDB_BASE_URL names a server of your own.
    """
    from sdgbias.report.wandb import sync as wandb_state
    from sdgbias.report.wandb import sync as wandb_sync

    folder = _folder(results, folder)
    if dry_run:
        runs = [run for run in wandb_state.waiting(folder) if not run.synced]
        for run in runs:
            typer.echo(run.id)
        typer.echo(
            f"{folder}: {len(runs)} runs wait, {len(wandb_state.sent_ids(folder))} were sent"
        )
        return
    done = wandb_sync.sync(
        folder,
        lambda: datetime.now(UTC),
        timeout=timeout,
        keep=keep,
        patience=patience,
        progress=Bars(),
    )
    for path in done.strange:
        typer.echo(
            f"left alone: {path} is being written, was cut off, or is not one of ours (`wandb sync"
            f" {path}` sends it)",
            err=True,
        )
    typer.echo(f"{folder}: {len(done.sent)} runs sent, {len(done.failed)} wait")
    for name, said in done.failed.items():
        typer.echo(f"  {name}: {said}", err=True)
    if done.failed:
        name, said = next(iter(done.failed.items()))
        raise InfrastructureError(
            f"{len(done.failed)} runs wait, {name}: {said}; again later: sdgbias wandb sync --dir"
            f" {folder}"
        )


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
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for everything that W&B has to answer.")
    ] = 120.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the text as Markdown to this file instead of sending anything."
        ),
    ] = None,
) -> None:
    """A W&B Report of the newest runs: leaderboard, signatures, CADE gain, history over nights, the
    gate's verdicts.

    The same command again replaces it.

    Send the runs first (sdgbias wandb sync): the plots over nights are drawn by W&B from them.
    Needs WANDB_API_KEY.
    """
    from sdgbias.report.wandb import team_report

    if out is not None:
        typer.echo(f"wrote {team_report.write_markdown(results, out)}")
        return
    address = team_report.publish(
        results, entity, project, _folder(results, folder), draft=draft, timeout=timeout
    )
    typer.echo(f"W&B report: {address}")
