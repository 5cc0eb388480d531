"""The nightly flow: evaluate every due model, check for regressions, publish the report and send
the notification (flows/nightly.py starts it).

Prefect schedules, places, shows and cancels. The steps of a night are implemented in
sdgbias/nightly, and `sdgbias nightly` runs the same steps without Prefect. A night is named after
its scheduled time: running a finished night again does nothing, and a run after a crash resumes
where the first one stopped.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from prefect import Flow, Task, flow, get_client, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.runtime import deployment, task_run
from prefect.runtime import flow_run as this_run
from prefect.states import Completed, Failed, Scheduled

from flows import pages, score
from sdgbias.errors import InfrastructureError, RegressionBreach, SdgbiasError
from sdgbias.nightly import attempt as work
from sdgbias.nightly import gpus, notify, process, records, schedule, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.night_options import NightOptions, help_of, parse, takes_night_options
from sdgbias.nightly.plan import Job, Night, name_of
from sdgbias.registry import entries

SCHEDULED = "auto-scheduled"  # Prefect's tag for runs created by a schedule
# name of the final state of a night that completed but found a regression
BREACH = "Breach"
STARTS = 4  # of one night without a person: one that crashes each time must end
WAITS = (0.0, 5.0, 30.0)  # seconds before each try to have Prefect begin a task run
AGAIN = timedelta(minutes=5)  # after a crash
#: Work pools take as many models at a time as their limits say; each worker has its GPU.
POOLS = gpus.GpuHost(most=1_000)


class Unbegun(InfrastructureError):
    """Prefect could not begin a task run."""


def tell(line: str) -> None:
    """Log a line to the Prefect run; print it if the night was started by hand (no deployment)."""
    if deployment.id:
        get_run_logger().info(line)
    else:
        print(line, flush=True)


def another_try(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether Prefect tries a model again: if that may help after its kind of failure."""
    outcome = getattr(state.data, "data", None)  # an error of the code around it has no outcome
    return isinstance(outcome, JobOutcome) and work.worth_another_try(outcome)


