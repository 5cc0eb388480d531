"""The results file: whole runs or nothing, one writer, one clear line when it can't."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.store import database, migrate, night_files
from tests.builders.refusals import Refusal
from tests.builders.results import empty
from tests.builders.store_rows import child, contents, holding, run, tables

PUBLIC = "run_id model suite task test method pillar indicator metric value n ci_low ci_high"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return empty(tmp_path / "results" / "sdgbias.duckdb")


def test_publish_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sdgbias.duckdb"
    store.publish(path, run(config={"b": 1, "a": [2]}), tables())
    public = store.query(path, "FROM metrics")
    assert list(public.columns) == PUBLIC.split()
    shown = public.loc[0, ["run_id", "model", "suite", "value", "n"]]
    assert shown.tolist() == ["r1", "m", "sdg", 0.5, 3]
    row = store.query(path, "SELECT * FROM runs").iloc[0]
    assert row["config"] == '{"a": [2], "b": 1}'
    assert row["finished_at"] == pd.Timestamp("2026-11-20T00:00:00")  # stored as UTC
    logits = store.query(path, "SELECT logits FROM scores")["logits"][0]
    assert logits[0] == 1.0 and np.isnan(logits[1])  # NaN (no such option) is not NULL
    asset = "SELECT context->>'asset_index' AS v FROM items WHERE item_id = $id"
    assert store.query(path, asset, {"id": 1})["v"][0] == "1.5"
    assert bytes(store.query(path, "SELECT png FROM previews")["png"][0]) == b"\x89PNG\x00"


def test_publish_replaces_the_run_and_only_the_run(path: Path) -> None:
    """Twice is as once; a smaller run keeps the questions of a larger one."""
    store.publish(path, run("r1"), tables(0.5, items=5))
    store.publish(path, run("r2", model="other"), tables(0.6, items=2))
    first = contents(path)
    store.publish(path, run("r2", model="other"), tables(0.6, items=2))
    assert contents(path) == first
    store.publish(path, run("r1"), {"numbers": tables(0.7)["numbers"]})
    values = store.query(path, "SELECT run_id, value FROM metrics ORDER BY run_id")
    assert values.values.tolist() == [["r1", 0.7], ["r2", 0.6]]
    assert store.query(path, "SELECT DISTINCT run_id FROM scores")["run_id"].tolist() == ["r2"]
    assert [contents(path)[name][0] for name in ("items", "quarantine")] == [5, 1]


def test_which_runs(path: Path) -> None:
    """A model whose only run never ended has none."""
    assert not store.has_run(path.with_name("none.duckdb"), "a1")
    for run_id, model, day in [("a1", "a", 1), ("a2", "a", 3), ("b1", "b", 2)]:
        store.publish(path, run(run_id, model=model, finished_at=f"2026-11-0{day}T00:00:00"), {})
    store.publish(path, run("b2", model="b", finished_at=None), {})
    assert store.run_ids(path) == ["a1", "b1", "a2", "b2"]
    store.publish(path, run("c1", model="c", finished_at=None), {})
    assert store.latest_runs(path) == ["a2", "b1"]
    assert [store.has_run(path, name) for name in ("b1", "b2", "zz")] == [True, False, False]
    store.publish(path, run("a0", model="a", finished_at="2026-11-03T00:00:00"), {})
    assert store.latest_runs(path) == ["a2", "b1"], "of two that ended together the last name"


def test_while_one_file_is_held_open_another_is_read_too(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.duckdb"
    store.publish(path, run("r1"), {})
    store.publish(other, run("r2"), {})

    with store.held_open(path):
        names = store.run_ids(path), store.run_ids(other)

    assert names == (["r1"], ["r2"])


def test_a_picture_names_the_first_run_that_showed_it(path: Path) -> None:
    store.publish(path, run("r1"), tables())
    store.publish(path, run("r2", model="other"), tables())

    pictures = store.query(path, "SELECT image_id, run_id FROM previews")

    assert pictures.to_numpy().tolist() == [["i", "r1"]]


def scores(change: Callable[[pd.DataFrame], pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {"scores": change(tables(0.9)["scores"])}


#: What is wrong with a run: its record and its tables.
WRONG: dict[str, tuple[dict[str, object], dict[str, pd.DataFrame]]] = {
    "an unknown table": (run(), {"score": pd.DataFrame()}),
    "an unknown column": (run(), scores(lambda s: s.assign(colour=1))),
    "no view": (run(), scores(lambda s: s.drop(columns="view"))),
    "two rows for one key": (run(), scores(lambda s: pd.concat([s] * 2))),
    "a text for a number": (run(), scores(lambda s: s.assign(mass="x"))),
    "an unknown provenance": (run(provenance="guessed"), {}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_run_is_refused_whole(path: Path, case: str, refusal: Refusal) -> None:
    store.publish(path, run(), tables())
    before = contents(path)
    with refusal():
        store.publish(path, *WRONG[case])
    assert contents(path) == before


def test_a_path_that_can_not_be_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "file").write_text("no database")
    os.mkfifo(tmp_path / "pipe")
    for case in ("file/x.duckdb", "file", "pipe", ".", "what?/r.duckdb"):
        with refusal(case):
            store.publish(tmp_path / case, run(), {})
    with refusal("nothing there"):
        store.query(tmp_path / "none.duckdb", "FROM runs")
    with refusal("what?/r.duckdb, before anything is scored"):
        store.has_run(tmp_path / "what?" / "r.duckdb", "r1")


@pytest.mark.parametrize("other", [min(migrate.EARLIER) - 1, database.SCHEMA + 1])
def test_a_file_of_an_unknown_schema_is_refused_and_unchanged(path: Path, other: int) -> None:
    store.publish(path, run(), tables())
    with store.connect(path) as con:
        con.execute("UPDATE schema_version SET version = ?", [other])
    path = path.rename(path.with_name("of-another-version.duckdb"))
    migrate.CURRENT.clear()
    before = path.read_bytes()
    for use in (lambda: store.query(path, "FROM runs"), lambda: store.publish(path, run(), {})):
        with pytest.raises(StoreError, match=f"schema {other}, .* to {database.SCHEMA};") as e:
            use()
        assert str(path) in str(e.value) and "--results FILE" in str(e.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [None, 0, 1000, 4096, 8192])
def test_an_empty_file_is_a_new_one(path: Path, size: int | None) -> None:
    """What a writer leaves that is killed, or has no room, before its first transaction."""
    path.unlink()
    duckdb.connect(str(path)).close()
    if size is not None:
        os.truncate(path, size)

    assert store.query(path, "FROM runs").empty

    store.publish(path, run(), tables())
    assert len(store.query(path, "FROM runs")) == 1


def test_another_process_holds_the_file(path: Path) -> None:
    store.publish(path, run(), tables())
    hold = holding(path)
    assert hold.stdin
    with pytest.raises(StoreError) as error, store.connect(path, read_only=True, wait=0.1):
        pass
    said = str(error.value)
    assert str(path) in said and f"PID {hold.pid}" in said and "\n" not in said
    with pytest.raises(StoreError, match="held by"), store.connect(path, wait=0.1):
        pass
    threading.Timer(0.5, hold.stdin.close).start()
    store.publish(path, run("r2"), tables())  # waits until the other process is done
    assert hold.wait() == 0 and store.run_ids(path) == ["r1", "r2"]


def test_threads_take_turns(path: Path) -> None:
    names = ["r0", "r1", "r2"]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: store.publish(path, run(name), tables()), names))
    assert store.run_ids(path) == names and len(store.query(path, "FROM items")) == 3


#: Publishes in a fork into each file that is named, killed before its first statement, its second,
#: and so on, or when the last one, COMMIT, has returned (-1). Prints the exit code, or of a publish
#: that ends (0) how many statements there were.
KILLED = """
import contextlib
connect = store.connect
class Watched:
    statements = 0
    def __init__(self, con): self.con = con
    def __getattr__(self, name): return getattr(self.con, name)
    def execute(self, sql, *values):
        Watched.statements += 1
        if Watched.statements == instant: os.kill(os.getpid(), signal.SIGKILL)
        answer = self.con.execute(sql, *values)
        if sql == "COMMIT" and instant == -1: os.kill(os.getpid(), signal.SIGKILL)
        return answer
