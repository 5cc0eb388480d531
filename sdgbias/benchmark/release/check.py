"""Read and check the records of a release: they are parsed into staging files, and DuckDB compares
them; faults are reported by rule.

Rules: no-item-id, duplicate-record (the same line again: one is kept), conflicting-records (one
file contradicts itself on an item), inconsistent-item (two files contradict each other),
incomplete-item (in one file but not in another), invalid-options, answer-not-an-option,
answer-not-a-number, invalid-split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark.release.records import AUTHORS_FIELDS, OWN_FIELDS, PARTS, stem
from sdgbias.errors import InputError
from sdgbias.files import packaged_sql, refuse_other_case
from sdgbias.progress import Progress
from sdgbias.types import ContextTest, Task

Part = tuple[Task, ContextTest]
#: Fields that must be equal in every test's file.
_SHARED = ("image", "A", "B", "C", "answer", "split", "pillar", "indicator", "target", "cluster_id")
FIELDS = tuple(dict.fromkeys((*AUTHORS_FIELDS, *OWN_FIELDS)))
#: Where the question ends in a text with more than the question.
_BARE = re.compile(r"\n\s*(?:Context:|Options:|VALID OPTIONS|STRICT OUTPUT|Answer )")
_OPTIONS, _TAIL, _CONTEXT = (
    r"(?m)^\s*(?:Options:|VALID OPTIONS)",
    r"(?m)^\s*(?:Answer |STRICT OUTPUT)",
    r"(?m)^\s*Context:",
)
_WHOLE_NUMBER = re.compile(r"(-?[0-9]{1,19})(?:\.0+)?")
_TEXTS = tuple(name for name in FIELDS if name not in ("item_id", "images"))
_STAGED = pa.schema(
    {
        **{"number": pa.int64(), "item_id": pa.int64(), "said": pa.string()},
        **{"paths": pa.list_(pa.string()), "line": pa.string()},
        **dict.fromkeys((*_TEXTS, "bare"), pa.string()),
    }
)
_BLOCK = 10_000
_AGAIN = "copy that file again from its source"


@dataclass(frozen=True)
class ReleaseImport:
    con: duckdb.DuckDBPyConnection
    folder: Path
    out: Path
    work: Path
    found: Mapping[Part, Path]
    progress: Progress
    text_view: str

    def staged(self, part: Part) -> str:
        """The staged file of a part, as SQL text."""
        return str(self.work / f"{stem(*part)}.parquet").replace("'", "''")

    def parts(self, task: Task) -> list[Part]:
        return [part for part in self.found if part[0] is task]


@contextmanager
def database(**settings: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB that prints nothing."""
    with duckdb.connect(config=settings) as con:
        con.execute("SET enable_progress_bar = false")
        yield con


def find_parts(folder: Path) -> dict[Part, Path]:
    """The existing data files, in the order of PARTS."""
    paths = {}
    for part in PARTS:
        name = f"{stem(*part)}.jsonl"
        for path in (folder / "data" / name, folder / name):
            if path.is_file():
                paths[part] = path
                break
    if not paths:
        raise InputError(
            f"{folder}: no data file; expected data/{stem(*PARTS[0])}.jsonl to"
            f" data/{stem(*PARTS[-1])}.jsonl of the release"
        )
    return paths


# ----------------------------------------------------------------------
# reading


def stage_records(path: Path, staged: Path) -> int:
    """Parse a data file block by block into Parquet; returns its number of records. Raises
    InputError with the first bad line."""
    records = 0
    try:
        with path.open("rb") as lines, pq.ParquetWriter(staged, _STAGED) as writer:
            numbered = enumerate(lines, 1)
            while block := list(islice(numbered, _BLOCK)):
                rows = [_staged(path, number, line) for number, line in block if line.strip()]
                if rows and not records:
                    refuse_other_case(path, json.loads(rows[0]["line"]), FIELDS)
                writer.write_table(pa.Table.from_pylist(rows, _STAGED))
                records += len(rows)
    except (OSError, UnicodeEncodeError, pa.ArrowException) as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path}: can't be read as lines of text ({detail}); {_AGAIN}") from None
    if not records:
        raise InputError(f"{path}: no record in it; {_AGAIN}, or remove it")
    return records


