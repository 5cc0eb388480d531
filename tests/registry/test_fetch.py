"""Weights from a hub on loopback into the cache of its real client: pinned, resumed, one
that is refused; and what an evaluation without them says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import constants, snapshot_download
from typer.testing import CliRunner

from sdgbias.cli.models import models_app
from sdgbias.errors import DiskFull, HubUnreachable, InfrastructureError, StoreError, UsageError
from sdgbias.registry import entries, fetch
from sdgbias.registry.spec import ModelSpec
from tests.builders.hub import Hub, Repo, commit

MIB = 2**20
FILES = {
    "config.json": {"model_type": "llava"},
    "model.safetensors": bytes(range(256)) * 4096,  # 1 MiB
    "additional_chat_templates/tool.jinja": b"{{ x }}",
    "original/consolidated.safetensors": b"x" * 100,
    "consolidated.safetensors": b"x" * 100,
    "pytorch_model.bin": b"\x80",
    "README.md": b"words",
}
WANTED = {"config.json", "model.safetensors", "additional_chat_templates/tool.jinja"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    first = commit(FILES, "first")
    second = commit({**FILES, "model.safetensors": b"2" * MIB}, "second")
    with Hub({"lab/vlm": Repo([first, second])}) as made:
        made.into(monkeypatch, tmp_path / "hf")
        yield made


@pytest.fixture
def spec(root: Path, hub: Hub) -> ModelSpec:
    return put(root, "vlm", hub.repos["lab/vlm"].commits[0].sha)


def put(root: Path, name: str, revision: str, repo: str = "lab/vlm", **more: object) -> ModelSpec:
    entry = {"name": name, "title": name, "backend": "hf", "repo": repo, "revision": revision}
    entry |= {"state": "candidate", "reason": "new"} | more
    (root / "registry/models" / f"{name}.yaml").write_text(yaml.safe_dump(entry))
    return entries.load(root, name)


def cached(spec: ModelSpec) -> Path:
    """As vLLM asks for it in another process, offline and for whatever there is."""
    code = "import huggingface_hub as hub, sys; print(hub.snapshot_download(sys.argv[1],"
    code += " revision=sys.argv[2], cache_dir=sys.argv[3], local_files_only=True))"
    command = [sys.executable, "-c", code, spec.repo, spec.revision, constants.HF_HUB_CACHE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return Path(done.stdout.strip())


def test_the_pinned_files_that_matter_and_no_others(hub: Hub, spec: ModelSpec) -> None:
    told: list[str] = []
    fetch.fetch(spec, told.append)
    assert told == ["vlm: 0.0 GiB to fetch", "vlm: fetched"]
    snapshot = cached(spec)
    there = {p.relative_to(snapshot).as_posix(): p for p in snapshot.rglob("*") if p.is_file()}
    assert set(there) == WANTED, "neither the newest commit's nor other formats"
    assert there["model.safetensors"].read_bytes() == FILES["model.safetensors"]
    hub.asked.clear()
    fetch.fetch(spec, told.append)
    assert told[2:] == ["vlm: in the cache"]
    assert not [path for path in hub.asked if "/resolve/" in path], "no file is asked for twice"


@pytest.mark.slow  # torch
def test_fetching_is_online_where_evaluations_are_not_and_one_of_them_names_the_command(
    root: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdgbias.engines.hf.load import load_model

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachable, match="fetch them: sdgbias models fetch vlm"):
        load_model(spec, root)
    fetch.fetch(spec, print)
    assert fetch.is_cached(spec)
    assert constants.HF_HUB_OFFLINE, "afterwards nothing goes out again"


def test_what_was_fetched_before_a_kill_or_a_broken_connection_is_kept(
    hub: Hub, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", MIB // 4)  # 10 MiB
    hub.cut["model.safetensors"] = MIB // 2
    weights = {"repo_id": spec.repo, "revision": spec.revision, "allow_patterns": "*.safetensors"}
    snapshot_download(**weights)
    path = f"/lab/vlm/resolve/{spec.revision}/model.safetensors"
    assert hub.ranges[path] == [f"bytes={MIB // 2}-"], "the second half alone"
    assert not fetch.is_cached(spec)
    hub.asked.clear()
    fetch.fetch(spec, print)
    assert fetch.is_cached(spec) and path not in hub.asked


def test_a_disk_without_room_and_a_cache_that_cannot_be_written_are_named(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=MIB // 2))
        with pytest.raises(DiskFull, match="0.0 GiB left, needs 0.0 GiB; make room, or .*HF_HOME"):
            fetch.fetch(spec, print)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with pytest.raises(StoreError, match="file/hub: can't be written .*; make room, or name"):
        fetch.fetch(spec, print)


def test_one_that_is_refused_stops_no_other(
    root: Path, hub: Hub, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    gated = commit(FILES, "gated")
    hub.repos |= {
        "shut/gated": Repo([gated], gated=True),
        "shut/down": Repo([commit(FILES, "down")], broken=418),
    }
    put(root, "gated", gated.sha, "shut/gated")
    put(root, "down", hub.repos["shut/down"].commits[0].sha, "shut/down")
    put(root, "unpinned", "unpinned")
    put(root, "gone", "ab" * 20)
    put(root, "folder", "local", "local:w")
    names = ["gated", "down", "unpinned", "gone", "folder", "vlm"]
    done = CliRunner().invoke(models_app, ["fetch", *names])
    assert isinstance(done.exception, InfrastructureError)
    assert str(done.exception).startswith("4 of 6 are not in the cache, the first: gated: shut/")
    lines = done.stdout.splitlines()
    for line, expected in zip(
        lines,
        (
            "gated: shut/gated: gated, and you are not logged in; accept its terms at ",
            "down: shut/down: the hub answers 418",
            "unpinned: not pinned; first: sdgbias register-model lab/vlm",
            "gone: lab/vlm: no revision",
            "folder: nothing to fetch: it is no hub model",
            "vlm: 0.0 GiB to fetch",
            "vlm: fetched",
        ),
        strict=True,
    ):
        assert line.startswith(expected), line
    put(root, "later", "cd" * 20)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the client's five tries
    away = CliRunner().invoke(models_app, ["fetch", "later", "vlm"])
    assert isinstance(away.exception, HubUnreachable) and not away.stdout, "asked once, for all"


def test_on_the_command_line(root: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    run = CliRunner().invoke
    assert isinstance(run(models_app, ["fetch"]).exception, UsageError)
    assert (
        run(models_app, ["fetch", "--enabled"]).output
        == "No model is enabled. Next: sdgbias models enable NAME\n"
    )
    put(root, "on", spec.revision, state="enabled", reason="")
    done = run(models_app, ["fetch", "vlm", "--enabled"])
    assert done.exit_code == 0
    assert done.stdout == "vlm: 0.0 GiB to fetch\nvlm: fetched\non: in the cache\n"
