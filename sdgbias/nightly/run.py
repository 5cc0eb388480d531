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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path

from sdgbias import progress
from sdgbias.errors import InfrastructureError, RegressionBreach, SdgbiasError
from sdgbias.nightly import attempt, gpus, process, quarantine, records, schedule, weights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.attempt import FAILED, JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job, Night, name_of, tonight
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
    already done). outcomes: of every model and suite, those that had no job tonight last. steps:
    step -> how it ended. unsaved: why the results file
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
    last = records.last_finished(options, now)
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
        untried = records.begin(options, night, now())
        if ahead := records.ahead(options.results, now()):
            tell(ahead)
        outcomes = [one for one in untried if one.outcome == FAILED]
        results: dict[str, StepResult] = {}
        status = FAILED
        try:
            process.begin()
            process.sweep()
            results[finish.CHECK] = step(finish.CHECK, options, night)
            if results[finish.CHECK] == finish.DONE:
                lacking = weights.lacking(options, night, tell)
                ends = time.monotonic() + (options.hours * 3600 or math.inf)
                today = now().astimezone(schedule.zone(options.zone)).date()
                scoring = _Scoring(options, night, now, tell, score, today, ends)
                outcomes += scoring.run_all(host or gpus.here(options.jobs), lacking)
                if not outcomes or any(one.goes_on for one in outcomes):
                    status = records.DONE
            else:
                tell(f"benchmark: {results[finish.CHECK]}")
            _close(options, night, results, steps, tell, step)
            unsaved = records.end(options.results, name, status, results, now(), outcomes)
        except BaseException:
            process.stop_all()
            records.end(options.results, name, records.INTERRUPTED, results, now())
            raise
        if "report" in results:
            # once more: the report was written before the steps after it ended
            ended = step(finish.LAST_PAGE, options, night)
            if ended != finish.DONE:  # costs only this page: the record has the end of the night
                tell(f"{finish.LAST_PAGE}: {ended}")
    seconds, page = time.monotonic() - began, str(options.report / "night.html")
    left_out = [one for one in untried if one.outcome != FAILED]
    return NightSummary(name, status, (*outcomes, *left_out), results, seconds, page, unsaved)


