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

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed, State

from flows import pages, score
from sdgbias import progress
from sdgbias.errors import GateError, InfrastructureError, SdgbiasError
from sdgbias.nightly import attempt as work
from sdgbias.nightly import ledger, process, schedule, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import TIMEOUT, Job, Night, Settings, benchmarks_of, check, name_of
from sdgbias.registry import entries

SCHEDULED = "auto-scheduled"  # Prefect's tag for runs created by a schedule
# name of the final state of a night that completed but found a regression
BREACH = "Breach"


def tell(line: str) -> None:
    """Log a line to the Prefect run; print it if the night was started by hand (no deployment)."""
    if deployment.id:
        get_run_logger().info(line)
    else:
        print(line, flush=True)


@task(
    task_run_name="evaluate {job.model} on {job.suite} (try {number})",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def attempt(
    job: Job, results: Path, number: int, device: str | None, pools: bool
) -> State[JobOutcome]:
    """One attempt on one model, on this machine or in the work pool of its machine type. The
    timeout is the job's, not Prefect's: it ends the process with all its children, which a Prefect
    timeout cannot do."""
    made = (
        score.run_in_pool(job, results, number)
        if pools
        else work.attempt(job, results, number, device)
    )
    words = nights.line(made)
    return Completed(message=words, data=made) if made.good else Failed(message=words, data=made)


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def step(name: str, settings: Settings, night: Night) -> State[ledger.StepResult]:
    """Run one of the closing commands of a night."""
    ended = steps.do(name, settings, night)
    return Completed(data=ended) if ended == steps.DONE else Failed(message=str(ended), data=ended)


def ask(job: Job, results: Path, device: str | None, pools: bool) -> JobOutcome:
    """Attempt one model until its outcome is final; each attempt is a separate task run."""
    started = datetime.now(UTC)

    def once(number: int) -> JobOutcome:
        state = attempt(job, results, number, device, pools, return_state=True)
        made = state.result(raise_on_failure=False)
        if isinstance(made, process.Stopped):
            raise made
        if isinstance(made, BaseException):  # an error in the code around the model's process
            return replace(work.crashed(job, made, started, datetime.now(UTC)), attempts=number)
        if isinstance(made, JobOutcome):
            return made
        lost = work.crashed(
            job, InfrastructureError(str(state.message)), started, datetime.now(UTC)
        )  # Prefect abandoned the task run
        return replace(lost, kind="Interrupted", attempts=number)

    return work.keep_trying(job, once)


def hands(settings: Settings, pools: bool, address: str) -> nights.Executor:
    """Return the executor that runs a night's work as Prefect task runs and publishes its
    artifacts."""
    bar: list[UUID | None] = []

    def close(name: str, its: Settings, night: Night) -> ledger.StepResult:
        made = step(name, its, night, return_state=True).result(raise_on_failure=False)
        # an error in the code around the step, or a task run that Prefect abandoned
        return (
            made
            if isinstance(made, ledger.StepResult)
            else ledger.StepResult(ledger.FAILED, str(made))
        )

    def seen(
        event: str, night: Night, found: Sequence[JobOutcome], said: Mapping[str, ledger.StepResult]
    ) -> None:
        if event == "planned":
            bar.append(pages.shown(pages.progress, night))
        if event in ("planned", "settled"):
            pages.shown(pages.advance, bar[0], len(found), len(night.jobs))
        if event == "asked":
            pages.shown(pages.outcomes, night, found)
        if event == "gate":
            pages.shown(pages.verdicts, settings.results, night.night)
        if event == "closed":
            pages.shown(pages.links, steps.report_page(settings), settings.results, address, said)

    return nights.Executor(
        ask=lambda job, results, device: ask(job, results, device, pools),
        step=close,
        devices=lambda jobs, models: [None] * max(1, models) if pools else work.devices(jobs),
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
    if summary.exit_code == GateError.exit_code:
        return Completed(name=BREACH, message=words)
    return Failed(
        message=words
        + (f"; not in the results file yet: {summary.unsaved}" if summary.unsaved else "")
    )


def called() -> str:
    """Return the name of the flow run: the time at which the night was due."""
    said = flow_run.parameters.get("scheduled_for")
    due = datetime.fromisoformat(str(said)) if said else flow_run.scheduled_start_time
    return f"night, due {due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


@flow(name="nightly", flow_run_name=called, persist_result=False)
def nightly(
    benchmarks: list[str] | None = None,
    results: str = "results/sdgbias.duckdb",
    report: str = "reports/latest",
    models: list[str] | None = None,
    policy: str | None = None,
    jobs: int = 1,
    timeout_s: float = TIMEOUT,
    pools: bool = False,
    selfcheck: bool = False,
    passes: str = "cheap",
    generated: Literal["T1", "all", "views", "none"] = "T1",
    draws: int = 10_000,
    webhook_env: str = "",
    report_address: str = "",
    scheduled_for: datetime | None = None,
    cron: str = schedule.CRON,
    timezone: str = schedule.TIMEZONE,
) -> State[None]:
    """Run one night.

    Args:
        benchmarks: Benchmark folders, at most one per suite (the suite is read from the benchmark's
        card); empty: data/benchmark and data/people/benchmark, if present.
        results: The results file; scores, logs and snapshots of the night are stored beside it.
        report: Folder for the report.
        models: Only these models, including candidates; empty: every due model.
        policy: The policy file of the regression check; empty: the default policy.
        jobs: Models in parallel, one accelerator each if the machine has any.
        timeout_s: Timeout of one attempt on one model, in seconds.
        pools: Run every attempt as a separate flow run in the work pool of its machine type (option
        gpu of the registry entry).
        selfcheck: Also run the full self-check on planted models.
        passes: Extra prompts beyond the paper's views, as in sdgbias evaluate.
        generated: Multiple-choice answers that are also generated, as in sdgbias evaluate.
        draws: Random-search draws for CADE, as in sdgbias evaluate.
        webhook_env: Name of the environment variable that holds the webhook's address; empty: the
        policy's.
        report_address: URL at which the report's folder is served, for the links; empty: links to
        the files.
        scheduled_for: When the night was due, with its UTC offset; empty: the scheduled time of
        this run.
        cron: The schedule, used for the night's name.
        timezone: The schedule's time zone.
    """
    start = flow_run.scheduled_start_time or datetime.now(UTC)
    due = scheduled_for or (start if SCHEDULED in (flow_run.tags or []) else None)
    try:
        settings = Settings(
            root=entries.find_root(),
            results=Path(results),
            benchmarks=benchmarks_of([Path(folder) for folder in benchmarks or ()]),
            report=Path(report),
            models=tuple(models) if models else None,
            policy=Path(policy) if policy else None,
            webhook_env=webhook_env,
            jobs=jobs,
            timeout_s=timeout_s,
            selfcheck=selfcheck,
            scheduled_for=due,
            by="prefect",
            cron=cron,
            timezone=timezone,
            passes=passes,
            generated=generated,
            draws=draws,
        )
        check(settings)
        settings = replace(settings, night=name_of(settings, start))
        return ended(nights.run(settings, tell=tell, hands=hands(settings, pools, report_address)))
    except SdgbiasError as error:
        tell(f"error: {error}")
        return Failed(message=str(error))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--benchmark",
        action="append",
        help="benchmark folder, whose card names its suite; may be given several times; default:"
        " data/benchmark and data/people/benchmark, where they are",
    )
    parser.add_argument("--results", default="results/sdgbias.duckdb")
    parser.add_argument("--report", default="reports/latest")
    parser.add_argument(
        "--model", action="append", help="only this model; may be given several times"
    )
    parser.add_argument("--policy", help="the gate's policy file")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument(
        "--scheduled-for",
        type=datetime.fromisoformat,
        help="when the night was due, with its offset",
    )
    parser.add_argument(
        "--timezone",
        default=os.environ.get("SDGBIAS_TIMEZONE") or schedule.TIMEZONE,
        help="of the schedule",
    )
    parser.add_argument(
        "--selfcheck", action="store_true", help="also the full self-check on planted models"
    )
    args = parser.parse_args()
    # below another command, the models and steps write to its line themselves
    with nullcontext() if progress.FOLDER in os.environ else progress.shown("nightly"):
        state = nightly(
            args.benchmark,
            args.results,
            args.report,
            args.model,
            args.policy,
            args.jobs,
            selfcheck=args.selfcheck,
            scheduled_for=args.scheduled_for,
            timezone=args.timezone,
            return_state=True,
        )
    print(state.message, file=sys.stderr if state.is_failed() else sys.stdout)
    sys.exit(
        InfrastructureError.exit_code
        if not state.is_completed()
        else GateError.exit_code
        if state.name == BREACH
        else 0
    )


if __name__ == "__main__":
    main()
