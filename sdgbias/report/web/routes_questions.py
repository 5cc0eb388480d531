"""Routes of the pages about single questions and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, Response

from sdgbias import suites
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import labels, layout, leaderboard
from sdgbias.report.pages import compare, question, questions, runs
from sdgbias.report.source import Reader, Row
from sdgbias.report.web.routes import READ, Page, Text, chosen_from
from sdgbias.report.web.site import Missing, Site, near
from sdgbias.vocabulary import METHODS

#: Selects in order, each with the values that it prefers.
_SELECTS = {
    "task": ("mcq", "direct"),
    "test": (),
    "method": ("full", "cade", "full_argmax", "q_only"),
}
#: What a select may name, whether or not a run has it.
_EVERY = {*labels.TASKS, *METHODS, "T1", "T2", "T3", "T4", "T5"}
_SIGNS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


def question_router(site: Site) -> APIRouter:
    """The routes of these pages."""
    made = APIRouter()

    @made.api_route("/questions", methods=READ)
    def browse(
        request: Request,
        run: Text = "",
        model: Text = "",
        task: Text = "",
        test: Text = "",
        method: Text = "",
        outcome: Text = "",
        direction: Text = "",
        cade: Text = "",
        flipped: Annotated[bool, Query()] = False,
        q: Annotated[str, Query(max_length=100)] = "",
        page: Page = 1,
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            chosen = _run(reader, run, model)
            if chosen is None:
                return site.html(reader, "questions.html.j2", layout.QUESTIONS, run=None)
            context = _browse(
                reader,
                request.query_params,
                chosen,
                questions.Selection(
                    (task, test, method), outcome, direction, cade, flipped, q.strip(), page
                ),
            )
            return site.html(
                reader,
                "questions.html.j2",
                layout.QUESTIONS,
                run=chosen,
                **context,
            )

    @made.api_route("/questions/{run}/{task}/{item_id}", methods=READ)
    def one_question(
        run: str,
        task: str,
        item_id: int,
        test: Text = "",
        back: Annotated[str, Query(max_length=1500)] = "",
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            chosen = _known(reader, run)
            wanted = (task, item_id if abs(item_id) < 2**63 else -1, "")
            [found] = question.load(reader, chosen, [wanted])
            if found is None or not found["tests"]:
                raise Missing(
                    "question", f"{task}/{item_id}", [], labels.url("/questions", run=run)
                )
            if test:
                chosen_from("test", test, found["tests"])
                [found] = question.load(reader, chosen, [(task, item_id, test)])
                assert found is not None
            if not back.startswith("/questions?"):
                back = labels.url("/questions", run=run, task=task)
            selection = _selection_of(reader, chosen, back, (task, found["test"]))
            before, after = questions.neighbours(reader, chosen, selection, item_id)
            others = [
                r
                for r in leaderboard.newest_runs(reader, chosen["suite"], chosen["benchmark_id"])
                if r["run_id"] != run
            ]
            context: dict[str, Any] = {
                "run": chosen,
                "q": found,
                "others": others,
                "back": back,
                "before": before,
                "after": after,
                "places": questions.PLACES,
            }
            return site.html(
                reader,
                "question.html.j2",
                layout.QUESTIONS,
                title=f"Question {found['item'].get('source_id') or item_id}",
                **context,
            )

    @made.api_route("/pictures/{benchmark}/{image_id}", methods=READ)
    def picture(benchmark: str, image_id: str) -> Response:
        with site.results.reading() as reader:
            sql = "SELECT png FROM previews WHERE benchmark_id = ? AND image_id = ? LIMIT 1"
            rows = reader.ask(sql, [benchmark[:200], image_id[:200]], keep=False)
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

    @made.api_route("/compare", methods=READ)
    def beside(a: Text = "", b: Text = "", cell: Text = "", page: Page = 1) -> HTMLResponse:
        with site.results.reading() as reader:
            old, new = (_known(reader, r) if r else None for r in (a, b))
            context: dict[str, Any] = {
                "old": old,
                "new": new,
                "offered": runs.offered(reader, (a, b)),
                "why": "",
                "rows": [],
                "flips": None,
                "cell": (),
            }
            if old and new:
                context |= _compared(reader, old, new, cell, page)
                context["asked"] = suites.named(old["suite"])
            return site.html(
                reader, "compare.html.j2", layout.COMPARE, title="Compare two runs", **context
            )

    return made


def _known(reader: Reader, run_id: str) -> Row:
    found = runs.one(reader, run_id[:200])
    if found is None:
        raise Missing("run", run_id, near(run_id, runs.ids(reader), "/questions?run="), "/runs")
    return found


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


def _browse(
    reader: Reader,
    given: Mapping[str, str],
    run: Row,
    wanted: questions.Selection,
) -> dict[str, Any]:
    cells = questions.cells(reader, run)
    asked = dict(zip(_SELECTS, wanted.cell, strict=True))
    chosen, valid, replaced = leaderboard.choose(cells, asked, _SELECTS)
    for at, name in enumerate(_SELECTS):
        # a value that other runs have is replaced; one that none can have is refused
        if name in replaced and asked[name] not in _EVERY | {c[at] for c in cells}:
            chosen_from(name, asked[name], valid[name])
    choices, known = questions.choices(reader, run), questions.filters_of(reader, run)
    filters = {}
    for name, options in choices.items():
        value = given.get(name, "")[:200]
        if value:
            filters[name] = chosen_from(known[name][1], value, options)
    if wanted.outcome:
        chosen_from("outcome", wanted.outcome, list(questions.RIGHT_OR_WRONG))
    if wanted.direction:
        chosen_from("direction", wanted.direction, list(DIRECTIONS))
    if wanted.cade:
        chosen_from("cade", wanted.cade, list(questions.CADE_CHANGES))
    task, test, method = chosen.values()
    listed = replace(wanted, cell=(task, test, method), filters=filters)
    kept = {
        "run": run["run_id"],
        "task": task,
        "test": test,
        "method": method,
        **filters,
        "outcome": listed.outcome,
        "direction": listed.direction,
        "cade": listed.cade,
        "flipped": "true" if listed.flipped else "",
        "q": listed.text,
    }
    return {
        "listed": questions.page(reader, run, listed),
        "cell": listed.cell,
        "valid": list(valid.values()),
        "choices": choices,
        "filters": filters,
        "outcome": listed.outcome,
        "direction": listed.direction,
        "directions": DIRECTIONS if task == "mcq" and not suites.named(run["suite"]).custom else (),
        "cade": listed.cade,
        "changes": list(questions.CADE_CHANGES) if ("cade" in valid["method"]) else [],
        "flipped": listed.flipped,
        "text": listed.text,
        "labels": {name: label for name, (_, label) in known.items()},
        "offered": runs.offered(reader, (run["run_id"],)),
        "kept": kept,
        "back": labels.url("/questions", **kept, page=listed.page if listed.page > 1 else ""),
        "people": suites.named(run["suite"]).private,
        "custom": suites.named(run["suite"]).custom,
        "places": questions.PLACES,
        "quote": quote,
    }


def _selection_of(
    reader: Reader, run: Row, back: str, cell: tuple[str, str]
) -> questions.Selection:
    """The list that ``back`` leads to, of one task and test; what it asks for and the run doesn't
    know is left out."""
    given = dict(parse_qsl(urlsplit(back).query))
    choices = questions.choices(reader, run)
    filters = {k: v for k, v in given.items() if v in choices.get(k, ())}
    methods = [m for t, test, m in questions.cells(reader, run) if (t, test) == cell]
    method = given.get("method", "")
    if method not in methods:
        method = next((m for m in _SELECTS["method"] if m in methods), methods[0])

    def valid(name: str, values: Collection[str]) -> str:
        value = given.get(name, "")
        return value if value in values else ""

    return questions.Selection(
        (*cell, method),
        valid("outcome", questions.RIGHT_OR_WRONG),
        valid("direction", DIRECTIONS),
        valid("cade", questions.CADE_CHANGES),
        given.get("flipped") == "true",
        given.get("q", "")[:100],
        filters=filters,
    )


def _compared(reader: Reader, old: Row, new: Row, cell: str, page: int) -> dict[str, Any]:
    why = compare.pairable(old, new)
    rows = [] if why else compare.differences(reader, old, new)
    if not rows:
        return {
            "why": (
                why
                or "No question was answered by both: their questions differ, or the"
                " answers of one are no longer kept."
            ),
            "rows": [],
        }
    cells = ["/".join((r["task"], r["test"], r["method"])) for r in rows if r["test"] != "all"]
    default = next((c for c in cells if c.endswith("/full")), cells[0])
    task, test, method = (chosen_from("cell", cell, cells) if cell else default).split("/")
    shown = compare.flips(reader, old, new, (task, test, method), page)
    return {"rows": rows, "flips": shown, "cell": (task, test, method), "cells": cells}
