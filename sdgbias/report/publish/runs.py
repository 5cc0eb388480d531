"""What the formats share: a file to write, and a run with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sdgbias import store, suites, wording
from sdgbias.files import packaged_sql
from sdgbias.methods.stats import Estimate
from sdgbias.vocabulary import metric_word, shown_as

Row = dict[str, Any]
LEVEL = 0.95
#: What a suite's benchmark is called; one's own questions have the name of their suite.
NAMES = {"sdg": "SDGBiasBench, rebuilt", "people": "Recognition of people, by group"}
SQL = packaged_sql("publish.sql")
#: Facts about a run for the formats' free fields: no path of this machine is among them.
FACTS = (
    *("run_id", "suite", "benchmark_id", "provenance", "licence", "numerics", "backend"),
    *("revision", "n_failed", "model_licence"),
)


class PublishedFile(NamedTuple):
    """``path``: relative, with '/'. ``content``: makes its bytes, in parts. ``estimate``: how many,
    of files that take long to make; 0 where a dry run makes the file to know its size."""

    path: str
    content: Callable[[], Iterable[bytes]]
    estimate: int = 0


def load(results: Path, run_id: str) -> Row:
    """A run as query ``run`` of publish.sql has it, with

    dataset_name: what its benchmark is called
    settings: FACTS that there are, split and interval, as text
    numbers: rows of query ``numbers`` with word (what the number is measured in: that of a
        disparity for the difference of two groups), title (the metric's name with its groups),
        text (value, interval and n) and better (1: higher is better; -1: lower; 0: neither, such as
        the share of optimistic answers)

    Raises StoreError."""
    runs = store.arrow(results, SQL["run"], [run_id]).to_pylist()
    if not runs:
        raise store.unknown_run(results, run_id)
    [run] = runs
    suite = suites.named(run["suite"], run.pop("cluster_by"))
    given = {"run": run_id, "people": suite.private}
    numbers = store.arrow(results, SQL["numbers"], given).to_pylist()
    for n in numbers:
        n["word"] = metric_word(shown_as(n["metric"], n["part"]))
        widest = n["metric"] == "disparity" and "max-min" in n["part"]
        n["better"] = -1 if widest else n["word"].better
        n["title"] = f"{wording.title(n['metric'])} {n['part']}".strip()
        n["text"] = str(wording.written(Estimate.of_row(n), n["word"]))
    facts = {name: str(run[name]) for name in FACTS if run[name] not in (None, "")}
    facts["split"] = "test" if suite.held_out else "all"
    facts["interval"] = (
        f"95 %, clustered by {suite.cluster_unit}, without a picture by distinct prompt if wider"
    )
    name = NAMES.get(run["suite"], run["suite"])
    return {**run, "dataset_name": name, "settings": facts, "numbers": numbers}
