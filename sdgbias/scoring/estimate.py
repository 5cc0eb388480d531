"""How many GPU hours scoring takes, before it is done: from this model's measured runs, else from a
throughput model of the hardware; and what a run took against what was estimated.

Measured: seconds per prompt of each task (table timings), times the prompts that are planned; the
interval is the range over the runs, widened by a fifth on both sides, with a single run by a half.
Throughput: 2 FLOPs per parameter and prefilled token at a quarter of the GPU's peak (low and high:
at a half and at a twelfth), and one pass over the weights per step of 32 answers for half of the
tokens that answers may have. It knows neither pictures waiting for the processor nor loading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sdgbias import files, store, templates
from sdgbias.errors import UsageError, one_of
from sdgbias.registry import machine
from sdgbias.scoring.cost import Cost
from sdgbias.types import ModelSpec

#: Share of a GPU's peak that prefilling reaches: expected, at best, at worst.
SHARE, BEST, WORST = 0.25, 0.5, 1 / 12
#: Answers decoded together; what a single run and several runs are widened by.
TOGETHER, ONE_RUN, RUNS = 32, 1.5, 1.2
#: Distinct prompts of the paper's full benchmark, and planned tokens of each with pictures of 576
#: tokens (docs/reference/benchmarks.md).
PROMPTS, PLANNED = 504_404, 157


@dataclass(frozen=True)
class GpuHours:
    """GPU hours: expected, at least, at most. devices, gib: GPUs of one engine, and memory needed
    on each (0: not known); basis: what it is judged by, '' where nothing is known and the hours are
    0."""

    model: str
    hours: float
    low: float
    high: float
    devices: int
    gib: float
    basis: str

    def words(self) -> str:
        if not self.basis:
            return "GPU hours: not known: no measured run, and the entry names no params_b"
        return f"GPU hours: {_hours(self.hours)} ({_range(self)}), judged by {self.basis}"

    def money(self, rate: float) -> str:
        """At so much an hour of a GPU."""
        return f"{self.hours * rate:,.2f} ({self.low * rate:,.2f} to {self.high * rate:,.2f})"


@dataclass(frozen=True)
class TimedRun:
    """A finished run: seconds of its engines per task, and the prompts that they went to."""

    run_id: str
    seconds: Mapping[str, float]
    prompts: Mapping[str, int]


def estimate(spec: ModelSpec, cost: Cost, results: Path | None, gpu: str = "") -> GpuHours:
    """For what ``cost`` counted. gpu: a kind of gpus.yaml, '' for the entry's, else h100. Raises
    UsageError for an unknown kind."""
    known, kind = kinds(), _kind(gpu or str(spec.options.get("gpu", "")))
    if gpu and not kind:
        raise UsageError(f"--gpu: {one_of('kind', gpu, known)}")
    devices = max(1, machine.gpus_of(spec))
    weights = machine.weights_gib((spec.params_b or 0) * 1e9, spec.dtype)
    gib = machine.need(weights, devices) if weights else 0.0
    runs = measured(results, spec.name)
    found = _by_runs(runs, cost.asked, devices)
    if found:
        words = f"{len(runs)} measured run{'s' * (len(runs) > 1)}"
        return GpuHours(spec.name, *found, devices, gib, words)
    if not spec.params_b:
        return GpuHours(spec.name, 0.0, 0.0, 0.0, devices, gib, "")
    kind = kind or "h100"
    tokens = cost.tokens_planned + cost.tokens_extra
    hours = _by_hardware(spec, tokens, cost.answer_tokens, known[kind])
    here = "" if machine.this().gpus else ", and no GPU is on this machine"
    words = f"the published figures of one {kind}: this model has no measured run{here}"
    return GpuHours(spec.name, *hours, devices, gib, words)


@cache
def kinds() -> dict[str, dict[str, float]]:
    """The kinds of GPUs, with their figures."""
    found: dict[str, dict[str, float]] = files.packaged_yaml("gpus.yaml")
    return found


def _kind(named: str) -> str:
    """The kind that a name such as h100x4 begins with, '' for an unknown one."""
    return next((k for k in kinds() if named.lower().split("-")[0].split("x")[0] == k), "")


def at_a_glance(spec: ModelSpec) -> str:
    """GPU hours of the paper's full benchmark, whose tokens are not counted for this; '' for a
    model of unknown size."""
    if not spec.params_b:
        return ""
    hours, low, high = _of_prompts(spec, PROMPTS, "h100")
    return (
        f"about {_hours(hours)} ({_hours(low)} to {_hours(high)}) hours of one h100 for the full"
        " benchmark, an estimate"
    )


def _of_prompts(spec: ModelSpec, prompts: int, kind: str) -> tuple[float, float, float]:
    """For prompts whose tokens were not counted."""
    return _by_hardware(spec, prompts * PLANNED, prompts * 8, kinds()[kind])


def _by_hardware(
    spec: ModelSpec, tokens: int, answer_tokens: int, gpu: Mapping[str, float]
) -> tuple[float, float, float]:
    params = (spec.params_b or 0) * 1e9
    prefill = 2 * params * tokens / (gpu["tflops"] * 1e12)
    steps = answer_tokens / 2 / TOGETHER
    decode = steps * params * machine.BYTES[spec.dtype] / (gpu["bandwidth"] * 1e9)
    hours = [(prefill / share + decode / (share / SHARE)) / 3600 for share in (SHARE, BEST, WORST)]
    return hours[0], hours[1], hours[2]


# ----------------------------------------------------------------------
# measured runs


def measured(results: Path | None, model: str, but: str = "") -> list[TimedRun]:
    """The model's runs whose prompts were all timed, the newest first; ``but``: left out."""
    if results is None or not results.is_file():
        return []
    rows = store.query(
        results,
        "SELECT run_id, task, sum(seconds_measured) AS seconds,"
        " sum(prompts) FILTER (phase = 'score') AS prompts, sum(untimed) AS untimed"
        " FROM timings JOIN runs USING (run_id) WHERE model = ? AND run_id != ?"
        " GROUP BY run_id, task, finished_at ORDER BY finished_at DESC, run_id, task",
        [model, but],
    )
    found = []
    for run_id, of_run in rows.groupby("run_id", sort=False):
        timed = of_run[(of_run["prompts"] > 0) & (of_run["seconds"] > 0)]
        if len(timed) and not of_run["untimed"].any():
            seconds = dict(zip(timed["task"], timed["seconds"].astype(float), strict=True))
            prompts = dict(zip(timed["task"], timed["prompts"].astype(int), strict=True))
            found.append(TimedRun(str(run_id), seconds, prompts))
    return found


