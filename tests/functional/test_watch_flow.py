"""The daily look at the hub as Prefect runs it: a new commit becomes a candidate, a hub that is
down is a failed run and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.builders.commands import REPOSITORY, add_model, environment
from tests.builders.hub import Hub, Repo, commit, weights

VLM = {
    "config.json": {"model_type": "llava", "vision_config": {}, "dtype": "bfloat16"},
    "model.safetensors": weights(10),
}


#: Two looks in one process, whose Prefect server takes longest to start; the hub is gone by the
#: second.
TWO_LOOKS = """
import os
from flows.watch import watch
print(watch(return_state=True).message)
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
print(watch(return_state=True).message)
"""


def watch_twice(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", TWO_LOOKS],
        cwd=REPOSITORY,
        env={**environment(folder), "PREFECT_HOME": str(folder / "prefect")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_what_is_new_becomes_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        commit(VLM, "first"),
        commit({**VLM, "model.safetensors": weights(20)}, "second"),
    )
    add_model(tmp_path, "vlm", backend="hf", repo="lab/vlm", revision=first.sha)
    (tmp_path / "registry" / "watch.yaml").write_text("commits: true\n")
    with Hub({"lab/vlm": Repo([first, second], params=7_000_000_000)}) as hub:
        hub.into(monkeypatch, tmp_path / "hf")
        first_look, second_look = watch_twice(tmp_path)
    assert "1 of 1 new: vlm-" in first_look and "can't be reached" in second_look
    made = sorted(path.name for path in (tmp_path / "registry" / "models").iterdir())
    assert made == [f"vlm-{second.sha[:8]}.yaml", "vlm.yaml"]
    assert (
        yaml.safe_load((tmp_path / "registry" / "models" / made[0]).read_text())["state"]
        == "candidate"
    )
