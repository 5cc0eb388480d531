"""GPU slots: which models start now, and on which GPUs of this host; and a lock for each GPU, so
that a night and what asks a model beside it (`sdgbias evaluate`, `models enable`, `models parity`,
the watch) never share one.

The locks are files of the host (in SDGBIAS_GPU_LOCKS, else the temporary folder), not of a server:
they hold for every process here, name the GPU itself, and end with the process that has them.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path

from sdgbias import locks
from sdgbias.errors import Busy, RegistryError, StoreError
from sdgbias.registry import machine
from sdgbias.types import ModelSpec

#: Names the folder of the locks, one for all users of a host.
ENV_LOCKS = "SDGBIAS_GPU_LOCKS"
#: Set for the process of a model whose GPUs the night holds for it.
HELD = "SDGBIAS_GPUS_HELD"
_LOCKED: dict[tuple[str, ...], ExitStack] = {}
_CLAIMED_OF: list[str] = []  # visible before `claim` hid the others


@dataclass(frozen=True)
class Need:
    """gpus: that a model takes, 0: none. spreads: whether more engines of it may use spare ones."""

    gpus: int = 0
    spreads: bool = False


@dataclass(frozen=True)
class GpuHost:
    """gpus: as CUDA_VISIBLE_DEVICES names them; (): models are not placed. most: models at a time;
    0: as many as the GPUs hold, and one that needs none."""

    gpus: tuple[str, ...] = ()
    most: int = 0


@dataclass(frozen=True)
class Place:
    """A model that starts, its GPUs (none: it sees what this process sees) and engines."""

    model: str
    gpus: tuple[str, ...] = ()
    engines: int = 1


def need(spec: ModelSpec, engines: int | None = None) -> Need:
    """What a registry entry asks for: GPUs of one engine, times ``engines`` or its
    `data_parallel_size`."""
    from sdgbias.scoring.evaluate import data_parallel
    from sdgbias.scoring.workers import gpus_per_engine

    each, named = gpus_per_engine(spec), engines or "data_parallel_size" in spec.options
    try:
        return Need(ceil(each * (engines or data_parallel(spec))), each >= 1 and not named)
    except RegistryError:  # reported by the model's own process
        return Need(ceil(each))


def starts(
    host: GpuHost,
    wanted: Mapping[str, Need],
    running: Mapping[str, Sequence[str]],
    ended: Collection[str] = (),
    taken: Collection[str] = (),
) -> list[Place]:
    """The models that start now. ``wanted``: all of the night, in their order; ``running``: model
    -> its GPUs; ``taken``: GPUs that other processes hold.

    In order, but a later model may start where an earlier one waits for more GPUs than are free:
    those behind the first that waits get no more GPUs than it leaves, so that none that starts
    from then on delays it. GPUs that no model waits for go to those that start, as
    further engines.
    """
    rank = {model: number for number, model in enumerate(wanted)}
    now = {model: tuple(gpus) for model, gpus in running.items()}
    there = [gpu for gpu in host.gpus if gpu not in taken]
    free = [gpu for gpu in there if not any(gpu in gpus for gpus in now.values())]
    waits, found, held_back = "", [], False
    for model, its in wanted.items():
        if model in now or model in ended:
            continue
        count = its.gpus if its.gpus <= len(host.gpus) else 0  # one that is too large is not run
        alone = not count and sum(not gpus for gpus in now.values()) >= max(1, host.most)
        behind = sum(len(gpus) for other, gpus in now.items() if rank[other] > rank.get(waits, -1))
        room = max(0, len(there) - wanted[waits].gpus - behind) if waits else len(free)
        if alone or (host.most and len(now) >= host.most) or count > min(room, len(free)):
            held_back |= count > 0
            if count > len(free) and count <= len(there) and not waits:
                waits = model
            continue
        gpus = _together(host.gpus, free, count)
        free = [gpu for gpu in free if gpu not in gpus]
        now[model] = gpus
        found.append(Place(model, gpus))
    return found if held_back or host.most else _spread(host, found, wanted, free)


def _together(gpus: Sequence[str], free: Sequence[str], count: int) -> tuple[str, ...]:
    """``count`` of the free GPUs: neighbours (0-3, 4-7) where there are, in the part of the host
    that has fewest others free, so that large neighbourhoods stay whole."""
    if not count:
        return ()
    blocks = [tuple(gpus[i : i + count]) for i in range(0, len(gpus) - count + 1, count)]
    whole = [block for block in blocks if set(block) <= set(free)]

    def others(block: tuple[str, ...]) -> list[int]:
        at, size, around = gpus.index(block[0]), count, []
        while size < len(gpus):
            size *= 2
            around.append(sum(gpu in free for gpu in gpus[at // size * size :][:size]))
        return around

    return min(whole, key=others) if whole else tuple(free[:count])


def _spread(
    host: GpuHost, found: Sequence[Place], wanted: Mapping[str, Need], free: Sequence[str]
) -> list[Place]:
    """Each place with its share of the GPUs that are left, in turn, in whole engines."""
    places, left, given = {place.model: place for place in found}, list(free), True
    while given:
        given = False
        for model, place in places.items():
            count = wanted[model].gpus
            if place.gpus and wanted[model].spreads and count <= len(left):
                more, given = _together(host.gpus, left, count), True
                left = [gpu for gpu in left if gpu not in more]
                places[model] = replace(place, gpus=(*place.gpus, *more), engines=place.engines + 1)
    return list(places.values())


# ----------------------------------------------------------------------
# this host


def here(most: int) -> GpuHost:
    """This host. A single GPU is not handed out where models run one at a time: nothing is set."""
    found = machine.visible()
    return GpuHost(found if len(found) > 1 or most > 1 else (), most)


def lock_folder() -> Path:
    """Where the locks of this host's GPUs are: SDGBIAS_GPU_LOCKS, else in the temporary folder.
    Created for all users; raises OSError where that folder can't be used."""
    folder = Path(os.environ.get(ENV_LOCKS) or Path(tempfile.gettempdir(), "sdgbias-gpus"))
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)  # as /tmp: nobody removes the locks of others
    if folder.is_symlink() or not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder))
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "another user's", str(folder))
    return folder


