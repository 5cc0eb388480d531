"""The leaderboard of all suites as one matrix: a row per model, a column per headline number, each
with its interval, n and, where several questions share a prompt, its number of distinct prompts.

A number is marked as the highest only where its interval lies above those of all other models of
its kind; a difference is marked where its interval excludes zero, and disparities where they are
measurable among those of all attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sdgbias import store, suites, wording
from sdgbias.files import packaged_yaml
from sdgbias.methods import stats
from sdgbias.methods.stats import Estimate
from sdgbias.report.leaderboard import CHOICES
from sdgbias.report.reader import AMONG, Reader, Row, blank, parsed
from sdgbias.suites.facet_groups import HEADLINE as PEOPLE_CELL
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.suites.rows import FEWER
from sdgbias.types import FACET, SDG
from sdgbias.vocabulary import METHODS, WORDS, metric_word, name_in


@dataclass(frozen=True)
class MatrixColumn:
    """``cell``: task, metric, method, test, pillar, indicator of the number. ``about``: a sentence
    on what it is. ``prompts``: its clusters are distinct prompts, which are shown beside it.
    ``instead``: (label, cell) of what stands in where a model gives no scores."""

    title: str
    suite: str
    cell: tuple[str, ...]
    about: str
    prompts: bool = False
    instead: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def metric(self) -> str:
        return self.cell[1]

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The number's own, then those that stand in for it."""
        return [self.cell, *(cell for _, cell in self.instead)]


def _apart(attribute: str) -> MatrixColumn:
    (one, other), (task, method, prompt, classes) = PAIRS[attribute], PEOPLE_CELL
    return MatrixColumn(
        f"{one.capitalize()} − {other}",
        FACET,
        (task, "disparity", method, prompt, f"{attribute}:{one}-{other}", classes),
        f"Disparity: recall of people annotated as {one} minus recall of those annotated as"
        f" {other}, in points, prompt {prompt}, all classes pooled. 0 means that both are"
        " recognised alike; marked where it is not 0 beyond chance (Holm over the attributes).",
    )


def _column(about: Mapping[str, Any]) -> MatrixColumn:
    instead = tuple((label, tuple(cell)) for label, cell in about.get("instead", {}).items())
    return MatrixColumn(**{**about, "cell": tuple(about["cell"]), "instead": instead})


COLUMNS = (*map(_column, packaged_yaml("leaderboard.yaml")), *map(_apart, PAIRS))
#: What an own suite measures first, by the view with most evidence that it has.
_VIEWS = ("full", "full_generated", "ctx_q", "q_only")


def _own(suite: str) -> tuple[MatrixColumn, ...]:
    """The columns of a suite of own questions."""
    cells = {METHODS[view]: ("mcq", "accuracy", view, "all", "all", "all") for view in _VIEWS}
    (_, full), *instead = cells.items()
    return (
        MatrixColumn(
            "Accuracy",
            suite,
            full,
            "Share of questions answered correctly with picture and context (Full), or by the view"
            " with most evidence that the suite has.",
            instead=tuple(instead),
        ),
        MatrixColumn(
            "CADE gain",
            suite,
            ("mcq", "accuracy_gain", "cade", "all", "all", "all"),
            "Accuracy after debiasing with CADE minus accuracy of Full on the same questions, in"
            " points.",
        ),
    )


def columns_of(suite: str) -> tuple[MatrixColumn, ...]:
    """The headline numbers of a suite."""
    return tuple(c for c in COLUMNS if c.suite == suite) or _own(suite)


#: Suite whose runs are shown on one benchmark -> the number that says whether a run is on it.
_OF_ONE_BENCHMARK = {FACET: next(c.cell for c in COLUMNS if c.metric == "recall")}
_TITLES = {SDG: "Questions about places", FACET: "Pictures of people"}


def newest(reader: Reader, among: Sequence[str] | None = None) -> list[Row]:
    """The newest finished run of each model on each benchmark of a suite, newest first."""
    return reader.ask(
        f"""SELECT run_id, model, title, provenance, suite, benchmark_id, finished_at, config
            FROM runs WHERE finished_at IS NOT NULL AND {AMONG}
            QUALIFY row_number() OVER (PARTITION BY model, suite, benchmark_id
            ORDER BY finished_at DESC, run_id DESC) = 1
            ORDER BY finished_at DESC, run_id DESC""",
        {"among": among},
    )


