"""One model on one suite: run it in a separate process, classify the outcome, decide on retries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sdgbias import errors, exits, progress
from sdgbias.files import json_object, packaged_yaml
from sdgbias.nightly import gpus, process
from sdgbias.nightly.plan import BROKEN, WEBHOOK, Job, Skipped

PUBLISHED, UNCHANGED, FAILED, SKIPPED = "published", "unchanged", "failed", "skipped"
CLI = (sys.executable, "-m", "sdgbias.cli")
#: Kind of a model that was making progress when its time ended: it goes on the next night.
OUT_OF_TIME = "OutOfTime"
#: Kind of a model that a person cancelled or paused: skipped tonight, finished prompts are kept.
CANCELLED = "Cancelled"


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
#: Secrets not needed by a model's process, which may run arbitrary code. The webhook's variable, if
#: renamed by the team, is in Job.withheld.
NOT_FOR_MODELS = (
    "WANDB_API_KEY",
    WEBHOOK,
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_API_DATABASE_CONNECTION_URL",
)
_BY_CODE = {
    error.exit_code: error.__name__
    for error in errors.SdgbiasError.__subclasses__()
    if error.exit_code != errors.SdgbiasError.exit_code
}


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
        return self.good or self.kind in (OUT_OF_TIME, CANCELLED)

    def row(self) -> dict[str, Any]:
        """Row of the table night_outcomes."""
        return asdict(self)


def outcome_of(job: Job, began: datetime, **known: Any) -> JobOutcome:
    """The outcome of a job: 'failed', at once and without an attempt, but for what is known."""
    log = job.log.relative_to(job.log.parents[3]).as_posix()
    blank = JobOutcome(job.model, job.suite, FAILED, night=job.night, key=job.key, log=log)
    return replace(blank, started_at=began, **{"finished_at": began, **known})


def unchanged(job: Job, now: datetime) -> JobOutcome | None:
    """'unchanged' for a job with a finished run (Job.run_id), which needs no process; else None."""
    if not job.run_id:
        return None
    outcome = PUBLISHED if job.run_id in published_tonight(job) else UNCHANGED
    return outcome_of(job, now, outcome=outcome, run_id=job.run_id)


def published_tonight(job: Job) -> set[str]:
    """Runs that attempts of an earlier start of this night published, of which a killed night could
    not learn."""
    outcomes = [json_object(file) for file in _outcome_files(job)]
    return {str(one.get("run_id")) for one in outcomes if one.get("outcome") == PUBLISHED}


def unplanned(night: str, skipped: Skipped, now: datetime) -> JobOutcome:
    """'skipped' for a model and suite that have no job tonight; 'failed' for an unreadable registry
    entry, which is not quarantined: there is no valid entry to write that into."""
    broken = skipped.state == BROKEN
    return JobOutcome(
        skipped.model,
        skipped.suite,
        FAILED if broken else SKIPPED,
        kind="RegistryError" if broken else "",
        message=process.redact(skipped.reason),
        night=night,
        started_at=now,
        finished_at=now,
    )


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
    began = datetime.now(UTC)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    published = published_tonight(job)
    for stale in _outcome_files(job) if number == 1 else [outcome_file(job, number)]:
        stale.unlink(missing_ok=True)
    environment = {
        "SDGBIAS_REGISTRY": str(job.root),
        progress.TASK: job.name,
        **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu, gpus.HELD: "1"}),
    }
    if job.threads:  # numba takes every core otherwise, and gives them to torch, too
        limits = {"OMP_NUM_THREADS", "NUMBA_NUM_THREADS"} - set(os.environ)
        environment |= dict.fromkeys(limits, str(job.threads))
    stages: dict[str, tuple[progress.Record, progress.Record]] = {}

    def look_at_it() -> str:
        for record in progress.records():
            if record.task == job.name:
                first, _ = stages.pop(record.what, (record, record))
                stages[record.what] = (first, record)  # the last key is the newest stage
        return look()

    with progress.listening():
        ended = process.run(
            argv(job, results, number),
            job.log,
            job.timeout_s,
            environment,
            (*NOT_FOR_MODELS, *job.withheld),
            look_at_it,
        )
    facts = _classified(job, ended, json_object(outcome_file(job, number)))
    facts |= _how_far(job, facts, stages)
    if facts.get("run_id") in published:
        facts["outcome"] = PUBLISHED
    outcome = outcome_of(
        job,
        began,
        attempts=number,
        seconds=round(ended.seconds, 3),
        finished_at=began + timedelta(seconds=ended.seconds),
        **facts,
    )
    with suppress(errors.StoreError):  # what its process wrote has the run as well
        process.write_outcome(outcome_file(job, number), outcome.row())
    return outcome


def _how_far(
    job: Job,
    ended: Mapping[str, Any],
    stages: Mapping[str, tuple[progress.Record, progress.Record]],
) -> dict[str, Any]:
    """What is known of a model that was ended: how far it came, and of one whose time ended while
    it made progress how many nights like this one are left."""
    counted = [(first, last) for first, last in stages.values() if last.total > 1]
    if not counted or ended.get("kind") not in ("TimedOut", CANCELLED):
        return {}
    first, last = counted[-1]
    facts = {"scored": last.done, "planned": last.total}
    if ended["kind"] == CANCELLED:
        kept = f"{last.done:,} of {last.total:,} prompts are kept ({last.what})"
        return {**facts, "message": f"{ended['message']}; {kept}"}
    if last.done <= first.done:
        return {}
    nights = (last.total - last.done) / (last.done - first.done)
    message = (
        f"{last.done / last.total:.0%} of prompts ({last.what}), about {nights:.1f} nights left at"
        f" {job.timeout_s:.0f} s each; goes on from there the next night; more time: --timeout"
    )
    return {**facts, "kind": OUT_OF_TIME, "message": message}


def worth_another_try(outcome: JobOutcome) -> bool:
    """Whether it failed, and attempts are left for its kind of failure."""
    return outcome.outcome == FAILED and outcome.attempts < failure(outcome.kind).tries


def since(outcome: JobOutcome, started: datetime) -> JobOutcome:
    """``outcome`` with the start and the seconds of all its attempts and waits."""
    seconds = (datetime.now(UTC) - started).total_seconds()
    return replace(outcome, started_at=started, seconds=round(seconds, 3))


def keep_trying(
    job: Job,
    results: Path,
    device: str | None = None,
    sleep: Callable[[float], None] = process.pause,
    argv: Callable[[Job, Path, int], Sequence[str]] = command,
) -> JobOutcome:
    """Make attempts on this machine until one succeeds or none is left for the last kind of
    failure; with Prefect, its retries do this."""
    started = datetime.now(UTC)
    outcome = attempt(job, results, 1, device, argv)
    while worth_another_try(outcome):
        sleep(WAITS[min(outcome.attempts, len(WAITS)) - 1])
        outcome = attempt(job, results, outcome.attempts + 1, device, argv)
    return since(outcome, started)


def crashed(job: Job, error: BaseException, began: datetime) -> JobOutcome:
    """The outcome of a job whose supervising code raised: a failure of that model only; the night
    continues."""
    name = type(error).__name__
    kind = name if isinstance(error, errors.SdgbiasError) else "Unexpected"
    message = process.redact(f"{name}: {error}")
    return since(
        outcome_of(
            job, began, attempts=1, kind=kind, message=message, finished_at=datetime.now(UTC)
        ),
        began,
    )


def _classified(job: Job, ended: process.ProcessEnd, reported: dict[str, Any]) -> dict[str, Any]:
    """What an attempt came to: by what its process reported, then the timeout, the signal, the exit
    code and the last error in the log."""
    if reported.get("run_id"):
        counts = {name: int(reported.get(name, 0)) for name in ("scored", "planned", "failed")}
        outcome = UNCHANGED if reported.get("outcome") == UNCHANGED else PUBLISHED
        return {"outcome": outcome, "run_id": str(reported["run_id"]), **counts}
    if ended.ended:
        return {"outcome": SKIPPED, "kind": CANCELLED, "message": ended.ended}
    words = process.last_error(job.log)
    if reported.get("kind"):
        kind, message = str(reported["kind"]), str(reported.get("message", ""))
    elif ended.timed_out:
        kind = "TimedOut"
        message = (
            f"not done within {job.timeout_s:.0f} s; finished prompts are kept, the next try goes"
            " on from them; more time: --timeout"
        )
    elif ended.code < 0:
        name = exits.died_of(ended.code)
        perhaps = " (perhaps for want of memory)" if name == "SIGKILL" else ""
        last = f"; its last words: {words}" if words else ""
        kind, message = "Killed", f"ended by {name}{perhaps}{last}"
    else:
        kind = _BY_CODE.get(ended.code, "Unexpected")
        message = words or f"ended with exit code {ended.code} and reported no outcome"
    return {"kind": kind, "message": process.redact(message)}
