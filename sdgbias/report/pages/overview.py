"""The overview: what holds across models, the leaderboard of both suites, trends over nights, which
way models lean without evidence, and where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, leaderboard, matrix
from sdgbias.report.charts import paper
from sdgbias.report.data import ReportData
from sdgbias.report.layout import STATIC, Page, terms_in
from sdgbias.report.leaderboard import Board
from sdgbias.report.source import Reader
from sdgbias.suites.facet import NOT_UNDERSTOOD
from sdgbias.suites.facet_groups import HEADLINE
from sdgbias.types import CONTEXT_NAMES, FACET, PILLARS, SDG

#: Days in the trends.
WINDOW = 30
#: Columns of a model's newest run on a day.
DAY = ("run_id", "model", "provenance", "finished_at", "night", "began", "fresh")
#: Terms that the template itself uses.
WORDS = ("T1 T2 T3 T4 T5 Q-only CTX+Q Full CADE Disparity Planted p1", "Holm")


def context(
    reader: Reader,
    among: Sequence[str] | None = None,
    board: Board | None = None,
    checks: str = "",
    absent: tuple[Sequence[str], Sequence[str]] = ((), ()),
    found: ReportData | None = None,
) -> dict[str, Any]:
    """Data of overview.html.j2. ``among``: only these runs. ``board``: paired differences of every
    pair, shown when two models are ticked. ``checks``: link to the benchmark's Data Docs.
    ``absent``: titles of the pages, and models, that lack an analysis.
    ``found``: the newest runs on places, where they have been read."""
    table = matrix.matrix(reader, among)
    runs = [r["runs"][SDG] for r in table["rows"] if r["runs"].get(SDG)]
    if not runs:
        found = None
    elif found is None:
        found = data.load(reader.results.path, runs)
    if board is not None:
        _letter(table, board)
    planted = [r["model"] for r in table["rows"] if r["provenance"] == "planted"]
    said, behind = headlines(table, found), provenance(reader, table)
    return {
        "table": table,
        "headlines": said,
        "words": terms_in(*(text for both in said for text in both), *WORDS),
        "pairs": inline(pairs(board) if board is not None else {}),
        "board_script": script(),
        "checks": checks,
        "absent": absent[0],
        "unanalysed": absent[1],
        "trends": trends(reader, table, among),
        "leans": leans(found) if found else [],
        "pillars": PILLARS,
        "prompts": found.prompts.to_dict("records") if found else [],
        "bias": paper.figure4(found) if found else [],
        "image_use": paper.figure5(found) if found else [],
        "planted": planted,
        "mixed": [s for s, ids in table["benchmarks"].items() if len(ids) > 1],
        "synthetic": found is not None
        and any(_config(c).get("synthetic") for c in found.runs["config"]),
        "date": labels.when(max((r["finished_at"] for r in behind), default=None)),
        "runs": behind,
        "licences": sorted({str(r["licence"]) for r in behind if r["licence"]}),
        "all_synthetic": all(_config(r["config"]).get("synthetic") for r in behind),
        "quarantine": found.quarantine.to_dict("records") if found else [],
        "failures": found.failures.to_dict("records") if found else [],
        "context_names": ", ".join(CONTEXT_NAMES.values()),
    }


def _config(text: object) -> dict[str, Any]:
    made: dict[str, Any] = labels.parsed(str(text or ""))
    return made


def provenance(reader: Reader, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs behind the leaderboard, in its order, with what they were made from."""
    ids = [run for r in table["rows"] for run in r["runs"].values()]
    rows = reader.ask("SELECT * FROM runs WHERE list_contains(?::VARCHAR[], run_id)", [ids])
    by = {r["run_id"]: r for r in rows}
    return [by[run] | {"extra_prompts": extra_prompts(by[run])} for run in ids]


def extra_prompts(run: Mapping[Any, Any]) -> int:
    """Distinct prompts of a run used only by extra prompts; the paper's views don't count them."""
    return int((_config(run["config"]).get("extra") or {}).get("prompts", 0))


