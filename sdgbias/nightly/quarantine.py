"""A model that fails is put aside for a while, longer each time, and comes back by itself; trouble
that isn't its own puts nobody aside."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta

import pandas as pd

from sdgbias import store
from sdgbias.errors import RegistryError, StoreError
from sdgbias.nightly import ledger, process
from sdgbias.nightly.attempt import FAILED, PUBLISHED, UNCHANGED, Outcome
from sdgbias.nightly.plan import Settings
from sdgbias.registry import entries
from sdgbias.types import ENABLED, QUARANTINED

#: Kinds of failure that say nothing about the model: the results file, the network, a token, the
#: benchmark, how the night was started.
NOT_THE_MODEL = (
    "Busy",
    "DiskFull",
    "StoreError",
    "HubUnreachable",
    "ExpiredToken",
    "KeyRefused",
    "InputError",
    "UsageError",
    "Interrupted",
)
#: Days until a model is tried again, by how many nights in a row it failed; the last one for all
#: further ones.
DAYS = (1, 2, 4, 8, 14)


def until(failures: int, today: date) -> date:
    """When a model that failed so many nights in a row (1 or more) is tried again."""
    return today + timedelta(days=DAYS[min(failures, len(DAYS)) - 1])


def update_quarantine(settings: Settings, outcome: Outcome, today: date) -> Outcome:
    """``after`` with the model's history as the results file has it; a file that can't be read now
    counts as none."""
    try:
        past = ledger.history(settings.results, outcome.model)
    except StoreError:
        past = pd.DataFrame(
            columns=["night", "model", "suite", "outcome", "run_id", "quarantined_until"]
        )
    return after(settings, outcome, past, today)


def after(settings: Settings, outcome: Outcome, history: pd.DataFrame, today: date) -> Outcome:
    """The registry's state after an outcome; returns the outcome with ``quarantined_until`` filled
    in.

    A failure that is the model's own: quarantined, until 1, 2, 4, 8, then 14 days from today by how
    many nights in a row. Success of a quarantined model with a date: enabled, unless its other
    suite failed tonight. One without a date waits for a person. Candidates stay candidates.
    ``history``: ledger.history of this model. A registry file that can't be changed now is told in
    the message; the night goes on.
    """
    try:
        spec = entries.load(settings.root, outcome.model)
    except RegistryError as error:
        return (
            _noted(outcome, f"its state can't be changed: {error}")
            if outcome.outcome == FAILED
            else outcome
        )
    before = history[history["night"] != outcome.night]
    if outcome.good and spec.state == QUARANTINED and spec.until:
        tonight = history[(history["night"] == outcome.night) & (history["suite"] != outcome.suite)]
        if not (tonight["outcome"] == FAILED).any():
            return _set(settings, outcome, ENABLED, "", None)
    elif (
        outcome.outcome == FAILED
        and outcome.kind not in NOT_THE_MODEL
        and (spec.state == ENABLED or spec.until)
    ):
        return _put_aside(settings, outcome, f"{outcome.kind}: {outcome.message}", before, today)
    return outcome


def from_verdicts(settings: Settings, night: str) -> dict[str, str]:
    """The models that broke a rule of the gate which says `then: quarantine`: they are put aside
    until a person enables them; model -> reason. `sdgbias gate` does so itself where it may write
    the registry. Raises StoreError when the verdicts can't be read."""
    if not settings.results.exists():
        return {}
    sql = (
        "SELECT DISTINCT model, rule, run_id FROM verdicts WHERE night = ? AND verdict = 'BREACH'"
        " AND quarantines ORDER BY ALL"
    )
    rows = store.query(settings.results, sql, [night])
    found = {
        str(model): (
            f"gate: {', '.join(mine['rule'].drop_duplicates())} in breach, run"
            f" {mine['run_id'].iloc[0]}"
        )
        for model, mine in rows.groupby("model", sort=True)
    }
    for model, reason in found.items():
        with suppress(RegistryError):  # gone or broken meanwhile: nobody will ask it
            if entries.load(settings.root, model).state == ENABLED:
                entries.set_state(settings.root, model, QUARANTINED, reason=process.redact(reason))
    return found


def failures(before: pd.DataFrame) -> int:
    """Nights in a row, up to the newest, that ended with the model put aside. ``before``: its rows;
    nights that asked it nothing, or failed through no fault of its own, count neither way."""
    told = before[
        before["outcome"].isin((PUBLISHED, UNCHANGED))
        | (before["quarantined_until"].fillna("") != "")
    ]
    by_night = (
        told.assign(bad=told["quarantined_until"].fillna("") != "")
        .groupby("night", sort=True)["bad"]
        .any()
    )
    count = 0
    for bad in reversed(by_night.tolist()):
        if not bad:
            break
        count += 1
    return count


def _put_aside(
    settings: Settings, outcome: Outcome, reason: str, before: pd.DataFrame, today: date
) -> Outcome:
    return _set(
        settings, outcome, QUARANTINED, process.redact(reason), until(failures(before) + 1, today)
    )


def _set(
    settings: Settings, outcome: Outcome, state: str, reason: str, end: date | None
) -> Outcome:
    try:
        entries.set_state(settings.root, outcome.model, state, reason=reason, until=end or "")
    except (RegistryError, OSError) as error:
        return _noted(outcome, f"not {state}: {error}")
    return replace(outcome, quarantined_until=end.isoformat() if end else "")


def _noted(outcome: Outcome, words: str) -> Outcome:
    return replace(
        outcome, message=process.redact(f"{outcome.message}; {words}".removeprefix("; "))
    )
