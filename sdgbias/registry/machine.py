"""The resources of this machine, and the memory that a model needs: the rule used by `sdgbias
register-model`.

A device needs 1.2 x its share of the weights (parameters x bytes of the dtype, divided by the
devices that share the model): accelerate's rule of thumb for inference, which allows a fifth of the
weights for everything else; at least 0.5 GiB. An estimate, not a measurement.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sdgbias.errors import UsageError
from sdgbias.registry.spec import ModelSpec

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: LEAST: GiB that the libraries take by themselves.
OVERHEAD, LEAST = 1.2, 0.5
#: Limits of parameters -> prompts per batch where memory is short.
BATCH_SIZES = ((1e8, 32), (1e9, 16), (9e9, 8))
#: Cache and activations of a prompt with a picture of 576 tokens, of the memory of the weights:
#: 0.43 of 13.2 GiB (bench/gpu_views).
PROMPT_SHARE = 0.033
#: Numbers of GPUs that may share a model.
DEGREES = (1, 2, 4, 8)
#: Names the GPUs to judge for instead of those of this machine, such as 8x80: eight of 80 GiB.
ENV_GPUS = "SDGBIAS_GPUS"


@dataclass(frozen=True)
class Machine:
    """gpus: GiB of each; ram: GiB available to all processes here together."""

    gpus: tuple[float, ...]
    ram: float

    def words(self) -> str:
        if not self.gpus:
            return f"no GPU, {self.ram:.0f} GiB of memory"
        sizes = ", ".join(sorted({f"{memory:.0f}" for memory in self.gpus}))
        return f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)} of {sizes} GiB"


def devices_for(weights: float, here: Machine, heads: int = 0) -> int:
    """The fewest GPUs of this machine that weights of so many GiB fit on; 0 where they fit on none.
    The devices divide the decoder's attention ``heads`` among them (0: not known)."""
    for devices in DEGREES if here.gpus else (1,):
        if heads % devices == 0 and fits(need(weights, devices), devices, here):
            return devices
    return 0


def heads_of(config: Mapping[str, Any]) -> int:
    """Attention heads of the decoder by config.json; 0: not known."""
    thinker = config.get("thinker_config")  # of a model that also speaks, the part that is loaded
    config = thinker if isinstance(thinker, dict) else config
    parts = [config.get(name) for name in ("text_config", "llm_config", "language_config")]
    for part in (*parts, config):
        heads = part.get("num_attention_heads") if isinstance(part, dict) else None
        if isinstance(heads, int) and not isinstance(heads, bool) and heads > 0:
            return heads
    return 0


def this() -> Machine:
    """The GPUs that nvidia-smi lists (none where it is missing or fails), or those that
    SDGBIAS_GPUS names; and main memory within this control group's limit. UsageError for a
    SDGBIAS_GPUS that isn't COUNTxGIB."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or 'max'
        ram = min(ram, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return Machine(_gpus(), ram / GIB)


#: The ways in which vLLM spreads a model over devices.
_KINDS = ("tensor", "pipeline", "data")


def gpus_of(spec: ModelSpec) -> int:
    """GPUs that a model takes where there are any: option `num_gpus`, else vLLM's
    `tensor_parallel_size` x `pipeline_parallel_size` x `data_parallel_size`, else 1; 0 without
    local weights."""
    if spec.backend == "api" or spec.backend.startswith("planted"):
        return 0
    named = spec.options.get("num_gpus")
    sizes = [spec.options.get(f"{kind}_parallel_size", 1) for kind in _KINDS]
    sizes = sizes if named is None else [named]
    # a bad value is reported when the engine is loaded
    return math.prod(size for size in sizes if isinstance(size, int))


def visible() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; those of the
    simulated host where SDGBIAS_GPUS names one. UsageError: SDGBIAS_GPUS isn't COUNTxGIB."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(gpu for part in named.split(",") if (gpu := part.strip()) not in ("", "-1"))
    if os.environ.get(ENV_GPUS):
        return tuple(str(number) for number in range(len(this().gpus)))
    return tuple(serials())


@cache
def serials() -> dict[str, str]:
    """Index of each GPU -> its id, by nvidia-smi. An index names another GPU in every container
    and Slurm job, an id the same one."""
    return {row[0].strip(): row[1].strip() for row in _nvidia("index,uuid") if len(row) == 2}


def _nvidia(query: str) -> list[list[str]]:
    """What nvidia-smi says of each GPU; nothing where it is missing or fails. Memory in MiB."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split(",") for line in done.stdout.splitlines() if line.strip()]


def _gpus() -> tuple[float, ...]:
    if named := os.environ.get(ENV_GPUS, ""):
        match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3}(?:\.\d+)?)", named)
        if not match:
            raise UsageError(f"{ENV_GPUS}={named}: valid: COUNTxGIB, such as 8x80")
        return (float(match[2]),) * int(match[1])
    try:
        return tuple(int(memory) / 1024 for (memory,) in _nvidia("memory.total"))
    except ValueError:  # no number, such as [N/A]
        return ()


def weights_gib(params: float, dtype: str) -> float:
    """GiB of weights with this many parameters."""
    return params * BYTES[dtype] / GIB


def need(weights: float, devices: int = 1) -> float:
    """GiB needed on each of the devices that share weights of this many GiB."""
    return max(LEAST, OVERHEAD * weights / devices)


def fits(gib: float, devices: int, machine: Machine) -> bool:
    """Whether this many devices of the machine have this much memory each; without GPUs, whether
    main memory is large enough."""
    if machine.gpus:
        return sum(memory >= gib for memory in machine.gpus) >= devices
    return devices == 1 and machine.ram >= gib


def batch_size(params: float, weights: float, devices: int, machine: Machine) -> int:
    """A starting value in prompts per batch, for a model with this many parameters whose weights
    are this many GiB. Bigger models leave less room for activations; a GPU fills half of what the
    weights leave, since it scores more than twice as fast with 128 prompts as with 8
    (docs/reference/benchmarks.md)."""
    least = next((size for limit, size in BATCH_SIZES if 0 < params < limit), 4)
    if not machine.gpus or not weights:
        return least
    room = min(machine.gpus) * devices - need(weights)
    prompts = room / 2 / (PROMPT_SHARE * weights)
    return max([least, *(size for size in (16, 32, 64, 128) if size <= prompts)])
