"""Quarantine: a failing model is excluded for a while, longer each time, and re-enabled
automatically; failures not caused by the model don't quarantine it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from itertools import takewhile

import pandas as pd

from sdgbias.errors import RegistryError, StoreError
from sdgbias.nightly import process, records
from sdgbias.nightly.attempt import FAILED, PUBLISHED, UNCHANGED, JobOutcome, failure
from sdgbias.nightly.night_options import NightOptions
from sdgbias.registry import entries
from sdgbias.types import ENABLED, QUARANTINED

#: Days until a model is tried again, by the number of consecutive failed nights; the last value
#: also applies to all further ones.
DAYS = (1, 2, 4, 8, 14)


def until(failures: int, today: date) -> date:
    """The date on which a model with this many consecutive failed nights (1 or more) is tried
    again."""
    return today + timedelta(days=DAYS[min(failures, len(DAYS)) - 1])


def update_quarantine(options: NightOptions, outcome: JobOutcome, today: date) -> JobOutcome:
    """Update the registry's state after an outcome; return the outcome with ``quarantined_until``
    filled in.

    A failure caused by the model: quarantined for 1, 2, 4, 8, then 14 days from today, by the
    number of consecutive failed nights. Success of a model quarantined until a date: enabled,
    unless its other suite failed tonight. A quarantine without a date is only lifted by a user.
    Candidates stay candidates. If the registry file can't be changed, the outcome's message reports
    it and the night continues; a history that can't be read counts as none.
    """
    columns = ["night", "model", "suite", "outcome", "run_id", "quarantined_until"]
    try:
        history = records.history(options.results, outcome.model)[columns]
    except StoreError:
        history = pd.DataFrame(columns=columns)
    try:
        spec = entries.load(options.root, outcome.model)
    except RegistryError as error:
        failed = outcome.outcome == FAILED
        return _noted(outcome, f"its state can't be changed: {error}") if failed else outcome
    before = history[history["night"] != outcome.night]
    if outcome.good and spec.state == QUARANTINED and spec.until:
        tonight = history[(history["night"] == outcome.night) & (history["suite"] != outcome.suite)]
        if not (tonight["outcome"] == FAILED).any():
            return _set(options, outcome, ENABLED, "", None)
    elif (
        outcome.outcome == FAILED
        and failure(outcome.kind).model
        and (spec.state == ENABLED or spec.until)
    ):
        reason = process.redact(f"{outcome.kind}: {outcome.message}")
        return _set(options, outcome, QUARANTINED, reason, until(failures(before) + 1, today))
    return outcome


def failures(before: pd.DataFrame) -> int:
    """Consecutive nights, up to the newest, that ended with the model quarantined. ``before``: the
    model's rows; nights that didn't score it, or whose failure was not the model's, are ignored."""
    bad = before["quarantined_until"].fillna("") != ""
    counted = bad[bad | before["outcome"].isin((PUBLISHED, UNCHANGED))]
    by_night = counted.groupby(before["night"], sort=True).any()
    return len(list(takewhile(bool, reversed(by_night.tolist()))))


def _set(
    options: NightOptions, outcome: JobOutcome, state: str, reason: str, end: date | None
) -> JobOutcome:
    try:
        entries.set_state(options.root, outcome.model, state, reason=reason, until=end or "")
    except (RegistryError, OSError) as error:
        return _noted(outcome, f"not {state}: {error}")
    return replace(outcome, quarantined_until=end.isoformat() if end else "")


def _noted(outcome: JobOutcome, words: str) -> JobOutcome:
    return replace(
        outcome, message=process.redact(f"{outcome.message}; {words}".removeprefix("; "))
    )
