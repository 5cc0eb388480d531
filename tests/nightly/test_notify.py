"""The message about a night, and how it reaches a real HTTP server on loopback that fails, answers
late, or refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis import night_text, nights
from sdgbias.errors import UsageError
from sdgbias.nightly import notify
from tests.builders.nights import FIRST, LOST, SECOND, keep_night, no_memory, told_night, verdict
from tests.builders.results import copied
from tests.builders.webhook import Receiver, receiving

NOW = datetime(2026, 11, 21, 6, 0)
VARIABLE = "SDGBIAS_TEST_WEBHOOK"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return told_night(tmp_path_factory.mktemp("told") / "r.duckdb")


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    return copied(written, tmp_path / "r.duckdb")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Receiver]]:
    """Starts a server that answers with these codes, and sets its address."""
    with ExitStack() as running:

        def start(*answers: int) -> Receiver:
            server = running.enter_context(receiving(*answers))
            monkeypatch.setenv(VARIABLE, server.url)
            return server

        yield start


def message(results: Path, link: str = "") -> str:
    night = nights.load(results)
    assert night is not None
    return notify.message(night, link)


def announced(results: Path) -> list[list[object]]:
    sql = "SELECT night, status, attempts FROM announcements ORDER BY night"
    return store.query(results, sql).values.tolist()


def test_given_a_night_then_its_message_says_what_happened_and_how_to_go_on(written: Path) -> None:
    page = "https://reports.example.org/night.html"
    text = message(written, page).replace("\u00a0", " ")
    for words in (
        "4 evaluations: 2 published, 1 unchanged, 1 failed; 1 model in breach: fake-optimist.",
        f"• {LOST} (planted), sdg: accuracy, Full, choice, all tests: 71.2 % → 65.5 % (−5.7 points,"
        " 95 % CI −7.1 to −4.3, n = 1,200; allowed 2.0 points)",
        "candidate mass, Full, choice, all tests: 10.0 % (n = 1,200, 95 % CI 8.0–12.0; must be at"
        " least 20.0 %)",
        "mean absolute error, Full, estimate, all tests: 0.500 tolerances → 0.900 tolerances"
        " (+0.400 tolerances",
        f"accept: sdgbias gate accept {LOST}-2 --reason TEXT",
        "broken, sdg: OutOfMemory: too little <b>memory</b> & more (after 3 attempts)",
        "broken: quarantined until 2026-11-22; sdgbias models enable broken",
        f"{LOST}: quarantined until a person enables it",
    ):
        assert words in text
    heads = [line for line in text.splitlines() if line.endswith(":")]
    assert heads[:2] == ["In breach:", "What to do:"]
    assert text.endswith(f"\nMorning page: {page}")
    assert message(written).endswith("\nMorning page: reports/latest/night.html")
    rows = [{"metric": name} for name in ("accuracy", "share_optimistic", "mae")]
    ordered = [row["metric"] for row in sorted(rows, key=night_text.directions_first)]
    assert ordered == ["share_optimistic", "accuracy", "mae"]


def test_given_many_breaches_and_failures_then_a_message_stays_within_slacks_limits(
    results: Path,
) -> None:
    moved = (0.7, 0.1, -0.7, -0.5)
    rows = [verdict(LOST, f"r-{i}", "BREACH", moved, test=f"T{i}", allowed=0.02) for i in range(99)]
    store.upsert(results, {"verdicts": pd.DataFrame(rows)})
    keep_night(results, SECOND, [no_memory("y" * 900, "", f"m{i}") for i in range(60)])
    text = message(results)
    assert len(text) <= 3000 and "more" in text


def test_given_a_night_that_was_sent_then_it_is_not_sent_again_and_its_address_is_secret(
    results: Path,
    receiver: Callable[..., Receiver],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = receiver(200)
    caplog.set_level(logging.INFO)
    for name in ("apprise", "urllib3"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    for status in ("sent", "known"):
        assert [s.status for s in notify.announce(results, VARIABLE, NOW)] == [status]
    assert server.bodies == [{"text": message(results)}]
    assert announced(results) == [[SECOND, "sent", 1]]
    row = store.query(results, "FROM announcements").iloc[0]
    assert row["target"].startswith("127.0.0.1#")
    everything = caplog.text + row.to_json() + message(results)
    assert "s3cret" not in everything and str(server.server.server_port) not in everything


def test_given_a_message_that_failed_then_the_next_call_sends_it(
    results: Path, receiver: Callable[..., Receiver]
) -> None:
    server, waits = receiver(500), list[float]()
    first = notify.announce(results, VARIABLE, NOW, night=FIRST, sleep=waits.append)
    assert [(s.status, s.why) for s in first] == [("failed", "HTTP 500")]
    assert waits == [1.0, 4.0] and announced(results) == [[FIRST, "failed", 3]]
    server.answers = [503, 200]
    again = notify.announce(results, VARIABLE, NOW, sleep=waits.append)
    assert [(s.night, s.status) for s in again] == [(FIRST, "sent"), (SECOND, "sent")]
    assert announced(results) == [[FIRST, "sent", 5], [SECOND, "sent", 1]]
    assert FIRST in server.bodies[4]["text"] and SECOND in server.bodies[5]["text"]


def test_given_a_corrected_address_then_what_reached_nobody_is_sent_to_it(
    results: Path, receiver: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = receiver(404, 200)
    notify.announce(results, VARIABLE, NOW, night=FIRST)
    for chat, due in (("A", [FIRST, SECOND]), ("B", [SECOND])):
        monkeypatch.setenv(VARIABLE, f"{server.url}/{chat}")
        again = notify.announce(results, VARIABLE, NOW)
        assert [(s.night, s.status) for s in again] == [(night, "sent") for night in due]


def test_given_an_error_then_it_is_tried_again_where_that_may_help(
    receiver: Callable[..., Receiver],
) -> None:
    """The query of an address is kept: many services put their key there."""
    server = receiver(404, 302, 429, 200)
    address = f"{server.url}?key=a%20b&thread=7"
    for tries, why in ((1, "HTTP 404"), (1, "HTTP 302"), (2, "")):
        assert notify.post(address, "x", lambda _: None) == (tries, why)
    assert set(server.paths) == {"/services/T0/s3cret?key=a+b&thread=7"}
    assert server.bodies[-1] == {"text": "x"}


def test_given_no_server_or_no_address_then_it_is_recorded(
    results: Path, receiver: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = receiver(200).server
    server.shutdown()
    server.server_close()
    [sent] = notify.announce(results, VARIABLE, NOW, sleep=lambda _: None)
    assert (sent.status, sent.why) == ("failed", "no answer")
    monkeypatch.delenv(VARIABLE)
    [sent] = notify.announce(results, VARIABLE, NOW, night=FIRST)
    assert sent.status == "skipped" and VARIABLE in sent.why
    assert announced(results) == [[FIRST, "skipped", 0], [SECOND, "failed", 3]]


@pytest.mark.parametrize(
    "address",
    ["file:///s3cret", "s3cret", "http://", "http://a:b:s3cret/", "http://[s3"],
)
def test_given_no_address_of_a_service_then_it_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(UsageError, match="no http or https URL and none of Apprise's") as refused:
        notify.target(address)
    assert "s3" not in str(refused.value)


SLACK = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
MAIL = "mailto://me:s3cret@example.org?to=team@example.org"


@pytest.mark.parametrize(
    ("address", "name", "shown"),
    [(SLACK, "Slack", "hooks.slack.com#"), (MAIL, "E-Mail", "e-mail#")],
)
def test_given_an_address_then_it_is_that_of_a_chat_or_mail(
    address: str, name: str, shown: str
) -> None:
    assert str(notify.service(address).service_name) == name
    assert notify.target(address).startswith(shown) and "s3cret" not in notify.target(address)
