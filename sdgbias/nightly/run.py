"""Run one night: score every due model (up to `jobs` in parallel), then analyse, check for
regressions, build the report, log to W&B and notify.

Needs no server; flows/night.py gives it functions that do the same work as Prefect's tasks and
flow runs.

plan.tonight                  the jobs of the night and snapshots of their registry entries
gpus                          a lock for each GPU, which a model takes or waits for
attempt.keep_trying           one model: a process, its outcome, retries where they may help
quarantine.update_quarantine  quarantines failing models for a while, and releases them
records                       how the night goes, in files beside the results file
weights                       what is fetched from the hub before the first model
steps (as finish)             the closing steps after all models
schedule                      names of nights, due times, missed nights
"""

from __future__ import annotations

import contextvars
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sdgbias import progress
from sdgbias.errors import InfrastructureError, RegressionBreach
from sdgbias.nightly import attempt, gpus, process, quarantine, records, schedule, weights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.attempt import FAILED, JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import BROKEN, Job, Night, name_of, tonight
from sdgbias.nightly.records import StepResult

#: Seconds between two looks at GPUs that other processes hold.
LOOK = 5.0
#: Hours for which a night without --hours waits for GPUs that other processes hold.
BUSY_HOURS = 6.0
_NEXT = "it is among the first of the next night"
#: (job, results file, GPUs) -> the final outcome of one model on one suite.
Score = Callable[[Job, Path, str | None], JobOutcome]
#: (name of a step, options, plan) -> how it ended.
Step = Callable[[str, NightOptions, Night], StepResult]
OVER = f"the night's hours were over; {_NEXT}; more: --hours"


@dataclass(frozen=True)
class NightSummary:
    """Result of a night. status: 'done', 'failed' (no model could be scored), '' (the night was
    already done). steps: step -> how it ended. unsaved: why the results file
    could not be written, '' if it was. note: why nothing was run."""

    night: str
    status: str
    outcomes: tuple[JobOutcome, ...] = ()
    steps: dict[str, StepResult] | None = None
    seconds: float = 0.0
    report: str = ""
    unsaved: str = ""
    note: str = ""

    @property
    def exit_code(self) -> int:
        """0: all models were attempted and at least one outcome is good (or none was due); 6: the
        regression check found a breach; 8: no model could be scored, the results could not be
        saved, or a required step failed."""
        steps = self.steps or {}
        if self.status == FAILED or self.unsaved:
            return InfrastructureError.exit_code
        if steps.get("gate", finish.DONE).state == records.BREACH:
            return RegressionBreach.exit_code
        bad = {name for name, ended in steps.items() if ended != finish.DONE}
        return InfrastructureError.exit_code if bad - set(finish.OPTIONAL_STEPS) else 0


def due_now(options: NightOptions, now: datetime) -> NightOptions | None:
    """The options of the night that --catch-up stands for; None if the last due one is done."""
    if not options.catch_up:
        return options
    last = records.last_finished(options.results)
    due = schedule.missed(options.cron, options.zone, last, now)
    return replace(options, scheduled_for=due.isoformat()) if due else None


