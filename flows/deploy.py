"""Put on Prefect's server what the nights need: work pools, automations, deployments.

    PREFECT_API_URL=http://127.0.0.1:4200/api python -m flows.deploy --pools cpu=1,h100=8

Running it again changes nothing. `sdgbias stack up` runs it with --home; infra/compose.yaml runs it
once per version. A pool that is there already keeps its type (infra/kubernetes-pool.json).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import WorkerStatus
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists

from sdgbias.errors import InfrastructureError, SdgbiasError, UsageError
from sdgbias.nightly import records, schedule
from sdgbias.nightly.stack import settings
from sdgbias.nightly.stack.settings import CPU, Stack

NIGHTLY = "nightly/nightly"
NIGHTS = "nights"  # queue for nights in the pool of CPU models
AUTOMATIONS = Path("infra/automations.yaml")


def make_pools(client: SyncPrefectClient, pools: Mapping[str, int]) -> None:
    """Create or update one pool per machine type, limited to its number of parallel models, and a
    separate queue for nights in the CPU pool."""
    for kind, limit in pools.items():
        name = f"sdgbias-{kind}"
        # the night itself runs in the CPU pool, so there the limit is on the models' queue
        whole = None if kind == CPU else limit
        try:
            client.create_work_pool(
                WorkPoolCreate(name=name, type="process", concurrency_limit=whole)
            )
        except ObjectAlreadyExists:  # from an earlier start, or created by its worker just now
            client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=whole))
        if kind == CPU:
            queue = client.read_work_queue_by_name("default", name)
            client.update_work_queue(queue.id, concurrency_limit=limit)
            with suppress(ObjectAlreadyExists):
                client.create_work_queue(NIGHTS, work_pool_name=name)


def make_automations(client: SyncPrefectClient) -> None:
    """Create the automations of infra/automations.yaml, replacing those of the same names."""
    wanted = yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"]
    for automation in map(AutomationCore.model_validate, wanted):
        for before in client.read_automations_by_name(automation.name):
            client.delete_automation(before.id)
        client.create_automation(automation)


def deploy(file: Path) -> None:
    """Run `prefect deploy` on a file of deployments, as a user would by hand."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy"]
    done = subprocess.run(
        [*command, "--prefect-file", str(file), "--all"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise InfrastructureError(
            f"prefect deploy: exit code {done.returncode}:"
            f" {' '.join((done.stderr or done.stdout).split())[-300:]}"
        )


def catch_up(client: SyncPrefectClient, stack: Stack, now: datetime) -> str:
    """Start the newest due night if it isn't done and was due since the deployment was created;
    return its name, '' if there is none. Prefect itself starts the runs that became late while
    nothing ran; this covers the night that was ended together with its stack."""
    made = client.read_deployment_by_name(NIGHTLY)
    last = records.last_finished(stack.results)
    due = schedule.missed(stack.cron, stack.timezone, last, now)
    if due is None or made.created is None or due <= made.created:
        return ""
    client.create_flow_run_from_deployment(
        made.id, parameters={"catch_up": True}, tags=["catch-up"]
    )
    return schedule.night_id(due, stack.timezone, stack.cron)


def wait_for_workers(client: SyncPrefectClient, stack: Stack, patience: float = 300) -> None:
    """Wait until every worker of the stack is online. Raises InfrastructureError."""
    deadline = time.monotonic() + patience
    for worker, kind in stack.workers.items():
        while not any(
            w.name == worker and w.status == WorkerStatus.ONLINE
            for w in client.read_workers_for_work_pool(f"sdgbias-{kind}")
        ):
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{worker}: not online after {patience:.0f} s")
            time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pools", default="cpu=1", help="kinds of machine and models at a time")
    parser.add_argument("--home", type=Path, help="folder of a local stack: its settings and pools")
    parser.add_argument("--catch-up", action="store_true", help="start a missed night of the stack")
    args = parser.parse_args()
    try:
        if not os.environ.get("PREFECT_API_URL"):
            raise UsageError("PREFECT_API_URL is not set; e.g. http://127.0.0.1:4200/api")
        stack = settings.load(args.home) if args.home else None
        pools = stack.pools if stack else settings.pools_of(args.pools)
        with get_client(sync_client=True) as client:
            make_pools(client, pools)
            shown = ", ".join(f"sdgbias-{kind} ({n} at a time)" for kind, n in pools.items())
            print(f"pools        ready: {shown}", flush=True)
            deploy(args.home / "prefect.yaml" if stack else settings.SOURCE)
            # last: a server on SQLite that loads its automations, as it does when it starts, hangs
            # where one is made meanwhile (Prefect before 3.8.8, issue 23055)
            make_automations(client)
            print(f"deployments  ready: {NIGHTLY}, score per pool", flush=True)
            if stack is None:
                return
            wait_for_workers(client, stack)
            print(f"workers      ready: {', '.join(stack.workers)}", flush=True)
            night = catch_up(client, stack, datetime.now(UTC)) if args.catch_up else ""
            if night:
                print(f"missed       night {night} is started now", flush=True)
    except SdgbiasError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
