"""W&B artifacts of a run: the benchmark and the model that it used, the scores that it produced.

Files are built from the results file alone, once per benchmark and run, in ``<folder>/artifacts``;
W&B reads them there, nothing is copied. The same rows give the same bytes, so that W&B recognises
an artifact that it has by its digest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from sdgbias import store, suites
from sdgbias.files import replacing
from sdgbias.report.wandb.contents import safe, without_secrets

if TYPE_CHECKING:
    import wandb

#: Benchmarks with more questions than this are recorded by digest only.
MOST_ROWS = 250_000
#: Maximum length of a W&B artifact name.
LONGEST_NAME = 128
_SCORES = {
    "scores": 'task, item_id, test, "view"',
    "decoded": 'item_id, test, "view"',
    "spoken": 'task, item_id, test, "view"',
    "predictions": "task, item_id, test, method",
}


def benchmark(results: Path, record: Mapping[Any, Any], folder: Path) -> wandb.Artifact:
    """The questions as Parquet; rows about people and very large benchmarks by count and digest
    only."""
    suite, of = suites.named(str(record["suite"])), str(record["benchmark_id"])
    table, order = suite.items_table, ", ".join(suite.question_keys)
    name = safe(f"benchmark-{of}", LONGEST_NAME)
    [count] = store.query(
        results, f"SELECT count(*) AS n FROM {table} WHERE benchmark_id = ?", [of]
    )["n"]
    metadata = {
        "benchmark_id": of,
        "suite": record["suite"],
        "licence": str(record["licence"] or ""),
        "rows": int(count),
    }
    questions = f"FROM {table} WHERE benchmark_id = ? ORDER BY {order}"
    if not suite.private and count <= MOST_ROWS:
        path = folder / "artifacts" / name / "items.parquet"
        _write(path, results, f"SELECT * EXCLUDE (benchmark_id) {questions}", of)
        return _artifact(name, "dataset", metadata, path)
    made = _artifact(name, "dataset", metadata)
    ids = store.arrow(results, f"SELECT item_id {questions}", [of])["item_id"].to_pylist()
    with made.new_file("card.json") as file:
        card = metadata | {
            "sha256_of_item_ids": hashlib.sha256("\n".join(map(str, ids)).encode()).hexdigest(),
            "rows_left_out_because": "rows about people don't leave"
            if suite.private
            else f"more than {MOST_ROWS:,} questions",
        }
        json.dump(card, file, indent=1, sort_keys=True)
    return made


def model(record: Mapping[Any, Any]) -> wandb.Artifact:
    """The repository at its revision, by address; weights are never uploaded."""
    spec = without_secrets(json.loads(record["config"] or "{}").get("spec", {}))
    repo, revision = str(spec.get("repo", "")), str(record["revision"] or "")
    without_weights = record["backend"] in ("api", "planted", "planted-people")
    hub = repo.count("/") == 1 and ":" not in repo and not without_weights
    address = (
        f"https://huggingface.co/{repo}/tree/{revision}"
        if hub
        else f"sdgbias://{safe(repo or str(record['model']))}@{safe(revision)}"
    )
    own = {k: str(record[k] or "") for k in ("fingerprint", "backend", "provenance")}
    given = {k: spec.get(k, "") for k in ("dtype", "licence")}
    made = _artifact(
        safe(f"model-{record['model']}", LONGEST_NAME),
        "model",
        {"repo": repo, "revision": revision, **own, **given},
    )
    made.add_reference(address, name="weights", checksum=False)
    return made


def scores(results: Path, record: Mapping[Any, Any], folder: Path) -> wandb.Artifact | None:
    """Scores, decoded numbers, answers and predictions of the run, one Parquet file per non-empty
    table; None if all are empty (details removed by retention).

    A republished run (after its failed prompts were retried) has other rows, hence a separate
    folder: an earlier W&B run that is still pending keeps its files.
    """
    run_id = str(record["run_id"])
    name = safe(f"scores-{run_id}", LONGEST_NAME)
    edition = hashlib.sha256(str(record["finished_at"]).encode()).hexdigest()[:8]
    here = folder / "artifacts" / f"{name}.{edition}"
    if not here.is_dir():
        draft = here.with_name(f"{here.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        for table, order in _SCORES.items():
            select = f"SELECT * EXCLUDE (run_id) FROM {table} WHERE run_id = ? ORDER BY {order}"
            _write(draft / f"{table}.parquet", results, select, run_id)
        if not draft.is_dir():
            return None
        draft.rename(here)
    files = sorted(here.glob("*.parquet"))
    rows = {path.stem: pq.read_metadata(path).num_rows for path in files}
    metadata = {"run_id": run_id, "fingerprint": str(record["fingerprint"] or ""), "rows": rows}
    return _artifact(name, "scores", metadata, *files)


def _artifact(name: str, kind: str, metadata: Mapping[str, Any], *files: Path) -> wandb.Artifact:
    import wandb

    made = wandb.Artifact(name, kind, metadata=dict(metadata))
    for path in files:
        made.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
    return made


def _write(path: Path, results: Path, sql: str, key: str) -> None:
    """The rows of a query as Parquet, unless the file exists or there are none."""
    if path.is_file():
        return
    rows = store.arrow(results, sql, [key])
    if rows.num_rows:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            pq.write_table(rows, draft, compression="zstd")
