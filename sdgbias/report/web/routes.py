"""Pages about nights, models and runs. Every parameter is checked here; what a page says is worked
out by the module named after it.

Pages about single questions and pairs of runs, and the pictures.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from sdgbias import suites
from sdgbias.errors import one_of
from sdgbias.report import labels, leaderboard
from sdgbias.report import leaderboard as board
from sdgbias.report.pages import compare, models, questions, runs
from sdgbias.report.pages import questions as question
from sdgbias.report.web import nights
from sdgbias.report.web.site import Missing, Refused, Site, near
from sdgbias.report.web.source import Reader, Row, Unavailable

READ = ["GET", "HEAD"]
Text = Annotated[str, Query(max_length=200)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]
Window = Annotated[int, Query(ge=1, le=3660)]


def _cell(
    task: Text = "",
    metric: Text = "",
    method: Text = "",
    test: Text = "",
    pillar: Text = "",
    indicator: Text = "",
) -> dict[str, str]:
    return {
        "task": task,
        "metric": metric,
        "method": method,
        "test": test,
        "pillar": pillar,
        "indicator": indicator,
    }


#: The selects of the leaderboard below suite and benchmark; '' where the address says nothing.
Wanted = Annotated[dict[str, str], Depends(_cell)]


def chosen_from(what: str, value: str, valid: list[str]) -> str:
    """The value, or Refused with the valid ones; the first of them for ''."""
    if value and value not in valid:
        raise Refused(one_of(what, value, valid[:40]) + ("" if len(valid) <= 40 else ", ..."))
    return value or (valid[0] if valid else "")


def router(site: Site) -> APIRouter:
    """The routes of these pages."""
    made = APIRouter()

    @made.api_route("/", methods=READ)
    def home() -> HTMLResponse:
        with site.results.reading() as reader:
            running = nights.running(reader, datetime.now(UTC))
            name = nights.newest(reader, finished=True)
            shown = nights.night(reader, name) if name else None
            latest = runs.listing(reader, 1)["rows"][:10] if shown is None else []
            return site.html(
                reader,
                "night.html.j2",
                here="/",
                title="Last night",
                running=running,
                night=shown,
                latest=latest,
                home=True,
            )

    @made.api_route("/nights", methods=READ)
    def all_nights(page: Page = 1) -> HTMLResponse:
        with site.results.reading() as reader:
            listed = nights.listing(reader, page)
            return site.html(
                reader, "nights.html.j2", here="/nights", title="Nights", listed=listed
            )

    @made.api_route("/nights/{name}", methods=READ)
    def one_night(name: str) -> HTMLResponse:
        with site.results.reading() as reader:
            shown = nights.night(reader, name[:200])
            if shown is None:
                known = (
                    r["night"]
                    for r in reader.ask("SELECT night FROM nights ORDER BY night DESC LIMIT 2000")
                )
                raise Missing("night", name, near(name, known, "/nights/"), "/nights")
            running = (
                nights.running(reader, datetime.now(UTC))
                if shown["row"]["status"] == "running"
                else None
            )
            running = running if running and running["night"] == name else None
            title = f"Night {name}"
            return site.html(
                reader,
                "night.html.j2",
                here="/nights",
                title=title,
                running=running,
                night=shown,
                latest=[],
                home=False,
            )

    @made.api_route("/api/running", methods=READ)
    def running() -> JSONResponse:
        """What the page of a running night asks for again: night, done, planned, seconds."""
        with site.results.reading() as reader:
            found = nights.running(reader, datetime.now(UTC))
        if found is None:
            return JSONResponse({"night": None})
        return JSONResponse(
            {
                "night": found["night"],
                "done": found["done"],
                "planned": found["planned"],
                "lasted": labels.lasted(found["seconds"]),
            }
        )

    @made.api_route("/leaderboard", methods=READ)
    def leaderboard(
        wanted: Wanted, suite: Text = "", benchmark: Text = "", nights: Window = 90
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            context = _board(reader, suite, benchmark, wanted, nights)
            return site.html(
                reader, "leaderboard.html.j2", here="/leaderboard", title="Leaderboard", **context
            )

    @made.api_route("/leaderboard.csv", methods=READ)
    def leaderboard_csv(
        wanted: Wanted, suite: Text = "", benchmark: Text = "", nights: Window = 90
    ) -> Response:
        """The numbers behind the chart, all of them, for other tools."""
        with site.results.reading() as reader:
            context = _board(reader, suite, benchmark, wanted, nights)
        head = [
            "night",
            "model",
            "provenance",
            "run_id",
            *context["chosen"],
            "value",
            "n",
            "ci_low",
            "ci_high",
        ]
        text = io.StringIO()
        writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | context["chosen"] for row in context["past"])
        named = {
            "Content-Disposition": 'attachment; filename="leaderboard.csv"',
            "Cache-Control": "no-cache",
        }
        return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=named)

    @made.api_route("/models", methods=READ)
    def all_models() -> HTMLResponse:
        with site.results.reading() as reader:
            return site.html(
                reader,
                "models.html.j2",
                here="/models",
                title="Models",
                rows=models.index(reader, site.registry),
            )

    @made.api_route("/models/{name}", methods=READ)
    def one_model(name: str) -> HTMLResponse:
        with site.results.reading() as reader:
            found = models.page(reader, name[:200], site.registry)
            if found is None:
                raise Missing(
                    "model", name, near(name, models.names(reader), "/models/"), "/models"
                )
            return site.html(
                reader,
                "model.html.j2",
                here="/models",
                title=name,
                m=found,
                directions=models.DIRECTIONS,
            )

    @made.api_route("/runs", methods=READ)
    def all_runs(page: Page = 1, model: Text = "", suite: Text = "") -> HTMLResponse:
        with site.results.reading() as reader:
            known = runs.models(reader)
            if model:
                chosen_from("model", model, known)
            if suite:
                chosen_from("suite", suite, board.suites(reader))
            context: dict[str, Any] = {
                "listed": runs.listing(reader, page, model, suite),
                "models": known,
                "suites": board.suites(reader),
            }
            return site.html(
                reader,
                "runs.html.j2",
                here="/runs",
                title="Runs",
                model=model,
                suite=suite,
                **context,
            )

    @made.api_route("/health", methods=READ)
    def health() -> JSONResponse:
        """The server is up; 'results' says whether the file can be read: readable, busy, missing or
        broken."""
        try:
            with site.results.reading() as reader:
                counted = reader.ask(
                    "SELECT (SELECT count(*) FROM runs) AS runs, (SELECT count(*) FROM nights) AS"
                    " nights"
                )[0]
                state = "busy" if reader.stale else "readable"
            return JSONResponse({"status": "ok", "results": state, **counted})
        except Unavailable as error:
            return JSONResponse(
                {
                    "status": "ok",
                    "results": "missing" if error.missing else "busy" if error.busy else "broken",
                    "message": str(error),
                }
            )

    return made


def _board(
    reader: Reader, suite: str, benchmark: str, wanted: dict[str, str], window: int
) -> dict[str, Any]:
    known = board.suites(reader)
    suite = chosen_from("suite", suite, known)
    folders = board.benchmarks(reader, suite) if suite else []
    ids = [b["benchmark_id"] for b in folders]
    every = (
        ids
        if not benchmark or benchmark in ids
        else [b["benchmark_id"] for s in known for b in board.benchmarks(reader, s)]
    )
    chosen_from("benchmark", benchmark, every)
    benchmark = benchmark if benchmark in ids else (ids[0] if ids else "")
    newest = board.newest_runs(reader, suite, benchmark)
    latest = max(newest, key=lambda r: (r["finished_at"], r["run_id"])) if newest else None
    chosen, options, replaced = board.choose(board.cells(reader, latest) if latest else [], wanted)
    asked, also = (
        board.nights_asked(reader, suite, benchmark, window),
        [r["run_id"] for r in newest],
    )
    found = board.numbers(reader, chosen, asked, also)
    if replaced:  # the newest run lacks it; an older one may have it
        cell = chosen | {name: value for name, value in wanted.items() if value}
        if older := board.numbers(reader, cell, asked, also):
            options = {name: sorted({*options[name], cell[name]}) for name in options}
            chosen, found, replaced = cell, older, []
        for name in replaced:
            if not _anywhere(reader, name, wanted[name]):
                raise Refused(one_of(name, wanted[name], options[name]))
    rows = board.table(newest, found, chosen["metric"])
    times = board.nights_of(reader, window)
    past = board.history(asked, found)
    order = [r["model"] for r in rows]
    series, wide, narrow = board.drawn(past, times, chosen["metric"], order)
    return {
        "suite": suite,
        "unit": suites.named(suite).cluster_unit,
        "suites": known,
        "benchmark": benchmark,
        "benchmarks": folders,
        "chosen": chosen,
        "options": options,
        "replaced": [f"{name} {wanted[name]!r}" for name in replaced],
        "rows": rows,
        "past": past,
        "plots": wide,
        "narrow": narrow,
        "series": list(series),
        "said": board.summary(series, chosen["metric"]),
        "window": window,
        "windows": sorted({*board.WINDOWS, window}),
        "changes": _changes(past),
        "by_night": bool(times),
        "planted": [r["model"] for r in rows if r["provenance"] == "planted"],
        "address": {"suite": suite, "benchmark": benchmark, **chosen},
    }


def _anywhere(reader: Reader, name: str, value: str) -> bool:
    """Whether any run has this value of a column of CHOICES, so that it is known and just not there
    under the other choices."""
    assert name in board.CHOICES
    return bool(reader.ask(f"SELECT 1 AS there FROM metric_rows WHERE {name} = ? LIMIT 1", [value]))


def _changes(past: list[Row]) -> dict[str, float]:
    """model -> its value in its newest night minus that in the night before; 0 when it was found
    unchanged."""
    numbers: dict[str, list[float]] = {}
    for r in past:
        if r["value"] is not None and r["value"] == r["value"]:
            numbers.setdefault(r["model"], []).append(r["value"])
    return {model: found[-1] - found[-2] for model, found in numbers.items() if len(found) > 1}


_DEFAULT = ("full", "cade", "full_argmax", "q_only")
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
        flipped: Annotated[bool, Query()] = False,
        q: Annotated[str, Query(max_length=100)] = "",
        page: Page = 1,
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            chosen = _run(reader, run, model)
            if chosen is None:
                return site.html(
                    reader, "questions.html.j2", here="/questions", title="Questions", run=None
                )
            context = _browse(
                reader,
                request.query_params,
                chosen,
                (task, test, method),
                outcome,
                flipped,
                q,
                page,
            )
            return site.html(
                reader,
                "questions.html.j2",
                here="/questions",
                title="Questions",
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
            found = (
                question.load(reader, chosen, task, item_id, "") if abs(item_id) < 2**63 else None
            )
            if found is None or not found["tests"]:
                raise Missing(
                    "question", f"{task}/{item_id}", [], labels.url("/questions", run=run)
                )
            if test:
                chosen_from("test", test, found["tests"])
                found = question.load(reader, chosen, task, item_id, test) or found
            back = (
                labels.url("/questions", run=run, task=task)
                if not back.startswith("/questions?")
                else back
            )
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
                "places": questions.PLACES,
            }
            return site.html(
                reader,
                "question.html.j2",
                here="/questions",
                title=f"Question {item_id}",
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
                reader, "compare.html.j2", here="/compare", title="Compare two runs", **context
            )

    return made


def _known(reader: Reader, run_id: str) -> Row:
    found = runs.one(reader, run_id[:200])
    if found is None:
        raise Missing("run", run_id, near(run_id, runs.ids(reader), "/questions?run="), "/runs")
    return found


def _run(reader: Reader, run_id: str, model: str) -> Row | None:
    """The run asked for, the newest of the model asked for, or the newest of all; None in an empty
    file."""
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
    cell: tuple[str, str, str],
    outcome: str,
    flipped: bool,
    text: str,
    page: int,
) -> dict[str, Any]:
    cells = questions.cells(reader, run)
    chosen: list[str] = []
    valid: list[list[str]] = []
    for at, (name, value) in enumerate(zip(("task", "test", "method"), cell, strict=True)):
        here = [c for c in cells if list(c[:at]) == chosen]
        options = list(dict.fromkeys(c[at] for c in here))
        every = {c[at] for c in cells} | (
            set(labels.TASKS) | set(labels.VIEWS) | {"T1", "T2", "T3", "T4", "T5"}
        )
        if value and value not in options and value not in every:
            chosen_from(name, value, options)
        default = next(
            (
                d
                for d in (
                    ("mcq", "direct") if name == "task" else _DEFAULT if name == "method" else ()
                )
                if d in options
            ),
            "",
        )
        chosen.append(value if value in options else default or (options[0] if options else ""))
        valid.append(options)
    choices = questions.choices(reader, run)
    filters = {}
    for name, options in choices.items():
        value = given.get(name, "")[:200]
        if value:
            filters[name] = chosen_from(questions.filters_of(run)[name][1], value, options)
    if outcome:
        chosen_from("outcome", outcome, list(questions.RIGHT_OR_WRONG))
    task, test, method = chosen
    found = questions.page(
        reader, run, (task, test, method), filters, outcome, flipped, text.strip(), page
    )
    kept = {
        "run": run["run_id"],
        "task": task,
        "test": test,
        "method": method,
        **filters,
        "outcome": outcome,
        "flipped": "true" if flipped else "",
        "q": text.strip(),
    }
    return {
        "listed": found,
        "cell": (task, test, method),
        "valid": valid,
        "choices": choices,
        "filters": filters,
        "outcome": outcome,
        "flipped": flipped,
        "text": text.strip(),
        "labels": {k: v[1] for k, v in questions.filters_of(run).items()},
        "offered": runs.offered(reader, (run["run_id"],)),
        "kept": kept,
        "back": labels.url("/questions", **kept, page=page if page > 1 else ""),
        "people": suites.named(run["suite"]).private,
        "places": questions.PLACES,
        "quote": quote,
    }


def _compared(reader: Reader, old: Row, new: Row, cell: str, page: int) -> dict[str, Any]:
    why = compare.pairable(old, new)
    rows = [] if why else compare.differences(reader, old, new)
    if not rows:
        return {
            "why": (
                why
                or "No question was answered by both: they were asked other questions, or the answers of one are no longer kept."
            ),
            "rows": [],
        }
    cells = ["/".join((r["task"], r["test"], r["method"])) for r in rows if r["test"] != "all"]
    default = next((c for c in cells if c.endswith("/full")), cells[0])
    task, test, method = (chosen_from("cell", cell, cells) if cell else default).split("/")
    shown = compare.flips(reader, old, new, (task, test, method), page)
    return {"rows": rows, "flips": shown, "cell": (task, test, method), "cells": cells}
