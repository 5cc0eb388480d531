"""A pool of engines on this machine, each in its own process (`python -m sdgbias.scoring.workers
FD`), working on one plan.

The parent holds the lock of the cache and the progress bar, and assigns work units of whole
pictures to free workers. A worker loads the engine, then scores the units that it receives over a
pipe and commits each chunk as a shard of the common cache. When a worker dies (killed, crashed,
hung), the rest of its unit goes to the others and a new worker takes its place. The prompts that
were in flight come last and alone: one that kills an engine a second time is recorded as a failure.

When the parent ends, however that happens, its workers end at once: a new run must never meet an
old worker that is still writing.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pandas as pd

from sdgbias.errors import InfrastructureError, ModelError, SdgbiasError
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import (
    DECODING,
    SCORING,
    EnginePool,
    Progress,
    ProgressTracker,
    WorkUnit,
    forget_notes,
    not_generated,
    note_path,
    read_note,
    split_work,
    suspects,
)
from sdgbias.types import ModelSpec

if TYPE_CHECKING:
    from sdgbias.scoring.scorer import Scorer, WorkUnit
    from sdgbias.types import ModelSpec


@dataclass(frozen=True)
class Start:
    """First message to a worker: the model to load, the destination of scores (the folder of the
    results file), and the worker's index."""

    spec: ModelSpec
    root: Path
    benchmark: Path
    results: Path
    number: int


@dataclass(frozen=True)
class Ready:
    """The engine is loaded."""

    fingerprint: str
    forces_starts: bool


@dataclass(frozen=True)
class Advance:
    """A chunk is committed: ``done`` prompts of the work unit so far, of this kind of work."""

    what: str
    done: int


@dataclass(frozen=True)
class Done:
    """A work unit is finished: its failures, seconds inside the engine, the engine's counts."""

    failures: list[tuple[str, str, str]]
    seconds: float
    counts: dict[str, float]


@dataclass(frozen=True)
class Trouble:
    """An error that a user can fix (errors.py) and that every other worker would meet too."""

    error: SdgbiasError


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    pipe = Connection(int(sys.argv[1]))
    jobs: queue.SimpleQueue[Start | WorkUnit] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs), daemon=True).start()
    try:
        scorer = _load(jobs.get(), pipe)
        while True:
            _work(scorer, jobs.get(), pipe)
    except SdgbiasError as error:
        pipe.send(Trouble(error))
        jobs.get()  # blocks until the parent closes the pipe, so that the message arrives
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def _listen(pipe: Connection, jobs: queue.SimpleQueue[Start | WorkUnit]) -> None:
    try:
        while True:
            jobs.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)  # the parent held the other end before this process began (lifeline.py)


def _load(start: Start | WorkUnit, pipe: Connection) -> Scorer:
    from sdgbias.engines import load
    from sdgbias.raw.images.shards import ImageReader
    from sdgbias.raw.images.variants import Pictures
    from sdgbias.scoring.cache import ScoreCache
    from sdgbias.scoring.scorer import Scorer

    assert isinstance(start, Start)
    backend = load(start.spec, start.root)
    cache = ScoreCache(start.results, start.spec.name, backend.fingerprint)
    scorer = Scorer(
        backend, cache, Pictures(ImageReader(start.benchmark)), start.spec, start.number
    )
    pipe.send(Ready(backend.fingerprint, scorer.forces_starts))
    return scorer


def _work(scorer: Scorer, piece: Start | WorkUnit, pipe: Connection) -> None:
    assert not isinstance(piece, Start)
    before, seconds, counted = (
        len(scorer.failures),
        scorer.seconds,
        Counter(scorer.backend.counts),
    )
    scorer.run(piece.score, piece.decode, lambda what, done, total: pipe.send(Advance(what, done)))
    counts = Counter(scorer.backend.counts)
    counts.subtract(counted)
    pipe.send(Done(scorer.failures[before:], scorer.seconds - seconds, dict(counts)))


@dataclass
class Worker:
    """One process: its pipe, its current work unit (None: idle, or still loading) and the number of
    prompts left in it, per kind of work."""

    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    piece: WorkUnit | None = None
    left: dict[str, int] = field(default_factory=dict)


