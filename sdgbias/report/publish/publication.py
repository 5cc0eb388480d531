"""What `sdgbias publish` would write: the files of the wanted formats, their licences, and what is
withheld and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdgbias import store
from sdgbias.errors import SdgbiasError, UsageError
from sdgbias.report.publish import (
    DATASET,
    PublishedFile,
    dataset,
    every_eval_ever,
    model_card,
    runs,
)
from sdgbias.suites import newest_runs


@dataclass(frozen=True)
class Publication:
    """licences: of what -> its licence. withheld: sentences."""

    files: tuple[PublishedFile, ...]
    licences: dict[str, str]
    withheld: tuple[str, ...]


def plan(
    results: Path, folder: Path, formats: Sequence[str], run_ids: Sequence[str] | None, name: str
) -> Publication:
    """``folder``: the benchmark; ``run_ids``: None for the newest of each measured model;
    ``name``: OWNER/NAME of the dataset on the hub, or ''. Raises UsageError (unknown run, nothing
    to publish), InputError, StoreError."""
    files: list[PublishedFile] = []
    withheld: list[str] = []
    benchmark: dataset.Benchmark | None = None
    try:
        benchmark = dataset.read(folder)
    except SdgbiasError:
        if DATASET in formats and folder.exists():
            raise
        if DATASET in formats:
            withheld.append(f"the dataset: no benchmark at {folder}; name one with --benchmark")
    licences = {} if benchmark is None else {f"benchmark {benchmark.id}": benchmark.licence}
    for source, ids in benchmark.withheld.items() if benchmark else ():
        withheld.append(
            f"{len(ids):,} questions, and answers to them, from {source}: its terms don't allow"
            " passing them on"
        )
    if benchmark is not None and DATASET in formats:
        files += dataset.files(benchmark)
        withheld.append("coordinates, raw series and quarantined rows of the benchmark")
    chosen, planted = _chosen(results, run_ids) if set(formats) - {DATASET} else ([], [])
    loaded = [runs.load(results, run_id, folder, benchmark) for run_id in chosen]
    withheld += planted
    licences |= {f"model {r.model}": str(r.spec.get("licence") or "unknown") for r in loaded}
    for run in loaded if "every-eval-ever" in formats else ():
        files += every_eval_ever.files(run)
        if run.no_answers:
            withheld.append(f"single answers of {run.run_id}: {run.no_answers}")
        if n := sum(not number.better for number in run.numbers):
            withheld.append(
                f"{n:,} numbers of {run.run_id} from every-eval-ever, which asks whether lower"
                " is better: of these, neither is"
            )
    if "model-card" in formats:
        for model in dict.fromkeys(run.model for run in loaded):
            files += model_card.files([run for run in loaded if run.model == model], name)
        if loaded and not name:
            withheld.append(".eval_results: they name the dataset on the hub; give --dataset")
    if not files:
        raise UsageError("; ".join(["nothing to publish", *withheld]))
    return Publication(tuple(files), licences, tuple(withheld))


def _chosen(results: Path, run_ids: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """(run ids, a sentence if planted runs were left out)."""
    if run_ids:
        return list(dict.fromkeys(run_ids)), []
    newest = newest_runs(results, per_benchmark=True)
    sql = "SELECT run_id FROM runs WHERE provenance = 'planted' AND list_contains(?, run_id)"
    planted = set(store.query(results, sql, [newest])["run_id"])
    note = f"{len(planted)} planted runs, which measure no model: name them with --run"
    return [run for run in newest if run not in planted], [note] if planted else []
