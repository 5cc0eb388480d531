"""Results files of an earlier schema: opened, they become files of this one.

The rows are written to a new file beside the old one, which is renamed into place at the end; the
old one stays as NAME.schema<version>.duckdb. A process that is killed meanwhile leaves the old file
as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from sdgbias import locks
from sdgbias.errors import StoreError
from sdgbias.files import json_object, packaged, replacing
from sdgbias.store import database, night_files
from sdgbias.store.database import SCHEMA
from sdgbias.store.views import quoted

#: Versions whose files can be read.
EARLIER = (15, 16, 17, 18, 19, 20, 21)
#: Tables of earlier schemas whose rows are files now -> their view (night_files.py).
_FILES_NOW = {"nights": "nights", "night_models": "night_outcomes"}
#: Bytes of the headers of a DuckDB file.
_HEADERS = 3 * 4096
#: Files whose schema this process has compared with its own, as (device, inode).
CURRENT: set[tuple[int, int]] = set()


def prepare(path: Path, wait: float) -> None:
    """Gives an existing file this version's tables: an empty one gets them, and one of an earlier
    schema is replaced. Raises StoreError for a file that holds other tables and for a newer schema,
    Busy where another process has the file for ``wait`` seconds."""
    if not path.exists() or _identity(path) in CURRENT:
        return
    if _is_begun(path) or database.version(path, wait) != SCHEMA:
        with locks.alone(path, wait):  # whoever creates or publishes into it is done then
            _upgrade(path, wait)
    CURRENT.add(_identity(path))


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _is_begun(path: Path) -> bool:
    """Whether a writer that was killed, or had no room, left the file before it could hold a table:
    without a byte, or with some of DuckDB's headers alone. A whole file isn't opened: closing it
    would give up the locks of this process's connections."""
    if (size := path.stat().st_size) >= _HEADERS:
        return False
    return not size or path.read_bytes()[8:12] == b"DUCK"


def _upgrade(path: Path, wait: float) -> None:
    if _is_begun(path):
        path.unlink()  # DuckDB creates a file, and refuses such a one
    version = database.version(path, wait) if path.exists() else 0
    if version == SCHEMA:
        return
    with database.open_file(path, False, wait) as con, database.translate_errors(path, "write"):
        if not version:
            database.create_tables(con)
            return
        con.execute("CHECKPOINT")  # what a killed writer left in the log goes into the file
    if version not in EARLIER:
        raise StoreError(
            f"{path} has schema {version}, this version of sdgbias reads schemas"
            f" {min(EARLIER)} to {SCHEMA}; use the version that wrote it, or evaluate into another"
            " file: --results FILE"
        )
    with database.rewriting(path) as draft:
        with duckdb.connect(str(draft)) as con, database.translate_errors(draft, "write"):
            database.create_tables(con)
            con.execute(f"ATTACH {quoted(path)} AS old (READ_ONLY)")
            _copy_rows(con)
            _write_files(con, path)
            con.execute("DETACH old")
        with replacing(_free_name(path, version)) as kept:
            shutil.copyfile(path, kept)


def _free_name(path: Path, version: int) -> Path:
    """Where the old file is kept: never in place of another."""
    kept = path.with_name(f"{path.stem}.schema{version}{path.suffix}")
    number = 2
    while kept.exists():
        kept = path.with_name(f"{path.stem}.schema{version}-{number}{path.suffix}")
        number += 1
    return kept


def _copy_rows(con: duckdb.DuckDBPyConnection) -> None:
    """Every row of database ``old``: of each table the columns that both have."""
    columns = """SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = ? AND
                 schema_name = 'main' AND NOT internal"""
    [(name,)] = con.execute("SELECT current_database()").fetchall()
    tables = con.execute(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main'"
        " AND table_name <> 'schema_version' ORDER BY ALL",
        [name],
    ).fetchall()
    ours, theirs = (set(con.execute(columns, [of]).fetchall()) for of in (name, "old"))
    for (table,) in tables:
        both = sorted(f'"{column}"' for of, column in ours & theirs if of == table)
        if both:
            con.execute(f"INSERT INTO {table} BY NAME SELECT {', '.join(both)} FROM old.{table}")
    if any(table == "study_rows" for table, _ in theirs):  # before schema 20
        _copy_numbers(con, theirs)
    database.write_reasons(con)


def _copy_numbers(con: duckdb.DuckDBPyConnection, columns: set[tuple[str, str]]) -> None:
    """The rows of tables metric_rows and study_rows of database ``old`` as numbers. columns: the
    tables and columns that it has."""
    for name, table in (("metric_rows", "earlier_metrics"), ("study_rows", "earlier_studies")):
        con.execute(f"CREATE TEMP TABLE {table} AS FROM old.{name}")
    if ("metric_rows", "missing_reason") not in columns:
        con.execute("ALTER TABLE earlier_metrics ADD COLUMN missing_reason VARCHAR")
    con.execute(packaged("store", "migrate.sql").read_text(encoding="utf-8"))


def _write_files(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """The rows of nights of database ``old``, and those of the files of its time, as files of
    today; one that is there already is newer."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for file in sorted(night_files.home(path).glob("*/night.json")):
        content = json_object(file)
        if isinstance(night := content.get("night"), dict):  # before schema 19: with its outcomes
            rows += [("night_outcomes", row) for row in content.get("outcomes", [])]
            rows.append(("nights", night | {"starts": content.get("starts")}))
    tables = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'old'"
    for table in {name for (name,) in con.execute(tables).fetchall()} & set(_FILES_NOW):
        stored = con.execute(f"FROM old.{table}").df().to_dict("records")
        rows += [(_FILES_NOW[table], {str(k): v for k, v in row.items()}) for row in stored]
    for view, row in rows:
        if night_files.read(path, view, row).get("night") != row["night"]:
            columns = night_files.VIEWS[view].columns
            night_files.write(path, view, {k: v for k, v in row.items() if k in columns})