# ----------------------------------------------------------------------
# what holds across models


def headlines(table: Mapping[str, Any], found: ReportData | None) -> list[tuple[str, str]]:
    """(sentence, evidence) across models: who is most accurate, which way models lean, what CADE
    does, whom models recognise. About measured models; about planted ones where there are no
    others. Each follows from intervals by a stated rule."""
    rows = [r for r in table["rows"] if r["provenance"] != "planted"] or list(table["rows"])
    made = [
        _most(table, rows, SDG, "questions about places", "answers most rightly"),
        _leaning(rows, found),
        _cade(table, rows),
        _most(table, rows, FACET, "pictures of people", "recognises most"),
        _apart(table, rows),
    ]
    return [h for h in made if h is not None]


def _column(
    table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], suite: str, metric: str
) -> list[tuple[str, dict[str, Any]]]:
    """(model, cell) of the first column of a suite with this metric, where there is a value."""
    at = next(
        (i for i, c in enumerate(table["columns"]) if (c.suite, c.metric) == (suite, metric)), None
    )
    if at is None:
        return []
    shown = [(r["model"], r["cells"][at]) for r in rows]
    return [(m, c) for m, c in shown if c["sort"] is not None and not c["other"]]


def _most(
    table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], suite: str, what: str, does: str
) -> tuple[str, str] | None:
    known = _column(table, rows, suite, matrix.HEADLINE[suite])
    if not known:
        return None
    name, top = max(known, key=lambda k: k[1]["sort"])
    if len(known) == 1:
        return f"{name} is the only model measured on {what}", top["said"]
    others = matrix.reach(top, [cell for _, cell in known])
    if others == 0:
        return f"Of {len(known)} models on {what}, {name} {does}", top["said"]
    return (
        f"Of {len(known)} models on {what}, none is the best beyond its interval",
        f"{name} comes first: {top['said']}; {others} of the {len(known) - 1} others can’t be told"
        " apart from it by these intervals",
    )


def _leaning(rows: Sequence[Mapping[str, Any]], found: ReportData | None) -> tuple[str, str] | None:
    if found is None:
        return None
    names = {r["model"] for r in rows}
    said = {m: v for m in found.models if m in names and (v := labels.leaning(found, m))}
    if not said:
        return None
    ways: dict[str, list[str]] = {}
    for model, verdicts in said.items():
        for way in sorted(
            {v.verdict.split(" ")[1] for v in verdicts if v.verdict.startswith("leans ")}
        ):
            ways.setdefault(way, []).append(model)
    behind = f"{labels.prompts([v for verdicts in said.values() for v in verdicts])} in each pillar"
    if not ways:
        return (
            "Without any evidence, no lean can be stated for any model",
            f"{behind}; a lean needs six, and intervals that don’t overlap",
        )
    leaning = {m for models in ways.values() for m in models}
    return (
        "Models that lean in at least one pillar without any evidence:"
        f" {len(leaning)} of {len(said)}",
        "; ".join(f"{way}: {', '.join(models)}" for way, models in ways.items()) + f"; {behind}",
    )


