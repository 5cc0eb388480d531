"""One of several engines of this machine, in a process of its own: `python -m sdgbias.worker FD`, started by workers.Crew.

It loads the engine, then scores the pieces that come down the pipe and commits each chunk as a shard of the common cache. When the
parent goes away, however that happens, it ends at once: a new run must never meet an old worker that is still writing.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from sdgbias.errors import SdgbiasError

if TYPE_CHECKING:
    from sdgbias.scoring import Piece, Scorer
    from sdgbias.types import ModelSpec


@dataclass(frozen=True)
class Start:
    """First message to a worker: what to load, where scores go (the folder of the results file), which worker of how many it is."""

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
    """A chunk is committed: ``done`` prompts of the piece so far, of this kind of work."""

    what: str
    done: int


@dataclass(frozen=True)
class Done:
    """A piece is finished: what failed in it, seconds inside the engine, what the engine counted."""

    failures: list[tuple[str, str, str]]
    seconds: float
    counts: dict[str, float]


@dataclass(frozen=True)
class Trouble:
    """An error that a person can mend (errors.py) and that no other worker would be spared."""

    error: SdgbiasError


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and closes the pipe
    pipe = Connection(int(sys.argv[1]))
    jobs: queue.SimpleQueue[Start | Piece] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs), daemon=True).start()
    try:
        scorer = _load(jobs.get(), pipe)
        while True:
            _work(scorer, jobs.get(), pipe)
    except SdgbiasError as error:
        pipe.send(Trouble(error))
        jobs.get()  # until the parent closes the pipe, so that the message arrives
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def _listen(pipe: Connection, jobs: queue.SimpleQueue[Start | Piece]) -> None:
    try:
        while True:
            jobs.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)


def _load(start: Start | Piece, pipe: Connection) -> Scorer:
    from sdgbias.backends.base import load
    from sdgbias.images.derived import Pictures
    from sdgbias.images.shards import ImageReader
    from sdgbias.scores import ScoreCache
    from sdgbias.scoring import Scorer

    assert isinstance(start, Start)
    backend = load(start.spec, start.root)
    cache = ScoreCache(start.results, start.spec.name, backend.fingerprint)
    scorer = Scorer(backend, cache, Pictures(ImageReader(start.benchmark)), start.spec, start.number)
    pipe.send(Ready(backend.fingerprint, scorer.forces_starts))
    return scorer


def _work(scorer: Scorer, piece: Start | Piece, pipe: Connection) -> None:
    assert not isinstance(piece, Start)
    before, seconds, counted = len(scorer.failures), scorer.seconds, Counter(getattr(scorer.backend, "counts", {}))
    scorer.run(piece.score, piece.decode, lambda what, done, total: pipe.send(Advance(what, done)))
    counts = Counter(getattr(scorer.backend, "counts", {}))
    counts.subtract(counted)
    pipe.send(Done(scorer.failures[before:], scorer.seconds - seconds, dict(counts)))


if __name__ == "__main__":
    from sdgbias import worker  # the messages must be those of the module, not of __main__

    worker.main()
