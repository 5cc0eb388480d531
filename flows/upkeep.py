"""What the supervisor maintains on the server: required pools and automations, flow runs whose
process has died, missed nights."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from sdgbias.nightly import schedule
from sdgbias.nightly.stack import catch_up as decide
from sdgbias.nightly.stack import processes
from sdgbias.nightly.stack.settings import CPU, Stack

NIGHTLY = "nightly/nightly"
NIGHTS = "nights"  # queue for nights in the pool of CPU models
AUTOMATIONS = Path("infra/automations.yaml")
SUPERSEDED = "missed while nothing ran; the newest missed night stands for all"
STARTING = timedelta(
    seconds=90
)  # maximum time between a worker claiming a run and starting its process
ACTIVE = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def make_pools(stack: Stack) -> None:
    """Create or update one pool per machine type, limited to its number of parallel models; a
    separate queue for nights in the CPU pool; and the automations of infra/automations.yaml."""
    with get_client(sync_client=True) as client:
        for kind, limit in stack.pools.items():
            name = f"sdgbias-{kind}"
            whole = (
                None if kind == CPU else limit
            )  # the night itself runs in the CPU pool, so there the limit is on the models' queue
            try:
                client.read_work_pool(name)
                client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=whole))
            except ObjectNotFound:
                client.create_work_pool(
                    WorkPoolCreate(name=name, type="process", concurrency_limit=whole)
                )
            if kind == CPU:
                queue = client.read_work_queue_by_name("default", name)
                client.update_work_queue(queue.id, concurrency_limit=limit)
                try:
                    client.read_work_queue_by_name(NIGHTS, name)
                except ObjectNotFound:
                    client.create_work_queue(NIGHTS, work_pool_name=name)
        wanted = yaml.safe_load((Path(stack.project) / AUTOMATIONS).read_text(encoding="utf-8"))[
            "automations"
        ]
        for automation in map(AutomationCore.model_validate, wanted):
            if not client.read_automations_by_name(automation.name):
                client.create_automation(automation)


def workers_online(stack: Stack) -> bool:
    with get_client(sync_client=True) as client:
        return all(
            any(
                w.name == f"worker-{kind}" and w.status == WorkerStatus.ONLINE
                for w in client.read_workers_for_work_pool(f"sdgbias-{kind}")
            )
            for kind in stack.pools
        )


def mark_crashed(stack: Stack, now: datetime) -> Iterator[str]:
    """Mark flow runs of the stack's pools as crashed if they count as active but have no process
    left, which frees their place in the queue; processes that they started are ended. Yields a line
    per run."""
    home = Path(stack.home)
    ours = WorkPoolFilter(name=WorkPoolFilterName(any_=[f"sdgbias-{kind}" for kind in stack.pools]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=_in(ACTIVE), work_pool_filter=ours)
        if not runs:
            return
        there = processes.marked(home)
        working = {
            processes.variable(p, processes.FLOW_RUN) for p in there if processes.runs_a_flow(p)
        }
        for run in runs:
            fresh = (
                run.state is not None
                and now - run.state.timestamp < STARTING
                and run.state.type == StateType.PENDING
            )
            elsewhere = _worker_of(run) not in {None, *stack.parts}
            if str(run.id) in working or fresh or elsewhere:
                continue
            again = client.read_flow_run(run.id).state
            if again is None or again.is_final():  # it ended in the meantime
                continue
            left = [p for p in there if processes.variable(p, processes.FLOW_RUN) == str(run.id)]
            ended = processes.end(left, 5)
            client.set_flow_run_state(
                run.id, Crashed(message="its process is gone; marked by the supervisor"), force=True
            )
            yield (
                f"flow run {run.name}: its process is gone, marked as crashed"
                + f", {ended} process(es) left behind ended" * bool(ended)
            )


def _worker_of(run: FlowRun) -> str | None:
    """Name of the worker that took a run; None if the run has no such label."""
    name = run.labels.get("prefect.worker.name") if run.labels else None
    return str(name) if name else None


def _in(types: list[StateType]) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))


def _deployment(client: SyncPrefectClient) -> UUID:
    return client.read_deployment_by_name(NIGHTLY).id


def _of(client: SyncPrefectClient) -> DeploymentFilter:
    return DeploymentFilter(id=DeploymentFilterId(any_=[_deployment(client)]))


def drop_superseded(now: datetime) -> None:
    """Cancel all but the newest of the scheduled nights that were due while nothing ran, before a
    worker takes them."""
    with get_client(sync_client=True) as client:
        try:
            _deployment(client)
        except ObjectNotFound:  # the first start
            return
        waiting = client.read_flow_runs(
            flow_run_filter=_in([StateType.SCHEDULED]),
            deployment_filter=_of(client),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        )
        late = [
            run
            for run in waiting
            if run.expected_start_time is not None and run.expected_start_time < now
        ]
        for run in late[1:]:
            client.set_flow_run_state(run.id, Cancelled(message=SUPERSEDED), force=True)


def next_night(stack: Stack) -> str:
    if not stack.schedule:
        return "none; a night is started manually"
    return (
        f"ready: {stack.cron}, {stack.timezone}; next {decide.next_due(stack, datetime.now(UTC))}"
    )


def catch_up(stack: Stack, now: datetime) -> Iterator[str]:
    """Start the newest due night that the results do not record as ended, unless a run of a night
    is waiting or active. Yields a line per started run."""
    if not stack.schedule:
        return
    with get_client(sync_client=True) as client:
        until_now = FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(before_=now))
        runs = client.read_flow_runs(
            flow_run_filter=until_now,
            deployment_filter=_of(client),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=50,
        )
        if any(_busy(run, now) for run in runs):
            return
        due = decide.overdue(stack, now)
        if due is None:
            return
        if any(
            _called_off(run) and decide.is_run_of(run.parameters, run.expected_start_time, due)
            for run in runs
        ):
            return
        ended = sorted(
            run.end_time
            for run in runs
            if run.end_time is not None
            and decide.is_run_of(run.parameters, run.expected_start_time, due)
        )
        if not decide.may_retry(ended, now):
            return
        night = schedule.night_id(due, stack.timezone, stack.cron)
        made = client.create_flow_run_from_deployment(
            _deployment(client),
            parameters={"scheduled_for": due.isoformat()},
            idempotency_key=f"catch-up-{night}-{len(ended)}",
            tags=["catch-up"],
            name=f"catch-up-{night}-{len(ended) + 1}",
        )
        yield f"night {night} was due and is not done: flow run {made.name}"


def _called_off(run: FlowRun) -> bool:
    """Whether the run was cancelled, by a user or because the previous night was still running.
    Such a night is not caught up."""
    return run.state is not None and run.state.type == StateType.CANCELLED


def _busy(run: FlowRun, now: datetime) -> bool:
    if run.state is None or run.state.type in ACTIVE:
        return True
    due = run.next_scheduled_start_time or run.expected_start_time
    return run.state.type == StateType.SCHEDULED and due is not None and due <= now
