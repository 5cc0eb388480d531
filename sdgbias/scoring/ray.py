"""Engines on the nodes of a Ray cluster, one actor each. Ray is imported only when needed.

An actor answers the same frames as a child process (engines/subprocess.py), pictures included; the
driver plans, reads and writes (workers.py). So nodes need the package and the model, but no shared
file system. An actor gets all its GPUs on one node, so that a model's parts reach each other there.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdgbias import engines
from sdgbias.engines.subprocess import Frame, RemoteEngine, Server
from sdgbias.errors import EngineDied, InfrastructureError, UsageError
from sdgbias.registry.entries import find_root
from sdgbias.scoring.workers import Start, gpus_per_engine
from sdgbias.types import ModelSpec

#: Seconds allowed for a machine to accept a connection, and for a cluster to answer.
CONNECT_TIMEOUT, PATIENCE = 10.0, 60.0
#: Seconds between two looks at whether an answer is still wanted.
LOOK = 0.5
#: Run in another process first: on an address without a cluster Ray itself waits for minutes and
#: prints warnings meanwhile.
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"


class NodeServer(Server):
    """Answers frames on a node, which may keep the project and vLLM elsewhere than the driver."""

    def load(self, spec: ModelSpec, root: Path) -> engines.Backend:
        here = root if (root / "registry" / "models").is_dir() else find_root()
        return engines.load(spec, here)

    def answer(self, frame: Frame) -> Frame:
        header, payload = super().answer(frame)
        return {**header, "host": socket.gethostname()}, payload


class RayEngine(RemoteEngine):
    """An engine in an actor, which waits for a node with room for its ``needs``."""

    def __init__(
        self,
        ray: Any,
        needs: Mapping[str, float],
        spec: ModelSpec,
        root: Path,
        over: threading.Event,
    ) -> None:
        self.ray, self.over = ray, over
        self.actor = ray.remote(**needs)(NodeServer).remote()
        super().__init__(spec, root, "a node of the Ray cluster")

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.ray.kill(self.actor)

    def _exchange(self, frame: Frame) -> Frame:
        try:
            answer = self.actor.answer.remote(frame)
            while not self.ray.wait([answer], timeout=LOOK)[0]:
                if self.over.is_set():
                    raise EngineDied(f"{self.name}: no longer needed")
            found: Frame = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            raise EngineDied(f"{self.name}: {_line(error)}") from None
        self.where = f"node {found[0]['host']}"
        return found


@contextmanager
def cluster(
    spec: ModelSpec, root: Path, address: str, most: int | None
) -> Iterator[tuple[int, Start]]:
    """(number of engines that fit on the cluster, at most ``most``; what starts one). Raises
    UsageError without Ray, InfrastructureError when the cluster doesn't answer or no node has room
    for an engine."""
    ray = connect(address)
    try:
        needs, fit = resources_for(spec, ray.nodes())
        if not fit:
            said = ", ".join(f"{name} {value:g}" for name, value in needs.items())
            raise InfrastructureError(
                f"{address}: no node has room for an engine of {spec.name} ({said}); add nodes,"
                " then again"
            )
        yield (
            min(most or fit, fit),
            lambda number, over: RayEngine(ray, needs, spec, root, over),
        )
    finally:
        ray.shutdown()


def connect(address: str) -> Any:
    """The module ray, connected to a cluster. Raises UsageError, InfrastructureError."""
    os.environ.setdefault(
        "RAY_BACKEND_LOG_LEVEL", "fatal"
    )  # its C++ parts write warnings between the progress bars
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--ray needs Ray, which is not installed here: pip install 'sdgbias[ray]'"
        ) from None
    host, _, port = address.rpartition(":")
    if "://" in address or (address != "auto" and not (host and port.isdigit())):
        raise UsageError(
            f"--ray {address}: give HOST:PORT of the head node, or auto on a node of the cluster"
        )
    try:
        if host:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        subprocess.run(
            [sys.executable, "-c", PROBE, address],
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (
        OSError,
        subprocess.SubprocessError,
        RuntimeError,
        ValueError,
        ray.exceptions.RayError,
    ) as error:
        why = _line(getattr(error, "stderr", None) or error)
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"nothing within {PATIENCE:.0f} s"
        raise InfrastructureError(
            f"--ray {address}: no Ray cluster answers ({why}); start one: ray start --head, and"
            " give all of it the same RAY_AUTH_MODE and RAY_AUTH_TOKEN; see"
            " docs/how-to/operations.md"
        ) from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    return ray


def resources_for(
    spec: ModelSpec, nodes: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], int]:
    """(resources of one engine, how many engines fit on the live nodes). GPUs where the cluster has
    any and the engine uses them, else option `num_cpus` (default 1) of the nodes' CPUs."""
    alive = [node["Resources"] for node in nodes if node.get("Alive", node.get("alive"))]
    gpus = gpus_per_engine(spec)
    if gpus and any(node.get("GPU", 0) for node in alive):
        return {"num_gpus": gpus, "num_cpus": 0}, sum(
            int(node.get("GPU", 0) / gpus) for node in alive
        )
    cpus = spec.options.get("num_cpus", 1)
    each = float(cpus) if isinstance(cpus, int | float) and cpus > 0 else 1.0
    return {"num_cpus": each}, sum(int(node.get("CPU", 0) / each) for node in alive)


def _line(error: Exception | str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("ConnectionError: ")[:300] if lines else type(error).__name__