def run(
    options: NightOptions,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    tell: Callable[[str], None] = print,
    score: Score = attempt.keep_trying,
    step: Step = finish.do,
    steps: Sequence[str] = finish.STEPS,
    host: gpus.GpuHost | None = None,
) -> NightSummary:
    """Run a whole night. A night of this name that is already done is not run again; an interrupted
    one is resumed.

    tell: called with one line per start and end of a model, and per step. score: scores one model
    until its outcome is final, on these GPUs (None: on what its process sees). step: runs
    finish.CHECK or a closing step. host: where models are placed, None: on this machine. Raises,
    before any model is scored, InfrastructureError (another night is running), UsageError,
    RegistryError, InputError (no benchmark), StoreError (the night's folder can't be written).
    """
    began = time.monotonic()
    name = name_of(options, now())
    options = replace(options, night=name)  # fixed now: the minute in the name may change later
    with records.only_one(options.results, name), progress.listening():
        if records.status(options.results, name) == records.DONE:
            return NightSummary(name, "", note=f"night {name} is done already; nothing to do")
        night = tonight(options, now())
        records.begin(options, night, now())
        results: dict[str, StepResult] = {}
        try:
            process.begin()
            process.sweep()
            results[finish.CHECK] = step(finish.CHECK, options, night)
            broken = [s for s in night.skipped if s.state == BROKEN]
            outcomes = [attempt.unplanned(name, s, now()) for s in broken]
            if results[finish.CHECK] == finish.DONE:
                lacking = weights.lacking(options, night, tell)
                where = host or gpus.here(options.jobs)
                outcomes += _everybody(options, night, lacking, now, tell, score, where)
                well = any(o.goes_on for o in outcomes) or not outcomes
                status = records.DONE if well else FAILED
            else:
                tell(f"benchmark: {results[finish.CHECK]}")
                status = FAILED
            records.add(options.results, outcomes)
            _close(options, night, results, steps, tell, step)
            unsaved = records.end(options.results, night, status, results, now(), outcomes)
        except BaseException:
            process.stop_all()
            records.end(options.results, night, records.INTERRUPTED, results, now())
            raise
        if "report" in results:
            # once more: the report was written before the steps after it ended
            ended = step(finish.LAST_PAGE, options, night)
            if ended != finish.DONE:  # costs only this page: the record has the end of the night
                tell(f"{finish.LAST_PAGE}: {ended}")
    return NightSummary(
        name,
        status,
        tuple(outcomes),
        results,
        time.monotonic() - began,
        str(finish.report_page(options)),
        unsaved,
    )


def _everybody(
    options: NightOptions,
    night: Night,
    lacking: Mapping[str, str],
    now: Callable[[], datetime],
    tell: Callable[[str], None],
    score: Score,
    host: gpus.GpuHost,
) -> list[JobOutcome]:
    """Run all jobs, those with a finished run first (they need no process), without those that are
    ``lacking`` weights (model -> why) or GPUs. The suites of one model run one after the other,
    because they share its scores."""
    today = now().astimezone(schedule.zone(options.zone)).date()
    unchanged = [outcome for job in night.jobs if (outcome := attempt.unchanged(job, now()))]
    outcomes = [quarantine.update_quarantine(options, outcome, today) for outcome in unchanged]
    due = [job for job in night.jobs if not job.run_id]
    ends = time.monotonic() + (options.hours * 3600 or math.inf)
    why = {
        job.model: f"takes {job.gpus} GPUs; there are {len(host.gpus)} here"
        for job in due
        if host.gpus and job.gpus > len(host.gpus)
    } | dict(lacking)
    outcomes += [_left_out(j, now(), why[j.model]) for j in due if j.model in why]
    records.add(options.results, outcomes)
    total = len(night.jobs)
    if unchanged:
        tell(f"[{len(unchanged)}/{total}] unchanged since their last run: {len(unchanged)}")
    by_model: dict[str, list[Job]] = {}
    for job in due:
        if job.model not in why:
            by_model.setdefault(job.model, []).append(job)

    def settle(job: Job, outcome: JobOutcome) -> None:
        outcome = quarantine.update_quarantine(options, outcome, today)
        records.add(options.results, [outcome])
        outcomes.append(outcome)
        tell(f"[{len(outcomes)}/{total}] {job.name}: {line(outcome)}")

    def one(model: str, device: str | None) -> None:
        for job in by_model[model]:
            began, left = now(), ends - time.monotonic()
            try:
                if left <= 0:
                    outcome = _left_out(job, began, OVER)
                else:
                    on = f" on GPU {device}" if device else ""
                    tell(f"{job.name}: started{on}; log: {job.log}")
                    limit = min(job.timeout_s or math.inf, left)
                    limited = replace(job, timeout_s=0.0 if math.isinf(limit) else limit)
                    outcome = score(limited, options.results, device)
                    if limited != job and outcome.kind == "TimedOut":
                        outcome = replace(outcome, kind=attempt.OUT_OF_TIME)
            except process.Stopped:
                raise
            except Exception as error:  # any error fails this model only, not the night
                outcome = attempt.crashed(job, error, began)
            settle(job, outcome)

    wanted = {model: jobs[0].gpus if host.gpus else 0 for model, jobs in by_model.items()}
    reason = _placed(host, wanted, one, ends, f"night {night.night}", tell)
    for job in [job for model in wanted for job in by_model[model]]:
        settle(job, _left_out(job, now(), reason))
    return sorted(outcomes, key=lambda o: (o.model, o.suite))


