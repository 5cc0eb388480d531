"""The message about a night, and how it reaches a real HTTP server on loopback that fails, answers
late, or refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sdgbias import store
from sdgbias.analysis import night_text, nights
from sdgbias.errors import UsageError
from sdgbias.nightly import notify
from tests.builders import nights as gate_results
from tests.builders.nights import FIRST, LOST, SECOND
from tests.builders.results import copied
from tests.builders.webhook import receiving

NOW = datetime(2026, 11, 21, 6, 0)
VARIABLE = "SDGBIAS_TEST_WEBHOOK"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gate_results.told_night(tmp_path_factory.mktemp("told") / "r.duckdb")


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    return copied(written, tmp_path / "r.duckdb")


@pytest.fixture
def receiver() -> Iterator[Any]:
    with ExitStack() as running:
        yield lambda *answers: running.enter_context(receiving(*answers))


def night(results: Path) -> nights.NightRecord:
    found = nights.load(results)
    assert found is not None
    return found


def kept(results: Path) -> list[tuple[str, str, int]]:
    found = store.query(results, "SELECT night, status, attempts FROM announcements ORDER BY night")
    return [(str(a), str(b), int(c)) for a, b, c in found.itertuples(index=False, name=None)]


def test_the_message_says_what_happened_and_how_to_go_on(written: Path) -> None:
    text = notify.message(night(written), "https://reports.example.org/night.html").replace(
        "\u00a0", " "
    )
    assert (
        "4 evaluations: 2 published, 1 unchanged, 1 failed; 1 model in breach: fake-optimist."
        in text
    )
    moved = (
        "accuracy, Full, choice, all tests: 71.2 % → 65.5 % (−5.7 points, 95 % CI"
        " −7.1 to −4.3, n = 1,200; allowed 2.0 points)"
    )
    assert f"• {LOST} (planted), sdg: {moved}" in text
    assert (
        "candidate mass, Full, choice, all tests: 10.0 % (n = 1,200, 95 % CI"
        " 8.0–12.0; must be at least 20.0 %)" in text
    )
    assert (
        "mean absolute error, Full, estimate, all tests: 0.500 tolerances → 0.900 tolerances"
        " (+0.400 tolerances" in text
    )
    assert "broken, sdg: OutOfMemory: too little <b>memory</b> & more (after 3 attempts)" in text
    assert "broken: quarantined until 2026-11-22; sdgbias models enable broken" in text
    assert f"{LOST}: quarantined until a person enables it" in text
    assert text.endswith("\nMorning page: https://reports.example.org/night.html")
    assert notify.message(night(written)).endswith("\nMorning page: reports/latest/night.html")


def test_breaches_come_first_with_the_commands_that_go_on(written: Path) -> None:
    text = notify.message(night(written))
    heads = [line for line in text.splitlines() if line.endswith(":")]
    assert heads[:2] == ["In breach:", "What to do:"]
    [breached] = night(written).breached
    assert f"accept: sdgbias gate accept {breached.run_id} --reason TEXT" in text


def test_directions_come_before_other_metrics() -> None:
    rows = [{"metric": name} for name in ("accuracy", "share_optimistic", "mae")]
    ordered = [row["metric"] for row in sorted(rows, key=night_text.directions_first)]
    assert ordered == ["share_optimistic", "accuracy", "mae"]


def test_a_message_stays_within_slacks_limits(results: Path) -> None:
    import pandas as pd

    rows = [
        gate_results.verdict(
            LOST,
            f"rule-{i}",
            "BREACH",
            test=f"T{i}",
            before=0.7,
            value=0.1,
            change=-0.6,
            ci_low=-0.7,
            ci_high=-0.5,
            allowed=0.02,
        )
        for i in range(200)
    ]
    store.upsert(results, {"verdicts": pd.DataFrame(rows)})
    gate_results.keep_night(
        results,
        SECOND,
        [
            {"model": f"m{i}", "outcome": "failed", "run_id": "", "kind": "X", "message": "y" * 900}
            for i in range(60)
        ],
    )
    text = notify.message(night(results))
    assert len(text) <= 3000 and "more" in text


def test_a_night_is_sent_once(
    results: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    r = receiver(200)
    monkeypatch.setenv(VARIABLE, r.url)
    caplog.set_level(logging.INFO)
    for name in ("apprise", "urllib3"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    assert [s.status for s in notify.announce(results, VARIABLE, NOW)] == ["sent"]
    assert [s.status for s in notify.announce(results, VARIABLE, NOW)] == ["known"]
    assert r.bodies == [{"text": notify.message(night(results))}]
    row = store.query(results, "FROM announcements").iloc[0]
    assert (row["night"], row["status"], row["attempts"]) == (SECOND, "sent", 1) and row[
        "target"
    ].startswith("127.0.0.1#")
    everything = caplog.text + row.to_json() + notify.message(night(results))
    assert "s3cret" not in everything and str(r.server.server_port) not in everything


def test_what_failed_is_sent_by_the_next_call(
    results: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    r, waits = receiver(500), []
    monkeypatch.setenv(VARIABLE, r.url)
    first = notify.announce(results, VARIABLE, NOW, night=FIRST, sleep=waits.append)
    assert (
        [(s.status, s.why) for s in first] == [("failed", "HTTP 500")]
        and waits == [1.0, 4.0]
        and kept(results) == [(FIRST, "failed", 3)]
    )
    r.answers = [503, 200]
    again = notify.announce(results, VARIABLE, NOW, sleep=waits.append)
    assert [(s.night, s.status) for s in again] == [(FIRST, "sent"), (SECOND, "sent")]
    assert kept(results) == [(FIRST, "sent", 5), (SECOND, "sent", 1)]
    assert FIRST in r.bodies[4]["text"] and SECOND in r.bodies[5]["text"]


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (302, 1), (429, 3)])
def test_what_a_second_try_can_not_mend_is_not_tried_again(
    receiver: Any, code: int, tries: int
) -> None:
    assert notify.post(receiver(code).url, "x", lambda _: None) == (tries, f"HTTP {code}")


def test_a_server_that_is_down_is_kept_as_failed(
    results: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = receiver(200)
    r.server.shutdown()
    r.server.server_close()
    monkeypatch.setenv(VARIABLE, r.url)
    [sent] = notify.announce(results, VARIABLE, NOW, sleep=lambda _: None)
    assert (sent.status, sent.why) == ("failed", "no answer")


def test_without_an_address_it_is_skipped_and_said(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    [sent] = notify.announce(results, VARIABLE, NOW)
    assert (
        sent.status == "skipped"
        and VARIABLE in sent.why
        and kept(results) == [(SECOND, "skipped", 0)]
    )


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "ftp://x/s3cret",
        "s3cret",
        "http://",
        "http://a:b:s3cret/",
        "http://[s3cret",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(
    results: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(VARIABLE, address)
    with pytest.raises(UsageError, match="no http or https URL and none of Apprise's") as told:
        notify.announce(results, VARIABLE, NOW)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    ("address", "name", "shown"),
    [
        (
            "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
            "Slack",
            "hooks.slack.com#",
        ),
        ("mailto://me:s3cret@example.org?to=team@example.org", "E-Mail", "e-mail#"),
        (
            "https://prod-01.westus.logic.azure.com:443/workflows/643e69f83c8944/triggers/manual"
            "/paths/invoke?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=s3cret",
            "Power Automate / Workflows (for MSTeams)",
            "prod-01.westus.logic.azure.com#",
        ),
    ],
)
def test_chats_and_mail_are_known_by_their_address(address: str, name: str, shown: str) -> None:
    assert str(notify.service(address).service_name) == name
    assert notify.target(address).startswith(shown) and "s3cret" not in notify.target(address)


def test_the_query_of_an_address_is_kept(receiver: Any) -> None:
    """Many services put their key there."""
    r = receiver(200)
    assert notify.post(f"{r.url}?key=a%20b&thread=7", "x", lambda _: None) == (1, "")
    assert r.paths == ["/services/T0/s3cret?key=a+b&thread=7"] and r.bodies == [{"text": "x"}]
