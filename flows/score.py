"""One attempt on one model as a flow run of its own: in the work pool of the machine type that the
model needs, or beside the night on one machine (flows/serve.py).

The night (flows/night.py) starts it and waits. Its log, Cancel, Pause, Retry, heartbeat and the
state of a run whose machine is gone are Prefect's own. Night and attempt share the benchmark, the
results folder and Prefect's server: the outcome is an artifact of the run.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, WorkPoolStatus
from prefect.client.schemas.sorting import ArtifactSort
from prefect.deployments import run_deployment
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed, Failed
from pydantic import TypeAdapter

from flows import pages
from sdgbias.nightly import attempt, plan, process
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Job
from sdgbias.types import SDG

OUTCOME = TypeAdapter(JobOutcome)
KEY = "outcome"
LOOK = 2.0  # seconds between two looks at a run's state
PATIENCE = 600.0  # seconds for which a run may wait for a pool that has no worker
#: States of a run that is at work, or will be.
AT_WORK = ("SCHEDULED", "PENDING", "RUNNING")


@flow(name="score", persist_result=False)
def score(
    results: str,
    night: str,
    model: str,
    suite: str = SDG,
    number: int = 1,
    timeout: float | None = None,
    device: str | None = None,
) -> State[None]:
    """One attempt on one model, as planned by a night.

    Args:
        results: The results file; the plan of the night is stored beside it.
        night: Name of the night.
        model: Model to score; its registry entry is read from the night's snapshot.
        suite: Suite to score it on.
        number: Number of the attempt in this night, from 1.
        timeout: Timeout in seconds; empty: the plan's.
        device: GPUs that the night holds for it; empty: those that its worker sees.
    """
    planned = plan.load(Path(results), night)
    job = next(job for job in planned.jobs if (job.model, job.suite) == (model, suite))
    job = job if timeout is None else replace(job, timeout_s=timeout)
    run = UUID(str(flow_run.id))
    look = pages.follow(job, get_run_logger().info, lambda: reason_to_end(state_of(run)))
    process.begin()
    try:
        outcome = attempt.attempt(job, Path(results), number, device, look=look)
    finally:
        process.stop_all()
    create_table_artifact(
        [OUTCOME.dump_python(outcome, mode="json")],
        key=KEY,
        description=f"night {night}: {job.name}",
    )
    if outcome.kind == attempt.CANCELLED and (state := state_of(run)) and state.is_paused():
        raise Pause(state=state)  # it stays so, until Resume
    return end_state(outcome)


def end_state(outcome: JobOutcome, data: JobOutcome | None = None) -> State[Any]:
    """The final state of the run of one attempt."""
    message = nights.line(outcome)
    if outcome.kind == attempt.CANCELLED:
        return Cancelled(message=message, data=data)
    return (Completed if outcome.good else Failed)(message=message, data=data)


def reason_to_end(state: State[Any] | None) -> str:
    """Why a person wants a run in this state ended; '': nobody does."""
    if state and (state.is_cancelling() or state.is_cancelled()):
        return "cancelled by a person in Prefect's page; the next night goes on from what is stored"
    if state and state.is_paused():
        return "paused by a person in Prefect's page; Resume there or the next night goes on"
    return ""


def state_of(run: UUID) -> State[Any] | None:
    """The state of a flow run on the server."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run).state


def run_by_deployment(
    name: str, job: Job, results: Path, number: int, device: str | None
) -> JobOutcome:
    """Make one attempt as a run of this deployment, whose ``{gpu}`` is the job's machine type, and
    wait for its end; one that is at work already, of an earlier start of the night, is waited for.
    A run that crashed gives a failure of kind 'Interrupted', one whose pool has no worker for
    PATIENCE seconds of kind 'NoWorker': neither is the model's. One that a person cancelled or
    paused is skipped. A night that is ended cancels it."""
    began = datetime.now(UTC)
    parameters = {
        "results": str(results.resolve()),
        "night": job.night,
        "model": job.model,
        "suite": job.suite,
        "number": number,
        "timeout": job.timeout_s,
        "device": device,
    }
    tags = [f"night:{job.night}", f"model:{job.model}", f"suite:{job.suite}"]

    def lost(**columns: str) -> JobOutcome:
        outcome = attempt.outcome_of(
            job, began, attempts=number, **{"kind": "Interrupted", **columns}
        )
        return attempt.since(outcome, began)

    with get_client(sync_client=True) as client:
        try:
            run = _at_work(client, tags, parameters["results"]) or cast(
                FlowRun,
                run_deployment(
                    name.format(gpu=job.gpu),
                    parameters=parameters,
                    flow_run_name=f"{job.name}, night {job.night}, try {number}",
                    tags=tags,
                    timeout=0,
                ),
            )
        except httpx.HTTPError as error:
            return lost(message=f"Prefect's server: {type(error).__name__}: {error}")
        state, attended = run.state, time.monotonic()
        try:
            while state is None or not (state.is_final() or state.is_paused()):
                process.pause(LOOK)
                with suppress(httpx.HTTPError):  # the server will be back
                    state = client.read_flow_run(run.id).state
                    if has_worker(client, run.work_pool_name) or not (state and waits(state)):
                        attended = time.monotonic()
                if time.monotonic() - attended >= PATIENCE:
                    return lost(kind="NoWorker", message=_without_worker(client, run))
        except process.Stopped:
            with suppress(httpx.HTTPError):
                client.set_flow_run_state(run.id, Cancelling())
            raise
        outcome = {"flow_run_id": {"any_": [run.id]}, "key": {"any_": [KEY]}}
        artifacts = client.read_artifacts(
            artifact_filter=ArtifactFilter.model_validate(outcome),
            sort=ArtifactSort.UPDATED_DESC,
            limit=1,
        )
    if artifacts and artifacts[0].data:
        return OUTCOME.validate_python(json.loads(str(artifacts[0].data))[0])
    if why := reason_to_end(state):
        return lost(outcome=attempt.SKIPPED, kind=attempt.CANCELLED, message=why)
    why = f"flow run {run.name} {str(state.name).lower()}: {state.message or 'its worker is gone'}"
    return lost(message=why)


def waits(state: State[Any]) -> bool:
    """Whether a run in this state has yet to be started by a worker."""
    return state.is_scheduled() or state.is_pending()


def has_worker(client: SyncPrefectClient, pool: str | None) -> bool:
    """Whether a worker of this pool gives heartbeats; true without a pool (flows/serve.py)."""
    return pool is None or client.read_work_pool(pool).status is not WorkPoolStatus.NOT_READY


def _without_worker(client: SyncPrefectClient, run: FlowRun) -> str:
    """Why a run that no worker takes is ended; it doesn't begin when one comes back."""
    pool = run.work_pool_name
    why = f"no worker of the pool {pool} for {PATIENCE:.0f} s: its machine or its worker is gone"
    client.set_flow_run_state(run.id, Cancelled(message=why), force=True)
    return f"{why}; start one there: prefect worker start --pool {pool}"


def _at_work(client: SyncPrefectClient, tags: list[str], results: object) -> FlowRun | None:
    """The run of an earlier start of this night that is not over."""
    wanted = {"tags": {"all_": tags}, "state": {"type": {"any_": AT_WORK}}}
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    return next((run for run in runs if run.parameters.get("results") == results), None)
