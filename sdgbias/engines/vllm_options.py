"""How vLLM is started: its arguments from the checked options of a registry entry, and the
environment variables of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sdgbias.engines.options import VllmOptions

#: The same pixels as in the transformers engine, bit for bit: Pillow's. Only image processors
#: accept this keyword; the newer one, `backend`, also reaches video processors, which have no
#: Pillow version.
_PIXELS = {"use_fast": False}
_PASSED = {
    "block_size",
    "enforce_eager",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "pipeline_parallel_size",
    "quantization",
    "tensor_parallel_size",
}


def settings(options: VllmOptions, cpu: bool) -> dict[str, Any]:
    """The engine's arguments from checked options. On CPU the engine's defaults reserve nearly all
    memory for the cache and use blocks of 128 tokens, which are longer than most prompts, so that
    nothing would be reused."""
    chosen = options.model_dump(include=_PASSED, exclude_none=True)
    chosen.setdefault("enforce_eager", cpu)
    if cpu:
        chosen.setdefault("block_size", 32)
    if cpu or options.kv_cache_gib:
        chosen["kv_cache_memory_bytes"] = int((options.kv_cache_gib or 1) * 2**30)
    return chosen


def pictures(options: VllmOptions) -> dict[str, Any]:
    """The engine's arguments about pictures, which it refuses for a language model."""
    most = {"image": options.max_images} if options.max_images else {}
    return {
        "limit_mm_per_prompt": {"video": 0} | most,
        "mm_processor_kwargs": {**_PIXELS, **options.processor},
    }


def set_environment(cpu: bool) -> None:
    """Sets the environment variables of vLLM, here because the processes that it starts must see
    them too."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the same batches on every run
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:
        wanted["TORCHDYNAMO_DISABLE"] = (
            "1"  # else one small function is compiled with the C++ compiler: 15 s, on every start
        )
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


@contextmanager
def offline(local: bool) -> Iterator[None]:
    """A model in a folder sends no request to a hub while it loads, nor do this process's
    children."""
    before = os.environ.get("HF_HUB_OFFLINE")
    if local:
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if local and before is None:
            del os.environ["HF_HUB_OFFLINE"]
        elif before is not None:
            os.environ["HF_HUB_OFFLINE"] = before
