"""Every night on one machine: Prefect's server with its page, the schedule, and what runs there.

    python -m flows.nightly serve --cron "30 1 * * *" --timezone Africa/Nairobi

It runs until it is ended, which ends everything that it started; a service manager starts it again
(infra/README.md), and it goes on with the newest night that was due and isn't done. With
PREFECT_API_URL set it uses that server and starts none. A night scores each model in a flow run of
its own, and gives it the GPUs that it needs (sdgbias/nightly/gpus.py). For several machines:
infra/README.md.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from flows import SETTINGS, run_command, server
from sdgbias import locks
from sdgbias.errors import InfrastructureError, SdgbiasError
from sdgbias.nightly import process, records, schedule
from sdgbias.nightly.night_options import OF_ONE_NIGHT, NightOptions, parse, takes_night_options

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.deployments.runner import RunnerDeployment

NIGHTLY, SCORE = "nightly/nightly", "score/score"
PAUSE = 5.0  # seconds before a server that ended is started again


@takes_night_options(without=OF_ONE_NIGHT, selfcheck=True)
def serve(
    port: Annotated[int, typer.Option(min=1024, max=65535)] = 4200,
    watch: Annotated[bool, typer.Option("--watch")] = False,
    **options: Any,
) -> None:
    """Run the nights by their schedule, until this command is ended.

    Args:
        port: Port of Prefect's server and its page, on 127.0.0.1.
        watch: Also look at the hub every day for new models (registry/watch.yaml).
    """
    night = parse(**options)
    # before anything starts: a wrong option is an error of this command
    following = schedule.next_due(night.cron, night.zone, datetime.now(UTC))
    if __name__ == "__main__":  # as `keep` runs it, with a server to use
        register_and_run(night, options, watch)
        return
    print(f"page        http://127.0.0.1:{port}\nnext night  {following}", flush=True)
    keep(port, (night.results.parent / ".prefect").absolute())


def keep(port: int, home: Path) -> None:
    """Run what registers and runs the nights, and a server where none is given; all of it ends with
    this process, however that happens. Raises InfrastructureError: the port is taken, the server
    doesn't come up, the runs ended, or another process is at work in ``home``."""

    def unwritable(error: OSError) -> SdgbiasError:
        return InfrastructureError(f"{home}: {error.strerror}; choose another folder: --results")

    def busy(holder: str) -> SdgbiasError:
        return InfrastructureError(f"the nights of {home} are served already, by {holder}")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home.mkdir(parents=True, exist_ok=True)
    lock = locks.only_one(home / "lock", unwritable, busy, f"process {os.getpid()}")
    with lock, ExitStack() as servers, suppress(KeyboardInterrupt):
        process.sweep()
        given, log = environment(port, home), home / "runs.log"
        running, server_log = None, home / "server.log"
        if server.ENV_API not in os.environ:
            require_free(port)
            running = servers.enter_context(server.beside(port, server_log, given))
            server.wait_for(port, running, server_log)
        print(f"log         {log}", flush=True)
        itself = [sys.executable, "-m", "flows.serve", *sys.argv[1:]]
        with process.beside(itself, log, given) as runs:
            while runs.poll() is None:
                time.sleep(1)
                if running and running.poll() is not None:
                    print("Prefect's server had ended and is started again", flush=True)
                    time.sleep(PAUSE)
                    running = servers.enter_context(server.beside(port, server_log, given))
        raise InfrastructureError(f"the runs ended: {process.last_error(log)}; see {log}")


def require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InfrastructureError(
                f"port {port} on 127.0.0.1: {error.strerror}; choose a free one: --port {port + 1}"
            ) from None


def environment(port: int, home: Path) -> dict[str, str]:
    """The environment of the server and of all runs, beside this process's own, whose variables
    come before the settings of sdgbias/data/prefect.yaml."""
    page = f"http://127.0.0.1:{port}"
    settings = SETTINGS["flows"] | SETTINGS["quiet"] | SETTINGS["lively"]
    # tools of this environment are found even if it is not activated
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    more = {name: os.environ.get(name, value) for name, value in settings.items()} | {"PATH": tools}
    if server.ENV_API in os.environ:
        return more
    return {
        **more,
        server.ENV_API: f"{page}/api",
        "PREFECT_UI_API_URL": f"{page}/api",
        "PREFECT_HOME": str(home / "prefect"),
        # Prefect looks for it in the user's own folder otherwise
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "prefect" / "memo_store.toml"),
        # pages of other sites must not start flows
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{page},http://localhost:{port}",
    }


def register_and_run(night: NightOptions, options: dict[str, Any], watch: bool) -> None:
    """Register the deployments of this machine on the server and run what is due, without end."""
    from prefect import serve as serve_deployments
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.schedules import Cron

    from flows.night import nightly
    from flows.score import score
    from flows.watch import watch as watch_flow

    once = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    parameters = options | {"timezone": night.zone, "score_deployment": SCORE}
    deployments = [
        nightly.to_deployment(
            "nightly",
            schedule=Cron(night.cron, timezone=night.zone),
            parameters=json.loads(json.dumps(parameters, default=str)),
            concurrency_limit=once,
            tags=["sdgbias", "nightly"],
        ),
        score.to_deployment("score", tags=["sdgbias", "score"]),
    ]
    if watch:
        daily = Cron("0 0 * * *", timezone=night.zone)
        deployments.append(watch_flow.to_deployment("watch", schedule=daily, tags=["sdgbias"]))
    served = cast("list[RunnerDeployment]", deployments)
    with get_client(sync_client=True) as client:
        for deployment in served:
            deployment.apply()
        forget(client)
        if name := catch_up(client, night, datetime.now(UTC)):
            print(f"missed: night {name} is started now", flush=True)
    serve_deployments(*served, pause_on_shutdown=False, limit=None)


def forget(client: SyncPrefectClient) -> None:
    """Mark runs as crashed that an earlier process served here and that ended with it."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import State
    from prefect.states import Crashed

    served = [client.read_deployment_by_name(name).id for name in (NIGHTLY, SCORE)]
    active = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
    wanted = {"deployment_id": {"any_": served}, "state": active}
    for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted)):
        gone: State[Any] = Crashed(message="the process that served it is gone")
        client.set_flow_run_state(run.id, gone, force=True)


def catch_up(client: SyncPrefectClient, night: NightOptions, now: datetime) -> str:
    """Start the newest due night if it isn't done and was due since the schedule was first
    registered; return its name, '' if there is none. Prefect itself starts the runs that became
    late while nothing ran; this covers the night that was ended together with its server."""
    registered = client.read_deployment_by_name(NIGHTLY)
    due = schedule.missed(night.cron, night.zone, records.last_finished(night.results), now)
    if due is None or registered.created is None or due <= registered.created:
        return ""
    client.create_flow_run_from_deployment(
        registered.id, parameters={"catch_up": True}, tags=["catch-up"]
    )
    return schedule.night_id(due, night.zone, night.cron)


if __name__ == "__main__":
    run_command(serve)
