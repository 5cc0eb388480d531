"""A project of one's own, and the tour: it only strings public commands together, dvc repro and the
Prefect flow, and prints what they found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sdgbias import progress
from sdgbias.cli.application import START, app
from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    print_estimates,
    print_json,
    query_table,
)
from sdgbias.errors import InfrastructureError, RegressionBreach, UsageError
from sdgbias.types import FACET

if TYPE_CHECKING:
    import pandas as pd


def environment(*groups: str) -> dict[str, str]:
    """The environment of everything that the tour starts, with these groups of Prefect's
    settings."""
    from sdgbias.files import packaged_yaml
    from sdgbias.nightly.prefect_server import keep_files

    settings: dict[str, dict[str, str]] = packaged_yaml("prefect.yaml")
    variables = {
        name: text for group in ("quiet", *groups) for name, text in settings[group].items()
    }
    # a key in the environment is for other work than synthetic data
    variables |= {"WANDB_MODE": "offline", **os.environ}
    home = keep_files(variables, Path("results/.prefect").resolve())
    home.mkdir(parents=True, exist_ok=True)
    # two small models share the cores: a thread that waits for the others leaves its core to them
    variables.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    variables.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # where an image sets it, each of the 25 processes would compile everything that it imports
    variables["PYTHONDONTWRITEBYTECODE"] = ""
    # tools of the same environment (dvc calls sdgbias) must be found even when it is not activated
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', '')}"
    return variables


def _step(
    title: str,
    command: list[str],
    fine: tuple[int, ...] = (0,),
    as_json: bool = False,
    more: Mapping[str, str] | None = None,
    onward: str = "",
) -> None:
    """Run one command of the tour, with ``more`` in its environment: its stage is on this command's
    line, its output above it, or on standard error where standard output is one JSON value."""
    shown = " ".join(Path(c).name if c == sys.executable else c for c in command)
    typer.echo(f"\n== {title}: {shown}", err=as_json)
    progress.update(title)
    with subprocess.Popen(
        command,
        env=environment() | dict(more or {}),
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
            f" same command again{onward}"
        )


@contextmanager
def _compiled() -> Iterator[subprocess.Popen[bytes]]:
    """Beside the block the kernels of searches and bootstraps are compiled and kept; where that
    fails, the night compiles them itself."""
    from sdgbias.nightly import process

    variables = environment()
    compiler = [sys.executable, "-m", "sdgbias.methods.compiled"]
    single = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    log = Path(variables["PREFECT_HOME"]) / "compiler.log"
    with process.beside(compiler, log, variables | single) as kernels:
        yield kernels


@contextmanager
def _prefect() -> Iterator[Callable[[], dict[str, str]]]:
    """Beside the block the night's server makes its database and starts, a quarter of a minute in
    a new project. Yields what waits for it and says, as variables, where it is; nothing where one
    is named already."""
    from sdgbias.nightly.prefect_server import ENV_API, free_port, server, wait_for

    if ENV_API in os.environ:
        yield dict
        return
    variables, port = environment("flows", "by_hand"), free_port()
    log = Path(variables["PREFECT_HOME"]) / "server.log"
    with server(port, log, variables) as running:

        def address() -> dict[str, str]:
            progress.update("waiting for Prefect's server")
            wait_for(port, running, log)
            return {ENV_API: f"http://127.0.0.1:{port}/api"}

        yield address


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


def allow_no_git() -> None:
    """Let DVC work in a project that is in no git repository, such as an unpacked archive of a
    checkout: it refuses to unless its settings say so, here those of this folder alone."""
    from sdgbias.files import write_atomically

    local, here = Path(".dvc/config.local"), Path.cwd()
    if not local.exists() and not any((at / ".git").exists() for at in (here, *here.parents)):
        write_atomically(local, "[core]\n    no_scm = true\n", "use a folder that can be written")


@app.command(rich_help_panel=START, epilog="Example: sdgbias demo")
def demo(
    results: ResultsOption = DEFAULT_RESULTS,
    report: Annotated[Path, Option(help="Folder of the report.")] = Path("reports/latest"),
    as_json: JsonOption = False,
) -> None:
    """Run the whole pipeline once, on synthetic data and the embedded models.

    `dvc repro` makes the data; the Prefect flow `nightly` then scores every enabled model and
    writes the report and offline W&B runs.
    """
    from sdgbias import store
    from sdgbias.nightly.night_options import today
    from sdgbias.registry import entries

    if not Path("dvc.yaml").is_file():
        raise UsageError("no dvc.yaml here; run `sdgbias demo` in the folder of the project")
    if not any(entries.is_due(spec, today()) for spec in entries.load_readable()[0].values()):
        raise UsageError(
            "no enabled model in registry/models: the embedded ones are in a checkout; to add one:"
            " sdgbias register-model REPO"
        )
    began = time.monotonic()
    allow_no_git()
    with _compiled() as compiler, _prefect() as address:
        with lock_apart():
            repro = [sys.executable, "-m", "dvc", "repro", "--quiet"]
            _step("data", repro, as_json=as_json, onward=" ('dvc repro' says why it ended)")
        progress.update("compiling")
        compiler.wait()
        night = [sys.executable, "-m", "flows.nightly", "--results", str(results)]
        options = ["--report", str(report), "--jobs", str(_at_a_time())]
        fine = (0, RegressionBreach.exit_code)
        _step("nightly", [*night, *options], fine, as_json, address())
    from sdgbias.report.build import ReportPages
    from sdgbias.report.layout import OVERVIEW

    runs, overview = store.latest_runs(results), ReportPages(results).page(OVERVIEW)
    findings = [answer.text for answer in overview[1]["answers"]] if overview else []
    accuracy = query_table(results, "accuracy", runs)
    people_runs = store.latest_runs(results, FACET, per_benchmark=True)
    people = _marked(query_table(results, "people", people_runs))
    page, seconds = str(report / "index.html"), round(time.monotonic() - began)
    if as_json:
        tables = {"accuracy": accuracy, "people": people}
        print_json({"findings": findings, **tables, "report": page, "seconds": seconds})
        return
    typer.echo("\nWhat the report says first:\n")
    for text in findings:
        typer.echo(f"  {text}")
    typer.echo(
        "\nAccuracy on the same answers in %, 95 % interval clustered by place (measured here):\n"
    )
    print_estimates(accuracy)
    if len(people):
        typer.echo(
            "\nSecond suite, pictures of people: difference of recall between groups in points, all"
            " classes pooled, 95 % interval\n(clear: the interval excludes zero):\n"
        )
        print_estimates(people)
    typer.echo(f"\nreport: {page}   ({seconds} s)\nNext: sdgbias serve")


def _marked(people: pd.DataFrame) -> pd.DataFrame:
    """The table of people with a mark at differences whose interval excludes zero, and without
    notes where there are none."""
    import numpy as np

    clear = np.where(people["low"] * people["high"] > 0, "yes", "")
    empty = [] if people["note"].any() else ["note"]
    return people.assign(clear=clear).drop(columns=empty)


_SETTINGS = """# Paths that the commands of this project share; options and variables win.
results = "results/sdgbias.duckdb"
# benchmark = "data/benchmark"  # once it is built
raw = "data/raw"
registry = "."
"""
_IGNORED = "/results/\n/reports/\n/data/raw/\n/data/benchmark/\n/data/people/\n/.sdgbias/\n"


@app.command(rich_help_panel=START, epilog="Example: sdgbias init my-project")
def init(
    folder: Annotated[Path, Argument(metavar="[DIR]", help="Folder of the project.")] = Path(),
) -> None:
    """Create a project of your own.

    Writes sdgbias.toml, registry/ without models, the quality rules in expectations/, dvc.yaml,
    params.yaml, .gitignore and the settings of DVC (.dvc/, so that `dvc init` isn't needed).
    Existing files are left unchanged.
    """
    from sdgbias.files import project_file, write_atomically
    from sdgbias.wording import many

    again = "name a folder that can be written"
    texts = {"sdgbias.toml": _SETTINGS, ".gitignore": _IGNORED}
    sources = [*project_file("expectations").iterdir(), *project_file("registry").glob("*.*")]
    settings = (".dvc/config", ".dvc/.gitignore", ".dvcignore")  # `images: false` needs them
    sources += map(project_file, ("dvc.yaml", "params.yaml", *settings))
    top = project_file()
    for source in (path for path in sources if path.is_file()):
        texts[source.relative_to(top).as_posix()] = source.read_text(encoding="utf-8")
    texts["dvc.yaml"] = without_code(texts["dvc.yaml"])
    new = [name for name in sorted(texts) if not (folder / name).exists()]
    for name in new:
        write_atomically(folder / name, texts[name], again)
    (folder / "registry" / "models").mkdir(parents=True, exist_ok=True)
    kept = f", {len(texts) - len(new)} left unchanged" if len(texts) > len(new) else ""
    typer.echo(f"{folder}: {many(len(new), 'file')} written{kept}")


def without_code(stages: str) -> str:
    """dvc.yaml without the stages' dependencies on this package's source, which a project without a
    checkout doesn't have."""
    stages = re.sub(r"^ +- sdgbias/\S+\n", "", stages, flags=re.MULTILINE)
    stages = re.sub(r"^ +deps: \[sdgbias/[^\]]*\]\n", "", stages, flags=re.MULTILINE)
    return re.sub(r", sdgbias/[^,\]\s]+(?=[,\]])", "", stages)
