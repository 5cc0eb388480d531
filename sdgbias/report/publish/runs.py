"""What the formats share: a file to write, a run, its numbers, and why its answers stay where they
are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdgbias import __version__, store, suites
from sdgbias.errors import UsageError
from sdgbias.files import packaged_sql
from sdgbias.vocabulary import metric_word

if TYPE_CHECKING:
    from sdgbias.report.publish.dataset import Benchmark

LEVEL = 0.95
Chunks = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class PublishedFile:
    """``path``: relative, with '/'. ``estimate``: bytes, for files that take long to make; 0 where
    a dry run makes the file to know its size."""

    path: str
    chunks: Chunks
    estimate: int = 0

    def size(self) -> int:
        return self.estimate or sum(map(len, self.chunks()))


@dataclass(frozen=True)
class Number:
    """One value of a run with its n and 95 % interval (None: too few clusters for one, or no
    variation between them), a row of query ``numbers`` of publish.sql."""

    task: str
    test: str
    method: str
    metric: str
    part: str
    value: float
    n: int
    low: float | None
    high: float | None

    @property
    def name(self) -> str:
        """The metric, with its groups."""
        return f"{self.metric} {self.part}".strip()

    @property
    def better(self) -> int:
        """1: higher is better; -1: lower; 0: neither, such as the share of optimistic answers."""
        widest = self.metric == "disparity" and "max-min" in self.part
        return -1 if widest else metric_word(self.metric).better

    @property
    def words(self) -> str:
        if self.low is None or self.high is None:
            return f"n = {self.n}, no interval"
        # a bound of 1e-17 is 0 that was not computed exactly
        low, high = round(self.low, 9), round(self.high, 9)
        return f"n = {self.n}, 95 % CI {low:.4g} to {high:.4g}"


@dataclass(frozen=True)
class PublishedRun:
    """A run's row and numbers. ``benchmark``: what its answers are published with, None where they
    are not; ``no_answers``: why."""

    results: Path
    record: dict[str, Any]
    numbers: tuple[Number, ...]
    benchmark: Benchmark | None
    no_answers: str

    @property
    def run_id(self) -> str:
        return str(self.record["run_id"])

    @property
    def model(self) -> str:
        return str(self.record["model"])

    @property
    def spec(self) -> dict[str, Any]:
        """The registry entry as it was when the run was made; {} for runs of early versions."""
        spec: dict[str, Any] = self.record["config"].get("spec") or {}
        return spec

    @property
    def model_id(self) -> str:
        """OWNER/NAME on the hub; sdgbias/NAME for embedded models and local folders, whose paths
        stay on this machine."""
        repo = str(self.spec.get("repo") or "")
        return repo if repo.count("/") == 1 and ":" not in repo else f"sdgbias/{self.model}"

    @property
    def finished(self) -> datetime:
        finished: datetime = self.record["finished_at"]
        return finished.replace(tzinfo=UTC)

    @property
    def version(self) -> str:
        return str(self.record["config"].get("sdgbias") or __version__)

    @property
    def settings(self) -> dict[str, str]:
        """Facts for the formats' free fields: no path of this machine is among them."""
        columns = (
            *("run_id", "suite", "benchmark_id", "provenance", "licence", "numerics"),
            *("backend", "revision", "n_failed"),
        )
        facts = {name: self.record[name] for name in columns} | {
            "model_licence": self.spec.get("licence"),
            "split": "test",
            "interval": f"95 %, clustered by {suites.named(self.record['suite']).cluster_unit}",
        }
        return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def load(results: Path, run_id: str, folder: Path, benchmark: Benchmark | None) -> PublishedRun:
    """Read a run. ``benchmark``: what is in the ``folder`` that the command names, if it can be
    published. Raises UsageError for an unknown run, StoreError."""
    sql = "FROM runs WHERE run_id = ? AND finished_at IS NOT NULL"
    records = store.arrow(results, sql, [run_id]).to_pylist()
    if not records:
        raise UsageError(
            f"no finished run {run_id!r} in {results}; sdgbias results --sql 'SELECT run_id, model"
            " FROM runs' lists them"
        )
    record = records[0] | {"config": json.loads(records[0]["config"] or "{}")}
    suite = suites.named(str(record["suite"]))
    query = packaged_sql("publish.sql")["numbers"]
    rows: Any
    rows = store.arrow(results, query, {"run": run_id, "people": suite.private}).to_pylist()
    reason = suite.unpublished
    if benchmark is None:
        reason = reason or "no benchmark folder, which holds the prompts: name it with --benchmark"
    elif record["benchmark_id"] != benchmark.id:
        reason = reason or (
            f"asked on benchmark {record['benchmark_id']}, and {folder} is {benchmark.id}: name"
            " the folder it was asked on with --benchmark"
        )
    numbers = tuple(
        Number(**{k: None if v != v else v for k, v in row.items()})  # type: ignore[arg-type]
        for row in rows
    )
    return PublishedRun(results, record, numbers, None if reason else benchmark, reason)
