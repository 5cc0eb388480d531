"""A run's numbers for a model card on the hub: `.eval_results/*.yaml`, which model pages and the
leaderboards of benchmark datasets read, and the `model-index` of a card's metadata.

An `.eval_results` entry has no field for n and interval; they stand in its `notes`. A `model-index`
entry has them as arguments of its metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import yaml

from sdgbias import templates, wording
from sdgbias.report.publish.runs import LEVEL, Number, PublishedFile, PublishedRun

#: What a leaderboard compares: one number for each task.
HEADLINES = {"accuracy": "mcq", "interval_accuracy": "regression"}
NAMES = {"sdg": "SDGBiasBench, rebuilt", "people": "Recognition of people, by group"}


def files(runs: Sequence[PublishedRun], dataset: str) -> list[PublishedFile]:
    """One card of the ``runs`` of one model, a part for each. ``dataset``: OWNER/NAME of the
    benchmark on the hub; without it there are no `.eval_results`, which must name one."""
    home = f"model_card/{runs[0].model}"
    published = [PublishedFile(f"{home}/README.md", partial(_card, runs, dataset))]
    if dataset and any(n.metric in HEADLINES for run in runs for n in run.numbers):
        published.append(
            PublishedFile(f"{home}/.eval_results/sdgbias.yaml", partial(_entries, runs, dataset))
        )
    return published


def _entries(runs: Sequence[PublishedRun], dataset: str) -> Iterator[bytes]:
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=f"{n.task}_{n.method}",
            value=n.value,
            date=run.finished.isoformat(timespec="seconds"),
            notes=f"{wording.title(n.metric)}, test split, all context tests pooled; {n.words}",
        )
        for run in runs
        for n in run.numbers
        if HEADLINES.get(n.metric) == n.task and n.test == "all" and n.method in ("full", "cade")
    ]
    yield yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False).encode()


def _card(runs: Sequence[PublishedRun], dataset: str) -> Iterator[bytes]:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="visual-question-answering",
            task_name=n.task,
            dataset_type=dataset or "sdgbias",
            dataset_name=NAMES.get(str(run.record["suite"]), str(run.record["suite"])),
            dataset_config=n.task,
            dataset_split="test",
            metric_type=n.metric,
            metric_name=_name(n),
            metric_value=n.value,
            metric_args={
                "n": n.n,
                "ci_low": n.low,
                "ci_high": n.high,
                "level": LEVEL,
                "method": n.method,
                "test": n.test,
            },
        )
        for run in runs
        for n in run.numbers
    ]
    data = ModelCardData(model_name=runs[0].model, eval_results=results)
    yield templates.render(
        "data/texts/model_card.txt.j2",
        metadata=data.to_yaml(),
        title=runs[0].record["title"] or runs[0].model,
        runs=runs,
        names=NAMES,
        name=_name,
    ).encode()


def _name(n: Number) -> str:
    """Of all tests of a task the index keeps one task name: test and method stand here."""
    return " ".join(filter(None, (wording.title(n.metric), n.part, f"({n.method}, {n.test})")))