def unlocked() -> str:
    """Why GPUs can't be locked here, '' if they can."""
    try:
        lock_folder()
    except OSError as error:
        return (
            f"GPUs are not locked: {error.filename}: {error.strerror}; name a folder that all users"
            f" of this host may write: {ENV_LOCKS}"
        )
    return ""


def _lock(gpu: str) -> Path:
    name = gpu if os.environ.get(machine.ENV_GPUS) else machine.serials().get(gpu, gpu)
    return lock_folder() / f"{name.replace('/', '_')}.lock"


def taken(gpus: Sequence[str]) -> set[str]:
    """Those of the GPUs that other processes hold."""
    mine = {gpu for held in _LOCKED for gpu in held}
    found = set()
    for gpu in gpus:
        with suppress(OSError):  # no lock can be held where no file can be
            if gpu not in mine and _lock(gpu).exists() and locks.is_held(_lock(gpu)):
                found.add(gpu)
    return found


def holders(gpus: Sequence[str]) -> dict[str, str]:
    """GPU -> who holds it, of those that other processes hold."""
    busy = taken(gpus)
    return {gpu: _holder(gpu) for gpu in gpus if gpu in busy}


def take(gpus: tuple[str, ...], who: str) -> bool:
    """Holds the GPUs until `release` or the end of this process; False, and none of them, where
    another process holds one. Call both from one thread. ``who``: for the others' messages."""
    who = f"process {os.getpid()}, {who}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    with ExitStack() as stack:
        for gpu in gpus:
            try:
                lock = locks.only_one(_lock(gpu), StoreError, Busy, who, everyone=True)
                stack.enter_context(lock)
            except Busy:
                return False
            except (OSError, StoreError):  # `unlocked` says why
                continue
        _LOCKED[gpus] = stack.pop_all()
    return True


def release(gpus: tuple[str, ...]) -> None:
    """Ends a `take`."""
    _LOCKED.pop(gpus, ExitStack()).close()


def claim(spec: ModelSpec, engines: int | None) -> None:
    """Takes free GPUs for what asks a model in this process, to its end, and hides the others.
    Nothing is done in a model's process of a night that holds them, and on a host with one GPU.
    Raises Busy: too few are free."""
    mine = [gpu for held in _LOCKED for gpu in held]
    found = _CLAIMED_OF or machine.visible()
    count = min(len(found), need(spec, engines).gpus)
    shared = len(found) < 2 and "CUDA_VISIBLE_DEVICES" not in os.environ
    if os.environ.get(HELD) or shared or count <= len(mine):
        return
    more: list[str] = []
    for gpu in (gpu for gpu in found if gpu not in mine):
        if len(mine) + len(more) < count and take((gpu,), f"sdgbias at {spec.name}"):
            more.append(gpu)
    if len(mine) + len(more) < count:
        for gpu in more:
            release((gpu,))
        busy = [gpu for gpu in found if gpu not in (*mine, *more)]
        raise Busy(
            f"{spec.name} takes {count} of the {len(found)} GPUs here, and {', '.join(busy)} are"
            f" in use: {_holder(busy[0])}. Let that end, then run this again"
        )
    _CLAIMED_OF[:] = found
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([*mine, *more])


def _holder(gpu: str) -> str:
    with suppress(OSError):
        return locks.holder(_lock(gpu)) or "another process"
    return "another process"
