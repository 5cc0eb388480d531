"""The Parquet files of runs: same rows same file, read as tables, and what is said where one is
missing, damaged or elsewhere."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from sdgbias import locks, store
from sdgbias.errors import StoreError, UsageError
from sdgbias.store import maintenance
from sdgbias.store import parquet as files
from sdgbias.store.tables import DETAILS
from tests.builders.results import empty
from tests.builders.store_rows import child, run, tables


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Runs r1 and r2 with scores of mass 0.5 and 0.6."""
    path = empty(tmp_path / "here" / "r.duckdb")
    for name, mass in (("r1", 0.5), ("r2", 0.6)):
        store.publish(path, run(name, model=name), tables(mass))
    return path


def masses(path: Path, where: str = "true", **more: object) -> dict[str, float]:
    found = store.query(
        path, f"SELECT run_id, min(mass) AS m FROM scores WHERE {where} GROUP BY 1", **more
    )  # type: ignore[arg-type]
    return dict(zip(found["run_id"], found["m"], strict=True))


def parquet(path: Path, run_id: str) -> Path:
    [found] = (path.with_suffix(".runs") / files.folder_of(run_id)).glob("scores-*.parquet")
    return found


def test_same_rows_same_bytes_same_name_whatever_their_order(tmp_path: Path) -> None:
    keys = {"run_id": ["r"] * 3, "test": ["T1"] * 3, "view": ["full"] * 3}
    rows = pa.table(keys | {"item_id": [2, 3, 1], "free": [1.0, 2.0, None]})
    one = files.write(tmp_path / "a.duckdb", "r", "decoded", rows)
    other = files.write(tmp_path / "b.duckdb", "r", "decoded", rows.take([2, 0, 1]))
    assert one == other and one.rows == 3
    [written] = (tmp_path / "a.runs").rglob("*.parquet")
    assert written == tmp_path / "a.runs" / one.file and one.sha256.startswith(
        written.stem.split("-")[1]
    )
    assert written.read_bytes() == (tmp_path / "b.runs" / one.file).read_bytes()
    assert files.sha256(written) == one.sha256 and written.stat().st_size == one.bytes


@pytest.mark.parametrize("run_id", ["007", "a/b c", "%41", "x=y", "it's", ".."])
def test_run_ids_of_every_kind_stay_inside_and_come_back(tmp_path: Path, run_id: str) -> None:
    path = empty(tmp_path / "[x]*'" / "r.duckdb")
    store.publish(path, run(run_id), tables())
    assert masses(path, "run_id = ?", params=[run_id]) == {run_id: 0.5}
    assert {p.parent.parent for p in tmp_path.rglob("*.parquet")} == {path.with_suffix(".runs")}


def test_big_tables_lie_in_parquet_and_small_ones_in_the_file(results: Path) -> None:
    """What a run lacks has no file, and is empty and typed."""
    sql = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main'"
    with duckdb.connect(str(results), read_only=True) as con:
        names = set(con.execute(sql).df()["table_name"])
    assert not names & set(DETAILS) and {"numbers", "details"} <= names
    assert len(list(results.with_suffix(".runs").rglob("*"))) == 4, "two folders with a file each"
    assert store.query(results, "FROM decoded").empty
    numbers = store.arrow(results, "SELECT by_digit FROM decoded").schema.field("by_digit")
    assert numbers.type == pa.list_(pa.float64())


def test_details_are_read_by_their_names_in_any_case(results: Path) -> None:
    assert store.query(results, "SELECT min(mass) AS m FROM SCORES")["m"].tolist() == [0.5]


def test_only_the_runs_that_are_asked_for_are_opened(results: Path) -> None:
    parquet(results, "r1").write_bytes(b"no Parquet")
    assert masses(results, "run_id = 'r2'") == {"r2": 0.6}
    assert masses(results, "list_contains($runs, run_id)", params={"runs": ["r2"]}) == {"r2": 0.6}
    assert masses(results, runs=["r2"]) == {"r2": 0.6}


