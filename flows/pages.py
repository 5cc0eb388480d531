"""What a night shows in Prefect's pages: its models' logs, a table of outcomes, a link to the
report."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.logging import get_logger

from sdgbias.nightly.plan import Job
from sdgbias.nightly.process import redact
from sdgbias.nightly.run import NightSummary
from sdgbias.store import night_files

PERIOD = 2.0  # seconds between two questions whether a model is to be ended
LOG_BYTES = 65_536  # of a model's log that are passed on at a time


def follow(
    job: Job, say: Callable[[str], None], why: Callable[[], str] = lambda: ""
) -> Callable[[], str]:
    """A callback for the time that a model is at work: it passes new lines of the model's log on to
    ``say`` (the log of its Prefect run), without secrets, and returns the reason that ``why`` gives
    for ending the model ('': none, also where the server doesn't answer)."""
    at = job.log.stat().st_size if job.log.exists() else 0
    due = 0.0

    def look() -> str:
        nonlocal at, due
        lines = b""
        with suppress(OSError), job.log.open("rb") as log:
            log.seek(at)
            lines = log.read(LOG_BYTES)
        # a line that is not finished waits, unless it fills the whole piece
        whole = lines[: lines.rfind(b"\n") + 1] or lines[: len(lines) // LOG_BYTES * LOG_BYTES]
        at += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            say(redact(line))
        if time.monotonic() < due:
            return ""
        due = time.monotonic() + PERIOD
        try:
            return why()
        except Exception as error:  # the server is being restarted: the model goes on
            _warn(error)
            return ""

    return look


def show(summary: NightSummary, results: Path, report_address: str) -> None:
    """The artifacts of a night that was run. ``report_address``: URL at which the report's folder
    is served, '' for a link to the file."""
    try:
        _outcomes(summary.night, results)
        page = Path(summary.report)
        create_link_artifact(
            f"{report_address.rstrip('/')}/{page.name}"
            if report_address
            else page.absolute().as_uri(),
            link_text="Report of this night",
            key="report",
            description=f"report: {(summary.steps or {}).get('report', 'not made')}",
        )
    except Exception as error:  # of the server: the night itself is done
        _warn(error)


def _outcomes(night: str, results: Path) -> None:
    """The rows of night_outcomes, failures first."""
    sql = "FROM night_outcomes WHERE night = ? ORDER BY outcome, model, suite"
    rows = night_files.query(results, sql, [night])
    create_table_artifact(
        json.loads(rows.to_json(orient="records", date_format="iso")),
        key="outcomes",
        description=f"night {night}: {counts(rows['outcome'])}",
    )


def counts(outcomes: Iterable[str]) -> str:
    """'1 failed, 2 published'."""
    kinds = sorted(Counter(outcomes).items())
    return ", ".join(f"{n} {kind}" for kind, n in kinds) or "no model evaluated"


def _warn(error: Exception) -> None:
    get_logger("sdgbias").warning("Prefect's server: %s: %s", type(error).__name__, error)
