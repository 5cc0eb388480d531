"""What can be told before an engine is loaded: these need no vLLM."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines import vllm_support
from sdgbias.engines.options import VllmOptions, read
from sdgbias.engines.vllm import VLLM
from sdgbias.engines.vllm_server import Server, settings
from sdgbias.registry.spec import ModelSpec
from tests.builders.refusals import Refusal

ROOT = Path(__file__).resolve().parents[2]


def test_weights_that_are_not_there(tiny: ModelSpec, tmp_path: Path, refusal: Refusal) -> None:
    with refusal():
        VLLM(tiny, tmp_path)


def test_an_entrys_options_are_the_servers_settings(tiny: ModelSpec) -> None:
    options = {
        "data_parallel_size": 2,
        "distributed_executor_backend": "ray",
        "pipeline_parallel_size": 3,
        "quantization": "fp8",
        "tensor_parallel_size": 4,
    }
    processor = {"max_pixels": 200704}
    spec = replace(tiny, options={**options, "max_images": 2, "processor": processor})
    found = settings(spec, ROOT, read(spec, VllmOptions))
    head = {"head_dtype": "float32"}
    expected = {
        **options,
        "limit_mm_per_prompt": {"video": 0, "image": 2},
        "mm_processor_kwargs": {"use_fast": False, **processor},
        "dtype": "float32",
        # the head of the language model inside the multimodal one as well
        "hf_overrides": {**head, "text_config": head},
    }
    assert expected.items() <= {k: v for k, v in found.items() if k in expected}.items()
    alone = settings(spec, ROOT, read(spec, VllmOptions), pictured=False)
    assert not [name for name in alone if "mm_" in name], "a language model refuses them"


LAST = "RuntimeError: Engine core failed to start"
LOGS = {
    "memory": f"ValueError: To serve one request, 3 GiB KV cache memory is needed.\n{LAST}",
    "weights": f"RuntimeError: Cannot find any model weights\n{LAST}",
    "head": f"ValueError: A head_dtype is only supported for an unquantized lm_head.\n{LAST}",
    "no traceback": "no driver",
    # a model that vLLM doesn't serve; of the warning before it only the form is that of an error
    "unserved": "(APIServer pid=9) WARNING 11-28 This can cause errors like `OSError: [Errno 24]`\n"
    f"ValidationError: 1 validation error for ModelConfig\n{LAST}",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_server_that_does_not_start_is_one_line(
    tiny: ModelSpec, log: str, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\nsys.exit({log!r})\n")
    python.chmod(0o755)
    monkeypatch.setenv(vllm_support.ENV_PYTHON, str(python))
    server = Server(tiny, ROOT, read(tiny, VllmOptions))
    with refusal():
        server.start("key")
    assert server.ended
