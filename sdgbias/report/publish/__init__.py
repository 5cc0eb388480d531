"""The exit door (`sdgbias publish`): what a run and its benchmark are in the formats that others
read. Nothing here opens a network but ``upload``.

Every format is a list of PublishedFile whose bytes come when they are asked for, so that a dry run
and a write share them. Files are written into a folder beside the wanted one, which is renamed at
the end: a run that is stopped leaves nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdgbias import store
from sdgbias.errors import InfrastructureError, SdgbiasError, UsageError, first_line
from sdgbias.files import writable
from sdgbias.report.publish import dataset, every_eval_ever, model_card, runs
from sdgbias.report.publish.runs import PublishedFile
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
        if dataset.DATASET in formats and folder.exists():
            raise
        if dataset.DATASET in formats:
            withheld.append(f"the dataset: no benchmark at {folder}; name one with --benchmark")
    licences = {} if benchmark is None else {f"benchmark {benchmark.id}": benchmark.licence}
    for source, ids in benchmark.withheld.items() if benchmark else ():
        withheld.append(
            f"{len(ids):,} questions, and answers to them, from {source}: its terms don't allow"
            " passing them on"
        )
    if benchmark is not None and dataset.DATASET in formats:
        files += dataset.files(benchmark)
        withheld.append("coordinates, raw series and quarantined rows of the benchmark")
    chosen, planted = _chosen(results, run_ids) if set(formats) - {dataset.DATASET} else ([], [])
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


def write(files: Sequence[PublishedFile], out: Path) -> list[tuple[str, int]]:
    """(path, bytes) of every file, written below ``out``, which must be new or empty. Raises
    UsageError, StoreError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: not an empty folder; name a new one with --write")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    written = []
    try:
        with writable(out, "free the disk or name another folder with --write"):
            for file in files:
                path = part / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as target:
                    target.writelines(file.chunks())
                written.append((file.path, path.stat().st_size))
            if files:
                part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return written


def upload(folder: Path, repo: str) -> str:
    """Commit a written dataset folder to a dataset repository of the hub and return the address of
    the commit; a repository that isn't there is created private. The token is the environment's
    (HF_TOKEN). Raises InfrastructureError."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    api = HfApi()
    try:
        api.create_repo(repo, repo_type="dataset", private=True, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Benchmark written by sdgbias publish",
        )
    except HFValidationError as error:
        raise UsageError(f"--upload {repo}: {str(error).splitlines()[0]}") from None
    except (HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        raise InfrastructureError(
            f"--upload {repo}: {first_line(error)}; {folder}"
            " is complete: check HF_TOKEN and upload it again, or: hf upload"
        ) from None
    return str(done.commit_url)