def matrix(reader: Reader, among: Sequence[str] | None = None) -> dict[str, Any]:
    """titles: suite -> title; groups: (title, number of columns); columns; rows (model, title,
    provenance, runs: suite -> run_id, cells as in `_cell`), the most accurate first and planted
    models last; benchmarks: suite -> those behind the numbers (more than one: models are not
    comparable).

    Of the people suite the benchmark on which most models were asked for classes, the newest of
    these. ``among``: only these runs.
    """
    runs = newest(reader, among)
    names = suites.in_order({r["suite"] for r in runs})
    every = [c for suite in names for c in columns_of(suite)]
    numbers = _numbers(reader, [r["run_id"] for r in runs], every)
    chosen = _chosen(runs, numbers)
    here = suites.in_order({suite for _, suite in chosen})
    columns = [c for c in every if c.suite in here and _has_any(c, chosen, numbers)]
    here = [s for s in here if any(c.suite == s for c in columns)]
    shown = [r for r in runs if (r["model"], r["suite"]) in chosen and r["suite"] in here]
    models = {r["model"]: r for r in reversed(shown)}
    rows = []
    for name, run in models.items():
        by_suite = {s: chosen[name, s] for s in here if (name, s) in chosen}
        rows.append(
            {
                "model": name,
                "title": run["title"] or name,
                "provenance": run["provenance"],
                "runs": {s: r["run_id"] for s, r in by_suite.items()},
                "cells": [_cell(c, by_suite.get(c.suite), numbers) for c in columns],
            }
        )
    rows.sort(key=_rank)
    _mark_highest(columns, rows)
    _mark_apart(columns, rows)
    titles = {s: _TITLES.get(s) or _title(s, chosen) for s in here}
    return {
        "titles": titles,
        "groups": [(title, sum(c.suite == s for c in columns)) for s, title in titles.items()],
        "columns": columns,
        "rows": rows,
        "benchmarks": {
            s: sorted({r["benchmark_id"] for (_, of), r in chosen.items() if of == s}) for s in here
        },
        "prompts": _prompts(columns, rows),
    }


def _title(suite: str, chosen: Mapping[tuple[str, str], Row]) -> str:
    """Of an own suite, as its runs have it."""
    run = next(run for (_, of), run in chosen.items() if of == suite)
    return str((parsed(run["config"]).get("own") or {}).get("title") or suite)


def _has_any(
    c: MatrixColumn,
    chosen: Mapping[tuple[str, str], Row],
    numbers: Mapping[tuple[str, ...], Row],
) -> bool:
    """Whether a column is shown: of an own suite, which may have no CADE, if a run has a number."""
    runs = [run["run_id"] for (_, suite), run in chosen.items() if suite == c.suite]
    return c in COLUMNS or any((run, *cell) in numbers for run in runs for cell in c.cells)


def _numbers(
    reader: Reader, run_ids: Sequence[str], columns: Sequence[MatrixColumn]
) -> dict[tuple[str, ...], Row]:
    """(run_id, *cell) -> the row of the store, for the cells of some columns."""
    rows = reader.ask(
        f"""SELECT run_id, task, metric, method, test, pillar, indicator, "value", n, ci_low,
            ci_high, clusters, missing_reason FROM {store.NUMBERS}
            WHERE study = 'headline' AND run_id IN (SELECT unnest(?::VARCHAR[]))
            AND metric IN (SELECT unnest(?))""",
        [list(run_ids), sorted({c.metric for c in columns})],
    )
    wanted = {cell for c in columns for cell in c.cells}
    numbers = {tuple(r.values())[:7]: r for r in rows}
    return {key: r for key, r in numbers.items() if key[1:] in wanted}


def _chosen(
    runs: Sequence[Row], numbers: Mapping[tuple[str, ...], Row]
) -> dict[tuple[str, str], Row]:
    """(model, suite) -> the run whose numbers are shown."""
    chosen: dict[tuple[str, str], Row] = {}
    for suite in dict.fromkeys(r["suite"] for r in runs):
        candidates = [r for r in runs if r["suite"] == suite]
        if (cell := _OF_ONE_BENCHMARK.get(suite)) is not None:
            candidates = [r for r in candidates if (r["run_id"], *cell) in numbers]
            ids = [r["benchmark_id"] for r in candidates]
            best = max(ids, key=lambda b: (ids.count(b), -ids.index(b)), default="")
            candidates = [r for r in candidates if r["benchmark_id"] == best]
        for r in candidates:
            chosen.setdefault((r["model"], suite), r)
    return chosen


