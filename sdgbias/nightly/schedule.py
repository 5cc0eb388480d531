"""When nights are due, and their names. A night is named after its due time on the wall clock of
the schedule's time zone: 2026-11-21T0130. A second night started in the same minute is
2026-11-21T0130-2.

Due times are computed on the wall clock and then converted to instants, so every day has exactly
one night per due time across clock changes: a repeated hour (end of summer time) has one night, at
its first occurrence; a skipped hour (its beginning) has one too, as long after midnight as on other
days. A run that starts slightly before or after the due time (Prefect moves a skipped time to an
hour earlier) belongs to the same night.
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
    """``night`` if it is a valid name of a night. Raises UsageError."""
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
    """Name of the night that starts at ``when`` (an instant). With ``cron``: named after the
    nearest due time within 75 minutes, if there is one."""
    wall = when.astimezone(zone(tz)).replace(tzinfo=None)
    if cron:
        near = _walls(cron, wall - _NEAR, wall + _NEAR)
        if near:
            wall = min(near, key=lambda label: (abs(label - wall), label))
    return wall.strftime(_LABEL)


def next_free(night: str, taken: Collection[str]) -> str:
    """``night``, or if that is taken the first free name of night-2 to night-9 (they sort in this
    order, before the next minute); if none is free, the last of them."""
    names = [night, *(f"{night}-{n}" for n in range(2, 10))]
    return next((name for name in names if name not in taken), names[-1])


def due(cron: str, tz: str, after: datetime, before: datetime) -> list[datetime]:
    """The instants (UTC) in (after, before] at which a night is due, one per name, oldest first.
    Raises UsageError."""
    local = zone(tz)
    first, last = (t.astimezone(local).replace(tzinfo=None) for t in (after, before))
    walls = _walls(cron, first - timedelta(hours=2), last + timedelta(hours=2))
    instants = sorted({wall.replace(tzinfo=local).astimezone(UTC) for wall in walls})
    return [when for when in instants if after < when <= before]


def missed(cron: str, tz: str, last_night: str | None, now: datetime) -> datetime | None:
    """The due time of the newest night that should have run by ``now``; None if none was due after
    ``last_night`` (the last one that is done, or that a late run was scheduled for).

    Only the newest of several missed nights counts: a model is compared with its last run, however
    long ago that was. Searches at most 62 days back. A clock that was set back makes no night due
    twice, because nights are identified by name.
    """
    past = due(cron, tz, now - timedelta(days=62), now)
    if not past:
        return None
    name = night_id(past[-1], tz, cron)
    return past[-1] if last_night is None or name > last_night else None


def next_due(cron: str, tz: str, now: datetime) -> str:
    """The next due time for display: '2026-11-22 01:30 UTC'."""
    for days in (2, 40, 400):
        coming = due(cron, tz, now, now + timedelta(days=days))
        if coming:
            return f"{coming[0].astimezone(zone(tz)):%Y-%m-%d %H:%M %Z}"
    return "none within 400 days"


def _walls(cron: str, first: datetime, last: datetime) -> list[datetime]:
    """Wall-clock times in [first, last] that match the cron expression."""
    try:
        times = CronSim(cron, first - timedelta(minutes=1))
    except CronSimError as error:
        raise UsageError(
            f"cron {cron!r}: {error}; valid: five fields such as '30 1 * * *'"
        ) from None
    return list(takewhile(lambda wall: wall <= last, times))
