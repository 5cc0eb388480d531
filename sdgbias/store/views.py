"""The catalogued files of runs as tables of a connection: temporary views named scores,
predictions, decoded and spoken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sdgbias.errors import StoreError
from sdgbias.store import parquet
from sdgbias.store.parquet import Detail
from sdgbias.store.tables import TABLES

_WORD = re.compile(rf"\b({'|'.join(TABLES)})\b", re.IGNORECASE)
_PATTERN = r"run_id=[^/\\]+/(" + "|".join(TABLES) + r")-[0-9a-f]{16}\.parquet"
#: Begins the message of a broken file inside a DuckDB error.
MARK = "sdgbias-details: "


def tables_in(sql: str) -> list[str]:
    """The tables of details that a statement names, anywhere in its text."""
    return sorted({word.lower() for word in _WORD.findall(sql)})


def load_remote(con: Any, where: str) -> None:
    """Readies a connection for details in a bucket; credentials come from the environment
    (AWS_...). Raises StoreError."""
    try:
        con.execute("LOAD httpfs")
    except Exception:
        raise StoreError(
            f"{parquet.ELSEWHERE}: {where} needs DuckDB's extension httpfs, which isn't installed"
            " here and is never fetched on its own; install it once where there is a network"
            " (duckdb: INSTALL httpfs), or unset the variable"
        ) from None


def show(
    con: Any,
    results: Path,
    tables: Iterable[str] = tuple(TABLES),
    runs: Sequence[str] | None = None,
) -> None:
    """Makes the views over every catalogued file, or over those of ``runs`` only (much less work
    where there are thousands).

    A filter on run_id opens the files of those runs alone. A file that is missing or damaged is
    told by whoever reads its run.
    """
    where = parquet.home(results)
    for table in tables:
        mine = '"table" = $table AND dropped_at IS NULL' + (
            "" if runs is None else " AND list_contains($runs, run_id)"
        )
        given = {"table": table} | ({} if runs is None else {"runs": list(runs)})
        sql = f"""SELECT "columns", bool_and(regexp_full_match(file, $tame)), list($where || '/' ||
                  file ORDER BY file)
                  FROM details WHERE {mine} GROUP BY 1 ORDER BY 1"""
        parts = []
        for width, tame, paths in con.execute(
            sql, {**given, "tame": _PATTERN, "where": where}
        ).fetchall():
            if not tame:
                raise StoreError(
                    f"{results}: table details names a file outside {where}; this is no results"
                    " file of sdgbias"
                )
            _set(con, f"{table}_files_{width}", paths)
            parts.append(_read(f"{table}_files_{width}"))
        try:
            _make(con, table, parts)
        # one file that can't be opened hides all the others: leave it out, and let it speak when it
        # is asked for
        except Exception:
            if parquet.is_remote(where):
                raise
            _make(con, table, _without_broken(con, Path(where), table, mine, given))


def _set(con: Any, name: str, paths: Sequence[str]) -> None:
    quoted = ", ".join("'" + p.replace("'", "''") + "'" for p in paths)
    con.execute(f"SET VARIABLE {name} = [{quoted}]")


def _read(name: str) -> str:
    return (
        f"SELECT * FROM read_parquet(getvariable('{name}'), hive_partitioning = true, hive_types ="
        " {'run_id': 'VARCHAR'})"
    )


def _make(con: Any, table: str, parts: Sequence[str]) -> None:
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW {table} AS "
        + " UNION ALL BY NAME ".join([f"FROM detail.{table}", *parts])
    )


def _without_broken(
    con: Any, where: Path, table: str, mine: str, given: dict[str, Any]
) -> list[str]:
    """The parts of a view that reads the sound files, and raises an error for who asks for a run
    with a broken one."""
    sql = (
        f'SELECT run_id, "table", file, "rows", bytes, sha256, "columns" FROM details WHERE {mine}'
        " ORDER BY file"
    )
    sound: dict[int, list[str]] = {}
    broken = []
    for row in con.execute(sql, given).fetchall():
        detail = Detail(*row)
        why = parquet.fault(where, detail)
        if why:
            broken.append(
                (detail.run_id, MARK + parquet.advice(detail.run_id, str(where / detail.file), why))
            )
        else:
            sound.setdefault(detail.columns, []).append(str(where / detail.file))
    parts = []
    for width, paths in sound.items():
        _set(con, f"{table}_files_{width}", paths)
        parts.append(_read(f"{table}_files_{width}"))
    if broken:
        values = ", ".join(
            "(" + ", ".join("'" + v.replace("'", "''") + "'" for v in pair) + ")" for pair in broken
        )
        parts.append(
            f"SELECT run_id FROM (VALUES {values}) lost(run_id, said) WHERE error(said) IS NULL"
        )
    return parts
