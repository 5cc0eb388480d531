"""Tables K and L: what the four views cost, from the seconds that a run's batches took."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Row, number
from sdgbias.analysis.paper.numbered import VIEWS
from sdgbias.analysis.paper.results import PaperResults, Run
from sdgbias.scoring.timing import DECODE, FORCE, SCORE
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES

BEFORE = "not in store: the run is of a version that kept no times"
NO_LENGTHS = "not in store: prompt lengths are missing"


def _times(e: PaperResults) -> pd.DataFrame:
    return e.ask(
        """FROM timings WHERE list_contains($runs, run_id)
           AND "view" IN ('q_only', 'ctx_q', 'img_q', 'full') ORDER BY ALL"""
    )


def _of(times: pd.DataFrame, run: Run, task: str) -> pd.DataFrame:
    return times[(times["run_id"] == run.run_id) & (times["task"] == task)]


def _missing(run: Run, rows: pd.DataFrame, timed: bool, views: int) -> str:
    """Why these rows give no time, '' if they do. ``views``: how many views they need."""
    if not timed:
        return BEFORE
    if run.language and views > len(set(rows["view"])):
        return NEEDS_PICTURES
    if views > len(set(rows["view"])):
        return NEEDS_SCORES if not run.scored else "not in store: not all views have an answer"
    if untimed := int(rows["untimed"].sum()):
        some = f"{untimed:,} of {int(rows['prompts'].sum()):,} prompts"
        return f"not in store: {some} came from the cache of a version that kept no times"
    return ""


def _full(rows: pd.DataFrame, task: str, scored: bool) -> pd.DataFrame:
    """What plain inference under Full needs: the first token's scores of a multiple-choice
    question, where the model gives any, else the free answer."""
    phase = SCORE if task == "mcq" and scored else DECODE
    return rows[(rows["view"] == "full") & (rows["phase"] == phase)]


def _cade(rows: pd.DataFrame) -> pd.DataFrame:
    """What CADE needs: the scores of the four views and, for a number, the answers of Full."""
    decoded = (rows["task"] == "regression") & (rows["view"] == "full")
    return rows[(rows["phase"] == SCORE) | (decoded & rows["phase"].isin([DECODE, FORCE]))]


def table_k(e: PaperResults) -> Iterator[Row]:
    for r in paper.rows("table_k"):
        if r["metric"] == "relative_cost":
            cells = tuple(
                Cell(paper=paper.find("table_k", method=r["method"], metric=m), status=NOT_RUN)
                for m in ("seconds_per_question", "relative_cost")
            )
            yield Row(("not stated", "not stated", r["row"]), cells)
    times = _times(e)
    for s in e.subjects():
        if s.run is None:
            continue
        timed = s.run.run_id in set(times["run_id"])
        for task in ("mcq", "regression"):
            mine = _of(times, s.run, task)
            if timed and mine.empty:
                continue  # the benchmark has no such questions
            full, cade = _full(mine, task, s.run.scored), _cade(mine)
            why = _missing(s.run, full, timed, 1)
            n = int(full["cells"].sum())
            plain = float(full["seconds_alone"].sum())
            four = _missing(s.run, cade[cade["phase"] == SCORE], timed, len(VIEWS)) or why
            whole = float(cade["seconds_measured"].sum())
            for label, total, reason in (
                ("Full inference", plain, why),
                ("CADE (four views)", whole, four),
            ):
                known = None if reason or not n else total
                each = None if known is None else known / n
                ratio = None if known is None or not plain else known / plain
                cells = tuple(number(x, s.status, n=n, why=reason) for x in (each, ratio))
                yield Row((s.label, task, label), cells)


def table_l(e: PaperResults) -> Iterator[Row]:
    for r in paper.rows("table_l"):
        printed = Cell(paper=paper.find("table_l", method=r["method"]), status=NOT_RUN)
        yield Row(("not stated", r["row"]), (printed, Cell(), Cell()))
    times, tokens = _times(e), _tokens(e)
    for s in e.subjects():
        if s.run is None:
            continue
        mine = times[(times["run_id"] == s.run.run_id) & (times["phase"] == SCORE)]
        timed = s.run.run_id in set(times["run_id"])
        why = NEEDS_SCORES if not s.run.scored else _missing(s.run, mine, timed, 0)
        by_view = {
            str(view): (float(part["seconds_measured"].sum()), int(part["prompts"].sum()))
            for view, part in mine.groupby("view")
        }
        total = sum(seconds for seconds, _ in by_view.values())
        prompts = sum(tokens.get((s.run.run_id, view), (0.0, 0))[0] for view in VIEWS)
        for view, label in reversed(VIEWS.items()):
            absent = s.run.language and view not in by_view
            reason = NEEDS_PICTURES if absent and timed else why
            known = not reason and total > 0 and view in by_view
            seconds, n = by_view[view] if known else (None, None)
            count, asked = tokens.get((s.run.run_id, view), (0.0, 0))
            share = seconds / total if seconds is not None else None
            made = [number(x, s.status, n=n, why=reason) for x in (share, seconds)]
            share = count / prompts if prompts and asked else None
            made.append(number(share, s.status, n=asked, why=reason or NO_LENGTHS))
            yield Row((s.label, label), tuple(made))


def _tokens(e: PaperResults) -> dict[tuple[str, str], tuple[float, int]]:
    """(run, view) -> (prompt tokens, cells)."""
    found = e.ask(
        """SELECT run_id, "view", sum(n_tokens) AS tokens, count(*) AS n FROM scores WHERE
           list_contains($runs, run_id)
           AND "view" IN ('q_only', 'ctx_q', 'img_q', 'full') AND n_tokens > 0 GROUP BY ALL"""
    )
    return {
        (str(r["run_id"]), str(r["view"])): (float(r["tokens"]), int(r["n"]))
        for r in found.to_dict("records")
    }
