"""What is passed on: `publish` in the formats of others, `wandb` to Weights & Biases."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sdgbias.cli.application import RESULTS, app, group
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    BenchmarkOption,
    JsonOption,
    ResultsOption,
    RunsOption,
    choice,
    print_json,
)
from sdgbias.errors import InfrastructureError, UsageError, argument
from sdgbias.files import write_atomically
from sdgbias.progress import update

if TYPE_CHECKING:
    from sdgbias.report.wandb.log import Logged

FORMATS = ("model-card", "dataset", "every-eval-ever")


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias publish --write published")
def publish(
    formats: Annotated[
        list[str] | None, Argument(help=f"Any of {', '.join(FORMATS)}. Default: all of them.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    run: RunsOption = None,
    dataset: Annotated[
        str, Option(help="OWNER/NAME of the benchmark on the hub; .eval_results refer to it.")
    ] = "",
    write: Annotated[Path | None, Option(help="Write the files to this new folder.")] = None,
    upload: Annotated[
        str,
        Option(
            help=(
                "With --write: commit the dataset folder to this dataset repository of the hub"
                " (OWNER/NAME; created private). The token comes from HF_TOKEN."
            )
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Export results and the benchmark in public formats.

    These are metadata for model cards, the benchmark as a dataset with pictures, and Every Eval
    Ever records. Without --write, the command only lists what would be exported, and what is
    withheld and why. Nothing is sent without --upload. Runs of planted models are exported only if
    --run names them.
    """
    from sdgbias import store
    from sdgbias.report import publish as door
    from sdgbias.report.publish.dataset import DATASET
    from sdgbias.wording import many

    wanted = tuple(choice("FORMATS", name, FORMATS) for name in formats or FORMATS)
    if upload and (write is None or "dataset" not in wanted):
        raise UsageError("--upload sends a written dataset: give --write DIR, and dataset")
    if upload:
        door.check_repository(upload)
    update("reading the benchmark")
    # one connection for all that is planned, where there are results; a night may write meanwhile
    with store.held_open(results) if wanted != ("dataset",) else nullcontext():
        planned = door.plan(results, benchmark, wanted, run, dataset)
    if write:
        sizes = door.write(planned.files, write, update)
    else:
        sizes = [(f.path, f.estimate or sum(map(len, f.content()))) for f in planned.files]
    sent = door.upload(write / DATASET, upload) if write and upload else ""
    if as_json:
        print_json(
            {
                "files": [{"path": path, "bytes": size} for path, size in sizes],
                "licences": planned.licences,
                "withheld": planned.withheld,
                "folder": str(write) if write else None,
                "upload": sent or None,
            }
        )
        return
    estimated = set() if write else {f.path for f in planned.files if f.estimate}
    for path, size in sizes:
        typer.echo(f"{'about ' if path in estimated else ''}{size:>12,} bytes  {path}")
    for what, licence in planned.licences.items():
        typer.echo(f"licence of {what}: {' '.join(licence.split())}")
    for line in planned.withheld:
        typer.echo(f"withheld: {line}")
    if sent:
        typer.echo(f"uploaded: {sent}")
    typer.echo(
        f"{many(len(sizes), 'file')} in {write}"
        if write
        else "Nothing is written or sent. To write these files: --write DIR"
    )


wandb_app = group(
    "wandb", RESULTS, "Send results to Weights & Biases, offline where no key is set."
)

DirOption = Annotated[
    Path | None,
    Option("--dir", help="Folder of the W&B runs; default: wandb beside the results file."),
]


@wandb_app.command("log", epilog="Example: sdgbias wandb log")
def log(
    results: ResultsOption = DEFAULT_RESULTS,
    folder: DirOption = None,
    night: Annotated[
        str | None,
        Option(
            help=(
                "Night, e.g. 2026-11-21T0130. Default: the newest; without nights, the newest run"
                " of each model."
            )
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        Option("--run", help="Only this run id; may be repeated."),
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Also log runs that were logged before.")
    ] = False,
) -> None:
    """Log a W&B run for each model of a night.

    Runs are sent at once if WANDB_API_KEY is set. Otherwise they are written to a folder without
    any login and sent later with W&B's own `wandb sync`. They belong to the team and project that
    WANDB_ENTITY and WANDB_PROJECT name at the time of logging (default: the key's own team,
    project sdgbias). WANDB_MODE=offline sends nothing.
    """
    from sdgbias.report.wandb.log import log_night
    from sdgbias.wording import many

    target = folder or results.parent / "wandb"
    runs = log_night(results, target, night=night, run_ids=run or (), again=again, progress=update)
    failed = _print_outcome(runs, target)
    if failed:
        more = f" --night {night}" if night else ""
        more += f" --dir {argument(folder)}" if folder else ""
        raise InfrastructureError(
            f"W&B: {len(failed)} of {many(len(runs), 'run')} left out, {failed[0].run_id}:"
            f" {failed[0].failed}; the results are as before, again: sdgbias wandb log --results"
            f" {argument(results)}{more}"
        )


def _print_outcome(runs: list[Logged], target: Path) -> list[Logged]:
    """Print what was logged; returns the runs that were not."""
    from sdgbias.wording import many

    written = [run for run in runs if run.folder and run.folder.name.startswith("offline-run-")]
    for reason in sorted({run.offline for run in written} - {""}):
        typer.echo(f"W&B can't be reached, the runs wait: {reason}", err=True)
    before = sum(1 for run in runs if not run.folder and not run.failed)
    failed = [run for run in runs if run.failed]
    sent = len(runs) - len(written) - before - len(failed)
    waiting = list(target.glob("wandb/offline-run-*"))  # of earlier nights, too
    typer.echo(
        f"W&B: {many(sent, 'run')} sent, {many(len(waiting), 'waits', 'wait')} in {target}"
        + (f", {before} logged before" if before else "")
        + (f". To send them: wandb sync {target}/wandb/offline-run-*" if waiting else "")
    )
    return failed


@wandb_app.command(
    "report", epilog="Example: sdgbias wandb report --entity my-team --out report.md"
)
def report(
    entity: Annotated[
        str, Option(envvar="WANDB_ENTITY", help="W&B team or user that owns the project.")
    ],
    project: Annotated[
        str, Option(envvar="WANDB_PROJECT", help="W&B project that the runs were sent to.")
    ] = "sdgbias",
    results: ResultsOption = DEFAULT_RESULTS,
    folder: DirOption = None,
    draft: Annotated[bool, Option("--draft", help="Save a draft that only you can see.")] = False,
    out: Annotated[
        Path | None,
        Option("--out", help="Write the text as Markdown to this file and send nothing."),
    ] = None,
) -> None:
    """Write a W&B Report of the newest runs, or replace the one from before.

    It has the five questions of the overview, the leaderboard, the breaches of the last night, and
    plots over nights, which W&B draws from the runs that were sent: send them first. It needs
    WANDB_API_KEY.
    """
    from sdgbias.report.wandb import team_report

    if out is not None:
        write_atomically(out, team_report.markdown(results), "choose another --out")
        typer.echo(f"wrote {out}")
        return
    target = folder or results.parent / "wandb"
    address = team_report.publish(results, entity, project, target, draft=draft)
    typer.echo(f"W&B report: {address}")
