"""Read and check the records of a release: DuckDB parses them into staging files and compares them
across files; faults are reported by rule.

Rules: no-item-id, duplicate-record (the same line again: one is kept), conflicting-records (one
file contradicts itself on an item), inconsistent-item (two files contradict each other),
incomplete-item (in one file but not in another), invalid-options, answer-not-an-option,
answer-not-a-number, invalid-split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
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
_STRUCT = ", ".join(
    f'"{name}": {"[" if name == "images" else ""}"VARCHAR"{"]" if name == "images" else ""}'
    for name in FIELDS
)
_TEXT_FIELDS = ", ".join(f'r."{name}"' for name in FIELDS if name not in ("item_id", "images"))
#: The markers that follow the question in a text with more than the question.
_BARE = (
    r"(?s)^(?:Question: ?)?(.*?)(?:\n\s*(?:Context:|Options:|VALID OPTIONS|STRICT OUTPUT|Answer"
    r" ).*)?$"
)
_OPTIONS, _TAIL, _CONTEXT = (
    r"(?m)^\s*(?:Options:|VALID OPTIONS)",
    r"(?m)^\s*(?:Answer |STRICT OUTPUT)",
    r"(?m)^\s*Context:",
)
_STAGE = f"""
    WITH parsed AS (SELECT number, line, from_json(line, '{{{_STRUCT}}}') AS r FROM lines WHERE
    trim(line) <> '')
    SELECT number, TRY_CAST(regexp_extract(r.item_id, '^(-?[0-9]+)([.]0+)?$', 1) AS BIGINT) AS
    item_id, r.item_id AS said,
      coalesce(r.images, [coalesce(r.image, '')]) AS paths, line, md5(line) AS digest,
      {_TEXT_FIELDS},
      coalesce(r.item_question, regexp_extract(coalesce(r.question, ''), $bare, 1)) AS bare
    FROM parsed ORDER BY number"""
_BAD_LINE = """
    SELECT min(number) FROM lines
    WHERE trim(line) <> '' AND NOT CASE WHEN json_valid(line) THEN json_type(line) = 'OBJECT' ELSE
    false END"""
_BLOCK = 16 * 2**20


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
    found = {}
    for part in PARTS:
        name = f"{stem(*part)}.jsonl"
        for path in (folder / "data" / name, folder / name):
            if path.is_file():
                found[part] = path
                break
    if not found:
        raise InputError(
            f"{folder}: no data file; expected data/{stem(*PARTS[0])}.jsonl to"
            f" data/{stem(*PARTS[-1])}.jsonl of the release"
        )
    return found


# ----------------------------------------------------------------------
# reading


def stage_records(con: duckdb.DuckDBPyConnection, path: Path, staged: Path) -> int:
    """Parse a data file block by block into Parquet; returns its number of records. Raises
    InputError with the first bad line."""
    again = "copy that file again from its source"
    seen, records = 0, 0
    writer: pq.ParquetWriter | None = None
    try:
        # one column that ends at the line's end: a JSON text holds no raw control character, hence
        # no delimiter
        lines = pcsv.open_csv(
            path,
            pcsv.ReadOptions(column_names=["line"], block_size=_BLOCK),
            pcsv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=False),
            pcsv.ConvertOptions(column_types={"line": pa.string()}, strings_can_be_null=False),
        )
        for batch in lines:
            numbers = pa.array(np.arange(seen + 1, seen + 1 + len(batch)))
            con.register("lines", pa.table({"number": numbers, "line": batch.column(0)}))
            [(bad,)] = con.execute(_BAD_LINE).fetchall()
            if bad is not None:
                raise InputError(f"{path} line {bad}: no JSON record (cut off or damaged); {again}")
            if not records and (given := next(filter(str.strip, batch.column(0).to_pylist()), "")):
                refuse_other_case(path, json.loads(given), FIELDS)
            block = con.sql(_STAGE, params={"bare": _BARE}).to_arrow_table()
            writer = writer or pq.ParquetWriter(staged, block.schema, compression="zstd")
            writer.write_table(block)
            seen += len(batch)
            records += len(block)
    except (OSError, pa.ArrowException) as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path}: can't be read as lines of text ({detail}); {again}") from None
    finally:
        if writer is not None:
            writer.close()
    if not records:
        raise InputError(f"{path}: no record in it; {again}, or remove it")
    return records


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
            f"SELECT '{task}' AS task, '{test}' AS test, number, item_id, said, digest,"
            f" array_to_string(paths, chr(31)) AS image, bare, {shared} FROM"
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
