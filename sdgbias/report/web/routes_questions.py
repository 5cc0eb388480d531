"""Routes of the pages about single questions and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, Response

from sdgbias import suites
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import layout, leaderboard
from sdgbias.report.pages import compare, question, questions, runs
from sdgbias.report.reader import Reader, Row
from sdgbias.report.web.routes import READ, Page, Text, chosen_from
from sdgbias.report.web.site import Missing, Site
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


def question_router(site: Site) -> APIRouter:
    """The routes of these pages."""
    routes = APIRouter()

    @routes.api_route("/questions", methods=READ)
    def browse(
        request: Request,
        run: Text = "",
        model: Text = "",
        flipped: Annotated[bool, Query()] = False,
        q: Annotated[str, Query(max_length=100)] = "",
        page: Page = 1,
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            chosen = _run(reader, run, model)
            context: dict[str, Any] = {"run": chosen}
            if chosen is not None:
                given = {**request.query_params, "flipped": "true" if flipped else "", "q": q}
                selection, valid, choices = _selection(reader, chosen, given)
                at = page if page > 1 else ""
                context |= {
                    "selection": selection,
                    "valid": valid,
                    "choices": choices,
                    "listed": questions.page(reader, chosen, selection, page),
                    "offered": runs.offered(reader, (chosen["run_id"],)),
                    "back": layout.url("/questions", **selection, page=at),
                    "suite": suites.named(chosen["suite"]),
                    "directions": DIRECTIONS,
                    "places": questions.PLACES,
                }
            return site.html("questions.html.j2", layout.QUESTIONS, **context)

    @routes.api_route("/questions/{run}/{task}/{item_id}", methods=READ)
    def one_question(
        run: str,
        task: str,
        item_id: int,
        test: Text = "",
        back: Annotated[str, Query(max_length=1500)] = "",
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            chosen = _known(reader, run)
            wanted = (task, item_id if abs(item_id) < 2**63 else -1, test)
            [loaded] = question.load(reader, chosen, [wanted])
            if loaded is None or not loaded["tests"]:
                every = layout.url("/questions", run=run)
                raise Missing("question", f"{task}/{item_id}", every)
            chosen_from("test", loaded["test"], loaded["tests"])
            if not back.startswith("/questions?"):
                back = layout.url("/questions", run=run, task=task)
            given = dict(parse_qsl(urlsplit(back).query))
            cell = {"task": task, "test": loaded["test"]}
            selection, _, _ = _selection(reader, chosen, given | cell)
            before, after = questions.neighbours(reader, chosen, selection, item_id)
            others = [
                r
                for r in leaderboard.newest_runs(reader, chosen["suite"], chosen["benchmark_id"])
                if r["run_id"] != run
            ]
            context: dict[str, Any] = {"run": chosen, "q": loaded, "others": others, "back": back}
            context |= {"before": before, "after": after, "places": questions.PLACES}
            title = f"Question {loaded['item'].get('source_id') or item_id}"
            return site.html("question.html.j2", layout.QUESTIONS, title=title, **context)

    @routes.api_route("/pictures/{benchmark}/{image_id}", methods=READ)
    def picture(benchmark: str, image_id: str) -> Response:
        with site.results.reading() as reader:
            sql = "SELECT png FROM previews WHERE benchmark_id = ? AND image_id = ? LIMIT 1"
            rows = reader.ask(sql, [benchmark[:200], image_id[:200]])
        if not rows or rows[0]["png"] is None:
            raise Missing("picture", image_id)
        data = bytes(rows[0]["png"])
        kind = next(
            (kind for sign, kind in _SIGNS.items() if data.startswith(sign)),
            "application/octet-stream",
        )
        return Response(
            data,
            media_type=kind,
            headers={"Cache-Control": "private, max-age=3600", "Content-Disposition": "inline"},
        )

    @routes.api_route("/compare", methods=READ)
    def beside(a: Text = "", b: Text = "", cell: Text = "", page: Page = 1) -> HTMLResponse:
        with site.results.reading() as reader:
            old, new = (_known(reader, r) if r else None for r in (a, b))
            context: dict[str, Any] = {"why": "", "rows": [], "flips": None, "cell": ()}
            if old and new:
                context |= _compared(reader, old, new, cell, page)
                context["asked"] = suites.named(old["suite"])
            context |= {"old": old, "new": new, "offered": runs.offered(reader, (a, b))}
            return site.html("compare.html.j2", layout.COMPARE, title="Compare two runs", **context)

    return routes


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
    shown = compare.flips(reader, old, new, (task, test, method), page)
    return {"rows": rows, "flips": shown, "cell": (task, test, method), "cells": cells}
