"""The record of nights: how each went and what came of each model, as files (store/night_files.py).

A night is 'running' from `begin` to `end`; since only one runs at a time, the next `begin` marks
one that was killed as 'interrupted'. What can't be written while the disk is full is written again
by `end`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from sdgbias import locks, store
from sdgbias.errors import InfrastructureError, RegistryError, StoreError
from sdgbias.nightly import process, schedule
from sdgbias.nightly.attempt import FAILED, SKIPPED, JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import BROKEN, Night, Skipped
from sdgbias.store import night_files
from sdgbias.types import CANDIDATE, RETIRED

RUNNING, DONE, INTERRUPTED = "running", "done", "interrupted"
#: How a closing step may end, beside 'done' and 'failed'.
BREACH = "breach"


@dataclass(frozen=True)
class StepResult:
    """How a step ended. state: 'done', 'breach' (the regression check found one) or 'failed';
    message: the reason in one line, '' when done. Everything is decided by the state."""

    state: str
    message: str = ""

    def __str__(self) -> str:
        if self.state == BREACH:
            return f"{BREACH}: {self.message}"
        return self.message or self.state


class NightAtWork(InfrastructureError):
    """Another night holds the results file's lock."""


@contextmanager
def only_one(results: Path, night: str = "") -> Iterator[None]:
    """Lock: one night at a time per results file. The lock is released when its process ends.
    Raises NightAtWork, which names the holder."""
    path = night_files.home(results) / ".lock"

    def unwritable(error: OSError) -> StoreError:
        return StoreError(f"{path}: {error.strerror}; give a writable folder with --results")

    def busy(holder: str) -> InfrastructureError:
        return NightAtWork(
            f"another night is at work on {results}: {holder or 'another process'}; let it finish,"
            " or end that process; what it finished is kept"
        )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from None
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    who = f"process {os.getpid()} on {os.uname().nodename}, night {night or '?'}, since {since}"
    with locks.only_one(path, unwritable, busy, who):
        yield


def begin(options: NightOptions, night: Night, now: datetime) -> list[JobOutcome]:
    """Open a night, and mark an earlier one that is still 'running' as interrupted. A results file
    is made where there is none, for the steps that read it. Returns the outcomes of models that
    are not tried tonight: those that a person did not put aside. Raises StoreError if the night's
    files can't be written."""
    results = options.results
    others = "SELECT night FROM nights WHERE status = ? AND night != ?"
    for earlier in night_files.query(results, others, [RUNNING, night.night])["night"]:
        before = night_files.read(results, "nights", {"night": earlier})
        night_files.write(results, "nights", before | {"night": earlier, "status": INTERRUPTED})
    row = {
        "night": night.night,
        "scheduled_for": night.scheduled_for,
        "started_at": now,
        "by": options.by,
        "status": RUNNING,
        "benchmarks": night.benchmarks,
        "config": asdict(options),
        "report": str(options.report),
        "starts": starts_of(results, night.night) + 1,
        "finished_at": None,
        **step_columns({}),
    }
    night_files.write(results, "nights", row)
    left_out = [s for s in night.skipped if s.state not in (CANDIDATE, RETIRED)]
    outcomes = [_untried(night.night, skipped, now) for skipped in left_out]
    for outcome in outcomes:
        night_files.write(results, "night_outcomes", outcome.row())
    with suppress(StoreError), store.connect(results):
        pass
    return outcomes


def _untried(night: str, skipped: Skipped, now: datetime) -> JobOutcome:
    """'skipped' for a model and suite that have no job tonight; 'failed' for an unreadable registry
    entry, which is not quarantined: there is no valid entry to write that into."""
    broken = skipped.state == BROKEN
    return JobOutcome(
        skipped.model,
        skipped.suite,
        FAILED if broken else SKIPPED,
        kind=RegistryError.__name__ if broken else "",
        message=process.redact(skipped.reason),
        night=night,
        started_at=now,
        finished_at=now,
    )


