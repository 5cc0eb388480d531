"""The vLLM engine's arguments from the checked options of a registry entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The same pixels as in the transformers engine, bit for bit: Pillow's. Only image processors
#: accept this keyword; the newer one, `backend`, also reaches video processors, which have no
#: Pillow version.
_PIXELS = {"use_fast": False}
_PASSED = (
    "block_size",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "pipeline_parallel_size",
    "quantization",
    "tensor_parallel_size",
)


def settings(options: Mapping[str, Any], cpu: bool) -> dict[str, Any]:
    """The engine's arguments from checked options. On CPU the engine's defaults reserve nearly all
    memory for the cache and use blocks of 128 tokens, which are longer than most prompts, so that
    nothing would be reused."""
    chosen: dict[str, Any] = {name: options[name] for name in _PASSED if name in options}
    chosen["enforce_eager"] = options.get("enforce_eager", cpu)
    if cpu:
        chosen.setdefault("block_size", 32)
    if cpu or "kv_cache_gib" in options:
        chosen["kv_cache_memory_bytes"] = int(options.get("kv_cache_gib", 1) * 2**30)
    return chosen


def pictures(options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's arguments about pictures, which it refuses for a language model."""
    most = {"image": options["max_images"]} if "max_images" in options else {}
    return {
        "limit_mm_per_prompt": {"video": 0} | most,
        "mm_processor_kwargs": {**_PIXELS, **options.get("processor", {})},
    }
