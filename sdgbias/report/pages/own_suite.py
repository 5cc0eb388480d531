"""The page of suites defined by user folders of questions: accuracy by view and method, groups and
their disparity, letters. All numbers with n and interval, from the results file alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sdgbias import wording
from sdgbias.methods.stats import Estimate
from sdgbias.report.reader import SQL, Reader, Row, blank, parsed
from sdgbias.suites import SUITES
from sdgbias.vocabulary import METHODS
from sdgbias.wording import p_value

_COLUMNS = ("q_only", "ctx_q", "img_q", "full_generated", "full", "cade")
HEADS = [METHODS[method] for method in _COLUMNS]


def runs_of(reader: Reader, among: Sequence[str] | None = None) -> list[Row]:
    """The newest finished run of each model in each such suite, with label (of the model) and data
    (the suite's title)."""
    runs = reader.ask(SQL["own-runs"], {"known": list(SUITES), "among": among})
    return [run | {"data": facts(run).get("title") or run["suite"]} for run in runs]


def facts(run: Row) -> dict[str, Any]:
    """The facts that a run stored from its benchmark's card (suites/own.noted)."""
    noted = parsed(run["config"]).get("own")
    return noted if isinstance(noted, dict) else {}


def context(
    reader: Reader, runs: Sequence[Row], checked: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Data of own.html.j2. ``runs``: as `runs_of` gives them. checked: suite -> its quality page,
    '' without."""
    sql = SQL["own-numbers"]
    rows = reader.ask(sql, {"runs": [run["run_id"] for run in runs]})
    suites = [
        _suite(name, list(of_suite), rows) for name, of_suite in groupby(runs, lambda r: r["suite"])
    ]
    return {
        "suites": [s | {"checked": (checked or {}).get(s["name"], "")} for s in suites],
        "heads": HEADS,
    }


def _suite(name: str, runs: list[Row], numbers: Sequence[Row]) -> dict[str, Any]:
    """One suite's part of the page."""
    first, models = facts(runs[0]), {run["run_id"]: run["label"] for run in runs}
    left = dict(first.get("views_left_out") or {})
    notes = [f"View {METHODS.get(view, view)} is left out: {why}." for view, why in left.items()]
    if first.get("cade_left_out"):
        notes.append(f"CADE is left out: {first['cade_left_out']}.")
    parts: dict[str, list[Row]] = {}
    for row in numbers:
        if row["run_id"] in models:
            parts.setdefault(row["part"], []).append(row)
    return {
        "name": name,
        "title": runs[0]["data"],
        "version": first.get("version", ""),
        "unit": first.get("cluster_by") or "question",
        "notes": notes,
        "accuracy": _table(parts.get("accuracy", ()), models, _titled),
        "groups": _table(parts.get("groups", ()), models, lambda r: wording.group(r["pillar"])),
        "changes": [
            {"model": models[r["run_id"]], "name": r["attribute"], "cell": _cell(r)}
            | {"p": p_value(r["p"])}
            for r in parts.get("changes", ())
        ],
        "letters": _table(parts.get("letters", ()), models, _titled),
        "runs": runs,
    }


def _titled(row: Row) -> str:
    return wording.title(row["metric"])


def _table(
    rows: Sequence[Row], models: Mapping[str, str], name: Callable[[Row], str]
) -> list[dict[str, Any]]:
    """Rows (model, name, cells by method) in the order of _COLUMNS; '' if there is no number."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((row["run_id"], name(row)), {})[row["method"]] = _cell(row)
    return [
        {"model": models[run], "name": of, "cells": [by.get(method, "") for method in _COLUMNS]}
        for (run, of), by in sorted(cells.items())
    ]


def _cell(row: Row) -> str:
    """A share as percent, or a signed difference in points, with its interval and n. A study's
    differences have their unit in the note above them."""
    if blank(row):
        counted = f" (n {int(row['n'])})" if row["n"] else ""
        return f"{row['missing_reason']}{counted}"
    shown = wording.written(Estimate.of_row(row), row["metric"])
    return (
        f"{shown.value}{'' if row['study'] == 'groups' else shown.unit} [{shown.ci}], n {shown.n}"
    )