def _left_out(job: Job, now: datetime, why: str) -> JobOutcome:
    """'skipped' for a job that isn't started tonight."""
    return attempt.outcome_of(job, now, outcome=attempt.SKIPPED, message=why)


def _placed(
    host: gpus.GpuHost,
    wanted: dict[str, int],
    one: Callable[[str, str | None], None],
    ends: float,
    who: str,
    tell: Callable[[str], None],
) -> str:
    """Call ``one`` for every model of ``wanted`` (model -> its GPUs), in a thread, as soon as that
    many GPUs are free: in order, the first that fit. Those that are not started before the night
    ``ends`` stay in ``wanted``; returns why. If one raises, every running process is ended."""
    running: dict[Future[None], tuple[str, ...]] = {}
    waits, since = "", time.monotonic()
    try:
        with ThreadPoolExecutor(max(1, len(wanted))) as pool:
            try:
                while running or (wanted and time.monotonic() < ends):
                    clock = time.monotonic()
                    for model, count in list(wanted.items()) if clock < ends else ():
                        alone = not count and () in running.values()
                        if len(running) >= host.most if host.most else alone:
                            continue
                        devices = gpus.take(count, host.gpus, f"{who}, {model}")
                        if devices is not None:
                            context = contextvars.copy_context()
                            given = ",".join(devices) or None
                            running[pool.submit(context.run, one, model, given)] = devices
                            del wanted[model]
                    if running:
                        waits, since = "", clock
                    else:  # other processes hold the GPUs
                        waits = _waiting(waits, gpus.holders(host.gpus), tell)
                        if math.isinf(ends) and clock - since >= BUSY_HOURS * 3600:
                            return f"{waits} for {BUSY_HOURS:g} hours; {_NEXT}"
                        process.pause(LOOK)
                    for future in wait(running, LOOK, FIRST_COMPLETED).done:
                        gpus.release(running.pop(future))
                        future.result()
            except BaseException:  # else the pool waits until the models have ended by themselves
                process.stop_all()
                raise
    finally:
        for devices in running.values():
            gpus.release(devices)
    return OVER


def _waiting(before: str, holders: Mapping[str, str], tell: Callable[[str], None]) -> str:
    """What the night waits for; said when that changes."""
    by_who: dict[str, list[str]] = {}
    for gpu, who in holders.items():
        by_who.setdefault(who, []).append(gpu)
    held = "; ".join(f"GPU {','.join(gpus)}: held by {who}" for who, gpus in by_who.items())
    if held and held != before:
        tell(f"waiting for {held}")
    return held


def line(outcome: JobOutcome) -> str:
    """Describe one outcome in a line: 'published, 12 s', 'failed after 2 attempts, 31 s:
    OutOfMemory: ...'."""
    tries = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    why = f": {outcome.kind}: {outcome.message}" if outcome.outcome == FAILED else ""
    why = f": {outcome.message}" if outcome.kind == attempt.CANCELLED else why
    aside = f"; quarantined until {outcome.quarantined_until}" if outcome.quarantined_until else ""
    return f"{outcome.outcome}{tries}, {outcome.seconds:.0f} s{why}{aside}"


def _close(
    options: NightOptions,
    night: Night,
    results: dict[str, StepResult],
    steps: Sequence[str],
    tell: Callable[[str], None],
    step: Step,
) -> None:
    """Run the closing steps in order; each reads the results of the earlier ones from the results
    file."""
    wanted = list(steps)
    if options.selfcheck and "analyse" in wanted:
        wanted.insert(wanted.index("analyse") + 1, finish.SELFCHECK)
    for name in wanted:
        if why := finish.not_due(name, options, night):
            tell(f"{name}: not due: {why}")
            continue
        records.update(options.results, night, **records.step_columns(results))
        began = time.monotonic()
        results[name] = step(name, options, night)
        tell(f"{name}: {results[name]} ({time.monotonic() - began:.0f} s)")
