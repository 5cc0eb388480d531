"""What a W&B run names as its inputs and outputs: the benchmark and the model it used, the scores it made.

Files of artifacts are made from the results file alone, once per benchmark and run, in ``<folder>/artifacts``; runs refer to
them there, nothing is copied. The same rows give the same bytes, so W&B knows a file that it has by its digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias import store
from sdgbias.report.wandb_words import safe, without_secrets
from sdgbias.types import FACET

#: Benchmarks with more questions than this are named by their digest alone.
MOST_ROWS = 250_000
#: W&B takes names of artifacts up to this length.
LONGEST_NAME = 128
#: Beside the files of a run's scores: how many rows each has.
_ROWS = "rows.json"
_BENCHMARK = {"sdg": ("items", "task, item_id"), FACET: ("people", "item_id")}
_SCORES = {
    "scores": 'task, item_id, test, "view"', "decoded": 'item_id, test, "view"', "spoken": 'task, item_id, test, "view"',
    "predictions": "task, item_id, test, method",
}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """One artifact: its name and type in W&B, files (paths below the W&B folder), references (name -> address), metadata."""

    name: str
    type: str
    metadata: Mapping[str, Any]
    files: tuple[Path, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)


def names(record: Mapping[Any, Any]) -> dict[str, str]:
    """kind -> name of the artifacts of a run: benchmark, model, scores."""
    given = {"benchmark": record["benchmark_id"], "model": record["model"], "scores": record["run_id"]}
    return {kind: safe(f"{kind}-{value}", LONGEST_NAME) for kind, value in given.items()}


def pieces(results: Path, record: Mapping[Any, Any], folder: Path) -> dict[str, Piece]:
    """benchmark, model and (where there are any) scores of one run; files that are there already are used as they are.

    ``record``: the run's row of ``runs``. Raises OSError where a file can't be written and StoreError where rows can't be read.
    """
    scores = _scores(results, record, folder)
    return {"benchmark": _benchmark(results, record, folder), "model": _model(record), **({"scores": scores} if scores else {})}


def declare(run: Any, piece: Piece, *, used: bool, aliases: tuple[str, ...] = ()) -> str:
    """Tells W&B of an artifact that the run used (input) or made (output); returns its digest."""
    import wandb

    artifact = wandb.Artifact(piece.name, piece.type, metadata=dict(piece.metadata))
    for path in piece.files:
        artifact.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
    for name, address in piece.references.items():
        artifact.add_reference(address, name=name, checksum=False)
    if used:
        # `run.use_artifact` refuses while offline; this is what it calls for an artifact that is not on the server yet
        run._log_artifact(artifact, aliases=list(aliases), is_user_created=True, use_after_commit=True)
    else:
        run.log_artifact(artifact, aliases=list(aliases))
    return str(artifact.digest)


def _benchmark(results: Path, record: Mapping[Any, Any], folder: Path) -> Piece:
    """The questions as Parquet; rows about people and very large benchmarks by count and digest alone."""
    table, order = _BENCHMARK[FACET if record["suite"] == FACET else "sdg"]
    name, benchmark = names(record)["benchmark"], str(record["benchmark_id"])
    metadata = {"benchmark_id": benchmark, "suite": record["suite"], "licence": str(record["licence"] or "")}
    questions, card = (folder / "artifacts" / name / file for file in ("items.parquet", "card.json"))
    if questions.is_file():
        return Piece(name, "dataset", metadata | {"rows": pq.read_metadata(questions).num_rows}, (questions,))
    if card.is_file():
        return Piece(name, "dataset", metadata | {"rows": json.loads(card.read_text(encoding="utf-8"))["rows"]}, (card,))
    [count] = store.query(results, f"SELECT count(*) AS n FROM {table} WHERE benchmark_id = ?", [benchmark])["n"]
    metadata["rows"] = int(count)
    if table == "items" and count <= MOST_ROWS:
        rows = store.arrow(results, f"SELECT * EXCLUDE (benchmark_id) FROM items WHERE benchmark_id = ? ORDER BY {order}", [benchmark])
        _write(questions, rows)
        return Piece(name, "dataset", metadata, (questions,))
    ids = store.arrow(results, f"SELECT item_id FROM {table} WHERE benchmark_id = ? ORDER BY {order}", [benchmark])
    digest = hashlib.sha256("\n".join(map(str, ids["item_id"].to_pylist())).encode()).hexdigest()
    why = "rows about people don't leave" if table == "people" else f"more than {MOST_ROWS:,} questions"
    _write_text(card, json.dumps({**metadata, "sha256_of_item_ids": digest, "rows_left_out_because": why}, indent=1, sort_keys=True))
    return Piece(name, "dataset", metadata, (card,))


def _model(record: Mapping[Any, Any]) -> Piece:
    """The repository at its revision, by address; weights never travel."""
    spec = without_secrets(json.loads(record["config"] or "{}").get("spec", {}))
    repo, revision = str(spec.get("repo", "")), str(record["revision"] or "")
    hub = repo.count("/") == 1 and ":" not in repo and record["backend"] not in ("api", "planted", "planted-people")
    address = (
        f"https://huggingface.co/{repo}/tree/{revision}" if hub else f"sdgbias://{safe(repo or str(record['model']))}@{safe(revision)}"
    )
    metadata = {
        "repo": repo, "revision": revision, "fingerprint": str(record["fingerprint"] or ""), "backend": str(record["backend"] or ""),
        "dtype": spec.get("dtype", ""), "licence": spec.get("licence", ""), "provenance": str(record["provenance"] or ""),
    }  # fmt: skip
    return Piece(names(record)["model"], "model", metadata, references={"weights": address})


def _scores(results: Path, record: Mapping[Any, Any], folder: Path) -> Piece | None:
    """Scores, decoded numbers, answers and predictions of the run, a Parquet file each where there are rows; None without any (details
    that retention removed).

    A run that is published again (prompts that failed were asked again) has other rows, hence a folder of its own: an earlier W&B run
    that still waits keeps its files.
    """
    name, run_id = names(record)["scores"], str(record["run_id"])
    edition = hashlib.sha256(str(record["finished_at"]).encode()).hexdigest()[:8]
    here = folder / "artifacts" / f"{name}.{edition}"
    counts = _counted(here)
    if counts is None:
        counts = {}
        for table, order in _SCORES.items():
            rows = store.arrow(results, f"SELECT * EXCLUDE (run_id) FROM {table} WHERE run_id = ? ORDER BY {order}", [run_id])
            if rows.num_rows:
                _write(here / f"{table}.parquet", rows)
                counts[table] = rows.num_rows
        if not counts:
            return None
        _write_text(here / _ROWS, json.dumps(counts))
    made = tuple(here / f"{table}.parquet" for table in counts)
    return Piece(name, "scores", {"run_id": run_id, "fingerprint": str(record["fingerprint"] or ""), "rows": counts}, made)


def _counted(here: Path) -> dict[str, int] | None:
    """Table -> rows of the files of a run, written after the last of them; None where they are not all there."""
    try:
        counts: dict[str, int] = json.loads((here / _ROWS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return counts if all((here / f"{table}.parquet").is_file() for table in counts) else None


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    pq.write_table(rows, draft, compression="zstd")
    os.replace(draft, path)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
