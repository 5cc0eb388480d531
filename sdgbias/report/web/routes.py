"""Pages about nights, models and runs, questions and pairs of runs, and the pictures. Every
parameter is validated here; the data of a page is computed by the module named after it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Depends, Query
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

READ = ["GET", "HEAD"]
Text = Annotated[str, Query(max_length=200)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]
Window = Annotated[int, Query(ge=1, le=3660)]
#: Rows of the table below a chart; the CSV has all.
NEWEST = 240


def _cell(
    task: Text = "",
    metric: Text = "",
    method: Text = "",
    test: Text = "",
    pillar: Text = "",
    indicator: Text = "",
) -> dict[str, str]:
    return dict(zip(board.CHOICES, (task, metric, method, test, pillar, indicator), strict=True))


#: The selects of the leaderboard below suite and benchmark; '' if not set in the URL.
Wanted = Annotated[dict[str, str], Depends(_cell)]


def chosen_from(what: str, value: str, valid: list[str]) -> str:
    """The value, or Refused with the valid ones; the first valid one for ''."""
    if value and value not in valid:
        raise Refused(one_of(what, value, valid[:40]) + ("" if len(valid) <= 40 else ", ..."))
    return value or (valid[0] if valid else "")


def router(site: Site) -> APIRouter:
    """The routes of these pages."""
    routes = APIRouter()

    @routes.api_route("/", methods=READ)
    def home() -> HTMLResponse:
        with site.results.reading() as reader:
            running = nights.running(reader, datetime.now(UTC))
            name = nights.newest(reader, finished=True)
            shown: dict[str, Any] = _night(reader, name) if name else {}
            latest = [] if name else runs.listing(reader, 1)["rows"][:10]
            return site.html("night.html.j2", layout.NIGHT, running=running, latest=latest, **shown)

    @routes.api_route("/nights", methods=READ)
    def all_nights(page: Page = 1) -> HTMLResponse:
        with site.results.reading() as reader:
            listed = nights.listing(reader, page)
            return site.html("nights.html.j2", layout.NIGHTS, listed=listed)

    @routes.api_route("/nights/{name}", methods=READ)
    def one_night(name: str) -> HTMLResponse:
        with site.results.reading() as reader:
            names = night_records.known(reader.frame)
            if name not in names:
                raise Missing("night", name, "/nights")
            running = nights.running(reader, datetime.now(UTC))
            if running and running["night"] != name:
                running = None
            shown = {"title": f"Night {name}", "running": running, **_night(reader, name)}
            return site.html("night.html.j2", layout.NIGHTS, **shown)

    @routes.api_route("/api/running", methods=READ)
    def running() -> JSONResponse:
        """Polled by the page of a running night: night, done, planned, seconds."""
        with site.results.reading() as reader:
            progress = nights.running(reader, datetime.now(UTC))
        if progress is None:
            return JSONResponse({"night": None})
        shown = {name: progress[name] for name in ("night", "done", "planned")}
        return JSONResponse(shown | {"lasted": wording.lasted(progress["seconds"])})

    @routes.api_route("/numbers", methods=READ)
    def one_number(
        wanted: Wanted, suite: Text = "", benchmark: Text = "", nights: Window = 90
    ) -> HTMLResponse:
        with site.results.reading() as reader:
            context = _board(reader, suite, benchmark, wanted, nights)
            return site.html("number.html.j2", layout.NUMBER, **context)

    @routes.api_route("/numbers.csv", methods=READ)
    def one_number_csv(
        wanted: Wanted, suite: Text = "", benchmark: Text = "", nights: Window = 90
    ) -> Response:
        """All numbers behind the chart, for other tools."""
        with site.results.reading() as reader:
            context = _board(reader, suite, benchmark, wanted, nights)
        numbers = ("value", "n", "ci_low", "ci_high")
        head = ["night", "model", "provenance", "run_id", *context["chosen"], *numbers]
        text = context["past"].assign(**context["chosen"]).to_csv(columns=head, index=False)
        named = {"Content-Disposition": 'attachment; filename="numbers.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=named)

    @routes.api_route("/models", methods=READ)
    def all_models() -> HTMLResponse:
        with site.results.reading() as reader:
            rows = models.index(reader, site.registry)
            return site.html("models.html.j2", layout.MODELS, rows=rows)

    @routes.api_route("/models/{name}", methods=READ)
    def one_model(name: str) -> HTMLResponse:
        with site.results.reading() as reader:
            model_page = models.page(reader, name[:200], site.registry)
            if model_page is None:
                raise Missing("model", name, "/models")
            shown: dict[str, Any] = {"title": name, "m": model_page, "directions": DIRECTIONS}
            return site.html("model.html.j2", layout.MODELS, **shown)

    def of_report(page: layout.Page) -> HTMLResponse:
        """A page of the report, with the scripts and the style that it holds itself."""
        with site.results.reading() as reader:
            sql = "SELECT count(*) AS n FROM runs WHERE finished_at IS NOT NULL"
            filled = site.filled(page) if reader.ask(sql)[0]["n"] else None
            if filled is None:
                sentence = "The results hold nothing for this page yet. " + (
                    "The command sdgbias suite build makes a suite of your own questions."
                    if page == layout.OWN
                    else "The command sdgbias evaluate MODEL adds a run, and sdgbias analyse"
                    " its studies."
                )
                empty: dict[str, Any] = {
                    "heading": page.title,
                    "message": sentence,
                    "retry": 0,
                    "every": "/",
                }
                return site.html("error.html.j2", page, **empty)
            front = layout.Front(inline=True)
            answer = site.html(filled[0], page, front=front, **filled[1])
            answer.headers["Content-Security-Policy"] = REPORT_POLICY
            return answer

    for page in layout.PAGES:
        if page.template and not page.interactive:
            routes.add_api_route(page.address, partial(of_report, page), methods=READ)

    @routes.api_route("/runs", methods=READ)
    def all_runs(page: Page = 1, model: Text = "", suite: Text = "") -> HTMLResponse:
        with site.results.reading() as reader:
            names = runs.models(reader)
            if model:
                chosen_from("model", model, names)
            if suite:
                chosen_from("suite", suite, board.suites(reader))
            listed = runs.listing(reader, page, model, suite)
            shown: dict[str, Any] = {
                "models": names,
                "suites": board.suites(reader),
                "listed": listed,
            }
            return site.html("runs.html.j2", layout.RUNS, model=model, suite=suite, **shown)

    @routes.api_route("/health", methods=READ)
    def health() -> JSONResponse:
        """The server is up; 'results' is the state of the file: readable, busy, missing or
        broken."""
        try:
            with site.results.reading() as reader:
                counted = reader.ask(
                    "SELECT (SELECT count(*) FROM runs) AS runs, (SELECT count(*) FROM nights) AS"
                    " nights"
                )[0]
            return JSONResponse({"status": "ok", "results": "readable", **counted})
        except StoreError as error:
            state, message = site.fault(error)
            return JSONResponse({"status": "ok", "results": state, "message": message})

    return routes


def _night(reader: Reader, name: str) -> dict[str, Any]:
    """The page of a night, with pictures from this server."""
    record = night_records.load(reader.frame, name)
    assert record is not None
    return night.context(record, reader.frame, _picture_links)


def _picture_links(questions: pd.DataFrame) -> dict[str, str]:
    pictured = questions[questions["pictured"]]
    keys = zip(pictured["benchmark_id"], pictured["image_id"], strict=True)
    return {str(image): layout.SERVED.link("pictures", of, image) for of, image in keys}


def _board(
    reader: Reader, suite: str, benchmark: str, wanted: dict[str, str], window: int
) -> dict[str, Any]:
    names = board.suites(reader)
    suite = chosen_from("suite", suite, names)
    folders = board.benchmarks(reader, suite) if suite else []
    ids = [b["benchmark_id"] for b in folders]
    every = (
        ids
        if not benchmark or benchmark in ids
        else [b["benchmark_id"] for s in names for b in board.benchmarks(reader, s)]
    )
    chosen_from("benchmark", benchmark, every)
    benchmark = benchmark if benchmark in ids else (ids[0] if ids else "")
    newest = board.newest_runs(reader, suite, benchmark)
    latest = board.widest(newest)
    chosen, options, replaced = board.choose(board.cells(reader, latest) if latest else [], wanted)
    scored, also = (
        board.nights_asked(reader, suite, benchmark, window),
        [r["run_id"] for r in newest],
    )
    estimates = board.numbers(reader, chosen, scored, also)
    for name in replaced:
        if not _anywhere(reader, name, wanted[name]):
            raise Refused(one_of(name, wanted[name], options[name]))
    rows = board.table(newest, estimates, chosen["metric"])
    times = board.nights_of(reader, window)
    past = board.history(scored, estimates)
    order = [r["model"] for r in rows]
    return {
        "suite": suite,
        "unit": suites.named(suite).cluster_unit,
        "suites": names,
        "benchmark": benchmark,
        "benchmarks": folders,
        "chosen": chosen,
        "options": options,
        "replaced": [f"{name} {wanted[name]!r}" for name in replaced],
        "rows": rows,
        "lacking": board.lacking(newest, estimates),
        "past": past,
        "newest": board.as_rows(past.tail(NEWEST)),
        "plots": over_nights.trends(past, times, chosen["metric"], order),
        "window": window,
        "windows": sorted({*board.WINDOWS, window}),
        "changes": _changes(past),
        "by_night": bool(times),
        "planted": [r["model"] for r in rows if r["provenance"] == "planted"],
        "address": {"suite": suite, "benchmark": benchmark, **chosen},
    }


def _anywhere(reader: Reader, name: str, value: str) -> bool:
    """Whether any run has this value of a column of CHOICES, so that it is valid but unavailable
    under the other choices."""
    assert name in board.CHOICES
    sql = f"SELECT 1 FROM {store.NUMBERS} WHERE study = 'headline' AND {name} = ? LIMIT 1"
    return bool(reader.ask(sql, [value]))


def _changes(past: pd.DataFrame) -> dict[str, float]:
    """model -> its value in its newest night minus that of the night before; 0 if it was
    unchanged."""
    with_value = past.dropna(subset=["value"])
    changes = with_value.groupby("model")["value"].diff().groupby(with_value["model"]).last()
    return {str(model): float(change) for model, change in changes.dropna().items()}