@pytest.mark.parametrize("which", ["r1", "r2"])  # the first file of a view tells it its columns
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_broken_file_is_told_by_who_reads_its_run(results: Path, which: str, how: str) -> None:
    sound, broken = {"r1": 0.5, "r2": 0.6}, parquet(results, which)
    data = bytearray(broken.read_bytes())
    data[30] ^= 1
    broken.unlink() if how == "missing" else broken.write_bytes(data)
    del sound[which]
    [(other, mass)] = sound.items()
    assert masses(results, f"run_id = '{other}'") == {other: mass}
    for where in (f"run_id = '{which}' AND mass > 0.1", "task = 'mcq'"):
        with pytest.raises(StoreError) as error:
            masses(results, where)
        said = str(error.value)
        assert "\n" not in said
        for words in (f"run {which}: ", broken.name, how, "sdgbias store"):
            assert words in said
    assert [(d.run_id, why) for d, why in maintenance.check(results)] == [(which, how)]
    assert not store.has_run(results, which) and store.has_run(results, other)
    store.publish(results, run(which, model=which), tables(0.7))
    assert masses(results) == {other: mass, which: 0.7} and maintenance.check(results) == []


@pytest.mark.parametrize("later", [0, 1_000_000_000], ids=["time as written", "another time"])
def test_check_reads_every_byte_whatever_size_and_time_say(results: Path, later: int) -> None:
    """The file is compared once, then a byte is turned over, and its time set back."""
    file = parquet(results, "r1")
    at = file.stat().st_mtime_ns + later
    os.utime(file, ns=(at, at))
    assert maintenance.check(results) == []
    data = bytearray(file.read_bytes())
    data[30] ^= 1

    file.write_bytes(data)
    os.utime(file, ns=(at, at))

    assert [(d.run_id, why) for d, why in maintenance.check(results)] == [("r1", "damaged")]


@pytest.mark.parametrize(
    "file", ["../../secret.parquet", f"../other.runs/run_id=r1/scores-{'0' * 16}.parquet"]
)
def test_a_catalogue_that_leads_outside_is_refused(results: Path, file: str) -> None:
    with store.connect(results) as con:
        con.execute("UPDATE details SET file = ? WHERE run_id = 'r1'", [file])
    with pytest.raises(StoreError, match="names a file outside"):
        masses(results)
    assert len(store.query(results, "FROM metrics")) == 2  # what needs no details is read


def test_the_folder_moves_with_its_file(results: Path, tmp_path: Path) -> None:
    shutil.move(results.parent, tmp_path / "there")
    assert masses(tmp_path / "there" / "r.duckdb") == {"r1": 0.5, "r2": 0.6}


def test_results_are_a_local_file() -> None:
    with pytest.raises(UsageError, match="results are a local file"):
        store.query("postgres://host/results", "FROM runs")


def test_a_disk_that_is_full_for_the_parquet_file(results: Path) -> None:
    code = f"""
import resource, numpy
big = tables(0.9, items=20000)
logits = numpy.random.default_rng(0).normal(size=(20000, 3))
big["scores"]["logits"] = list(logits.astype("float32"))
resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    store.publish({str(results)!r}, run("r1"), big)
except store.StoreError as error:
    print(error)
"""
    # DuckDB's own file is beyond the limit, too; it must not be written before the Parquet files
    # are there
    out, err = child(code).communicate()
    said = f"{results.with_suffix('.runs')}/run_id=r1: can't be written (File too large)"
    assert out.startswith(said) and out.endswith("results are as before)\n"), (out, err)
    assert masses(results) == {"r1": 0.5, "r2": 0.6} and not list(results.parent.rglob("*.part"))


def test_who_clears_up_waits_for_who_writes(results: Path) -> None:
    code = f"""
from sdgbias import locks
with locks.shared(__import__('pathlib').Path({str(results)!r})):
    print('held', flush=True); time.sleep(600)
"""
    holder = child(code)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    with (
        pytest.raises(StoreError, match="is being written or cleared up by another process"),
        locks.alone(results, wait=0.1),
    ):
        pass
    store.publish(
        results, run("r3", model="r3"), tables()
    )  # writers don't wait for each other here
    holder.kill()
    holder.wait()
    with locks.alone(results, wait=5):
        late = threading.Thread(
            target=store.publish, args=(results, run("r4", model="r4"), tables())
        )
        late.start()
        time.sleep(0.2)
        assert late.is_alive() and "r4" not in store.run_ids(results)
    late.join()
    assert "r4" in store.run_ids(results)
