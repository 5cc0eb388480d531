"""The exit door (`sdgbias publish`): what a run and its benchmark are in the formats that others
read. Nothing here opens a network but ``upload``.

Every format is a list of PublishedFile whose bytes are made when they are asked for, so that a dry
run and a write share them. Files are written into a folder beside the wanted one, which is renamed
at the end: a run that is stopped leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sdgbias import store
from sdgbias.errors import InfrastructureError, SdgbiasError, UsageError, first_line
from sdgbias.files import writable
from sdgbias.progress import Progress, each, silent
from sdgbias.registry.entries import HUB_ID
from sdgbias.report.publish import dataset, every_eval_ever, model_card, runs
from sdgbias.report.publish.runs import PublishedFile
from sdgbias.suites import named, newest_runs
from sdgbias.wording import many


class Publication(NamedTuple):
    """licences: of what -> its licence. withheld: sentences."""

    files: list[PublishedFile]
    licences: dict[str, str]
    withheld: list[str]


def plan(
    results: Path, folder: Path, formats: Sequence[str], run_ids: Sequence[str] | None, name: str
) -> Publication:
    """``folder``: the benchmark; ``run_ids``: None for the newest of each measured model;
    ``name``: OWNER/NAME of the benchmark on the hub, or ''; of runs on others nothing names it.
    Raises UsageError (``name``, nothing to publish), InputError, StoreError (unknown run)."""
    if name and not HUB_ID.fullmatch(name):
        raise UsageError(f"--dataset {name!r}; valid: OWNER/NAME of a dataset on the hub")
    files: list[PublishedFile] = []
    licences: dict[str, str] = {}
    withheld: list[str] = []
    benchmark: dataset.Benchmark | None = None
    try:
        benchmark = dataset.read(folder)
    except SdgbiasError:
        if dataset.DATASET in formats and folder.exists():
            raise
    if benchmark is not None:
        licences[f"benchmark {benchmark.id}"] = str(benchmark.card.get("licence") or "unknown")
        withheld += benchmark.notes
    if dataset.DATASET in formats and benchmark is not None:
        files += dataset.files(benchmark)
        withheld.append("coordinates, raw series and quarantined rows of the benchmark")
    elif dataset.DATASET in formats:
        withheld.append(f"the dataset: no benchmark at {folder}; name one with --benchmark")
    loaded: list[runs.Row] = []
    if set(formats) - {dataset.DATASET}:
        chosen = dict.fromkeys(run_ids or newest_runs(results, per_benchmark=True))
        loaded = [runs.load(results, run_id) for run_id in chosen]
    measured = [run for run in loaded if run["provenance"] != "planted"]
    if not run_ids and len(measured) < len(loaded):
        planted = many(len(loaded) - len(measured), "run")
        withheld.append(f"{planted} of planted models: name them with --run")
        loaded = measured
    licences |= {f"model {run['model']}": run["model_licence"] or "unknown" for run in loaded}
    for run in loaded:
        of_dataset = benchmark is not None and benchmark.id == run["benchmark_id"]
        run["dataset"] = name if of_dataset else ""
    removed = store.dropped(results, [run["run_id"] for run in loaded]) if loaded else {}
    for run in loaded if "every-eval-ever" in formats else ():
        why = named(run["suite"]).unpublished
        if not why and (at := removed.get(run["run_id"])):
            why = f"its details were removed on {at:%Y-%m-%d} (sdgbias store keep)"
        if not why and (benchmark is None or benchmark.id != run["benchmark_id"]):
            why = f"benchmark {run['benchmark_id']} isn't here: name its folder with --benchmark"
        files += every_eval_ever.files(results, run, None if why else benchmark, why)
        if why:
            withheld.append(f"single answers of {run['run_id']}: {why}")
    if "model-card" in formats:
        for model in dict.fromkeys(run["model"] for run in loaded):
            files += model_card.files([run for run in loaded if run["model"] == model])
        if loaded and not name:
            withheld.append(".eval_results: they name the dataset on the hub; give --dataset")
        elif not any(run["dataset"] for run in loaded):
            why = f"no run answers the benchmark at {folder}; name its folder with --benchmark"
            withheld.append(f".eval_results: {why}")
    if not files:
        raise UsageError("; ".join(["nothing to publish", *withheld]))
    return Publication(files, licences, withheld)


def check_repository(name: str) -> None:
    """Raises UsageError for the name of a dataset repository that the hub would refuse."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UsageError(f"--upload {name}: {str(error).splitlines()[0]}") from None


def write(
    files: Sequence[PublishedFile], out: Path, progress: Progress = silent
) -> list[tuple[str, int]]:
    """(path, bytes) of every file, written below ``out``, which must be new or empty. Raises
    UsageError, StoreError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: not an empty folder; name a new one with --write")
    written = []
    with writable(out, "free the disk or name another folder with --write"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as part:
            for file in each(progress, "writing files", files):
                path = Path(part, out.name, file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as target:
                    written.append((file.path, sum(map(target.write, file.content()))))
            Path(part, out.name).replace(out)
    return written


def upload(folder: Path, repo: str) -> str:
    """Commit a written dataset folder to a dataset repository of the hub and return the address of
    the commit; a repository that isn't there is created private. The token is the environment's
    (HF_TOKEN). Raises InfrastructureError."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi()
    try:
        api.create_repo(repo, repo_type="dataset", private=True, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Benchmark written by sdgbias publish",
        )
    except (HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        raise InfrastructureError(
            f"--upload {repo}: {first_line(error)}; {folder}"
            " is complete: check HF_TOKEN and upload it again, or: hf upload"
        ) from None
    return str(done.commit_url)
