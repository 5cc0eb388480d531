"""A run as logs of Inspect (inspect_ai, log version 2), one for each task and context test, which
`inspect view` and `inspect_ai.log.read_eval_log` open. Written as JSON in its schema, so that
nothing of Inspect has to be installed; the tests read them with Inspect itself where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

from sdgbias.report.publish import PublishedFile
from sdgbias.report.publish.runs import Number, PublishedRun, answers, json_file

_MODELS = {"mcq": "visual multiple choice", "regression": "estimation of a number"}


def files(run: PublishedRun) -> list[PublishedFile]:
    stamp = run.finished.strftime("%Y-%m-%dT%H-%M-%S")
    return [
        PublishedFile(
            f"inspect/{stamp}_{task}-{test}_{run.run_id}.json", partial(_log, run, task, test)
        )
        for task, test in run.tests
        if test != "all"
    ]


def _log(run: PublishedRun, task: str, test: str) -> Iterator[bytes]:
    when = run.finished.isoformat(timespec="seconds")
    numbers = run.of(task, test)
    samples = [
        _sample(run, task, test, list(rows))
        for _, rows in groupby(answers(run, task, test), key=lambda a: a["item_id"])
    ]
    asked = max((n.n for n in numbers), default=0)
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "created": when,
            "eval_id": f"{run.run_id}-{task}-{test}",
            "run_id": run.run_id,
            "task": f"sdgbias_{task}_{test}",
            "task_id": f"{run.run_id}-{task}-{test}",
            "task_version": 0,
            "task_display_name": f"SDGBiasBench, rebuilt: {_MODELS.get(task, task)}, {test}",
            "dataset": {
                "name": "SDGBiasBench, rebuilt",
                "samples": len(samples) or asked,
                "shuffled": False,
            },
            "model": run.model_id,
            "config": {},
            "packages": {"sdgbias": run.version},
            "metadata": run.settings
            | ({"no_samples": run.why_no_answers} if run.why_no_answers else {}),
        },
        "results": {
            "total_samples": asked,
            "completed_samples": asked,
            "scores": [
                _score(method, list(rows))
                for method, rows in groupby(
                    sorted(numbers, key=lambda n: n.method), key=lambda n: n.method
                )
            ],
        },
        "stats": {"started_at": when, "completed_at": when},
        "samples": samples,
    }
    yield json_file(log)


def _score(method: str, numbers: list[Number]) -> dict[str, Any]:
    """A scorer for each method. An interval's bounds are metrics of their own: Inspect shows no
    others."""
    metrics: dict[str, Any] = {}
    for n in numbers:
        facts = {"n": n.n, "ci_low": n.low, "ci_high": n.high, "level": 0.95}
        for name, value in (
            (n.name, n.value),
            (f"{n.name} ci_low", n.low),
            (f"{n.name} ci_high", n.high),
        ):
            if value is not None:
                metrics[name] = {"name": name, "value": value, "metadata": facts}
    return {
        "name": method,
        "scorer": f"sdgbias/{method}",
        "scored_samples": max(n.n for n in numbers),
        "metrics": metrics,
    }


def _sample(run: PublishedRun, task: str, test: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A question with its answers by method; the output is that of Full."""
    first = next((a for a in rows if a["method"] == "full"), rows[0])
    output = str(first["pred"])
    return {
        "id": str(first["item_id"]),
        "epoch": 1,
        "input": first["prompt"],
        "choices": first["options"] or None,
        "target": str(first["gold"]),
        "messages": [
            {"role": "user", "content": first["prompt"]},
            {"role": "assistant", "content": output},
        ],
        "output": {
            "model": run.model_id,
            "choices": [
                {"message": {"role": "assistant", "content": output}, "stop_reason": "stop"}
            ],
            "completion": output,
        },
        "scores": {
            a["method"]: {"value": "C" if a["correct"] else "I", "answer": str(a["pred"])}
            for a in rows
        },
        "metadata": {
            name: first[name]
            for name in ("pillar", "indicator", "country", "year", "unit", "image_id")
        }
        | {"task": task, "test": test},
    }
