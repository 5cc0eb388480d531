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
from collections.abc import Iterator
from functools import partial
from typing import Any

from sdgbias import store, wording
from sdgbias.files import packaged_sql
from sdgbias.report.publish.runs import LEVEL, Number, PublishedFile, PublishedRun

SCHEMA = "0.3.0"
_SIGNED = ("accuracy_gain", "disparity")


def files(run: PublishedRun) -> list[PublishedFile]:
    digest = hashlib.sha256(run.run_id.encode()).digest()[:16]
    path = f"data/sdgbias/{run.model_id}/{uuid.UUID(bytes=digest, version=4)}"
    samples = f"{path}_samples.jsonl"
    rows = _samples(run, count=True)[0] if run.benchmark else 0
    record = partial(_aggregate, run, samples if rows else "", rows)
    published = [PublishedFile(f"every_eval_ever/{path}.json", record)]
    if rows:
        published.append(PublishedFile(f"every_eval_ever/{samples}", partial(_lines, run)))
    return published


def _samples(run: PublishedRun, count: bool = False) -> list[Any]:
    """The lines of the file of answers, or how many there are."""
    assert run.benchmark is not None
    sql = packaged_sql("publish.sql")["samples"]
    values = {
        "run": run.run_id,
        "benchmark": run.benchmark.id,
        "prompts": str(run.benchmark.folder / "prompts.parquet"),
        "withheld": list(run.benchmark.ids) or [-1],
        "schema": SCHEMA,
        "evaluation": _evaluation(run),
        "model": run.model_id,
    }
    sql = f"SELECT count(*) AS line FROM ({sql})" if count else sql
    return store.arrow(run.results, sql, values, runs=[run.run_id])["line"].to_pylist()


def _lines(run: PublishedRun) -> Iterator[bytes]:
    yield from (f"{line}\n".encode() for line in _samples(run))


def _evaluation(run: PublishedRun) -> str:
    return f"sdgbias/{run.model_id}/{run.finished.timestamp():.0f}"


def _aggregate(run: PublishedRun, samples: str, rows: int) -> Iterator[bytes]:
    api = run.record["backend"] == "api"
    local = run.model_id.startswith("sdgbias/")
    record: dict[str, Any] = {
        "schema_version": SCHEMA,
        "evaluation_id": _evaluation(run),
        "evaluation_timestamp": f"{run.finished.timestamp():.0f}",
        "retrieved_timestamp": f"{run.finished.timestamp():.0f}",
        "source_metadata": {
            "source_name": "sdgbias",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "third_party",
        },
        "eval_library": {"name": "sdgbias", "version": run.version},
        "model_info": {
            "name": str(run.record["title"] or run.model),
            "id": run.model_id,
            "developer": run.model_id.split("/")[0],
            "inference_engine": {"name": str(run.record["backend"])},
            "additional_details": {
                "deployment_type": "externally_managed" if api else "self_deployed",
                "model_availability": "unknown" if api or local else "open_weights",
                **run.settings,
            },
        },
        "evaluation_results": [_result(run, n) for n in run.numbers if n.better],
    }
    if rows:
        record["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": samples,
            "total_rows": rows,
        }
    elif run.no_answers:
        record["source_metadata"]["additional_details"] = {"no_samples": run.no_answers}
    yield (json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


def _result(run: PublishedRun, n: Number) -> dict[str, Any]:
    amount = n.metric in ("mae", "mae_change")
    low, high = ("-Infinity" if n.metric == "mae_change" else 0.0), 1.0
    uncertainty: dict[str, Any] = {"num_samples": n.n}
    if n.low is not None:
        uncertainty["confidence_interval"] = {
            "lower": n.low,
            "upper": n.high,
            "confidence_level": LEVEL,
            "method": "t interval of means clustered by place",
        }
    return {
        "evaluation_result_id": "/".join((run.run_id, n.task, n.test, n.method, n.name)),
        "evaluation_name": f"sdgbias {n.task} {n.test} {n.method}",
        "source_data": {
            "dataset_name": "SDGBiasBench, rebuilt",
            "source_type": "other",
            "additional_details": {"benchmark_id": str(run.record["benchmark_id"])},
        },
        "metric_config": {
            "metric_id": n.metric,
            "metric_name": f"{wording.title(n.metric)} {n.part}".strip(),
            "lower_is_better": n.better < 0,
            "score_type": "continuous",
            "min_score": -1.0 if n.metric in _SIGNED else low,
            "max_score": "Infinity" if amount else high,
        },
        "score_details": {"score": n.value, "uncertainty": uncertainty},
    }
