"""`dvc repro` on a small copy of the project: what runs, what doesn't, and the same hashes on a
second machine. DVC runs in this process; its stages are processes of the copy's own sdgbias."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.builders import commands
from tests.builders.commands import REPOSITORY

STAGES = ["sample", "clusters", "images", "series", "items", "prompts", "card", "check"]
PEOPLE = ["people-sample", "people"]
#: What the copy has smaller, or elsewhere: its indicator series lie in a folder of their own.
SMALLER: dict[str, Any] = {
    "sample": {"clusters": 16, "seed": 5},
    "benchmark": {"mcq": 24, "regression": 6},
    "indicators": "series",
    "people": {"people": 24, "seed": 5},
}


def environment(folder: Path) -> dict[str, str]:
    who = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = dict.fromkeys(who, "tester") | {"PYTHONPATH": str(folder), "PATH": path}
    return commands.environment() | variables


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_dvc() -> int:
    from dvc.cli import main  # its log keeps the standard output that it finds

    return int(main())


def dvc(folder: Path, *words: str) -> str:
    done = commands.run_here(list(words), folder, environment(folder), run_dvc)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def repro(folder: Path, *more: str) -> list[str]:
    """The stages that ran, in order."""
    printed = dvc(folder, "repro", *more)
    return re.findall(r"^Running stage '([\w-]+)'", printed, flags=re.MULTILINE)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")


def change_params(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "params.yaml"
    content = yaml.safe_load(path.read_text())
    for name, values in changes.items():
        content[name] = {**content[name], **values} if isinstance(values, dict) else values
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def digests(folder: Path) -> dict[str, object]:
    """What dvc.lock says of every stage: the md5 of all that goes in and comes out."""
    return dict(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in git and DVC, small, built once."""
    folder = tmp_path_factory.mktemp("first") / "project"
    (folder / "data").mkdir(parents=True)
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(REPOSITORY / name, folder)
    for name in ("sdgbias", "expectations"):  # with what Python and numba compiled of it
        shutil.copytree(REPOSITORY / name, folder / name)
    git(folder, "init", "-q", ".")
    dvc(folder, "init", "-q")
    shutil.copy(REPOSITORY / ".dvc" / "config", folder / ".dvc" / "config")
    (folder / ".gitignore").write_text("__pycache__/\n")
    change_params(folder, SMALLER)
    shutil.copytree(REPOSITORY / "data" / "indicators", folder / "series")
    commit(folder)
    assert sorted(repro(folder)) == sorted([*STAGES, *PEOPLE])
    commit(folder)
    return folder


def test_a_built_project_has_its_metrics_and_nothing_to_do_here_or_on_a_second_machine(
    first: Path, tmp_path: Path
) -> None:
    """Push to a folder, clone, pull; one stage that is built anew there has the same hashes."""
    lock = (first / "dvc.lock").read_bytes()
    assert repro(first) == []
    assert (first / "dvc.lock").read_bytes() == lock

    card = json.loads((first / "data/benchmark/benchmark.json").read_text())
    [shown] = json.loads(dvc(first, "metrics", "show", "--json"))[""]["data"].values()
    assert shown["data"]["counts"]["items_mcq"] == card["counts"]["items_mcq"] == 24
    assert shown["data"]["left_out"] == card["quarantined"]
    assert shown["data"]["answers_percent"] == card["label_shares_percent"]
    drawn = json.loads(dvc(first, "plots", "show", "--json", "--out", "drawn"))["data"]
    for title in ("answers in percent of a pillar's questions", "questions", "rows left out"):
        assert drawn[title][0]["content"]["data"]["values"], title

    dvc(first, "remote", "add", "--force", "--default", "store", str(tmp_path / "store"))
    commit(first)
    dvc(first, "push", "-q")
    second = tmp_path / "elsewhere" / "second"
    git(first, "clone", "-q", str(first), str(second))
    dvc(second, "pull", "-q")
    assert repro(second) == []
    assert repro(second, "--force", "--single-item", "prompts") == ["prompts"]
    assert digests(second) == digests(first)
    assert git(second, "status", "--porcelain", "dvc.lock") == ""


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
    change_params(folder, {"benchmark": {"mcq": 18}})
    assert repro(folder) == ["items", "prompts", "card", "check"]
    assert len(pd.read_parquet(folder / "data" / "benchmark" / "items_mcq.parquet")) == 18
    before, after = digests(first), digests(folder)
    same = {stage for stage in [*STAGES, *PEOPLE] if before[stage] == after[stage]}
    assert same == {*PEOPLE, "sample", "clusters", "images"}
    # back again: from DVC's cache, without building
    shutil.copy(first / "series" / "sh_sta_stunt.csv", path)
    shutil.copy(first / "params.yaml", folder)
    assert repro(folder) == []
    assert digests(folder) == before
