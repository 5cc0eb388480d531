"""Selection of the runs to judge and of their baselines, and acceptance of breaches by users."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.nights import BREACH, UNCHANGED
from sdgbias.analysis.run import row_of
from sdgbias.errors import UsageError, one_of

#: Why there is no baseline: no earlier run of the model at all.
FIRST_RUN = "first run: nothing to compare with yet"
#: Prefix in column ``night`` for verdicts that belong to no night.
BY_HAND = "run:"
_REMOVED = "the answers of all earlier runs were removed by `sdgbias store keep`"


@dataclass(frozen=True)
class Target:
    """A run to judge. night: its id, or run:RUN_ID without one. judged: an earlier night in which
    this run was judged, '' if none."""

    night: str
    model: str
    suite: str
    run_id: str
    judged: str = ""


def of_night(results: Path, night: str = "", model: str = "") -> list[Target]:
    """The published and unchanged runs of a night (default: the newest); without any nights, the
    newest run of each model.

    Raises UsageError for an unknown night or model.
    """
    nights = list(
        store.query(results, "SELECT night FROM nights ORDER BY started_at, night")["night"]
    )
    if night and night not in nights:
        raise UsageError(
            one_of("night", night, nights[-10:])
            + (f" and {len(nights) - 10} earlier ones" if len(nights) > 10 else "")
        )
    given: object = night or (nights[-1] if nights else suites.newest_runs(results))
    of = (
        "night, model, suite, run_id FROM night_outcomes WHERE night = $given AND"
        " outcome IN ('published', 'unchanged') AND coalesce(run_id, '') <> ''"
        if nights
        else f"'{BY_HAND}' || run_id AS night, model, suite, run_id FROM runs"
        " WHERE list_contains($given, run_id)"
    )
    sql = f"""SELECT t.*, coalesce(max(v.night), '') AS judged FROM (SELECT {of}) t
              LEFT JOIN verdicts v ON v.run_id = t.run_id AND v.night <> t.night AND
              v.rule <> '{UNCHANGED}' AND NOT starts_with(v.night, '{BY_HAND}')
              GROUP BY ALL ORDER BY model, suite"""
    rows = store.query(results, sql, {"given": given}).itertuples(index=False)
    targets = [Target(*map(str, row)) for row in rows]
    models = {t.model for t in targets}
    if model and model not in models:
        raise UsageError(one_of("model with a run in this night", model, models))
    return [t for t in targets if model in ("", t.model)]


def by_hand(results: Path, run_id: str) -> Target:
    """One run, judged even if it was judged before. Raises UsageError if it doesn't exist."""
    run = row_of(results, run_id, UsageError)
    return Target(BY_HAND + run_id, str(run["model"]), str(run["suite"]), run_id)


def last_good(results: Path, run_id: str) -> tuple[str, str]:
    """(run_id of the newest earlier run of the same model and suite that isn't in breach, or '';
    the reason if there is none).

    Runs on the same benchmark are preferred. A run is in breach while it has a BREACH verdict that
    no user has accepted.
    """
    run = row_of(results, run_id, UsageError)
    sql = """SELECT run_id FROM runs WHERE model = $model AND suite = $suite
             AND finished_at < $finished_at AND run_id <> $run_id
             ORDER BY benchmark_id = $benchmark_id DESC, finished_at DESC, run_id DESC"""
    names = ("model", "suite", "finished_at", "run_id", "benchmark_id")
    earlier = list(store.query(results, sql, {name: run[name] for name in names})["run_id"])
    if not earlier:
        return "", FIRST_RUN
    bad = in_breach(results)
    if not (good := [name for name in earlier if name not in bad]):
        why = f"all {len(earlier)} earlier runs are in breach; accept one"
        return "", f"{why}: sdgbias gate accept RUN --reason TEXT"
    gone = store.dropped(results, good)
    newest = next((name for name in good if name not in gone), "")
    return newest, "" if newest else _REMOVED


def named(results: Path, run_id: str, baseline: str) -> str:
    """``baseline`` if it is comparable with the run. Raises UsageError."""
    run, other = (row_of(results, name, UsageError) for name in (run_id, baseline))
    for what in ("model", "suite"):
        if run[what] != other[what]:
            raise UsageError(
                f"--baseline {baseline} is of {what} {other[what]!r}, run {run_id} of"
                f" {run[what]!r}; name a run of the same one"
            )
    if run_id == baseline:
        raise UsageError(f"--baseline {baseline} is the run itself; name an earlier one")
    return baseline


def in_breach(results: Path) -> set[str]:
    """Runs with a BREACH verdict that no user has accepted."""
    sql = (
        f"SELECT DISTINCT run_id FROM verdicts WHERE verdict = '{BREACH}' AND run_id NOT IN (SELECT"
        " run_id FROM accepted)"
    )
    return set(store.query(results, sql)["run_id"])


def accepted(results: Path) -> dict[str, str]:
    """Run -> the reason for which a user accepted its breaches."""
    rows = store.query(results, "SELECT run_id, reason FROM accepted")
    return dict(zip(rows["run_id"], rows["reason"], strict=True))


def accept(results: Path, run_id: str, reason: str, now: datetime) -> int:
    """Mark a run's breaches as accepted, which makes it valid as a baseline again. Returns the
    number of rows in breach. Raises UsageError: no such run, no breach, or no reason."""
    row_of(results, run_id, UsageError)
    if not reason.strip() or "\n" in reason.strip():
        raise UsageError("--reason: state in one line why this breach is accepted")
    sql = f"SELECT count(*) AS n FROM verdicts WHERE run_id = ? AND verdict = '{BREACH}'"
    many = int(store.query(results, sql, [run_id])["n"][0])
    if not many:
        raise UsageError(f"{run_id}: no verdict is {BREACH}; nothing to accept")
    row = {"run_id": run_id, "accepted_at": now, "reason": reason.strip()}
    store.upsert(results, {"accepted": pd.DataFrame([row])})
    return many
