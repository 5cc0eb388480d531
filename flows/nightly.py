"""One night as a Prefect flow, or one every night.

    python -m flows.nightly                        one night, now; with a server of its own
    python -m flows.nightly serve --cron "30 1 * * *" --timezone Africa/Nairobi

`serve` runs until it is ended, which ends everything that it started: Prefect's server with its
page, the schedule, each night, each model. A service manager starts it again (infra/README.md), and
it goes on with the newest night that was due and isn't done. For several machines: infra/README.md.

With PREFECT_API_URL set both use that server and start none. Prefect is imported once its variables
are set, and while its server starts: a night by hand is short of these seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows import GIVEN, SETTINGS
from sdgbias import locks, progress, settings
from sdgbias.errors import InfrastructureError, RegressionBreach, SdgbiasError
from sdgbias.nightly import process, records, schedule
from sdgbias.nightly.night_options import OF_ONE_NIGHT, NightOptions, parse, takes_night_options
from sdgbias.nightly.prefect_server import ENV_API, free_port, keep_files, server, wait_for

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

NIGHTLY, SCORE = "nightly/nightly", "score/score"
PAUSE = 5.0  # seconds before a server that ended is started again
WatchOption = Annotated[bool, typer.Option("--watch", help="Also look at the hub every day.")]


def settings_of(*groups: str) -> dict[str, str]:
    """The variables of these groups of settings, of which the last one counts, unless given."""
    settings = {name: value for group in groups for name, value in SETTINGS[group].items()}
    return {name: GIVEN.get(name, value) for name, value in settings.items()}


def unwritable(error: OSError) -> InfrastructureError:
    why = f"{error.filename}: {error.strerror}"
    return InfrastructureError(f"{why}; choose another folder: --results")


def home_of(night: NightOptions) -> Path:
    """The folder of Prefect's files beside the results file; it is made. Raises
    InfrastructureError."""
    home = (night.results.parent / ".prefect").absolute()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from None
    return home


@takes_night_options()
def one_night(**options: Any) -> None:
    """Run one night now; with `serve` before the options, every night."""
    home = home_of(parse(**options))
    log = home / "server.log"
    below = progress.ADDRESS in os.environ  # the models and steps write to its line themselves
    with ExitStack() as started:
        with progress.shown("nightly"):
            progress.update("starting Prefect")
            port, running = free_port(), None
            if ENV_API not in os.environ:
                keep_files(os.environ, home)
                running = started.enter_context(server(port, log, settings_of("by_hand")))
                os.environ[ENV_API] = f"http://127.0.0.1:{port}/api"
            from flows.night import BREACH, nightly  # as long as the server needs

            if running:
                progress.update("waiting for Prefect's server")
                wait_for(port, running, log)
        with nullcontext() if below else progress.shown("nightly"):
            state = nightly(**options, return_state=True)
    print(state.message, file=sys.stderr if state.is_failed() else sys.stdout)
    if not state.is_completed():
        sys.exit(InfrastructureError.exit_code)
    sys.exit(RegressionBreach.exit_code if state.name == BREACH else 0)


@takes_night_options(without=OF_ONE_NIGHT, selfcheck=True)
def serve(
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Of the page.")] = 4200,
    watch: WatchOption = False,
    **options: Any,
) -> None:
    """Run the nights by their schedule on this machine, until this command is ended."""
    night = parse(**options)
    # before anything starts: a wrong option is an error of this command
    following = schedule.next_due(night.cron, night.zone, datetime.now(UTC))
    home = home_of(night)

    def busy(holder: str) -> SdgbiasError:
        return InfrastructureError(f"the nights of {home} are served already, by {holder}")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lock = locks.only_one(home / "lock", unwritable, busy, f"process {os.getpid()}")
    with lock, ExitStack() as started, suppress(KeyboardInterrupt):
        process.sweep()
        given, log = environment(port, home), home / "runs.log"
        running, server_log = None, home / "server.log"
        if ENV_API not in os.environ:
            running = started.enter_context(server(free_port(port), server_log, given))
            wait_for(port, running, server_log)
        print(f"page        {(os.environ | given)[ENV_API].removesuffix('/api')}", flush=True)
        print(f"next night  {following}\nlog         {log}", flush=True)
        itself = [sys.executable, "-m", "flows.nightly", "runs", *sys.argv[1:]]
        runs = started.enter_context(process.beside(itself, log, given))
        while runs.poll() is None:
            time.sleep(1)
            if running and running.poll() is not None:
                print("Prefect's server had ended and is started again", flush=True)
                time.sleep(PAUSE)
                running = started.enter_context(server(port, server_log, given))
        raise InfrastructureError(f"the runs ended: {process.last_error(log)}; see {log}")


def environment(port: int, home: Path) -> dict[str, str]:
    """The environment of the server and of all runs, beside this process's own."""
    # tools of this environment are found even if it is not activated
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    given = settings_of("flows", "quiet", "lively") | {"PATH": tools}
    if ENV_API not in os.environ:
        page = {"port": port, "home": home / "prefect"}
        given |= {name: value.format(**page) for name, value in SETTINGS["served"].items()}
    return given


