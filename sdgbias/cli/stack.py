"""`sdgbias stack up|status|down`: the local stack that runs the nightly by its schedule."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    BenchmarksOption,
    JsonOption,
    ResultsOption,
    say_json,
)
from sdgbias.errors import InfrastructureError

ENV_TIMEZONE = "SDGBIAS_TIMEZONE"
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="The stack's own folder; default: .prefect beside the results file."
    ),
]


stack_app = typer.Typer(
    help="A local stack that runs the nights: Prefect's server, workers and the schedule.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@stack_app.command("up")
def up(
    port: Annotated[
        int,
        typer.Option(min=1024, max=65535, help="Port of the server and its page, on 127.0.0.1."),
    ] = 4200,
    cron: Annotated[
        str, typer.Option(help="When a night starts: five fields, minute first.")
    ] = "30 1 * * *",
    timezone: Annotated[
        str | None,
        typer.Option(
            help=f"Time zone of --cron, e.g. Africa/Nairobi. Default: {ENV_TIMEZONE}, else UTC."
        ),
    ] = None,
    pools: Annotated[
        str, typer.Option(help="Kinds of machine and models at a time on each, e.g. cpu=1,h100=8.")
    ] = "cpu=1",
    schedule: Annotated[
        bool,
        typer.Option(
            "--schedule/--no-schedule", help="Start nights by --cron, and catch up missed ones."
        ),
    ] = True,
    home: HomeOption = None,
    benchmark: BenchmarksOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/latest"),
    policy: Annotated[
        Path | None, typer.Option(help="The gate's policy file; default: registry/policy.yaml.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Models at a time, where the night scores them itself.")
    ] = 1,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread", help="Every model as a flow run of its own, in the pool of its kind."
        ),
    ] = False,
    selfcheck: Annotated[
        bool,
        typer.Option(
            "--selfcheck/--no-selfcheck", help="Close each night with the full self-check."
        ),
    ] = True,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Also look at the hub every day for new models (registry/watch.yaml)."
        ),
    ] = False,
) -> None:
    """Start a whole local stack: Prefect's server, a worker per pool, deployments, schedule.
    Returns when all of it is there.

    Everything listens on 127.0.0.1 only, and lies in one folder (--home). Twice is once. A
    supervisor starts again what ends, and catches up a night that was missed. The end: sdgbias
    stack down. How it is: sdgbias stack status.
    """
    from sdgbias.nightly import stack
    from sdgbias.nightly.stack import catch_up, settings

    now, zone = datetime.now(UTC), timezone or os.environ.get(ENV_TIMEZONE) or "UTC"
    parameters: dict[str, object] = {
        "benchmarks": [str(folder) for folder in benchmark] if benchmark else None,
        "results": str(results),
        "report": str(report),
        "jobs": jobs,
        "pools": spread,
        "selfcheck": selfcheck,
        **({"policy": str(policy)} if policy else {}),
    }
    wanted = settings.Stack(
        home=str(_home(home, results)),
        project=str(Path.cwd()),
        port=port,
        cron=cron,
        timezone=zone,
        schedule=schedule,
        pools=settings.pools_of(pools),
        parameters={**parameters, "cron": cron, "timezone": zone},
        watch=watch,
    )
    following = catch_up.next_due(
        wanted, now
    )  # a wrong --cron or --timezone is told before anything starts
    made = stack.up(wanted, typer.echo, now)
    typer.echo(f"page        {made.page}\nlogs        {Path(made.home) / 'logs'}")
    typer.echo(f"next night  {following}" if schedule else "next night  none by schedule")
    typer.echo(
        "Next: sdgbias stack status. A night now: PREFECT_API_URL="
        + made.api
        + " prefect deployment run nightly/nightly"
    )


@stack_app.command("down")
def down(home: HomeOption = None, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """End the local stack and everything it started, a night at work included. What is finished is
    kept; the next `up` goes on."""
    from sdgbias.nightly import stack

    where = _home(home, results)
    ended = stack.down(where, typer.echo)
    typer.echo(
        f"down: {ended} processes ended; history and results are kept"
        if ended
        else f"no stack runs in {where}"
    )


@stack_app.command("status")
def status(
    home: HomeOption = None, results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False
) -> None:
    """What of the stack runs, how the last night ended, when the next one starts. Exit code 8
    unless everything runs."""
    from sdgbias.nightly import stack
    from sdgbias.nightly.stack import catch_up, settings

    where = _home(home, results)
    well, said = stack.lines(where)
    made = settings.load(where)
    last = catch_up.last_night(made.results if made else results)
    scheduled = made is not None and made.schedule
    due = catch_up.next_due(made, datetime.now(UTC)) if made and well and scheduled else ""
    following = [f"next night  {due or 'none by schedule'}"] if made and well else []
    if as_json:
        say_json({"whole": well, "lines": said, "last_night": last, "next_night": due})
    else:
        typer.echo("\n".join([*said, f"last night  {last}", *following]))
    if not well:
        raise InfrastructureError(
            f"the stack in {where} is not whole; start it, or what of it is missing:"
            " sdgbias stack up"
        )


def _home(home: Path | None, results: Path) -> Path:
    return (home or results.parent / ".prefect").resolve()