@contextlib.contextmanager
def watched(*a, **k):
    with connect(*a, **k) as con: yield Watched(con)
store.connect = watched
for line in sys.stdin:
    instant, path = int(line.split()[0]), line.split()[1]
    if not (fork := os.fork()):
        store.publish(path, run(), tables(0.9, items=50))
        os._exit(Watched.statements)
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_at_any_statement_a_publish_leaves_the_old_state_or_the_new(
    path: Path, others: bool
) -> None:
    """Before every seventh statement and the last, or before each of the ``others``."""
    store.publish(path, run(), tables(0.5))
    old = contents(path)
    whole = path.parents[1] / "copy" / path.name
    shutil.copytree(path.parent, whole.parent)
    dying = child(KILLED, stdin=subprocess.PIPE)

    def publish(instant: int, into: Path) -> int:
        assert dying.stdin and dying.stdout
        dying.stdin.write(f"{instant} {into}\n")
        dying.stdin.flush()
        return int(dying.stdout.readline())

    statements = publish(0, whole)
    assert statements >= 15
    seventh = {*range(1, statements, 7), statements}
    for instant in sorted({*range(1, statements)} - seventh if others else seventh):
        assert publish(instant, path) == -signal.SIGKILL
        assert contents(path) == old, f"killed before statement {instant}"
    assert publish(-1, path) == -signal.SIGKILL
    assert contents(path) == contents(whole) != old, "killed after COMMIT"
    dying.communicate()


