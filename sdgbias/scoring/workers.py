"""Several engines on one plan: in processes of this machine (`--workers`), or on the nodes of a Ray
cluster (ray.py).

This process plans, reads the pictures, commits the scores and shows the progress; an engine only
answers frames (engines/subprocess.py). Each engine has a thread here that loads it and scores work
units of whole pictures into the cache. When an engine dies (killed, crashed, hung), what the cache
lacks of its unit goes to the others and a new engine takes its place. The prompts that were in
flight come last and alone: one that ends an engine a second time is recorded as a failure.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from sdgbias.engines import Loaded
from sdgbias.engines.subprocess import LOADED, ChildEngine, RemoteEngine, interpreter
from sdgbias.errors import EngineDied, InfrastructureError, ModelError
from sdgbias.progress import Progress
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.images.variants import Pictures
from sdgbias.registry import machine
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import (
    DECODING,
    SCORING,
    ProgressTracker,
    Scorer,
    WorkUnit,
    forget_notes,
    not_generated,
    split_work,
    suspects,
)
from sdgbias.types import ModelSpec

#: start(number, over) loads engine ``number``, and gives up with EngineDied once ``over`` is set.
Start = Callable[[int, threading.Event], RemoteEngine]
#: Seconds that a thread whose engine is killed may take to end.
GIVE_UP = 30.0
#: Deaths of engines, beyond two for each, that end a run: one engine outlives a few deadly prompts.
SPARE = 2


@dataclass
class Worker:
    """An engine and the thread that it is used from. engine, scorer: None until it is loaded. unit:
    what it scores now (None: idle), left: the prompts left in it, by kind of work. running: whether
    the thread may still take a unit."""

    number: int
    thread: threading.Thread | None = None
    engine: RemoteEngine | None = None
    scorer: Scorer | None = None
    unit: WorkUnit | None = None
    left: dict[str, int] = field(default_factory=dict)
    running: bool = False


class WorkerPool(Loaded):
    """Up to ``size`` engines of one model. Has the identity attributes of an engine and the results
    of a Scorer; `seconds`: inside all engines together. The first engine is loaded at once, the
    others when there is work."""

    def __init__(self, spec: ModelSpec, benchmark: Path, size: int, start: Start) -> None:
        self.spec, self.benchmark, self.size, self.start = spec, benchmark, size, start
        self.failures: list[tuple[str, str, str]] = []
        self.seconds = 0.0
        self.images: Mapping[str, tuple[bytes, ...]] = {}
        self.units: deque[WorkUnit] = deque()
        self.deaths = 0
        self.lost: Counter[str] = Counter()  # work of the engines that died
        self.error: Exception | None = None
        self.over = threading.Event()
        self.changed = threading.Condition()  # guards all of the above while threads run
        first = start(0, self.over)
        self.workers = [Worker(number) for number in range(size)]
        self.workers[0].engine = first
        for name in LOADED:
            setattr(self, name, getattr(first, name))

    def close(self) -> None:
        """Ends every engine. No thread writes into the cache afterwards."""
        with self.changed:
            self.over.set()
            self.changed.notify_all()
            for worker in self.workers:
                if worker.engine and worker.unit:
                    worker.engine.kill()
        for worker in self.workers:
            if worker.thread:
                worker.thread.join(GIVE_UP)
            if worker.engine:
                worker.engine.close()
                worker.engine = worker.scorer = None

    def scorer(self, cache: ScoreCache, images: Mapping[str, tuple[bytes, ...]]) -> WorkerPool:
        """Itself, as the scorer of a run over this cache; each thread reads pictures by itself."""
        self.cache, self.images = cache, images
        return self

    def run(self, missing: pd.DataFrame, wanted: pd.DataFrame, progress: Progress) -> None:
        """Scores ``missing`` and decodes the numbers ``wanted``. Raises errors that every engine
        would meet, and InfrastructureError when engines keep dying; committed chunks are kept."""
        late = suspects(self.cache.folder)
        self.units = deque(split_work(missing, wanted, self.spec.batch_size, self.size, late))
        tally = ProgressTracker(missing, wanted, progress)
        try:
            with self.changed:
                for worker in self.workers[: len(self.units)]:
                    worker.running = True
                    worker.thread = threading.Thread(
                        target=self._serve, args=(worker,), daemon=True
                    )
                    worker.thread.start()
                while (self.units or self._busy()) and not self.error:
                    self.changed.wait()
                    tally.left(self.units, (worker.left for worker in self.workers))
            if self.error:
                raise self.error
        except BaseException:
            self.close()
            raise
        self.failures.sort()
        tally.left([])
        self.counts = counts = Counter(self.lost)
        for worker in self.workers:
            counts.update(worker.engine.counts if worker.engine else {})
        if not self.cache.suffix:
            forget_notes(self.cache.folder)

    def _busy(self) -> bool:
        return any(worker.unit for worker in self.workers)

    def _serve(self, worker: Worker) -> None:
        """The thread of a worker: scores units until there are none."""
        try:
            while self._score_unit(worker):
                pass
        except Exception as error:
            with self.changed:
                self.error = self.error or error
                self.changed.notify_all()

    def _score_unit(self, worker: Worker) -> bool:
        """False when there is nothing left to do, or no engine to do it with."""
        try:
            scorer = worker.scorer or self._load(worker)
            unit = self._next_unit(worker)
            if unit is None:
                return False
            scorer.run(unit.score, unit.decode, partial(self._advance, worker))
        except EngineDied as error:
            return self._on_death(worker, error)
        with self.changed:
            worker.unit, worker.left = None, {}
            self.failures += scorer.failures
            self.seconds += scorer.seconds
            scorer.failures, scorer.seconds = [], 0.0
            self.changed.notify_all()
        return True

    def _load(self, worker: Worker) -> Scorer:
        engine = worker.engine = worker.engine or self.start(worker.number, self.over)
        if engine.fingerprint != self.fingerprint:
            raise ModelError(
                f"{self.spec.name}: worker {worker.number} ({engine.where}) loaded other weights or"
                f" versions ({engine.fingerprint}) than the first ({self.fingerprint}); what is"
                " finished is kept: give all of them the same, and let nothing change the model's"
                " folder, then run the same command again"
            )
        pictures = Pictures(ImageReader(self.benchmark))  # its cache is not for several threads
        worker.scorer = Scorer(engine, self.cache, pictures, self.spec, engine.kill)
        return worker.scorer

    def _next_unit(self, worker: Worker) -> WorkUnit | None:
        """Waits while others might still leave work behind."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.units or self.over.is_set() or self.error or not self._busy()
            )
            if not self.units or self.over.is_set() or self.error:
                worker.running = False
                return None
            worker.unit = unit = self.units.popleft()
            worker.left = {SCORING: len(unit.score), DECODING: len(unit.decode)}
            return unit

    def _advance(self, worker: Worker, what: str, done: int, total: int) -> None:
        with self.changed:
            worker.left[what] = total - done
            self.changed.notify_all()

    def _on_death(self, worker: Worker, error: EngineDied) -> bool:
        """Puts the unit, less the committed part, back; the prompts in flight come last and alone.
        Returns whether to load another engine."""
        engine, scorer, unit = worker.engine, worker.scorer, worker.unit
        if engine:
            engine.close()
        rest = unfinished(unit, self.cache) if unit and not self.over.is_set() else None
        with self.changed:
            worker.engine = worker.scorer = worker.unit = None
            worker.left, worker.running = {}, False
            if self.over.is_set():
                return False
            self.deaths += 1
            why = str(error).removeprefix(f"{self.spec.name}: ")
            if engine and scorer:
                self.lost.update(engine.counts)
                self.seconds += scorer.seconds
                if scorer.watchdog.hung:
                    why = f"no answer for {scorer.watchdog.limit:.0f} s"
            if rest and scorer:
                self._put_back(rest, scorer, why)
            at = "" if scorer else " while it loaded the model"
            print(
                f"{self.spec.name}: worker {worker.number} ended{at} ({why}); the rest goes to"
                " other engines",
                file=sys.stderr,
                flush=True,
            )
            others = any(other.running for other in self.workers)
            if self.deaths > 2 * self.size + SPARE or not (scorer or others):
                raise InfrastructureError(
                    f"{self.spec.name}: engines ended {self.deaths} times, the last one: {why};"
                    " what is finished is kept: run the same command again with fewer --workers"
                    " (memory?), or with one to see why"
                )
            # one that failed to load beside others isn't loaded again
            worker.running = bool(self.units and scorer)
            self.changed.notify_all()
            return worker.running

    def _put_back(self, rest: WorkUnit, scorer: Scorer, why: str) -> None:
        in_flight = set(scorer.watchdog.keys)
        if rest.alone and in_flight:
            kind = "Hung" if scorer.watchdog.hung else "EngineDied"
            self.failures += [
                (key, kind, f"the engine ended twice on this prompt ({why})")
                for key in rest.prompts()
            ]
        elif len(rest):
            if early := set(rest.prompts()) - in_flight:
                self.units.appendleft(rest.only(early, early, rest.alone))
            self.units.extend(
                rest.only([key], [key], alone=True) for key in rest.prompts() if key in in_flight
            )


def on_this_machine(spec: ModelSpec, root: Path, size: int) -> Start:
    """Starts engines as child processes, which share the threads and the GPUs."""
    python = interpreter(spec, root) or Path(sys.executable)

    def start(number: int, over: threading.Event) -> RemoteEngine:
        shares = _threads(size) | _devices(spec, number) if size > 1 else {}
        return ChildEngine(spec, root, python, shares, over)

    return start


def unfinished(unit: WorkUnit, cache: ScoreCache) -> WorkUnit:
    """The part of a work unit that isn't in the cache yet."""
    scores = unit.score["key"][cache.lacks("scores", unit.score["key"])]
    numbers = set(not_generated(unit.decode, cache.decoded())["key"])
    return unit.only(set(scores), numbers, unit.alone)


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
    seen = machine.visible() if each else ()
    if not seen:
        return {}
    first = math.floor(number * each)
    mine = (seen[(first + i) % len(seen)] for i in range(max(1, math.ceil(each))))
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(mine))}
