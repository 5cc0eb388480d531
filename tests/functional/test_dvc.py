"""`dvc repro` on a small copy of the project: what runs, what doesn't, and the same hashes on a
second machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.builders import commands
from tests.builders.commands import REPOSITORY

STAGES = ["sample", "clusters", "images", "series", "items", "prompts", "card", "check"]
PEOPLE = ["people-sample", "people"]
AFTER_ITEMS = ["items", "prompts", "card", "check"]

pytestmark = pytest.mark.slow


def run(folder: Path, *command: str) -> str:
    """git or dvc in a project, whose stages run the project's own sdgbias. Fails with what was
    printed."""
    parts = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = dict.fromkeys(parts, "tester") | {"PYTHONPATH": str(folder), "PATH": path}
    done = subprocess.run(
        command,
        cwd=folder,
        env=commands.environment() | variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def dvc(folder: Path, *arguments: str) -> str:
    return run(folder, sys.executable, "-m", "dvc", *arguments)


def repro(folder: Path, *more: str) -> list[str]:
    """The stages that ran, in order."""
    printed = dvc(folder, "repro", *more)
    return re.findall(r"^Running stage '([\w-]+)'", printed, flags=re.MULTILINE)


def commit(folder: Path) -> None:
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-q", "--allow-empty", "-m", "x")


def params(folder: Path, **sections: dict[str, object]) -> None:
    path = folder / "params.yaml"
    content = yaml.safe_load(path.read_text())
    for name, values in sections.items():
        content[name] = {**content[name], **values} if isinstance(values, dict) else values
    path.write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in git and DVC, small, built once; its indicator series lie in a folder
    of their own."""
    folder = tmp_path_factory.mktemp("first") / "project"
    (folder / "data").mkdir(parents=True)
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(REPOSITORY / name, folder)
    for name in ("sdgbias", "expectations"):  # with what Python and numba compiled of it
        shutil.copytree(REPOSITORY / name, folder / name)
    run(folder, "git", "init", "-q", ".")
    dvc(folder, "init", "-q")
    shutil.copy(REPOSITORY / ".dvc" / "config", folder / ".dvc" / "config")
    (folder / ".gitignore").write_text("__pycache__/\n")
    params(
        folder,
        sample={"clusters": 16, "seed": 5},
        benchmark={"mcq": 24, "regression": 6},
        indicators="series",
        people={"people": 24, "seed": 5},
    )  # type: ignore[arg-type]
    shutil.copytree(REPOSITORY / "data" / "indicators", folder / "series")
    commit(folder)
    assert sorted(repro(folder)) == sorted([*STAGES, *PEOPLE])
    commit(folder)
    return folder


def digests(folder: Path) -> dict[str, object]:
    """What dvc.lock says of every stage: the md5 of all that goes in and comes out."""
    return dict(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


def test_a_second_repro_runs_nothing(first: Path) -> None:
    before = (first / "dvc.lock").read_bytes()
    assert repro(first) == []
    assert (first / "dvc.lock").read_bytes() == before


def test_metrics_and_plots_speak_of_the_benchmark(first: Path) -> None:
    card = json.loads((first / "data/benchmark/benchmark.json").read_text())
    [shown] = json.loads(dvc(first, "metrics", "show", "--json"))[""]["data"].values()
    assert shown["data"]["counts"]["items_mcq"] == card["counts"]["items_mcq"] == 24
    assert shown["data"]["left_out"] == card["quarantined"]
    assert shown["data"]["answers_percent"] == card["label_shares_percent"]
    drawn = json.loads(dvc(first, "plots", "show", "--json", "--out", "drawn"))["data"]
    titles = {"answers in percent of a pillar's questions", "questions", "rows left out"}
    assert titles <= set(drawn)
    for title in titles:
        assert drawn[title][0]["content"]["data"]["values"]


def test_a_second_machine_has_nothing_to_do(first: Path, tmp_path: Path) -> None:
    """Push to a folder, clone, pull; one stage that is built anew there has the same hashes."""
    dvc(first, "remote", "add", "--force", "--default", "store", str(tmp_path / "store"))
    commit(first)
    dvc(first, "push", "-q")
    second = tmp_path / "elsewhere" / "second"
    run(first, "git", "clone", "-q", str(first), str(second))
    dvc(second, "pull", "-q")
    assert repro(second) == []
    assert repro(second, "--force", "--single-item", "items") == ["items"]
    assert digests(second) == digests(first)
    assert run(second, "git", "status", "--porcelain", "dvc.lock") == ""


@pytest.mark.long
def test_one_series_and_one_knob_rebuild_only_what_depends_on_them(
    first: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(first, tmp_path / "project", symlinks=True))
    path = folder / "series" / "sh_sta_stunt.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table["value"] = (pd.to_numeric(table["value"]) / 2).astype(str)
    table.to_csv(path, index=False)
    assert repro(folder, "items") == ["series", "items"]  # what follows is run below
    # one knob: only what it turns
    params(folder, benchmark={"mcq": 18})
    assert repro(folder) == AFTER_ITEMS
    assert len(pd.read_parquet(folder / "data" / "benchmark" / "items_mcq.parquet")) == 18
    before, after = digests(first), digests(folder)
    assert {stage for stage in [*STAGES, *PEOPLE] if before[stage] == after[stage]} == {
        *PEOPLE,
        "sample",
        "clusters",
        "images",
    }
    # back again: from DVC's cache, without building
    shutil.copy(first / "series" / "sh_sta_stunt.csv", path)
    shutil.copy(first / "params.yaml", folder)
    assert repro(folder) == []
    assert digests(folder) == before