def _staged(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """A record with its values as text, numbers as they are written. Raises InputError."""
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
        record = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{path} line {number}: no JSON record (cut off or damaged); {_AGAIN}")
    values = {name: _text(record[name]) for name in _TEXTS if name in record}
    item, images = _text(record.get("item_id")), record.get("images")
    whole = _WHOLE_NUMBER.fullmatch(item or "")
    listed = images if isinstance(images, list) else [record.get("image")]
    question = _BARE.split(values.get("question") or "", maxsplit=1)[0]
    bare = values.get("item_question") or re.sub("^Question: ?", "", question)
    return {
        **values,
        **{"number": number, "line": text, "said": item, "bare": bare},
        "item_id": int(whole[1]) if whole and abs(int(whole[1])) < 2**63 else None,
        "paths": [_text(name) or "" for name in listed],
    }


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def question_kind(con: duckdb.DuckDBPyConnection, task: Task, staged: str) -> str:
    """The kind of `question` in a file: 'complete' (with options or answer instruction), 'with
    context', or 'bare'."""
    ends = _OPTIONS if task is Task.MCQ else _TAIL
    query = f"""SELECT avg(regexp_matches(coalesce(question, ''), $ends)::INT),
                bool_or(regexp_matches(coalesce(question, ''), $context))
                FROM '{staged}'"""
    [(share, context)] = con.execute(query, {"ends": ends, "context": _CONTEXT}).fetchall()
    return "complete" if share >= 0.5 else "with context" if context else "bare"


# ----------------------------------------------------------------------
# checking


def find_faults(job: ReleaseImport) -> list[str]:
    """Fill table `faults` (tbl, item_id, key, rule, detail) from all files; returns the tasks whose
    questions can't be compared.

    Tables `records` (the fields compared, of every record) and `good` (task, item_id) stay for the
    next steps.
    """
    con = job.con
    shared = ", ".join(
        f'coalesce("{name}", \'\') AS "{name}"' for name in _SHARED if name != "image"
    )
    con.execute(
        "CREATE TABLE records AS "
        + " UNION ALL ".join(
            f"SELECT '{task}' AS task, '{test}' AS test, number, item_id, said,"
            f" md5(line) AS digest, array_to_string(paths, chr(31)) AS image, bare, {shared} FROM"
            f" '{job.staged((task, test))}'"
            for task, test in job.found
        )
    )
    names = ", ".join(
        f"CASE WHEN count(DISTINCT \"{name}\") > 1 THEN '{name}' END" for name in _SHARED
    )
    con.execute(
        f"CREATE TABLE differ AS SELECT task, item_id, count(DISTINCT bare) > 1 AS asked,"
        f" concat_ws(', ', {names}) AS what FROM records WHERE item_id IS NOT NULL"
        " GROUP BY task, item_id"
    )
    by_design = con.execute(
        "SELECT task FROM differ GROUP BY task HAVING avg(asked::INT) > 0.5 ORDER BY task"
    ).fetchall()
    for (task,) in by_design:  # where most texts differ, they differ by design
        con.execute("UPDATE differ SET asked = false WHERE task = $task", {"task": task})
    files = ", ".join(f"('{task}', {len(job.parts(task))})" for task in Task)
    con.execute(f"CREATE TABLE files AS FROM (VALUES {files}) found(task, n)")
    con.execute(
        "CREATE TABLE faults (tbl VARCHAR, item_id BIGINT, key VARCHAR, rule VARCHAR, detail"
        " VARCHAR)"
    )
    for rule, select in packaged_sql("release_faults.sql").items():
        con.execute(
            f"INSERT INTO faults SELECT 'items_' || task, item_id, key, '{rule}', detail FROM"
            f" ({select})"
        )
    con.execute(
        """CREATE TABLE good AS SELECT DISTINCT task, item_id FROM records WHERE item_id IS NOT NULL
        AND (task, item_id) NOT IN (SELECT substr(tbl, 7), item_id FROM faults WHERE rule <>
        'duplicate-record' AND item_id IS NOT NULL)"""
    )
    return [str(task) for (task,) in by_design]
