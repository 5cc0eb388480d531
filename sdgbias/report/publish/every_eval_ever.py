"""A run as Every Eval Ever records (schema 0.3.0, github.com/evaleval/every_eval_ever, MIT): one
aggregate file, and a file with a line per answer, where its datastore has them:
data/sdgbias/DEVELOPER/MODEL/UUID.json and UUID_samples.jsonl.

The schema asks of each metric whether lower is better; numbers of which neither is (the share of
optimistic answers) are left out.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from sdgbias import store
from sdgbias.report.publish.dataset import Benchmark, read_table
from sdgbias.report.publish.runs import LEVEL, SQL, PublishedFile, Row

SCHEMA = "0.3.0"
#: What a line of an answer has beside its prompt, about.
BESIDE_PROMPT = 860


def files(results: Path, run: Row, benchmark: Benchmark | None, why: str) -> list[PublishedFile]:
    """``benchmark``: that of the run, with the prompts of its answers; None where they stay where
    they are; ``why``: the reason. Raises StoreError, InputError (damaged prompts)."""
    digest = hashlib.sha256(run["run_id"].encode()).digest()[:16]
    path = f"data/sdgbias/{run['model_id']}/{uuid.UUID(bytes=digest, version=4)}"
    record, samples = _record(run), []
    if benchmark is None:
        record["source_metadata"]["additional_details"] = {"no_samples": why}
    else:
        given = {
            "run": run["run_id"],
            "benchmark": benchmark.id,
            "prompts": str(benchmark.folder / "prompts.parquet"),
            "withheld": benchmark.withheld["item_id"].to_list(),
        }
        # a damaged file would be blamed on the results
        read_table(benchmark.folder, "prompts", ["task", "item_id", "test", "text"])
        cells = _ask(results, "cells", given).to_pylist()
        if rows := sum(cell["rows"] for cell in cells):
            name = f"{path}_samples.jsonl"
            detail = {"format": "jsonl", "file_path": name, "total_rows": rows}
            record["detailed_evaluation_results"] = detail
            content = partial(_lines, results, run, given, cells)
            size = rows * BESIDE_PROMPT + sum(cell["bytes"] for cell in cells)
            samples = [PublishedFile(f"every_eval_ever/{name}", content, int(size))]
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    return [PublishedFile(f"every_eval_ever/{path}.json", lambda: [text.encode()]), *samples]


def _ask(results: Path, name: str, given: Mapping[str, Any]) -> pa.Table:
    """Rows of a query about the answers of a run."""
    return store.arrow(results, f"{SQL['answers']} {SQL[name]}", given, runs=[given["run"]])


def _lines(
    results: Path, run: Row, given: Mapping[str, Any], cells: Sequence[Row]
) -> Iterator[bytes]:
    """The file of answers, a task and test at a time: at full size a run has a gigabyte."""
    names = {"schema": SCHEMA, "evaluation": run["evaluation_id"], "model": run["model_id"]}
    for cell in cells:
        one = {"task": cell["task"], "test": cell["test"]}
        for chunk in _ask(results, "lines", {**given, **names, **one})["line"].chunks:
            yield "".join(f"{line}\n" for line in chunk.to_pylist()).encode()


def _record(run: Row) -> Row:
    developer, api = run["model_id"].split("/")[0], run["backend"] == "api"
    closed = api or developer == "sdgbias"
    return {
        "schema_version": SCHEMA,
        "evaluation_id": run["evaluation_id"],
        "evaluation_timestamp": run["finished"],
        "retrieved_timestamp": run["finished"],
        "source_metadata": {
            "source_name": "sdgbias",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "third_party",
        },
        "eval_library": {"name": "sdgbias", "version": run["version"]},
        "model_info": {
            "name": run["title"],
            "id": run["model_id"],
            "developer": developer,
            "inference_engine": {"name": run["backend"]},
            "additional_details": {
                "deployment_type": "externally_managed" if api else "self_deployed",
                "model_availability": "unknown" if closed else "open_weights",
                **run["settings"],
            },
        },
        "evaluation_results": [_result(run, n) for n in run["numbers"] if n["better"]],
    }


def _result(run: Row, n: Row) -> Row:
    metric, key = n["metric"], (n["task"], n["test"], n["method"])
    share, signed = n["word"].scale != 1, n["word"].format[0] == "+"
    interval = {
        **{"lower": n["ci_low"], "upper": n["ci_high"], "confidence_level": LEVEL},
        "method": run["settings"]["interval"],
    }
    uncertainty = {} if n["ci_low"] is None else {"confidence_interval": interval}
    return {
        "evaluation_result_id": "/".join((run["run_id"], *key, f"{metric} {n['part']}".strip())),
        "evaluation_name": " ".join(("sdgbias", *key)),
        "source_data": {
            "dataset_name": run["dataset_name"],
            "source_type": "other",
            "additional_details": {"benchmark_id": run["benchmark_id"]},
        },
        "metric_config": {
            "metric_id": metric,
            "metric_name": n["title"],
            "lower_is_better": n["better"] < 0,
            "score_type": "continuous",
            "min_score": (-1.0 if share else "-Infinity") if signed else 0.0,
            "max_score": 1.0 if share else "Infinity",
        },
        "score_details": {
            "score": n["value"],
            "uncertainty": {"num_samples": n["n"], **uncertainty},
        },
    }
