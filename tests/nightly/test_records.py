"""What happened is never lost: a killed night, two at once, a full disk, a month that is over."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sdgbias import files, store
from sdgbias.analysis import nights as analysis_nights
from sdgbias.errors import InfrastructureError, StoreError
from sdgbias.nightly import notify, records
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import tonight
from sdgbias.nightly.run import NightSummary
from sdgbias.report.pages import night as page
from sdgbias.store import night_files
from tests.builders.commands import REPOSITORY
from tests.builders.night_stubs import NIGHT, NOW, entry, settings

LATER = "2026-11-22T0130"


def published(model: str = "a", night: str = NIGHT) -> JobOutcome:
    times = {"started_at": NOW, "finished_at": NOW}
    return JobOutcome(model, "sdg", "published", f"{model}-1", 1, night=night, key="k", **times)


@contextmanager
def elsewhere(code: str) -> Iterator[int]:
    """A process that runs this code, says so, and stays."""
    script = f"import time\n{code}\nprint('ready', flush=True)\ntime.sleep(600)"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            yield child.pid
        finally:
            child.kill()


def nights(results: Path) -> list[dict[str, Any]]:
    """The rows of the view nights."""
    return night_files.query(results, "FROM nights ORDER BY night").to_dict("records")


def begin(s: NightOptions) -> str:
    """The name of a night that is begun."""
    night = tonight(s, NOW)
    records.begin(s, night, NOW)
    return night.night


def test_given_a_night_from_begin_to_end_then_the_results_file_shows_it(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    entry(tmp_path, "away", state="quarantined", reason="hung", until="2026-11-30")
    entry(tmp_path, "new", state="candidate", reason="look at it")
    night = begin(s)
    assert records.status(s.results, NIGHT) == "running"
    assert records.last_finished(s, NOW) is None
    assert records.add(s.results, [published()]) == ""
    steps = {"gate": records.StepResult("done")}
    assert records.end(s.results, night, "done", steps, NOW + timedelta(minutes=3)) == ""
    [row] = nights(s.results)
    assert (row["status"], row["by"]) == ("done", "cli")
    assert json.loads(row["benchmarks"]) == {"sdg": "b1"}
    assert json.loads(row["steps"]) == {"gate": "done"}
    assert row["finished_at"] - row["started_at"] == timedelta(minutes=3)
    assert records.last_finished(s, NOW) == NIGHT
    outcomes = records.history(s.results).set_index("model")["outcome"].to_dict()
    assert outcomes == {"a": "published", "away": "skipped"}, "a candidate is no news"
    some = replace(s, model=["a"], night=LATER)
    assert records.end(s.results, begin(some), "done", {}, NOW) == ""
    assert records.last_finished(s, NOW) == NIGHT, "--catch-up still has to ask everybody"
    ahead = replace(s, night="2031-01-01T0130")
    assert records.end(s.results, begin(ahead), "done", {}, NOW) == ""
    assert records.last_finished(s, NOW) == NIGHT, "a clock that ran ahead stops no later night"
    moved = tmp_path / "elsewhere"
    s.results.parent.rename(moved)
    sql = "SELECT n.status, o.run_id FROM nights n JOIN night_outcomes o USING (night)"
    for read in (store.query, store.ask):
        rows = read(moved / "r.duckdb", f"{sql} WHERE run_id <> ''")
        assert rows.values.tolist() == [["done", "a-1"]]


def test_given_outcomes_of_models_then_each_has_its_own_history(tmp_path: Path) -> None:
    results, models = tmp_path / "r.duckdb", ["a", "a-b", "lab/it's [7b]*"]
    records.add(results, [published(model, night) for model in models for night in (NIGHT, LATER)])
    assert len(records.history(results)) == 6
    for model in models:
        rows = records.history(results, model)[["night", "model"]].values.tolist()
        assert rows == [[LATER, model], [NIGHT, model]]


@pytest.mark.parametrize("kept", [20, 0])
def test_given_a_damaged_file_then_it_hides_no_other(tmp_path: Path, kept: int) -> None:
    s = settings(tmp_path, "a")
    records.add(s.results, [published(), published("b")])
    path = night_files.path_of(s.results, "night_outcomes", published().row())
    path.write_text(path.read_text()[:kept])
    assert records.history(s.results)["model"].tolist() == ["b"]


def test_given_a_killed_night_then_it_goes_on_or_the_next_marks_it(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", "b")
    records.end(s.results, begin(s), "failed", {}, NOW, [published()])
    begin(s)
    [row] = nights(s.results)
    assert (row["status"], row["steps"], row["starts"]) == ("running", "{}", 2)
    assert row["finished_at"] is pd.NaT and records.starts_of(s.results, NIGHT) == 2
    assert records.history(s.results)["model"].tolist() == ["a"]
    begin(replace(s, night=LATER))
    status = [records.status(s.results, night) for night in (NIGHT, LATER)]
    assert status == ["interrupted", "running"]


HOLD = """
from pathlib import Path
import duckdb
from sdgbias.nightly import records
results = Path({!r})
lock = records.only_one(results, {!r})
lock.__enter__()
con = duckdb.connect(str(results))
"""


def test_given_two_nights_at_once_then_the_second_is_refused_until_the_first_is_dead(
    tmp_path: Path,
) -> None:
    """What the first holds open besides is no hindrance: a record is kept beside it."""
    results = tmp_path / "r.duckdb"
    with elsewhere(HOLD.format(str(results), NIGHT)) as pid:
        with (
            pytest.raises(InfrastructureError, match=rf"process {pid} on .*night {NIGHT}"),
            records.only_one(results, LATER),
        ):
            pytest.fail("two nights at once")
        assert records.add(results, [published()]) == ""
        assert records.history(results, "a")["run_id"].tolist() == ["a-1"]
    with records.only_one(results, LATER):
        assert (results.with_suffix(".nights") / ".lock").read_text().count(f"night {LATER}") == 1


def test_given_a_full_disk_then_outcomes_are_written_at_the_end(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    night = begin(s)
    blocked = night_files.path_of(s.results, "night_outcomes", published().row()).parent
    blocked.write_text("")  # a file in the folder's place, as unwritable as a full disk
    assert "can't be written" in records.add(s.results, [published()])
    blocked.unlink()
    assert records.end(s.results, night, "done", {}, NOW, [published()]) == ""
    assert records.history(s.results)["run_id"].tolist() == ["a-1"]


def test_given_any_sentence_of_a_step_then_its_state_decides(tmp_path: Path) -> None:
    """A step that failed is listed, a breach and a success are not, whatever they are called."""
    states = {"gate": "breach", "report": "done", "wandb": "failed"}
    for text in ("done", "breach: m: mass", "no network"):
        steps = {name: records.StepResult(state, text) for name, state in states.items()}
        row = {"night": NIGHT, "status": "done", **records.step_columns(steps)}
        night_files.write(tmp_path / "r.duckdb", "nights", row)
        with store.connect(tmp_path / "r.duckdb"):
            pass
        night = analysis_nights.load(tmp_path / "r.duckdb")
        assert night is not None and page.troubles_of(night) == [f"wandb: {text}"]
        assert f"• wandb: {text}" in notify.message(night)
        for step, code in (("gate", 6), ("wandb", 8)):
            ended = {"gate": steps[step]}
            assert NightSummary(NIGHT, "done", steps=ended).exit_code == code


@pytest.fixture
def months(tmp_path: Path) -> Path:
    """The results of three nights of October and one of November."""
    results = settings(tmp_path).results
    for day in ("10-02", "10-03", "10-30", "11-01"):
        night = f"2026-{day}T0130"
        night_files.write(results, "nights", {"night": night, "status": "done", "starts": 1})
        records.add(results, [published(model, night) for model in ("a", "b")])
    return results


def everything(results: Path) -> list[object]:
    outcomes = records.history(results).to_dict("records")
    return [str(row) for row in (*nights(results), *outcomes)]


def test_given_a_month_that_is_over_then_two_files_hold_its_rows_and_newer_rows_count(
    months: Path,
) -> None:
    before = everything(months)
    assert night_files.compact(months, "2026-11") == ["2026-10"]
    assert everything(months) == before
    assert len(list(night_files.home(months).rglob("*.json"))) == 3
    assert night_files.compact(months, "2026-11") == []
    again = {"night": "2026-10-03T0130", "status": "failed", "starts": 2}
    night_files.write(months, "nights", again)
    for _ in range(2):
        assert records.status(months, "2026-10-03T0130") == "failed"
        assert len(nights(months)) == 4
        night_files.compact(months, "2026-11")


INSTANTS = range(1, 13)
#: A process for each instant, on the nights of a folder of its name.
COMPACT = f"""
import os, sys
from pathlib import Path
from sdgbias.store import night_files
calls = 0
def stop_at(event, arguments):
    global calls
    if event in ("os.rename", "os.remove") and ".nights" in str(arguments[0]):
        calls += 1
        if calls == instant:
            os.kill(os.getpid(), 9)
