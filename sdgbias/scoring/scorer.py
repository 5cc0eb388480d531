"""Scores prompts into the cache, chunk by chunk: no finished work is lost or repeated, and one bad
prompt doesn't stop the others.

A chunk is a few whole pictures with all their prompts (plan.chunk_end). Finished chunks are
committed as one shard after COMMIT_EVERY seconds, and before an error leaves this module.
Failures are isolated: a chunk that runs out of memory is halved and the size that fits is kept; a
prompt that fails alone is recorded with its kind and left unscored, so that the next start retries
it. A watchdog ends an engine that hangs. An engine in a child process that ends, or is ended, is
started again, and its prompts are asked one by one; elsewhere the next start does so.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.engines import Backend, Restartable
from sdgbias.engines.agreement import NOT_FINITE, scored
from sdgbias.engines.options import Options, read
from sdgbias.errors import (
    EngineDied,
    InfrastructureError,
    InputError,
    ModelError,
    NoScores,
    OutOfMemory,
    StoreError,
)
from sdgbias.files import replacing
from sdgbias.progress import Progress
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.cache import SCHEMAS, ScoreCache
from sdgbias.scoring.plan import as_prompts, chunk_end

#: Some rows of the plan: column -> value, and `prompt`.
Chunk = list[dict[str, Any]]
#: Scores a chunk; returns its finished rows, of the columns of the cache.
Work = Callable[[Chunk], pa.RecordBatch]
#: What is read of a plan's rows.
USED = ("key", "text", "candidates", "image_id", "run", "n_tokens", "forced", "limit")
#: Seconds of finished work that may wait for its commit: an fsync for every few prompts would take
#: a quarter of the time of a fast engine. A process that is killed scores at most so much again.
COMMIT_EVERY = 0.25
#: Chunks that are read, and prepared or sent, while one is asked.
AHEAD = 2
SCORING, DECODING = "scoring prompts", "decoding answers"
#: Kind of the failure of a prompt that no engine answered in time.
HUNG = "Hung"
#: Times that an engine in a child process is started again before a run ends: enough for a few
#: prompts that end it.
RESTARTS = 4


class Scorer:
    """Scores prompts into a cache. `failures`: (key, kind, message) of prompts that failed alone;
    `size`: prompts per chunk, smaller once a chunk ran out of memory; `seconds`, `n_asked`: time
    spent on the engine's answers, and prompts that were asked; `deaths`: how often the process of
    an engine in a child process ended.

    Rows may carry `run`, the run that asks for them, which the cache keeps with their times."""

    def __init__(
        self,
        engine: Backend,
        cache: ScoreCache,
        images: Mapping[str, tuple[bytes, ...]],
        spec: ModelSpec,
    ) -> None:
        self.engine, self.cache, self.images, self.spec = engine, cache, images, spec
        self.child = engine if isinstance(engine, Restartable) else None
        self.failures: list[tuple[str, str, str]] = []
        self.scored_any = any(cache.folder.glob("scores-*.parquet"))  # including earlier starts
        self.size = spec.batch_size
        self.seconds = self.began = 0.0
        self.n_asked = self.deaths = 0
        limit = read(spec, Options).chunk_timeout
        self.watchdog = Watchdog(cache.folder / "hung.json", limit, self.child)

    def run(self, missing: pd.DataFrame, wanted: pd.DataFrame, progress: Progress) -> None:
        """Scores ``missing``, then decodes the numbers ``wanted`` of prompts that didn't fail."""
        self.score(missing, progress)
        self.generate(wanted[~wanted["key"].isin([key for key, _, _ in self.failures])], progress)

    def score(self, missing: pd.DataFrame, progress: Progress) -> None:
        """Scores prompts over their candidates."""
        self._loop("scores", missing, self._score_batch, partial(progress, SCORING))

    def generate(self, missing: pd.DataFrame, progress: Progress) -> None:
        """Decodes answers: those of one kind and length together."""
        done = 0
        if len(missing):  # their time is divided by these lengths
            missing = missing.assign(n_tokens=self.cache.lengths(missing["key"]))

        def report(of_kind: int, _: int) -> None:
            progress(DECODING, done + of_kind, len(missing))

        for _, rows in missing.groupby(["forced", "limit"], sort=True):
            self._loop("generations", rows, self._generate_batch, report)
            done += len(rows)

    def forget_hangs(self) -> None:
        """After the last prompt: the next start tries those that hung as any other failure."""
        self.watchdog.note.unlink(missing_ok=True)

    @property
    def pace(self) -> float:
        """Seconds per prompt so far, 0 before the first."""
        return self.seconds / max(1, self.n_asked)

    # -- chunk by chunk

    def _loop(
        self, kind: str, missing: pd.DataFrame, work: Work, progress: Callable[[int, int], None]
    ) -> None:
        hangs = missing["key"].map(self.watchdog.hangs).astype(int)
        for key in missing.loc[hangs > 1, "key"]:
            self.failures.append((key, HUNG, "the engine hung twice on this prompt"))
        missing = pd.concat([missing[hangs == 0], missing[hangs == 1]], ignore_index=True)
        alone, total, start = int((hangs == 0).sum()), len(missing), 0
        waiting: list[pa.RecordBatch] = []

        def commit() -> None:
            batches = waiting.copy()
            waiting.clear()
            if batches:
                self.cache.commit(kind, batches)

        since = time.perf_counter()
        with self.watchdog.on_duty(commit), closing(self._read(kind, missing, alone)) as chunks:
            for chunk in chunks:
                waiting += [rows for rows in self._guarded(chunk, work) if rows.num_rows]
                start += len(chunk)
                # progress counts what is committed
                if time.perf_counter() - since >= COMMIT_EVERY or start == total:
                    commit()
                    since = time.perf_counter()
                    progress(start, total)

    def _read(self, kind: str, missing: pd.DataFrame, alone: int) -> Generator[Chunk, None, None]:
        """Rows of the plan with their prompts, chunk by chunk, those from row ``alone`` on one by
        one. Another thread reads the pictures of the next chunks, and has the engine prepare or
        send them: a server gets each prompt as soon as it is read."""
        ids, keys = missing["image_id"].tolist(), missing["key"].tolist()
        used = missing[[name for name in USED if name in missing]]
        table = pa.Table.from_pandas(used, preserve_index=False)

        def prepare(start: int, end: int) -> Chunk:
            chunk: Chunk = table.slice(start, end - start).to_pylist()
            given = () if kind == "scores" else _starts_and_limit(chunk)
            step = 1 if self.engine.sends else len(chunk)
            for part in (chunk[at : at + step] for at in range(0, len(chunk), step)):
                prompts = as_prompts(part, self.images)
                for row, prompt in zip(part, prompts, strict=True):
                    row["prompt"] = prompt
                self.engine.prefetch(prompts, *given)
            return chunk

        start, reader = 0, ThreadPoolExecutor(1, "reader")
        begun: deque[tuple[int, Future[Chunk]]] = deque()  # where each chunk ends
        try:
            while start < len(ids):
                at = begun[-1][0] if begun else start
                while len(begun) <= AHEAD and at < len(ids):
                    end = min(alone, chunk_end(ids, at, self.size)) if at < alone else at + 1
                    begun.append((end, reader.submit(prepare, at, end)))
                    at = end
                size, (end, reading) = self.size, begun.popleft()
                self.began = time.perf_counter()
                with self.watchdog.watching(keys[start:end]):
                    chunk = reading.result()
                yield chunk
                start = end
                if self.size != size:
                    for _, reading in begun:
                        reading.cancel()
                    begun.clear()
        finally:
            reader.shutdown(cancel_futures=True)

    def _guarded(self, chunk: Chunk, work: Work, died: bool = False) -> list[pa.RecordBatch]:
        """The finished rows of a chunk, which is halved repeatedly to isolate the prompts that
        fail. died: it is a single prompt on which the engine ended before."""
        try:
            with self.watchdog.watching([row["key"] for row in chunk]):
                rows = work(chunk)
            self.scored_any = True
            return [rows]
        except (InputError, NoScores, StoreError):
            raise
        except EngineDied as error:
            why = self._start_again(error)
            if not died:
                return [rows for row in chunk for rows in self._guarded([row], work, died=True)]
            kind = HUNG if self.watchdog.hung else EngineDied.__name__
            message = f"the engine ended twice on this prompt ({why})"
        except Exception as error:
            if len(chunk) > 1:
                half = len(chunk) // 2
                if isinstance(error, OutOfMemory | MemoryError):
                    self.size = max(1, min(self.size, half))
                return [*self._guarded(chunk[:half], work), *self._guarded(chunk[half:], work)]
            of_model = isinstance(error, ModelError) and not getattr(error, "of_prompt", False)
            if of_model and not self.scored_any:
                raise  # nothing was scored yet: the fault is the model's, not this prompt's
            kind = getattr(error, "kind", type(error).__name__)
            message = (str(error).splitlines() or [""])[0][:300]
        self.failures.append((chunk[0]["key"], kind, message))
        return []

    def _start_again(self, error: EngineDied) -> str:
        """Starts an engine whose child process ended; returns why it ended. Raises
        InfrastructureError where it keeps ending, or ends while it loads the model."""
        why = str(error).removeprefix(f"{self.spec.name}: ")
        if self.watchdog.hung:
            why = f"no answer for {self.watchdog.limit:.0f} s"
        self.deaths += 1
        if self.child is None or self.deaths > RESTARTS:
            raise InfrastructureError(
                f"{self.spec.name}: the engine ended {self.deaths} times, the last one: {why}; what"
                " is finished is kept: run the same command again"
            ) from None
        print(f"{self.spec.name}: {why}; it is started again", file=sys.stderr, flush=True)
        self.child.restart()
        return why

    # -- rows of the cache

    def _score_batch(self, chunk: Chunk) -> pa.RecordBatch:
        prompts = [row["prompt"] for row in chunk]
        batch = self.engine.candidate_scores(prompts)
        widths = np.array([len(p.candidates) for p in prompts])
        complete = scored(batch, widths)
        keys = [row["key"] for row in chunk]
        self.failures += [
            (key, *NOT_FINITE) for key, ok in zip(keys, complete, strict=True) if not ok
        ]
        upper: list[np.ndarray | None] = [None] * len(chunk)
        if batch.upper is not None:
            upper = [
                None if np.isnan(row).all() else row[:width]
                for row, width in zip(batch.upper, widths, strict=True)
            ]
        rows = _rows(
            "scores",
            keys,
            [p.candidates for p in prompts],
            [row[:width] for row, width in zip(batch.logits, widths, strict=True)],
            batch.mass,
            batch.minus_logit,
            batch.top_token,
            batch.n_tokens,
            upper,
            self._seconds(batch.n_tokens),
            [row.get("run") for row in chunk],
        )
        return rows.filter(pa.array(complete))

    def _generate_batch(self, chunk: Chunk) -> pa.RecordBatch:
        """Free answers, or the answer after each forced start: all rows of a chunk have the same
        starts and limit."""
        starts, limit = _starts_and_limit(chunk)
        answers = self.engine.generate([row["prompt"] for row in chunk], starts, limit)
        seconds = self._seconds(np.array([row["n_tokens"] for row in chunk])) / len(starts)
        rows = [
            (row["key"], start, text, limit, truncated, float(share), row.get("run"))
            for row, texts, cuts, share in zip(
                chunk, answers.texts, answers.truncated, seconds, strict=True
            )
            for start, text, truncated in zip(starts, texts, cuts, strict=True)
        ]
        return _rows("generations", *zip(*rows, strict=True))

    def _seconds(self, tokens: np.ndarray) -> np.ndarray:
        """(N,) the time since a chunk was awaited, or since its last part was done, divided among N
        prompts in proportion to their tokens: what they share, a picture or a common beginning, is
        divided with it. Evenly where a length is unknown."""
        began, self.began = self.began, time.perf_counter()
        self.seconds += self.began - began
        self.n_asked += len(tokens)
        weights = np.asarray(tokens, dtype=float)
        if not (weights > 0).all():
            weights = np.ones(len(weights))
        return (self.began - began) * weights / weights.sum()


