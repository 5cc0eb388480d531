"""One job: real processes that end in every way, what is made of them, and when another try is
worth while."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sdgbias import errors, progress
from sdgbias.files import json_object
from sdgbias.nightly import attempt, process
from tests.builders.night_stubs import PUBLISH, job, stub


def test_what_the_process_tells_is_the_outcome(tmp_path: Path) -> None:
    code = stub("print('scoring'); " + PUBLISH + "; sys.exit(3)")
    made = attempt.attempt(job(tmp_path), tmp_path / "r.duckdb", argv=code)
    assert (made.outcome, made.run_id) == ("published", "m-1")
    assert (made.scored, made.planned, made.failed) == (10, 12, 2)
    assert made.kind == made.message == "" and made.log == "nights/2026-11-21T0130/logs/m-sdg.log"
    assert "scoring" in job(tmp_path).log.read_text()
    unchanged = stub("tell(run_id='m-1', outcome='unchanged')")
    mine = job(tmp_path)
    again = attempt.attempt(mine, tmp_path / "r.duckdb", argv=unchanged)
    assert again.outcome == "published", "in this night, before it was killed and started again"
    other = replace(mine, log=mine.log.with_name("m-people.log"))
    assert attempt.attempt(other, tmp_path / "r.duckdb", argv=unchanged).outcome == "unchanged"


def test_an_error_has_room_for_its_outcome_when_nothing_can_be_made(tmp_path: Path) -> None:
    """As on a full disk: no second file can be made beside the one that was reserved."""
    out = tmp_path / "outcome.json"
    with pytest.raises(errors.DiskFull), process.report_outcome(out):
        assert json_object(out) == {} and out.stat().st_blocks * 512 >= process.ROOM
        out.with_name(f".{out.name}.part").mkdir()
        raise errors.DiskFull("\u2026" * 9000)
    found = json_object(out)
    assert (found["kind"], len(found["message"])) == ("DiskFull", 500)
    assert out.stat().st_size == process.ROOM


def test_given_a_results_file_that_is_free_again_then_the_model_is_published(
    tmp_path: Path,
) -> None:
    busy = "tell(kind='Busy', message='held by another')"
    codes = stub(busy, busy, PUBLISH)
    made = attempt.keep_trying(job(tmp_path), tmp_path / "r.duckdb", None, [].append, codes)
    assert (made.outcome, made.attempts) == ("published", 3)


def test_after_want_of_memory_the_batch_is_halved(tmp_path: Path) -> None:
    one = job(tmp_path)
    assert "--batch-size" not in attempt.command(one, tmp_path / "r.duckdb", 1)
    attempt.attempt(
        one, tmp_path / "r.duckdb", 1, argv=stub("tell(kind='OutOfMemory', message='no room')")
    )
    second = attempt.command(one, tmp_path / "r.duckdb", 2)
    assert second[second.index("--batch-size") + 1] == "4"
    attempt.attempt(one, tmp_path / "r.duckdb", 2, argv=stub("os.kill(os.getpid(), 9)"))
    third = attempt.command(one, tmp_path / "r.duckdb", 3)
    assert third[third.index("--batch-size") + 1] == "2"


def test_a_finished_run_is_unchanged(tmp_path: Path) -> None:
    made = attempt.unchanged(job(tmp_path, run_id="m-1"), datetime.now(UTC))
    assert made is not None
    assert (made.outcome, made.run_id, made.attempts) == ("unchanged", "m-1", 0)


def test_its_accelerator_is_all_that_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = (
        "tell(run_id=os.environ['CUDA_VISIBLE_DEVICES'] + os.environ['OMP_NUM_THREADS'] +"
        " os.environ['SDGBIAS_REGISTRY'])"
    )
    made = attempt.attempt(
        job(tmp_path, threads=2), tmp_path / "r.duckdb", gpu="3", argv=stub(seen)
    )
    assert made.run_id == f"32{tmp_path}"


def test_stopping_ends_what_runs_and_is_nobodys_failure(tmp_path: Path) -> None:
    threading.Timer(0.5, process.stop_all).start()
    try:
        with pytest.raises(process.Stopped):
            attempt.keep_trying(job(tmp_path), tmp_path / "r.duckdb", argv=stub("time.sleep(60)"))
        with pytest.raises(process.Stopped):
            process.pause(60)
    finally:
        process.begin()


def test_a_model_that_came_further_goes_on_the_next_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process that scores from 380 to 620 of 1,000 prompts; its time ends when that was
    seen, however fast the machine is."""

    def until_seen(child: object, timeout_s: float, look: Callable[[], None]) -> None:
        deadline, done = time.monotonic() + 600, 0
        while done < 620:
            assert time.monotonic() < deadline
            done = max((record.done for record in progress.records()), default=0)
            look()
            time.sleep(0.02)
        raise subprocess.TimeoutExpired("model", timeout_s)

    code = (
        "from sdgbias import progress\n"
        "with progress.shown('evaluate'):\n"
        "    for done in (380, 500, 620):\n"
        "        progress.update('scoring prompts', done, 1000)\n"
        "        time.sleep(2 * progress.PERIOD if done < 620 else 600)"
    )
    monkeypatch.setattr(process, "_watch", until_seen)
    monkeypatch.setattr(process, "GRACE", 0.2)
    made = attempt.attempt(
        job(tmp_path, timeout_s=7200.0),
        tmp_path / "r.duckdb",
        argv=stub(code),
    )
    assert (made.kind, made.scored, made.planned, made.goes_on) == ("OutOfTime", 620, 1000, True)
    assert made.message.startswith(
        "62% of prompts (scoring prompts), about 1.6 nights left at 7200 s each"
    )
    assert not attempt.worth_another_try(made), "the night's other models are waiting"


def test_a_person_ends_a_model_and_what_is_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from sdgbias import progress\n"
        "with progress.shown('evaluate'):\n"
        "    progress.update('scoring prompts', 62, 100)\n"
        "    time.sleep(600)"
    )
    monkeypatch.setattr(process, "LOOK", 0.02)
    made = attempt.attempt(
        job(tmp_path, timeout_s=600.0),
        tmp_path / "r.duckdb",
        argv=stub(code),
        look=lambda: "cancelled" if [r for r in progress.records() if r.done == 62] else "",
    )
    assert (made.outcome, made.kind, made.goes_on) == ("skipped", "Cancelled", True)
    assert made.message == "cancelled; 62 of 100 prompts are kept (scoring prompts)"
    assert made.seconds < 300 and not attempt.worth_another_try(made)


def test_a_model_that_stands_still_when_its_time_ends_is_timed_out(tmp_path: Path) -> None:
    late = {"kind": "TimedOut", "message": "late"}
    still = progress.Record("m", "scoring prompts", 380, 1000)
    loading = progress.Record("m", "loading weights")
    for stages in ({}, {"": (loading, loading)}, {"scoring prompts": (still, still)}):
        assert attempt._how_far(job(tmp_path), late, stages) == {}