def add(results: Path, outcomes: Sequence[JobOutcome]) -> str:
    """Record outcomes; returns why one could not be written ('' if all were)."""
    return _write(results, "night_outcomes", (outcome.row() for outcome in outcomes))


def update(results: Path, night: str, **columns: object) -> str:
    """Change columns of a night; returns why they could not be written ('' if they were)."""
    key = {"night": night}
    return _write(results, "nights", [key | night_files.read(results, "nights", key) | columns])


def _write(results: Path, view: str, rows: Iterable[Mapping[str, object]]) -> str:
    why = ""
    for row in rows:
        try:
            night_files.write(results, view, row)
        except StoreError as error:
            why = str(error)
    return why


def end(
    results: Path,
    night: str,
    status: str,
    steps: Mapping[str, StepResult],
    now: datetime,
    outcomes: Sequence[JobOutcome] = (),
) -> str:
    """Close a night; ``outcomes``: all of its outcomes, for those that could not be written
    earlier. Months that are over become Parquet files. Returns why something could not be written
    ('' if all was)."""
    why = add(results, outcomes)
    row = {"status": status, "finished_at": now, **step_columns(steps)}
    why = update(results, night, **row) or why
    with suppress(StoreError):
        night_files.compact(results, min(night[:7], f"{now:%Y-%m}"))
    return why


def ahead(results: Path, now: datetime) -> str:
    """What a clock that ran ahead left: runs and nights later than ``now``, and what to do about
    them. '' if there is none, or no results file that can be read."""
    sql = """SELECT "name" FROM (SELECT finished_at AS moment, 'run ' || run_id AS "name" FROM runs
             UNION ALL SELECT started_at, 'night ' || night FROM nights)
             WHERE moment > ? ORDER BY moment"""
    with suppress(StoreError):
        names = list(store.query(results, sql, [now.replace(tzinfo=None)])["name"])
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        if names:
            return (
                f"later than now: {', '.join(names[:5])}{more}: a clock ran ahead, and pages show"
                " these as the newest until then; remove runs by sdgbias store remove, nights by"
                f" their folders in {night_files.home(results)}"
            )
    return ""


def step_columns(steps: Mapping[str, StepResult]) -> dict[str, dict[str, str]]:
    """The columns of closing steps: sentences for readers, and states that decide."""
    return {
        "steps": {name: str(result) for name, result in steps.items()},
        "step_states": {name: result.state for name, result in steps.items()},
    }


def starts_of(results: Path, night: str) -> int:
    """How often a night was started."""
    starts = night_files.query(results, "SELECT starts FROM nights WHERE night = ?", [night])
    return int(starts["starts"].fillna(1).max()) if len(starts) else 0


def status(results: Path, night: str) -> str:
    """'running', 'done', 'failed', 'interrupted', or '' for a night that never began."""
    rows = night_files.query(results, "SELECT status FROM nights WHERE night = ?", [night])
    return str(rows["status"][0]) if len(rows) else ""


def history(results: Path, model: str = "") -> pd.DataFrame:
    """The view night_outcomes for one model (all models: ''), newest night first."""
    sql = "FROM night_outcomes WHERE ? IN ('', model) ORDER BY night DESC, model, suite"
    return night_files.query(results, sql, [model], model)


def last_finished(options: NightOptions, now: datetime) -> str | None:
    """Name of the newest completed night of all models (no --model) up to ``now``; None if there is
    none. One of a later time (a clock that ran ahead, a --night by hand) is not the last one."""
    # records made by 0.1.0 name the option models
    of_all = "coalesce(config->>'model', config->>'models') IS NULL"
    sql = f"SELECT max(night) AS night FROM nights WHERE status = ? AND night < ? AND {of_all}"
    later = schedule.night_id(now + timedelta(minutes=1), options.zone)
    newest = night_files.query(options.results, sql, [DONE, later])["night"][0]
    return None if pd.isna(newest) else str(newest)
