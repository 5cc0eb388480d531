"""What a person sees of a model at work in Prefect's page, and Prefect's settings by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed

from flows import night, score
from sdgbias import progress
from sdgbias.nightly import attempt
from tests.builders.commands import REPOSITORY
from tests.builders.night_stubs import PUBLISH, job, stub
from tests.builders.prefect_server import wait_for


def test_given_a_models_log_then_it_is_passed_on_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-for-anybody")
    one, lines = job(tmp_path, "Tiny_LLaVA"), list[str]()
    one.log.parent.mkdir(parents=True)
    one.log.write_text("of an earlier attempt\n")
    look = score.follow(one, lines.append, lambda: "")
    written = [("loading\ntoken not-for-anybody\nhalf a", ["loading", "token ***"])]
    written += [(" line\n", ["half a line"]), ("x" * score.LOG_BYTES + "\nend\n", ["end"])]
    for text, expected in written:
        with one.log.open("a") as log:
            log.write(text)
        lines.clear()
        for _ in range(2):  # a line that fills a whole piece is no standstill
            look()
        assert lines[-len(expected) :] == expected
    one.log.write_text("a full log begins anew\n")
    look()
    assert lines[-1] == "a full log begins anew"


def test_given_a_server_that_is_gone_then_it_is_no_failure_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at its address: a model at work goes on; a run of a deployment, or a task run,
    can't be begun."""
    monkeypatch.setattr(night, "WAITS", (0.0, 0.0))
    one, results = job(tmp_path), tmp_path / "results" / "r.duckdb"

    def ask_the_server() -> str:
        raise ConnectionError("nobody listens")

    look = score.follow(one, [].append, ask_the_server)
    assert attempt.attempt(one, results, argv=stub(PUBLISH), look=look).outcome == "published"
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        lost = score.run_by_deployment("score/score-{gpu}", one, results, 2, None)
        with pytest.raises(night.Interrupted, match="Prefect: RuntimeError: Failed to reach API"):
            night.evaluated(job(tmp_path, "other"), results, None)
    assert (lost.outcome, lost.kind, lost.attempts) == ("failed", "Interrupted", 2)
    assert "Prefect's server" in lost.message
    assert not attempt.failure("Interrupted").model and attempt.failure("Interrupted").tries == 2


def test_given_a_task_run_that_prefect_could_not_begin_then_it_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(night, "WAITS", (0.0, 0.0, 0.0))
    answers = [RuntimeError("Unable to acquire concurrency slots")] * 2

    def run() -> object:
        if answers:
            raise answers.pop()
        return Completed(data="done")

    assert night.result_of(run) == "done"  # type: ignore[arg-type]


SETTINGS = """
import flows
from prefect.settings import get_current_settings
now = get_current_settings()
print(now.server.ephemeral.startup_timeout_seconds, now.server.analytics_enabled, now.logging.level)
"""


def test_given_a_flow_by_hand_then_prefect_has_its_defaults_and_those_that_are_set() -> None:
    """A process of its own, because Prefect reads its environment once."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        cwd=REPOSITORY,
        env=given | {"PREFECT_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["300 False ERROR"]


def test_given_a_command_above_then_its_line_says_that_prefect_starts(tmp_path: Path) -> None:
    """`sdgbias demo` was silent from its step to the first model's start."""
    results = f"--results={tmp_path / 'results' / 'r.duckdb'}"
    command = [sys.executable, "-m", "flows.nightly", "--night=2026-11-21T0130", results]
    with progress.listening():
        env = {k: v for k, v in os.environ.items() if k != "PREFECT_HOME"}
        flow = subprocess.Popen(command, cwd=REPOSITORY, env=env | {"HOME": str(tmp_path)})
        lines = {"starting Prefect", "waiting for Prefect's server"}
        try:
            shown = lambda: lines & {one.what for one in progress.records()}  # noqa: E731
            wait_for("its line", lambda: flow.poll() is not None or shown())
            assert flow.poll() is None
            wait_for("its database", (tmp_path / "results/.prefect/prefect.db").is_file)
            assert not (tmp_path / ".prefect").exists(), "the user's own Prefect is left alone"
        finally:
            flow.kill()
            flow.wait()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ("serve --results={}/r.duckdb", 8, "Not a directory; choose another folder: --results"),
        ("--night=x", 2, "night 'x'; valid: the wall clock of its start"),
    ],
)
def test_given_a_wrong_option_then_nothing_starts_and_one_line_says_why(
    tmp_path: Path, words: str, code: int, why: str
) -> None:
    """A folder that can't be made gave a traceback; a wrong name was refused by the night."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "flows.nightly", *words.format(tmp_path / "file").split()]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith("error: ") and why in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
