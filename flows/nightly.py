"""The nightly flow: evaluate every due model, check for regressions, publish the report and send
the notification.

    python -m flows.nightly                        ephemeral: no server needed
    PREFECT_API_URL=http://127.0.0.1:4200/api python -m flows.nightly

Prefect controls scheduling, placement and run history. The steps of a night are implemented in
sdgbias/nightly, and `sdgbias nightly` runs the same steps without Prefect. A night is named after
its scheduled time: running a finished night again does nothing, and a run after a crash resumes
where the first one stopped.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import typer
from prefect import Task, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.runtime import deployment, flow_run, task_run
from prefect.states import Cancelled, Completed, Failed, State

from flows import pages, score
from sdgbias import progress
from sdgbias.cli.night_options import NightOptions, described, signed, takes_night_options
from sdgbias.errors import InfrastructureError, RegressionBreach, SdgbiasError
from sdgbias.nightly import attempt as work
from sdgbias.nightly import gpus, process, records, schedule, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Job, Night, Settings, name_of

SCHEDULED = "auto-scheduled"  # Prefect's tag for runs created by a schedule
# name of the final state of a night that completed but found a regression
BREACH = "Breach"
STARTS = 4  # of one night without a person: one that crashes each time must end
WAITS = (0.0, 5.0, 30.0)  # seconds before each try to have Prefect begin a task run


def tell(line: str) -> None:
    """Log a line to the Prefect run; print it if the night was started by hand (no deployment)."""
    if deployment.id:
        get_run_logger().info(line)
    else:
        print(line, flush=True)


def another_try(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether Prefect tries a model again: if that may help after its kind of failure."""
    made = getattr(state.data, "data", None)  # an error of the code around it has no outcome
    return isinstance(made, JobOutcome) and work.worth_another_try(made)


