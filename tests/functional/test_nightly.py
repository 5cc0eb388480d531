"""Nights as a team has them: real models in real processes, killed, refused, without room, and gone
on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sdgbias import store
from sdgbias.nightly import attempt, records
from sdgbias.nightly import run as nights
from sdgbias.nightly.plan import Settings
from sdgbias.registry import entries
from tests.builders.commands import REPOSITORY, add_model, ok, refused
from tests.builders.processes import children, end
from tests.builders.slow_engine import slow_planted


def options(folder: Path, benchmark: Path) -> list[object]:
    return [
        "--results",
        folder / "r.duckdb",
        "--report",
        folder / "report",
        "--benchmark",
        benchmark,
        "--draws",
        "100",
        "--passes",
        "none",
    ]


def night_of(folder: Path, benchmark: Path, **more: object) -> Settings:
    paths = {
        "results": folder / "r.duckdb",
        "benchmarks": (benchmark,),
        "report": folder / "report",
    }
    return Settings(root=folder, draws=100, passes="none", **paths, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_nights_of_a_team(tiny_benchmark: Path, tmp_path: Path) -> None:
    add_model(tmp_path, "good")
    add_model(
        tmp_path, "absent", backend="hf", repo="path:/nowhere/at/all", notes="a folder that is gone"
    )
    (tmp_path / "registry/models/torn.yaml").write_text("name: [")
    shown = json.loads(
        ok("nightly", *options(tmp_path, tiny_benchmark), "--dry-run", "--json", registry=tmp_path)
    )
    assert [job["model"] for job in shown["jobs"]] == ["absent", "good"] and [
        s["model"] for s in shown["skipped"]
    ] == ["torn"]

    first = [
        *options(tmp_path, tiny_benchmark),
        "--scheduled-for",
        "2026-11-20T22:30:00+00:00",
        "--timezone",
        "Africa/Nairobi",
    ]
    told = json.loads(ok("nightly", *first, "--json", registry=tmp_path, nested=True))
    assert (told["night"], told["status"], set(told["steps"].values())) == (
        "2026-11-21T0130",
        "done",
        {"done"},
    )
    assert {o["model"]: (o["outcome"], o["kind"]) for o in told["outcomes"]} == {
        "absent": ("failed", "ModelError"),
        "good": ("published", ""),
        "torn": ("failed", "RegistryError"),
    }
    assert entries.load(tmp_path, "absent").state == "quarantined"
    page = (tmp_path / "report" / "night.html").read_text()
    assert "absent" in page and "good" in page
    front = (tmp_path / "report" / "index.html").read_text()
    assert '<a href="night.html">Last night</a>' in front
    assert "done already" in ok("nightly", *first, registry=tmp_path, nested=True)

    second = [
        *options(tmp_path, tiny_benchmark),
        "--scheduled-for",
        "2026-11-21T22:30:00+00:00",
        "--timezone",
        "Africa/Nairobi",
    ]
    said = ok("nightly", *second, "--model", "good", registry=tmp_path, nested=True)
    assert "night 2026-11-22T0130: done" in said and "unchanged      0" in said
    assert "2026-11-22T0130" in (tmp_path / "report" / "night.html").read_text()


# tests/test_lifeline.py kills the process around a model, test_supervisor.py a night
@pytest.mark.long
def test_a_killed_night_takes_its_models_along_and_the_next_goes_on(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    add_model(tmp_path, "good", batch_size=4)
    command = [
        sys.executable,
        "-m",
        "sdgbias.cli",
        "nightly",
        *map(str, options(tmp_path, tiny_benchmark)),
        "--night",
        "2026-11-21T0130",
    ]
    env = slow_planted(tmp_path, 2.0)  # it is at work for longer than the test takes to look at it
    night = subprocess.Popen(
        command, cwd=REPOSITORY, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 900
    while not list(tmp_path.glob("scores/good/*/scores-*.parquet")) and time.monotonic() < deadline:
        assert night.poll() is None
        time.sleep(0.01)
    line = refused(8, "nightly", *options(tmp_path, tiny_benchmark), registry=tmp_path)
    assert f"process {night.pid} on" in line and "night 2026-11-21T0130" in line
    model = children(night.pid)
    assert model and night.poll() is None, "a model is at work"
    os.kill(night.pid, signal.SIGKILL)
    night.wait()
    assert end(model), "the night is dead, its model works on"

    later = nights.run(night_of(tmp_path, tiny_benchmark, night="2026-11-22T0130"), steps=())
    assert [o.outcome for o in later.outcomes] in (["published"], ["unchanged"])
    assert records.status(tmp_path / "r.duckdb", "2026-11-21T0130") == "interrupted"
    run = store.query(
        tmp_path / "r.duckdb", "SELECT n_cached, n_scored, n_failed, n_prompts_planned FROM runs"
    ).iloc[0]
    assert run["n_failed"] == 0 and run["n_cached"] + run["n_scored"] == run["n_prompts_planned"]
    assert run["n_cached"] > 0 or later.outcomes[0].outcome == "unchanged", (
        "it goes on from the cache"
    )


@pytest.mark.long
def test_no_room_while_publishing_puts_nobody_aside(tiny_benchmark: Path, tmp_path: Path) -> None:
    """A real file system with no room left: told as what it is; the next night publishes from the
    cache."""
    add_model(tmp_path, "good")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        s = replace(
            night_of(tmp_path, tiny_benchmark), results=disk / "r.duckdb", night="2026-11-21T0130"
        )
        with store.connect(s.results):
            pass
        waits: list[float] = []
        done = nights.run(
            s,
            steps=(),
            score=partial(attempt.keep_trying, sleep=waits.append),
        )
        assert [(o.outcome, o.kind) for o in done.outcomes] == [("failed", "DiskFull")], (
            done.outcomes
        )
        assert waits == list(attempt.WAITS) and done.exit_code == 8
        assert entries.load(tmp_path, "good").state == "enabled"
        subprocess.run(
            ["mount", "-o", "remount,size=64m", str(disk)], check=True, capture_output=True
        )
        done = nights.run(replace(s, night="2026-11-22T0130"), steps=())
        assert [o.outcome for o in done.outcomes] == ["published"]
        told = records.history(s.results, "good").set_index("night")["kind"].to_dict()
        assert told == {
            "2026-11-21T0130": "DiskFull",
            "2026-11-22T0130": "",
        }, "the outcome of the full night is not lost"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
