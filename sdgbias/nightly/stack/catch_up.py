"""Whether a night was missed and may be started again now. Pure except for one query of the results
file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from sdgbias.nightly import ledger, schedule
from sdgbias.nightly.stack.settings import Stack

#: Waits before the first, second, ... attempt to catch up on a night, counted from the end of the
#: previous run; after the last, a user has to start it.
WAITS = (timedelta(0), timedelta(0), timedelta(minutes=5), timedelta(minutes=30))
#: Time that a due night has to start by itself.
GRACE = timedelta(seconds=30)


def next_due(stack: Stack, now: datetime) -> str:
    """The next due time for display: '2026-11-22 01:30 UTC'."""
    for days in (2, 40, 400):
        coming = schedule.due(stack.cron, stack.timezone, now, now + timedelta(days=days))
        if coming:
            return f"{coming[0].astimezone(schedule.zone(stack.timezone)):%Y-%m-%d %H:%M %Z}"
    return "none within 400 days"


def overdue(stack: Stack, now: datetime) -> datetime | None:
    """Due time of the newest night that the results do not record as ended; None if there is none
    since the schedule took effect."""
    since = datetime.fromisoformat(stack.since) if stack.since else now
    latest = _latest_due(stack, since, now - GRACE)
    if latest is None:
        return None
    name = schedule.night_id(latest, stack.timezone, stack.cron)
    done = ledger.nights(stack.results).query("status == @ledger.DONE")["night"]
    return None if len(done) and max(done) >= name else latest


def _latest_due(stack: Stack, since: datetime, until: datetime) -> datetime | None:
    """The last due time in (since, until]; the most recent hours are searched first, because a long
    search is slow."""
    for back in (timedelta(hours=26), timedelta(days=62)):
        found = (
            schedule.due(stack.cron, stack.timezone, max(since, until - back), until)
            if until > since
            else []
        )
        if found:
            return found[-1]
    return None


def may_retry(ended: Sequence[datetime], now: datetime) -> bool:
    """Whether a night whose earlier runs ended at `ended` may be tried again at `now`."""
    if len(ended) >= len(WAITS):
        return False
    return not ended or now - max(ended) >= WAITS[len(ended)]


def is_run_of(parameters: Mapping[str, object], expected: datetime | None, due: datetime) -> bool:
    """Whether a flow run with these parameters, expected to start then, is a run of the night that
    was due at `due`."""
    said = parameters.get("scheduled_for")
    return datetime.fromisoformat(str(said)) == due if said else expected == due


def last_night(results: Path) -> str:
    """The newest night in one line: name, status, number of models per outcome."""
    from sdgbias.errors import StoreError

    try:
        nights = ledger.nights(results, 1)
        if not len(nights):
            return "none yet"
        night = nights.iloc[0]
        counts = (
            ledger.history(results)
            .query("night == @night.night")["outcome"]
            .value_counts()
            .sort_index()
        )
    except StoreError as error:
        return f"not known: {error}"
    found = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "no model"
    return f"{night.night}: {night.status}; {found}; report: {night.report}/night.html"
