"""What is passed on: `publish` in the formats of others, `wandb` to Weights & Biases."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sdgbias.cli.app import RESULTS, app, group
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    BenchmarkOption,
    JsonOption,
    ResultsOption,
    RunsOption,
    choice,
    say_json,
)
from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.progress import update

if TYPE_CHECKING:
    from sdgbias.report.wandb.log import Logged

FORMATS = ("model-card", "dataset", "every-eval-ever")


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias publish --write published")
def publish(
    formats: Annotated[
        list[str] | None, Argument(help=f"Any of {', '.join(FORMATS)}. Default: all.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    run: RunsOption = None,
    dataset: Annotated[
        str, Option(help="OWNER/NAME of the benchmark on the hub, which .eval_results name.")
    ] = "",
    write: Annotated[Path | None, Option(help="Write the files into this new folder.")] = None,
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
    """Write results and the benchmark in the formats of others.

    Metadata for model cards, the benchmark as a dataset with pictures, Every Eval Ever records.
    Without --write it only shows what would be passed on, and what is withheld and why. Nothing is
    sent without --upload. Planted models are published only by name (--run).
    """
    from sdgbias import store
    from sdgbias.report import publish as door
    from sdgbias.report.publish.dataset import DATASET

    wanted = tuple(choice("FORMATS", name, FORMATS) for name in formats or FORMATS)
    if upload and (write is None or "dataset" not in wanted):
        raise UsageError("--upload sends a written dataset: give --write DIR, and dataset")
    # one connection for all that is read, where there are results
    with store.held_open(results) if wanted != ("dataset",) else nullcontext():
        planned = door.plan(results, benchmark, wanted, run, dataset)
        written = door.write(planned.files, write) if write else None
        sizes = written if written is not None else [(f.path, f.size()) for f in planned.files]
    sent = door.upload(write / DATASET, upload) if write and upload else ""
    if as_json:
        say_json(
            {
                "files": [{"path": path, "bytes": size} for path, size in sizes],
                "licences": planned.licences,
                "withheld": planned.withheld,
                "folder": str(write) if write else None,
                "upload": sent or None,
            }
        )
        return
    estimated = set() if written else {f.path for f in planned.files if f.estimate}
    for path, size in sizes:
        typer.echo(f"{'about ' if path in estimated else ''}{size:>12,} bytes  {path}")
    for what, licence in planned.licences.items():
        typer.echo(f"licence of {what}: {licence}")
    for line in planned.withheld:
        typer.echo(f"withheld: {line}")
    if sent:
        typer.echo(f"uploaded: {sent}")
    typer.echo(
        f"{len(sizes)} files in {write}"
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
            help="Night, e.g. 2026-11-21T0130; default: the newest, or none where no night has run."
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        Option("--run", help="Only this run id; may be given several times."),
    ] = None,
    again: Annotated[bool, Option("--again", help="Also runs that were logged before.")] = False,
) -> None:
    """Log a W&B run for each model of a night.

    Sent at once where WANDB_API_KEY is set, else written into a folder without any login and sent
    later with W&B's own `wandb sync`. They belong to the team and project that WANDB_ENTITY and
    WANDB_PROJECT name now (default: the key's own, sdgbias). WANDB_MODE=offline sends nothing.
    """
    from sdgbias.report.wandb.log import log_night

    target = folder or results.parent / "wandb"
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
    draft: Annotated[bool, Option("--draft", help="Save as a draft that only you see.")] = False,
    out: Annotated[
        Path | None,
        Option(
            "--out", help="Write the text as Markdown to this file instead of sending anything."
        ),
    ] = None,
) -> None:
    """Write a W&B Report of the newest runs; run again, it replaces it.

    The five questions of the overview, the leaderboard, the breaches of the last night, plots over
    nights. Send the runs first: W&B draws the plots over nights from them. Needs WANDB_API_KEY.
    """
    from sdgbias.report.wandb import team_report

    if out is not None:
        typer.echo(f"wrote {team_report.write_markdown(results, out)}")
        return
    target = folder or results.parent / "wandb"
    address = team_report.publish(results, entity, project, target, draft=draft)
    typer.echo(f"W&B report: {address}")