class WorkerPool(EnginePool):
    """N engines of one model. Has the identity attributes of a backend (`fingerprint`, `counts`)
    and the run attributes of a Scorer (scorer.PlanScorer); `seconds`: inside all engines together.
    The first engine is loaded at once, the others when there is work."""

    def __init__(
        self, spec: ModelSpec, root: Path, benchmark: Path, results: Path, size: int
    ) -> None:
        self.spec, self.root, self.benchmark, self.results, self.size = (
            spec,
            root,
            benchmark,
            results,
            size,
        )
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[str, str, str]] = []
        self.seconds = 0.0
        self.images: Mapping[str, tuple[bytes, ...]] = {}
        self.workers: dict[int, Worker] = {}
        self.deaths = 0
        self.fingerprint, self.forces_starts = "", True
        try:
            first = self._spawn(0)
            if not self._receive(first):
                raise InfrastructureError(
                    f"{spec.name}: the engine ended ({_end(first)}) while it loaded the model; try"
                    " again without --workers to see why"
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every worker: a worker exits as soon as its pipe closes."""
        for worker in self.workers.values():
            worker.pipe.close()
        for worker in self.workers.values():
            try:
                worker.process.wait(10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self.workers = {}

    def scorer(self, cache: ScoreCache, images: Mapping[str, tuple[bytes, ...]]) -> WorkerPool:
        """Itself, as the scorer of a run over this cache; pictures are read by the workers."""
        self.cache, self.images = cache, images
        return self

    def run(self, missing: pd.DataFrame, wanted: pd.DataFrame, progress: Progress) -> None:
        """Scores ``missing`` and decodes the numbers ``wanted``. Raises errors that every worker
        would meet, and InfrastructureError when engines keep dying; committed chunks are kept."""
        pieces = deque(
            split_work(
                missing, wanted, self.spec.batch_size, self.size, suspects(self.cache.folder)
            )
        )
        tally = ProgressTracker(missing, wanted, progress)
        for number in range(1, min(self.size, len(pieces))):
            self._spawn(number)
        while pieces or any(worker.piece for worker in self.workers.values()):
            for worker in self.workers.values():
                if worker.ready and worker.piece is None and pieces:
                    self._dispatch(worker, pieces)
            pipes = {worker.pipe: worker for worker in self.workers.values()}
            for pipe in wait(list(pipes)):
                worker = pipes[pipe]  # type: ignore[index]
                if not self._receive(worker):
                    self._on_exit(worker, pieces)
            tally.left(pieces, (worker.left for worker in self.workers.values()))
        self.failures.sort()
        tally.left([])
        forget_notes(self.cache.folder)

    def _spawn(self, number: int) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "sdgbias.scoring.workers", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, **_threads(self.size), **_devices(self.spec, number)},
            )
        worker = self.workers[number] = Worker(number, process, ours)
        ours.send(Start(self.spec, self.root, self.benchmark, self.results, number))
        return worker

    def _dispatch(self, worker: Worker, pieces: deque[WorkUnit]) -> None:
        worker.piece = piece = pieces.popleft()
        worker.left = {SCORING: len(piece.score), DECODING: len(piece.decode)}
        with suppress(OSError):  # it died while idle: `wait` reports that next
            worker.pipe.send(piece)

    def _receive(self, worker: Worker) -> bool:
        """Receives one message; False when the worker is gone. Raises an error that the worker
        sent."""
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            return False
        match message:
            case Trouble():
                raise message.error
            case Ready():
                worker.ready = True
                self._on_ready(worker, message)
            case Advance() if worker.piece is not None:
                worker.left[message.what] = (
                    len(worker.piece.score if message.what == SCORING else worker.piece.decode)
                    - message.done
                )
            case Done():
                worker.piece, worker.left = None, {}
                self.failures += message.failures
                self.seconds += message.seconds
                self.counts.update(message.counts)
        return True

    def _on_ready(self, worker: Worker, message: Ready) -> None:
        if not self.fingerprint:
            self.fingerprint, self.forces_starts = message.fingerprint, message.forces_starts
        elif message.fingerprint != self.fingerprint:
            raise ModelError(
                f"{self.spec.name}: worker {worker.number} loaded other weights or versions"
                f" ({message.fingerprint}) than the first ({self.fingerprint}); what is finished is"
                " kept: let nothing change the model's folder, then run the same command again"
            )

    def _on_exit(self, worker: Worker, pieces: deque[WorkUnit]) -> None:
        """Puts its unit, less the committed part, back; the prompts in flight come last and
        alone."""
        end = _end(worker)
        worker.pipe.close()
        del self.workers[worker.number]
        self.deaths += 1
        note = note_path(self.cache.folder, worker.number)
        keys, process, hung = read_note(note)
        note.unlink(missing_ok=True)
        in_flight = set(keys) if process == worker.process.pid else set()
        if worker.piece is not None:
            rest = unfinished(worker.piece, self.cache)
            if worker.piece.alone and in_flight:
                kind = "Hung" if hung else "EngineDied"
                self.failures += [
                    (key, kind, f"the engine ended ({end}) twice on this prompt")
                    for key in rest.prompts()
                ]
            elif len(rest):
                if early := set(rest.prompts()) - in_flight:
                    pieces.appendleft(rest.only(early, early, worker.piece.alone))
                pieces.extend(
                    rest.only([key], [key], alone=True)
                    for key in rest.prompts()
                    if key in in_flight
                )
        at = "" if worker.ready else " while it loaded the model"
        print(
            f"{self.spec.name}: worker {worker.number} ended{at} ({'hung' if hung else end});"
            " others do the rest",
            file=sys.stderr,
            flush=True,
        )
        if self.deaths > 2 * self.size or not (worker.ready or self.workers):
            raise InfrastructureError(
                f"{self.spec.name}: engines ended {self.deaths} times, the last one: {end}; what is"
                " finished is kept: run the same command again with fewer --workers (memory?), or"
                " with one to see why"
            )
        if pieces and worker.ready:  # one that failed to load beside the others isn't restarted
            self._spawn(worker.number)


def unfinished(piece: WorkUnit, cache: ScoreCache) -> WorkUnit:
    """The part of a work unit that isn't in the cache yet."""
    scores = piece.score["key"][cache.lacks("scores", piece.score["key"])]
    return piece.only(set(scores), set(not_generated(piece.decode, cache.decoded())["key"]))


def _end(worker: Worker) -> str:
    code = worker.process.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _threads(size: int) -> dict[str, str]:
    """This machine's threads (or OMP_NUM_THREADS) divided among the workers."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    total = int(said) if re.fullmatch(r"[1-9]\d*", said) else len(os.sched_getaffinity(0))
    share = str(max(1, total // size))
    return {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}


def gpus_per_engine(spec: ModelSpec) -> float:
    """GPUs per engine where there are any: option `num_gpus` (0.5: two engines share one), else
    vLLM's `tensor_parallel_size` x `pipeline_parallel_size`, else 1; 0 for an engine without local
    weights."""
    if spec.backend == "api" or spec.backend.startswith("planted"):
        return 0.0
    named = spec.options.get("num_gpus")
    if isinstance(named, int | float):
        return float(named)
    sizes = (spec.options.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    return float(math.prod(size for size in sizes if isinstance(size, int)))


def _devices(spec: ModelSpec, number: int) -> dict[str, str]:
    """The GPUs of worker ``number``: dedicated ones where there are enough, else shared in turn;
    nothing is set without GPUs."""
    each = gpus_per_engine(spec)
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = (
        [d.strip() for d in said.split(",") if d.strip()]
        if said is not None
        else [p.name[6:] for p in Path("/dev").glob("nvidia[0-9]*")]
    )
    if not seen or not each:
        return {}
    seen = seen if said is not None else sorted(seen, key=int)
    first = math.floor(number * each)
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(
            dict.fromkeys(seen[(first + i) % len(seen)] for i in range(max(1, math.ceil(each))))
        )
    }


if __name__ == "__main__":
    # the messages are pickled: their classes must be those of the module, not of __main__
    from sdgbias.scoring.workers import main as worker_main

    worker_main()
