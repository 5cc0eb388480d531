"""The line that says what a command is doing: its text, who feeds it, and what it leaves behind."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict

import pytest

from sdgbias import progress
from sdgbias.progress import Record

CHILD = textwrap.dedent("""
    import sys
    from sdgbias import progress
    with progress.shown("evaluate tiny"):
        progress.update("scoring prompts", 0, 900)
        progress.update("scoring prompts", 300, 900)
        print("ready", flush=True)
        sys.stdin.readline()
""")


def send(record: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(record, f"\0{os.environ[progress.ADDRESS]}")


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def printed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wait until this is on standard error."""
    lines: list[str] = []
    wait_for(lambda: lines.append(capsys.readouterr().err) or text in "".join(lines))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command above this one, and no wait before the first line."""
    monkeypatch.delenv(progress.ADDRESS, raising=False)
    monkeypatch.delenv(progress.TASK, raising=False)
    monkeypatch.setattr(progress, "QUIET", 0.0)
    monkeypatch.setattr(progress, "AGAIN", 0.02)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (Record("report", "", seconds=3.4), "report: 3 s"),
        (
            Record("a (people)", "tuning CADE", 0, 1, seconds=75),
            "a (people): tuning CADE, 1 min 15 s",
        ),
        (
            Record("a", "scoring prompts", 1200, 5700, 98.2, 12.0),
            "a: scoring prompts, 1,200 of 5,700, 98/s, 46 s left",
        ),
        (Record("a", "scoring", 30, 90, 0.005), "a: scoring, 30 of 90, 3 h 20 min left"),
        (Record("a", "scoring", 90, 90, 8.0, 9.0), "a: scoring, 90 of 90, 9 s"),
    ],
)
def test_the_line_names_task_stage_count_rate_and_time_left(record: Record, text: str) -> None:
    assert progress.text(record) == text


def test_a_child_feeds_the_line_of_the_command_that_started_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.shown("nightly"):
        environment = {**os.environ, progress.TASK: "tiny (people)"}
        with subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            printed("tiny (people): scoring prompts, 300 of 900", capsys)
            _, errors = child.communicate("\n")
        assert errors == "", "the child draws no line of its own"
        wait_for(lambda: progress.records() == [])
    assert progress.ADDRESS not in os.environ


def test_a_record_of_a_process_that_is_gone_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.listening():
        for record in (b"{", json.dumps(asdict(Record("old")) | {"pid": 2}).encode()):
            send(record)
        wait_for(lambda: progress.records() == [Record("old")])
        monkeypatch.setattr(progress, "STALE", -1.0)
        assert progress.records() == []


def test_given_a_night_between_then_its_models_reach_the_line_and_its_own_board() -> None:
    with progress.listening():
        top, above = progress.BOARD, os.environ[progress.ADDRESS]
        progress.BOARD = None
        try:
            with progress.listening():
                assert os.environ[progress.ADDRESS] != above
                send(json.dumps(asdict(Record("model")) | {"pid": 7}).encode())
                wait_for(lambda: progress.records() == [Record("model")])
        finally:
            progress.BOARD = top
        wait_for(lambda: progress.records() == [Record("model")])
        assert os.environ[progress.ADDRESS] == above


def test_given_a_command_above_that_is_gone_then_the_line_is_this_commands_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.ADDRESS, "sdgbias-progress-nobody")
    with progress.shown("report"):
        printed("report", capsys)


def test_elsewhere_a_count_is_printed_when_it_changes_and_a_stage_again_ever_more_rarely(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    with progress.shown("build"):
        for done in (1, 9):
            progress.update("drawing", done, 9)
            printed(f"build: drawing, {done} of 9", capsys)
            time.sleep(0.1)
            assert capsys.readouterr().err == "", "nothing changed"
    monkeypatch.setattr(progress, "AGAIN", 0.5)
    with progress.shown("build"):
        began = time.monotonic()
        for done in (1, 2, 3, 4, 5):  # soon again as long as the stage is new
            progress.update("drawing", done, 9)
            printed(f"build: drawing, {done} of 9", capsys)
    assert time.monotonic() - began < 5, "not after 0.5, 1, 2 and 4 s"
    with progress.shown("nightly"):
        progress.update("waiting for a server")
        printed("nightly: waiting for a server\n", capsys)
        began = time.monotonic()
        printed("nightly: waiting for a server, ", capsys)
        printed("nightly: waiting for a server, ", capsys)
    assert time.monotonic() - began >= 1.4, "after 0.5 s and 1 s more"


def test_on_a_terminal_output_stands_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    with progress.shown("report"):
        progress.update("drawing figures", 1, 4)
        wait_for(lambda: "1 of 4" in screen.getvalue())
        print("first page")
        before = screen.getvalue()
        wait_for(lambda: screen.getvalue() != before)
    text = screen.getvalue()
    above, below = text.split("first page\n")
    # nothing is left of the line: it is erased before the output, drawn again after it, and erased
    erased, line = "\r\x1b[2K", "report: drawing figures, 1 of 4"
    assert above.split(erased)[-1] == "" and line in above
    assert below.startswith(line) and line not in below.rpartition("\x1b[2K")[2]
    assert sys.stdout is screen


def test_a_command_works_where_no_socket_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(97, "Address family not supported")

    monkeypatch.setattr(progress, "RecordBoard", refuse)
    with progress.shown("build"):
        progress.update("clusters", 1, 2)
        assert progress.ADDRESS not in os.environ


def test_a_stage_that_begins_slowly_soon_has_its_true_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left of 700,000 prompts began with five hours, and went by hours for minutes."""
    for second in range(100):
        monkeypatch.setattr(progress.time, "monotonic", lambda at=1e4 + second: at)
        progress.update("scoring", max(0, 1_000 * (second - 30)), 10**6)
    assert progress.current().rate == pytest.approx(1_000)


def test_each_reports_none_every_nth_and_the_last() -> None:
    told: list[tuple[str, int, int]] = []
    passed = list(progress.each(lambda *at: told.append(at), "reading", "abcde", every=2))
    assert passed == list("abcde")
    assert told == [("reading", done, 5) for done in (0, 2, 4, 5)]
    assert list(progress.each(progress.silent, "reading", [])) == []
