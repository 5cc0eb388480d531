"""The overview: the first screen (`first_screen`), the leaderboard of both suites, trends over
nights, what the picture adds to the context, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from sdgbias import wording
from sdgbias.analysis.nights import NightRecord
from sdgbias.report import layout, leaderboard, matrix
from sdgbias.report.charts import draw, over_nights, still_figure
from sdgbias.report.layout import STATIC, terms_in
from sdgbias.report.leaderboard import Board
from sdgbias.report.pages import first_screen
from sdgbias.report.reader import SQL, Cells, Reader, parsed
from sdgbias.types import CONTEXT_NAMES

#: Days in the trends.
WINDOW = 30
#: Terms that the template itself uses.
WORDS = ("T1 T2 T3 T4 T5 Q-only CTX+Q Full CADE Disparity Planted p1", "Holm")


def shared(
    reader: Reader, among: Sequence[str] | None, cells: Cells | None, night: NightRecord | None
) -> dict[str, Any]:
    """The first screen: the answers, the leaderboard and its runs. ``among``: only these runs.
    ``cells``: the numbers of the newest runs on places, None where there are none."""
    table = matrix.matrix(reader, among)
    runs = provenance(reader, table)
    return {
        "table": table,
        "answers": first_screen.answers(reader, table, cells, night, runs),
        "best": first_screen.best(table),
        "runs": runs,
    }


def context(
    reader: Reader,
    among: Sequence[str] | None,
    shown: Mapping[str, Any],
    cells: Cells | None,
    board: Board,
) -> dict[str, Any]:
    """Data of overview.html.j2. ``shown``: as `shared` gives it. ``board``: the paired tests behind
    the letters of the leaderboard."""
    table, behind = shown["table"], shown["runs"]
    _letter(table, board)
    on_places = [] if cells is None else [run["run_id"] for run in cells.runs]
    given = {"runs": on_places or [run["run_id"] for run in behind]}
    order = [r["model"] for r in table["rows"]]
    return {
        **shown,
        "lean": cells
        and first_screen.picture(cells, first_screen.right_answers(reader, cells), order),
        "words": terms_in(*(answer.text for answer in shown["answers"]), *WORDS),
        "board_script": (STATIC / "board.js").read_text(encoding="utf-8"),
        "trends": trends(reader, table, among),
        "image_use": map(still_figure, draw.draw(reader, on_places, ["image-use"]).values()),
        "planted": [r["model"] for r in table["rows"] if r["provenance"] == "planted"],
        "mixed": [s for s, ids in table["benchmarks"].items() if len(ids) > 1],
        "synthetic": any(parsed(run["config"]).get("synthetic") for run in cells.runs)
        if cells
        else False,
        "date": wording.when(max((r["finished_at"] for r in behind), default=None)),
        "licences": sorted({str(r["licence"]) for r in behind if r["licence"]}),
        "all_synthetic": all(parsed(r["config"]).get("synthetic") for r in behind),
        "quarantine": reader.ask(SQL["quarantine"], given),
        "failures": reader.ask(SQL["failures"], given),
        "context_names": ", ".join(CONTEXT_NAMES.values()),
    }


def provenance(reader: Reader, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs behind the leaderboard, in its order, with what they were made from."""
    ids = [run for r in table["rows"] for run in r["runs"].values()]
    rows = reader.ask("SELECT * FROM runs WHERE list_contains(?::VARCHAR[], run_id)", [ids])
    by = {r["run_id"]: r for r in rows}
    return [by[run] | {"extra_prompts": extra_prompts(by[run])} for run in ids]


def extra_prompts(run: Mapping[Any, Any]) -> int:
    """Distinct prompts of a run used only by extra prompts; the paper's views don't count them."""
    return int((parsed(run["config"]).get("extra") or {}).get("prompts", 0))


# ----------------------------------------------------------------------
# letters, and nights


def of_all(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a board: Full, all tests; models by the names of the leaderboard."""
    places = frame[(frame["method"] == "Full") & (frame["test"] == wording.ALL_TESTS)]
    return places.replace(r" \(planted\)$", "", regex=True)


def _letter(table: Mapping[str, Any], board: Board) -> None:
    """The letters of the paired tests beside each accuracy."""
    places = of_all(board.places)
    letters = dict(zip(places["model"], places["letters"], strict=True))
    at = next((i for i, c in enumerate(table["columns"]) if c.metric == "accuracy"), None)
    for row in table["rows"]:
        if at is not None:
            row["cells"][at]["letters"] = letters.get(row["model"], "")


def trends(
    reader: Reader, table: Mapping[str, Any], among: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Per suite the first number of the leaderboard over the last days with a run: id, title,
    plots. Models without a number there now have no line.

    From runs alone, up to the newest one that is shown: the page of an earlier moment then has the
    same lines, whatever nights were recorded since.
    """
    charts = []
    last = max((r["finished_at"] for r in matrix.newest(reader, among)), default=datetime.min)
    for suite, ids in table["benchmarks"].items():
        at, column = next((i, c) for i, c in enumerate(table["columns"]) if c.suite == suite)
        order = [r["model"] for r in table["rows"] if r["cells"][at]["sort"] is not None]
        given = {"suite": suite, "benchmarks": ids, "last": last, "models": order}
        scored = reader.frame(SQL["days"], given | {"window": WINDOW})
        times = dict(zip(scored["night"], scored["began"].dt.to_pydatetime(), strict=True))
        chosen = dict(zip(leaderboard.CHOICES, column.cell, strict=True))
        past = leaderboard.history(scored, leaderboard.numbers(reader, chosen, scored["run_id"]))
        drawn = over_nights.trends(past, times, column.metric, order)
        if any(one.nights > 1 for one in drawn):
            title = f"{column.title}, {layout.SUITES.get(suite, suite)}"
            charts.append({"id": f"trend-{suite}", "title": title, "plots": drawn})
    return charts
