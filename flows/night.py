"""The nightly flow: evaluate every due model, check for regressions, publish the report and send
the notification (flows/nightly.py starts it).

Prefect schedules, places, shows and cancels. The steps of a night are implemented in
sdgbias/nightly, and `sdgbias nightly` runs the same steps without Prefect. A night is named after
its scheduled time: running a finished night again does nothing, and a run after a crash resumes
where the first one stopped.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from prefect import Flow, Task, flow, get_client, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.runtime import flow_run as this_run
from prefect.runtime import task_run
from prefect.states import Completed, Failed, Scheduled

from flows import score
from sdgbias.errors import InfrastructureError, RegressionBreach, SdgbiasError
from sdgbias.nightly import attempt as work
from sdgbias.nightly import gpus, notify, process, records, schedule, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.night_options import NightOptions, parse, takes_night_options
from sdgbias.nightly.plan import Job, Night, name_of, webhooks
from sdgbias.registry import entries
from sdgbias.store import night_files

SCHEDULED = "auto-scheduled"  # Prefect's tag for runs created by a schedule
# name of the final state of a night that completed but found a regression
BREACH = "Breach"
STARTS = 4  # of one night without a person: one that crashes each time must end
WAITS = (0.0, 5.0, 30.0)  # seconds before each try to have Prefect begin a task run
#: Work pools take as many models at a time as their limits say; each worker has its GPU.
POOLS = gpus.GpuHost(most=1_000)


class Interrupted(InfrastructureError):
    """Prefect could not begin a task run: no failure of a model."""


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
    number = task_run.run_count
    if score_deployment:
        outcome = score.run_by_deployment(score_deployment, job, results, number, device)
    else:
        outcome = work.attempt(job, results, number, device)
    return score.end_state(outcome)


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def close(name: str, options: NightOptions, night: Night) -> State[records.StepResult]:
    """Run one of the closing commands of a night."""
    ended = steps.do(name, options, night)
    return Completed(data=ended) if ended == steps.DONE else Failed(message=str(ended), data=ended)


def result_of(run: Callable[[], State[Any]]) -> Any:
    """What a task run returned or raised, or Interrupted for the last error of Prefect's around it.
    That says that the server is gone, or slow (no concurrency slot acquired), and nothing about a
    model. So the task is begun again; work that was done is found done. Raises Stopped."""
    result: Any = None
    for wait in WAITS:
        process.pause(wait)
        try:
            result = run().result(raise_on_failure=False)
            break
        except process.Stopped:
            raise
        except Exception as error:
            result = Interrupted(f"Prefect: {type(error).__name__}: {error}")
    if isinstance(result, process.Stopped):
        raise result
    return result


def evaluated(
    job: Job, results: Path, device: str | None, score_deployment: str = ""
) -> JobOutcome:
    """Evaluate one model as a task run of its own. Raises what its code raised, and Interrupted."""
    given = (job, results, device, score_deployment)
    run = evaluate.with_options(tags={f"model:{job.model}", f"suite:{job.suite}"})
    outcome = result_of(lambda: run(*given, return_state=True))
    if isinstance(outcome, JobOutcome):
        return outcome
    raise outcome


def closed(name: str, options: NightOptions, night: Night) -> records.StepResult:
    """Run a closing step as a task run of its own."""
    result = result_of(lambda: close(name, options, night, return_state=True))
    failed = records.StepResult(work.FAILED, str(result))
    return result if isinstance(result, records.StepResult) else failed


def end_state(summary: nights.NightSummary) -> State[None]:
    """The final state of the flow run of a night."""
    if summary.note:
        return Completed(message=summary.note)
    bad = [f"{name}: {end}" for name, end in (summary.steps or {}).items() if end != steps.DONE]
    unsaved = [f"not in the results file yet: {summary.unsaved}"] if summary.unsaved else []
    outcomes = sorted(Counter(one.outcome for one in summary.outcomes).items())
    counts = ", ".join(f"{n} {kind}" for kind, n in outcomes) or "no model evaluated"
    words = "; ".join([f"night {summary.night}: {counts}", *bad, *unsaved])
    if summary.exit_code == RegressionBreach.exit_code:
        return Completed(name=BREACH, message=words)
    return (Failed if summary.exit_code else Completed)(message=words)


def show(summary: nights.NightSummary, results: Path, report_address: str) -> None:
    """The artifacts of a night: the rows of night_outcomes, failures first, and a link to the
    report, at the address where its folder is served ('': to the file)."""
    sql = "FROM night_outcomes WHERE night = ? ORDER BY outcome, model, suite"
    rows = night_files.query(results, sql, [summary.night])
    page, made = Path(summary.report), (summary.steps or {}).get("report", "not made")
    folder = report_address.rstrip("/") or page.parent.absolute().as_uri()
    try:
        table = json.loads(rows.to_json(orient="records", date_format="iso"))
        create_table_artifact(table, key="outcomes", description=f"night {summary.night}")
        link = f"{folder}/{page.name}"
        create_link_artifact(link, "Report of this night", "report", f"report: {made}")
    except Exception as error:  # of the server: the night itself is done
        print(f"Prefect's server: {type(error).__name__}: {error}")


def tell_team(options: Mapping[str, Any], why: str) -> None:
    """Send the team a message about a night that ended before it could send its own; without an
    address nobody is told."""
    with suppress(SdgbiasError):
        policy = Path(str(options["policy"])) if options.get("policy") else None
        names = webhooks(options.get("webhook_env") or "", policy, entries.find_root())
        if addresses := list(filter(None, (os.environ.get(name, "").strip() for name in names))):
            notify.post(addresses[0], process.redact(f"sdgbias: {why}"))


def start_again(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Tell the team of a night whose process is gone, and start it again in five minutes: it goes
    on from what is stored. In a work pool an automation starts it, which also sees a machine that
    is gone (infra/automations.yaml)."""
    tell_team(flow_run.parameters, f"{flow_run.name}: {state.name}: {state.message}")
    if flow_run.deployment_id and not flow_run.work_pool_name:
        with get_client(sync_client=True) as client:
            client.create_flow_run_from_deployment(
                flow_run.deployment_id,
                parameters={"catch_up": True},
                state=Scheduled(scheduled_time=datetime.now(UTC) + timedelta(minutes=5)),
                tags=["nightly"],
            )


