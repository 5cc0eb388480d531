"""The nightly: evaluate every model that is due, judge it, publish the report, tell who should
know.

    python -m flows.nightly                        ephemeral: no server needed
    PREFECT_API_URL=http://127.0.0.1:4200/api python -m flows.nightly

Prefect owns when, where, how often and how long. What a night is and does stands in sdgbias/night,
and `sdgbias nightly` does the same without Prefect. A night has one name, from the time for which
it was scheduled: a second run of a night that is done does nothing, and a run after a crash goes on
where the first one stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed, State

from flows import pages, score
from sdgbias.errors import GateError, InfrastructureError, SdgbiasError
from sdgbias.nightly import attempt as work
from sdgbias.nightly import process, schedule, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import Outcome
from sdgbias.nightly.plan import TIMEOUT, Job, Night, Settings, benchmarks_of, check, name_of
from sdgbias.registry import entries

SCHEDULED = "auto-scheduled"  # Prefect's tag of a run that a schedule made
# name of the end state of a night that did its work and in which the gate found something
BREACH = "Breach"


def tell(line: str) -> None:
    """To the run's log in Prefect; a person who started the night by hand sees it at once."""
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
) -> State[Outcome]:
    """One try on one model, here or in the pool of its machine. Its timeout is the job's: it ends
    the process with all its children, which a timeout of Prefect's can't."""
    made = (
        score.run_in_pool(job, results, number)
        if pools
        else work.attempt(job, results, number, device)
    )
    words = nights.line(made)
    return Completed(message=words, data=made) if made.good else Failed(message=words, data=made)


@task(task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def step(name: str, settings: Settings, night: Night) -> State[str]:
    """One of the commands that close a night."""
    said = steps.do(name, settings, night)
    return Completed(data=said) if said == steps.DONE else Failed(message=said, data=said)


def ask(job: Job, results: Path, device: str | None, pools: bool) -> Outcome:
    """Tries on one model until its outcome stands; each is a task run of its own."""
    started = datetime.now(UTC)

    def once(number: int) -> Outcome:
        state = attempt(job, results, number, device, pools, return_state=True)
        made = state.result(raise_on_failure=False)
        if isinstance(made, process.Stopped):
            raise made
        if isinstance(made, BaseException):  # the code around the model
            return replace(work.crashed(job, made, started, datetime.now(UTC)), attempts=number)
        if isinstance(made, Outcome):
            return made
        lost = work.crashed(
            job, InfrastructureError(str(state.message)), started, datetime.now(UTC)
        )  # Prefect gave up the task run
        return replace(lost, kind="Interrupted", attempts=number)

    return work.keep_trying(job, once)


def hands(settings: Settings, pools: bool, address: str) -> nights.Executor:
    """A night's work as task runs, and what Prefect's page shows of it."""
    bar: list[UUID | None] = []

    def seen(event: str, night: Night, found: Sequence[Outcome], said: Mapping[str, str]) -> None:
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
        step=lambda name, its, night: str(
            step(name, its, night, return_state=True).result(raise_on_failure=False)
        ),
        devices=lambda jobs, models: [None] * max(1, models) if pools else work.devices(jobs),
        seen=seen,
    )


def ended(summary: nights.Summary) -> State[None]:
    """How a night ended, as the end of its flow run."""
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
    """Name of the flow run: when the night was due."""
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
    draws: int = 10_000,
    webhook_env: str = "",
    report_address: str = "",
    scheduled_for: datetime | None = None,
    cron: str = schedule.CRON,
    timezone: str = schedule.TIMEZONE,
) -> State[None]:
    """One night.

    Args:
        benchmarks: Benchmark folders, one of each suite, which its card names; empty: data/benchmark
        and data/people/benchmark, where they are.
        results: The results file; scores, logs and snapshots of the night lie beside it.
        report: Folder for the report.
        models: Only these models, also candidates; empty: every model that is due.
        policy: The gate's policy file; empty: its default.
        jobs: Models at a time, each with an accelerator of its own where there are any.
        timeout_s: Seconds that one try on one model may take.
        pools: Every try as a flow run of its own, in the work pool of its machine (option gpu of
        the registry entry).
        selfcheck: Also the full self-check on planted models.
        passes: Passes beyond the paper's views, as in sdgbias evaluate.
        draws: Random-search draws for CADE, as in sdgbias evaluate.
        webhook_env: Name of the environment variable that holds the webhook's address; empty: the
        policy's.
        report_address: Where the report's folder is served, for the links; empty: links to the
        files.
        scheduled_for: When the night was due, with its offset; empty: the time for which this run
        was scheduled.
        cron: The schedule, for the night's name.
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