def _starts_and_limit(chunk: Chunk) -> tuple[list[str], int]:
    """The forced starts and the longest answer of all rows of a chunk."""
    return chunk[0]["forced"].split(","), int(chunk[0]["limit"])


def _rows(kind: str, *columns: Any) -> pa.RecordBatch:
    """Columns in the order of the cache's, as rows of it."""
    schema = SCHEMAS[kind]
    arrays = [
        # a NaN in a list is no candidate or an exact logit, elsewhere no value
        pa.array(values, field.type, from_pandas=not pa.types.is_list(field.type))
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


class Watchdog:
    """Ends an engine that takes longer than ``limit`` seconds (0: no limit) for a chunk. An engine
    in a child process is killed, so that its call raises EngineDied, and ``hung`` is set. Elsewhere
    this process ends with exit code 8: a hanging C library can't be interrupted in any other way.
    Committed chunks are safe, and a ``note`` counts for the next start how often each prompt was in
    flight then: one that was so once is asked last and alone, so that it can't stop the others, one
    that was so twice is not asked again."""

    def __init__(self, note: Path, limit: float, child: Restartable | None) -> None:
        self.note, self.limit, self.child = note, limit, child
        self.hung = False
        self.hangs = _read_hangs(note)
        self.in_flight: tuple[float, list[str]] | None = None  # since when, keys

    @contextmanager
    def on_duty(self, commit: Callable[[], None]) -> Iterator[None]:
        """Watches the chunks scored within the block; ``commit`` is called at its end, and before
        the process is ended. One thread for all chunks: starting one for each takes longer than
        the rest of a chunk's work where the processor is busy."""
        over = threading.Event()
        limit = self.limit or math.inf

        def watch() -> None:
            while not over.wait(min(1.0, limit / 4)):
                now = self.in_flight
                if now is not None and time.monotonic() - now[0] > limit:
                    self._end(now[1], commit)

        threading.Thread(target=watch, name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            commit()

    @contextmanager
    def watching(self, keys: list[str]) -> Iterator[None]:
        self.hung, self.in_flight = False, (time.monotonic(), keys)
        try:
            yield
        finally:
            self.in_flight = None

    def _end(self, keys: list[str], commit: Callable[[], None]) -> None:
        if self.child:
            self.hung = True
            self.child.kill()
            return
        try:
            with replacing(self.note) as part:
                part.write_text(json.dumps(self.hangs + Counter(keys)), encoding="utf-8")
            commit()
            print(
                f"error: the engine did not answer for {self.limit:.0f} s on {len(keys)} prompt(s),"
                f" the first {keys[0]} ({self.note}); what is finished is kept: run the same"
                " command again, these are then tried last and alone",
                file=sys.stderr,
                flush=True,
            )
        finally:
            os._exit(InfrastructureError.exit_code)


def _read_hangs(note: Path) -> Counter[str]:
    with suppress(OSError, ValueError, TypeError, AttributeError):  # half a note of a full disk
        return Counter({str(key): int(n) for key, n in json.loads(note.read_text("utf-8")).items()})
    return Counter()


def not_generated(rows: pd.DataFrame, decoded: pd.DataFrame) -> pd.DataFrame:
    """The ``rows`` (key, limit) without an answer in ``decoded``, key and limit of the existing
    ones."""
    have = pd.MultiIndex.from_frame(decoded[["key", "limit"]])
    return rows[~pd.MultiIndex.from_frame(rows[["key", "limit"]]).isin(have)]