def run_name() -> str:
    """The name of the flow run: the time at which it was due."""
    return f"night, due {this_run.scheduled_start_time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


@flow(name="nightly", flow_run_name=run_name, persist_result=False, on_crashed=[start_again])
@takes_night_options()
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
    try:
        given = parse(**options, by="prefect")
        if by_schedule:
            # of several late runs the first does the newest night, the others find it done
            night = schedule.night_id(start, given.zone, given.cron)
            due = schedule.missed(given.cron, given.zone, night, now) or start
            given = replace(given, scheduled_for=due.isoformat())
        chosen = nights.due_now(given, now)
        if chosen is None:
            return Completed(message="the last due night is done; nothing to do")
        chosen = replace(chosen, night=name_of(chosen, start))
        if chosen.catch_up and records.starts_of(chosen.results, str(chosen.night)) >= STARTS:
            raise InfrastructureError(
                f"night {chosen.night} was started {STARTS} times and is not done; see its logs,"
                f" then: sdgbias nightly --night {chosen.night}"
            )
        summary = nights.run(
            chosen,
            tell=lambda line: print(line, flush=True),  # as Prefect has it: in the run's log
            score=partial(evaluated, score_deployment=score_deployment),
            step=closed,
            host=POOLS if "{gpu}" in score_deployment else None,
        )
    except records.NightAtWork as error:
        # after a pause of the whole machine a night can count as crashed while it is at work
        automatic = by_schedule or options.get("catch_up")
        return (Completed if automatic else Failed)(message=str(error))
    except SdgbiasError as error:
        tell_team(options, f"{this_run.name}: Failed: {error}")
        return Failed(message=str(error))
    if not summary.note:
        show(summary, chosen.results, report_address)
    return end_state(summary)
