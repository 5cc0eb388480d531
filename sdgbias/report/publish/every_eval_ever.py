"""A run as Every Eval Ever records (schema 0.3.0, github.com/evaleval/every_eval_ever, MIT): one
aggregate file, and a file with a line per answer, where its datastore has them:
data/sdgbias/DEVELOPER/MODEL/UUID.json and UUID_samples.jsonl.

The schema asks of each metric whether lower is better; numbers of which neither is (the share of
optimistic answers) are left out.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from sdgbias.report import labels
from sdgbias.report.publish import PublishedFile
from sdgbias.report.publish.runs import (
    LEVEL,
    Number,
    PublishedRun,
    answers,
    json_file,
    json_line,
)

SCHEMA = "0.3.0"
#: The number that an answer counts in.
COUNTED = {"mcq": "accuracy", "regression": "interval_accuracy"}
_SIGNED = ("accuracy_gain", "disparity")


def files(run: PublishedRun) -> list[PublishedFile]:
    digest = hashlib.sha256(run.run_id.encode()).digest()[:16]
    path = f"data/sdgbias/{run.model_id}/{uuid.UUID(bytes=digest, version=4)}"
    samples = f"{path}_samples.jsonl"
    rows = sum(run.answered.values())
    made = [
        PublishedFile(
            f"every_eval_ever/{path}.json", partial(_aggregate, run, samples if rows else "", rows)
        )
    ]
    return made + (
        [PublishedFile(f"every_eval_ever/{samples}", partial(_lines, run))] if rows else []
    )


def _evaluation(run: PublishedRun) -> str:
    return f"sdgbias/{run.model_id}/{run.finished.timestamp():.0f}"


def _name(task: str, test: str, method: str) -> str:
    return f"sdgbias {task} {test} {method}"


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
    elif run.why_no_answers:
        record["source_metadata"]["additional_details"] = {"no_samples": run.why_no_answers}
    yield json_file(record)


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
        "evaluation_result_id": _result_id(run, n.task, n.test, n.method, n.name),
        "evaluation_name": _name(n.task, n.test, n.method),
        "source_data": {
            "dataset_name": "SDGBiasBench, rebuilt",
            "source_type": "other",
            "additional_details": {"benchmark_id": str(run.record["benchmark_id"])},
        },
        "metric_config": {
            "metric_id": n.metric,
            "metric_name": f"{labels.title(n.metric)} {n.part}".strip(),
            "lower_is_better": n.better < 0,
            "score_type": "continuous",
            "min_score": -1.0 if n.metric in _SIGNED else low,
            "max_score": "Infinity" if amount else high,
        },
        "score_details": {"score": n.value, "uncertainty": uncertainty},
    }


def _result_id(run: PublishedRun, task: str, test: str, method: str, metric: str) -> str:
    return f"{run.run_id}/{task}/{test}/{method}/{metric}"


def _lines(run: PublishedRun) -> Iterator[bytes]:
    for task, test in run.tests:
        for a in answers(run, task, test):
            gold = str(a["gold"])
            yield json_line(
                {
                    "schema_version": SCHEMA,
                    "evaluation_id": _evaluation(run),
                    "model_id": run.model_id,
                    "evaluation_name": _name(task, test, a["method"]),
                    "evaluation_result_id": _result_id(run, task, test, a["method"], COUNTED[task]),
                    "sample_id": f"{task}_{test}_{a['item_id']}",
                    "sample_hash": hashlib.sha256((a["prompt"] + gold).encode()).hexdigest(),
                    "interaction_type": "single_turn",
                    "input": {
                        "raw": a["prompt"],
                        "reference": [gold],
                        "choices": a["options"] or None,
                    },
                    "output": {"raw": [str(a["pred"])]},
                    "answer_attribution": [
                        {
                            "turn_idx": 0,
                            "source": "output.raw",
                            "extracted_value": str(a["pred"]),
                            "extraction_method": a["method"],
                            "is_terminal": True,
                        }
                    ],
                    "evaluation": {
                        "score": float(a["correct"]),
                        "is_correct": bool(a["correct"]),
                    },
                    "metadata": {
                        name: str(a[name])
                        for name in ("pillar", "indicator", "country", "year", "image_id")
                    },
                }
            )
