"""What a person sees of one model in Prefect's page while it is at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import night, pages, score
from sdgbias.nightly import attempt
from tests.builders.commands import free_port
from tests.builders.night_stubs import PUBLISH, job, stub


def test_a_models_log_is_passed_on_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-for-anybody")
    mine = job(tmp_path, "Tiny_LLaVA")
    mine.log.parent.mkdir(parents=True)
    mine.log.write_text("of an earlier attempt\n")
    lines: list[str] = []
    look = pages.follow(mine, lines.append)
    with mine.log.open("a") as log:
        log.write("loading\ntoken not-for-anybody\nhalf a")
    look()
    assert lines == ["loading", "token ***"]
    with mine.log.open("a") as log:
        log.write(" line\n")
    look()
    assert lines[2:] == ["half a line"]


def test_a_line_without_an_end_is_no_standstill(tmp_path: Path) -> None:
    mine = job(tmp_path)
    lines: list[str] = []
    look = pages.follow(mine, lines.append)
    look()  # no log yet
    mine.log.parent.mkdir(parents=True)
    mine.log.write_text("x" * pages.LOG_BYTES + "\nend\n")
    for _ in range(2):
        look()
    assert lines[0].startswith("xxx") and lines[-1] == "end"


def test_a_server_that_is_gone_is_no_failure_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at its address: a model at work goes on; a run of a deployment, or a task run,
    can't be begun."""
    monkeypatch.setattr(night, "WAITS", (0.0, 0.0))
    mine, results = job(tmp_path), tmp_path / "results" / "r.duckdb"

    def ask_the_server() -> str:
        raise ConnectionError("nobody listens")

    look = pages.follow(mine, [].append, ask_the_server)
    assert attempt.attempt(mine, results, argv=stub(PUBLISH), look=look).outcome == "published"
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        lost = score.run_by_deployment("score/score-{gpu}", mine, results, 2, None)
        unbegun = night.evaluated(job(tmp_path, "other"), results, None)
    assert (lost.outcome, lost.kind, lost.attempts) == ("failed", "Interrupted", 2)
    assert "Prefect's server" in lost.message
    assert (unbegun.outcome, unbegun.kind) == ("failed", "Interrupted")
    assert "Prefect: RuntimeError: Failed to reach API" in unbegun.message
    assert not attempt.failure("Interrupted").model and attempt.failure("Interrupted").tries == 2


def test_prefect_is_asked_again_when_it_could_not_begin_a_task_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect.states import Completed

    monkeypatch.setattr(night, "WAITS", (0.0, 0.0, 0.0))
    tries: list[int] = []

    def run() -> object:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("Unable to acquire concurrency slots")
        return Completed(data="done")

    assert night.result_of(run) == "done" and len(tries) == 3  # type: ignore[arg-type]
