"""`sdgbias demo`: the tour. It only strings public commands together: dvc repro, the Prefect flow,
the headline table."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sdgbias import progress
from sdgbias.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, printed, say
from sdgbias.errors import InfrastructureError, RegressionBreach, UsageError
from sdgbias.types import FACET

if TYPE_CHECKING:
    import pandas as pd

#: Where an image sets it, each of the 25 processes would compile everything that it imports.
_UNSET = ("PYTHONDONTWRITEBYTECODE",)


def _environment() -> dict[str, str]:
    """The environment of everything that the tour starts."""
    from sdgbias.files import packaged_yaml

    quiet: dict[str, str] = packaged_yaml("prefect.yaml")["quiet"]
    # a key in the environment is for other work than synthetic data
    made = {**quiet, "WANDB_MODE": "offline", **os.environ}
    home = Path(made.setdefault("PREFECT_HOME", str(Path("results/.prefect").resolve())))
    home.mkdir(parents=True, exist_ok=True)
    # Prefect looks for it in the user's own folder otherwise, and warns where there is none
    made.setdefault("PREFECT_SERVER_MEMO_STORE_PATH", str(home / "memo_store.toml"))
    # two small models share the cores: a thread that waits for the others leaves its core to them
    made.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    made.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in _UNSET:
        made.pop(name, None)
    # tools of the same environment (dvc calls sdgbias) must be found even when it is not activated
    made["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{made.get('PATH', '')}"
    return made


def _step(
    title: str,
    command: list[str],
    fine: tuple[int, ...] = (0,),
    as_json: bool = False,
) -> None:
    """Run one command of the tour: its stage is on this command's line, its output above it, or on
    standard error where standard output is one JSON value."""
    shown = " ".join(Path(c).name if c == sys.executable else c for c in command)
    typer.echo(f"\n== {title}: {shown}", err=as_json)
    progress.update(title)
    with subprocess.Popen(
        command,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            typer.echo(line.rstrip("\n"), err=as_json)
    if child.returncode not in fine:
        raise InfrastructureError(
            f"{title} ended with exit code {child.returncode}; what is finished is kept: run the"
            " same command again"
        )


@contextmanager
def _compiled() -> Iterator[subprocess.Popen[bytes]]:
    """Beside the block the kernels of searches and bootstraps are compiled and kept; where that
    fails, the night compiles them itself."""
    from sdgbias.nightly import process

    environment = _environment()
    compiler = [sys.executable, "-m", "sdgbias.methods.compiled"]
    single = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    log = Path(environment["PREFECT_HOME"]) / "compiler.log"
    with process.beside(compiler, log, environment | single, _UNSET) as kernels:
        yield kernels


def _at_a_time() -> int:
    """Models that this machine scores at a time: two of these small ones on two cores without
    accelerators, where one with two threads gains little; else one."""
    from sdgbias.registry import machine

    return 1 if len(machine.visible()) == 1 else min(2, os.cpu_count() or 1)


@contextmanager
def lock_apart() -> Iterator[None]:
    """Keep the demo's dvc.lock out of the project's folder between runs. It holds digests of the
    code, so a committed one would be out of date with the next commit, and DVC refuses to work
    beside one that git ignores. One that was there before is the user's own and stays."""
    lock, kept = Path("dvc.lock"), Path(".dvc/tmp/demo.lock")
    if lock.exists():
        yield
        return
    if kept.exists():
        shutil.copyfile(kept, lock)
    try:
        yield
    finally:
        if lock.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(lock, kept)


def demo(
    results: ResultsOption = DEFAULT_RESULTS,
    report: Path = Path("reports/latest"),
    as_json: JsonOption = False,
) -> None:
    """The main job end to end: dvc repro, then the Prefect flow `nightly` over every enabled model,
    report, W&B offline.

    Args:
        report: Folder for the report.
    """
    from sdgbias import store

    if not Path("dvc.yaml").is_file():
        raise UsageError("no dvc.yaml here; run `sdgbias demo` in the folder of the project")
    began = time.monotonic()
    with _compiled() as compiler:
        with lock_apart():
            _step("data", [sys.executable, "-m", "dvc", "repro", "--quiet"], as_json=as_json)
        progress.update("compiling")
        compiler.wait()
        night = [sys.executable, "-m", "flows.nightly", "--results", str(results)]
        _step(
            "nightly",
            [*night, "--report", str(report), "--jobs", str(_at_a_time())],
            (0, RegressionBreach.exit_code),
            as_json,
        )
    from sdgbias.report.build import ReportPages
    from sdgbias.report.layout import OVERVIEW

    runs, overview = store.latest_runs(results), ReportPages(results).page(OVERVIEW)
    people_runs = store.latest_runs(results, FACET, per_benchmark=True)
    found = {
        "findings": [answer.text for answer in overview[1]["answers"]] if overview else [],
        "accuracy": printed(results, "accuracy", runs),
        "people": _marked(printed(results, "people", people_runs)),
        "report": str(report / "index.html"),
        "seconds": round(time.monotonic() - began),
    }
    say(found, as_json, "demo", **found)


def _marked(people: pd.DataFrame) -> pd.DataFrame:
    """The table of people with a mark at differences whose interval excludes zero, and without
    notes where there are none."""
    import numpy as np

    clear = np.where(people["low"] * people["high"] > 0, "yes", "")
    empty = [] if people["note"].any() else ["note"]
    return people.assign(clear=clear).drop(columns=empty)