@task(
    task_run_name="evaluate {job.model} on {job.suite}",
    retries=max(kind.tries for kind in work.FAILURES.values()) - 1,
    retry_delay_seconds=list(work.WAITS),
    retry_condition_fn=another_try,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def evaluate(
    job: Job, results: Path, device: str | None, score_deployment: str
) -> State[JobOutcome]:
    """One attempt on one model, in a child process or as a run of this deployment; Prefect
    makes the next one. A timeout ends the model's process with all its children: Prefect's would
    leave them."""
    logger, number = get_run_logger(), task_run.run_count
    if score_deployment:
        outcome = score.run_by_deployment(score_deployment, job, results, number, device)
    else:
        look = pages.follow(job, logger.info)
        outcome = work.attempt(job, results, number, device, look=look)
    if not outcome.good:
        logger.warning("attempt %d: %s", number, nights.line(outcome))
    return score.end_state(outcome, outcome)


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def close(name: str, options: NightOptions, night: Night) -> State[records.StepResult]:
    """Run one of the closing commands of a night."""
    ended = steps.do(name, options, night)
    return Completed(data=ended) if ended == steps.DONE else Failed(message=str(ended), data=ended)


def result_of(run: Callable[[], State[Any]]) -> object:
    """What a task run returned or raised, or the last error of Prefect's around it. The latter says
    that the server is gone, or slow (no concurrency slot acquired), and nothing about a model. So
    the task is begun again; work that was done is found done. Raises Stopped."""
    for wait in WAITS:
        process.pause(wait)
        try:
            state = run()
        except process.Stopped:
            raise
        except Exception as error:
            result: object = Unbegun(f"Prefect: {type(error).__name__}: {error}")
        else:
            result = state.result(raise_on_failure=False)
            break
    if isinstance(result, process.Stopped):
        raise result
    return result


def evaluated(
    job: Job, results: Path, device: str | None, score_deployment: str = ""
) -> JobOutcome:
    """Evaluate one model as a task run of its own."""
    started = datetime.now(UTC)
    run = evaluate.with_options(tags={f"model:{job.model}", f"suite:{job.suite}"})
    result = result_of(lambda: run(job, results, device, score_deployment, return_state=True))
    if isinstance(result, JobOutcome):
        return work.since(result, started)
    if isinstance(result, BaseException) and not isinstance(result, Unbegun):
        # an error in the code around the model's process
        return work.crashed(job, result, started)
    return work.since(
        work.outcome_of(job, started, attempts=1, kind="Interrupted", message=str(result)), started
    )


def closed(name: str, options: NightOptions, night: Night) -> records.StepResult:
    """Run a closing step as a task run of its own."""
    result = result_of(lambda: close(name, options, night, return_state=True))
    failed = records.StepResult(records.FAILED, str(result))
    return result if isinstance(result, records.StepResult) else failed


def end_state(summary: nights.NightSummary) -> State[None]:
    """The final state of the flow run of a night."""
    if summary.note:
        return Completed(message=summary.note)
    bad = "".join(
        f"; {name}: {result}"
        for name, result in (summary.steps or {}).items()
        if result != steps.DONE
    )
    words = f"night {summary.night}: {pages.counts(o.outcome for o in summary.outcomes)}{bad}"
    if summary.exit_code == 0:
        return Completed(message=words)
    if summary.exit_code == RegressionBreach.exit_code:
        return Completed(name=BREACH, message=words)
    unsaved = f"; not in the results file yet: {summary.unsaved}" if summary.unsaved else ""
    return Failed(message=words + unsaved)


def run_name() -> str:
    """The name of the flow run: the time at which the night was due."""
    given = this_run.parameters.get("scheduled_for")
    due = datetime.fromisoformat(str(given)) if given else this_run.scheduled_start_time
    if this_run.parameters.get("catch_up"):
        return f"catch-up, {due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"night, due {due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def tell_team(options: Mapping[str, Any], why: str) -> None:
    """Send the team a message about a night that ended before it could send its own; without an
    address, and where the policy can't be read, nobody is told."""
    from sdgbias.nightly.regression import policy  # with scipy, which no model waits for

    with suppress(SdgbiasError):
        given, root = options.get("policy"), entries.find_root()
        rules = policy.load(Path(str(given)) if given else policy.find(root))
        address = os.environ.get(options.get("webhook_env") or rules.webhook, "").strip()
        if address:
            notify.post(address, process.redact(f"sdgbias: {why}"))


def tell_of_crash(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Tell the team of a night whose process is gone."""
    tell_team(flow_run.parameters, f"{flow_run.name}: {state.name}: {state.message}")


def start_again(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Start a night whose process is gone again in five minutes: it goes on from what is stored.
    In a work pool an automation does so, which also sees a machine that is gone
    (infra/automations.yaml)."""
    if flow_run.deployment_id and not flow_run.work_pool_name:
        with get_client(sync_client=True) as client:
            client.create_flow_run_from_deployment(
                flow_run.deployment_id,
                parameters={"catch_up": True},
                state=Scheduled(scheduled_time=datetime.now(UTC) + AGAIN),
                tags=["nightly"],
            )


def with_parameters(run: Callable[..., State[None]]) -> Callable[..., State[None]]:
    """``run`` with the options of a night as Prefect's parameters. Prefect reads types and defaults
    from the signature, and descriptions from the docstring."""
    takes_night_options()(run)
    named = [field.name for field in fields(NightOptions) if help_of(field.name)]
    lines = "".join(f"    {name}: {help_of(name)}\n" for name in named)
    run.__doc__ = f"{inspect.getdoc(run)}\n{lines}"
    return run


@flow(
    name="nightly",
    flow_run_name=run_name,
    persist_result=False,
    on_crashed=[tell_of_crash, start_again],
)
@with_parameters
def nightly(score_deployment: str = "", report_address: str = "", **options: Any) -> State[None]:
    """Run one night. Parameters beside the options of `sdgbias nightly`:

    Args:
        score_deployment: Deployment whose runs score the models, one for each attempt;
            score/score-{gpu}: in the work pool of the machine type (option gpu of the registry
            entry); empty: child processes of this run.
        report_address: URL at which the report's folder is served, for the links; empty: links to
            the files.
    """
    now = datetime.now(UTC)
    start = this_run.scheduled_start_time or now
    by_schedule = SCHEDULED in (this_run.tags or [])
    automatic = by_schedule or bool(options.get("catch_up"))
    try:
        given = parse(**options, by="prefect")
        if by_schedule:
            due = schedule.latest(given.cron, given.zone, start, now)
            given = replace(given, scheduled_for=due.isoformat())
        chosen = nights.due_now(given, now)
        if chosen is None:
            return Completed(message="the last due night is done; nothing to do")
        chosen = replace(chosen, night=name_of(chosen, start))
        if chosen.catch_up and records.starts_of(chosen.results, str(chosen.night)) >= STARTS:
            return Failed(
                message=f"night {chosen.night} was started {STARTS} times and is not done; see"
                f" its logs, then: sdgbias nightly --night {chosen.night}"
            )
        summary = nights.run(
            chosen,
            tell=tell,
            score=partial(evaluated, score_deployment=score_deployment),
            step=closed,
            host=POOLS if "{gpu}" in score_deployment else None,
        )
    except records.NightAtWork as error:
        # after a pause of the whole machine a night can count as crashed while it is at work
        return Completed(message=str(error)) if automatic else Failed(message=str(error))
    except SdgbiasError as error:
        tell(f"error: {error}")
        tell_team(options, f"{this_run.name}: Failed: {error}")
        return Failed(message=str(error))
    if not summary.note:
        pages.show(summary, chosen.results, report_address)
    return end_state(summary)
