"""`sdgbias demo` in a clone: what it leaves in git, and what DVC keeps of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sdgbias import store
from sdgbias.cli import start
from sdgbias.cli.options import query_table
from sdgbias.errors import InfrastructureError
from sdgbias.suites import facet
from tests.builders.commands import REPOSITORY, ok, refused, sdgbias
from tests.builders.numbers import numbers_of


def git(folder: Path, *command: str) -> str:
    author = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
    done = subprocess.run(
        ["git", *author, *command], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_git_ignores_whatever_a_stage_writes(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / ".gitignore", tmp_path)
    git(tmp_path, "init", "-q")
    stages = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    outs = [next(iter(o)) if isinstance(o, dict) else o for s in stages.values() for o in s["outs"]]
    for out in outs:
        (tmp_path / out).mkdir(parents=True)
        (tmp_path / out / "file").touch()
    assert git(tmp_path, "status", "--porcelain", "--untracked-files=all") == "?? .gitignore\n"


def test_the_table_of_groups_says_why_a_disparity_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    run = {"run_id": "m-1", "model": "m", "benchmark_id": "b1", "suite": "people"}
    run["finished_at"] = "2026-11-21"
    row = {"task": "direct", "test": "p1", "method": "full", "indicator": "all-52"}
    row |= {"pillar": "gender:male-female", "metric": "disparity", "n": 33}
    rows = numbers_of([{**row, "value": np.nan, "missing_reason": facet.NOT_UNDERSTOOD}])
    store.publish(path, run, {"numbers": rows})
    table = query_table(path, "people", ["m-1"])
    assert table[["n", "note"]].values.tolist() == [[33, "no answer understood"]]
    assert table[["disparity", "low", "high"]].isna().all(axis=None)


def test_prefect_writes_nothing_outside_the_demos_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_HOME", "PREFECT_SERVER_MEMO_STORE_PATH"):
        monkeypatch.delenv(name, raising=False)
    code = "from prefect.settings import get_current_settings as now; "
    code += "print(now().home, now().server.memo_store_path)"
    command = [sys.executable, "-c", code]
    shown = subprocess.check_output(command, env=start.environment(), text=True).split()
    home = tmp_path / "results" / ".prefect"
    assert shown == [str(home), str(home / "memo_store.toml")]


@pytest.mark.parametrize("own", [False, True])
def test_the_demo_keeps_its_lock_apart_and_leaves_a_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    lock, kept = Path("dvc.lock"), Path(".dvc/tmp/demo.lock")
    if own:
        lock.write_text("the user's")
    for night in ("first", "second"):
        with start.lock_apart():
            before = lock.read_text() if lock.exists() else ""
            assert before == ("the user's" if own else "" if night == "first" else "of the first")
            if not own:
                lock.write_text(f"of the {night}")
        assert lock.exists() == own and kept.exists() != own


def test_json_leaves_standard_output_to_its_value(tmp_path: Path) -> None:
    """What a stage prints, and why one failed, is on standard error."""
    (tmp_path / "dvc.yaml").write_text("stages: {sample: {cmd: exit 3}}\n")
    git(tmp_path, "init", "-q")
    done = sdgbias("demo", "--json", cwd=tmp_path, registry=REPOSITORY)
    assert done.returncode == InfrastructureError.exit_code and done.stdout == ""
    assert "== data: " in done.stderr and "run the same command again" in done.stderr


def test_a_project_without_models_has_no_demo(tmp_path: Path) -> None:
    ok("init", cwd=tmp_path)
    assert "sdgbias register-model REPO" in refused(2, "demo", cwd=tmp_path)
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_a_clone_is_clean_after_the_demo(tmp_path: Path) -> None:
    """Of a project of this size: a clone of what is committed here."""
    clone = tmp_path / "clone"
    git(REPOSITORY, "clone", "-q", "--shared", str(REPOSITORY), str(clone))
    params = yaml.safe_load((clone / "params.yaml").read_text(encoding="utf-8"))
    params["sample"]["clusters"], params["people"]["people"] = 40, 30
    params["benchmark"] |= {"mcq": 40, "regression": 10}
    (clone / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "--allow-empty", "-m", "as it is here")
    command = [sys.executable, "-m", "sdgbias.cli", "demo", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert git(clone, "status", "--porcelain") == ""
    found = json.loads(done.stdout)
    assert {row["model"] for row in found["accuracy"]} == {"tiny-llava", "tiny-qwen"}
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in found["accuracy"])
    assert found["people"] and found["report"] == "reports/latest/index.html"
    page = (clone / "reports/latest/night.html").read_text(encoding="utf-8")
    assert "finished" in page and "under way" not in page
    shown = done.stdout + done.stderr
    assert "tiny-llava: scoring prompts" in shown or "tiny-llava (people): " in shown
    # "wandb: 4 s", "wandb: W&B, 3 of 4" and "wandb: done (4 s)" are of a step of the night,
    # "wandb: Syncing run" is of W&B
    words = re.compile(r"Traceback|Warning|^wandb: (?!\d+ (?:s|min|h)\b|W&B, |done )|To track")
    assert [line for line in shown.splitlines() if words.search(line)] == []


def test_dvc_works_where_there_is_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of the project, unpacked: DVC ended it, and the demo with it."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {s: {cmd: touch done}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    start.allow_no_git()
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], check=True)
    assert (tmp_path / "done").exists()
    versioned = tmp_path / "versioned"
    (versioned / ".git").mkdir(parents=True)
    monkeypatch.chdir(versioned)
    start.allow_no_git()
    assert not (versioned / ".dvc").exists(), "settings where git is"
