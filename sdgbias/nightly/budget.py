"""Hours and GPU hours of a night: what its models have used, and what waits for the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdgbias.nightly import ledger
from sdgbias.nightly.attempt import CANCELLED, OUT_OF_TIME, PUBLISHED
from sdgbias.nightly.plan import Job

_FIRST = "it is among the first of the next night"


@dataclass
class Budget:
    """In seconds, on one clock; limits are infinite where there are none. began: the night; used:
    GPU seconds of models that have ended, in earlier starts of the night, too; running: model ->
    its GPUs, and when it started; blocked: why nothing is started any more, '' while it is."""

    hours: float = math.inf
    gpu_hours: float = math.inf
    began: float = 0.0
    used: float = 0.0
    running: dict[str, tuple[int, float]] = field(default_factory=dict)
    blocked: str = ""

    def gpu_seconds(self, now: float) -> float:
        """Used by now, with the models at work."""
        return self.used + sum(gpus * (now - since) for gpus, since in self.running.values())

    def start(self, model: str, gpus: int, now: float) -> None:
        self.running[model] = gpus, now

    def end(self, model: str, now: float) -> None:
        gpus, since = self.running.pop(model)
        self.used += gpus * (now - since)

    def over(self, gpus: int, now: float) -> str:
        """Why no further model of so many GPUs is started; '' while it is."""
        if self.blocked:
            return f"{self.blocked}; {_FIRST}"
        if now - self.began >= self.hours:
            return f"the night's hours were over; {_FIRST}; more: --hours"
        used = self.gpu_seconds(now)
        if gpus and used >= self.gpu_hours:
            hours = f"{used / 3600:.3g} of {self.gpu_hours / 3600:.3g}"
            return f"the night's GPU hours were over ({hours}); {_FIRST}; more: --gpu-hours"
        return ""

    def seconds(self, model: str, now: float) -> float:
        """For a model at work, if all that are at work use the GPU hours up together."""
        left = self.hours - (now - self.began)
        if not self.running[model][0]:
            return left
        share = (self.gpu_hours - self.gpu_seconds(now)) / sum(n for n, _ in self.running.values())
        return max(1.0, min(left, share))


def stored(results: Path) -> dict[tuple[str, str], str]:
    """(model, suite) -> '62% of its prompts are stored', where the newest night ended before the
    model did."""
    found = {}
    for row in ledger.history(results).drop_duplicates(["model", "suite"]).to_dict("records"):
        if row["kind"] in (OUT_OF_TIME, CANCELLED) and row["planned"]:
            share = row["scored"] / row["planned"]
            found[row["model"], row["suite"]] = f"{share:.0%} of its prompts are stored"
    return found


def waiting(results: Path, jobs: Sequence[Job], gpu_hours: float) -> Mapping[tuple[str, str], str]:
    """(model, suite) -> why it may wait for the next night: the jobs before it use the GPU hours
    up, if they take as long as when they were last published."""
    rows = ledger.history(results)
    took = {
        (row["model"], row["suite"]): row["seconds"] / 3600
        for row in rows[rows["outcome"] == PUBLISHED].iloc[::-1].to_dict("records")
    }
    used, found = 0.0, {}
    for job in (job for job in jobs if gpu_hours and not job.run_id and job.need.gpus):
        if used >= gpu_hours:
            why = f"may wait: those before it took {used:.3g} of {gpu_hours:g} GPU hours"
            found[job.model, job.suite] = why
        used += job.need.gpus * took.get((job.model, job.suite), 0.0)
    return found
