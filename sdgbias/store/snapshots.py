"""The results at an earlier moment: which runs and which night existed then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sdgbias import store
from sdgbias.errors import StoreError, UsageError


@dataclass(frozen=True)
class Snapshot:
    """The contents at an earlier moment: ids of the finished runs, oldest first, and the last night
    until then ('' none)."""

    runs: tuple[str, ...]
    night: str = ""


def snapshot_at(results: Path, when: str) -> Snapshot:
    """The contents at the end of a night (2026-11-21T0130) or of a day in UTC (2026-11-21).

    Raises StoreError for a night that is not in the file or before any finished run, UsageError for
    anything else.
    """
    unknown = UsageError(f"{when!r} is neither a night (2026-11-21T0130) nor a date (2026-11-21)")
    if re.fullmatch(r"\d{4}-\d\d-\d\d", when):
        try:
            until = datetime.fromisoformat(when) + timedelta(days=1)
        except ValueError:
            raise unknown from None
    elif re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}(?:-\d)?", when):
        sql = """SELECT coalesce(finished_at, (SELECT max(finished_at) FROM night_outcomes m WHERE
                 m.night = n.night), started_at) AS until
                 FROM nights n WHERE night = ?"""
        found = store.query(results, sql, [when])["until"]
        if found.empty:
            newest = "SELECT night FROM nights ORDER BY night DESC LIMIT 5"
            known = store.query(results, newest)["night"]
            raise StoreError(
                f"{results}: no night {when}; the newest:"
                f" {', '.join(known) or 'none yet (give a date: 2026-11-21)'}"
            )
        until = found[0].to_pydatetime() + timedelta(microseconds=1)
    else:
        raise unknown
    sql = "SELECT run_id FROM runs WHERE finished_at < ? ORDER BY finished_at, run_id"
    runs = tuple(store.query(results, sql, [until])["run_id"])
    if not runs:
        raise StoreError(
            f"{results}: no run was finished by {when}; sdgbias results --sql 'SELECT run_id,"
            " finished_at FROM runs' lists them"
        )
    if "T" in when:
        return Snapshot(runs, when)
    sql = "SELECT coalesce(max(night), '') AS night FROM nights WHERE started_at < ?"
    return Snapshot(runs, str(store.query(results, sql, [until])["night"][0]))


def only(results: Path, run_ids: Sequence[str]) -> Snapshot:
    """A snapshot of exactly these runs. Raises StoreError for an unknown run, UsageError for two of
    one model on one benchmark."""
    known = store.query(
        results,
        "SELECT run_id, model, benchmark_id FROM runs WHERE finished_at IS NOT NULL AND"
        " list_contains(?, run_id)",
        [list(run_ids)],
    )
    for run_id in run_ids:
        if run_id not in set(known["run_id"]):
            raise StoreError(
                f"{results}: no finished run {run_id!r}; sdgbias results --sql 'SELECT run_id,"
                " model FROM runs' lists them"
            )
    twice = known[known.duplicated(["model", "benchmark_id"])]
    if len(twice):
        raise UsageError(
            f"--run: two runs of {twice['model'].iloc[0]} on one benchmark; a report shows one run"
            " of a model"
        )
    return Snapshot(tuple(run_ids))
