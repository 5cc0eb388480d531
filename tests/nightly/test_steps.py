"""The closing steps: what waits for what, and what happens at the same time."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdgbias.cli import app
from sdgbias.nightly import process, records, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Night, tonight
from tests.builders.night_stubs import NIGHT, NOW, settings

FULL = records.StepResult("failed", "the folder is full")


@pytest.fixture(autouse=True)
def somebody_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_WEBHOOK", "http://127.0.0.1:9/hook")


def test_page_and_wandb_are_made_at_the_same_time_and_told_in_order(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=600)
    began: list[str] = []
    lines: list[str] = []

    def step(name: str, settings: NightOptions, night: Night) -> records.StepResult:
        began.append(name)
        if name in steps.PARALLEL_STEPS:
            both.wait()  # one after the other would wait here in vain
        return FULL if name == "wandb" else steps.DONE

    done = nights.run(settings(tmp_path), lambda: NOW, lines.append, step=step)
    assert done.steps == {
        name: FULL if name == "wandb" else steps.DONE for name in (steps.CHECK, *steps.STEPS)
    }
    assert list(done.steps) == [steps.CHECK, *steps.STEPS] and done.exit_code == 0
    assert (
        began[:3] == [steps.CHECK, "analyse", "gate"]
        and began[5:] == ["announce", steps.LAST_PAGE]
        and set(began[3:5]) == set(steps.PARALLEL_STEPS)
    )
    assert [line.split(":")[0] for line in lines] == list(steps.STEPS)


def test_what_is_told_last_knows_how_the_steps_before_it_ended(tmp_path: Path) -> None:
    known: dict[str, object] = {}
    asked = settings(tmp_path)

    def step(name: str, settings: NightOptions, night: Night) -> records.StepResult:
        known[name] = records.nights(settings.results)["steps"].iloc[0]
        return records.StepResult("failed", "no room") if name == "wandb" else steps.DONE

    nights.run(asked, lambda: NOW, lambda text: None, step=step)
    before = json.loads(str(known["announce"]))
    assert before["wandb"] == "no room" and before["report"] == "done"
    assert json.loads(str(known["report"]))["gate"] == "done"
    assert json.loads(str(known["wandb"]))["gate"] == "done"


def test_a_night_that_is_ended_in_its_closing_steps_ends_both(tmp_path: Path) -> None:
    ended: list[str] = []

    def step(name: str, settings: NightOptions, night: Night) -> records.StepResult:
        if name == "wandb":
            raise KeyboardInterrupt
        if name == "report":
            try:
                process.pause(60)
            except process.Stopped:
                ended.append(name)
                raise
        return steps.DONE

    asked = settings(tmp_path)
    try:
        with pytest.raises((KeyboardInterrupt, process.Stopped)):
            nights.run(asked, lambda: NOW, lambda text: None, step=step)
    finally:
        process.begin()
    assert ended == ["report"] and records.status(asked.results, NIGHT) == records.INTERRUPTED


def test_the_page_of_a_night_that_ended_says_how(tmp_path: Path) -> None:
    asked = settings(tmp_path)
    pages: list[str] = []

    def step(name: str, settings: NightOptions, night: Night) -> records.StepResult:
        if name in ("report", steps.LAST_PAGE):
            command = steps.command(steps.LAST_PAGE, settings, night.night)
            made = CliRunner().invoke(app, command, catch_exceptions=False)
            assert made.exit_code == 0, made.output
            pages.append((asked.report / "night.html").read_text(encoding="utf-8"))
        return FULL if name == "wandb" else steps.DONE

    nights.run(asked, lambda: NOW, lambda text: None, step=step)
    before, after = pages
    assert "scoring ended; publishing was under way" in before and "Ended" not in before
    assert "finished" in after and "Ended" in after and "under way" not in after
    assert f"wandb: {FULL.message}" in after


def test_a_benchmark_that_passed_its_gate_is_not_checked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings(tmp_path, "m")
    passed: set[Path] = set()
    ran: list[str] = []
    monkeypatch.setattr(steps, "has_passed", lambda folder, rules: folder in passed)
    monkeypatch.setattr(steps, "run_step", lambda name, *rest: ran.append(name) or steps.DONE)
    night = tonight(asked, NOW, write=False)
    assert steps.check_benchmark(asked, night) == steps.DONE and ran == [steps.CHECK]
    passed.add(asked.benchmarks[0])
    assert steps.check_benchmark(asked, night) == steps.DONE and ran == [steps.CHECK]


@pytest.mark.parametrize("variable", ["SDGBIAS_WEBHOOK", "TEAM_HOOK"])
def test_without_an_address_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    asked = replace(settings(tmp_path), webhook_env="TEAM_HOOK")
    began: list[str] = []

    def step(name: str, settings: NightOptions, night: Night) -> records.StepResult:
        began.append(name)
        return steps.DONE

    monkeypatch.delenv("SDGBIAS_WEBHOOK")
    lines: list[str] = []
    done = nights.run(asked, lambda: NOW, lines.append, step=step)
    assert "announce" not in began and "announce" not in (done.steps or {})
    assert "announce: not due: no webhook address in SDGBIAS_WEBHOOK or TEAM_HOOK" in lines
    monkeypatch.setenv(variable, "http://127.0.0.1:9/hook")
    nights.run(
        replace(asked, night="2026-11-23T0130"),
        lambda: NOW,
        lambda text: None,
        step=step,
    )
    assert began[-2:] == ["announce", steps.LAST_PAGE]
