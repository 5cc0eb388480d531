"""The resources of this machine, and the memory that a model needs: the rule used by `sdgbias
register-model`.

A device needs 1.15 x its share of the weights (parameters x bytes of the dtype, divided by the
devices that share the model), plus room for activations and key-value cache: as much as the
weights, at least 0.5 and at most 4 GiB. An estimate, not a measurement.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OVERHEAD, LEAST_ROOM, MOST_ROOM = 1.15, 0.5, 4.0
RULE = "1.15 x weights (divided by --tensor-parallel) + room: as much as the weights, 0.5 to 4 GiB"


@dataclass(frozen=True)
class Machine:
    """gpus: GiB of each; ram: GiB available to all processes here together."""

    gpus: tuple[float, ...]
    ram: float

    def words(self) -> str:
        if not self.gpus:
            return f"no GPU, {self.ram:.0f} GiB of memory"
        return (
            f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)} of"
            f" {', '.join(sorted({f'{g:.0f}' for g in self.gpus}))} GiB"
        )


def this() -> Machine:
    """The GPUs that nvidia-smi lists (none where it is missing or fails), and main memory within
    this control group's limit."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or 'max'
        ram = min(ram, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return Machine(_gpus(), ram / GIB)


def _gpus() -> tuple[float, ...]:
    command = [
        "nvidia-smi",
        "--query-gpu=memory.total",
        "--format=csv,noheader,nounits",
    ]  # MiB, one line each
    if shutil.which(command[0]) is None:
        return ()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return tuple(int(line) / 1024 for line in done.stdout.split("\n") if line.strip())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def weights_gib(params: float, dtype: str) -> float:
    """GiB of weights with this many parameters."""
    return params * BYTES[dtype] / GIB


def need(weights: float, devices: int = 1) -> float:
    """GiB needed on each of the devices that share weights of this many GiB."""
    return OVERHEAD * weights / devices + min(MOST_ROOM, max(LEAST_ROOM, weights / devices))


def fits(gib: float, devices: int, machine: Machine) -> bool:
    """Whether this many devices of the machine have this much memory each; without GPUs, whether
    main memory is large enough."""
    if machine.gpus:
        return sum(memory >= gib for memory in machine.gpus) >= devices
    return devices == 1 and machine.ram >= gib
