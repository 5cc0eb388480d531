"""The record of all nights: one file per night, stored in the results file when scoring ends.

No outcome may be lost when the results file is locked or the disk is full. Every event of a night
therefore replaces nights/<night>/night.json, and `ingest` copies that file into the results file:
at the begin and the end of a night and between its closing steps. The next `begin` copies what a
killed night left.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import files, locks, store
from sdgbias.errors import InfrastructureError, StoreError
from sdgbias.files import writable
from sdgbias.nightly.attempt import PUBLISHED, UNCHANGED, JobOutcome, unplanned
from sdgbias.nightly.plan import BROKEN, Night, Settings, folder_of
from sdgbias.nightly.schedule import NIGHT
from sdgbias.types import CANDIDATE, RETIRED

RUNNING, DONE, INTERRUPTED = "running", "done", "interrupted"
FILE = "night.json"
_WRITING = threading.Lock()  # models that end at the same time
#: A reserve file, deleted when the disk is full to make room for outcomes, and its size in bytes.
RESERVE, ROOM = ".reserve", 256 * 1024
#: Columns that are read of the tables nights and night_models.
_READ = [*(field.name for field in fields(JobOutcome)), "status", "step_states", "benchmarks"]
_TIMES = ("scheduled_for", "started_at", "finished_at")

#: How a closing step may end, beside 'done'.
BREACH, FAILED = "breach", "failed"


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
    path = results.parent / "nights" / ".lock"

    def unwritable(error: OSError) -> StoreError:
        return StoreError(f"{path}: {error.strerror}; give a writable folder with --results")

    def busy(holder: str) -> InfrastructureError:
        who = holder or "another process"
        return NightAtWork(
            f"another night is at work on {results}: {who}; let it finish, or end that process;"
            " what it finished is kept"
        )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from None
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    who = f"process {os.getpid()} on {os.uname().nodename}, night {night or '?'}, since {since}"
    with locks.only_one(path, unwritable, busy, who):
        yield


def starts_of(results: Path, night: str) -> int:
    """How often a night was started, by its file."""
    return int(_read_file(folder_of(results, night)).get("starts", 0))


def begin(settings: Settings, night: Night, now: datetime) -> str:
    """Open a night; return why the results file could not be written ('' if it was). An earlier
    night that is still 'running' must have been interrupted, since only one runs at a time: it is
    marked so, and its file is copied in. Raises StoreError if the night's folder can't be
    written."""
    row = {
        "night": night.night,
        "scheduled_for": night.scheduled_for,
        "started_at": now,
        "by": settings.by,
        "status": RUNNING,
        "benchmarks": night.benchmarks,
        "config": asdict(settings),
        "report": str(settings.report),
        "finished_at": None,
        **_steps({}),
    }
    told = [s for s in night.skipped if s.state not in (CANDIDATE, RETIRED, BROKEN)]
    skipped = [unplanned(night.night, s, now) for s in told]
    with writable(night.folder, "make room or give a writable --results"):
        night.folder.mkdir(parents=True, exist_ok=True)
        (night.folder / RESERVE).write_bytes(bytes(ROOM))
        _change(night.folder, row, skipped, starts=starts_of(settings.results, night.night) + 1)
    try:
        recover(settings.results, night.night)
    except StoreError as error:
        return str(error)
    return ingest(settings.results, night)


def record(night: Night, outcomes: Sequence[JobOutcome]) -> None:
    """Add outcomes to the night's file, as far as it can be written: `end` gets all of them again.
    An outcome published by an earlier start of this night stays 'published'."""
    with suppress(OSError):
        _change(night.folder, outcomes=outcomes)


def so_far(results: Path, night: Night, found: Mapping[str, StepResult]) -> str:
    """Record the progress of a running night's closing steps, for readers of the results file."""
    with suppress(OSError):
        _change(night.folder, _steps(found))
    return ingest(results, night)


def end(
    results: Path,
    night: Night,
    status: str,
    steps: Mapping[str, StepResult],
    now: datetime,
    outcomes: Sequence[JobOutcome] = (),
) -> str:
    """Close a night; ``outcomes``: all of its outcomes, for a file that could not be written
    earlier. Returns why the results file could not be written ('' if it was); the next `begin` then
    copies the night in."""
    (night.folder / RESERVE).unlink(missing_ok=True)
    row = {"status": status, **_steps(steps), "finished_at": now}
    with suppress(OSError):  # the disk is full: the results file may yet take it
        _change(night.folder, row, outcomes)
    return ingest(results, night, row, outcomes)


def ingest(
    results: Path,
    night: Night,
    row: Mapping[str, Any] | None = None,
    outcomes: Sequence[JobOutcome] = (),
) -> str:
    """Copy the night's file into the results file, with what the file could not take; return why
    the results file could not be written ('' if it was)."""
    row = {"night": night.night, **(row or {})}
    found = _merged(_read_file(night.folder), row, outcomes)
    try:
        _store(results, json.loads(_dumps(found)))  # types as in the file, whatever it took
    except StoreError as error:
        return str(error)
    return ""


def outcomes_of(folder: Path) -> list[dict[str, Any]]:
    """The outcomes in a night's file; [] without one."""
    return list(_read_file(folder).get("outcomes", []))


