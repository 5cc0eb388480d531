"""One night: everybody who is due, `jobs` at a time, then analyse, gate, report, W&B and whoever is
to be told.

It needs no server; flows/nightly.py gives it other hands, which do the same work as Prefect's task
runs.

plan.tonight      who is asked what; snapshots of their entries
work.keep_trying  one model: a process, its outcome, another try where it may help
quarantine.after  who is put aside for a while, and who comes back
ledger            what happened, in the results file and beside it
finish            the steps once everybody was asked
schedule          which night this is, and which was missed
"""

from __future__ import annotations

import contextvars
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from sdgbias.errors import GateError, InfrastructureError, SdgbiasError
from sdgbias.nightly import attempt, ledger, process, quarantine, schedule
from sdgbias.nightly import steps as finish
from sdgbias.nightly.attempt import FAILED, Outcome
from sdgbias.nightly.plan import Job, Night, Settings, check, name_of, tonight

T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """What came of a night. status: 'done', 'failed' (nobody could be scored), '' (nothing was
    due). steps: step -> 'done' or why not.
    unsaved: why the results file could not take it, '' when it did."""

    night: str
    status: str
    outcomes: tuple[Outcome, ...] = ()
    steps: dict[str, str] | None = None
    seconds: float = 0.0
    report: str = ""
    unsaved: str = ""
    note: str = ""

    @property
    def exit_code(self) -> int:
        """0: everybody was asked, at least one was good (or nobody was due); 6: the gate found a
        breach; 8: nobody could be scored, the results could not be kept, or a step that shows or
        judges them failed."""
        said = self.steps or {}
        if self.status == FAILED or self.unsaved:
            return InfrastructureError.exit_code
        if said.get("gate", "").startswith(finish.BREACH):
            return GateError.exit_code
        bad = [
            name
            for name, words in said.items()
            if words != finish.DONE and name not in finish.OPTIONAL_STEPS
        ]
        return InfrastructureError.exit_code if bad else 0


def _nobody(event: str, night: Night, outcomes: Sequence[Outcome], said: Mapping[str, str]) -> None:
    return None


@dataclass(frozen=True)
class Executor:
    """Who does the parts of a night.

    ask(job, results, device): one model, until its outcome stands. step(name, settings, night):
    finish.CHECK or a closing step; 'done' or why not. devices(jobs, models): what each model at a
    time may see (work.devices). seen(event, night, outcomes so far, steps so far): told of
    'planned', 'settled' (after each model), 'asked' (after the last), the name of each step, and
    'closed'.
    """

    ask: Callable[[Job, Path, str | None], Outcome] = attempt.keep_trying_here
    step: Callable[[str, Settings, Night], str] = finish.do
    devices: Callable[[int, int], list[str | None]] = lambda jobs, models: attempt.devices(jobs)
    seen: Callable[[str, Night, Sequence[Outcome], Mapping[str, str]], None] = _nobody


def run(
    settings: Settings,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    tell: Callable[[str], None] = print,
    hands: Executor = Executor(),
    steps: Sequence[str] = finish.STEPS,
) -> Summary:
    """A whole night. A night of this name that is done already is left alone; one that was
    interrupted goes on where it stood.

    tell: one line per start and end of a model, and per step. Raises InfrastructureError (another
    night is at work), UsageError, RegistryError, InputError (no benchmark), StoreError (the night's
    folder can't be written): before anybody is asked.
    """
    check(settings)
    began = time.monotonic()
    name = name_of(settings, now())
    settings = replace(settings, night=name)  # by now another minute may have begun
    with ledger.only_one(settings.results, name):
        if ledger.status(settings.results, name) == ledger.DONE:
            return Summary(name, "", note=f"night {name} is done already; nothing to do")
        night = tonight(settings, now())
        ledger.begin(settings, night, now())
        said: dict[str, str] = {}
        try:
            process.begin()
            said[finish.CHECK] = hands.step(finish.CHECK, settings, night)
            outcomes = _unreadable(night, now())
            if said[finish.CHECK] == finish.DONE:
                outcomes += _everybody(settings, night, now, tell, hands)
                status = ledger.DONE if any(o.good for o in outcomes) or not outcomes else FAILED
            else:
                tell(f"benchmark: {said[finish.CHECK]}")
                status = FAILED
            ledger.record(settings.results, night, outcomes)
            hands.seen("asked", night, outcomes, said)
            _close(settings, night, outcomes, said, steps, tell, hands)
            unsaved = ledger.end(settings.results, night, status, said, now(), [])
        except BaseException:
            process.stop_all()
            ledger.end(settings.results, night, ledger.INTERRUPTED, said, now(), [])
            raise
    return Summary(
        name,
        status,
        tuple(outcomes),
        said,
        time.monotonic() - began,
        str(finish.report_page(settings)),
        unsaved,
    )


