"""Scores prompts into the cache, chunk by chunk: no finished work is lost or repeated, and one bad
prompt doesn't stop the others.

A chunk is a few whole pictures with all their prompts (plan.chunks). Finished chunks are committed
as one shard after COMMIT_EVERY seconds, and before an error leaves this module.
Failures are isolated: a chunk that runs out of memory is halved and the size that fits is kept; a
prompt that fails alone is recorded with its kind and left unscored, so that the next start retries
it. A watchdog ends a process whose engine hangs, and names the prompts in flight.

Several engines on one plan receive it in work units (`split_work`), each with a Scorer of its own:
workers.py.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sdgbias.engines import Backend
from sdgbias.engines.entry_options import option
from sdgbias.errors import (
    BEFORE_EXIT,
    EngineDied,
    Hung,
    InputError,
    ModelError,
    NoScores,
    OutOfMemory,
    StoreError,
)
from sdgbias.files import replacing
from sdgbias.methods.answers import answer_part
from sdgbias.progress import Progress
from sdgbias.scoring.cache import SCHEMAS, ScoreCache
from sdgbias.scoring.plan import as_prompts, chunks
from sdgbias.types import DIGITS, ModelSpec, ScoreBatch

#: Some rows of the plan: column -> value.
Chunk = list[dict[str, Any]]
#: Scores a chunk; returns its finished rows, of the columns of the cache.
Work = Callable[[Chunk], pa.RecordBatch]
#: What is read of a plan's rows.
USED = ("key", "text", "candidates", "image_id", "run", "n_tokens", "forced", "limit")
#: Seconds before a chunk's engine counts as hung (registry option `chunk_timeout`).
CHUNK_TIMEOUT = 1800.0
#: Seconds of finished work that may wait for its commit: an fsync for every few prompts would take
#: a quarter of the time of a fast engine. A process that is killed scores at most so much again.
COMMIT_EVERY = 0.25
#: Kind and message of a prompt's failure where a candidate has neither a score nor a bound of one.
NOT_FINITE = ("NonFiniteLogits", "a candidate logit is NaN or infinite")


def scored(batch: ScoreBatch, widths: np.ndarray) -> np.ndarray:
    """(N,) whether each prompt has a score or a bound of it for all its candidates, of which there
    are ``widths`` (N,). A model that overflows gives NaN or infinity."""
    inside = np.arange(batch.logits.shape[1]) < widths[:, None]
    known = np.isfinite(batch.logits)
    if batch.upper is not None:  # a censored candidate has -inf and a finite bound
        known |= np.isneginf(batch.logits) & np.isfinite(batch.upper)
    told: np.ndarray = (known | ~inside).all(axis=1)
    return told


NOTES = "in_flight*.json"
SCORING, DECODING = "scoring prompts", "decoding answers"


class Scorer:
    """Scores prompts into a cache. `failures`: (key, kind, message) of prompts that failed alone;
    `size`: prompts per chunk, smaller once a chunk ran out of memory; `seconds`: time spent inside
    the engine; `lengths`: tokens of the prompts scored so far. `end`: ends an engine that hangs in
    another process, whose call then raises EngineDied; None: this process ends.

    Rows may carry `run`, the run that asks for them, and `n_tokens`, the length of a prompt that an
    earlier start scored (0: not known): both serve the times of the cache's rows alone."""

    def __init__(
        self,
        backend: Backend,
        cache: ScoreCache,
        images: Mapping[str, tuple[bytes, ...]],
        spec: ModelSpec,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.backend, self.cache, self.images, self.spec = backend, cache, images, spec
        self.failures: list[tuple[str, str, str]] = []
        self.scored_any = any(cache.folder.glob("scores-*.parquet"))  # including earlier starts
        self.forces_starts = backend.forces_starts
        self.size = spec.batch_size
        self.seconds = 0.0
        self.lengths: dict[str, int] = {}
        limit = float(option(spec, "every", "chunk_timeout", CHUNK_TIMEOUT))
        self.watchdog = Watchdog(cache.note, limit, end)

    def run(self, missing: pd.DataFrame, wanted: pd.DataFrame, progress: Progress) -> None:
        """Scores ``missing``, then decodes the numbers ``wanted`` of prompts that didn't fail."""
        self.score(missing, progress)
        self.generate(wanted[~wanted["key"].isin([key for key, _, _ in self.failures])], progress)
        if not self.watchdog.end and not self.cache.suffix:
            forget_notes(self.cache.folder)

    def _guarded(self, chunk: Chunk, work: Work) -> list[pa.RecordBatch]:
        """The finished rows of a chunk, which is halved repeatedly to isolate the prompts that
        fail."""
        try:
            with self.watchdog.watching([row["key"] for row in chunk]):
                return [work(chunk)]
        except (InputError, NoScores, StoreError, EngineDied):
            raise
        except Exception as error:
            if len(chunk) > 1:
                half = len(chunk) // 2
                if isinstance(error, OutOfMemory | MemoryError):
                    self.size = max(1, min(self.size, half))
                return [*self._guarded(chunk[:half], work), *self._guarded(chunk[half:], work)]
            if (
                isinstance(error, ModelError)
                and not getattr(error, "of_prompt", False)
                and not (self.scored_any or any(self.cache.folder.glob("scores-*.parquet")))
            ):
                raise  # nothing was scored yet: the fault is the model's, not this prompt's
            kind = getattr(error, "kind", type(error).__name__)
            first = (str(error).splitlines() or [""])[0][:300]
            self.failures.append((chunk[0]["key"], kind, first))
            return []

    def score(self, missing: pd.DataFrame, progress: Progress) -> None:
        self._loop("scores", missing, self._score_batch, progress, SCORING)

    def generate(self, missing: pd.DataFrame, progress: Progress) -> None:
        self._loop("generations", missing, self._generate_batch, progress, DECODING)

    def _loop(
        self,
        kind: str,
        missing: pd.DataFrame,
        work: Work,
        progress: Progress,
        what: str,
    ) -> None:
        start, total = 0, len(missing)
        missing = self.watchdog.suspects_last(missing)
        keys, ids = missing["key"], missing["image_id"].tolist()
        used = missing[[name for name in USED if name in missing]]
        table = pa.Table.from_pandas(used, preserve_index=False)
        held: list[pa.RecordBatch] = []

        def commit() -> None:
            batches = held.copy()
            held.clear()
            if batches:
                self.cache.commit(kind, batches)

        since = time.perf_counter()
        with self.watchdog.on_duty(commit):
            while start < total:
                end = self.watchdog.cut(keys, start, chunks(ids, start, self.size))
                began = time.perf_counter()
                done = self._guarded(table.slice(start, end - start).to_pylist(), work)
                now = time.perf_counter()
                self.seconds += now - began
                held += [rows for rows in done if rows.num_rows]
                self.scored_any = self.scored_any or bool(held)
                start = end
                # progress counts what is committed: a pool gives the rest to another worker
                if now - since >= COMMIT_EVERY or start == total:
                    commit()
                    since = time.perf_counter()
                    progress(what, start, total)

    def _score_batch(self, chunk: Chunk) -> pa.RecordBatch:
        prompts = as_prompts(chunk, self.images)
        began = time.perf_counter()
        batch = self.backend.candidate_scores(prompts)
        seconds = time.perf_counter() - began
        widths = np.array([len(p.candidates) for p in prompts])
        inside = np.arange(batch.logits.shape[1]) < widths[:, None]
        offsets = np.concatenate([[0], widths.cumsum()])
        upper = pa.nulls(len(prompts), pa.list_(pa.float32()))
        if batch.upper is not None:
            upper = _lists(offsets, batch.upper[inside], np.isnan(batch.upper).all(axis=1))
        known = scored(batch, widths)
        keys = [row["key"] for row in chunk]
        self.lengths.update(zip(keys, batch.n_tokens.tolist(), strict=True))
        self.failures += [(key, *NOT_FINITE) for key, ok in zip(keys, known, strict=True) if not ok]
        rows = _rows(
            "scores",
            keys,
            [p.candidates for p in prompts],
            _lists(offsets, batch.logits[inside]),
            batch.mass,
            batch.minus_logit,
            batch.top_token,
            batch.n_tokens,
            upper,
            _by_tokens(seconds, batch.n_tokens),
            [row.get("run") for row in chunk],
        )
        return rows.filter(pa.array(known))

    def _generate_batch(self, chunk: Chunk) -> pa.RecordBatch:
        """Free answers, and for Full prompts the answer after each forced digit (with the free
        answer's sign)."""
        answers: list[tuple[object, ...]] = []
        parts: dict[tuple[bool, int], Chunk] = {}
        for row in chunk:
            parts.setdefault((row["forced"], row["limit"]), []).append(row)
        for (forced, limit), part in sorted(parts.items()):
            prompts = as_prompts(part, self.images)
            starts = ["", *DIGITS] if forced and self.forces_starts else [""]
            began = time.perf_counter()
            found = self.backend.generate(prompts, starts, limit)
            seconds = _by_tokens(time.perf_counter() - began, self._lengths(part)) / len(starts)
            for i, (row, prompt) in enumerate(zip(part, prompts, strict=True)):
                key, run = row["key"], row.get("run")
                texts, each = found.texts[i], float(seconds[i])
                for start, text, cut in zip(starts, texts, found.truncated[i], strict=True):
                    answers.append((key, start, text, limit, cut, each, run))
                if forced and self.forces_starts and answer_part(texts[0]).lstrip().startswith("-"):
                    signed = [f"-{d}" for d in DIGITS]
                    began = time.perf_counter()
                    again = self.backend.generate([prompt], signed, limit)
                    each = (time.perf_counter() - began) / len(signed)
                    for start, text, cut in zip(
                        signed, again.texts[0], again.truncated[0], strict=True
                    ):
                        answers.append((key, start, text, limit, cut, each, run))
        return _rows("generations", *zip(*answers, strict=True))

    def _lengths(self, chunk: Chunk) -> np.ndarray:
        """(N,) tokens of N prompts, 0 where no start has scored them."""
        return np.array([self.lengths.get(row["key"], row.get("n_tokens", 0)) for row in chunk])


def _rows(kind: str, *columns: Any) -> pa.RecordBatch:
    """Columns in the order of the cache's, as rows of it."""
    schema = SCHEMAS[kind]
    arrays = [
        c if isinstance(c, pa.Array) else pa.array(c, f.type, from_pandas=True)
        for c, f in zip(columns, schema, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _lists(offsets: np.ndarray, values: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    """A list per row of the ``values`` between its offset and the next, or null."""
    flat = pa.array(values.astype(np.float32, copy=False))
    where = pa.array(offsets, pa.int32())
    return pa.ListArray.from_arrays(where, flat, mask=None if null is None else pa.array(null))


def _by_tokens(seconds: float, tokens: np.ndarray) -> np.ndarray:
    """(N,) the time of a batch of N prompts, divided in proportion to their tokens: what they
    share, a picture or a common beginning, is divided with it. Evenly where a length is unknown."""
    weights = np.asarray(tokens, dtype=float)
    if not (weights > 0).all():
        weights = np.ones(len(weights))
    return seconds * weights / weights.sum()


class Watchdog:
    """Records the prompts in flight and their start time, once a second at most, and ends the
    process with exit code 8 when a chunk takes longer than ``limit`` seconds (0: no limit). A
    hanging C library can't be interrupted in any other way; committed chunks are safe. The next
    start finds the note and scores those prompts last and one by one, so that one of them can't
    stop the others. ``end``: called instead, where the engine hangs in another process; no note is
    written then. ``keys``: the prompts in flight, or those on which the engine died; ``hung``:
    whether it was ended."""

    def __init__(self, path: Path, limit: float, end: Callable[[], None] | None = None) -> None:
        self.path, self.limit, self.end = path, limit, end
        self.keys: list[str] = []
        self.hung = False
        self.report = BEFORE_EXIT.get()  # read here, because the watching thread has no context
        self.suspects = suspects(path.parent)
        self.in_flight: tuple[float, list[str]] | None = None  # since when, keys
        self.noted = path.exists()
        self.lock = threading.Lock()  # a note is written of a chunk that still runs

    @contextmanager
    def on_duty(self, commit: Callable[[], None]) -> Iterator[None]:
        """Watches the chunks scored within the block; ``commit`` is called at its end, and before
        the process is ended. One thread for all chunks: starting one for each takes longer than
        the rest of a chunk's work where the processor is busy."""
        over = threading.Event()
        limit = self.limit or math.inf

        def watch() -> None:
            while not over.wait(min(1.0, limit / 4)):
                with self.lock:
                    if (now := self.in_flight) is not None and not self.end:
                        with suppress(OSError):  # a full disk ends the run at its next commit
                            self._write(now[1], hung=False)
                            self.noted = True
                if now is not None and time.monotonic() - now[0] > limit:
                    self._terminate(now[1], commit)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()
            commit()

    def _write(self, keys: list[str], hung: bool) -> None:
        note = {"keys": keys, "since": time.time(), "pid": os.getpid(), "hung": hung}
        with replacing(self.path) as part:
            part.write_text(json.dumps(note), encoding="utf-8")

    @contextmanager
    def watching(self, keys: list[str]) -> Iterator[None]:
        self.keys, self.in_flight = keys, (time.monotonic(), keys)
        try:
            yield
        finally:
            with self.lock:
                self.in_flight = None
        self.keys = []
        if self.noted:
            self.path.unlink(missing_ok=True)
            self.noted = False

    def _terminate(self, keys: list[str], commit: Callable[[], None]) -> None:
        if self.end:
            self.hung = True
            self.end()
            return
        self._write(keys, hung=True)
        try:
            commit()
            error = Hung(
                f"the engine did not answer for {self.limit:.0f} s on {len(keys)} prompt(s), the"
                f" first {keys[0]} ({self.path}); what is finished is kept: run the same command"
                " again, these are then tried last and alone"
            )
            print(f"error: {error}", file=sys.stderr, flush=True)
            if self.report is not None:
                self.report(error)
        finally:
            os._exit(Hung.exit_code)

    def suspects_last(self, rows: pd.DataFrame) -> pd.DataFrame:
        late = rows["key"].isin(self.suspects)
        return pd.concat([rows[~late], rows[late]], ignore_index=True) if late.any() else rows

    def cut(self, keys: pd.Series, start: int, end: int) -> int:
        """End of the chunk [start, end), so that a prompt that hung before is alone."""
        if not self.suspects:
            return end
        late = np.flatnonzero(keys.iloc[start:end].isin(self.suspects))
        return end if not len(late) else start + max(1, int(late[0]))


def suspects(folder: Path) -> set[str]:
    """Keys of the prompts on which an engine hung in the last run in this folder."""
    found: set[str] = set()
    for path in folder.glob(NOTES):
        with suppress(OSError, ValueError, KeyError, TypeError):  # half a note of a full disk
            note = json.loads(path.read_text(encoding="utf-8"))
            found |= set(map(str, note["keys"] if note["hung"] else []))
    return found


def forget_notes(folder: Path) -> None:
    for path in folder.glob(NOTES):
        path.unlink(missing_ok=True)


def not_generated(rows: pd.DataFrame, decoded: pd.DataFrame) -> pd.DataFrame:
    """The ``rows`` (key, forced, limit) with answers missing from ``decoded``, key and limit of the
    existing ones."""
    if rows.empty:
        return rows
    have = decoded.value_counts(["key", "limit"]).reindex(
        pd.MultiIndex.from_frame(rows[["key", "limit"]]), fill_value=0
    )
    return rows[have.to_numpy() < np.where(rows["forced"], 1 + len(DIGITS), 1)]


@dataclass(frozen=True)
class WorkUnit:
    """A part of a plan that one engine scores at a time: rows to ``score`` and rows to ``decode``
    (the suite's generations_needed), in plan order. ``alone``: a single prompt that was in flight
    when an engine ended; if that happens again it is recorded as a failure."""

    score: pd.DataFrame
    decode: pd.DataFrame
    alone: bool = False

    def prompts(self) -> list[str]:
        """The keys of its prompts, without duplicates."""
        return list(dict.fromkeys([*self.score["key"], *self.decode["key"]]))

    def only(
        self, scores: Collection[str], numbers: Collection[str], alone: bool = False
    ) -> WorkUnit:
        """The part of the unit with these keys."""
        return WorkUnit(
            self.score[self.score["key"].isin(scores)],
            self.decode[self.decode["key"].isin(numbers)],
            alone,
        )

    def __len__(self) -> int:
        return len(self.score) + len(self.decode)


class ProgressTracker:
    """Progress over several engines; every change is reported once."""

    def __init__(self, missing: pd.DataFrame, wanted: pd.DataFrame, progress: Progress) -> None:
        self.totals, self.progress = {SCORING: len(missing), DECODING: len(wanted)}, progress
        self.told = dict.fromkeys(self.totals, 0)

    def left(self, pieces: Iterable[WorkUnit], begun: Iterable[Mapping[str, int]] = ()) -> None:
        """Reports the remaining prompts: all of the waiting ``pieces`` plus those left of the
        ``begun`` ones, by kind of work."""
        left = Counter({SCORING: 0, DECODING: 0})
        for piece in pieces:
            left.update({SCORING: len(piece.score), DECODING: len(piece.decode)})
        for rest in begun:
            left.update(rest)
        for what, total in self.totals.items():
            if total - left[what] != self.told[what]:
                self.told[what] = total - left[what]
                self.progress(what, self.told[what], total)


def split_work(
    missing: pd.DataFrame,
    wanted: pd.DataFrame,
    size: int,
    engines: int,
    late: Collection[str] = (),
    most: int = 16,
) -> list[WorkUnit]:
    """The rest of a plan in work units of whole pictures, in plan order: about eight per engine, of
    1 to ``most`` chunks of ``size`` prompts. Prompts in ``late`` come last and alone. The rows of
    ``missing`` and ``wanted`` carry the index of the plan."""
    scores, numbers = (rows[~rows["key"].isin(late)] for rows in (missing, wanted))
    ids = pd.concat([scores["image_id"], numbers["image_id"]])
    ids = ids[~ids.index.duplicated()].sort_index()
    size *= max(1, min(most, len(ids) // (8 * size * engines)))
    pictures = ids.tolist()
    found, start = [], 0
    while start < len(ids):
        end = chunks(pictures, start, size)
        first, last = ids.index[start], ids.index[end - 1]
        found.append(WorkUnit(scores.loc[first:last], numbers.loc[first:last]))
        start = end
    whole = WorkUnit(missing, wanted)
    return found + [whole.only([key], [key], alone=True) for key in whole.prompts() if key in late]