def test_disk_full(path: Path) -> None:
    store.publish(path, run(), tables(0.5))
    before = contents(path)
    code = f"""
import resource, numpy, pandas
size = os.path.getsize({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, size + 4096))
pictures = [numpy.random.bytes(20000) for _ in range(200)]
big = pandas.DataFrame({{"image_id": [str(i) for i in range(200)], "png": pictures}})
try:
    store.publish({str(path)!r}, run(), tables(0.9) | {{"previews": big}})
except store.StoreError as error:
    print(error)
"""
    out, err = child(code).communicate()
    assert "can't write" in out and str(path) in out and out.count("\n") == 1, (out, err)
    assert contents(path) == before


def test_read_only_folder() -> None:
    """As an ordinary user, because root may write anywhere; not below pytest's folder, which every
    start of pytest shuts to others."""
    folder = Path(tempfile.mkdtemp())
    old, new = folder / "old.duckdb", folder / "new.duckdb"
    store.publish(old, run(), tables())
    old.chmod(0o444)
    folder.chmod(0o555)
    code = f"""
if os.getuid() == 0: os.setgid(65534); os.setuid(65534)
for path in {[str(old), str(new)]}:
    try:
        store.publish(path, run(), tables())
    except store.StoreError as error:
        print(error)
"""
    out, err = child(code).communicate()
    folder.chmod(0o755)
    shutil.rmtree(folder)
    lines = out.splitlines()
    assert len(lines) == 2, (out, err)
    for line, path in zip(lines, (old, new), strict=True):
        assert line.startswith(f"can't open {path}: permission denied")


def test_sql_reads_only_and_fetches_no_extension(path: Path) -> None:
    store.publish(path, run(), {})
    with pytest.raises(StoreError, match="read-only"):
        store.query(path, "DELETE FROM runs")
    assert store.run_ids(path) == ["r1"]
    setting = store.query(path, "SELECT current_setting('autoinstall_known_extensions') AS s")
    assert not setting["s"][0]


@pytest.mark.parametrize(
    ("value", "reason"), [(float("nan"), None), (0.5, "fewer than 20"), (None, None)]
)
def test_a_number_has_a_value_or_the_reason_why_it_has_none(
    value: float | None, reason: str | None, tmp_path: Path
) -> None:
    wrong = tables()["numbers"].assign(value=value, missing_reason=reason)

    with pytest.raises(StoreError, match="mcq, T1, full, accuracy has neither a value nor"):
        store.publish(tmp_path / "r.duckdb", run(), {"numbers": wrong})


def test_a_connection_that_is_held_reads_the_record_of_nights_once(tmp_path: Path) -> None:
    """A report asks hundreds of times, and each file takes a millisecond."""
    path = tmp_path / "r.duckdb"

    def add(night: str) -> None:
        store.upsert(path, {"nights": pd.DataFrame([{"night": night, "status": "done"}])})

    def count() -> int:
        return int(store.query(path, "SELECT count(*) AS n FROM nights")["n"][0])

    add("2026-11-20T0130")
    with store.held_open(path):
        before = count()
        night_files.write(path, "nights", {"night": "2026-11-21T0130", "status": "done"})
        assert (before, count()) == (1, 1), "read again within the block"
    assert count() == 2, "another connection sees what came since"
