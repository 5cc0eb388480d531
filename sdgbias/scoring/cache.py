"""The score cache: one row per distinct prompt and model, in small immutable Parquet shards.

A batch becomes one shard, written under a temporary name and renamed into place: a process killed
at any moment loses at most the batch in flight. The next start reads the existing shards and scores
only what is missing; the number of shards and their writers don't matter. `compact` merges many
small shards into one.

    scores/<model>/<fingerprint>/scores-*.parquet        key, candidates, logits, mass, minus_logit,
                                                         top_token, n_tokens, upper, seconds, run
    scores/<model>/<fingerprint>/generations-*.parquet   key, start, text, limit (most new
                                                         tokens), truncated (the limit ended it),
                                                         seconds, run

seconds: the row's part of the engine's time for its batch, and run: the run that paid it; null
where no time was measured, as in shards of earlier versions.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sdgbias import locks
from sdgbias.errors import Busy, StoreError
from sdgbias.files import writable

TIMED = (("seconds", pa.float32()), ("run", pa.string()))
SCHEMAS = {
    "scores": pa.schema(
        [
            ("key", pa.string()),
            ("candidates", pa.string()),
            ("logits", pa.list_(pa.float32())),
            ("mass", pa.float32()),
            ("minus_logit", pa.float32()),
            ("top_token", pa.string()),
            ("n_tokens", pa.int32()),
            (
                "upper",
                pa.list_(pa.float32()),
            ),  # null: all logits are exact, as in shards written before there were bounds
            *TIMED,
        ]
    ),
    "generations": pa.schema(
        [
            ("key", pa.string()),
            ("start", pa.string()),
            ("text", pa.string()),
            ("limit", pa.int32()),
            ("truncated", pa.bool_()),
            *TIMED,
        ]
    ),
}


class ScoreCache:
    """The shards of one model and fingerprint below `root` (results folder)."""

    def __init__(self, root: Path, model: str, fingerprint: str) -> None:
        self.folder = root / "scores" / model / fingerprint
        with writable(self.folder, "give a writable folder with --results"):
            self.folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One scorer per model and fingerprint at a time; a second one fails immediately. The lock
        dies with its process."""
        path = self.folder / ".lock"
        with locks.only_one(
            path,
            lambda error: StoreError(
                f"{path}: {error.strerror}; give a writable folder with --results"
            ),
            lambda _: Busy(
                f"{self.folder}: another evaluation of this model is writing here; wait for it,"
                " then run the same command again"
            ),
        ):
            for leftover in self.folder.glob("*.part"):
                leftover.unlink()
            yield

    def append(self, kind: str, rows: pd.DataFrame) -> None:
        """Commits one batch of `kind` ('scores' or 'generations') atomically."""
        rows = rows.assign(**{name: None for name, _ in TIMED if name not in rows})
        table = pa.Table.from_pandas(rows, schema=SCHEMAS[kind], preserve_index=False)
        self.commit(kind, table.to_batches())

    def commit(self, kind: str, batches: Sequence[pa.RecordBatch]) -> None:
        """As `append`, of batches of the columns of `kind`."""
        final = self.folder / f"{kind}-{uuid.uuid4().hex}.parquet"
        onward = "finished batches are safe: make room, then run the same command again"
        part = final.with_suffix(".part")
        try:
            with writable(self.folder, onward):
                with part.open("wb") as handle:
                    table = pa.Table.from_batches(batches, SCHEMAS[kind])
                    pq.write_table(table, handle, compression="zstd")
                    handle.flush()
                    os.fsync(handle.fileno())
                part.rename(final)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _table(self, kind: str, *columns: str) -> pa.Table:
        """The rows of all shards of `kind`; an unreadable one is renamed to *.bad and its prompts
        are scored again."""
        names = list(columns) or SCHEMAS[kind].names
        tables = [SCHEMAS[kind].empty_table().select(names)]
        for path in sorted(self.folder.glob(f"{kind}-*.parquet")):
            try:
                tables.append(pq.read_table(path, columns=names, schema=SCHEMAS[kind]))
            except (OSError, pa.ArrowInvalid):
                path.rename(path.with_suffix(".bad"))
        return pa.concat_tables(tables)

    def read(self, kind: str, timed: bool = False) -> pd.DataFrame:
        """All rows of `kind`, sorted by key, with their times if ``timed``."""
        unique = ["key"] if kind == "scores" else ["key", "start", "limit"]
        frame = self._table(kind).to_pandas()
        frame = frame if timed else frame.drop(columns=[name for name, _ in TIMED])
        return frame.drop_duplicates(unique, keep="first").sort_values(
            unique, kind="stable", ignore_index=True
        )

    def decoded(self) -> pd.DataFrame:
        """key, limit of every generated answer, unordered."""
        return self._table("generations", "key", "limit").to_pandas()

    def lengths(self, keys: pd.Series) -> np.ndarray:
        """(N,) prompt tokens of N keys, 0 for those without scores."""
        stored = self._table("scores", "key", "n_tokens").to_pandas().drop_duplicates("key")
        of_key = stored.set_index("key")["n_tokens"].reindex(keys).fillna(0)
        return of_key.to_numpy(dtype=np.int64)

    def lacks(self, kind: str, keys: pd.Series) -> np.ndarray:
        """(N,) bool: which of N keys have no row of `kind`."""
        stored = self._table(kind, "key")["key"]
        is_stored = pc.is_in(pa.array(keys, pa.string()), value_set=stored)
        return ~np.asarray(is_stored.to_numpy(zero_copy_only=False))

    def compact(self, kind: str) -> pd.DataFrame:
        """Merges all shards of `kind` into one and returns its rows with their times. If killed in
        between, rows may be duplicated; `read` keeps the first."""
        shards = sorted(self.folder.glob(f"{kind}-*.parquet"))
        frame = self.read(kind, timed=True)
        if len(shards) > 1:
            self.append(kind, frame)
            for path in shards:
                path.unlink(missing_ok=True)
        return frame
