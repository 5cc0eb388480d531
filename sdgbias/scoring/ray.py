"""One plan on a Ray cluster: Ray Data's batch inference with one stateful actor per engine. Ray is
imported only when needed.

The work units (scorer.split_work) are files on the driver's machine, where their pictures are read
and sent along as bytes; an actor loads its engine once, scores whole units and returns the rows;
the driver commits them as they arrive. So nodes need the package and the model, but no shared file
system. Ray restarts the actors of a lost node as soon as there is room; their unanswered prompts
are sent again in the next round, in smaller units, so that a prompt that kills its engine is
finally alone and recorded as a failure.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd

from sdgbias.engines import load
from sdgbias.errors import InfrastructureError, ModelError, SdgbiasError, UsageError
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.images.variants import Pictures
from sdgbias.registry.entries import find_root
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import (
    EnginePool,
    Progress,
    ProgressTracker,
    Scorer,
    WorkUnit,
    split_work,
)
from sdgbias.scoring.workers import gpus_per_engine
from sdgbias.types import ModelSpec

#: Seconds allowed for a machine to accept a connection, and for a cluster to answer.
CONNECT_TIMEOUT, PATIENCE = 10.0, 60.0
#: Run in another process first: on an address without a cluster Ray itself waits for minutes and
#: prints warnings meanwhile.
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
#: Most chunks per work unit, by round: first for all missing prompts, then for the unanswered ones;
#: 0: one prompt per unit, and a second time for those whose node was lost while they were alone.
ROUNDS = (16, 1, 0, 0)


@dataclass
class UnitResult:
    """An engine's result for one work unit: rows by kind, failures, seconds inside the engine, its
    counts; or an error."""

    rows: dict[str, list[pd.DataFrame]] = field(
        default_factory=lambda: {"scores": [], "generations": []}
    )
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    seconds: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    error: SdgbiasError | None = None


class BufferSink:
    """A Sink that buffers finished chunks until they are sent to the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.answer = folder, UnitResult()

    def append(self, kind: str, rows: pd.DataFrame) -> None:
        self.answer.rows[kind].append(rows)


class Engine:
    """One actor: loads the engine, then scores work units."""

    def __init__(self, spec: ModelSpec, root: Path, fingerprint: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="sdgbias-")
        self.basket = BufferSink(Path(self.folder.name))
        self.error: SdgbiasError | None = None
        try:
            backend = load(spec, _root_here(root))
        except SdgbiasError as error:
            self.error = error
            return
        self.scorer = Scorer(backend, self.basket, {}, spec, worker=0)
        if backend.fingerprint != fingerprint:
            self.error = ModelError(
                f"{spec.name}: node {socket.gethostname()} has other weights or versions"
                f" ({backend.fingerprint}) than the first ({fingerprint}); give all nodes the same,"
                " then run the same command again"
            )

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        return {
            "number": list(batch["number"]),
            "answer": [pickle.dumps(self._answer(*pickle.loads(work))) for work in batch["work"]],
        }

    def _answer(self, piece: WorkUnit, images: Mapping[str, tuple[bytes, ...]]) -> UnitResult:
        if self.error:
            return UnitResult(error=self.error)
        scorer, answer = self.scorer, UnitResult()
        self.basket.answer, counted = answer, Counter(scorer.backend.counts)
        scorer.images, scorer.failures, scorer.seconds = images, answer.failures, 0.0
        try:
            scorer.run(piece.score, piece.decode, lambda what, done, total: None)
        except SdgbiasError as error:
            answer.error = error
        except Exception as error:
            answer.error = InfrastructureError(
                f"{scorer.spec.name}: {type(error).__name__} on node {socket.gethostname()}:"
                f" {_line(error)}"
            )
        counts = Counter(scorer.backend.counts)
        counts.subtract(counted)
        answer.seconds, answer.counts = scorer.seconds, dict(counts)
        return answer


