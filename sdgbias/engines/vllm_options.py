"""The options of a registry entry of the vLLM engine, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sdgbias.errors import RegistryError, one_of
from sdgbias.types import ModelSpec


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _mapping(value: object) -> bool:
    return isinstance(value, dict)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


#: option -> (what is valid, in words; the check)
OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "block_size": (
        (
            "tokens per cache block, of which only whole ones are shared: a whole number from 1 on"
            " (CPU: a multiple of 32; default 32 there)"
        ),
        _whole,
    ),
    "chunk_timeout": (
        "seconds, or 0 for no limit: see registry/README.md",
        lambda v: not isinstance(v, bool) and isinstance(v, int | float) and v >= 0,
    ),
    "enforce_eager": (
        "true or false: no compiled graphs, starts sooner and runs slower on a GPU (default true on"
        " CPU, false on a GPU)",
        _flag,
    ),
    "engine_process": (
        (
            "true or false: the engine in a process of its own, where preparing and scoring overlap"
            " (default false: same batches on every run)"
        ),
        _flag,
    ),
    "gpu_memory_utilization": (
        "share of the device's memory, above 0 and up to 1",
        lambda v: _number(v) and v <= 1,
    ),
    "kv_cache_gib": (
        "GiB for the key-value cache, in place of the share: a number above 0 (default 1 on CPU)",
        _number,
    ),
    "lora": (
        (
            "a LoRA adapter on the weights: OWNER/NAME@COMMIT, local:FOLDER or"
            " path:/ABSOLUTE/FOLDER; no other engine takes one"
        ),
        lambda v: isinstance(v, str),
    ),
    "max_images": ("pictures per prompt: a whole number from 1 on (default no limit)", _whole),
    "max_model_len": (
        "longest prompt and answer in tokens; smaller needs less memory: a whole number from 1 on"
        " (default the model's own)",
        _whole,
    ),
    "max_num_batched_tokens": ("tokens per step: a whole number from 1 on", _whole),
    "max_num_seqs": ("prompts per step: a whole number from 1 on", _whole),
    "pipeline_parallel_size": (
        "devices that hold one part of the layers each: a whole number from 1 on (default 1)",
        _whole,
    ),
    "processor": ("a mapping of settings of the image processor", _mapping),
    "quantization": (
        (
            "how vLLM quantises weights while it loads them, such as fp8; scores are then others"
            " than those of hf (default: as the repository says)"
        ),
        lambda v: isinstance(v, str) and v != "",
    ),
    "template": ("a mapping: see registry/README.md", _mapping),
    "tensor_parallel_size": (
        "devices that share one model: a whole number from 1 on (default 1)",
        _whole,
    ),
    "warm_first": (
        "true or false: the first prompt of each picture before the others (default false)",
        _flag,
    ),
}
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


def read_options(spec: ModelSpec) -> dict[str, Any]:
    """The options of a registry entry. RegistryError for an unknown name (lists the valid ones) or
    a bad value."""
    where = f"registry/models/{spec.name}.yaml"
    for name, value in spec.options.items():
        if name not in OPTIONS:
            raise RegistryError(f"{where}: {one_of('option', name, OPTIONS)}")
        valid, check = OPTIONS[name]
        if not check(value):
            raise RegistryError(f"{where}: {name} is {value!r}; valid: {valid}")
    return dict(spec.options)


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
