"""A model's numbers for its card on the hub: the `model-index` of the card's metadata, and
`.eval_results/*.yaml`, which model pages and the leaderboards of benchmark datasets read.

A `model-index` entry has n and interval as arguments of its metric. An `.eval_results` entry has no
field for them; they stand in its `notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import yaml

from sdgbias import templates
from sdgbias.report.publish.runs import LEVEL, PublishedFile, Row

#: What a leaderboard compares: one number for each task.
HEADLINES = {"accuracy": "mcq", "interval_accuracy": "regression"}


def files(runs: Sequence[Row]) -> list[PublishedFile]:
    """One card of the ``runs`` of one model, a part for each. Their ``dataset`` is OWNER/NAME of
    the benchmark on the hub; without it a run has no `.eval_results`, which must name one."""
    home = f"model_card/{runs[0]['model']}"
    published = [PublishedFile(f"{home}/README.md", partial(_card, runs))]
    if any(map(_headlines, runs)):
        entries = partial(_entries, runs)
        published.append(PublishedFile(f"{home}/.eval_results/sdgbias.yaml", entries))
    return published


def _headlines(run: Row) -> list[Row]:
    """The numbers of a run that a leaderboard of its dataset compares; none of a language model."""
    return [
        n
        for n in run["numbers"]
        if (HEADLINES.get(n["metric"]), "all") == (n["task"], n["test"])
        and n["method"] in ("full", "cade")
        and run["dataset"]
    ]


def _entries(runs: Sequence[Row]) -> list[bytes]:
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            dataset_id=run["dataset"],
            task_id=f"{n['task']}_{n['method']}",
            value=n["value"],
            date=run["finished_date"],
            notes=f"{n['title']}, test split, all context tests pooled: {n['text']}",
        )
        for run in runs
        for n in _headlines(run)
    ]
    content = eval_result_entries_to_yaml(entries)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    return [text.encode()]


def _card(runs: Sequence[Row]) -> list[bytes]:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="visual-question-answering",
            task_name=n["task"],
            dataset_type=run["dataset"] or "sdgbias",
            dataset_name=run["dataset_name"],
            dataset_config=n["task"],
            dataset_split=run["settings"]["split"],
            # else two sets of people are one entry of the index
            dataset_revision=None if run["dataset"] else run["benchmark_id"],
            metric_type=n["metric"],
            # of all tests of a task the index keeps one task name: test and method stand here
            metric_name=f"{n['title']} ({n['method']}, {n['test']})",
            metric_value=n["value"],
            metric_args={k: n[k] for k in ("n", "ci_low", "ci_high", "method", "test")}
            | {"level": LEVEL},
        )
        for run in runs
        for n in run["numbers"]
    ]
    metadata = ModelCardData(model_name=runs[0]["model"], eval_results=results).to_yaml()
    template = "data/texts/model_card.txt.j2"
    return [templates.render(template, metadata=metadata, runs=runs).encode()]
