"""`sdgbias stack up|status|down`: the local stack that runs the nightly by its schedule."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from sdgbias.cli.night_options import OF_ONE_NIGHT, NightOptions, takes_night_options
from sdgbias.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, group, say_json
from sdgbias.errors import InfrastructureError

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="The stack's own folder; default: .prefect beside the results file."
    ),
]


stack_app = group("A local stack that runs the nights: Prefect's server, workers and the schedule.")


@stack_app.command("up")
@takes_night_options(without=OF_ONE_NIGHT, selfcheck=True)
def up(
    port: Annotated[int, typer.Option(min=1024, max=65535)] = 4200,
    pools: str = "cpu=1",
    schedule: Annotated[bool, typer.Option("--schedule/--no-schedule")] = True,
    home: HomeOption = None,
    spread: Annotated[bool, typer.Option("--spread")] = False,
    watch: Annotated[bool, typer.Option("--watch")] = False,
    **options: Any,
) -> None:
    """Start a whole local stack: Prefect's server, a worker per pool, deployments, schedule.
    Returns when all of it is there.

    Everything listens on 127.0.0.1 only, and lies in one folder (--home). Twice is once. What ends
    is started again, and a missed night is caught up. The end: sdgbias stack down. How it is:
    sdgbias stack status.

    Args:
        port: Port of the server and its page, on 127.0.0.1.
        pools: Kinds of machine and models at a time on each, e.g. cpu=1,h100=8.
        schedule: Start nights by --cron, and catch up missed ones.
        spread: Every model as a flow run of its own, in the pool of its kind.
        watch: Also look at the hub every day for new models (registry/watch.yaml).
    """
    from sdgbias.nightly import schedule as times
    from sdgbias.nightly import stack
    from sdgbias.nightly.stack import settings

    night = NightOptions(**options)
    wanted = settings.Stack(
        home=str(_home(home, night.results)),
        project=str(Path.cwd()),
        port=port,
        cron=night.cron,
        timezone=night.zone,
        schedule=schedule,
        pools=settings.pools_of(pools),
        parameters=json.loads(json.dumps(options | {"timezone": night.zone}, default=str))
        | {"pools": spread},
        watch=watch,
    )
    # before anything starts: a wrong --cron or --timezone is an error of this command
    following = times.next_due(wanted.cron, wanted.timezone, datetime.now(UTC))
    stack.up(wanted, typer.echo)
    typer.echo(f"page        {wanted.page}\nlogs        {Path(wanted.home) / 'logs'}")
    typer.echo(f"next night  {following}" if schedule else "next night  none by schedule")
    typer.echo(
        "Next: sdgbias stack status. A night now: PREFECT_API_URL="
        + wanted.api
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
    from sdgbias.nightly import records, schedule, stack
    from sdgbias.nightly.stack import settings

    where = _home(home, results)
    well, said = stack.lines(where)
    made = settings.load(where)
    last = records.last_night(made.results if made else results)
    scheduled = made is not None and made.schedule
    due = (
        schedule.next_due(made.cron, made.timezone, datetime.now(UTC))
        if made and well and scheduled
        else ""
    )
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
