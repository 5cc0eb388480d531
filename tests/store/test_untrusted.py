"""SQL that a person wrote: it reads the results and no other file, and writes none. Every way of
writing that DuckDB has is tried on every file; what counts are the bytes before and after."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from datetime import date
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.errors import SdgbiasError, StoreError, UsageError
from sdgbias.store import night_files, parquet
from tests.builders.results import empty

SCORE = {"task": "mcq", "item_id": 1, "test": "T1", "view": "full", "logits": [0.0, 1.0]}


def published(results: Path, *runs: str) -> Path:
    """A file with these runs of one score each."""
    empty(results)
    for run in runs:
        record = {"run_id": run, "model": "m", "benchmark_id": "b"}
        store.publish(results, record, {"scores": pd.DataFrame([SCORE | {"candidates": "AB"}])})
    return results


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    published(folder / "r.duckdb", "r", "a/b")
    (folder / "f.txt").write_text("hello")
    return folder


def digests(folder: Path) -> dict[Path, str]:
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def fill(sql: str, folder: Path) -> str:
    """{folder}: where the results lie, {scores}: the details of a run."""
    scores = next(folder.glob("r.runs/run_id=r/scores-*.parquet"))
    return sql.replace("{folder}", str(folder)).replace("{scores}", str(scores))


WRAPPED = (
    "COPY",
    "EXPLAIN ANALYZE COPY",
    "EXPLAIN COPY",
    "EXPLAIN (ANALYZE) COPY",
    "/* a */ explain -- b\n analyze /* c */ COPY",
    "PREPARE p AS COPY",
    "WITH t AS (COPY) SELECT * FROM t",
    "EXPLAIN ANALYZE WITH t AS (COPY) SELECT * FROM t",
    "SELECT 1; COPY",
    "PREPARE p AS COPY; EXECUTE p",
)
TARGETS = ("{scores}", "{folder}/r.duckdb", "{folder}/r.runs/new.csv", "{folder}/new.csv")


@pytest.mark.parametrize("wrap", WRAPPED)
def test_no_query_writes_a_file(stored: Path, wrap: str) -> None:
    before = digests(stored)
    for target, how in product(TARGETS, ("FORMAT parquet", "FORMAT csv, USE_TMP_FILE false")):
        sql = wrap.replace("COPY", f"COPY (SELECT 2) TO '{target}' ({how})")
        with suppress(SdgbiasError):  # a plan alone may be shown: what counts are the bytes
            store.ask(stored / "r.duckdb", fill(sql, stored))
        assert digests(stored) == before, sql


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('{folder}/f.txt')",
        "FROM read_text('{folder}/r.runs/../f.txt')",
        "FROM read_blob('{scores}')",
        "FROM read_parquet('{scores}')",
        "FROM '{scores}'",
        "FROM '{folder}/r.duckdb'",
        "FROM glob('{folder}/*')",
        "FROM sniff_csv('{folder}/f.txt')",
        "FROM query('COPY runs TO ''{folder}/r.runs/new.csv'' ')",
        "FROM query('WITH t AS (COPY runs TO ''{folder}/new.csv'') FROM t')",
        "SELECT getenv('HOME')",
        "FROM enable_logging(storage_path = '{folder}/log')",
        "FROM enable_profiling(save_location = '{folder}/profile')",
        "EXPORT DATABASE '{folder}/r.runs/all'",
        "ATTACH '{folder}/second.duckdb'",
        "ATTACH '{folder}/r.duckdb' AS again",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET disabled_filesystems = ''",
        "RESET disabled_filesystems",
        "SET temp_directory = '{folder}/temp'",
        "PRAGMA enable_profiling",
        "PRAGMA profiling_output = '{folder}/profile'",
        "CALL enable_logging(storage_path = '{folder}/log')",
        "CHECKPOINT",
        "CREATE TEMP TABLE t AS SELECT 1",
        "INSERT INTO runs (run_id) VALUES ('x')",
        "WITH t AS (DELETE FROM runs RETURNING *) FROM t",
        "VACUUM",
        "SELECT 1; SELECT 2",
        ";",
        "-- nothing",
        "SELEC 1",
        "SELECT nothing FROM runs",
        "SELECT 'x'::INT",
        "FROM frame",
        "FROM SCORE",
    ],
)
def test_a_query_is_one_select_about_the_results(stored: Path, sql: str) -> None:
    before = digests(stored)
    with pytest.raises(UsageError) as told:
        store.ask(stored / "r.duckdb", fill(sql, stored))
    assert "\n" not in str(told.value) and digests(stored) == before


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT modle FROM metrics", r"modle.*\"model\".*sdgbias results tables$"),
        ("SELECT m.modle FROM metrics m", r"modle.*near: .*model.*sdgbias results tables$"),
        ("SELECT model FROM metricz", r"metricz.*\"metrics\".*sdgbias results tables$"),
        ("SELEC 1", "^the query failed.*syntax"),
        ("SELECT CAST('x' AS INTEGER)", "^the query failed.*Could not convert"),
    ],
)
def test_a_typo_names_what_is_near(stored: Path, sql: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        store.ask(stored / "r.duckdb", sql)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT run_id, test FROM scores ORDER BY 1", [["a/b", "T1"], ["r", "T1"]]),
        ("SELECT sum(logits[2]) FROM scores WHERE run_id = 'a/b'", [[1.0]]),
        ("SELECT s.test FROM scores s JOIN runs r USING (run_id) WHERE s.run_id = 'r'", [["T1"]]),
        ("WITH t AS (FROM runs) SELECT count(*) FROM t -- all", [[2]]),
        ("SELECT count(*) FROM predictions", [[0]]),
        ("FROM (VALUES (1), (2)) v(a) ORDER BY a;", [[1], [2]]),
        ("SELECT count(*)::HUGEINT * 5, DATE '2026-11-21' FROM runs", [[10, date(2026, 11, 21)]]),
        (
            "PIVOT (SELECT model, run_id FROM runs) ON model USING count(*) ORDER BY run_id",
            [["a/b", 1], ["r", 1]],
        ),
    ],
)
def test_what_a_query_reads(stored: Path, sql: str, rows: list[list[object]]) -> None:
    answered = store.ask(stored / "r.duckdb", sql).to_numpy().tolist()
    assert repr(answered) == repr(rows), "an integer is no float, a day no midnight"


@pytest.mark.parametrize(
    "sql", ["EXPLAIN FROM scores", "explain analyze FROM runs", "DESCRIBE scores", "SHOW TABLES"]
)
def test_plans_and_descriptions_are_answered(stored: Path, sql: str) -> None:
    assert len(store.ask(stored / "r.duckdb", sql))


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """Also by a valid Parquet file of the same size, and whoever reads: a person or the report."""
    results = published(tmp_path / "r.duckdb", "good", "bad")
    kept = next(results.with_suffix(".runs").glob("run_id=bad/*"))
    bytes_then = kept.read_bytes()
    forged = bytes_then.replace(b"T1", b"T2")
    assert len(forged) == len(bytes_then) and forged != bytes_then
    others = pd.DataFrame({"x": [1], "y": [2]}).to_parquet()
    for content in (forged, others):
        kept.write_bytes(content)
        for read in (store.ask, store.query, store.arrow):
            assert len(read(results, "SELECT test FROM scores WHERE run_id = 'good'")) == 1
            with pytest.raises(StoreError, match="^run bad: .* is damaged"):
                read(results, "SELECT test FROM scores")


def test_a_file_that_was_copied_without_its_times_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = published(tmp_path / "r.duckdb", "r")
    hashed: list[Path] = []
    whole = parquet.sha256
    monkeypatch.setattr(parquet, "sha256", lambda path: hashed.append(path) or whole(path))
    assert len(store.query(results, "FROM scores")) == 1 and not hashed
    kept = next(results.with_suffix(".runs").glob("run_id=r/*"))
    os.utime(kept, (1, 1))
    for _ in range(3):
        assert len(store.query(results, "FROM scores")) == 1
    assert len(hashed) == 1


def test_nights_are_read_although_no_file_can_be_opened(tmp_path: Path) -> None:
    results = published(tmp_path / "r.duckdb", "r")
    night_files.write(results, "nights", {"night": "2026-11-21T0130", "status": "done"})
    rows = store.ask(results, "SELECT night, status FROM Nights, (SELECT count(*) FROM scores)")
    assert rows.to_numpy().tolist() == [["2026-11-21T0130", "done"]]