@dataclass
class _Scoring:
    """The models of a night at work. today: the day from which a quarantine counts. ends: when the
    night's hours are over (time.monotonic). outcomes: of the jobs that are settled."""

    options: NightOptions
    night: Night
    now: Callable[[], datetime]
    tell: Callable[[str], None]
    score: Score
    today: date
    ends: float
    outcomes: list[JobOutcome] = field(default_factory=list)

    def settle(self, job: Job, outcome: JobOutcome, silently: bool = False) -> None:
        """Record the final outcome of a job, and what follows for its registry entry."""
        outcome = quarantine.update_quarantine(self.options, outcome, self.today)
        records.add(self.options.results, [outcome])
        self.outcomes.append(outcome)
        if not silently:
            self.tell(f"[{len(self.outcomes)}/{len(self.night.jobs)}] {job.name}: {line(outcome)}")

    def leave_out(self, jobs: Iterable[Job], why: str) -> None:
        """'skipped' for jobs that aren't started tonight."""
        for job in jobs:
            outcome = attempt.outcome_of(job, self.now(), outcome=attempt.SKIPPED, message=why)
            self.settle(job, outcome)

    def run_model(self, jobs: Sequence[Job], device: str | None) -> None:
        """The suites of one model, one after the other, because they share its scores."""
        for job in jobs:
            left = self.ends - time.monotonic()
            if left > 0:
                self.settle(job, self.outcome_within(left, job, device))
            else:
                self.leave_out([job], OVER)

    def outcome_within(self, left: float, job: Job, device: str | None) -> JobOutcome:
        """The final outcome of a job, with the time of all its attempts and waits. left: seconds of
        the night's hours. Whatever the code around an attempt raises fails this model only."""
        self.tell(f"{job.name}: started{f' on GPU {device}' if device else ''}; log: {job.log}")
        began, clock = self.now(), time.monotonic()
        limit = min(job.timeout_s or math.inf, left)
        limited = replace(job, timeout_s=0.0 if math.isinf(limit) else limit)
        try:
            outcome = self.score(limited, self.options.results, device)
            if limited != job and outcome.kind == process.TIMED_OUT:
                outcome = replace(outcome, kind=attempt.OUT_OF_TIME)
        except process.Stopped:
            raise
        except Exception as error:
            kind = type(error).__name__ if isinstance(error, SdgbiasError) else process.UNEXPECTED
            message = process.redact(f"{type(error).__name__}: {error}")
            outcome = attempt.outcome_of(job, began, attempts=1, kind=kind, message=message)
        seconds = round(time.monotonic() - clock, 3)
        return replace(outcome, started_at=began, finished_at=self.now(), seconds=seconds)

    def run_all(self, host: gpus.GpuHost, lacking: Mapping[str, str]) -> list[JobOutcome]:
        """The outcomes of all jobs: those with a finished run first (they need no process), without
        those that are ``lacking`` weights (model -> why) or GPUs."""
        waiting: dict[str, list[Job]] = {}
        for job in self.night.jobs:
            if job.run_id:
                self.settle(job, attempt.unchanged(job, self.now()), silently=True)
            else:
                waiting.setdefault(job.model, []).append(job)
        if n := len(self.outcomes):
            self.tell(f"[{n}/{len(self.night.jobs)}] unchanged since their last run: {n}")
        for model, (first, *_) in list(waiting.items()):
            why = lacking.get(model, "")
            if not why and host.gpus and first.gpus > len(host.gpus):
                why = f"takes {first.gpus} GPUs; there are {len(host.gpus)} here"
            if why:
                self.leave_out(waiting.pop(model), why)
        self.run_models(host, waiting)
        return sorted(self.outcomes, key=lambda one: (one.model, one.suite))

    def run_models(self, host: gpus.GpuHost, jobs: dict[str, list[Job]]) -> None:
        """Run every model of ``jobs``, in a thread, as soon as its GPUs are free: in order, the
        first that fit. Those that are not started before the night ends are left out. If one
        raises, every running process is ended."""
        running: dict[Future[None], tuple[str, ...]] = {}
        waits, since, reason = "", time.monotonic(), OVER
        try:
            with ThreadPoolExecutor(max(1, len(jobs))) as pool:
                try:
                    while running or (jobs and time.monotonic() < self.ends):
                        self._start(host, jobs, pool, running)
                        if running:
                            waits, since = "", time.monotonic()
                        else:  # other processes hold the GPUs
                            waits = _waiting(waits, gpus.holders(host.gpus), self.tell)
                            waited = time.monotonic() - since
                            if math.isinf(self.ends) and waited >= BUSY_HOURS * 3600:
                                reason = f"{waits} for {BUSY_HOURS:g} hours; {_NEXT}"
                                break
                            process.pause(LOOK)
                        for future in wait(running, LOOK, FIRST_COMPLETED).done:
                            gpus.release(running.pop(future))
                            future.result()
                except BaseException:  # else the pool waits until the models end by themselves
                    process.stop_all()
                    raise
        finally:
            for devices in running.values():
                gpus.release(devices)
        for of_model in jobs.values():
            self.leave_out(of_model, reason)

    def _start(
        self,
        host: gpus.GpuHost,
        jobs: dict[str, list[Job]],
        pool: ThreadPoolExecutor,
        running: dict[Future[None], tuple[str, ...]],
    ) -> None:
        """Start the models whose GPUs are free; they leave ``jobs``."""
        for model, of_model in list(jobs.items()) if time.monotonic() < self.ends else ():
            count = of_model[0].gpus if host.gpus else 0
            alone = not count and () in running.values()
            if len(running) >= host.most if host.most else alone:
                continue
            devices = gpus.take(count, host.gpus, f"night {self.night.night}, {model}")
            if devices is not None:
                context, given = contextvars.copy_context(), ",".join(devices) or None
                running[pool.submit(context.run, self.run_model, of_model, given)] = devices
                del jobs[model]


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
    kind = f"{outcome.kind}: " if outcome.outcome == FAILED else ""
    why = f": {kind}{outcome.message}" if outcome.message else ""
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
        records.update(options.results, night.night, **records.step_columns(results))
        began = time.monotonic()
        results[name] = step(name, options, night)
        tell(f"{name}: {results[name]} ({time.monotonic() - began:.0f} s)")
