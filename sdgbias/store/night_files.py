"""The record of nights as files beside the results file, read as tables. In its folder, <results
without its suffix>.nights:

    <night>/night.json                      how a night went: a row of ``nights``
    <night>/outcomes/<model>-<suite>.json   one model on one suite: a row of ``night_outcomes``
    <month>.nights.parquet, <month>.outcomes.parquet    the same of months that are over

Each file holds one JSON object on one line and is replaced whole, so that no reader sees half of
one and a killed night loses none; nothing is copied into the results file. A row of a JSON file
hides the one of a Parquet file with the same key, so it doesn't matter when a compaction is killed.
They are read when a statement names them, so a results folder can be moved. A copy of a file or
folder under another name is no record.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq

from sdgbias import files
from sdgbias.errors import StoreError, first_line, one_of

ONWARD = "make room or give a writable folder with --results"
_MONTH = re.compile(r"\d{4}-\d\d")


@dataclass(frozen=True)
class NightView:
    """files: pattern of its JSON files in the folder; parquet: the ending of its Parquet files;
    columns: name -> DuckDB's type."""

    files: str
    parquet: str
    key: tuple[str, ...]
    columns: Mapping[str, str]


VIEWS = {
    "nights": NightView(
        "*/night.json",
        "nights.parquet",
        ("night",),
        {
            "night": "VARCHAR",  # local wall clock of the (scheduled) start: 2026-11-21T0130
            **dict.fromkeys(("scheduled_for", "started_at", "finished_at"), "TIMESTAMP"),  # UTC
            "by": "VARCHAR",  # 'cli' | 'prefect'
            "status": "VARCHAR",  # 'running' | 'done' | 'failed' | 'interrupted'
            "config": "JSON",
            "steps": "JSON",  # step -> 'done' or the reason it failed
            "report": "VARCHAR",
            "benchmarks": "JSON",  # suite -> benchmark_id
            "step_states": "JSON",  # step -> 'done' | 'breach' | 'failed'
            "starts": "BIGINT",
        },
    ),
    "night_outcomes": NightView(
        "*/outcomes/*.json",
        "outcomes.parquet",
        ("night", "model", "suite"),
        {
            **dict.fromkeys(("night", "model", "suite"), "VARCHAR"),
            "outcome": "VARCHAR",  # 'published' | 'unchanged' | 'failed' | 'skipped'
            "run_id": "VARCHAR",
            "key": "VARCHAR",  # identity of the job (entry, benchmark, settings)
            "attempts": "BIGINT",
            "kind": "VARCHAR",  # class of the last error, '' when none
            "message": "VARCHAR",
            "seconds": "DOUBLE",
            **dict.fromkeys(("scored", "planned", "failed"), "BIGINT"),
            **dict.fromkeys(("started_at", "finished_at"), "TIMESTAMP"),
            "quarantined_until": "VARCHAR",  # ISO date, '' when not quarantined
            "log": "VARCHAR",  # path relative to the results' folder
        },
    ),
}


@cache
def home(results: Path) -> Path:
    """The folder of all nights of a results file. Those that earlier versions wrote into a folder
    `nights` for all results files beside it are moved here."""
    folder, shared = files.beside(results, ".nights"), results.parent / "nights"
    # a folder of this name may be somebody's own
    if not folder.exists() and (_any(shared, "*/night.json") or _any(shared, "*.nights.parquet")):
        try:
            _take_over(shared, folder, results.name)
        except OSError:  # nothing may be written here, or another process was first
            return folder if folder.exists() else shared
    return folder


def _take_over(shared: Path, folder: Path, name: str) -> None:
    """Move the nights of the results file of this name into its folder; months that are over, if
    other results files have nights here, too, are copied."""
    of = {}
    for path in shared.glob("*/night.json"):
        record = files.json_object(path)
        if isinstance(night := record.get("night"), dict):  # before schema 19: with its outcomes
            record = night
        results = (record.get("config") or {}).get("results") or name
        of[path.parent] = Path(results).name
    if {*of.values()} <= {name}:
        shared.rename(folder)
    elif name in of.values():
        folder.mkdir()
        for month in shared.glob("*.parquet"):
            shutil.copy2(month, folder)
        for night in (night for night, results in of.items() if results == name):
            night.rename(folder / night.name)


def path_of(results: Path, view: str, row: Mapping[str, Any]) -> Path:
    """The JSON file of a row."""
    folder = home(results) / str(row["night"])
    if view == "nights":
        return folder / "night.json"
    return folder / "outcomes" / _in_file_name(f"{row['model']}-{row['suite']}.json")


def _in_file_name(name: str) -> str:
    return name.replace("/", "_")


