"""What the formats share: a run with its numbers, and its answers question by question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from sdgbias import __version__, store, suites
from sdgbias.errors import UsageError
from sdgbias.report import labels

#: The methods whose answers are exported one by one; numbers are exported for all methods.
ANSWERS = ("full", "full_generated", "cade")
LEVEL = 0.95
#: Indicator of a number about people -> the classes it pools.
_CLASSES = {"all": "13 classes", "all-52": "52 classes"}


@dataclass(frozen=True)
class Number:
    """One value of a run with its n and 95 % interval (None: too few clusters for one, or no
    variation between them). ``part``: in the suite on people the groups compared and the classes
    pooled, '' elsewhere."""

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
        return -1 if widest else labels.BETTER.get(self.metric, 0)

    @property
    def words(self) -> str:
        if self.low is None or self.high is None:
            return f"n = {self.n}, no interval"
        # a bound of 1e-17 is 0 that was not computed exactly
        low, high = round(self.low, 9), round(self.high, 9)
        return f"n = {self.n}, 95 % CI {low:.4g} to {high:.4g}"


@dataclass(frozen=True)
class PublishedRun:
    """A run's row and numbers. ``why_no_answers``: why its answers are not exported one by one; ''
    where they are. ``withheld``: ids of multiple-choice questions whose gold value may not be
    passed on."""

    results: Path
    benchmark: Path | None
    record: dict[str, Any]
    numbers: tuple[Number, ...]
    why_no_answers: str = ""
    withheld: tuple[int, ...] = field(default=(), repr=False)
    #: (task, test) -> answers that `answers` gives.
    answered: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return str(self.record["run_id"])

    @property
    def model(self) -> str:
        return str(self.record["model"])

    @property
    def spec(self) -> dict[str, Any]:
        """The registry entry as it was when the run was made; {} for runs of early versions."""
        found: dict[str, Any] = self.record["config"].get("spec") or {}
        return found

    @property
    def model_id(self) -> str:
        """OWNER/NAME on the hub; sdgbias/NAME for embedded models and local folders, whose paths
        stay on this machine."""
        repo = str(self.spec.get("repo") or "")
        return repo if repo.count("/") == 1 and ":" not in repo else f"sdgbias/{self.model}"

    @property
    def finished(self) -> datetime:
        when: datetime = self.record["finished_at"].to_pydatetime()
        return when.replace(tzinfo=UTC)

    @property
    def version(self) -> str:
        return str(self.record["config"].get("sdgbias") or __version__)

    @property
    def tests(self) -> list[tuple[str, str]]:
        """(task, test) of the numbers, the pooled ones ('all') included."""
        return list(dict.fromkeys((n.task, n.test) for n in self.numbers))

    @property
    def settings(self) -> dict[str, str]:
        """Facts for the formats' free fields: no path of this machine is among them."""
        named = ("run_id", "suite", "benchmark_id", "provenance", "licence", "numerics")
        more = {
            "model_licence": self.spec.get("licence"),
            "backend": self.record["backend"],
            "revision": self.record["revision"],
            "n_failed": self.record["n_failed"],
            "split": "test",
            "interval": f"95 %, clustered by {suites.named(self.record['suite']).cluster_unit}",
        }
        found = {name: self.record[name] for name in named} | more
        return {name: str(value) for name, value in found.items() if value not in (None, "")}

    def of(self, task: str, test: str) -> list[Number]:
        return [n for n in self.numbers if (n.task, n.test) == (task, test)]


