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
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.registry.spec import ModelSpec

ROOT = Path(__file__).resolve().parents[2]


def test_weights_that_are_not_there(tiny: ModelSpec, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"no config.json; registry entry tiny-llava has repo: local:"
    ):
        VLLM(tiny, tmp_path)


@pytest.fixture
def server(tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv(vllm_support.ENV_PYTHON, sys.executable)
    return Server(tiny, ROOT, read(tiny, VllmOptions))


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


@pytest.mark.parametrize(
    ("log", "kind", "words"),
    [
        (
            "ValueError: To serve one request, 3 GiB KV cache is needed, which is larger than the"
            " available KV cache memory.",
            InfrastructureError,
            "raise kv_cache_gib",
        ),
        ("RuntimeError: Cannot find any model weights", ModelError, "Cannot find any model weight"),
        (
            "ValueError: A head_dtype different from the model dtype is only supported for an"
            " unquantized lm_head.",
            ModelError,
            "in float32; set backend: hf in registry/models/tiny-llava.yaml",
        ),
    ],
    ids=["memory", "weights", "head"],
)
def test_the_kind_of_a_failed_start(
    server: Server, log: str, kind: type[Exception], words: str
) -> None:
    server._log.write_text(f"INFO loading\n{log}\nRuntimeError: Engine core failed to start\n")
    error = server._refusal()
    assert isinstance(error, kind) and words in str(error) and "\n" not in str(error)


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
