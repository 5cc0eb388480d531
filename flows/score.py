"""One job of a night as a separate flow run, in the work pool of the machine type that its model
needs.

The night (flows/nightly.py with `pools: true`) submits it and waits. The outcome is returned as an
artifact of the run, so night and worker share only the benchmark, the results folder and Prefect's
server.
"""

from __future__ import annotations

import contextvars
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.client.schemas.sorting import ArtifactSort
from prefect.deployments import run_deployment
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, Pause
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Completed, Failed, Running, State
from prefect.utilities.urls import url_for
from pydantic import TypeAdapter

from flows import pages
from sdgbias import progress
from sdgbias.nightly import attempt, plan, process
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Job
from sdgbias.types import SDG

OUTCOME = TypeAdapter(JobOutcome)
KEY = "outcome"
LOOK = 2.0  # seconds between two looks at a run's state
BEAT = 30.0  # seconds between two heartbeats
PATIENCE = 10.0  # seconds for the last lines of a log, if the server is slow
#: Callback of an attempt: takes its progress, returns why a person wants it ended ('': to go on).
Seen = Callable[[progress.Record | None], str]


@flow(name="score", persist_result=False)
def score(
    results: str,
    night: str,
    model: str,
    suite: str = SDG,
    number: int = 1,
    timeout: float | None = None,
) -> State[None]:
    """One attempt on one model, as planned by a night.

    Args:
        results: The results file; the plan of the night is stored beside it.
        night: Name of the night.
        model: Model to score; its registry entry is read from the night's snapshot.
        suite: Suite to score it on.
        number: Number of the attempt in this night, from 1.
        timeout: Timeout in seconds; empty: the plan's.
    """
    planned = plan.load(Path(results), night)
    job = next(job for job in planned.jobs if (job.model, job.suite) == (model, suite))
    job = job if timeout is None else replace(job, timeout_s=timeout)
    pages.outlive_the_worker()
    process.begin()
    try:
        made = attended(
            job,
            get_run_logger().info,
            lambda: UUID(str(flow_run.id)),
            lambda seen: attempt.attempt(job, Path(results), number, seen=seen),
        )
    finally:
        process.stop_all()
    create_table_artifact(
        [OUTCOME.dump_python(made, mode="json")], key=KEY, description=f"night {night}: {job.name}"
    )
    if made.kind == attempt.CANCELLED:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(str(flow_run.id))).state
        if state and state.is_paused():
            raise Pause(state=state)  # it stays so, until Resume
    return end_state(made)


def end_state(made: JobOutcome) -> State[Any]:
    """The final state of the run of one attempt."""
    said = f"{made.kind}: {made.message}" if made.kind else f"{made.outcome}: run {made.run_id}"
    if made.kind == attempt.CANCELLED:
        return Cancelled(message=said)
    return Completed(message=said) if made.good else Failed(message=said)


def attended(
    job: Job,
    say: Callable[[str], None],
    run: Callable[[], UUID | None],
    work: Callable[[Seen], JobOutcome],
    end: Callable[[UUID, JobOutcome], None] = lambda run, made: None,
) -> JobOutcome:
    """Make an attempt. A thread beside it passes its log and progress on to Prefect's page, and
    ends it when a person cancels or pauses the flow run that ``run`` gives; the attempt itself
    never waits for the server. ``end``: takes that run and the outcome."""
    look, over = pages.follow(job, say), threading.Event()
    newest: list[progress.Record | None] = [None]
    wish, made = [""], list[JobOutcome]()

    def seen(record: progress.Record | None) -> str:
        newest[0] = record
        return wish[0]

    def serve() -> None:
        page = pages.shown(run)
        if page:
            say(f"to cancel, pause or retry it: {url_for('flow-run', page)}")
        beats = 0.0
        while not over.wait(LOOK):
            look(newest[0])
            wish[0] = wish[0] or (pages.shown(wanted, page) if page else None) or ""
            if page and not wish[0] and time.monotonic() >= beats:
                beats = time.monotonic() + BEAT
                pages.shown(heartbeat, page)
        look(None)
        if page and made:
            pages.shown(end, page, made[0])

    beside = threading.Thread(
        target=contextvars.copy_context().run, args=(serve,), name="page", daemon=True
    )
    beside.start()
    try:
        made.append(work(seen))
        return made[0]
    finally:
        over.set()
        beside.join(PATIENCE)