def _unreadable(night: Night, now: datetime) -> list[Outcome]:
    """Entries that can't be read are failures of tonight; nobody is put aside, for there is no
    entry to write that into."""
    return [
        Outcome(
            s.model,
            s.suite,
            FAILED,
            kind="RegistryError",
            message=process.redact(s.reason),
            night=night.night,
            started_at=now,
            finished_at=now,
        )
        for s in night.skipped
        if s.state == "broken"
    ]


def _everybody(
    settings: Settings,
    night: Night,
    now: Callable[[], datetime],
    tell: Callable[[str], None],
    hands: Executor,
) -> list[Outcome]:
    """All jobs; those whose run is finished first and without a process. The suites of one model
    follow each other: they share its scores."""
    today = now().astimezone(schedule.zone(settings.timezone)).date()
    known = [outcome for job in night.jobs if (outcome := attempt.already(job, now()))]
    outcomes = [quarantine.update_quarantine(settings, outcome, today) for outcome in known]
    ledger.record(settings.results, night, outcomes)
    total = len(night.jobs)
    if known:
        tell(f"[{len(known)}/{total}] unchanged since their last run: {len(known)}")
    hands.seen("planned", night, outcomes, {})
    by_model: dict[str, list[Job]] = {}
    for job in night.jobs:
        if not job.run_id:
            by_model.setdefault(job.model, []).append(job)
    devices = hands.devices(settings.jobs, len(by_model))
    free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for device in devices:
        free.put(device)

    def one(jobs: list[Job]) -> None:
        device = free.get()
        try:
            for job in jobs:
                tell(f"{job.name}: started; log: {job.log}")
                began = now()
                try:
                    made = hands.ask(job, settings.results, device)
                except process.Stopped:
                    raise
                except Exception as error:  # whatever it is: this model's trouble, not the night's
                    made = attempt.crashed(job, error, began, now())
                made = quarantine.update_quarantine(settings, made, today)
                ledger.record(settings.results, night, [made])
                outcomes.append(made)
                tell(f"[{len(outcomes)}/{total}] {job.name}: {line(made)}")
                hands.seen("settled", night, outcomes, {})
        finally:
            free.put(device)

    _at_once([partial(one, jobs) for jobs in by_model.values()], len(devices))
    return sorted(outcomes, key=lambda o: (o.model, o.suite))


def _at_once(attempt: Sequence[Callable[[], T]], most: int) -> list[T]:
    """What each of these comes to, ``most`` at a time, each in a thread. When one raises, every
    process that is at work is ended."""
    pool = ThreadPoolExecutor(max(1, most))
    try:
        begun = [pool.submit(contextvars.copy_context().run, one) for one in attempt]
        for done in as_completed(begun):
            done.result()
        return [done.result() for done in begun]
    except BaseException:
        process.stop_all()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def line(outcome: Outcome) -> str:
    """One outcome in words: 'published, 12 s', 'failed after 2 attempts, 31 s: OutOfMemory:
    ...'."""
    tries = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    why = f": {outcome.kind}: {outcome.message}" if outcome.outcome == FAILED else ""
    aside = f"; quarantined until {outcome.quarantined_until}" if outcome.quarantined_until else ""
    return f"{outcome.outcome}{tries}, {outcome.seconds:.0f} s{why}{aside}"


def _close(
    settings: Settings,
    night: Night,
    outcomes: Sequence[Outcome],
    said: dict[str, str],
    steps: Sequence[str],
    tell: Callable[[str], None],
    hands: Executor,
) -> None:
    """Runs the closing steps; each finds in the results file what those before it came to."""

    def one(name: str) -> tuple[str, float]:
        began = time.monotonic()
        came_to = (
            hands.step(name, settings, night)
            if finish.needed(name, settings, night)
            else finish.DONE
        )
        return came_to, time.monotonic() - began

    wanted = [
        name
        for step in steps
        for name in (
            (step, finish.SELFCHECK) if step == "analyse" and settings.selfcheck else (step,)
        )
    ]
    for _, turn in groupby(
        wanted, key=lambda name: finish.PARALLEL_STEPS if name in finish.PARALLEL_STEPS else name
    ):
        names = list(turn)
        ledger.so_far(settings.results, night, said)
        for name, (came_to, seconds) in zip(
            names, _at_once([partial(one, name) for name in names], len(names)), strict=True
        ):
            said[name] = came_to
            tell(f"{name}: {came_to} ({seconds:.0f} s)")
            if name == "gate":
                _put_aside(settings, night, tell)
            hands.seen(name, night, outcomes, said)
    hands.seen("closed", night, outcomes, said)


def _put_aside(settings: Settings, night: Night, tell: Callable[[str], None]) -> None:
    try:
        for model, reason in quarantine.from_verdicts(settings, night.night).items():
            tell(f"{model}: quarantined until a person enables it: {reason}")
    except SdgbiasError as error:
        tell(f"quarantine: {error}")
