"""Prefect artifacts of a night: progress, tables of outcomes and verdicts, links to the report and
to W&B."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging import get_logger
from prefect.logging.handlers import PrefectConsoleHandler

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Job, Night
from sdgbias.nightly.process import redact
from sdgbias.nightly.records import StepResult
from sdgbias.progress import Record, text

Shown = TypeVar("Shown")
PERIOD = 10.0  # seconds between two updates of a model's progress
LOG_BYTES = 65_536  # of a model's log that are passed on at a time
VERDICTS = """SELECT model, suite, verdict, rule, task, test, method, side, metric, "before",
              "value", change, ci_low, ci_high, n, mde, quarantines, required, note
              FROM verdicts WHERE night = ? ORDER BY CASE verdict WHEN 'BREACH' THEN 0 WHEN
              'MISSING' THEN 1 WHEN 'INSUFFICIENT_EVIDENCE'
              THEN 2 ELSE 3 END, model, suite, rule LIMIT 500"""


def shown(make: Callable[..., Shown], *what: object) -> Shown | None:
    """Call Prefect's server; a failure (e.g. it is being restarted) is logged, and the night
    continues."""
    try:
        return make(*what)
    except Exception as error:
        get_logger("sdgbias").warning("Prefect's server: %s: %s", type(error).__name__, error)
        return None


def outlive_the_worker() -> None:
    """Go on when the worker that reads this process's output is killed: on a closed pipe the
    console of Prefect's log would end the process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            console = handler.console
            console.on_broken_pipe = partial(setattr, console, "quiet", True)


def progress(night: Night) -> UUID:
    """Create the progress bar of a night, at 0 %."""
    return UUID(
        str(
            create_progress_artifact(
                0.0, key="progress", description=f"night {night.night}: models done"
            )
        )
    )


def advance(bar: Sequence[UUID], done: int, total: int) -> None:
    """Move the progress bar of a night, if it could be created."""
    for one in bar:
        update_progress_artifact(one, 100.0 * done / max(1, total))


def follow(job: Job, say: Callable[[str], None]) -> Callable[[Record | None], None]:
    """A callback for the time that a model is at work: it passes new lines of the model's log on to
    ``say`` (the log of its Prefect run), without secrets, and shows its progress, rate and time
    left as an artifact."""
    at = job.log.stat().st_size if job.log.exists() else 0
    bar: list[UUID | None] = []
    due = 0.0
    key = "model-" + re.sub("[^a-z0-9]+", "-", job.name.lower()).strip("-")

    def look(record: Record | None) -> None:
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
        if record is None or record.total <= 1 or time.monotonic() < due:
            return
        due = time.monotonic() + PERIOD
        share, words = 100.0 * record.done / record.total, text(record)
        if bar:
            shown(lambda: bar[0] and update_progress_artifact(bar[0], share, words))
        else:
            made = shown(create_progress_artifact, share, key, words)
            bar.append(UUID(str(made)) if made else None)

    return look


def outcomes(night: Night, found: Sequence[JobOutcome]) -> None:
    """One row per model and suite, including the skipped ones."""
    rows: list[dict[str, object]] = [
        {
            "model": o.model,
            "suite": o.suite,
            "outcome": o.outcome,
            "tries": o.attempts,
            "seconds": round(o.seconds, 1),
            "scored": o.scored,
            "failed prompts": o.failed,
            "why": f"{o.kind}: {o.message}" if o.kind else "",
            "quarantined until": o.quarantined_until,
            "run": o.run_id,
            "log": o.log,
        }
        for o in sorted(found, key=lambda o: (o.good, o.model, o.suite))
    ]
    rows += [
        {"model": s.model, "suite": s.suite, "outcome": "skipped", "why": s.reason}
        for s in night.skipped
    ]
    create_table_artifact(
        rows,
        key="outcomes",
        description=f"night {night.night}: {counts(found)}, {len(night.skipped)} skipped",
    )


def counts(found: Sequence[JobOutcome]) -> str:
    """'2 published, 1 failed'."""
    kinds = sorted(Counter(o.outcome for o in found).items())
    return ", ".join(f"{n} {kind}" for kind, n in kinds) or "no model evaluated"


def verdicts(results: Path, night: str) -> None:
    """Table of the regression check's verdicts, breaches first. If the results file can't be read
    now, the table holds the error; the report still shows the verdicts."""
    try:
        rows = store.query(results, VERDICTS, [night])
    except StoreError as error:
        create_table_artifact([{"verdicts": str(error)}], key="verdicts")
        return
    shown = rows.astype(object).where(rows.notna(), None).to_dict("records")
    by_kind = (
        ", ".join(f"{n} {verdict}" for verdict, n in rows["verdict"].value_counts().items())
        or "nothing judged"
    )
    create_table_artifact(
        [{str(k): v for k, v in row.items()} for row in shown],
        key="verdicts",
        description=f"night {night}: {by_kind}",
    )


def links(report: Path, results: Path, address: str, steps: Mapping[str, StepResult]) -> None:
    """Links to the report and to W&B. ``report``: its first page; ``address``: URL at which its
    folder is served, '' for file links. W&B: the project's page if WANDB_ENTITY is set, else the
    folder of the offline runs."""
    page = f"{address.rstrip('/')}/{report.name}" if address else report.resolve().as_uri()
    create_link_artifact(
        page,
        link_text="Report of this night",
        key="report",
        description=f"report: {steps.get('report', 'not made')}",
    )
    entity, project = os.environ.get("WANDB_ENTITY"), os.environ.get("WANDB_PROJECT") or "sdgbias"
    server = os.environ.get("WANDB_BASE_URL", "https://wandb.ai").rstrip("/")
    runs = (
        f"{server}/{entity}/{project}" if entity else (results.parent / "wandb").resolve().as_uri()
    )
    said = f"W&B: {steps.get('wandb', 'not made')}; offline where no WANDB_API_KEY is set"
    create_link_artifact(runs, link_text="W&B runs", key="wandb", description=said)
