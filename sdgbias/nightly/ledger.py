"""The record of all nights, in the results file and, until it is stored there, beside it.

No outcome may be lost when the results file is locked or the disk is full. Each outcome is
therefore first written as a line of nights/<night>/outcomes.jsonl, and a night's begin and end to
separate files there; `begin` and `end` copy whatever is missing into the results file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import files, store
from sdgbias.errors import InfrastructureError, StoreError
from sdgbias.nightly.attempt import PUBLISHED, SKIPPED, UNCHANGED, JobOutcome
from sdgbias.nightly.plan import Night, Settings, folder_of
from sdgbias.nightly.schedule import NIGHT

RUNNING, DONE, INTERRUPTED = "running", "done", "interrupted"
BEGIN, END, OUTCOMES = "begin.json", "end.json", "outcomes.jsonl"
#: A reserve file, deleted when the disk is full to make room for outcomes, and its size in bytes.
RESERVE, ROOM = ".reserve", 256 * 1024
#: States of skipped models that are not recorded for the night.
_AT_REST = ("candidate", "retired")
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
    with files.only_one(path, unwritable, busy) as handle:
        with suppress(OSError):  # a full disk: the lock itself holds
            handle.truncate(0)
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            handle.write(
                f"process {os.getpid()} on {os.uname().nodename}, night {night or '?'}, since"
                f" {since}\n"
            )
            handle.flush()
        yield


def starts_of(results: Path, night: str) -> int:
    """How often a night was started, by the file in its folder."""
    try:
        begun = json.loads((folder_of(results, night) / BEGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    return int(begun.get("starts", 1))


def begin(settings: Settings, night: Night, now: datetime) -> str:
    """Open a night; return why the results file could not be written ('' if it was). An earlier
    night that is still 'running' must have been interrupted, since only one runs at a time: it is
    marked so, and its records beside the file are copied in. Raises StoreError if the night's
    folder can't be written."""
    row = {
        "night": night.night,
        "scheduled_for": night.scheduled_for,
        "started_at": now,
        "by": settings.by,
        "status": RUNNING,
        "benchmarks": night.benchmarks,
        "config": _config(settings),
        "report": str(settings.report),
    }
    starts = starts_of(settings.results, night.night) + 1
    try:
        night.folder.mkdir(parents=True, exist_ok=True)
        (night.folder / END).unlink(missing_ok=True)
        (night.folder / BEGIN).write_text(_dumps(row | {"starts": starts}), encoding="utf-8")
        (night.folder / RESERVE).write_bytes(bytes(ROOM))
    except OSError as error:
        raise StoreError(
            f"{night.folder}: can't be written ({error.strerror}); make room or give a writable"
            " --results"
        ) from None
    try:
        recover(settings.results, night.night)
        store.upsert(settings.results, {"nights": _frame([row])})
        record(
            settings.results,
            night,
            [
                _skipped(night, s, now)
                for s in night.skipped
                if s.state not in (*_AT_REST, "broken")
            ],
        )
    except StoreError as error:
        return str(error)
    return ""


def record(results: Path, night: Night, outcomes: Sequence[JobOutcome]) -> str:
    """Store outcomes, first beside the results file; return why they could not be stored ('' if
    they were). A locked or full file never raises. An outcome published by an earlier start of this
    night stays 'published'."""
    if not outcomes:
        return ""
    rows = [outcome.row() | {"night": night.night} for outcome in outcomes]
    trouble = ""
    try:
        _append(night.folder, "".join(f"{_dumps(row)}\n" for row in rows))
    except OSError as error:
        trouble = f"{night.folder / OUTCOMES}: {error.strerror}"
    try:
        _keep_rows(results, night.night, rows)
    except StoreError as error:
        return str(error)
    return trouble if trouble and not results.exists() else ""


