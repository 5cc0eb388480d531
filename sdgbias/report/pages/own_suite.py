"""The page of suites defined by user folders of questions: accuracy by view and method, groups and
their disparity, letters. All numbers with n and interval, from the results file alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store
from sdgbias.analysis.night_text import p_value
from sdgbias.methods.stats import Estimate
from sdgbias.report import labels
from sdgbias.suites import SUITES
from sdgbias.vocabulary import METHODS

_COLUMNS = ("q_only", "ctx_q", "img_q", "full_generated", "full", "cade")
HEADS = [METHODS[method] for method in _COLUMNS]


@dataclass(frozen=True)
class Own:
    """runs: rows of ``runs`` with label (of the model) and data (the suite's title), the newest of
    each model in each suite. metrics: their metric rows of test 'all'. changes: what `sdgbias
    analyse` stored on how CADE changes the disparity of each group column."""

    runs: pd.DataFrame
    metrics: pd.DataFrame
    changes: pd.DataFrame


def load(results: Path, among: Sequence[str] | None = None) -> Own | None:
    """Read all data of the page; None if there is no finished run of such a suite."""
    sql = "SELECT DISTINCT suite FROM runs WHERE finished_at IS NOT NULL ORDER BY suite"
    names = [name for name in store.query(results, sql)["suite"] if name not in SUITES]
    chosen = [run for name in names for run in store.latest_runs(results, name, among=among)]
    if not chosen:
        return None

    def ask(sql: str) -> pd.DataFrame:
        return store.query(results, sql, {"runs": chosen}, runs=chosen)

    runs = ask("FROM runs WHERE list_contains($runs, run_id) ORDER BY suite, model")
    own = [facts(config) for config in runs["config"]]
    of_runs = f"FROM {store.NUMBERS} WHERE list_contains($runs, run_id) AND test = 'all'"
    return Own(
        runs.assign(
            label=runs["title"].where(runs["title"] != "", runs["model"]),
            data=[f.get("title") or suite for f, suite in zip(own, runs["suite"], strict=True)],
        ),
        ask(f"{of_runs} AND study = 'headline' ORDER BY ALL"),
        ask(f"{of_runs} AND study = 'groups' AND metric = 'disparity_change' ORDER BY ALL"),
    )


def facts(config: str | None) -> dict[str, Any]:
    """The facts that a run stored from its benchmark's card (suites/own.noted)."""
    found = json.loads(config or "{}").get("own")
    return found if isinstance(found, dict) else {}


def context(own: Own, checked: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Data of own.html.j2. checked: suite -> its quality page, '' without."""
    suites = [_suite(name, part, own) for name, part in own.runs.groupby("suite")]
    return {
        "suites": [s | {"checked": (checked or {}).get(s["name"], "")} for s in suites],
        "heads": HEADS,
    }


def _suite(name: object, runs: pd.DataFrame, own: Own) -> dict[str, Any]:
    """One suite's part of the page."""
    first = facts(runs["config"].iloc[0])
    left = dict(first.get("views_left_out") or {})
    notes = [f"View {METHODS.get(view, view)} is left out: {why}." for view, why in left.items()]
    if first.get("cade_left_out"):
        notes.append(f"CADE is left out: {first['cade_left_out']}.")
    mine = own.metrics[own.metrics["run_id"].isin(runs["run_id"])]
    changes = own.changes[own.changes["run_id"].isin(runs["run_id"])]
    labels_of = dict(zip(runs["run_id"], runs["label"], strict=True))
    pooled = mine[mine["pillar"] == "all"]
    grouped = mine[mine["pillar"] != "all"].assign(group=lambda f: f["pillar"].map(labels.group))
    return {
        "name": name,
        "title": runs["data"].iloc[0],
        "version": first.get("version", ""),
        "unit": first.get("cluster_by") or "question",
        "notes": notes,
        "accuracy": _table(pooled[pooled["metric"] == "accuracy"], labels_of, "metric"),
        "groups": _table(grouped, labels_of, "group"),
        "changes": [
            {
                "model": labels_of[str(r["run_id"])],
                "name": r["attribute"],
                "cell": _cell(r, signed=True),
            }
            | {"p": p_value(r["p"])}
            for r in changes.to_dict("records")
        ],
        "letters": _table(
            pooled[pooled["metric"].str.match(r"(share|recall)_[A-J]$|tie_rate$")],
            labels_of,
            "metric",
        ),
        "runs": runs.to_dict("records"),
    }


def _table(rows: pd.DataFrame, names: Mapping[str, str], column: str) -> list[dict[str, Any]]:
    """Rows (model, name, cells by method) in the order of _COLUMNS; '' if there is no number."""
    made = []
    for (run, name), part in rows.groupby(["run_id", column], sort=True):
        cells = {
            str(r["method"]): _cell(r) for r in part.to_dict("records") if r["method"] in _COLUMNS
        }
        made.append(
            {
                "model": names[str(run)],
                "name": labels.title(str(name)) if column == "metric" else str(name),
                "cells": [cells.get(method, "") for method in _COLUMNS],
            }
        )
    return made


def _cell(row: Mapping[Any, Any], signed: bool = False) -> str:
    """A share as percent, or a signed difference in points, with its interval and n."""
    if pd.isna(row["value"]):
        return f"{row['missing_reason']} (n {int(row['n'])})"
    shown = labels.written(Estimate.of_row(row), "disparity" if signed else "accuracy")
    return f"{shown.value}{'' if signed else shown.unit} [{shown.ci}], n {shown.n}"
