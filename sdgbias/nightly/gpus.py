"""A lock for each GPU of this host, so that a night and what asks a model beside it (`sdgbias
evaluate`, `models enable`, `models parity`, the watch) never share one.

The locks are files of the host (in SDGBIAS_GPU_LOCKS, else the temporary folder), not of a server:
they hold for every process here, name the GPU itself, and end with the process that has them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sdgbias import locks
from sdgbias.errors import Busy, InfrastructureError
from sdgbias.registry import machine
from sdgbias.registry.spec import ModelSpec

#: Names the folder of the locks, one for all users of a host.
ENV_LOCKS = "SDGBIAS_GPU_LOCKS"
#: Set for the process of a model whose GPUs the night holds for it.
HELD = "SDGBIAS_GPUS_HELD"
LOCKS: dict[str, ExitStack] = {}  # GPU -> its lock, of those that this process holds
CLAIMED_OF: list[str] = []  # visible before `claim` hid the others


@dataclass(frozen=True)
class GpuHost:
    """gpus: as CUDA_VISIBLE_DEVICES names them; (): models are not placed. most: models at a time;
    0: as many as the GPUs hold, and one that needs none."""

    gpus: tuple[str, ...] = ()
    most: int = 0


def here(most: int) -> GpuHost:
    """This host. A single GPU is not handed out where models run one at a time: nothing is set."""
    gpus = machine.visible()
    return GpuHost(gpus if len(gpus) > 1 or most > 1 else (), most)


def take(count: int, gpus: Sequence[str], who: str) -> tuple[str, ...] | None:
    """Holds the first ``count`` of these GPUs that are free, until `release` or the end of this
    process; None, and no further one, where fewer are. Call both from one thread. ``who``: for the
    messages of others. Raises InfrastructureError: no lock can be written."""
    who = f"process {os.getpid()}, {who}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    taken: list[str] = []
    for gpu in gpus:
        if gpu in LOCKS or len(taken) == count:
            continue
        path, stack = lock_of(gpu), ExitStack()
        with suppress(Busy):
            stack.enter_context(locks.only_one(path, _unwritable, Busy, who, everyone=True))
            LOCKS[gpu] = stack
            taken.append(gpu)
    if len(taken) < count:
        release(taken)
        return None
    return tuple(taken)


def release(gpus: Sequence[str]) -> None:
    """Ends a `take`."""
    for gpu in gpus:
        LOCKS.pop(gpu).close()


def holders(gpus: Sequence[str]) -> dict[str, str]:
    """GPU -> who holds it, of those that other processes hold."""
    paths = {gpu: lock_of(gpu) for gpu in gpus if gpu not in LOCKS}
    return {
        gpu: locks.holder(path) or "another process"
        for gpu, path in paths.items()
        if path.exists() and locks.is_held(path)
    }


def claim(spec: ModelSpec) -> None:
    """Takes free GPUs for what asks a model in this process, to its end, and hides the others.
    Nothing is done in a model's process of a night that holds them, and on a host with one GPU.
    Raises Busy: too few are free."""
    gpus = CLAIMED_OF or machine.visible()
    count = min(len(gpus), machine.gpus_of(spec))
    single = len(gpus) < 2 and "CUDA_VISIBLE_DEVICES" not in os.environ
    if os.environ.get(HELD) or single or count <= len(LOCKS):
        return
    if take(count - len(LOCKS), gpus, f"sdgbias at {spec.name}") is None:
        busy = holders(gpus)
        raise Busy(
            f"{spec.name} takes {count} of the {len(gpus)} GPUs here, and {', '.join(busy)} are"
            f" in use: {next(iter(busy.values()), '')}. Let that end, then run this again"
        )
    CLAIMED_OF[:] = gpus
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(LOCKS)


def lock_of(gpu: str) -> Path:
    """The lock of a GPU, in a folder that is made for all users of the host."""
    folder = Path(os.environ.get(ENV_LOCKS) or Path(tempfile.gettempdir(), "sdgbias-gpus"))
    try:
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o1777)  # as /tmp: nobody removes the locks of others
    except OSError as error:
        raise _unwritable(error) from None
    name = gpu if os.environ.get(machine.ENV_GPUS) else machine.serials().get(gpu, gpu)
    return folder / f"{name.replace('/', '_')}.lock"


def _unwritable(error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"GPUs can't be locked: {error.filename}: {error.strerror}; name a folder that all users"
        f" of this host may write: {ENV_LOCKS}"
    )