def _cade(table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    known = _column(table, rows, SDG, "accuracy_gain")
    if not known:
        return None
    sign = {m: labels.sign_of(Estimate.of_row(c["row"])) for m, c in known}
    up, down = ([m for m, s in sign.items() if s == way] for way in (1, -1))
    parts = [f"raises: {', '.join(up)}"] * bool(up) + [f"lowers: {', '.join(down)}"] * bool(down)
    alone = "; ".join(
        [*parts, "for the others the interval of the change holds zero"][: 2 + len(parts)]
        if len(up) + len(down) < len(known)
        else parts
    )
    return (
        f"Models whose accuracy CADE raises: {len(up)} of {len(known)}; lowers: {len(down)}",
        alone,
    )


def _apart(table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Models with a disparity whose interval excludes zero, and those that were not understood."""
    columns = [(i, c) for i, c in enumerate(table["columns"]) if c.metric == "disparity"]
    asked = [r for r in rows if r["runs"].get(FACET)]
    if not columns or not asked:
        return None
    known = [r for r in asked if any(r["cells"][i]["sort"] is not None for i, _ in columns)]
    apart = [r for r in known if any(r["cells"][i]["mark"] for i, _ in columns)]
    silent = [
        r["model"]
        for r in asked
        if r not in known and any(NOT_UNDERSTOOD in r["cells"][i]["why"] for i, _ in columns)
    ]
    found = [
        (abs(r["cells"][i]["sort"]), r["model"], r["cells"][i])
        for r in apart
        for i, _ in columns
        if r["cells"][i]["mark"]
    ]
    said = [_widest(found)] if found else []
    said += [f"no answer understood, so nothing to say: {', '.join(silent)}"] if silent else []
    if not known:
        return "No model gave an answer about people that was understood", ", ".join(silent)
    return (
        "Models that recognise one group of people measurably more often than the other (prompt"
        f" {HEADLINE[2]}, all classes, Holm over the attributes): {len(apart)} of {len(known)}",
        "; ".join(said) or "no difference of an attribute is beyond chance",
    )


def _widest(found: Sequence[tuple[float, str, Mapping[str, Any]]]) -> str:
    """The largest of several differences, which is called the widest only where its interval lies
    beyond those of all others, whatever their signs."""
    at = max(range(len(found)), key=lambda i: found[i][:2])
    _, model, top = found[at]

    def ends(cell: Mapping[str, Any]) -> list[float]:
        return sorted(abs(cell["row"][end]) for end in ("ci_low", "ci_high"))

    reach = sum(ends(cell)[1] >= ends(top)[0] for i, (_, _, cell) in enumerate(found) if i != at)
    if not reach:
        return f"widest: {model}, {top['said']}"
    return f"the largest estimate: {model}, {top['said']}; {reach} more can’t be told apart from it"


def leans(found: ReportData) -> list[dict[str, Any]]:
    """A row per model; cells: the lean on each pillar, None where there is none."""
    made = []
    for model, title, kind in found.runs[["model", "title", "provenance"]].itertuples(
        index=False, name=None
    ):
        said = {v.pillar: v for v in labels.leaning(found, model)}
        cells = [said.get(p) for p in PILLARS]
        if any(cells):
            made.append(
                {"model": model, "title": title or model, "provenance": kind, "cells": cells}
            )
    return sorted(made, key=lambda r: (r["provenance"] == "planted", r["model"]))


# ----------------------------------------------------------------------
# two models, and nights


def _letter(table: Mapping[str, Any], board: Board) -> None:
    """The letters of the paired tests beside each accuracy."""
    own = board.places[
        (board.places["method"] == "Full") & (board.places["test"] == data.ALL_TESTS)
    ]
    letters = dict(zip(own["model"].str.removesuffix(" (planted)"), own["letters"], strict=True))
    at = next((i for i, c in enumerate(table["columns"]) if c.metric == "accuracy"), None)
    for row in table["rows"]:
        if at is not None:
            row["cells"][at]["letters"] = letters.get(row["model"], "")


def pairs(board: Board) -> dict[str, str]:
    """'A|B' -> the paired difference of A and B in words, Full over all tests."""
    own = board.pairs[(board.pairs["method"] == "Full") & (board.pairs["test"] == data.ALL_TESTS)]
    made = {}
    for r in own.to_dict("records"):
        one, other = (str(r[k]).removesuffix(" (planted)") for k in ("one", "other"))
        e = Estimate.of_row(r)
        p = "p < 0.001" if r["p"] < 0.001 else f"p {r['p']:.3f}"
        verdict = "differ" if r["p"] < 0.05 else "can’t be told apart"
        made[f"{one}|{other}"] = (
            f"On the same questions {one} and {other} {verdict}: accuracy (Full, all tests) of the"
            f" first minus the second {labels.number(100 * e.value, signed=True)} points"
            f" {labels.aside(e, signed=True)}, {p} (Holm, over all pairs). Smallest difference that"
            f" the test would find: {labels.number(100 * r['mde'])} points."
        )
    return made


def trends(
    reader: Reader, table: Mapping[str, Any], among: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Per suite the first number of the leaderboard over the last days with a run: title, about,
    plots, names, said. Models without a number there now have no line.

    From runs alone, up to the newest one that is shown: the page of an earlier moment then has the
    same lines, whatever nights were recorded since.
    """
    made = []
    last = max((r["finished_at"] for r in matrix.newest(reader, among)), default=datetime.min)
    for suite, ids in table["benchmarks"].items():
        at, column = next((i, c) for i, c in enumerate(table["columns"]) if c.suite == suite)
        order = [r["model"] for r in table["rows"] if r["cells"][at]["sort"] is not None]
        chosen = dict(zip(leaderboard.CHOICES, column.cell, strict=True))
        days = [r for i in ids for r in _days(reader, suite, i, last) if r["model"] in order]
        times = {r["night"]: r["began"] for r in sorted(days, key=lambda r: str(r["night"]))}
        asked = pd.DataFrame(days, columns=DAY)
        rows = leaderboard.history(asked, leaderboard.numbers(reader, chosen, asked))
        series, wide = leaderboard.drawn(rows, times, column.metric, order)
        if any(len(one.at) > 1 for one in series.values()):
            made.append(
                {
                    "id": f"trend-{suite}",
                    "title": f"{column.title}, {labels.SUITES.get(suite, suite)}",
                    "about": column.about,
                    "plots": wide,
                    "names": list(series),
                    "said": leaderboard.summary(series, column.metric),
                }
            )
    return made


def _days(reader: Reader, suite: str, benchmark: str, last: datetime) -> list[dict[str, Any]]:
    """A row per model and day of the last ``WINDOW`` days on which any model was scored: its newest
    run by then, as leaderboard.nights_asked has it."""
    runs = reader.ask(
        """SELECT run_id, model, provenance, finished_at FROM runs WHERE suite = ? AND
           benchmark_id = ? AND finished_at <= ? ORDER BY finished_at, run_id""",
        [suite, benchmark, last],
    )
    days = sorted({r["finished_at"].date() for r in runs})[-WINDOW:]
    made: list[dict[str, Any]] = []
    now: dict[str, dict[str, Any]] = {}
    at = 0
    for day in days:
        while at < len(runs) and runs[at]["finished_at"].date() <= day:
            now[runs[at]["model"]] = runs[at]
            at += 1
        began = datetime.combine(day, datetime.min.time())
        made += [
            r | {"night": f"{day}", "began": began, "fresh": r["finished_at"].date() == day}
            for _, r in sorted(now.items())
        ]
    return made


def context_without_places(
    reader: Reader,
    among: Sequence[str] | None,
    runs: pd.DataFrame,
    beside: Sequence[Page],
    what: str,
) -> dict[str, Any]:
    """Data of people_alone.html.j2, the overview of results without the first suite: it states
    what they cover, and shows the leaderboard if they are of people. runs: with label and data."""
    table = matrix.matrix(reader, among)
    return {
        "table": table,
        "headlines": headlines(table, None),
        "runs": runs.to_dict("records"),
        "beside": beside,
        "what": what,
        "date": labels.when(runs["finished_at"].max()),
        "pairs": inline({}),
        "board_script": script(),
    }


def script() -> str:
    """What sorts the leaderboard and compares two ticked models."""
    return (STATIC / "board.js").read_text(encoding="utf-8")


def inline(value: object) -> str:
    """JSON for a script element: '<' can't end it early, and the two separators are line ends to
    old JavaScript engines."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
