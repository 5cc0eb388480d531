"""Selection of the runs to judge and of their baselines, and acceptance of breaches by users."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis import nights
from sdgbias.analysis.nights import BREACH, UNCHANGED
from sdgbias.errors import UsageError, one_of
from sdgbias.files import packaged_sql

#: Why there is no baseline: no earlier run of the model at all.
FIRST_RUN = "first run: nothing to compare with yet"
#: Prefix in column ``night`` for verdicts that belong to no night.
BY_HAND = "run:"
_REMOVED = "the answers of all earlier runs were removed by `sdgbias store keep`"


@dataclass(frozen=True)
class Target:
    """A run to judge. night: its id, or run:RUN_ID without one. judged: an earlier night in which
    this run was judged, '' if none. in_breach: it has a breach that no user has accepted. accepted:
    the reason for which a user accepted its breaches, '' if none did."""

    night: str
    model: str
    suite: str
    run_id: str
    judged: str = ""
    in_breach: bool = False
    accepted: str = ""


def of_night(results: Path, night: str = "", model: str = "") -> list[Target]:
    """The published and unchanged runs of a night (default: the newest); without any nights, the
    newest run of each model.

    Raises StoreError for an unknown night, UsageError for a model without a run in it.
    """
    newest = nights.chosen(results, night)
    targets = _targets(results, newest, [] if newest else suites.newest_runs(results))
    models = {t.model for t in targets}
    if model and model not in models:
        raise UsageError(one_of("model with a run in this night", model, models))
    return [t for t in targets if model in ("", t.model)]


def by_hand(results: Path, run_id: str) -> Target:
    """One run, judged even if it was judged before. Raises StoreError if it doesn't exist."""
    store.run_of(results, run_id)
    [target] = _targets(results, "", [run_id])
    return replace(target, judged="")


def _targets(results: Path, night: str, run_ids: list[str]) -> list[Target]:
    """The runs of a night, and those of ``run_ids`` without one."""
    given = {"night": night, "runs": run_ids, "by_hand": BY_HAND, "unchanged": UNCHANGED}
    rows = store.query(results, packaged_sql("nights.sql")["targets"], given)
    return [Target(*row) for row in rows.itertuples(index=False)]


def last_good(results: Path, run_id: str) -> tuple[str, str]:
    """(run_id of the newest earlier run of the same model and suite that isn't in breach, or '';
    the reason if there is none).

    Runs on the same benchmark are preferred. A run is in breach while it has a BREACH verdict that
    no user has accepted.
    """
    run = store.run_of(results, run_id)
    names = ("model", "suite", "finished_at", "run_id", "benchmark_id")
    sql = packaged_sql("nights.sql")["earlier"]
    earlier = store.query(results, sql, {name: run[name] for name in names})
    if earlier.empty:
        return "", FIRST_RUN
    good = list(earlier["run_id"][~earlier["in_breach"]])
    if not good:
        named, *more = earlier["run_id"]
        why = f"the only earlier run, {named}, is in breach; accept it"
        if more:
            named, why = "RUN", f"all {len(earlier)} earlier runs are in breach; accept one"
        return "", f"{why}: sdgbias gate accept {named} --reason TEXT"
    gone = store.dropped(results, good)
    newest = next((name for name in good if name not in gone), "")
    return newest, "" if newest else _REMOVED


def named(results: Path, run_id: str, baseline: str) -> str:
    """``baseline`` if it is comparable with the run. Raises UsageError, StoreError."""
    run, other = (store.run_of(results, name) for name in (run_id, baseline))
    for what in ("model", "suite"):
        if run[what] != other[what]:
            raise UsageError(
                f"--baseline {baseline} is of {what} {other[what]!r}, run {run_id} of"
                f" {run[what]!r}; name a run of the same one"
            )
    if run_id == baseline:
        raise UsageError(f"--baseline {baseline} is the run itself; name an earlier one")
    return baseline


def accept(results: Path, run_id: str, reason: str, now: datetime) -> tuple[int, str]:
    """Mark a run's breaches as accepted, which makes it valid as a baseline again. Returns the
    number of breaches, and the reason of an earlier acceptance, which this one replaces, or ''.
    Raises StoreError (no such run), UsageError (no breach, or no reason)."""
    before = by_hand(results, run_id).accepted
    if not reason.strip() or "\n" in reason.strip():
        raise UsageError("--reason: state in one line why this breach is accepted")
    # each once, however many nights found it
    sql = f"""SELECT count(DISTINCT (rule, task, test, method, level, metric, side)) AS n
              FROM verdicts WHERE run_id = ? AND verdict = '{BREACH}' AND rule <> '{UNCHANGED}'"""
    many = int(store.query(results, sql, [run_id])["n"][0])
    if not many:
        raise UsageError(f"{run_id}: no verdict is {BREACH}; nothing to accept")
    row = {"run_id": run_id, "accepted_at": now, "reason": reason.strip()}
    store.upsert(results, {"accepted": pd.DataFrame([row])})
    return many, before
