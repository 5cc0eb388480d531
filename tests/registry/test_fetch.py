"""Weights from a hub on loopback into the cache of its real client: pinned, resumed, hashed, within
a budget; and what an evaluation without them says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import _tree_cache, constants, snapshot_download
from typer.testing import CliRunner

from sdgbias.cli.models import models_app
from sdgbias.errors import HubUnreachable, InfrastructureError, UsageError
from sdgbias.registry import entries, fetch
from sdgbias.registry.fetch import (
    DAMAGED,
    FETCHED,
    LICENCE,
    NO_ROOM,
    NOTHING,
    PRESENT,
    REFUSED,
    TROUBLE,
    Disk,
)
from sdgbias.types import ModelSpec
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
    _tree_cache._IN_MEMORY_TREE_CACHE.clear()
    return Path(snapshot_download(spec.repo, revision=spec.revision, local_files_only=True))


def test_the_pinned_files_that_matter_and_no_others(root: Path, hub: Hub, spec: ModelSpec) -> None:
    seen: list[tuple[str, int, int]] = []
    (row,) = fetch.fetch(root, [spec], progress=lambda *told: seen.append(told))
    assert (row.verdict, row.bytes) == (FETCHED, sum(len(_bytes(spec, hub, f)) for f in WANTED))
    snapshot = cached(spec)
    there = {p.relative_to(snapshot).as_posix(): p for p in snapshot.rglob("*") if p.is_file()}
    assert set(there) == WANTED, "neither the newest commit's nor other formats"
    assert there["model.safetensors"].read_bytes() == FILES["model.safetensors"]
    assert seen[-1] == ("fetching vlm (MiB)", 1, 1)
    assert fetch.fetch(root, [spec]) == [replace(row, verdict=PRESENT, bytes=0)]


def _bytes(spec: ModelSpec, hub: Hub, name: str) -> bytes:
    return hub.repos[spec.repo].commits[0].files[name]


def test_fetching_is_online_where_evaluations_are_not(
    root: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch.fetch(root, [spec])[0].verdict == FETCHED
    assert constants.HF_HUB_OFFLINE, "and afterwards nothing goes out again"


def test_an_evaluation_without_them_names_the_command(
    root: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdgbias.engines.hf.loading import load_model

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachable, match="fetch them: sdgbias models fetch vlm"):
        load_model(spec, root)


def test_a_broken_connection_goes_on_where_it_was(
    root: Path, hub: Hub, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", MIB // 4)  # 10 MiB
    hub.cut["model.safetensors"] = MIB // 2
    assert fetch.fetch(root, [spec])[0].verdict == FETCHED
    path = f"/lab/vlm/resolve/{spec.revision}/model.safetensors"
    assert hub.ranges[path] == [f"bytes={MIB // 2}-"], "the second half alone"


def test_after_a_kill_whole_files_are_kept(root: Path, hub: Hub, spec: ModelSpec) -> None:
    snapshot_download(spec.repo, revision=spec.revision, allow_patterns=["*.safetensors"])
    left = Path(constants.HF_HUB_CACHE) / "models--lab--vlm/blobs/x.incomplete"
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 2 * fetch.STALE,) * 2)
    hub.asked.clear()
    (row,) = fetch.fetch(root, [spec])
    assert row.verdict == FETCHED and 0 < row.bytes < 1000, "the small files alone"
    assert not left.exists()


def test_other_bytes_than_the_hub_s_are_removed(root: Path, hub: Hub, spec: ModelSpec) -> None:
    hub.rotten.add("model.safetensors")
    (row,) = fetch.fetch(root, [spec])
    assert row.verdict == DAMAGED and "model.safetensors: other bytes" in row.why
    hub.rotten.clear()
    assert fetch.fetch(root, [spec])[0].verdict == FETCHED
    blob = (cached(spec) / "model.safetensors").resolve()
    blob.write_bytes(b"x" * blob.stat().st_size)
    assert fetch.fetch(root, [spec])[0].verdict == PRESENT, "hashing everything is asked for"
    assert fetch.fetch(root, [spec], Disk(verify=True))[0].verdict == DAMAGED
    assert fetch.fetch(root, [spec])[0].verdict == FETCHED


def test_within_a_budget_what_no_entry_names_goes(root: Path, hub: Hub, spec: ModelSpec) -> None:
    second = hub.repos["lab/vlm"].commits[1].sha
    newer = put(root, "newer", second, state="retired")
    hub.repos["else/vlm"] = Repo([commit(FILES, "else")])
    other = put(root, "other", hub.repos["else/vlm"].commits[0].sha, "else/vlm")
    assert {row.verdict for row in fetch.fetch(root, [newer, other])} == {FETCHED}
    assert fetch.unnamed(root) == []
    asked: list[list[str]] = []

    def answer(yes: bool) -> Disk:
        told = lambda found: asked.append([one.repo for one in found]) or yes  # noqa: E731
        return Disk(limit=int(2.5 * MIB), prune=told)

    (full,) = fetch.fetch(root, [spec], answer(True))
    assert full.verdict == NO_ROOM and asked == [], "an entry names it, though it is retired"
    (root / "registry/models/other.yaml").unlink()
    (full,) = fetch.fetch(root, [spec], answer(False))
    assert full.verdict == NO_ROOM and full.why.startswith("0.0 GiB short; --prune")
    assert asked == [["else/vlm"]] and cached(other).is_dir()
    assert fetch.fetch(root, [spec], answer(True))[0].verdict == FETCHED
    assert not (Path(constants.HF_HUB_CACHE) / "models--else--vlm").exists()
    assert cached(newer).is_dir()


def test_one_that_is_refused_stops_no_other(
    root: Path, hub: Hub, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = commit(FILES, "gated")
    hub.repos |= {
        "shut/gated": Repo([gated], gated=True),
        "shut/down": Repo([commit(FILES, "down")], broken=418),
    }
    rows = fetch.fetch(
        root,
        [
            put(root, "gated", gated.sha, "shut/gated"),
            put(root, "down", hub.repos["shut/down"].commits[0].sha, "shut/down"),
            put(root, "unpinned", "unpinned"),
            put(root, "gone", "ab" * 20),
            put(root, "folder", "local", "local:w"),
            spec,
        ],
    )
    assert [row.verdict for row in rows] == [LICENCE, TROUBLE, REFUSED, REFUSED, NOTHING, FETCHED]
    assert "accept its terms at" in rows[0].why and "register-model lab/vlm" in rows[2].why
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the client's five tries
    with pytest.raises(HubUnreachable):
        fetch.fetch(root, [put(root, "later", "cd" * 20)])


def test_an_adapter_is_fetched_with_its_model(root: Path, hub: Hub, spec: ModelSpec) -> None:
    one = commit({"adapter_config.json": {"r": 4}, "adapter_model.safetensors": b"w"})
    hub.repos["lab/adapter"] = Repo([one])
    named = put(root, "with", spec.revision, options={"lora": f"lab/adapter@{one.sha}"})
    assert [row.verdict for row in fetch.fetch(root, [named])] == [FETCHED, FETCHED]
    assert {one.repo for one in fetch.unnamed(root)} == set()


def test_on_the_command_line(
    root: Path, hub: Hub, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    run = CliRunner().invoke
    assert isinstance(run(models_app, ["fetch"]).exception, UsageError)
    assert run(models_app, ["fetch", "--enabled"]).output == "no model is enabled\n"
    put(root, "on", spec.revision, state="enabled", reason="")
    full = run(models_app, ["fetch", "--enabled", "--disk", "0.0001"])
    assert isinstance(full.exception, InfrastructureError) and "1 of 1" in str(full.exception)
    assert "on: no room, 0.0 GiB" in full.output
    told = run(models_app, ["fetch", "vlm", "--enabled"])
    assert told.exit_code == 0 and told.output == "vlm: fetched, 0.0 GiB\non: in the cache\n"
