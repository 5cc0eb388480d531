"""The closing steps: what waits for what, and what happens at the same time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.nightly import ledger, process, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.plan import Night, Settings
from tests.builders.night_stubs import NIGHT, NOW, settings

FULL = ledger.StepResult("failed", "the folder is full")


@pytest.fixture(autouse=True)
def somebody_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_WEBHOOK", "http://127.0.0.1:9/hook")


def test_page_and_wandb_are_made_at_the_same_time_and_told_in_order(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=600)
    began: list[str] = []
    seen: list[tuple[str, tuple[str, ...]]] = []
    lines: list[str] = []

    def step(name: str, settings: Settings, night: Night) -> ledger.StepResult:
        began.append(name)
        if name in steps.PARALLEL_STEPS:
            both.wait()  # one after the other would wait here in vain
        return FULL if name == "wandb" else steps.DONE

    def look(
        event: str,
        night: Night,
        outcomes: Sequence[JobOutcome],
        said: Mapping[str, ledger.StepResult],
    ) -> None:
        seen.append((event, tuple(said)))

    done = nights.run(
        settings(tmp_path), lambda: NOW, lines.append, nights.Executor(step=step, seen=look)
    )
    assert done.steps == {
        name: FULL if name == "wandb" else steps.DONE for name in (steps.CHECK, *steps.STEPS)
    }
    assert list(done.steps) == [steps.CHECK, *steps.STEPS] and done.exit_code == 0
    assert (
        began[:3] == [steps.CHECK, "analyse", "gate"]
        and began[-1] == "announce"
        and set(began[3:5]) == set(steps.PARALLEL_STEPS)
    )
    assert [line.split(":")[0] for line in lines] == list(steps.STEPS)
    assert [event for event, _ in seen if event in steps.STEPS] == list(steps.STEPS)


def test_what_is_told_last_knows_how_the_steps_before_it_ended(tmp_path: Path) -> None:
    known: dict[str, object] = {}
    asked = settings(tmp_path)

    def step(name: str, settings: Settings, night: Night) -> ledger.StepResult:
        known[name] = ledger.nights(settings.results)["steps"].iloc[0]
        return ledger.StepResult("failed", "no room") if name == "wandb" else steps.DONE

    nights.run(asked, lambda: NOW, lambda text: None, nights.Executor(step=step))
    assert '"wandb": "no room"' in str(known["announce"]) and '"report": "done"' in str(
        known["announce"]
    )
    assert '"gate": "done"' in str(known["report"]) and '"gate": "done"' in str(known["wandb"])


def test_a_night_that_is_ended_in_its_closing_steps_ends_both(tmp_path: Path) -> None:
    ended: list[str] = []

    def step(name: str, settings: Settings, night: Night) -> ledger.StepResult:
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
            nights.run(asked, lambda: NOW, lambda text: None, nights.Executor(step=step))
    finally:
        process.begin()
    assert ended == ["report"] and ledger.status(asked.results, NIGHT) == ledger.INTERRUPTED


@pytest.mark.parametrize("variable", ["SDGBIAS_WEBHOOK", "TEAM_HOOK"])
def test_without_an_address_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    asked = replace(settings(tmp_path), webhook_env="TEAM_HOOK")
    began: list[str] = []

    def step(name: str, settings: Settings, night: Night) -> ledger.StepResult:
        began.append(name)
        return steps.DONE

    monkeypatch.delenv("SDGBIAS_WEBHOOK")
    done = nights.run(asked, lambda: NOW, lambda text: None, nights.Executor(step=step))
    assert (
        "announce" not in began and done.steps is not None and done.steps["announce"] == steps.DONE
    )
    monkeypatch.setenv(variable, "http://127.0.0.1:9/hook")
    nights.run(
        replace(asked, night="2026-11-23T0130"),
        lambda: NOW,
        lambda text: None,
        nights.Executor(step=step),
    )
    assert began[-1] == "announce"
