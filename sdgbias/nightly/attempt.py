"""One model on one suite: an attempt in a process of its own, its outcome, and whether another
attempt may help."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sdgbias import progress
from sdgbias.errors import StoreError
from sdgbias.files import json_object, packaged_yaml
from sdgbias.nightly import gpus, process
from sdgbias.nightly.plan import Job

PUBLISHED, UNCHANGED, FAILED, SKIPPED = "published", "unchanged", "failed", "skipped"
CLI = (sys.executable, "-m", "sdgbias.cli")
#: Kind of a model that was making progress when its time ended: it goes on the next night.
OUT_OF_TIME = "OutOfTime"


@dataclass(frozen=True)
class FailureKind:
    """What a night does about a kind of failure (data/failures.yaml)."""

    tries: int = 1
    model: bool = True
    halves: bool = False


#: Seconds before the second, third, ... attempt; the last before each further one. Short: a night
#: that is ended meanwhile waits for them.
WAITS = (10.0, 20.0, 30.0)
FAILURES = {kind: FailureKind(**row) for kind, row in packaged_yaml("failures.yaml").items()}
#: Secrets not needed by a model's process, which may run arbitrary code; those with the team's
#: address are in Job.withheld.
NOT_FOR_MODELS = (
    "WANDB_API_KEY",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_API_DATABASE_CONNECTION_URL",
)
#: Stage -> its first and its newest record, of a model at work; the last key is the newest stage.
Stages = dict[str, tuple[progress.Record, progress.Record]]


def failure(kind: object) -> FailureKind:
    """What to do about a kind of failure."""
    return FAILURES.get(str(kind), FAILURES["other"])


@dataclass(frozen=True)
class JobOutcome:
    """Outcome of one model on one suite in one night: a row of ``night_outcomes``, the file of an
    attempt, and what a flow run returns. outcome: 'published' (a new run), 'unchanged'
    (the earlier run is still valid), 'failed' or 'skipped'. kind: class of the last error, '' if
    none; message: one line. seconds: of all attempts and waits. scored, planned, failed: prompts.
    quarantined_until: ISO date, '' if not quarantined."""

    model: str
    suite: str
    outcome: str
    run_id: str = ""
    attempts: int = 0
    kind: str = ""
    message: str = ""
    seconds: float = 0.0
    scored: int = 0
    planned: int = 0
    failed: int = 0
    night: str = ""
    key: str = ""
    log: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    quarantined_until: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in (PUBLISHED, UNCHANGED)

    @property
    def goes_on(self) -> bool:
        """Whether it is good, or will be after further nights."""
        return self.good or self.kind in (OUT_OF_TIME, process.CANCELLED)

    def row(self) -> dict[str, Any]:
        """Row of the table night_outcomes."""
        return asdict(self)


def outcome_of(job: Job, began: datetime, **known: Any) -> JobOutcome:
    """The outcome of a job: 'failed', at once and without an attempt, but for what is known."""
    log = job.log.relative_to(job.log.parents[3]).as_posix()
    blank = JobOutcome(job.model, job.suite, FAILED, night=job.night, key=job.key, log=log)
    return replace(blank, started_at=began, **{"finished_at": began, **known})


def unchanged(job: Job, now: datetime) -> JobOutcome:
    """'unchanged' for a job with a finished run (Job.run_id), which needs no process."""
    outcome = PUBLISHED if job.run_id in published_tonight(job) else UNCHANGED
    return outcome_of(job, now, outcome=outcome, run_id=job.run_id)


def published_tonight(job: Job) -> set[str]:
    """Runs that attempts of an earlier start of this night published, of which a killed night could
    not learn."""
    outcomes = [json_object(file) for file in _outcome_files(job)]
    return {str(one.get("run_id")) for one in outcomes if one.get("outcome") == PUBLISHED}


def command(job: Job, results: Path, number: int) -> list[str]:
    """The command line of attempt ``number``. Each earlier attempt that ran out of memory halves
    the batch size."""
    kinds = [json_object(outcome_file(job, n)).get("kind") for n in range(1, number)]
    batch = max(1, job.batch_size >> sum(failure(kind).halves for kind in kinds))
    return [
        *(*CLI, "evaluate", job.model, "--entry", str(job.entry)),
        *("--outcome", str(outcome_file(job, number)), "--benchmark", str(job.benchmark)),
        *("--results", str(results), *job.options),
        *(("--batch-size", str(batch)) if batch != job.batch_size else ()),
    ]


def outcome_file(job: Job, number: int) -> Path:
    """File to which attempt ``number`` writes its outcome."""
    return job.log.with_name(f"{job.log.stem}.{number}.json")


def _outcome_files(job: Job) -> list[Path]:
    return list(job.log.parent.glob(f"{job.log.stem}.[0-9]*.json"))


def attempt(
    job: Job,
    results: Path,
    number: int = 1,
    gpu: str | None = None,
    argv: Callable[[Job, Path, int], Sequence[str]] = command,
    look: Callable[[], str] = lambda: "",
) -> JobOutcome:
    """Run one attempt in a process, which is ended with all its children at the job's timeout.
    ``gpu``: the GPUs that the night holds for it (CUDA_VISIBLE_DEVICES); ``look`` is called every
    second, and returns why a person wants it ended ('': to go on). Failures of the model never
    raise."""
    began, stages = datetime.now(UTC), Stages()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    published = published_tonight(job)
    for stale in _outcome_files(job) if number == 1 else [outcome_file(job, number)]:
        stale.unlink(missing_ok=True)

    def look_at_it() -> str:
        for record in progress.records():
            if record.task == job.name:
                first, _ = stages.pop(record.what, (record, record))
                stages[record.what] = (first, record)
        return look()

    withheld = (*NOT_FOR_MODELS, *job.withheld)
    line, environment = argv(job, results, number), _environment(job, gpu)
    with progress.listening():
        end = process.run(line, job.log, job.timeout_s, environment, withheld, look_at_it)
    reported = json_object(outcome_file(job, number))
    facts = _published(reported, published) or _ended(job, end, reported, stages)
    finished = began + timedelta(seconds=end.seconds)
    outcome = outcome_of(
        job, began, attempts=number, seconds=round(end.seconds, 3), finished_at=finished, **facts
    )
    with suppress(StoreError):  # what its process wrote has the run as well
        process.write_outcome(outcome_file(job, number), outcome.row())
    return outcome


def _environment(job: Job, gpu: str | None) -> dict[str, str]:
    """What a model's process has in its environment, beside what this process has."""
    environment = {"SDGBIAS_REGISTRY": str(job.root), progress.TASK: job.name}
    if gpu is not None:
        environment |= {"CUDA_VISIBLE_DEVICES": gpu, gpus.HELD: "1"}
    if job.threads:  # numba takes every core otherwise, and gives them to torch, too
        limits = {"OMP_NUM_THREADS", "NUMBA_NUM_THREADS"} - set(os.environ)
        environment |= dict.fromkeys(limits, str(job.threads))
    return environment