def read(results: Path, view: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the JSON file of the row with this key; {} without one."""
    return files.json_object(path_of(results, view, row))


def write(results: Path, view: str, row: Mapping[str, Any]) -> None:
    """Replace the JSON file of a row. Raises StoreError for an unknown column and where the file
    can't be written."""
    columns, key = VIEWS[view].columns, VIEWS[view].key
    for name in row:
        if name not in columns:
            raise StoreError(one_of(f"column of {view}", name, columns))
    if missing := [name for name in key if not isinstance(row.get(name), str)]:
        raise StoreError(f"a row of {view} without {', '.join(missing)}")
    content = {name: _plain(columns[name], value) for name, value in row.items()}
    text = json.dumps(content, ensure_ascii=False, default=str)
    files.write_atomically(path_of(results, view, row), f"{text}\n", ONWARD)


def _plain(kind: str, value: Any) -> Any:
    """A value as JSON: times are naive UTC in ISO format, what isn't there is null."""
    if kind == "JSON":
        return json.loads(value) if isinstance(value, str) else value
    if pd.isna(value):
        return None
    if kind == "TIMESTAMP":
        when = pd.Timestamp(value)
        return (when.tz_convert(UTC).tz_localize(None) if when.tz else when).isoformat()
    return str(value) if kind == "VARCHAR" else float(value) if kind == "DOUBLE" else int(value)


def show(
    con: duckdb.DuckDBPyConnection,
    results: Path,
    names: Collection[str] = tuple(VIEWS),
    model: str = "",
    once: bool = False,
) -> None:
    """Read the files into temporary tables of these ``names``; ``once``: where the connection has
    none of that name yet. ``model``: the files of others need not be read. Raises StoreError."""
    outcomes = glob.escape(_in_file_name(f"{model}-")) + "*.json" if model else "*.json"
    shown = "FROM duckdb_tables() WHERE temporary AND table_name = ?"
    for name in names:
        if once and con.execute(shown, [name]).fetchone():
            continue
        # DuckDB takes a millisecond for each file. A row that a compaction removes meanwhile is in
        # the month's Parquet file, which is read after.
        paths = home(results).glob(VIEWS[name].files.replace("*.json", outcomes))
        rows = [json.dumps(row) for row in (_record(results, path) for path in paths) if row]
        how = "CREATE OR REPLACE TEMP TABLE"
        try:
            con.execute(f"{how} {name} AS {_rows(home(results), VIEWS[name])}", {"rows": rows})
        except duckdb.Error as error:
            raise StoreError(
                f"{home(results)}: can't be read: {first_line(error)}; bring that file back from a"
                " copy, or move it away: its nights are then not shown"
            ) from None


def _record(results: Path, path: Path) -> dict[str, Any]:
    """The content of a JSON file that is whole and where its row is, else {}."""
    row, view = files.json_object(path), "nights" if path.name == "night.json" else "night_outcomes"
    in_place = {*VIEWS[view].key} <= {*row} and path_of(results, view, row) == path
    return row if in_place else {}


def _rows(folder: Path, view: NightView) -> str:
    """The statement that reads $rows, JSON texts of a view, and its Parquet files."""
    names = ", ".join(f'"{name}"' for name in view.columns)
    if "log" in view.columns:  # nights that were moved here name the folder in which they were
        moved = f"""'{folder.name.replace("'", "''")}' || substr(log, length('nights/'))"""
        names = names.replace('"log"', f"if(starts_with(log, 'nights/'), {moved}, log) AS \"log\"")
    key = ", ".join(f'"{name}"' for name in view.key)
    of_json = (
        f"SELECT {names} FROM (SELECT unnest(json_transform(row, '{json.dumps(view.columns)}'))"
        " FROM (SELECT unnest($rows::VARCHAR[]) AS row))"
    )
    pattern = f"????-??.{view.parquet}"
    if not _any(folder, pattern):
        return of_json
    plain = re.sub(r"([\[*?])", r"[\1]", str(folder.absolute())).replace("'", "''")
    packed = f"SELECT {names} FROM read_parquet('{plain}/{pattern}', hive_partitioning = false)"
    hidden = f"ANTI JOIN (SELECT {key} FROM ({of_json})) USING ({key})"
    return f"{of_json} UNION ALL SELECT {names} FROM ({packed}) {hidden}"


def _any(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def query(results: Path, sql: str, params: Sequence[Any] = (), model: str = "") -> pd.DataFrame:
    """Rows of the views; the results file need not be there, and is not opened. ``model``: as of
    `show`. Raises StoreError."""
    try:
        with _database(os.getpid()).cursor() as con:
            show(con, results, model=model)
            frame: pd.DataFrame = con.execute(sql, list(params)).df()
            return frame
    except duckdb.Error as error:
        raise StoreError(f"{home(results)}: can't be read: {first_line(error)}") from None


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """In memory, and kept: to open one takes longer than a query. It remembers nothing of files,
    which may be replaced at any time. A fork lacks its threads: each process has its own."""
    quiet = {"autoinstall_known_extensions": False, "enable_external_file_cache": False}
    return duckdb.connect(config=quiet)


def compact(results: Path, before: str) -> list[str]:
    """Bring the nights of every month before this one ('2026-11') into two Parquet files, and
    return those months. Logs stay. Killed at any instant, no row is lost or doubled. Call it while
    no night is at work. Raises StoreError."""
    folder = home(results)
    months = {path.name[:7] for path in folder.glob("*-*/") if _MONTH.match(path.name)}
    over = sorted(m for m in months if m < before and _any(folder, f"{m}-*/night.json"))
    for month in over:
        for name, view in VIEWS.items():
            with files.writing(folder / f"{month}.{view.parquet}", ONWARD) as part:
                target = "'" + str(part).replace("'", "''") + "'"
                of_month = f"FROM {name} WHERE starts_with(night, '{month}') ORDER BY ALL"
                query(results, f"COPY ({of_month}) TO {target} (FORMAT parquet)")
        for view in VIEWS.values():
            for path in folder.glob(f"{month}-{view.files}"):
                if _record(results, path):
                    path.unlink()
    return over


def faults(results: Path) -> list[tuple[Path, str]]:
    """The files of nights that can't be read, or that are lost beside their month's other: (path,
    'missing' | 'damaged')."""
    folder, broken = home(results), []
    for path in (p for v in VIEWS.values() for p in sorted(folder.glob(v.files))):
        if not _record(results, path):
            broken.append((path, "damaged"))
    for path in sorted(folder.glob("????-??.*.parquet")):
        of_month = [folder / f"{path.name[:7]}.{view.parquet}" for view in VIEWS.values()]
        broken += [(other, "missing") for other in of_month if not other.exists()]
        try:
            pq.read_metadata(path)
        except (OSError, ValueError):
            broken.append((path, "damaged"))
    return broken