def load(
    results: Path, run_id: str, benchmark: Path | None, benchmark_id: str, withheld: tuple[int, ...]
) -> PublishedRun:
    """Read a run. ``benchmark``: the folder that its prompts are read from, with its id, or None.
    Raises UsageError for an unknown run, StoreError."""
    found = store.query(results, "SELECT * FROM runs WHERE run_id = ?", [run_id])
    if not len(found) or found["finished_at"].isna().all():
        raise UsageError(
            f"no finished run {run_id!r} in {results}; sdgbias results --sql 'SELECT run_id, model"
            " FROM runs' lists them"
        )
    record = {str(name): value for name, value in found.iloc[0].items()}
    record["config"] = json.loads(record["config"] or "{}")
    suite = suites.named(str(record["suite"]))
    rows = store.query(
        results,
        """SELECT task, test, method, metric, pillar, indicator, "value", n, ci_low, ci_high
           FROM metric_rows WHERE run_id = $run AND "value" IS NOT NULL AND NOT isnan("value")
           AND indicator IN ('all', 'all-52') AND (pillar = 'all' OR $people) ORDER BY ALL""",
        {"run": run_id, "people": suite.private},
    )
    numbers = tuple(_number(row, suite.private) for row in rows.to_dict("records"))
    why = ""
    if suite.private:
        why = "answers about people: nobody in the pictures agreed to be passed on"
    elif suite.custom:
        why = "answers to your own questions: their terms are yours"
    elif benchmark is None:
        why = "no benchmark folder, which holds the prompts: name it with --benchmark"
    elif record["benchmark_id"] != benchmark_id:
        why = (
            f"asked on benchmark {record['benchmark_id']}, and {benchmark} is {benchmark_id}: name"
            " the folder it was asked on with --benchmark"
        )
    run = PublishedRun(results, benchmark, record, numbers, why, withheld)
    if why:
        return run
    counted = _ask(run, f"SELECT p.task, p.test, count(*) AS n {_ANSWERED} GROUP BY ALL")
    found_answers = {(r["task"], r["test"]): r["n"] for r in counted.to_pylist()}
    return replace(run, answered=found_answers)


def _number(row: Mapping[Any, Any], people: bool) -> Number:
    classes = (_CLASSES[row["indicator"]],) if people else ()
    groups = () if row["pillar"] == "all" else (str(row["pillar"]),)
    bounded = row["ci_low"] == row["ci_low"]
    return Number(
        task=str(row["task"]),
        test=str(row["test"]),
        method=str(row["method"]),
        metric=str(row["metric"]),
        part=", ".join((*groups, *classes)),
        value=float(row["value"]),
        n=int(row["n"]) if row["n"] == row["n"] else 0,
        low=float(row["ci_low"]) if bounded else None,
        high=float(row["ci_high"]) if bounded else None,
    )


def answers(run: PublishedRun, task: str, test: str) -> Iterator[dict[str, Any]]:
    """The exported answers of a run to the test split of one task and context test, by question and
    method: item_id, method, pred (text), correct, gold (text), options, prompt and what describes
    the question. Prompts without an answer (infrastructure failures) have none here; the run's
    n_failed counts them."""
    if not run.answered.get((task, test)):
        return
    table = _ask(
        run,
        f"""SELECT p.item_id, p.method, coalesce(p.pred, '') AS pred, p."value", p.correct,
              coalesce(CASE WHEN i.task = 'mcq' THEN i.gold ELSE i.gold_value::VARCHAR END, '')
              AS gold, i.options, i.pillar, i.indicator, i.country, i.year, i.unit, i.tolerance,
              i.image_id, i.cluster_id, q.text AS prompt
            {_ANSWERED} AND p.task = $task AND p.test = $test ORDER BY p.item_id, p.method""",
        {"task": task, "test": test},
    )
    for batch in table.to_batches(5_000):
        for row in batch.to_pylist():
            options = json.loads(row["options"] or "[]")
            yield row | {"options": options if isinstance(options, list) else []}


_ANSWERED = """
    FROM predictions p
    JOIN items i ON i.benchmark_id = $benchmark AND i.task = p.task AND i.item_id = p.item_id
    JOIN read_parquet($prompts) q ON q.task = p.task AND q.item_id = p.item_id AND q.test = p.test
    WHERE p.run_id = $run AND p.split = 'test' AND list_contains($methods, p.method)
      AND p.correct IS NOT NULL AND NOT (p.task = 'mcq' AND list_contains($withheld, p.item_id))"""


def _ask(run: PublishedRun, sql: str, more: Mapping[str, str] | None = None) -> pa.Table:
    """The rows of a statement over the exported answers of a run."""
    assert run.benchmark is not None
    asked = {
        "run": run.run_id,
        "benchmark": run.record["benchmark_id"],
        "prompts": str(run.benchmark / "prompts.parquet"),
        "methods": list(ANSWERS),
        "withheld": list(run.withheld) or [-1],
    }
    return store.arrow(run.results, sql, asked | dict(more or {}), runs=[run.run_id])


def json_line(value: object) -> bytes:
    """One line of JSON, keys as they are."""
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()


def json_file(value: object) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()
