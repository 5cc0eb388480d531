"""All nights, and the one in progress with its logs (a night itself: pages/night.py)."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from sdgbias.errors import InputError, RegistryError
from sdgbias.files import confine
from sdgbias.registry import entries
from sdgbias.report.reader import Reader, paged
from sdgbias.store import night_files

PAGE = 50
#: Bytes read from the end of a job's log for its last line.
TAIL = 4096
#: Logs that are shown.
LOGS = 24
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def newest(reader: Reader, finished: bool = False) -> str | None:
    """Name of the newest night (of the newest that is no longer running); None without one."""
    where = "WHERE status IS DISTINCT FROM 'running'" if finished else ""
    row = reader.one(
        f"SELECT night FROM nights {where} ORDER BY started_at DESC NULLS LAST, night DESC LIMIT 1"
    )
    return None if row is None else str(row["night"])


def listing(reader: Reader, page: int) -> dict[str, Any]:
    """Nights, newest first, PAGE at a time, with counts of outcomes and of evaluations in
    breach."""
    total = reader.ask("SELECT count(*) AS n FROM nights")[0]["n"]
    rows = reader.ask(
        f"""WITH chosen AS (SELECT * FROM nights ORDER BY started_at DESC NULLS LAST, night DESC
            LIMIT {PAGE} OFFSET ?)
            SELECT c.night, c.status, c.started_at, c.finished_at, c."by",
                   epoch(c.finished_at - c.started_at) AS seconds, count(nm.model) AS models,
                   count(*) FILTER (outcome = 'published') AS published, count(*) FILTER (outcome =
                   'unchanged') AS unchanged,
                   count(*) FILTER (outcome = 'failed') AS failed, count(*) FILTER (outcome =
                   'skipped') AS skipped,
                   coalesce(any_value(v.n), 0) AS in_breach
            FROM chosen c LEFT JOIN night_outcomes nm USING (night)
            LEFT JOIN (SELECT night, count(DISTINCT (model, suite)) AS n FROM verdicts
            WHERE verdict = 'BREACH' GROUP BY night) v USING (night)
            GROUP BY ALL ORDER BY c.started_at DESC NULLS LAST, c.night DESC""",
        [(page - 1) * PAGE],
    )
    return paged(rows, total, page, PAGE)


def running(reader: Reader, now: datetime) -> dict[str, Any] | None:
    """The newest night while it runs: jobs (a model on a suite) done and planned, and the state of
    their logs; None if nothing runs.

    ``now``: UTC. Planned jobs come from the entries copied for the night.
    """
    row = reader.one("SELECT * FROM nights ORDER BY started_at DESC NULLS LAST, night DESC LIMIT 1")
    if row is None or row["status"] != "running":
        return None
    name = str(row["night"])
    outcomes = reader.ask(
        "SELECT model, suite FROM night_outcomes WHERE night = ? ORDER BY model, suite", [name]
    )
    folder = _folder(reader.results.path, name)
    done = {(r["model"], r["suite"]) for r in outcomes}
    planned = _planned(folder) if folder else set()
    began = row["started_at"]
    logs, n_logs = _logs(folder, now) if folder else ([], 0)
    return {
        "night": name,
        "started_at": began,
        "seconds": (now.replace(tzinfo=None) - began).total_seconds() if began else None,
        "done": len(done),
        "planned": len(planned | done) if planned else 0,
        "logs": logs,
        "n_logs": n_logs,
    }


def _folder(results: Path, name: str) -> Path | None:
    """The night's folder beside the results; None if it doesn't exist or its name leads
    elsewhere."""
    try:
        folder = confine(night_files.home(results), name)
    except InputError:
        return None
    return folder if folder.is_dir() else None


def _planned(folder: Path) -> set[tuple[str, str]]:
    """(model, suite) of every entry copied for the night; an unreadable entry counts for the
    default suites."""
    planned = set()
    for path in sorted((folder / "registry").glob("*.yaml")):
        try:
            names = entries.suites(entries.read(path))
        except RegistryError:
            names = entries.DEFAULT_SUITES
        planned |= {(path.stem, suite) for suite in names}
    return planned


def _logs(folder: Path, now: datetime) -> tuple[list[dict[str, Any]], int]:
    """(name, size, seconds since the last write and last line of the LOGS logs of a night that were
    written last, the number of all)."""
    stats = []
    for path in folder.rglob("*.log"):
        with suppress(OSError):
            if path.resolve().is_relative_to(folder.resolve()):
                stats.append((path.stat(), path))
    logs = []
    for stat, path in sorted(stats, key=lambda one: (-one[0].st_mtime, one[1]))[:LOGS]:
        try:
            with path.open("rb") as file:
                file.seek(max(0, stat.st_size - TAIL))
                text = file.read(TAIL).decode("utf-8", "replace")
        except OSError:
            continue
        lines = [
            line.strip() for line in re.split(r"[\r\n]+", _COLOURS.sub("", text)) if line.strip()
        ]
        logs.append(
            {
                "name": path.relative_to(folder).as_posix(),
                "size": stat.st_size,
                "quiet": max(0.0, now.timestamp() - stat.st_mtime),
                "last": lines[-1][:160] if lines else "",
            }
        )
    return logs, len(stats)