def end(
    results: Path,
    night: Night,
    status: str,
    steps: Mapping[str, StepResult],
    now: datetime,
    outcomes: Sequence[JobOutcome] = (),
) -> str:
    """Close a night; ``outcomes``: all of its outcomes, stored again in case the file was locked
    earlier. Returns why the results file could not be written ('' if it was); the next `begin` then
    copies the night in."""
    found = {"status": status, **_steps(steps), "finished_at": now}
    (night.folder / RESERVE).unlink(missing_ok=True)
    with suppress(OSError):  # the disk is full: the results file may yet take it
        (night.folder / END).write_text(_dumps(found), encoding="utf-8")
    try:
        _keep_rows(
            results,
            night.night,
            [o.row() | {"night": night.night} for o in outcomes] or _left(night.folder),
        )
        begun = json.loads((night.folder / BEGIN).read_text(encoding="utf-8"))
        begun.pop("starts", None)
        store.upsert(results, {"nights": _frame([begun | found])})
    except (StoreError, OSError, ValueError) as error:
        return str(error)
    return ""


def so_far(results: Path, night: Night, found: Mapping[str, StepResult]) -> str:
    """Record the progress of a running night's closing steps, for readers of the results file."""
    try:
        begun = json.loads((night.folder / BEGIN).read_text(encoding="utf-8"))
        begun.pop("starts", None)
        store.upsert(results, {"nights": _frame([begun | _steps(found)])})
    except (StoreError, OSError, ValueError) as error:
        return str(error)
    return ""


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
        try:
            begun = json.loads((folder / BEGIN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # planned, never begun
        try:
            ended = json.loads((folder / END).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            ended = {"status": INTERRUPTED}
        _keep_rows(results, folder.name, _left(folder))
        begun.pop("starts", None)
        # begun by an earlier version, which had one column for each of two suites
        old = {"sdg": begun.pop("benchmark_id", ""), "people": begun.pop("people_id", "")}
        begun.setdefault("benchmarks", {suite: found for suite, found in old.items() if found})
        store.upsert(results, {"nights": _frame([{**begun, **ended}])})
    lost = _read(
        results, "SELECT * FROM nights WHERE status = ? AND night != ?", [RUNNING, current]
    )
    if len(lost):  # nights whose folder is gone
        store.upsert(results, {"nights": lost.assign(status=INTERRUPTED)})


def _append(folder: Path, lines: str) -> None:
    """Append lines to a night's outcomes; on a full disk, use the room reserved when the night
    began. Raises OSError."""
    for start in ("", "\n"):  # the newline ends a line that the full disk cut short
        try:
            with (folder / OUTCOMES).open("a", encoding="utf-8") as file:
                file.write(start + lines)
            return
        except OSError:
            if not (folder / RESERVE).exists():
                raise
            (folder / RESERVE).unlink()


def _left(folder: Path) -> list[dict[str, Any]]:
    """The last line of each job in a night's outcomes.jsonl; a truncated last line is ignored."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        lines = (folder / OUTCOMES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
            found[row["model"], row["suite"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    return list(found.values())


def _keep_rows(results: Path, night: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    sql = "SELECT model, suite, run_id, outcome FROM night_models WHERE night = ?"
    before = {(m, s, r): o for m, s, r, o in _read(results, sql, [night]).itertuples(index=False)}
    kept = [
        row
        for row in rows
        if not (
            row["outcome"] == UNCHANGED
            and before.get((row["model"], row["suite"], row["run_id"])) == PUBLISHED
        )
    ]
    if kept:
        store.upsert(results, {"night_models": _frame(kept)})


def _skipped(night: Night, skipped: Any, now: datetime) -> JobOutcome:
    return JobOutcome(
        skipped.model,
        skipped.suite,
        SKIPPED,
        message=skipped.reason,
        night=night.night,
        started_at=now,
        finished_at=now,
    )


def _read(results: Path, sql: str, params: Sequence[Any] = ()) -> pd.DataFrame:
    if not results.exists():
        return pd.DataFrame(
            columns=[
                "night",
                "status",
                "step_states",
                "benchmarks",
                "model",
                "suite",
                "outcome",
                "run_id",
                "quarantined_until",
            ]
        )
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


def _config(settings: Settings) -> dict[str, Any]:
    """The settings as JSON. They contain the webhook's variable name, never its address."""
    plain = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(settings).items()
    }
    plain["benchmarks"] = [str(folder) for folder in settings.benchmarks]
    return plain | {"scheduled_for": settings.scheduled_for and settings.scheduled_for.isoformat()}


def _dumps(row: Mapping[str, Any]) -> str:
    return json.dumps(
        row,
        default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value),
        ensure_ascii=False,
    )
