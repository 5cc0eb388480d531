"""Pages about nights, models and runs, and about one number of every model. Every parameter is
validated here; the data of a page is computed by the module named after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Depends, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from sdgbias import store, suites, wording
from sdgbias.analysis import nights as night_records
from sdgbias.errors import StoreError, one_of
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import layout
from sdgbias.report import leaderboard as board
from sdgbias.report.charts import over_nights
from sdgbias.report.pages import models, night, runs
from sdgbias.report.reader import Reader
from sdgbias.report.web import nights
from sdgbias.report.web.site import REPORT_POLICY, Missing, Refused, Site
from sdgbias.vocabulary import shown_as

Text = Annotated[str, Query(max_length=200)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]
Window = Annotated[int, Query(ge=1, le=3660)]
#: Rows of the table below a chart; the CSV has all.
NEWEST = 240
#: What is answered where the results hold nothing for a page of the report.
NOTHING = "The results hold nothing for this page yet. The command sdgbias "
BY_SUITE = "suite build makes a suite of your own questions."
BY_RUN = "evaluate MODEL adds a run, and sdgbias analyse its studies."

routes = APIRouter()
page_at = partial(routes.api_route, methods=["GET", "HEAD"])


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


Here = Annotated[Site, Depends(_site)]


def _reader(site: Here) -> Iterator[Reader]:
    with site.results.reading() as reader:
        yield reader


#: The queries of one request; the results are closed before its answer is sent.
Reading = Annotated[Reader, Depends(_reader, scope="function")]


def _cell(
    task: Text = "",
    metric: Text = "",
    method: Text = "",
    test: Text = "",
    pillar: Text = "",
    indicator: Text = "",
) -> dict[str, str]:
    return dict(zip(board.CHOICES, (task, metric, method, test, pillar, indicator), strict=True))


def chosen_from(what: str, value: str, valid: list[str]) -> str:
    """The value, or Refused with the valid ones; the first valid one for ''."""
    if value and value not in valid:
        raise Refused(one_of(what, value, valid[:40]) + ("" if len(valid) <= 40 else ", ..."))
    return value or (valid[0] if valid else "")


def part_of(listed: dict[str, Any], first: str) -> dict[str, Any]:
    """A page of a list, or Missing where the list ends before it. ``first``: the address of its
    first page."""
    if listed["page"] > 1 and not listed["rows"]:
        raise Missing("page", f"{listed['page']:,}", first)
    return listed


@page_at("/")
def home(site: Here, reader: Reading) -> HTMLResponse:
    running = nights.running(reader, datetime.now(UTC))
    name = nights.newest(reader, finished=True)
    shown: dict[str, Any] = _night(reader, name) if name else {}
    latest = [] if name else runs.listing(reader, 1)["rows"][:10]
    return site.html("night.html.j2", layout.NIGHT, running=running, latest=latest, **shown)


@page_at("/nights")
def all_nights(site: Here, reader: Reading, page: Page = 1) -> HTMLResponse:
    listed = part_of(nights.listing(reader, page), "/nights")
    return site.html("nights.html.j2", layout.NIGHTS, listed=listed)


@page_at("/nights/{name}")
def one_night(site: Here, reader: Reading, name: str) -> HTMLResponse:
    if name not in night_records.names(reader.frame):
        raise Missing("night", name, "/nights")
    running = nights.running(reader, datetime.now(UTC))
    shown: dict[str, Any] = {"title": f"Night {name}", **_night(reader, name)}
    shown["running"] = running if running and running["night"] == name else None
    return site.html("night.html.j2", layout.NIGHTS, **shown)


@page_at("/api/running")
def running_night(reader: Reading) -> JSONResponse:
    """Polled by the page of a running night: night, done, planned, lasted."""
    progress = nights.running(reader, datetime.now(UTC))
    if progress is None:
        return JSONResponse({"night": None})
    shown = {name: progress[name] for name in ("night", "done", "planned")}
    return JSONResponse(shown | {"lasted": wording.lasted(progress["seconds"])})


def _board(
    reader: Reading,
    wanted: Annotated[dict[str, str], Depends(_cell)],
    suite: Text = "",
    benchmark: Text = "",
    nights: Window = 90,
) -> dict[str, Any]:
    """One number of every model, now and over nights."""
    names = board.suites(reader)
    suite = chosen_from("suite", suite, names)
    folders = {name: board.benchmarks(reader, name) for name in names}
    ids = [b["benchmark_id"] for b in folders.get(suite, [])]
    if benchmark not in ids:  # one of another suite gives way to the first of this one
        every = [b["benchmark_id"] for of_suite in folders.values() for b in of_suite]
        chosen_from("benchmark", benchmark, every)
        benchmark = ids[0] if ids else ""
    newest = board.newest_runs(reader, suite, benchmark)
    latest = board.widest(newest)
    chosen, options, replaced = board.choose(board.cells(reader, latest) if latest else [], wanted)
    for name in replaced:
        if not _anywhere(reader, name, wanted[name]):
            raise Refused(one_of(name, wanted[name], options[name]))
    scored = board.nights_asked(reader, suite, benchmark, nights)
    shown = [*(r["run_id"] for r in newest), *scored["run_id"]]
    estimates = board.numbers(reader, chosen, shown)
    metric = shown_as(chosen["metric"], chosen["pillar"])
    rows = board.table(newest, estimates, metric)
    times = board.nights_of(reader, nights)
    past = board.history(scored, estimates)
    order = [r["model"] for r in rows]
    return {
        "suite": suite,
        "unit": suites.named(suite, latest["cluster_by"] if latest else "").cluster_unit,
        "suites": names,
        "benchmark": benchmark,
        "benchmarks": folders.get(suite, []),
        "chosen": chosen,
        "metric": metric,
        "options": options,
        "replaced": [f"{name} {wanted[name]!r}" for name in replaced],
        "rows": rows,
        "lacking": board.lacking(newest, estimates),
        "past": past,
        "newest": board.as_rows(past.tail(NEWEST)),
        "plots": over_nights.trends(past, times, metric, order),
        "window": nights,
        "windows": sorted({*board.WINDOWS, nights}),
        "changes": _changes(past),
        "by_night": bool(times),
        "planted": [r["model"] for r in rows if r["provenance"] == "planted"],
        "address": {"suite": suite, "benchmark": benchmark, **chosen},
    }


Board = Annotated[dict[str, Any], Depends(_board)]


@page_at("/numbers")
def one_number(site: Here, shown: Board) -> HTMLResponse:
    return site.html("number.html.j2", layout.NUMBER, **shown)


@page_at("/numbers.csv")
def one_number_csv(shown: Board) -> Response:
    """All numbers behind the chart, for other tools."""
    numbers = ("value", "n", "ci_low", "ci_high")
    head = ["night", "model", "provenance", "run_id", *shown["chosen"], *numbers]
    text = shown["past"].assign(**shown["chosen"]).to_csv(columns=head, index=False)
    named = {"Content-Disposition": 'attachment; filename="numbers.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=named)


@page_at("/models")
def all_models(site: Here, reader: Reading) -> HTMLResponse:
    rows = models.index(reader, site.registry)
    return site.html("models.html.j2", layout.MODELS, rows=rows)


@page_at("/models/{name}")
def one_model(site: Here, reader: Reading, name: str) -> HTMLResponse:
    model = models.page(reader, name[:200], site.registry)
    if model is None:
        raise Missing("model", name, "/models")
    return site.html("model.html.j2", layout.MODELS, title=name, m=model, directions=DIRECTIONS)


@page_at("/runs")
def all_runs(
    site: Here, reader: Reading, page: Page = 1, model: Text = "", suite: Text = ""
) -> HTMLResponse:
    names, measured = runs.models(reader), board.suites(reader)
    for what, value, valid in (("model", model, names), ("suite", suite, measured)):
        chosen_from(what, value, valid)
    shown: dict[str, Any] = {"models": names, "model": model, "suites": measured, "suite": suite}
    first = layout.url("/runs", model=model, suite=suite)
    listed = part_of(runs.listing(reader, page, model, suite), first)
    return site.html("runs.html.j2", layout.RUNS, listed=listed, **shown)


@page_at("/health")
def health(site: Here) -> JSONResponse:
    """The server is up; 'results' is the state of the file: readable, busy, missing or broken."""
    sql = "SELECT (SELECT count(*) FROM runs) AS runs, (SELECT count(*) FROM nights) AS nights"
    try:
        with site.results.reading() as reader:
            [counted] = reader.ask(sql)
    except StoreError as error:
        state, message = site.fault(error)
        return JSONResponse({"status": "ok", "results": state, "message": message})
    return JSONResponse({"status": "ok", "results": "readable", **counted})


@page_at("/{name}")
def page_of_report(site: Here, reader: Reading, name: str) -> HTMLResponse:
    """A page of the report, with the scripts and the style that it holds itself."""
    page = layout.page_at(f"/{name}")
    if page is None:
        raise HTTPException(404)
    measured = reader.one("SELECT 1 FROM runs WHERE finished_at IS NOT NULL LIMIT 1")
    filled = site.filled(page) if measured else None
    if filled is None:
        message = NOTHING + (BY_SUITE if page == layout.OWN else BY_RUN)
        empty: dict[str, Any] = {"message": message, "retry": 0, "every": "/"}
        return site.html("error.html.j2", page, heading=page.title, **empty)
    answer = site.html(filled[0], page, front=layout.Front(inline=True), **filled[1])
    answer.headers["Content-Security-Policy"] = REPORT_POLICY
    return answer


def _night(reader: Reader, name: str) -> dict[str, Any]:
    """The page of a night, with pictures from this server."""
    record = night_records.load(reader.frame, name)
    assert record is not None
    return night.context(record, reader.frame, _picture_links)


def _picture_links(questions: pd.DataFrame) -> dict[str, str]:
    pictured = questions[questions["pictured"]]
    keys = zip(pictured["benchmark_id"], pictured["image_id"], strict=True)
    return {str(image): layout.SERVED.link("pictures", of, image) for of, image in keys}


def _anywhere(reader: Reader, name: str, value: str) -> bool:
    """Whether any run has this value of a column of CHOICES, so that it is valid but unavailable
    under the other choices."""
    assert name in board.CHOICES
    sql = f"SELECT 1 FROM {store.NUMBERS} WHERE study = 'headline' AND {name} = ? LIMIT 1"
    return bool(reader.ask(sql, [value]))


def _changes(past: pd.DataFrame) -> Mapping[str, float]:
    """model -> its value in its newest night minus that of the night before; 0 if it was
    unchanged."""
    with_value = past.dropna(subset=["value"])
    changes = with_value.groupby("model")["value"].diff().groupby(with_value["model"]).last()
    return {str(model): float(change) for model, change in changes.dropna().items()}
