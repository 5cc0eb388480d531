"""The README's tour, command by command, as it is written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest

from sdgbias import store
from tests.builders import commands
from tests.test_docs import REPOSITORY, RUN, blocks, lines

#: Sizes of the tour as the README has it, and as the tests do: each prompt of a model costs.
FEWER = {
    "--clusters 40 ": "--clusters 12 ",
    "--mcq 40 --regression 10": "--mcq 9 --regression 3",
    "--people 240": "--people 60",
    "evaluate tiny-llava": "evaluate tiny-llava --passes none",
    "--draws 500 --bootstrap 200": "--draws 50 --bootstrap 100",
}


#: What isn't run: make demo does the first, the second has the tour's commands at full size.
LEFT_OUT = re.compile(r"^sdgbias demo|/path/to|--clusters 117644", re.MULTILINE)


def runnable(block: str) -> bool:
    known = [line.startswith("sdgbias ") or line.split()[0] in RUN for line in lines(block)]
    return "sdgbias " in block and all(known) and not LEFT_OUT.search(block)


def test_the_readme_tour_runs_as_written(tmp_path: Path) -> None:
    """Every runnable block of the README, in order, with fewer questions and none of the extra
    passes; then what two how-tos do with the results."""
    tour = [block for block in blocks("README.md") if runnable(block) or "export " in block]
    for size in FEWER:
        assert size in "".join(tour), f"the tour has other sizes than this test: {size}"
    tour += [block for block in blocks("docs/how-to/debias.md") if "cade search" in block]
    tour += blocks("docs/how-to/query.md")
    run([reduce(lambda text, n: text.replace(n, FEWER[n]), FEWER, b) for b in tour], tmp_path)
    page = (tmp_path / "build/tour/report/index.html").read_text("utf-8")
    assert "tiny-llava" in page and "CC0 1.0" in page and len(page) > 10_000
    written = {path.name for path in tmp_path.iterdir()} - {"registry", "expectations"}
    assert written == {"build"}, "the tour writes outside its own folder"
    models = [{p.name for p in (at / "registry/models").iterdir()} for at in (tmp_path, REPOSITORY)]
    assert models[0] == models[1]
    check_same_parameters(tmp_path / "build")


def run(given: list[str], folder: Path) -> None:
    """Run the lines of shell blocks in a folder with a registry of its own: simple commands in this
    process, the others by bash. What one exports holds in those after it."""
    for name in ("registry", "expectations"):
        shutil.copytree(REPOSITORY / name, folder / name)
    environment = commands.environment()
    environment.pop("SDGBIAS_REGISTRY", None)
    tools = Path(sys.executable).parent
    environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
    for block in given:
        for line in lines(block):
            if line.startswith("export "):
                environment |= dict(word.split("=", 1) for word in shlex.split(line)[1:])
        ours = [line for line in lines(block) if not line.startswith("export ")]
        for job in [block] if "done" in ours else ours:  # a loop is one job
            if re.match(r"sdgbias [^|>;$\n]*$", job):
                words = shlex.split(job, comments=True)[1:]
                done = commands.run_here(words, folder, environment)
            else:
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", job],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=600,
                    check=False,
                )
            assert done.returncode == 0, f"{job}\n{done.stdout}\n{done.stderr}"


def check_same_parameters(build: Path) -> None:
    """The claim of debias.md: `cade search` on the exported tables finds what the run published."""
    row = store.query(
        build / "tour" / "results.duckdb",
        "SELECT * FROM cade_params WHERE task = 'mcq' AND test = 'T1'",
    ).iloc[0]
    found = json.loads((build / "cade" / "found" / "cade_config.json").read_text())["params"]
    assert {name: row[name] for name in found} == pytest.approx(found, abs=1e-12)