@task(
    task_run_name="evaluate {job.model} on {job.suite}",
    retries=max(kind.tries for kind in work.FAILURES.values()) - 1,
    retry_delay_seconds=list(work.WAITS),
    retry_condition_fn=another_try,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def evaluate(job: Job, results: Path, device: str | None, pools: bool) -> State[JobOutcome]:
    """One attempt on one model, on this machine or in the work pool of its machine type; Prefect
    makes the next one. A timeout ends the model's process with all its children: Prefect's would
    leave them."""
    logger, number = get_run_logger(), task_run.run_count
    made = (
        score.run_in_pool(job, results, number)
        if pools
        else score.attended(
            job,
            logger.info,
            lambda: score.on_the_page(job, results, number),
            lambda seen: work.attempt(job, results, number, device, seen=seen),
            score.close_on_the_page,
        )
    )
    words = nights.line(made)
    if made.kind == work.CANCELLED:
        return Cancelled(message=words, data=made)
    if not made.good:
        logger.warning("attempt %d: %s", number, words)
    return Completed(message=words, data=made) if made.good else Failed(message=words, data=made)


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def step(name: str, settings: Settings, night: Night) -> State[records.StepResult]:
    """Run one of the closing commands of a night."""
    ended = steps.do(name, settings, night)
    return Completed(data=ended) if ended == steps.DONE else Failed(message=str(ended), data=ended)


def begun(run: Callable[[], State[Any]]) -> State[Any] | Exception:
    """The state of a task run, or the last error of Prefect's around it. An error of the work is
    in the state: what is raised here says that the server is gone, or slow (no concurrency slot
    acquired), and nothing about a model. So it is tried again; work that was done is found done."""
    failed: Exception | None = None
    for wait in WAITS:
        process.pause(wait)
        try:
            return run()
        except process.Stopped:
            raise
        except Exception as error:
            failed = error
    assert failed is not None
    return failed


def ask(job: Job, results: Path, device: str | None, pools: bool) -> JobOutcome:
    """Evaluate one model as a task run of its own."""
    started = datetime.now(UTC)
    if known := work.already(job, started):
        return known
    run = evaluate.with_options(tags={f"model:{job.model}", f"suite:{job.suite}"})
    state = begun(lambda: run(job, results, device, pools, return_state=True))
    if isinstance(state, Exception):
        return work.lost(job, f"Prefect: {type(state).__name__}: {state}", started)
    made = state.result(raise_on_failure=False)
    if isinstance(made, process.Stopped):
        raise made
    if isinstance(made, JobOutcome):
        return work.since(made, started)
    if isinstance(made, BaseException):  # an error in the code around the model's process
        return work.crashed(job, made, started, datetime.now(UTC))
    return work.lost(job, str(state.message), started)  # Prefect abandoned the task run


def hands(
    settings: Settings, pools: bool, address: str, beside: ThreadPoolExecutor
) -> nights.Executor:
    """Return the executor that runs a night's work as Prefect task runs and publishes its
    artifacts, ``beside`` it, so that a night never waits for the server."""
    bar: list[UUID] = []

    def show(make: Callable[..., object], *what: object) -> None:
        beside.submit(copy_context().run, pages.shown, make, *what)

    def close(name: str, its: Settings, night: Night) -> records.StepResult:
        state = begun(lambda: step(name, its, night, return_state=True))
        failed = isinstance(state, Exception)
        made = state if failed else state.result(raise_on_failure=False)
        # an error in the code around the step or of Prefect, or a task run that it abandoned
        return (
            made
            if isinstance(made, records.StepResult)
            else records.StepResult(records.FAILED, str(made))
        )

    def seen(
        event: str,
        night: Night,
        found: Sequence[JobOutcome],
        said: Mapping[str, records.StepResult],
    ) -> None:
        if event == "planned":
            show(lambda: bar.append(pages.progress(night)))
        if event in ("planned", "settled"):
            show(pages.advance, bar, len(found), len(night.jobs))
        if event == "asked":
            show(pages.outcomes, night, tuple(found))
        if event == "gate":
            show(pages.verdicts, settings.results, night.night)
        if event == "closed":
            show(pages.links, steps.report_page(settings), settings.results, address, dict(said))

    return nights.Executor(
        ask=lambda job, results, device: ask(job, results, device, pools),
        step=close,
        # each worker of a pool has its GPU, and takes a model when it is free
        host=lambda jobs, models: gpus.GpuHost((), max(1, models)) if pools else gpus.here(jobs),
        seen=seen,
    )


def ended(summary: nights.NightSummary) -> State[None]:
    """Convert a night's summary to the final state of its flow run."""
    if summary.note:
        return Completed(message=summary.note)
    bad = "".join(
        f"; {name}: {said}" for name, said in (summary.steps or {}).items() if said != steps.DONE
    )
    words = f"night {summary.night}: {pages.counts(summary.outcomes)}{bad}"
    if summary.exit_code == 0:
        return Completed(message=words)
    if summary.exit_code == RegressionBreach.exit_code:
        return Completed(name=BREACH, message=words)
    return Failed(
        message=words
        + (f"; not in the results file yet: {summary.unsaved}" if summary.unsaved else "")
    )


def called() -> str:
    """Return the name of the flow run: the time at which the night was due."""
    said = flow_run.parameters.get("scheduled_for")
    due = datetime.fromisoformat(str(said)) if said else flow_run.scheduled_start_time
    if flow_run.parameters.get("catch_up"):
        return f"catch-up, {due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"night, due {due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def with_parameters(run: Callable[..., State[None]]) -> Callable[..., State[None]]:
    """``run`` with the options of a night as Prefect's parameters. Prefect reads types and defaults
    from the signature, and descriptions from the docstring."""
    options = described()
    signed(run, {name: (kind, default) for name, (kind, default, _) in options.items()})
    lines = "".join(f"    {name}: {told}\n" for name, (_, _, told) in options.items())
    run.__doc__ = f"{inspect.getdoc(run)}\n{lines}"
    return run


@flow(name="nightly", flow_run_name=called, persist_result=False)
@with_parameters
def nightly(pools: bool = False, report_address: str = "", **options: Any) -> State[None]:
    """Run one night. Parameters beside the options of `sdgbias nightly`:

    Args:
        pools: Run every attempt as a separate flow run in the work pool of its machine type (option
            gpu of the registry entry).
        report_address: URL at which the report's folder is served, for the links; empty: links to
            the files.
    """
    pages.outlive_the_worker()
    now = datetime.now(UTC)
    start = flow_run.scheduled_start_time or now
    wanted = NightOptions(**options)
    by_schedule = SCHEDULED in (flow_run.tags or [])
    try:
        due = schedule.latest(wanted.cron, wanted.zone, start, now) if by_schedule else None
        settings = wanted.settings("prefect", due)
        if settings is None:
            return Completed(message="the last due night is done; nothing to do")
        settings = replace(settings, night=name_of(settings, start))
        if wanted.catch_up and records.starts_of(settings.results, str(settings.night)) >= STARTS:
            return Failed(
                message=f"night {settings.night} was started {STARTS} times and is not done; see"
                f" its logs, then: sdgbias nightly --night {settings.night}"
            )
        with ThreadPoolExecutor(1) as beside:
            executor = hands(settings, pools, report_address, beside)
            return ended(nights.run(settings, tell=tell, hands=executor))
    except records.NightAtWork as error:
        # after a pause of the whole machine a night can count as crashed while it is at work
        automatic = wanted.catch_up or by_schedule
        return Completed(message=str(error)) if automatic else Failed(message=str(error))
    except SdgbiasError as error:
        tell(f"error: {error}")
        return Failed(message=str(error))


@takes_night_options()
def main(**options: Any) -> None:
    # below another command, the models and steps write to its line themselves
    with nullcontext() if progress.ADDRESS in os.environ else progress.shown("nightly"):
        state = nightly(**options, return_state=True)
    print(state.message, file=sys.stderr if state.is_failed() else sys.stdout)
    sys.exit(
        InfrastructureError.exit_code
        if not state.is_completed()
        else RegressionBreach.exit_code
        if state.name == BREACH
        else 0
    )


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