for instant in {INSTANTS}:
    if not os.fork():
        sys.addaudithook(stop_at)
        night_files.compact(Path(sys.argv[1], str(instant), "r.duckdb"), "2026-11")
        os._exit(0)
    os.wait()
"""


def test_given_a_kill_at_any_instant_then_no_row_is_lost_or_doubled(
    months: Path, tmp_path: Path
) -> None:
    before, states = everything(months), set()
    copies = [tmp_path / str(instant) / "r.duckdb" for instant in INSTANTS]
    for results in copies:
        shutil.copytree(months.with_suffix(".nights"), results.with_suffix(".nights"))
    subprocess.run([sys.executable, "-c", COMPACT, tmp_path], cwd=REPOSITORY, check=True)
    for results in copies:
        states.add(tuple(sorted(path.name for path in results.parent.rglob("*.*"))))
        assert everything(results) == before
        night_files.compact(results, "2026-11")
        assert everything(results) == before
    assert len(states) > 8, "they were killed in between"


def test_given_copies_and_damaged_files_then_no_row_is_doubled_and_no_file_goes(
    months: Path,
) -> None:
    home, before = night_files.home(months), everything(months)
    shutil.copytree(home / "2026-10-02T0130", home / "2026-10-02T0130 (copy)")
    outcome = home / "2026-10-30T0130" / "outcomes" / "a-sdg.json"
    shutil.copy(outcome, outcome.with_stem("a-sdg (1)"))
    assert everything(months) == before
    outcome.write_text(outcome.read_text()[:20])
    night_files.compact(months, "2026-11")
    assert outcome.exists(), "it may be copied again"
    shutil.copy(home / "2026-10.nights.parquet", home / "Copy of 2026-10.nights.parquet")
    assert len(everything(months)) == len(before) - 1
    assert (outcome, "damaged") in night_files.faults(months)
    packed = home / "2026-10.outcomes.parquet"
    packed.write_bytes(packed.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"2026-10.outcomes.parquet.*; bring that file back"):
        records.history(months)
    assert (packed, "damaged") in night_files.faults(months)
    packed.unlink()
    assert (packed, "missing") in night_files.faults(months)


def test_given_a_month_that_is_compacted_while_it_is_read_then_no_row_is_missed(
    months: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read = everything(months), files.json_object

    def read_after(path: Path) -> dict[str, Any]:
        monkeypatch.setattr(files, "json_object", read)
        night_files.compact(months, "2026-11")
        return read(path)

    monkeypatch.setattr(files, "json_object", read_after)
    assert everything(months) == before
