"""Long tables of questions and prompts, judged block by block: memory holds one block of a table,
whatever its length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Rows of a block; a table with no more rows is judged as a whole.
BLOCK = 100_000
ITEMS = ("items_mcq", "items_regression")
#: Tables that can be long -> what the rules of other tables compare with all their rows.
SEEN = {**dict.fromkeys(ITEMS, ("cname", "split", "split_place")), "prompts": ("task", "item_id")}
#: Columns that repeat: read once per distinct value.
REPEATED = ("task", "test", "text", "candidates")


def long_tables(paths: Mapping[str, Path], needed: Mapping[str, set[str]]) -> set[str]:
    """The tables of SEEN that have to be judged in blocks and can be: all needed columns are there,
    and the rows of one item stand together in prompts. A file that can't be read is none."""
    found: set[str] = set()
    for name in [name for name in (*ITEMS, "prompts") if name in paths]:
        try:
            file = pq.read_metadata(paths[name])
        except (OSError, ValueError):
            return set()
        of_items = name == "prompts" and bool(found)
        if file.num_rows > BLOCK or of_items:
            if not needed[name] <= set(file.schema.names):
                return set()
            if name == "prompts" and _ends(paths[name]) is None:
                return set()
            found.add(name)
    return found


def seen(name: str, path: Path) -> pd.DataFrame:
    """The distinct rows of SEEN's columns."""
    columns = list(SEEN[name])
    with pq.ParquetFile(path, read_dictionary=columns) as file:
        parts = (
            pa.Table.from_batches([batch]).group_by(columns).aggregate([])
            for batch in file.iter_batches(BLOCK, columns=columns)
        )
        table = pa.concat_tables(parts).unify_dictionaries().group_by(columns).aggregate([])
    return pd.DataFrame(table.select(columns).to_pandas())


def blocks_of(
    name: str,
    paths: Mapping[str, Path],
    tables: Mapping[str, pd.DataFrame],
    needed: Mapping[str, set[str]],
) -> Iterator[tuple[pd.DataFrame, Mapping[str, pd.DataFrame]]]:
    """The blocks of a table, each with the other tables; of items, with a block of prompts, those
    that it is about."""
    if name != "prompts":
        yield from ((frame, tables) for frame in table_blocks(paths[name], sorted(needed[name])))
        return
    for frame in _prompt_blocks(paths[name], sorted(needed[name])):
        own = {
            items: _items_of(paths[items], sorted(needed[items]), frame["item_id"])
            for items in ITEMS
            if items in tables
        }
        yield frame, {**tables, **own}


def table_blocks(path: Path, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BLOCK, columns=list(columns) if columns else None):
            yield batch.to_pandas()


def _prompt_blocks(path: Path, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    ends = _ends(path)
    repeated = [name for name in REPEATED if name in columns]
    with pq.ParquetFile(path, read_dictionary=repeated) as file:
        held: list[pa.RecordBatch] = []
        done = 0  # rows of blocks that were handed out
        for batch in file.iter_batches(BLOCK, columns=list(columns)):
            held.append(batch)
            while ends and done + sum(map(len, held)) >= ends[0]:
                rows, size = pa.Table.from_batches(held), ends.pop(0) - done
                # what is left keeps the values of its own batch, not those of all blocks before
                yield rows.slice(0, size).unify_dictionaries().to_pandas()
                held, done = rows.slice(size).to_batches(), done + size


def _ends(path: Path) -> list[int] | None:
    """The rows at which blocks of prompts end, each with the last row of an item, and none with
    rows of two tasks; None where the rows of an item are scattered."""
    table = pq.read_table(path, columns=["task", "item_id"], read_dictionary=["task"])
    if not pa.types.is_integer(table.schema.field("item_id").type) or not len(table):
        return None
    task = table["task"].unify_dictionaries().combine_chunks()
    codes = pc.fill_null(task.indices, -1).to_numpy(zero_copy_only=False).astype("int64")
    ids = pc.fill_null(table["item_id"], -1).to_numpy().astype("int64")
    key = ids * 8 + codes
    lasts = np.append(np.flatnonzero(key[1:] != key[:-1]) + 1, len(key))
    if len(np.unique(key[lasts - 1])) < len(lasts):
        return None
    wanted = np.arange(BLOCK, len(key), BLOCK)
    # ids of two tasks in one block would lie anywhere: its items would be all items
    tasks = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    return sorted({*lasts[np.searchsorted(lasts, wanted)].tolist(), *tasks.tolist(), len(key)})


def _items_of(path: Path, columns: list[str], ids: pd.Series) -> pd.DataFrame:
    between = [("item_id", ">=", int(ids.min())), ("item_id", "<=", int(ids.max()))]
    return pd.DataFrame(pq.read_table(path, columns=columns, filters=between).to_pandas())
