"""One attempt on one model as a flow run of its own: in the work pool of the machine type that the
model needs, or beside the night on one machine (`python -m flows.nightly serve`).

The night (flows/night.py) starts it and waits. Its log, Cancel, Pause, Retry, heartbeat and the
state of a run whose machine is gone are Prefect's own. Night and attempt share the benchmark, the
results folder and Prefect's server: the outcome is an artifact of the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, WorkPoolStatus
from prefect.deployments import run_deployment
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed, Failed
from pydantic import TypeAdapter

from sdgbias.nightly import attempt, plan, process
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Job
from sdgbias.types import SDG

OUTCOME = TypeAdapter(JobOutcome)
LOOK = 2.0  # seconds between two looks at a run's state
PATIENCE = 600.0  # seconds for which a run may wait for a pool that has no worker
LOG_BYTES = 65_536  # of a model's log that are passed on at a time


@flow(name="score", persist_result=False)
def score(
    results: str,
    night: str,
    model: str,
    suite: str = SDG,
    number: int = 1,
    timeout: float | None = None,
    device: str | None = None,
) -> State[JobOutcome]:
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
    planned, run = plan.load(Path(results), night), UUID(str(flow_run.id))
    job = next(job for job in planned.jobs if (job.model, job.suite) == (model, suite))
    job = job if timeout is None else replace(job, timeout_s=timeout)
    look = follow(job, get_run_logger().info, lambda: reason_to_end(state_of(run)))
    outcome = attempt.attempt(job, Path(results), number, device, look=look)
    row = OUTCOME.dump_python(outcome, mode="json")
    create_table_artifact([row], key="outcome", description=f"night {night}: {job.name}")
    if outcome.kind == process.CANCELLED and (state := state_of(run)) and state.is_paused():
        raise Pause(state=state)  # it stays so, until Resume
    return end_state(outcome)


def end_state(outcome: JobOutcome) -> State[JobOutcome]:
    """The final state of the run of one attempt."""
    message = nights.line(outcome)
    if outcome.kind == process.CANCELLED:
        return Cancelled(message=message, data=outcome)
    return (Completed if outcome.good else Failed)(message=message, data=outcome)


def follow(job: Job, say: Callable[[str], None], why: Callable[[], str]) -> Callable[[], str]:
    """A callback for the time that a model is at work: it passes new lines of the model's log on to
    ``say`` (the log of its Prefect run), without secrets, and returns the reason that ``why`` gives
    for ending the model ('': none, also where the server doesn't answer)."""
    at = job.log.stat().st_size if job.log.exists() else 0

    def look() -> str:
        nonlocal at
        with suppress(OSError), job.log.open("rb") as log:
            at = at if at <= job.log.stat().st_size else 0  # a full log begins anew
            log.seek(at)
            for line in log.readlines(LOG_BYTES):
                if line.endswith(b"\n"):  # a line that is not finished waits
                    at += len(line)
                    say(process.redact(line.decode("utf-8", "replace")))
        try:
            return why()
        except Exception:  # the server is being restarted: the model goes on
            return ""

    return look


def reason_to_end(state: State[Any] | None) -> str:
    """Why a person wants a run in this state ended; '': nobody does. Prefect doesn't end the
    process of a run that is paused, nor any after its server was gone for a while."""
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
    lost = partial(attempt.outcome_of, job, datetime.now(UTC), attempts=number)
    try:
        with get_client(sync_client=True) as client:
            run = _begin_run(client, name, job, results, number, device)
            state = _ended(client, run)
            if state is None:
                why = f"no worker of the pool {run.work_pool_name} for {PATIENCE:.0f} s: start one"
                why = f"{why} there: prefect worker start --pool {run.work_pool_name}"
                # else it would begin when a worker comes back
                client.set_flow_run_state(run.id, Cancelled(message=why), force=True)
                return lost(kind="NoWorker", message=why)
            of_run = {"flow_run_id": {"any_": [run.id]}, "key": {"any_": ["outcome"]}}
            for artifact in client.read_artifacts(
                artifact_filter=ArtifactFilter.model_validate(of_run)
            ):
                return OUTCOME.validate_python(json.loads(str(artifact.data))[0])
    except httpx.HTTPError as error:
        why = f"Prefect's server: {type(error).__name__}: {error}"
        return lost(kind="Interrupted", message=why)
    if why := reason_to_end(state):
        return lost(outcome=attempt.SKIPPED, kind=process.CANCELLED, message=why)
    why = f"flow run {run.name} {str(state.name).lower()}: {state.message or 'its worker is gone'}"
    return lost(kind="Interrupted", message=why)


def _begin_run(
    client: SyncPrefectClient, name: str, job: Job, results: Path, number: int, device: str | None
) -> FlowRun:
    """A new run of the deployment, or that of an earlier start of this night that is not over."""
    tags = [f"night:{job.night}", f"model:{job.model}", f"suite:{job.suite}"]
    which = {"night": job.night, "model": job.model, "suite": job.suite, "number": number}
    how = {"results": str(results.resolve()), "timeout": job.timeout_s, "device": device}
    at_work = {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING"]}}
    wanted = FlowRunFilter.model_validate({"tags": {"all_": tags}, "state": at_work})
    for run in client.read_flow_runs(flow_run_filter=wanted):
        if run.parameters.get("results") == how["results"]:
            return run
    title, where = f"{job.name}, night {job.night}, try {number}", name.format(gpu=job.gpu)
    begun = run_deployment(where, parameters=which | how, flow_run_name=title, tags=tags, timeout=0)
    return cast(FlowRun, begun)


def _ended(client: SyncPrefectClient, run: FlowRun) -> State[Any] | None:
    """The state in which a run is over or paused; None: no worker took it. A night that is ended
    meanwhile cancels it."""
    state, attended = run.state, time.monotonic()
    try:
        while state is None or not (state.is_final() or state.is_paused()):
            process.pause(LOOK)
            with suppress(httpx.HTTPError):  # the server will be back
                state = client.read_flow_run(run.id).state
                if not state or is_attended(client, run, state):
                    attended = time.monotonic()
            if time.monotonic() - attended >= PATIENCE:
                return None
    except process.Stopped:
        with suppress(httpx.HTTPError):
            client.set_flow_run_state(run.id, Cancelling())
        raise
    return state


def is_attended(client: SyncPrefectClient, run: FlowRun, state: State[Any]) -> bool:
    """Whether a run was begun, or its pool, if it has one, has a worker that gives heartbeats."""
    if run.work_pool_name is None or not (state.is_scheduled() or state.is_pending()):
        return True
    return client.read_work_pool(run.work_pool_name).status is not WorkPoolStatus.NOT_READY
