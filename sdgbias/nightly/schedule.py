"""When a night is due. A night is named after the wall clock that its schedule names, in the
schedule's time zone: 2026-11-21T0130. A second one that somebody starts in a minute that has its
night already is 2026-11-21T0130-2.

Due times are computed on the wall clock and then turned into instants, so every day has its night,
whatever the clock does: an hour that stands twice (the end of summer time) is one night, its first;
an hour that is left out (the beginning) is one night too, as late after midnight as on other days.
Who starts a night a little before or after its due time (Prefect moves a time that is left out to
an hour earlier) starts the same night.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from sdgbias.errors import UsageError

#: The default schedule, also that of infra/prefect.yaml.
CRON, TIMEZONE = "30 1 * * *", "UTC"
NIGHT = re.compile(r"\d{4}-\d\d-\d\dT\d{4}(?:-[2-9])?")
_LABEL = "%Y-%m-%dT%H%M"
_NEAR = timedelta(minutes=75)


def zone(name: str) -> ZoneInfo:
    """The time zone of this name, e.g. 'Africa/Nairobi'. Raises UsageError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise UsageError(
            f"time zone {name!r} is unknown; valid: a name of the tz database such as UTC or"
            " Africa/Nairobi"
        ) from None


def checked(night: str) -> str:
    """``night`` if it is the name of one. Raises UsageError."""
    if not NIGHT.fullmatch(night):
        raise UsageError(
            f"night {night!r}; valid: the wall clock of its start, e.g. 2026-11-21T0130"
        )
    try:
        datetime.strptime(night[:15], _LABEL)  # without the -2
    except ValueError:
        raise UsageError(
            f"night {night!r}: no such date or time; valid: e.g. 2026-11-21T0130"
        ) from None
    return night


def night_id(when: datetime, tz: str, cron: str = "") -> str:
    """Name of the night that starts at ``when`` (an instant). With ``cron``: of the due time within
    75 minutes of it, if there is one."""
    wall = when.astimezone(zone(tz)).replace(tzinfo=None)
    if cron:
        near = _walls(cron, wall - _NEAR, wall + _NEAR)
        if near:
            wall = min(near, key=lambda label: (abs(label - wall), label))
    return wall.strftime(_LABEL)


def next_free(night: str, taken: Collection[str]) -> str:
    """``night``, or where that is taken the first free one of night-2 to night-9. They sort in this
    order, before the next minute. With none free, the last of them."""
    names = [night, *(f"{night}-{n}" for n in range(2, 10))]
    return next((name for name in names if name not in taken), names[-1])


def due(cron: str, tz: str, after: datetime, before: datetime) -> list[datetime]:
    """The instants (UTC) in (after, before] at which a night is due, one per name, oldest first.
    Raises UsageError."""
    local = zone(tz)
    first, last = (t.astimezone(local).replace(tzinfo=None) for t in (after, before))
    walls = _walls(cron, first - timedelta(hours=2), last + timedelta(hours=2))
    found = sorted({wall.replace(tzinfo=local).astimezone(UTC) for wall in walls})
    return [when for when in found if after < when <= before]


def missed(cron: str, tz: str, last_finished_night: str | None, now: datetime) -> datetime | None:
    """When the newest night was due that should have run by ``now`` and did not; None when the last
    due night is done.

    Of several missed nights only the newest counts: a model is compared with its last run, however
    long ago that was. Looks back 62 days at most. A clock that was set back makes nothing due
    twice, for a night counts by its name.
    """
    past = due(cron, tz, now - timedelta(days=62), now)
    if not past:
        return None
    name = night_id(past[-1], tz, cron)
    return past[-1] if last_finished_night is None or name > last_finished_night else None


def _walls(cron: str, first: datetime, last: datetime) -> list[datetime]:
    """Wall clock times in [first, last] that the cron expression names."""
    try:
        times = CronSim(cron, first - timedelta(minutes=1))
    except CronSimError as error:
        raise UsageError(
            f"cron {cron!r}: {error}; valid: five fields such as '30 1 * * *'"
        ) from None
    return list(takewhile(lambda wall: wall <= last, times))