def _cell(
    c: MatrixColumn, run: Row | None, numbers: Mapping[tuple[str, ...], Row]
) -> dict[str, Any]:
    """value, ci, n, said (all of it in words), sort (None without a value), why (in place of a
    value), prompts, mark ('highest', 'apart' or ''), letters
    (of the paired tests, where they were made), other (what it is instead of the column's own
    number, which is then never the highest)."""
    of_run = {} if run is None else {cell: numbers.get((run["run_id"], *cell)) for cell in c.cells}
    row, other = of_run.get(c.cell), ""
    for label, cell in c.instead:
        if blank(row) and not blank(of_run.get(cell)):
            row, other = of_run[cell], label
    texts = ("value", "ci", "n", "prompts", "mark", "letters", "other")
    empty: dict[str, Any] = dict.fromkeys(texts, "") | {"sort": None}
    if run is None or row is None or blank(row):
        why = reason(row)
        return empty | {"why": why, "said": f"{c.title}: {why}"}
    e = Estimate.of_row(row)
    shown = wording.written(e, c.metric)
    counted = wording.many(e.clusters, "prompt") if c.prompts and e.clusters else ""
    prompts = ", ".join(filter(None, (other, counted)))
    aside = shown.aside[1:-1]
    return empty | {
        "value": shown.value,
        "ci": shown.ci,
        "n": shown.n,
        "sort": e.value,
        "prompts": prompts,
        "mark": "apart" if wording.is_difference(c.metric) and wording.sign_of(e) else "",
        "why": "",
        "said": f"{c.title} {shown.value}{shown.unit}, {aside}{f', {prompts}' if prompts else ''}",
        "row": row,
        "other": other,
        # what the page of trends is asked for, to show this number
        "address": {"suite": run["suite"], "benchmark": run["benchmark_id"]}
        | {name: str(row[name]) for name in CHOICES},
    }


def reason(row: Mapping[Any, Any] | None) -> str:
    """Why a number isn't there."""
    if row is None:
        return "not scored"
    why = str(row["missing_reason"] or "no value")
    counted = f" (n {wording.count(row['n'])})" if why == FEWER else ""
    return name_in(WORDS.missing_reasons, why) + counted


def _rank(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    first = row["cells"][0]["sort"] if row["cells"] else None
    return row["provenance"] == "planted", math.inf if first is None else -first, row["model"]


def _mark_highest(columns: Sequence[MatrixColumn], rows: Sequence[dict[str, Any]]) -> None:
    """Marks the number of a column whose interval lies above those of all other models of the same
    kind; none where intervals overlap, or there is one model."""
    for kind in ("measured", "planted"):
        group = [r for r in rows if r["provenance"] == kind]
        for at, c in enumerate(columns):
            if metric_word(c.metric).better != 1 or wording.is_difference(c.metric):
                continue
            cells = [r["cells"][at] for r in group if r["cells"][at]["sort"] is not None]
            cells = [cell for cell in cells if not cell["other"]]
            top = max(cells, key=itemgetter("sort"), default=None)
            if top and len(cells) > 1 and not reach(top, cells):
                top["mark"] = "highest"


def _mark_apart(columns: Sequence[MatrixColumn], rows: Sequence[dict[str, Any]]) -> None:
    """Marks the disparities of a model that are measurable among those of all attributes."""
    at = [i for i, c in enumerate(columns) if c.metric == "disparity"]
    for row in rows:
        cells = [row["cells"][i] for i in at if row["cells"][i]["sort"] is not None]
        family = [Estimate.of_row(cell["row"]) for cell in cells]
        for cell, apart in zip(cells, stats.apart_from_zero(family), strict=True):
            cell["mark"] = "apart" if apart else ""


def reach(top: Mapping[str, Any], cells: Iterable[Mapping[str, Any]]) -> int:
    """How many other cells can't be told apart from this one by their intervals; an estimate
    without an interval can't be told apart from any other."""
    low = top["row"]["ci_low"]
    low = math.nan if low is None else low
    highs = [c["row"]["ci_high"] for c in cells if c is not top]
    return sum(high is None or math.isnan(high) or not high < low for high in highs)


def _prompts(columns: Sequence[MatrixColumn], rows: Iterable[Mapping[str, Any]]) -> str:
    """'18' or '12 to 18' distinct prompts behind the columns that count them; '' for none."""
    return wording.span(
        int(cell["row"]["clusters"])
        for r in rows
        for c, cell in zip(columns, r["cells"], strict=True)
        if c.prompts and cell["prompts"] and not cell["other"]
    )
