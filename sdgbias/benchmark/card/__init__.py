"""The dataset card: benchmark.json, README.md and quarantine.parquet, derived from the tables of a
benchmark folder alone.

figures.py computes the figures and readme.py the text; this module opens the tables for DuckDB and
writes the files. The same tables give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark.card import figures, tracked
from sdgbias.benchmark.card.readme import readme
from sdgbias.errors import InputError, argument
from sdgbias.files import json_file, reading, write_atomically, write_json
from sdgbias.types import PILLARS, QUARANTINE_COLUMNS

#: Of a benchmark that is built from SustainBench, and of one that is built from `sdgbias sample`.
LICENCE, SYNTHETIC_LICENCE = "CC BY-SA 4.0", "CC0 1.0"
#: The tables that define a benchmark's identity, and the columns that count (all when none is
#: named). An image counts through its image_id, whatever its shard.
TABLES: dict[str, tuple[str, ...]] = {
    "clusters": (),
    "images": ("cluster_id", "image_id"),
    "items_mcq": (),
    "items_regression": (),
    "prompts": (),
}
#: What the questions of both tasks have in common.
_ITEM = (
    *("cluster_id", "cname", "country", "year", "pillar", "indicator"),
    *("split", "split_place", "review", "modalities"),
)
_BATCH = 65_536


def build_card(out: Path) -> dict[str, Any]:
    """Write quarantine.parquet, README.md, benchmark.json, and what DVC shows of them (tracked.py)
    into the benchmark folder `out`; return the content of benchmark.json.

    Reads the tables of TABLES, series.parquet and reviews.json if present, items_notes.json,
    origin.json and quarantine/*.parquet. Raises InputError, StoreError.
    """
    out = Path(out)
    origin = _json(out / "origin.json", needed=True)
    notes, reviews = _json(out / "items_notes.json"), _json(out / "reviews.json")
    try:
        _merge_quarantine(out)
        with _tables(out, notes) as con:
            content = figures.figures(figures.Facts(con, notes, origin, reviews))
    except duckdb.Error as error:
        cause = str(error).splitlines()[0]
        raise InputError(
            f"{out}: a table can't be read ({cause}); build it again: sdgbias build --out"
            f" {argument(out)}"
        ) from None
    licence = SYNTHETIC_LICENCE if content["synthetic"] else LICENCE
    card = {"benchmark_id": benchmark_id(out), "licence": licence, **content}
    tracked.write(out, card)
    write_atomically(out / "README.md", readme(card))
    write_json(out / "benchmark.json", card, nan=False)  # last: it marks the folder as complete
    return card


def benchmark_id(out: Path) -> str:
    """16 hex digits of the sha256 over the contents of TABLES, independent of the Parquet encoding.
    Raises InputError."""
    digest = hashlib.sha256()
    for name, columns in TABLES.items():
        digest.update(content_digest(_path(out, name), columns).encode())
    return digest.hexdigest()[:16]


def content_digest(path: Path, columns: Sequence[str] = ()) -> str:
    """sha256 hex over the rows of a table, in their order, as JSON; independent of encoding, column
    order and number widths.

    `columns`: those that count (default: all). Raises InputError for a column that is absent or
    holds neither text nor numbers.
    """
    with reading(path, again(path)):
        present: list[str] = pq.read_schema(path).names
    names = sorted(columns or present)
    if lost := set(names) - set(present):
        raise InputError(f"{path}: missing column(s) {', '.join(lost)}; {again(path)}")
    digest = hashlib.sha256(json.dumps(names).encode())
    with database(path.parent) as con:
        file = con.read_parquet(str(path), hive_partitioning=False)
        kinds = dict(zip(file.columns, map(str, file.types), strict=True))
        row = ", ".join(_canonical(name, kinds[name]) for name in names)
        rows = con.sql(f"SELECT to_json(row) FROM (SELECT {row} FROM file) AS row")
        for batch in rows.to_arrow_reader(_BATCH):
            digest.update("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())
    return digest.hexdigest()


def _canonical(name: str, kind: str) -> str:
    """SQL of a column: the same for equal values, whatever their width. NaN counts as missing."""
    if kind == "VARCHAR":
        return f'"{name}"'
    if kind in ("FLOAT", "DOUBLE"):
        return f'nullif("{name}"::DOUBLE, \'NaN\'::DOUBLE) + 0.0 AS "{name}"'  # one zero
    if kind == "BOOLEAN" or kind.endswith("INT") or kind == "INTEGER":
        return f'"{name}"::BIGINT AS "{name}"'
    raise InputError(
        f"column {name} holds {kind}, which no table of a benchmark has; build it again: sdgbias"
        " build"
    )


@contextmanager
def database(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of bounded memory that spills into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(dir=folder, prefix=".spill-") as spill,
        duckdb.connect(config={"memory_limit": "768MB", "temp_directory": spill}) as con,
    ):
        con.execute("SET enable_progress_bar = false")
        yield con


def _path(out: Path, name: str) -> Path:
    return out / f"{name}.parquet"


def again(path: Path) -> str:
    """How to make a table of a benchmark."""
    stage = "items" if path.stem.startswith("items") else path.stem
    stage = "series" if stage.startswith("gdl") else stage
    return (
        f"run the stage that makes it: sdgbias build --stage {stage} --out {argument(path.parent)}"
    )


@contextmanager
def _tables(out: Path, notes: Mapping[str, Any]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables as data/card.sql reads them."""
    with database(out) as con:
        for name in TABLES:
            with reading(_path(out, name), again(_path(out, name))) as path:
                con.read_parquet(str(path), hive_partitioning=False).create_view(name)
        both = ", ".join(_ITEM)
        con.execute(
            f"CREATE VIEW items AS SELECT 'mcq' AS task, {both} FROM items_mcq"
            f" UNION ALL SELECT 'regression', {both} FROM items_regression"
        )
        series = con.sql("SELECT '' AS series, '' AS source WHERE false")  # of a release
        if (path := _path(out, "series")).is_file():
            series = con.read_parquet(str(path), hive_partitioning=False)
            series = series.project("series, source")
        series.create_view("series")
        left_out = con.read_parquet(str(_path(out, "quarantine")), hive_partitioning=False)
        left_out.aggregate(
            """"table", rule,
            if(starts_with("table", 'items_'), regexp_replace(key, '^.*[|]', ''), '') AS what,
            count(*) AS n"""
        ).create_view("quarantine")
        usable = {slug: sum(n.values()) for slug, n in (notes.get("coverage") or {}).items()}
        slugs, numbers = pa.array(usable, pa.string()), pa.array(usable.values(), pa.int64())
        con.register("coverage", pa.table({"indicator": slugs, "usable": numbers}))
        con.register("pillars", pa.table({"pillar": PILLARS, "place": range(len(PILLARS))}))
        yield con


def _merge_quarantine(out: Path) -> None:
    """quarantine.parquet: the rows of quarantine/*.parquet, by file and in their order."""
    parts = sorted(map(str, (out / "quarantine").glob("*.parquet")))
    texts = ", ".join(f'"{name}"::VARCHAR AS "{name}"' for name in QUARANTINE_COLUMNS)
    none = ", ".join(f'NULL AS "{name}"' for name in QUARANTINE_COLUMNS)
    with database(out) as con:
        rows = con.sql(f"SELECT {none} WHERE false")
        if parts:
            rows = con.read_parquet(parts, hive_partitioning=False)
        write_atomically(
            _path(out, "quarantine"),
            lambda part: rows.project(texts).write_parquet(str(part), compression="zstd"),
        )


def _json(path: Path, needed: bool = False) -> Mapping[str, Any]:
    """A JSON object; {} for a missing file, unless it is needed. Raises InputError."""
    if not path.is_file() and not needed:
        return {}
    stage = {"origin": "clusters", "items_notes": "items"}.get(path.stem)
    make = (
        f"sdgbias build --stage {stage} --out {argument(path.parent)}"
        if stage
        else "sdgbias review import"
    )
    return json_file(path, "can't be read", f"make it again: {make}")
