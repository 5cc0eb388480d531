"""What happened is never lost: a killed night, two at once, a full disk, a month that is over."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.errors import InfrastructureError
from sdgbias.nightly import records
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Night, tonight
from sdgbias.store import night_files
from tests.builders.commands import REPOSITORY
from tests.builders.night_stubs import NIGHT, NOW, entry, settings


def good(outcome: str = "published", model: str = "a") -> JobOutcome:
    return JobOutcome(
        model,
        "sdg",
        outcome,
        run_id=f"{model}-1",
        attempts=1,
        night=NIGHT,
        key="k",
        started_at=NOW,
        finished_at=NOW,
    )


@contextmanager
def elsewhere(code: str) -> Iterator[int]:
    """A process that runs this code, says so, and stays."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import time\n{code}\nprint('ready', flush=True)\ntime.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


def run_night(s: NightOptions, status: str = "done", *outcomes: JobOutcome) -> Night:
    """The record of a whole night."""
    night = tonight(s, NOW)
    records.begin(s, night, NOW)
    assert records.end(s.results, night, status, {}, NOW, outcomes) == ""
    return night


def test_a_night_from_begin_to_end(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    entry(tmp_path, "away", state="quarantined", reason="hung", until="2026-11-30")
    entry(tmp_path, "new", state="candidate", reason="look at it")
    night = tonight(s, NOW)
    records.begin(s, night, NOW)
    assert records.status(s.results, NIGHT) == "running"
    assert records.last_finished(s.results) is None
    assert records.add(s.results, [good()]) == ""
    steps = {"gate": records.StepResult("done")}
    assert records.end(s.results, night, "done", steps, NOW + timedelta(minutes=3)) == ""
    row = records.nights(s.results).iloc[0]
    assert row["status"] == "done" and row["by"] == "cli"
    assert json.loads(row["benchmarks"]) == {"sdg": "b1"}
    assert json.loads(row["steps"]) == {"gate": "done"}
    assert row["finished_at"] - row["started_at"] == timedelta(minutes=3)
    assert records.last_finished(s.results) == NIGHT
    outcomes = records.history(s.results).set_index("model")["outcome"].to_dict()
    assert outcomes == {"a": "published", "away": "skipped"}, "who is at rest is no news"


def test_the_results_file_shows_what_the_files_say(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    run_night(s, "done", good())
    moved = tmp_path / "elsewhere"
    s.results.parent.rename(moved)
    sql = "SELECT n.status, o.run_id FROM nights n JOIN night_outcomes o USING (night)"
    for read in (store.query, store.ask):
        assert read(moved / "r.duckdb", sql).values.tolist() == [["done", "a-1"]]


def test_a_night_of_some_models_is_not_the_night(tmp_path: Path) -> None:
    s = replace(settings(tmp_path, "a"), model=["a"])
    run_night(s)
    assert records.last_finished(s.results) is None, "--catch-up still has to ask everybody"


def test_a_locked_results_file_holds_no_record_back(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    s.results.parent.mkdir(parents=True)
    with elsewhere(f"import duckdb; con = duckdb.connect({str(s.results)!r})"):
        assert records.add(s.results, [good()]) == ""
        assert records.history(s.results, "a")["run_id"].tolist() == ["a-1"]


def test_a_file_that_is_damaged_hides_no_other(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    records.add(s.results, [good(), good(model="b")])
    path = night_files.path_of(s.results, "night_outcomes", good().row())
    path.write_text(path.read_text()[:20])
    assert records.history(s.results)["model"].tolist() == ["b"]
    path.write_text("")
    assert records.history(s.results)["model"].tolist() == ["b"]


def test_a_killed_night_is_marked_by_the_next(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    records.begin(s, tonight(s, NOW), NOW)
    later = replace(s, night="2026-11-22T0130")
    records.begin(later, tonight(later, NOW), NOW + timedelta(days=1))
    assert records.status(s.results, NIGHT) == "interrupted"
    assert records.status(s.results, "2026-11-22T0130") == "running"


def test_two_nights_at_once_are_refused_and_a_dead_ones_lock_is_not(tmp_path: Path) -> None:
    results = tmp_path / "r.duckdb"
    hold = (
        "from pathlib import Path; from sdgbias.nightly import records; lock ="
        f" records.only_one(Path({str(results)!r}), {NIGHT!r}); lock.__enter__()"
    )
    with elsewhere(hold) as pid:
        with (
            pytest.raises(InfrastructureError, match=rf"process {pid} on .*night {NIGHT}"),
            records.only_one(results, "2026-11-22T0130"),
        ):
            pytest.fail("two nights at once")
    with records.only_one(results, "2026-11-22T0130"):
        assert (tmp_path / "nights" / ".lock").read_text().count("night 2026-11-22T0130") == 1


def test_a_resumed_night_is_at_work_and_keeps_what_it_has(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", "b")
    run_night(s, "failed", good())
    night = tonight(s, NOW)
    records.begin(s, night, NOW)
    row = records.nights(s.results).iloc[0]
    assert row["status"] == "running" and row["steps"] == "{}" and row["finished_at"] is pd.NaT
    records.end(s.results, night, "done", {}, NOW, [good(model="b")])
    assert records.history(s.results)["model"].tolist() == ["a", "b"]
    assert records.starts_of(s.results, NIGHT) == 2


def test_what_could_not_be_written_is_said_and_written_at_the_end(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    night = tonight(s, NOW)
    records.begin(s, night, NOW)
    blocked = night_files.path_of(s.results, "night_outcomes", good().row()).parent
    blocked.write_text("")  # a file in the folder's place, as unwritable as a full disk
    assert "can't be written" in records.add(s.results, [good()])
    blocked.unlink()
    assert records.end(s.results, night, "done", {}, NOW, [good()]) == ""
    assert records.history(s.results)["run_id"].tolist() == ["a-1"]


def month_of(s: NightOptions) -> None:
    """Three nights of October, one of November."""
    for day in ("10-02", "10-03", "10-30", "11-01"):
        night = f"2026-{day}T0130"
        night_files.write(s.results, "nights", {"night": night, "status": "done", "starts": 1})
        outcomes = [replace(good(model=m), night=night) for m in ("a", "b")]
        records.add(s.results, outcomes)


def everything(results: Path) -> list[object]:
    tables = (records.nights(results), records.history(results))
    return [table.astype(str).values.tolist() for table in tables]


def test_a_month_that_is_over_becomes_two_files_with_the_same_rows(tmp_path: Path) -> None:
    s = settings(tmp_path)
    month_of(s)
    before = everything(s.results)
    assert night_files.compact(s.results, "2026-11") == ["2026-10"]
    assert everything(s.results) == before
    assert len(list(night_files.home(s.results).rglob("*.json"))) == 3
    assert night_files.compact(s.results, "2026-11") == []


def test_a_row_after_the_month_was_packed_counts_in_place_of_the_packed_one(tmp_path: Path) -> None:
    s = settings(tmp_path)
    month_of(s)
    night_files.compact(s.results, "2026-11")
    again = {"night": "2026-10-03T0130", "status": "failed", "starts": 2}
    night_files.write(s.results, "nights", again)
    assert records.status(s.results, "2026-10-03T0130") == "failed"
    assert len(records.nights(s.results)) == 4
    assert night_files.compact(s.results, "2026-11") == ["2026-10"]
    assert records.status(s.results, "2026-10-03T0130") == "failed"
    assert len(records.nights(s.results)) == 4


COMPACT = """
import os, sys
from pathlib import Path
from sdgbias.store import night_files
calls = 0
def stop_at(event, arguments):
    global calls
    if event in ("os.rename", "os.remove") and "nights" in str(arguments[0]):
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
sys.addaudithook(stop_at)
night_files.compact(Path(sys.argv[1]), "2026-11")
"""


@pytest.mark.parametrize("instant", range(1, 13))
def test_given_a_kill_at_any_instant_then_no_row_is_lost_or_doubled(
    instant: int, tmp_path: Path
) -> None:
    s = settings(tmp_path)
    month_of(s)
    before = everything(s.results)
    command = [sys.executable, "-c", COMPACT, str(s.results), str(instant)]
    subprocess.run(command, cwd=REPOSITORY, check=False)
    assert everything(s.results) == before
    night_files.compact(s.results, "2026-11")
    assert everything(s.results) == before
