"""What can be told before an engine is loaded: these need no vLLM."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines import vllm_support
from sdgbias.engines.options import VllmOptions, read
from sdgbias.engines.vllm import VLLM
from sdgbias.engines.vllm_server import Server
from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from tests.builders.refusals import Refusal

ROOT = Path(__file__).resolve().parents[2]


def test_weights_that_are_not_there(tiny: ModelSpec, tmp_path: Path, refusal: Refusal) -> None:
    with refusal():
        VLLM(tiny, tmp_path)


def test_an_entrys_options_are_the_servers_arguments(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vllm_support.ENV_PYTHON, sys.executable)
    options = {
        "data_parallel_size": 2,
        "distributed_executor_backend": "ray",
        "max_images": 2,
        "pipeline_parallel_size": 3,
        "processor": {"max_pixels": 200704},
        "quantization": "fp8",
        "tensor_parallel_size": 4,
    }
    spec = replace(tiny, options=options)
    line = " ".join(Server(spec, ROOT, read(spec, VllmOptions)).arguments(pictured=True))
    for argument in (
        "--data-parallel-size 2",
        "--distributed-executor-backend ray",
        "--pipeline-parallel-size 3",
        "--quantization fp8",
        "--tensor-parallel-size 4",
        '--limit-mm-per-prompt {"video": 0, "image": 2}',
        '--mm-processor-kwargs {"use_fast": false, "max_pixels": 200704}',
        "--dtype float32",
        # the head of the language model inside the multimodal one as well
        '--hf-overrides {"head_dtype": "float32", "text_config": {"head_dtype": "float32"}}',
    ):
        assert argument in line
    alone = " ".join(Server(spec, ROOT, read(spec, VllmOptions)).arguments(pictured=False))
    assert "mm-" not in alone, "a language model refuses them"


LOGS = {
    "memory": "ValueError: To serve one request, 3 GiB KV cache memory is needed.",
    "weights": "RuntimeError: Cannot find any model weights",
    "head": "ValueError: A head_dtype is only supported for an unquantized lm_head.",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_the_kind_of_a_failed_start(
    tiny: ModelSpec, log: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vllm_support.ENV_PYTHON, sys.executable)
    server = Server(tiny, ROOT, read(tiny, VllmOptions))
    server._log.write_text(f"INFO loading\n{log}\nRuntimeError: Engine core failed to start\n")
    with refusal():
        raise server._refusal()


def test_a_server_that_does_not_start_is_one_line(
    tiny: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no driver')\n")
    python.chmod(0o755)
    monkeypatch.setenv(vllm_support.ENV_PYTHON, str(python))
    server = Server(tiny, ROOT, read(tiny, VllmOptions))
    with pytest.raises(ModelError, match=r"can't load .*: the server ended with .* 1: no driver"):
        server.start("key", pictured=True)
    assert server.ended