def _published(reported: Mapping[str, Any], published: set[str]) -> dict[str, Any]:
    """What a process reported that has a run, {} where it has none. published: the runs that this
    night published before."""
    if not reported.get("run_id"):
        return {}
    run_id = str(reported["run_id"])
    counts = {name: int(reported.get(name, 0)) for name in ("scored", "planned", "failed")}
    old = reported.get("outcome") == UNCHANGED and run_id not in published
    return {"outcome": UNCHANGED if old else PUBLISHED, "run_id": run_id, **counts}


def _ended(
    job: Job, end: process.ProcessEnd, reported: Mapping[str, Any], stages: Stages
) -> dict[str, Any]:
    """Why there is no run: a person ended it, its process says why, or its end does; and how far a
    model came whose process was ended."""
    counted = [(first, last) for first, last in stages.values() if last.total > 1]
    first, last = counted[-1] if counted else (progress.Record(""), progress.Record(""))
    came = {"scored": last.done, "planned": last.total} if counted else {}
    if end.kind == process.CANCELLED:
        kept = f"; {last.done:,} of {last.total:,} prompts are kept ({last.what})"
        message = end.message + kept * bool(counted)
        return {"outcome": SKIPPED, "kind": end.kind, "message": message, **came}
    if reported.get("kind"):
        message = process.redact(str(reported.get("message", "")))
        return {"kind": str(reported["kind"]), "message": message}
    if not end.kind:
        message = f"ended with exit code {end.code} and reported no outcome"
        return {"kind": process.UNEXPECTED, "message": message}
    if end.kind != process.TIMED_OUT:
        return {"kind": end.kind, "message": end.message}
    if last.done <= first.done:
        onward = "finished prompts are kept, the next try goes on from them; more time: --timeout"
        return {"kind": end.kind, "message": f"{end.message}; {onward}"}
    nights = (last.total - last.done) / (last.done - first.done)
    message = (
        f"{last.done / last.total:.0%} of prompts ({last.what}), about {nights:.1f} nights left at"
        f" {job.timeout_s:.0f} s each; goes on from there the next night; more time: --timeout"
    )
    return {"kind": OUT_OF_TIME, "message": message, **came}


def worth_another_try(outcome: JobOutcome) -> bool:
    """Whether it failed, and attempts are left for its kind of failure."""
    return outcome.outcome == FAILED and outcome.attempts < failure(outcome.kind).tries


def keep_trying(
    job: Job,
    results: Path,
    device: str | None = None,
    sleep: Callable[[float], None] = process.pause,
    argv: Callable[[Job, Path, int], Sequence[str]] = command,
) -> JobOutcome:
    """Make attempts on this machine until one succeeds or none is left for the last kind of
    failure; with Prefect, its retries do this. The outcome of the last one."""
    outcome = attempt(job, results, 1, device, argv)
    while worth_another_try(outcome):
        sleep(WAITS[min(outcome.attempts, len(WAITS)) - 1])
        outcome = attempt(job, results, outcome.attempts + 1, device, argv)
    return outcome
