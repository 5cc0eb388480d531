"""Put on Prefect's server what the nights need: work pools, automations, deployments.

    PREFECT_API_URL=http://127.0.0.1:4200/api python -m flows.deploy --pools cpu=1,h100=8

Running it again changes nothing; infra/compose.yaml runs it once per version. A pool that is there
already keeps its type (infra/kubernetes-pool.json). One machine needs none of it: flows/serve.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists

from sdgbias.errors import InfrastructureError, SdgbiasError, UsageError

CPU = "cpu"
NIGHTLY = "nightly/nightly"
NIGHTS = "nights"  # queue for nights in the pool of CPU models
AUTOMATIONS, DEPLOYMENTS = Path("infra/automations.yaml"), Path("infra/prefect.yaml")


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


def deploy() -> None:
    """Run `prefect deploy` on infra/prefect.yaml, as a user would by hand."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy"]
    done = subprocess.run(
        [*command, "--prefect-file", str(DEPLOYMENTS), "--all"],
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


def pools_of(text: str) -> dict[str, int]:
    """'cpu=1,h100=8' -> {'cpu': 1, 'h100': 8}. A CPU pool is always included, because the night
    itself runs in it."""
    pools: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        kind, _, count = part.partition("=")
        if (
            not (kind.isalnum() and kind.islower() and count.isdecimal() and int(count) > 0)
            or kind in pools
        ):
            raise UsageError(
                f"--pools {text!r}: {part!r}; write KIND=MODELS_AT_A_TIME once per kind, e.g."
                " --pools cpu=1,h100=8"
            )
        pools[kind] = int(count)
    return {CPU: 1, **pools}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pools", default="cpu=1", help="kinds of machine and models at a time")
    args = parser.parse_args()
    try:
        if not os.environ.get("PREFECT_API_URL"):
            raise UsageError("PREFECT_API_URL is not set; e.g. http://127.0.0.1:4200/api")
        pools = pools_of(args.pools)
        with get_client(sync_client=True) as client:
            make_pools(client, pools)
            shown = ", ".join(f"sdgbias-{kind} ({n} at a time)" for kind, n in pools.items())
            print(f"pools        ready: {shown}", flush=True)
            deploy()
            # last: a server on SQLite that loads its automations, as it does when it starts, hangs
            # where one is made meanwhile (Prefect before 3.8.8, issue 23055)
            make_automations(client)
            print(f"deployments  ready: {NIGHTLY}, score per pool", flush=True)
    except SdgbiasError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
