"""Due times, names of nights, daylight saving, clocks that are set back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

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
        (at(2026, 11, 20, 22, 30), NAIROBI, "", "2026-11-21T0130"),
        (at(2026, 11, 20, 22, 41), NAIROBI, USUAL, "2026-11-21T0130"),
        (at(2026, 11, 21, 10, 0), NAIROBI, USUAL, "2026-11-21T1300"),
        # whoever fires at the second 02:30 of the hour that stands twice starts the same night
        (at(2026, 10, 25, 1, 30), BERLIN, CRON, "2026-10-25T0230"),
        # of the hour that is left out Prefect's cron fires at 01:30 local, others at 03:00
        (at(2026, 3, 29, 0, 30), BERLIN, CRON, "2026-03-29T0230"),
        (at(2026, 3, 29, 1, 0), BERLIN, CRON, "2026-03-29T0230"),
    ],
    ids=["by hand", "started late", "no due time is near", "twice", "left out", "left out, later"],
)
def test_a_night_is_named_after_its_due_time_on_the_wall(
    when: datetime, tz: str, cron: str, night: str
) -> None:
    assert schedule.night_id(when, tz, cron) == night


@pytest.mark.parametrize("day", [(2026, 10, 25), (2026, 3, 29), (2026, 6, 1)])
def test_every_day_has_one_night_whatever_the_clock_does(day: tuple[int, int, int]) -> None:
    noon = datetime(*day, 12, tzinfo=ZoneInfo(BERLIN))
    found = schedule.due(CRON, BERLIN, noon - timedelta(hours=24), noon)
    assert len(found) == 1
    assert {schedule.night_id(when, BERLIN, CRON) for when in found} == {f"{noon:%Y-%m-%d}T0230"}


@pytest.mark.parametrize(
    ("cron", "tz", "after", "before", "expected"),
    [
        (CRON, BERLIN, at(2026, 10, 24, 12), at(2026, 10, 25, 12), [at(2026, 10, 25, 0, 30)]),
        (CRON, BERLIN, at(2026, 3, 28, 12), at(2026, 3, 29, 12), [at(2026, 3, 29, 1, 30)]),
        # (after, before]: of two windows that meet at a due time only the earlier one has it
        (USUAL, "UTC", at(2026, 11, 20, 1, 30), at(2026, 11, 21, 1, 30), [at(2026, 11, 21, 1, 30)]),
        (USUAL, "UTC", at(2026, 11, 21, 1, 30), at(2026, 11, 21, 2, 30), []),
    ],
    ids=["an hour that stands twice: its first", "an hour left out", "end", "start"],
)
def test_when_nights_are_due(
    cron: str, tz: str, after: datetime, before: datetime, expected: list[datetime]
) -> None:
    assert schedule.due(cron, tz, after, before) == expected


def test_nights_of_one_minute_sort_between_it_and_the_next() -> None:
    taken: list[str] = []
    for _ in range(9):
        taken.append(schedule.next_free("2026-11-21T0130", taken))
    assert (
        taken[:3] == ["2026-11-21T0130", "2026-11-21T0130-2", "2026-11-21T0130-3"]
        and len(set(taken)) == 9
    )
    assert sorted([*taken, "2026-11-21T0131"]) == [*taken, "2026-11-21T0131"]
    assert [schedule.checked(name) for name in taken] == taken and schedule.next_free(
        "2026-11-21T0130", taken
    ) == taken[-1]


@pytest.mark.parametrize(
    ("done", "now", "expected"),
    [
        ("2026-11-21T0130", at(2026, 11, 21, 9), None),
        ("2026-11-18T0130", at(2026, 11, 21, 9), at(2026, 11, 21, 1, 30)),
        (None, at(2026, 11, 21, 9), at(2026, 11, 21, 1, 30)),
        ("2026-11-21T0815", at(2026, 11, 21, 9), None),
        ("2026-11-21T0130", at(2026, 11, 21, 0, 40), None),
        ("2026-11-21T0130", at(2026, 11, 21, 1, 31), None),
        ("2026-11-21T0130", at(2026, 11, 22, 1, 31), at(2026, 11, 22, 1, 30)),
    ],
    ids=[
        "it is done",
        "three nights: the newest",
        "never any",
        "one by hand after it counts",
        "a clock set back before it",
        "its time comes by again",
        "the next night",
    ],
)
def test_which_night_was_missed(done: str | None, now: datetime, expected: datetime | None) -> None:
    assert schedule.missed(USUAL, "UTC", done, now) == expected


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
def test_what_makes_no_sense_is_told(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=words):
        call()


@pytest.mark.parametrize(
    ("start", "now", "night"),
    [
        (at(2026, 11, 21, 1, 30), at(2026, 11, 21, 1, 31), "2026-11-21T0130"),
        # the worker prefetches a run some seconds early
        (at(2026, 11, 21, 1, 30), at(2026, 11, 21, 1, 29), "2026-11-21T0130"),
        # a server that was down for two nights, a laptop that slept: both late runs are the newest
        (at(2026, 11, 20, 1, 30), at(2026, 11, 22, 9, 0), "2026-11-22T0130"),
        (at(2026, 11, 21, 1, 30), at(2026, 11, 22, 9, 0), "2026-11-22T0130"),
    ],
)
def test_a_late_run_does_the_newest_due_night(start: datetime, now: datetime, night: str) -> None:
    when = schedule.latest(USUAL, "UTC", start, now)
    assert schedule.night_id(when, "UTC", USUAL) == night


def test_a_run_of_the_hour_that_is_left_out_is_no_missed_night() -> None:
    """Prefect starts the run of 29 March an hour before the due time of that night."""
    early = at(2026, 3, 29, 0, 30)
    assert schedule.latest(CRON, BERLIN, early, at(2026, 3, 29, 5)) == early
    assert schedule.night_id(early, BERLIN, CRON) == "2026-03-29T0230"


def test_the_next_night_in_the_schedules_own_time() -> None:
    noon = at(2026, 11, 21, 12)
    assert schedule.next_due(USUAL, NAIROBI, noon) == "2026-11-22 01:30 EAT"
    assert schedule.next_due("0 0 29 2 *", "UTC", noon) == "none within 400 days"
