"""`sdgbias publish`: results and benchmark in the formats that others read."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RESULTS,
    BenchmarkOption,
    JsonOption,
    ResultsOption,
    choice,
    say,
)
from sdgbias.errors import UsageError

FORMATS = ("model-card", "dataset", "every-eval-ever")


def publish(
    formats: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(FORMATS)}. Default: all.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    run: Annotated[list[str] | None, typer.Option("--run")] = None,
    dataset: str = "",
    write: Path | None = None,
    upload: str = "",
    as_json: JsonOption = False,
) -> None:
    """Show what would be passed on, and what is withheld and why; with --write, write it: metadata
    for model cards, the benchmark as a dataset with pictures, Every Eval Ever records. Nothing is
    sent without --upload.

    Args:
        run: This run; may be given several times. Default: the newest of each measured model and
            benchmark; planted ones only by name.
        dataset: OWNER/NAME of the benchmark on the hub, which .eval_results have to name.
        write: Write the files into this new folder.
        upload: With --write: commit the dataset folder to this dataset repository of the hub
            (OWNER/NAME; created private). The token comes from HF_TOKEN.
    """
    from sdgbias import store
    from sdgbias.report import publish as door
    from sdgbias.report.publish import publication

    wanted = tuple(choice("FORMATS", name, FORMATS) for name in formats or FORMATS)
    if upload and (write is None or "dataset" not in wanted):
        raise UsageError("--upload sends a written dataset: give --write DIR, and dataset")
    # one connection for all that is read, where there are results
    with store.held_open(results) if wanted != ("dataset",) else nullcontext():
        found = publication.plan(results, benchmark, wanted, run, dataset)
        written = door.write(found.files, write) if write else None
        sizes = written if written is not None else [(f.path, f.size()) for f in found.files]
    sent = door.upload(write / door.DATASET, upload) if write and upload else ""
    shown = {
        "files": [{"path": path, "bytes": size} for path, size in sizes],
        "licences": found.licences,
        "withheld": found.withheld,
        "folder": str(write) if write else None,
        "upload": sent or None,
    }
    guessed = set() if written else {f.path for f in found.files if f.estimate}
    say(shown, as_json, "publish", **shown, guessed=guessed)
