"""Routes of the pages about single questions and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, Response

from sdgbias import suites
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import layout, leaderboard
from sdgbias.report.pages import compare, question, questions, runs
from sdgbias.report.reader import Reader, Row
from sdgbias.report.web.routes import Here, Page, Reading, Text, chosen_from, part_of
from sdgbias.report.web.site import Missing
from sdgbias.vocabulary import METHODS

#: Selects in order, each with the values that it prefers.
_SELECTS = {
    "task": ("mcq", "direct"),
    "test": (),
    "method": ("full", "cade", "full_argmax", "q_only"),
}
#: What a select may name, whether or not a run has it.
_EVERY = {*layout.TASKS, *METHODS, "T1", "T2", "T3", "T4", "T5"}
#: What each further parameter may say.
_OPTIONS = {
    "outcome": ["right", "wrong"],
    "direction": list(DIRECTIONS),
    "cade": list(questions.CADE_CHANGES),
    "flipped": ["true"],
}
_SIGNS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


routes = APIRouter()
page_at = partial(routes.api_route, methods=["GET", "HEAD"])


@page_at("/questions")
def browse(
    request: Request,
    site: Here,
    reader: Reading,
    run: Text = "",
    model: Text = "",
    flipped: bool = False,
    q: Annotated[str, Query(max_length=100)] = "",
    page: Page = 1,
) -> HTMLResponse:
    chosen = _run(reader, run, model)
    if chosen is None:
        return site.html("questions.html.j2", layout.QUESTIONS, run=None)
    given = {**request.query_params, "flipped": "true" if flipped else "", "q": q}
    selection, valid, choices = _selection(reader, chosen, given)
    first = layout.url("/questions", **selection)
    shown: dict[str, Any] = {
        "run": chosen,
        "selection": selection,
        "valid": valid,
        "choices": choices,
        "listed": part_of(questions.page(reader, chosen, selection, page), first),
        "offered": runs.offered(reader, (chosen["run_id"],)),
        "back": layout.url("/questions", **selection, page=page if page > 1 else ""),
        "suite": suites.named(chosen["suite"]),
        "directions": DIRECTIONS,
        "places": questions.PLACES,
    }
    return site.html("questions.html.j2", layout.QUESTIONS, **shown)


@page_at("/questions/{run}/{task}/{item_id}")
def one_question(
    site: Here,
    reader: Reading,
    run: str,
    task: str,
    item_id: int,
    test: Text = "",
    back: Annotated[str, Query(max_length=1500)] = "",
) -> HTMLResponse:
    chosen = _known(reader, run)
    wanted = (task, item_id if abs(item_id) < 2**63 else -1, test)
    [loaded] = question.load(reader, chosen, [wanted])
    if loaded is None or not loaded["tests"]:
        raise Missing("question", f"{task}/{item_id}", layout.url("/questions", run=run))
    chosen_from("test", loaded["test"], loaded["tests"])
    if not back.startswith("/questions?"):
        back = layout.url("/questions", run=run, task=task)
    given = dict(parse_qsl(urlsplit(back).query)) | {"task": task, "test": loaded["test"]}
    selection, _, _ = _selection(reader, chosen, given)
    before, after = questions.neighbours(reader, chosen, selection, item_id)
    of_benchmark = leaderboard.newest_runs(reader, chosen["suite"], chosen["benchmark_id"])
    others = [r for r in of_benchmark if r["run_id"] != run]
    sql = "SELECT DISTINCT run_id FROM predictions WHERE task = ? AND item_id = ? AND test = ?"
    names = [r["run_id"] for r in others]
    answered = {r["run_id"] for r in reader.ask(sql, [task, item_id, loaded["test"]], runs=names)}
    shown: dict[str, Any] = {
        "title": f"Question {loaded['item'].get('source_id') or item_id}",
        "run": chosen,
        "q": loaded,
        "others": [r for r in others if r["run_id"] in answered],
        "back": back,
        "before": before,
        "after": after,
        "places": questions.PLACES,
    }
    return site.html("question.html.j2", layout.QUESTIONS, **shown)


@page_at("/pictures/{benchmark}/{image_id}")
def picture(reader: Reading, benchmark: str, image_id: str) -> Response:
    sql = "SELECT png FROM previews WHERE benchmark_id = ? AND image_id = ? LIMIT 1"
    row = reader.one(sql, [benchmark[:200], image_id[:200]])
    if row is None or row["png"] is None:
        raise Missing("picture", image_id)
    data = bytes(row["png"])
    kinds = (kind for sign, kind in _SIGNS.items() if data.startswith(sign))
    headers = {"Cache-Control": "private, max-age=3600", "Content-Disposition": "inline"}
    return Response(data, media_type=next(kinds, "application/octet-stream"), headers=headers)


@page_at("/compare")
def beside(
    site: Here, reader: Reading, a: Text = "", b: Text = "", cell: Text = "", page: Page = 1
) -> HTMLResponse:
    old, new = (_known(reader, r) if r else None for r in (a, b))
    shown: dict[str, Any] = {"why": "", "rows": [], "flips": None, "cell": ()}
    if old and new:
        shown |= _compared(reader, old, new, cell, page)
        shown["asked"] = suites.named(old["suite"], old["cluster_by"])
    shown |= {"old": old, "new": new, "offered": runs.offered(reader, (a, b))}
    return site.html("compare.html.j2", layout.COMPARE, title="Compare two runs", **shown)


def _known(reader: Reader, run_id: str) -> Row:
    run = runs.one(reader, run_id[:200])
    if run is None:
        raise Missing("run", run_id, "/runs")
    return run


def _run(reader: Reader, run_id: str, model: str) -> Row | None:
    """The requested run, the newest run of the requested model, or the newest of all; None if the
    file is empty."""
    if run_id:
        return _known(reader, run_id)
    if model:
        chosen_from("model", model, runs.models(reader))
    return reader.one(
        "SELECT * FROM runs WHERE finished_at IS NOT NULL AND (? = '' OR model = ?) ORDER BY suite"
        " = ? DESC, finished_at DESC, run_id DESC LIMIT 1",
        [model, model, next(iter(suites.SUITES))],
    )


def _selection(
    reader: Reader, run: Row, given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, list[str]], dict[str, list[str]]]:
    """The selection of `questions` that an address gives, the values of its selects and those of
    its filters. Raises Refused."""
    cells = questions.cells(reader, run)
    chosen, valid, replaced = leaderboard.choose(cells, given, _SELECTS)
    for at, name in enumerate(_SELECTS):
        # a value that other runs have is replaced; one that none can have is refused
        if name in replaced and given[name] not in _EVERY | {c[at] for c in cells}:
            chosen_from(name, given[name], valid[name])
    choices = questions.choices(reader, run)
    selection = {"run": str(run["run_id"]), **chosen}
    for name, options in (_OPTIONS | choices).items():
        value = given.get(name, "")[:200]
        shown = name.removeprefix(questions.GROUP)
        selection[name] = chosen_from(shown, value, options) if value else ""
    return selection | {"q": given.get("q", "").strip()[:100]}, valid, choices


def _compared(reader: Reader, old: Row, new: Row, cell: str, page: int) -> dict[str, Any]:
    why = compare.pairable(old, new)
    rows = [] if why else compare.differences(reader, old, new)
    if not rows:
        differ = "No question was answered by both: their questions differ, or the answers of one"
        return {"why": why or f"{differ} are no longer kept.", "rows": []}
    cells = ["/".join((r["task"], r["test"], r["method"])) for r in rows if r["test"] != "all"]
    default = next((c for c in cells if c.endswith("/full")), cells[0])
    task, test, method = (chosen_from("cell", cell, cells) if cell else default).split("/")
    first = layout.url("/compare", a=old["run_id"], b=new["run_id"], cell=cell)
    shown = part_of(compare.flips(reader, old, new, (task, test, method), page), first)
    return {"rows": rows, "flips": shown, "cell": (task, test, method), "cells": cells}