@takes_night_options(without=OF_ONE_NIGHT, selfcheck=True)
def runs(port: int = 4200, watch: WatchOption = False, **options: Any) -> None:
    """What `serve` runs once its server answers: registers the deployments and runs what is due."""
    import prefect
    from prefect.schedules import Cron

    from flows.night import nightly
    from flows.score import score
    from flows.watch import watch as look

    night = parse(**options)
    parameters = options | {"timezone": night.zone, "score_deployment": SCORE}
    deployments: list[Any] = [
        nightly.to_deployment(
            "nightly",
            schedule=Cron(night.cron, timezone=night.zone),
            parameters=json.loads(json.dumps(parameters, default=str)),
            tags=["sdgbias", "nightly"],
        ),
        score.to_deployment("score", tags=["sdgbias", "score"]),
    ]
    if watch:
        daily = Cron("0 0 * * *", timezone=night.zone)
        deployments.append(look.to_deployment("watch", schedule=daily, tags=["sdgbias"]))
    with prefect.get_client(sync_client=True) as client:
        for deployment in deployments:
            deployment.apply()
        forget(client)
        catch_up(client, night, datetime.now(UTC))
    prefect.serve(*deployments, pause_on_shutdown=False)


def forget(client: SyncPrefectClient) -> None:
    """Mark runs as crashed that an earlier process served here and that ended with it."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Crashed

    served = [client.read_deployment_by_name(name).id for name in (NIGHTLY, SCORE)]
    active = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
    wanted = FlowRunFilter.model_validate({"deployment_id": {"any_": served}, "state": active})
    for run in client.read_flow_runs(flow_run_filter=wanted):
        client.set_flow_run_state(run.id, Crashed(message="its process is gone"), force=True)


def catch_up(client: SyncPrefectClient, night: NightOptions, now: datetime) -> None:
    """Start the newest due night if it isn't done and was due since the schedule was first
    registered: the one that was ended together with its server. Prefect itself starts the runs that
    became late while nothing ran."""
    registered = client.read_deployment_by_name(NIGHTLY)
    due = schedule.missed(night.cron, night.zone, records.last_finished(night, now), now)
    if due and registered.created and due > registered.created:
        more: dict[str, Any] = {"parameters": {"catch_up": True}, "tags": ["catch-up"]}
        client.create_flow_run_from_deployment(registered.id, **more)


if __name__ == "__main__":
    command = {"serve": serve, "runs": runs}.get(" ".join(sys.argv[1:2]), one_night)
    if command is not one_night:
        del sys.argv[1]
    try:
        settings.apply()
        typer.run(command)
    except SdgbiasError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