def _steps(found: Mapping[str, StepResult]) -> dict[str, dict[str, str]]:
    """The columns of closing steps: sentences for readers, and states that decide."""
    return {
        "steps": {name: str(ended) for name, ended in found.items()},
        "step_states": {name: ended.state for name, ended in found.items()},
    }


def nights(results: Path, last: int = 400) -> pd.DataFrame:
    """The table nights, newest first. Empty if there is no results file."""
    return _read(results, "SELECT * FROM nights ORDER BY night DESC LIMIT ?", [last])


def status(results: Path, night: str) -> str:
    """'running', 'done', 'failed', 'interrupted', or '' for a night that never began."""
    found = _read(results, "SELECT status FROM nights WHERE night = ?", [night])
    return str(found["status"][0]) if len(found) else ""


def history(results: Path, model: str = "") -> pd.DataFrame:
    """The table night_models for one model (all models: ''), newest night first."""
    return _read(
        results,
        "SELECT * FROM night_models WHERE ? IN ('', model) ORDER BY night DESC, model, suite",
        [model],
    )


def last_finished(results: Path) -> str | None:
    """Name of the newest completed night of all models (no --model); None if there is none."""
    sql = "SELECT max(night) AS night FROM nights WHERE status = ? AND config->>'models' IS NULL"
    found = _read(results, sql, [DONE])
    return None if not len(found) or pd.isna(found["night"][0]) else str(found["night"][0])


def last_night(results: Path) -> str:
    """The newest night in one line: name, status, number of models per outcome."""
    try:
        newest = nights(results, 1)
        if not len(newest):
            return "none yet"
        night = newest.iloc[0]
        mine = history(results).query("night == @night.night")["outcome"]
    except StoreError as error:
        return f"not known: {error}"
    counts = mine.value_counts().sort_index()
    found = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "no model"
    return f"{night.night}: {night.status}; {found}; report: {night.report}/night.html"


def recover(results: Path, current: str) -> None:
    """Copy nights that are not recorded as ended into the results file: their outcomes and final
    states. Raises StoreError."""
    root = results.parent / "nights"
    over = (
        set(nights(results, 100_000).query(f"status != '{RUNNING}'")["night"])
        if results.exists()
        else set()
    )
    folders = [
        f
        for f in root.iterdir()
        if f.is_dir() and NIGHT.fullmatch(f.name) and f.name not in over | {current}
    ]
    for folder in sorted(folders):
        found = _read_file(folder)
        if not found:
            continue  # planned, never begun
        if found["night"]["status"] == RUNNING:
            found = _merged(found, {"status": INTERRUPTED})
        _store(results, found)
    lost = _read(
        results, "SELECT * FROM nights WHERE status = ? AND night != ?", [RUNNING, current]
    )
    if len(lost):  # nights whose folder is gone
        store.upsert(results, {"nights": lost.assign(status=INTERRUPTED)})


def _read_file(folder: Path) -> dict[str, Any]:
    """night.json: the row of the table nights, the rows of night_models, the number of starts."""
    return files.json_object(folder / FILE)


def _change(
    folder: Path,
    row: Mapping[str, Any] | None = None,
    outcomes: Sequence[JobOutcome] = (),
    **more: int,
) -> None:
    """Replace the night's file; on a full disk, use the room reserved when the night began. Raises
    OSError."""
    with _WRITING:
        text = _dumps(_merged(_read_file(folder), row or {}, outcomes) | more)
        try:
            _replace(folder, text)
        except OSError:
            if not (folder / RESERVE).exists():
                raise
            (folder / RESERVE).unlink()
            _replace(folder, text)


def _replace(folder: Path, text: str) -> None:
    with files.replacing(folder / FILE) as part:
        part.write_text(text, encoding="utf-8")


def _merged(
    found: Mapping[str, Any], row: Mapping[str, Any], outcomes: Sequence[JobOutcome] = ()
) -> dict[str, Any]:
    """The content of a night's file with these changes."""
    by_job = {(old["model"], old["suite"]): old for old in found.get("outcomes", [])}
    for new in outcomes:
        old = by_job.get((new.model, new.suite), {})
        again = (new.outcome, new.run_id) == (UNCHANGED, old.get("run_id"))
        if not (again and old["outcome"] == PUBLISHED):
            by_job[new.model, new.suite] = new.row()
    return {**found, "night": {**found.get("night", {}), **row}, "outcomes": [*by_job.values()]}


def _store(results: Path, found: Mapping[str, Any]) -> None:
    """Copy the content of a night's file into the results file. Raises StoreError."""
    night = found["night"]
    tables = {"nights": _frame([night])}
    if found["outcomes"]:
        rows = [row | {"night": night["night"]} for row in found["outcomes"]]
        tables["night_models"] = _frame(rows)
    store.upsert(results, tables)


def _read(results: Path, sql: str, params: Sequence[Any] = ()) -> pd.DataFrame:
    if not results.exists():
        return pd.DataFrame(columns=_READ)
    return store.query(results, sql, params)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows for the results file: times are naive UTC there."""
    frame = pd.DataFrame(list(rows))
    for column in _TIMES:
        if column in frame:
            iso = any(isinstance(value, str) for value in frame[column])
            times = pd.to_datetime(frame[column], utc=True, format="ISO8601" if iso else None)
            frame[column] = times.dt.tz_localize(None)
    return frame


def _dumps(row: Mapping[str, Any]) -> str:
    return json.dumps(
        row,
        default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value),
        ensure_ascii=False,
    )