def heartbeat(run: UUID) -> None:
    """For the automation that marks a run as crashed whose machine is gone (automations.yaml)."""
    emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{run}"})


def wanted(run: UUID) -> str:
    """Why a person wants a flow run ended, by its state on the server; '': nobody does."""
    with get_client(sync_client=True) as client:
        return _why(client.read_flow_run(run).state)


def _why(state: State[Any] | None) -> str:
    if state and (state.is_cancelling() or state.is_cancelled()):
        return "cancelled by a person in Prefect's page; the next night goes on from what is stored"
    if state and state.is_paused():
        return "paused by a person in Prefect's page; Resume there or the next night goes on"
    return ""


def on_the_page(job: Job, results: Path, number: int) -> UUID | None:
    """A flow run that stands for an attempt of this process: Prefect's page offers Cancel (with a
    deployment also Pause, Retry, Resume) for flow runs, not for task runs. None: no server."""
    if not PREFECT_API_URL.value():
        return None
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(f"score/score-{job.gpu}")
            run = client.create_flow_run_from_deployment(
                found.id, state=Running(), **_identity(job, results, number)
            )
        except ObjectNotFound:  # a night that was started by hand
            mine = _identity(job, results, number)
            del mine["idempotency_key"]
            run = client.create_flow_run(score, state=Running(), **mine)
        if run.state and run.state.is_final() and not run.state.is_cancelled():
            client.set_flow_run_state(run.id, Running(), force=True)  # of an earlier start
    return run.id


def close_on_the_page(run: UUID, made: JobOutcome) -> None:
    """Set the final state of a run made by `on_the_page`; one that is paused can be resumed."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        if not (state and state.is_paused()):
            client.set_flow_run_state(run, end_state(made), force=True)


def _identity(job: Job, results: Path, number: int) -> dict[str, Any]:
    """Parameters, key, name and tags of the flow run of an attempt: one for each."""
    return {
        "parameters": {
            "results": str(results.resolve()),
            "night": job.night,
            "model": job.model,
            "suite": job.suite,
            "number": number,
            "timeout": job.timeout_s,
        },
        "idempotency_key": f"{job.night}-{job.suite}-{job.key}-{number}",
        "name": f"{job.name}, night {job.night}, try {number}",
        "tags": [f"night:{job.night}", f"model:{job.model}"],
    }


def run_in_pool(job: Job, results: Path, number: int) -> JobOutcome:
    """Run one attempt in the pool of the job's machine type: submit the run (or find it, if the
    night was restarted) and wait for its end. A run that crashed gives a failure of kind
    'Interrupted', which is not the model's; one that a person cancelled or paused is skipped."""
    began = datetime.now(UTC)
    mine = _identity(job, results, number)

    try:
        run = run_deployment(
            f"score/score-{job.gpu}", flow_run_name=mine.pop("name"), timeout=0, **mine
        )
    except httpx.HTTPError as error:
        why = f"Prefect's server: {type(error).__name__}: {error}"
        return attempt.lost(job, why, began, number)
    with get_client(sync_client=True) as client:
        state = run.state
        while state is None or not (state.is_final() or state.is_paused()):
            process.pause(LOOK)
            with suppress(httpx.HTTPError):  # the server will be back
                state = client.read_flow_run(run.id).state
        found = client.read_artifacts(
            artifact_filter=_outcome_of(run.id), sort=ArtifactSort.UPDATED_DESC, limit=1
        )
    if found and found[0].data:
        return OUTCOME.validate_python(json.loads(str(found[0].data))[0])
    if why := _why(state):
        return attempt.cancelled(attempt.lost(job, why, began, number), why)
    why = f"flow run {run.name} {state.name.lower()}: {state.message or 'its worker is gone'}"
    return attempt.lost(job, why, began, number)


def _outcome_of(flow_run: UUID) -> ArtifactFilter:
    return ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]), key=ArtifactFilterKey(any_=[KEY])
    )
