"""A run as results of lm-evaluation-harness: results_DATE.json and samples_TASK_DATE.jsonl in a
folder of the model, as `lm_eval --output_path --log_samples` writes them (lm_eval.result_schema).

A method is what the harness calls a filter: how an answer is had from the same outputs. Its own
field of uncertainty is a standard error, here half the width of the 95 % interval over 1.96; the
bounds stand beside it, because they aren't symmetric where a share is near 0 or 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from sdgbias.report.publish import PublishedFile
from sdgbias.report.publish.runs import (
    Number,
    PublishedRun,
    answers,
    json_file,
    json_line,
)

_METRICS = {"accuracy": "acc"}
_Z = 1.959963984540054


def files(run: PublishedRun) -> list[PublishedFile]:
    home = f"lm_eval/{run.model_id.replace('/', '__')}"
    stamp = run.finished.strftime("%Y-%m-%dT%H-%M-%S.%f")
    made = [PublishedFile(f"{home}/results_{stamp}.json", partial(_results, run))]
    for task, test in run.tests:
        if run.answered.get((task, test)):
            made.append(
                PublishedFile(
                    f"{home}/samples_{_task(task, test)}_{stamp}.jsonl",
                    partial(_samples, run, task, test),
                )
            )
    return made


def _task(task: str, test: str) -> str:
    return f"sdgbias_{task}" if test == "all" else f"sdgbias_{task}_{test}"


def _results(run: PublishedRun) -> Iterator[bytes]:
    found = {_task(task, test): run.of(task, test) for task, test in run.tests}
    single = [_task(task, test) for task, test in run.tests if test != "all"]
    groups = {
        _task(task, "all"): [_task(t, test) for t, test in run.tests if t == task and test != "all"]
        for task, test in run.tests
        if test == "all"
    }
    results = {name: _metrics(name, numbers) for name, numbers in found.items()}
    yield json_file(
        {
            "results": results,
            "groups": {name: results[name] for name in groups},
            "group_subtasks": groups | {name: [] for name in single},
            "configs": {
                name: {
                    "task": name,
                    "dataset_path": f"sdgbias {run.record['benchmark_id']}",
                    "test_split": "test",
                }
                for name in single
            },
            "versions": dict.fromkeys(found, run.version),
            "n-shot": dict.fromkeys(single, 0),
            "higher_is_better": {
                name: {_metric(n): n.better > 0 if n.better else None for n in numbers}
                for name, numbers in found.items()
            },
            "n-samples": {
                name: {"original": _most(found[name]), "effective": _most(found[name])}
                for name in single
            },
            "config": {
                "model": str(run.record["backend"]),
                "model_args": run.settings,
                "model_revision": str(run.record["revision"]),
                "random_seed": int(run.record["seed"]),
            },
            "date": run.finished.timestamp(),
            "lm_eval_version": f"sdgbias {run.version}",
            "model_source": str(run.record["backend"]),
            "model_name": run.model_id,
            "model_name_sanitized": run.model_id.replace("/", "__"),
        }
    )


def _most(numbers: list[Number]) -> int:
    return max((n.n for n in numbers), default=0)


def _metric(n: Number) -> str:
    """Its name; a comma would end it."""
    name = " ".join(filter(None, (_METRICS.get(n.metric, n.metric), n.part)))
    return name.replace(" ", "_").replace(",", "_")


def _metrics(name: str, numbers: list[Number]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "alias": name, "sample_len": _most(numbers)}
    counts = {}
    for n in numbers:
        metric = _metric(n)
        key = f"{metric},{n.method}"
        made[key], counts[key] = n.value, n.n
        if n.low is None or n.high is None:
            continue
        made[f"{metric}_stderr,{n.method}"] = (n.high - n.low) / 2 / _Z
        made[f"{metric}_ci_low,{n.method}"] = n.low
        made[f"{metric}_ci_high,{n.method}"] = n.high
    return made | {"sample_count": counts}


def _samples(run: PublishedRun, task: str, test: str) -> Iterator[bytes]:
    """``doc_id``: the question's own id, since the questions of the test split are a selection."""
    metric = "acc" if task == "mcq" else "interval_accuracy"
    for a in answers(run, task, test):
        doc = {
            name: a[name]
            for name in ("item_id", "options", "pillar", "indicator", "country", "year", "image_id")
        }
        yield json_line(
            {
                "doc_id": a["item_id"],
                "doc": doc,
                "target": str(a["gold"]),
                "arguments": {"gen_args_0": {"arg_0": a["prompt"], "arg_1": {}}},
                "resps": [[str(a["pred"])]],
                "filtered_resps": [str(a["pred"])],
                "filter": a["method"],
                "metrics": [metric],
                "doc_hash": _sha(json_line(doc)),
                "prompt_hash": _sha(a["prompt"].encode()),
                "target_hash": _sha(str(a["gold"]).encode()),
                metric: float(a["correct"]),
            }
        )


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