class RayCluster(EnginePool):
    """The engines of one model on a cluster; has the identity attributes of a backend and the run
    attributes of a Scorer (scorer.PlanScorer).

    ``most``: engines at most (None: as many as fit). Raises UsageError without Ray,
    InfrastructureError when the cluster doesn't answer or no node has room for an engine, and the
    errors of loading the model.
    """

    def __init__(
        self, spec: ModelSpec, root: Path, benchmark: Path, address: str, most: int | None
    ) -> None:
        self.spec, self.root, self.benchmark = spec, root, benchmark.resolve()
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[str, str, str]] = []
        self.seconds = 0.0
        self.images: Mapping[str, tuple[bytes, ...]] = {}
        self.ray = connect(address)
        try:
            self.needs, fit = resources_for(spec, self.ray.nodes())
            self.size = min(most or fit, fit)
            if not fit:
                raise InfrastructureError(
                    f"{address}: no node has room for an engine of {spec.name}"
                    f" ({_said(self.needs)}); add nodes, then again"
                )
            probe = self.ray.remote(max_calls=1, **self.needs)(_probe)
            found = self._get(probe.remote(spec, root))
            if isinstance(found, SdgbiasError):
                raise found
            self.fingerprint, self.forces_starts = found
        except BaseException:
            self.ray.shutdown()
            raise

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.ray.shutdown()

    def scorer(self, cache: ScoreCache, images: Mapping[str, tuple[bytes, ...]]) -> RayCluster:
        """Itself, as the scorer of a run over this cache."""
        self.cache, self.images = cache, images
        return self

    def _get(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            raise InfrastructureError(
                f"{self.spec.name}: an engine ended while it loaded the model: {_line(error)}"
            ) from None

    def run(self, missing: pd.DataFrame, wanted: pd.DataFrame, progress: Progress) -> None:
        """Scores ``missing`` and decodes the numbers ``wanted``, in rounds. Raises errors that
        every engine would meet."""
        tally = ProgressTracker(missing, wanted, progress)
        rest = WorkUnit(missing, wanted)
        for chunks in ROUNDS:
            late = set() if chunks else set(rest.prompts())
            pieces = dict(
                enumerate(
                    split_work(
                        rest.score, rest.decode, self.spec.batch_size, self.size, late, chunks
                    )
                )
            )
            for number, answer in self._stream(pieces, 2 if chunks == ROUNDS[0] else 1):
                self._commit(answer)
                del pieces[number]
                tally.left(pieces.values())
            if not pieces:
                break
            rest = WorkUnit(
                *(
                    pd.concat([getattr(p, name) for p in pieces.values()]).sort_index()
                    for name in ("score", "decode")
                )
            )
        else:
            self.failures += [
                (key, "EngineDied", "every engine that scored this prompt ended")
                for key in rest.prompts()
            ]
        self.failures.sort()
        tally.left([])

    def _commit(self, answer: UnitResult) -> None:
        for kind, rows in answer.rows.items():
            if rows:
                self.cache.append(kind, pd.concat(rows, ignore_index=True))
        if answer.error:
            raise answer.error
        self.failures += answer.failures
        self.seconds += answer.seconds
        self.counts.update(answer.counts)

    def _stream(
        self, pieces: Mapping[int, WorkUnit], ahead: int
    ) -> Iterator[tuple[int, UnitResult]]:
        """(number, answer) of the work units as they arrive; units that were lost with their engine
        are missing. ``ahead``: most units in flight per actor."""
        import ray.data

        if not pieces:
            return
        with tempfile.TemporaryDirectory(prefix="sdgbias-") as folder:
            for number, piece in pieces.items():
                (Path(folder) / str(number)).write_bytes(pickle.dumps(piece))
            work = ray.data.from_items(
                [{"number": number} for number in pieces], override_num_blocks=len(pieces)
            ).map_batches(
                Fetch,
                fn_constructor_args=(Path(folder), self.benchmark),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=1),
                num_cpus=0,
                label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
            )
            answers = work.map_batches(
                Engine,
                fn_constructor_args=(self.spec, self.root, self.fingerprint),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(
                    size=min(self.size, len(pieces)), max_tasks_in_flight_per_actor=ahead
                ),
                # no retries: a task that waits for its actor's restart would wait for a node that
                # may never return
                ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": 0},
                **self.needs,
            )
            answered: set[int] = set()
            try:
                for batch in answers.iter_batches(
                    batch_size=1, batch_format="pandas", prefetch_batches=0
                ):
                    for number, answer in zip(batch["number"], batch["answer"], strict=True):
                        if number not in answered:
                            answered.add(int(number))
                            yield int(number), pickle.loads(answer)
            except ray.exceptions.RayError as error:
                if not answered:
                    raise InfrastructureError(
                        f"{self.spec.name}: the cluster finished nothing: {_line(error)}"
                    ) from None


def connect(address: str) -> Any:
    """The module ray, connected to a cluster. Raises UsageError, InfrastructureError."""
    os.environ.setdefault(
        "RAY_BACKEND_LOG_LEVEL", "fatal"
    )  # its C++ parts write warnings between the progress bars
    try:
        import ray
        import ray.data
    except ImportError:
        raise UsageError(
            "--ray needs Ray, which is not installed here: pip install 'sdgbias[ray]'"
        ) from None
    if "://" in address:
        raise UsageError(
            f"--ray {address}: give HOST:PORT of the head node, or auto on a node of the cluster"
        )
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdigit()):
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
        why = (
            f"nothing within {PATIENCE:.0f} s"
            if isinstance(error, subprocess.TimeoutExpired)
            else _line(getattr(error, "stderr", None) or error)
        )
        raise InfrastructureError(
            f"--ray {address}: no Ray cluster answers ({why}); start one: ray start --head, and"
            " give all of it the same RAY_AUTH_MODE and RAY_AUTH_TOKEN; see"
            " docs/how-to/operations.md"
        ) from None
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # units lost with an engine are resent next round
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


def _said(needs: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in needs.items())


def _root_here(root: Path) -> Path:
    """The folder that 'local:' repositories are relative to: the driver's path if it exists on this
    node, else this node's default."""
    return root if (root / "registry" / "models").is_dir() else find_root()


def _probe(spec: ModelSpec, root: Path) -> tuple[str, bool] | SdgbiasError:
    try:
        backend = load(spec, _root_here(root))
        return backend.fingerprint, backend.forces_starts
    except SdgbiasError as error:
        return error


class Fetch:
    """The one actor on the driver's machine that reads work units and their pictures."""

    def __init__(self, folder: Path, benchmark: Path) -> None:
        self.folder, self.pictures = folder, Pictures(ImageReader(benchmark))

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        numbers = [int(number) for number in batch["number"]]
        return {
            "number": numbers,
            "work": [pickle.dumps(self._with_pictures(number)) for number in numbers],
        }

    def _with_pictures(self, number: int) -> tuple[WorkUnit, dict[str, tuple[bytes, ...]]]:
        piece: WorkUnit = pickle.loads((self.folder / str(number)).read_bytes())
        wanted = sorted({i for rows in (piece.score, piece.decode) for i in rows["image_id"] if i})
        return piece, {i: self.pictures[i] for i in wanted}


def _line(error: Exception | str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("ConnectionError: ")[:300] if lines else type(error).__name__
