"""What a person sees of one model in Prefect's page while it is at work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, State

from flows import nightly, pages, score
from sdgbias.nightly import attempt
from sdgbias.progress import Record
from tests.builders.commands import free_port
from tests.builders.night_stubs import PUBLISH, job, stub


def test_a_models_log_and_progress_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Artifacts are collected here instead of on a server; the second follows ten seconds later."""
    bar, shown = uuid4(), []
    clock = [100.0]
    monkeypatch.setenv("HF_TOKEN", "not-for-anybody")
    monkeypatch.setattr(pages, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def create(share: float, key: str, words: str) -> UUID:
        shown.append((key, share, words))
        return bar

    def update(which: UUID, share: float, words: str) -> None:
        assert which == bar
        shown.append(("", share, words))

    monkeypatch.setattr(pages, "create_progress_artifact", create)
    monkeypatch.setattr(pages, "update_progress_artifact", update)
    mine = job(tmp_path, "Tiny_LLaVA")
    mine.log.parent.mkdir(parents=True)
    mine.log.write_text("of an earlier attempt\n")
    lines: list[str] = []
    look = pages.follow(mine, lines.append)
    with mine.log.open("a") as log:
        log.write("loading\ntoken not-for-anybody\nhalf a")
    look(None)
    assert lines == ["loading", "token ***"] and not shown
    with mine.log.open("a") as log:
        log.write(" line\n")
    for passed, done in ((0, 250), (5, 300), (10, 500)):
        clock[0] = 100.0 + passed
        look(Record("Tiny_LLaVA", "scoring prompts", done, 1000, 25.0))
    assert lines[2:] == ["half a line"]
    assert shown == [
        ("model-tiny-llava", 25.0, "Tiny_LLaVA: scoring prompts, 250 of 1,000, 25/s, 30 s left"),
        ("", 50.0, "Tiny_LLaVA: scoring prompts, 500 of 1,000, 25/s, 20 s left"),
    ]


def test_a_line_without_an_end_is_no_standstill(tmp_path: Path) -> None:
    mine = job(tmp_path)
    lines: list[str] = []
    look = pages.follow(mine, lines.append)
    look(None)  # no log yet
    mine.log.parent.mkdir(parents=True)
    mine.log.write_text("x" * pages.LOG_BYTES + "\nend\n")
    for _ in range(2):
        look(None)
    assert lines[0].startswith("xxx") and lines[-1] == "end"


def test_no_attempt_depends_on_the_server(tmp_path: Path) -> None:
    """Nobody listens at its address. An attempt of this process doesn't notice; one for a pool
    can't be made, which is no failure of the model."""
    mine = job(tmp_path)
    results = tmp_path / "results" / "r.duckdb"
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        made = score.attended(
            mine,
            [].append,
            lambda: score.on_the_page(mine, results, 1),
            lambda seen: attempt.attempt(mine, results, argv=stub(PUBLISH), seen=seen),
            score.close_on_the_page,
        )
        assert (made.outcome, made.run_id) == ("published", "m-1")
        lost = score.run_in_pool(mine, results, 2)
    assert (lost.outcome, lost.kind, lost.attempts) == ("failed", "Interrupted", 2)
    assert "Prefect's server" in lost.message
    assert attempt.failure(lost.kind).tries == 2 and not attempt.failure(lost.kind).model


def test_a_task_run_that_prefect_can_not_begin_is_no_failure_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at the server's address: Prefect raises before the model is asked."""
    monkeypatch.setattr(nightly, "WAITS", (0.0, 0.0))
    mine = job(tmp_path)
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        lost = nightly.ask(mine, tmp_path / "results" / "r.duckdb", None, False)
    assert (lost.outcome, lost.kind) == ("failed", "Interrupted")
    assert not attempt.failure(lost.kind).model and lost.message.startswith("InfrastructureError")
    assert "Prefect: RuntimeError: Failed to reach API" in lost.message
    assert not mine.log.exists()


def test_prefect_is_asked_again_when_it_could_not_begin_a_task_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nightly, "WAITS", (0.0, 0.0, 0.0))
    tries: list[int] = []

    def run() -> State[None]:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("Unable to acquire concurrency slots")
        return Completed()

    state = nightly.begun(run)
    assert isinstance(state, State) and state.is_completed() and len(tries) == 3
