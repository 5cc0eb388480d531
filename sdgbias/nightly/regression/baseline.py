"""Selection of the runs to judge and of their baselines, and acceptance of breaches by users."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    if nights:
        sql = """SELECT night, model, suite, run_id FROM night_models WHERE night = ? AND outcome
                 IN ('published', 'unchanged')
                 AND coalesce(run_id, '') <> '' ORDER BY model, suite"""
        found = store.query(results, sql, [night or nights[-1]])
    else:
        ids = suites.newest_runs(results)
        sql = (
            f"SELECT '{BY_HAND}' || run_id AS night, model, suite, run_id FROM runs WHERE"
            " list_contains($ids, run_id) ORDER BY model, suite"
        )
        found = store.query(results, sql, {"ids": ids})
    targets = [
        Target(str(r["night"]), str(r["model"]), str(r["suite"]), str(r["run_id"]))
        for r in found.to_dict("records")
    ]
    if model and model not in {t.model for t in targets}:
        raise UsageError(
            one_of("model with a run in this night", model, {t.model for t in targets})
        )
    judged = (
        _judged(results, [t.run_id for t in targets], targets[0].night)
        if nights and targets
        else {}
    )
    return [
        replace(t, judged=judged.get(t.run_id, ""))
        for t in targets
        if not model or t.model == model
    ]


def by_hand(results: Path, run_id: str) -> Target:
    """One run, judged even if it was judged before. Raises UsageError if it doesn't exist."""
    run = row_of(results, run_id, UsageError)
    return Target(BY_HAND + run_id, str(run["model"]), str(run["suite"]), run_id)


def _judged(results: Path, run_ids: list[str], night: str) -> dict[str, str]:
    """Run -> the newest other night in which this run was judged question by question."""
    sql = f"""SELECT run_id, max(night) AS night FROM verdicts WHERE list_contains($runs, run_id)
              AND night <> $night
              AND rule <> '{UNCHANGED}' AND NOT starts_with(night, '{BY_HAND}') GROUP BY run_id"""
    found = store.query(results, sql, {"runs": run_ids, "night": night})
    return dict(zip(found["run_id"], found["night"], strict=True))


def last_good(results: Path, run_id: str) -> tuple[str, str]:
    """(run_id of the newest earlier run of the same model and suite that isn't in breach, or '';
    the reason if there is none).

    Runs on the same benchmark are preferred. A run is in breach while it has a BREACH verdict that
    no user has accepted.
    """
    run = row_of(results, run_id, UsageError)
    sql = f"""SELECT run_id, run_id IN (SELECT run_id FROM verdicts WHERE verdict = '{BREACH}')
                     AND run_id NOT IN (SELECT run_id FROM accepted) AS bad
              FROM runs WHERE model = $model AND suite = $suite AND finished_at < $at AND run_id <>
              $run
              ORDER BY benchmark_id = $benchmark DESC, finished_at DESC, run_id DESC"""
    asked = {
        "model": run["model"],
        "suite": run["suite"],
        "at": run["finished_at"],
        "run": run_id,
        "benchmark": run["benchmark_id"],
    }
    earlier = store.query(results, sql, asked)
    if earlier.empty:
        return "", FIRST_RUN
    good = earlier[~earlier["bad"].astype(bool)]
    if good.empty:
        return (
            "",
            (
                f"all {len(earlier)} earlier runs are in breach; accept one: sdgbias gate accept"
                " RUN --reason TEXT"
            ),
        )
    gone = store.dropped(results, list(good["run_id"]))
    there = [str(run) for run in good["run_id"] if run not in gone]
    if not there:
        return "", "the answers of all earlier runs were removed by `sdgbias store keep`"
    return there[0], ""


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
    found = store.query(results, "SELECT run_id, reason FROM accepted")
    return dict(zip(found["run_id"], found["reason"], strict=True))


def accept(results: Path, run_id: str, reason: str, now: datetime) -> int:
    """Mark a run's breaches as accepted, which makes it valid as a baseline again. Returns the
    number of rows in breach. Raises UsageError: no such run, no breach, or no reason."""
    row_of(results, run_id, UsageError)
    if not reason.strip() or "\n" in reason.strip():
        raise UsageError("--reason: state in one line why this breach is accepted")
    many = int(
        store.query(
            results,
            f"SELECT count(*) AS n FROM verdicts WHERE run_id = ? AND verdict = '{BREACH}'",
            [run_id],
        )["n"][0]
    )
    if not many:
        raise UsageError(f"{run_id}: no verdict is {BREACH}; nothing to accept")
    store.upsert(
        results,
        {
            "accepted": pd.DataFrame(
                {"run_id": [run_id], "accepted_at": [now], "reason": [reason.strip()]}
            )
        },
    )
    return many
