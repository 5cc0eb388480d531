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
from sdgbias.errors import InputError
from sdgbias.files import json_file, reading, write_atomically, write_json
from sdgbias.raw.clusters import LABELS
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
_ITEM = (
    *("cluster_id", "cname", "country", "year", "pillar", "indicator"),
    *("split", "split_place", "review", "modalities"),
)
_READ: dict[str, tuple[str, ...]] = {
    "clusters": ("cluster_id", "cname", "country", *LABELS),
    "images": ("cluster_id", "image_id", "image_group", "n_parts", "modalities"),
    "items_mcq": (*_ITEM, "answer", "value", "value_year", "source", "level"),
    "items_regression": (*_ITEM, "target"),
}
_NUMBERS = {*LABELS, "year", "value", "value_year", "n_parts"}
_NEEDED = {"cluster_id", "image_id", "indicator"}
_BATCH = 65_536


def build_card(out: Path) -> dict[str, Any]:
    """Write quarantine.parquet, README.md, benchmark.json, and what DVC shows of them (tracked.py)
    into the benchmark folder `out`; return the content of benchmark.json.

    Reads the tables of TABLES, series.parquet and reviews.json if present, items_notes.json,
    origin.json and quarantine/*.parquet. Columns missing from an imported release count as unknown.
    Raises InputError, StoreError.
    """
    out = Path(out)
    origin = _json(out / "origin.json", needed=True)
    notes, reviews = _json(out / "items_notes.json"), _json(out / "reviews.json")
    _merge_quarantine(out)
    with _tables(out, notes) as con:
        facts = figures.Facts(con, notes, origin, reviews)
        try:
            content = figures.figures(facts)
        except duckdb.Error as error:
            path, cause = _path(out, "clusters"), str(error).splitlines()[0]
            raise InputError(f"{path}: can't be read ({cause}); {again(path)}") from None
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
    names = sorted(columns or _columns(path))
    _columns(path, names)
    digest = hashlib.sha256(json.dumps(names).encode())
    with database(path.parent) as con:
        file = con.table_function("read_parquet", [str(path)])
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
    return f"run the stage that makes it: sdgbias build --stage {stage} --out {path.parent}"


def _columns(path: Path, needed: Sequence[str] = ()) -> list[str]:
    """The columns of a Parquet file, `needed` among them. Raises InputError."""
    with reading(path, again(path)):
        names: list[str] = pq.read_schema(path).names
    if lost := [column for column in needed if column not in names]:
        raise InputError(f"{path}: missing column(s) {', '.join(lost)}; {again(path)}")
    return names


@contextmanager
def _tables(out: Path, notes: Mapping[str, Any]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables as data/card.sql reads them: absent columns are '' or NULL, except those that the
    card requires. Raises InputError."""
    with database(out) as con:
        for name, columns in _READ.items():
            present = {column for column in columns if column in _NEEDED}
            present |= {*_columns(_path(out, name), sorted(present))}
            listed = ", ".join(_column(column, column in present) for column in columns)
            con.execute(f"CREATE VIEW {name} AS SELECT {listed} FROM {_file(out, name)}")
        both = ", ".join(_ITEM)
        con.execute(
            f"CREATE VIEW items AS SELECT 'mcq' AS task, {both} FROM items_mcq"
            f" UNION ALL SELECT 'regression', {both} FROM items_regression"
        )
        _columns(_path(out, "prompts"), ["task", "test", "text"])
        con.execute(f"CREATE VIEW prompts AS FROM {_file(out, 'prompts')}")
        # an imported release has no series
        series = "(SELECT '' AS series, '' AS source LIMIT 0)"
        if _path(out, "series").is_file():
            _columns(_path(out, "series"), ["series", "source"])
            series = _file(out, "series")
        con.execute(f"CREATE VIEW series AS SELECT series, source FROM {series}")
        con.execute(
            f"""CREATE VIEW quarantine AS SELECT "table", rule,
                  if(starts_with("table", 'items_'), regexp_replace(key, '^.*[|]', ''), '') AS what,
                  count(*) AS n FROM {_file(out, "quarantine")} GROUP BY ALL"""
        )
        usable = {slug: sum(n.values()) for slug, n in (notes.get("coverage") or {}).items()}
        slugs, numbers = pa.array(usable, pa.string()), pa.array(usable.values(), pa.int64())
        con.register("coverage", pa.table({"indicator": slugs, "usable": numbers}))
        con.register("pillars", pa.table({"pillar": PILLARS, "place": range(len(PILLARS))}))
        yield con


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _file(out: Path, name: str) -> str:
    return f"read_parquet({_quoted(_path(out, name))})"


def _column(name: str, there: bool) -> str:
    if name in _NUMBERS:
        value = f"nullif(TRY_CAST({name} AS DOUBLE), 'NaN'::DOUBLE)" if there else "NULL::DOUBLE"
    else:
        value = f"coalesce({name}::VARCHAR, '')" if there else "''"
    return f"{value} AS {name}"


def _merge_quarantine(out: Path) -> None:
    """quarantine.parquet: the rows of quarantine/*.parquet, by file and in their order. Raises
    InputError."""
    parts = sorted((out / "quarantine").glob("*.parquet"))
    listed = ", ".join(f'"{name}"::VARCHAR AS "{name}"' for name in QUARANTINE_COLUMNS)
    blank = ", ".join(f"'' AS \"{name}\"" for name in QUARANTINE_COLUMNS)
    for path in parts:
        _columns(path, QUARANTINE_COLUMNS)
    with database(out) as con:
        read = [f"SELECT {listed} FROM read_parquet({_quoted(path)})" for path in parts]
        rows = con.sql(" UNION ALL ".join([f"SELECT {blank} WHERE false", *read]))
        write_atomically(
            _path(out, "quarantine"),
            lambda part: rows.write_parquet(str(part), compression="zstd"),
        )


def _json(path: Path, needed: bool = False) -> Mapping[str, Any]:
    """A JSON object; {} for a missing file, unless it is needed. Raises InputError."""
    if not path.is_file() and not needed:
        return {}
    stage = {"origin": "clusters", "items_notes": "items"}.get(path.stem)
    make = (
        f"sdgbias build --stage {stage} --out {path.parent}" if stage else "sdgbias review import"
    )
    return json_file(path, "can't be read", f"make it again: {make}")
