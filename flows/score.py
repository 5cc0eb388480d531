"""One job of a night as a separate flow run, in the work pool of the machine type that its model
needs.

The night (flows/nightly.py with `pools: true`) submits it and waits. The outcome is returned as an
artifact of the run, so night and worker share only the benchmark, the results folder and Prefect's
server.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.deployments import run_deployment
from prefect.states import Completed, Failed, State
from pydantic import TypeAdapter

from flows import pages
from sdgbias.errors import InfrastructureError
from sdgbias.nightly import attempt, plan, process
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Job
from sdgbias.types import SDG

OUTCOME = TypeAdapter(JobOutcome)
KEY = "outcome"
LOOK = 2.0  # polling interval in seconds while waiting for a run


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
    process.begin()
    try:
        seen = pages.follow(job, get_run_logger().info)
        made = attempt.attempt(job, Path(results), number, seen=seen)
    finally:
        process.stop_all()
    create_table_artifact(
        [OUTCOME.dump_python(made, mode="json")], key=KEY, description=f"night {night}: {job.name}"
    )
    said = f"{made.kind}: {made.message}" if made.kind else f"{made.outcome}: run {made.run_id}"
    return Completed(message=said) if made.good else Failed(message=said)


def run_in_pool(job: Job, results: Path, number: int) -> JobOutcome:
    """Run one attempt in the pool of the job's machine type: submit the run (or find it, if the
    night was restarted) and wait for its end. A run that crashed gives an outcome of kind
    'Interrupted', one that a person cancelled 'Cancelled': failures, but not the model's."""
    began = datetime.now(UTC)
    run = run_deployment(
        f"score/score-{job.gpu}",
        parameters={
            "results": str(results.resolve()),
            "night": job.night,
            "model": job.model,
            "suite": job.suite,
            "number": number,
            "timeout": job.timeout_s,
        },
        idempotency_key=f"{job.night}-{job.suite}-{job.key}-{number}",
        flow_run_name=f"{job.name}, night {job.night}, try {number}",
        tags=[f"night:{job.night}", f"model:{job.model}"],
        timeout=0,
    )
    with get_client(sync_client=True) as client:
        state = run.state
        while state is None or not state.is_final():
            process.pause(LOOK)
            state = client.read_flow_run(run.id).state
        found = client.read_artifacts(artifact_filter=_outcome_of(run.id), limit=1)
    if found and found[0].data:
        return OUTCOME.validate_python(json.loads(str(found[0].data))[0])
    error = InfrastructureError(
        f"flow run {run.name} {state.name.lower()}: {state.message or 'its worker is gone'}"
    )
    lost = attempt.crashed(job, error, began, datetime.now(UTC))
    kind = "Cancelled" if state.is_cancelled() else "Interrupted"
    return replace(lost, kind=kind, attempts=number)


def _outcome_of(flow_run: UUID) -> ArtifactFilter:
    return ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]), key=ArtifactFilterKey(any_=[KEY])
    )
