"""Due times, names of nights, daylight saving, clocks that are set back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sdgbias.errors import UsageError
from sdgbias.nightly import schedule

BERLIN, CRON = "Europe/Berlin", "30 2 * * *"
NAIROBI, USUAL = "Africa/Nairobi", "30 1 * * *"


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("when", "tz", "cron", "night"),
    [
        pytest.param(at(2026, 11, 20, 22, 30), NAIROBI, "", "2026-11-21T0130", id="by hand"),
        pytest.param(at(2026, 11, 20, 22, 41), NAIROBI, USUAL, "2026-11-21T0130", id="late"),
        pytest.param(at(2026, 11, 21, 10), NAIROBI, USUAL, "2026-11-21T1300", id="none is near"),
        # whoever starts it at 02:30 of the hour that stands twice starts the same night
        pytest.param(at(2026, 10, 25, 0, 30), BERLIN, CRON, "2026-10-25T0230", id="once"),
        pytest.param(at(2026, 10, 25, 1, 30), BERLIN, CRON, "2026-10-25T0230", id="twice"),
        # in the hour that is left out Prefect's cron starts it at 01:30 local, others at 03:00
        pytest.param(at(2026, 3, 29, 0, 30), BERLIN, CRON, "2026-03-29T0230", id="left out"),
        pytest.param(at(2026, 3, 29, 1, 0), BERLIN, CRON, "2026-03-29T0230", id="left out, later"),
    ],
)
def test_given_an_instant_then_the_night_is_named_after_its_due_time_on_the_wall(
    when: datetime, tz: str, cron: str, night: str
) -> None:
    assert schedule.night_id(when, tz, cron) == night


@pytest.mark.parametrize(
    ("cron", "tz", "after", "before", "due"),
    [
        # an hour that stands twice: its first; an hour that is left out: as long after midnight
        (CRON, BERLIN, at(2026, 10, 24, 12), at(2026, 10, 25, 12), [at(2026, 10, 25, 0, 30)]),
        (CRON, BERLIN, at(2026, 3, 28, 12), at(2026, 3, 29, 12), [at(2026, 3, 29, 1, 30)]),
        # (after, before]: of two windows that meet at a due time only the earlier one has it
        (USUAL, "UTC", at(2026, 11, 20, 1, 30), at(2026, 11, 21, 1, 30), [at(2026, 11, 21, 1, 30)]),
        (USUAL, "UTC", at(2026, 11, 21, 1, 30), at(2026, 11, 21, 2, 30), []),
    ],
)
def test_given_a_window_then_the_due_instants_lie_in_it(
    cron: str, tz: str, after: datetime, before: datetime, due: list[datetime]
) -> None:
    assert schedule.due(cron, tz, after, before) == due


def test_given_nights_of_one_minute_then_they_sort_between_it_and_the_next() -> None:
    first, taken = "2026-11-21T0130", list[str]()
    for _ in range(9):
        taken.append(schedule.next_free(first, taken))
    assert taken[:3] == [first, f"{first}-2", f"{first}-3"] and len(set(taken)) == 9
    assert sorted([*taken, "2026-11-21T0131"]) == [*taken, "2026-11-21T0131"]
    assert [schedule.checked(name) for name in taken] == taken
    assert schedule.next_free(first, taken) == taken[-1]


@pytest.mark.parametrize(
    ("done", "now", "due"),
    [
        ("2026-11-21T0130", at(2026, 11, 21, 9), None),
        pytest.param("2026-11-18T0130", at(2026, 11, 21, 9), at(2026, 11, 21, 1, 30), id="newest"),
        (None, at(2026, 11, 21, 9), at(2026, 11, 21, 1, 30)),
        pytest.param("2026-11-21T0815", at(2026, 11, 21, 9), None, id="one by hand after it"),
        pytest.param("2026-11-21T0130", at(2026, 11, 21, 0, 40), None, id="a clock set back"),
        pytest.param("2026-11-21T0130", at(2026, 11, 21, 1, 31), None, id="its time comes again"),
        ("2026-11-21T0130", at(2026, 11, 22, 1, 31), at(2026, 11, 22, 1, 30)),
    ],
)
def test_given_the_last_finished_night_then_the_newest_missed_one_is_due(
    done: str | None, now: datetime, due: datetime | None
) -> None:
    assert schedule.missed(USUAL, "UTC", done, now) == due


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: schedule.zone("Mars/Olympus"), "Mars/Olympus"),
        (lambda: schedule.due("every night", "UTC", at(2026, 1, 1), at(2026, 1, 2)), "every night"),
        (lambda: schedule.checked("../2026"), "2026-11-21T0130"),
        (lambda: schedule.checked("2026-13-41T0130"), "no such date"),
        (lambda: schedule.checked("2026-11-21T0130-1"), "2026-11-21T0130-1"),
    ],
)
def test_given_nonsense_then_it_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_given_a_run_in_the_hour_that_is_left_out_then_no_night_was_missed() -> None:
    """Prefect starts the run of 29 March an hour before the due time of that night."""
    night = schedule.night_id(at(2026, 3, 29, 0, 30), BERLIN, CRON)
    assert schedule.missed(CRON, BERLIN, night, at(2026, 3, 29, 5)) is None


def test_given_a_schedule_then_its_next_night_is_in_its_own_time() -> None:
    noon = at(2026, 11, 21, 12)
    assert schedule.next_due(USUAL, NAIROBI, noon) == "2026-11-22 01:30 EAT"
    assert schedule.next_due("0 0 29 2 *", "UTC", noon) == "none within 400 days"
