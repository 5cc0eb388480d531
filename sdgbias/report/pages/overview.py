"""The overview: the first screen (`first_screen`), the leaderboard of both suites, trends over
nights, what the picture adds to the context, and where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from sdgbias.analysis.nights import NightRecord
from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, leaderboard, matrix
from sdgbias.report.charts import over_nights, places, still_figure
from sdgbias.report.data import ReportData
from sdgbias.report.layout import STATIC, Page, terms_in
from sdgbias.report.leaderboard import Board
from sdgbias.report.pages import first_screen
from sdgbias.report.pages.disparities import Fairness
from sdgbias.report.source import Reader
from sdgbias.types import CONTEXT_NAMES, SDG

#: Days in the trends.
WINDOW = 30
#: Columns of a model's newest run on a day.
DAY = ("run_id", "model", "provenance", "finished_at", "night", "began", "fresh", "breach")
#: Terms that the template itself uses.
WORDS = ("T1 T2 T3 T4 T5 Q-only CTX+Q Full CADE Disparity Planted p1", "Holm")


def context(
    reader: Reader,
    among: Sequence[str] | None = None,
    board: Board | None = None,
    checks: str = "",
    absent: tuple[Sequence[str], Sequence[str]] = ((), ()),
    found: ReportData | None = None,
    others: tuple[NightRecord | None, Fairness | None] = (None, None),
) -> dict[str, Any]:
    """Data of overview.html.j2. ``among``: only these runs. ``board``: paired differences of every
    pair, shown when two models are ticked. ``checks``: link to the benchmark's quality page.
    ``absent``: titles of the pages, and models, that lack an analysis.
    ``found``: the newest runs on places, where they have been read; ``others``: the
    newest night, and the newest runs on people."""
    table = matrix.matrix(reader, among)
    runs = [r["runs"][SDG] for r in table["rows"] if r["runs"].get(SDG)]
    if not runs:
        found = None
    elif found is None:
        found = data.load(reader.results.path, runs)
    if board is not None:
        _letter(table, board)
    planted = [r["model"] for r in table["rows"] if r["provenance"] == "planted"]
    behind = provenance(reader, table)
    said = first_screen.answers(table, found, others[0], behind, others[1])
    drawn = first_screen.picture(found, [r["model"] for r in table["rows"]]) if found else None
    return {
        "table": table,
        "answers": said,
        "lean": drawn,
        "best": first_screen.best(table),
        "words": terms_in(*(answer.text for answer in said), *WORDS),
        "pairs": inline(pairs(board) if board is not None else {}),
        "board_script": script(),
        "checks": checks,
        "absent": absent[0],
        "unanalysed": absent[1],
        "trends": trends(reader, table, among),
        "prompts": found.prompts.to_dict("records") if found else [],
        "image_use": [still_figure(f) for f in places.image_use(found)] if found else [],
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
        verdict = "differ" if r["p"] < 0.05 else "don’t differ measurably"
        made[f"{one}|{other}"] = (
            f"On the same questions {one} and {other} {verdict}: accuracy (Full, all tests) of the"
            f" first minus the second {labels.written(e, 'accuracy_gain')}, {p} (Holm, over all"
            " pairs). Smallest difference that the test would find:"
            f" {labels.number(100 * r['mde'])} points."
        )
    return made


def trends(
    reader: Reader, table: Mapping[str, Any], among: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Per suite the first number of the leaderboard over the last days with a run: id, title,
    plots. Models without a number there now have no line.

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
        drawn = over_nights.trends(rows, times, column.metric, order)
        if any(one.nights > 1 for one in drawn):
            made.append(
                {
                    "id": f"trend-{suite}",
                    "title": f"{column.title}, {labels.SUITES.get(suite, suite)}",
                    "plots": drawn,
                }
            )
    return made


def _days(reader: Reader, suite: str, benchmark: str, last: datetime) -> list[dict[str, Any]]:
    """A row per model and day of the last ``WINDOW`` days on which any model was scored: its newest
    run by then, as leaderboard.nights_asked has it."""
    runs = reader.ask(
        """SELECT run_id, model, provenance, finished_at, false AS breach FROM runs
           WHERE suite = ? AND benchmark_id = ? AND finished_at <= ?
           ORDER BY finished_at, run_id""",
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
            r
            | {
                "night": f"{day}",
                "began": began,
                "fresh": r["finished_at"].date() == day,
                "breach": False,
            }
            for _, r in sorted(now.items())
        ]
    return made


def context_without_places(
    reader: Reader,
    among: Sequence[str] | None,
    runs: pd.DataFrame,
    beside: Sequence[Page],
    what: str,
    night: NightRecord | None = None,
    faces: Fairness | None = None,
) -> dict[str, Any]:
    """Data of people_alone.html.j2, the overview of results without the first suite: it states
    what they cover, and shows the leaderboard if they are of people. runs: with label and data."""
    table = matrix.matrix(reader, among)
    return {
        "table": table,
        "answers": first_screen.answers(table, None, night, provenance(reader, table), faces),
        "best": first_screen.best(table),
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