def _by_runs(
    runs: Sequence[TimedRun], asked: Mapping[str, int], devices: int
) -> tuple[float, float, float] | None:
    """GPU hours for so many prompts of each task at the pace of each run; None without a run that
    has them all."""
    hours = [
        devices * sum(n * run.seconds[task] / run.prompts[task] for task, n in asked.items()) / 3600
        for run in runs
        if set(asked) <= set(run.seconds)
    ]
    if not hours or not asked:
        return None
    wide = ONE_RUN if len(hours) == 1 else RUNS
    return sum(hours) / len(hours), min(hours) / wide, max(hours) * wide


def compared(results: Path, run_id: str, spec: ModelSpec) -> str:
    """What a run took, against what the runs before it let expect, or for the first one the
    throughput of the kind of GPU that the entry names; '' for a run without times."""
    mine = next((run for run in measured(results, spec.name) if run.run_id == run_id), None)
    if mine is None:
        return ""
    devices = max(1, machine.gpus_of(spec))
    took = devices * sum(mine.seconds.values()) / 3600
    before = measured(results, spec.name, but=run_id)
    found = _by_runs(before, mine.prompts, devices)
    kind = _kind(str(spec.options.get("gpu", "")))
    basis = f"{len(before)} earlier run{'s' * (len(before) > 1)} let"
    if found is None and kind and spec.params_b:
        found = _of_prompts(spec, sum(mine.prompts.values()), kind)
        basis = f"the throughput of one {kind} (no earlier run) lets"
    if found is None:
        return f"took {_hours(took)} hours of engines; nothing to compare with: the first timed run"
    told = GpuHours(spec.name, *found, devices, 0.0, basis)
    where = "within" if told.low <= took <= told.high else "outside"
    return f"took {_hours(took)} hours of engines, {where} the {_range(told)} that {basis} expect"


def _hours(value: float) -> str:
    return f"{value:.3g}" if value == 0 or value >= 0.001 else "<0.001"


def _range(one: GpuHours) -> str:
    return f"{_hours(one.low)} to {_hours(one.high)}"


# ----------------------------------------------------------------------
# the command's answer


def lines(costs: Sequence[tuple[Cost, GpuHours]], rate: float | None) -> list[str]:
    """One block per model, and a sum where there are several."""
    total = None
    if len(costs) > 1:
        hours, low, high = (
            sum(getattr(one, n) for _, one in costs) for n in ("hours", "low", "high")
        )
        total = GpuHours("all", hours, low, high, 0, 0.0, "the sum of the above")
    return templates.lines("plan", costs=costs, rate=rate, total=total)


def as_json(costs: Sequence[tuple[Cost, GpuHours]], rate: float | None) -> Any:
    """The same as a value: an object for one model, a list for several."""
    from dataclasses import asdict

    told = [
        {
            **json.loads(cost.json()),
            "estimate": {**asdict(one), "money": None if rate is None else one.hours * rate},
        }
        for cost, one in costs
    ]
    return told[0] if len(told) == 1 else told
