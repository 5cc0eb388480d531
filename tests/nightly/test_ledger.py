"""What happened is never lost: a locked file, a killed night, two at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InfrastructureError
from sdgbias.nightly import ledger
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import tonight
from sdgbias.store import database
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


def test_a_night_from_begin_to_end(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    entry(tmp_path, "away", state="quarantined", reason="hung", until="2026-11-30")
    entry(tmp_path, "new", state="candidate", reason="look at it")
    night = tonight(s, NOW)
    assert ledger.begin(s, night, NOW) == ""
    assert ledger.status(s.results, NIGHT) == "running" and ledger.last_finished(s.results) is None
    ledger.record(night, [good()])
    assert (
        ledger.end(
            s.results,
            night,
            "done",
            {"gate": ledger.StepResult("done")},
            NOW + timedelta(minutes=3),
        )
        == ""
    )
    row = ledger.nights(s.results).iloc[0]
    assert (row["status"], row["by"], json.loads(row["benchmarks"]), row["steps"]) == (
        "done",
        "cli",
        {"sdg": "b1"},
        '{"gate": "done"}',
    )
    assert row["finished_at"] - row["started_at"] == timedelta(minutes=3)
    assert ledger.last_finished(s.results) == NIGHT
    told = ledger.history(s.results).set_index("model")["outcome"].to_dict()
    assert told == {"a": "published", "away": "skipped"}, "who is at rest is no news"


def test_a_night_of_some_models_is_not_the_night(tmp_path: Path) -> None:
    s = replace(settings(tmp_path, "a"), models=("a",))
    night = tonight(s, NOW)
    ledger.begin(s, night, NOW)
    ledger.end(s.results, night, "done", {}, NOW)
    assert ledger.last_finished(s.results) is None, "--catch-up still has to ask everybody"


def test_what_was_published_stays_published_when_the_night_goes_on(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    night = tonight(s, NOW)
    ledger.begin(s, night, NOW)
    ledger.record(night, [good()])
    ledger.record(night, [good("unchanged")])
    assert ledger.ingest(s.results, night) == ""
    assert ledger.history(s.results)["outcome"].tolist() == ["published"]
    ledger.record(night, [replace(good("unchanged"), run_id="a-2")])
    assert ledger.ingest(s.results, night) == ""
    assert ledger.history(s.results)["run_id"].tolist() == ["a-2"], "another run is news"


def test_a_locked_file_loses_no_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = settings(tmp_path, "a", "b")
    night = tonight(s, NOW)
    assert ledger.begin(s, night, NOW) == ""
    plain = database.open_file
    monkeypatch.setattr(
        database, "open_file", lambda path, read_only, wait: plain(path, read_only, min(wait, 0.2))
    )
    with elsewhere(f"import duckdb; con = duckdb.connect({str(s.results)!r})"):
        ledger.record(night, [good()])
        assert "is held by" in ledger.end(
            s.results, night, "done", {"report": ledger.StepResult("done")}, NOW
        )
    (night.folder / f".{ledger.FILE}.part").write_text('{"night": {"ni')  # killed at the next event
    later = tonight(replace(s, night="2026-11-22T0130"), NOW)
    assert ledger.begin(s, later, NOW + timedelta(days=1)) == ""
    assert ledger.status(s.results, NIGHT) == "done", (
        "as it ended, although the file did not take it then"
    )
    assert ledger.history(s.results, "a")[["night", "run_id", "key"]].values.tolist() == [
        [NIGHT, "a-1", "k"]
    ]


def test_a_killed_night_is_marked_by_the_next(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    night = tonight(s, NOW)
    ledger.begin(s, night, NOW)
    ledger.begin(s, tonight(replace(s, night="2026-11-22T0130"), NOW), NOW + timedelta(days=1))
    assert ledger.status(s.results, NIGHT) == "interrupted"
    assert ledger.status(s.results, "2026-11-22T0130") == "running"


def test_two_nights_at_once_are_refused_and_a_dead_ones_lock_is_not(tmp_path: Path) -> None:
    results = tmp_path / "r.duckdb"
    hold = (
        "from pathlib import Path; from sdgbias.nightly import ledger; lock ="
        f" ledger.only_one(Path({str(results)!r}), {NIGHT!r}); lock.__enter__()"
    )
    with elsewhere(hold) as pid:
        with (
            pytest.raises(InfrastructureError, match=rf"process {pid} on .*night {NIGHT}"),
            ledger.only_one(results, "2026-11-22T0130"),
        ):
            pytest.fail("two nights at once")
    with ledger.only_one(results, "2026-11-22T0130"):
        assert (tmp_path / "nights" / ".lock").read_text().count("night 2026-11-22T0130") == 1


def test_a_night_whose_folder_is_gone_was_interrupted(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    night = tonight(s, NOW)
    ledger.begin(s, night, NOW)
    shutil.rmtree(night.folder)
    ledger.begin(s, tonight(replace(s, night="2026-11-22T0130"), NOW), NOW + timedelta(days=1))
    assert ledger.status(s.results, NIGHT) == "interrupted"
    assert ledger.status(s.results, "2026-11-22T0130") == "running"


def test_a_resumed_night_is_at_work_and_keeps_what_it_has(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", "b")
    night = tonight(s, NOW)
    ledger.begin(s, night, NOW)
    ledger.record(night, [good()])
    ledger.end(s.results, night, "failed", {"report": ledger.StepResult("failed", "x")}, NOW)
    ledger.begin(s, night, NOW)
    row = ledger.nights(s.results).iloc[0]
    assert (row["status"], row["steps"], row["finished_at"] is pd.NaT) == ("running", "{}", True)
    ledger.record(night, [good(model="b")])
    ledger.end(s.results, night, "done", {}, NOW)
    assert ledger.history(s.results)["model"].tolist() == ["a", "b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_on_a_full_disk_an_outcome_takes_the_reserve(tmp_path: Path) -> None:
    """A file system of four pages: the night's file, two pages of others and one in reserve. A new
    file can't be written before the old one is replaced."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        ledger._change(disk, {"night": NIGHT}, [good()])
        (disk / ledger.RESERVE).write_bytes(bytes(4096))
        (disk / "others").write_bytes(bytes(2 * 4096))
        ledger._change(disk, outcomes=[good(model="b")])
        assert not (disk / ledger.RESERVE).exists()
        ledger._change(disk, outcomes=[good(model="c")])
        assert [row["model"] for row in ledger.outcomes_of(disk)] == ["a", "b", "c"]
        (disk / "more").write_bytes(bytes(4096))
        with pytest.raises(OSError, match="No space"):
            ledger._change(disk, outcomes=[good(model="d")])
        assert [row["model"] for row in ledger.outcomes_of(disk)] == ["a", "b", "c"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_the_last_night_in_one_line_and_how_often_it_was_started(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    assert ledger.last_night(s.results) == "none yet" and ledger.starts_of(s.results, NIGHT) == 0
    night = tonight(s, NOW)
    for _ in range(2):
        ledger.begin(s, night, NOW)
    ledger.record(night, [good()])
    ledger.end(s.results, night, "done", {}, NOW)
    assert ledger.last_night(s.results) == (
        f"{NIGHT}: done; 1 published; report: {s.report}/night.html"
    )
    assert ledger.starts_of(s.results, NIGHT) == 2
