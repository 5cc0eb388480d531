"""The report page: one HTML file that needs nothing but itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.report import board as boards
from sdgbias.report import browser, data, fairness_page, figures, night_page, pages, studies, words
from sdgbias.report.data import METHODS, ReportData
from sdgbias.report.paper_tables import Table
from sdgbias.retention.past import Then
from sdgbias.types import CONTEXT_NAMES, PILLARS, Task, View

TEMPLATES = Path(__file__).parent / "templates"
_SCALE = {"mae": 1.0}
_TASKS = {"mcq": "Choice", "regression": "Estimate"}


#: Pages of a benchmark folder that are published beside the report: the card and the Data Docs.
PUBLISHED = ("data_docs", "README.md")


def write_report(
    results: Path,
    out: Path,
    benchmark: Path | None = None,
    *,
    tables: Sequence[Table] | None = None,
    print_figures: bool = False,
    rank_planted: bool = False,
    then: Then | None = None,
) -> Path:
    """Writes ``out/index.html`` for the newest finished run of each model in ``results`` and returns its path.

    Beside it stand the further pages (`pages.PAGES`) that have anything to show. ``benchmark``: a benchmark folder whose Data Docs and card
    are copied to ``out/benchmark`` and linked. ``tables``: what `sdgbias reproduce` makes of the same results. ``print_figures``: also
    ``out/figures``. ``rank_planted``: planted models share the leaderboard's letters with measured ones. A page has no reference to
    anything but its neighbours and stays below 6 MB. ``then``: as of that moment (`past.then`) or of those runs (`past.only`). With runs of the second suite also ``out/fairness.html``; with nothing else, index.html
    only says so and links to it. With nights also ``out/night.html``. Same results, same bytes. Raises StoreError when there is no finished run, or when ``out`` can't be
    written.
    """
    among = None if then is None else then.runs
    people = fairness_page.load(Path(results), among)
    night = night_page.load(Path(results), then.night if then else "") if then is None or then.night else None
    latest = store.latest_runs(results, among=among)
    if not latest and (people is not None or night is not None):
        path = (
            _people_alone(people, Path(out), print_figures, night is not None) if people is not None else Path(out) / night_page.PAGE.file
        )
        shown = [("index.html", "Overview"), (fairness_page.PAGE.file, fairness_page.PAGE.title)] if people is not None else []
        night_page.publish(night, Path(results), Path(out), shown)
        return path
    found = data.load(Path(results), latest)
    runs = list(found.runs["run_id"])
    s = studies.load(Path(results), runs)
    board = boards.compare(Path(results), s.runs, rank_planted=rank_planted)
    drawn = pages.figures(s, board)
    nav = pages.present(drawn, tables)
    checks = _publish_docs(benchmark, Path(out) / "benchmark") if benchmark else ""
    linked = [*nav, *([fairness_page.PAGE] if people is not None else []), *([night_page.PAGE] if night is not None else [])]
    page = render(found, browser.examples(Path(results), runs), checks, linked, pages.leaderboard(board, pooled=True), s.unanalysed)
    texts = {p.file: pages.render(p, s, board, drawn.get(p.file, []), linked, tables) for p in nav}
    target, draft = Path(out) / "index.html", Path(out) / ".index.html.part"
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, target)
    except OSError as error:
        raise StoreError(f"can't write {target}: {error.strerror}; choose another --out") from None
    pages.write(Path(out), texts)
    (Path(out) / fairness_page.PAGE.file).unlink(missing_ok=True)
    if people is not None:
        fairness_page.write(people, Path(out), [("index.html", "Overview"), *((p.file, p.title) for p in linked)])
    night_page.publish(night, Path(results), Path(out), [("index.html", "Overview"), *((p.file, p.title) for p in linked)])
    if print_figures:
        parts = [(s.runs, pages.OF_PLACES, [f for made in drawn.values() for f in made])]
        if people is not None:
            parts.append((people.runs, pages.OF_PEOPLE, fairness_page.figures(people)))
        pages.export(Path(out) / "figures", parts)
    return target


def write_night(results: Path, out: Path) -> Path:
    """Only the page of the newest night, beside the pages that stand in ``out``; returns its path."""
    beside = [p for p in (*pages.PAGES, fairness_page.PAGE, night_page.PAGE) if (out / p.file).is_file()]
    night_page.publish(night_page.load(results), results, out, [("index.html", "Overview"), *((p.file, p.title) for p in beside)])
    return out / night_page.PAGE.file


def _people_alone(people: fairness_page.Fairness, out: Path, print_figures: bool, night: bool = False) -> Path:
    """A report of the second suite alone: its page, an index.html that leads to it, and no page of an earlier report."""
    page, target, draft = fairness_page.PAGE, out / "index.html", out / ".index.html.part"
    env = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined)
    text = env.get_template("people_alone.html.j2").render(
        style=(TEMPLATES / "style.css").read_text(encoding="utf-8"), page=page, runs=people.runs.to_dict("records"),
        date=_day(people.runs["finished_at"].max()), beside=[night_page.PAGE] if night else [],
    )  # fmt: skip
    beside = [(night_page.PAGE.file, night_page.PAGE.title)] if night else []
    fairness_page.write(people, out, [("index.html", "Overview"), (page.file, page.title), *beside])
    pages.write(out, {})
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    except OSError as error:
        raise StoreError(f"can't write {target}: {error.strerror}; choose another --out") from None
    if print_figures:
        pages.export(out / "figures", [(people.runs, pages.OF_PEOPLE, fairness_page.figures(people))])
    return target


def _publish_docs(benchmark: Path, out: Path) -> str:
    """Copies what a benchmark folder says of itself; returns the link to its Data Docs ('' where it has none)."""
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            source = benchmark / name
            if source.is_dir():
                shutil.copytree(source, out / name)
            elif source.is_file():
                shutil.copyfile(source, out / name)
    except OSError as error:
        raise StoreError(f"can't write {out}: {error.strerror}; choose another --out") from None
    return f"{out.name}/data_docs/index.html" if (out / "data_docs" / "index.html").is_file() else ""


def render(
    d: ReportData,
    shown: dict[str, Any],
    checks: str = "",
    nav: Sequence[pages.Page] = (),
    board: Sequence[dict[str, Any]] = (),
    unanalysed: Sequence[str] = (),
) -> str:
    """The page's text. ``shown`` is what ``browser.examples`` returns; ``checks`` links to the benchmark's Data Docs; ``nav``: the pages
    beside it; ``board``: the pooled leaderboard; ``unanalysed``: models without study rows."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    # '<' can't end the script element early, and the two separators are line ends to old JavaScript engines.
    inline = json.dumps(shown, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    inline = inline.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    questions = shown["questions"]
    return env.get_template("report.html.j2").render(
        title="SDG bias in vision–language models",
        style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
        script=(TEMPLATES / "browser.js").read_text(encoding="utf-8"),
        date=_day(d.runs["finished_at"].max()),
        runs=d.runs.to_dict("records"),
        mixed=d.runs["benchmark_id"].nunique() > 1,
        planted=[m for m, p in zip(d.runs["model"], d.runs["provenance"], strict=True) if p == "planted"],
        synthetic=[c for c in d.runs["config"] if json.loads(c or "{}").get("synthetic")],
        headlines=[_headline(d, m) for m in d.models],
        methods=METHODS,
        mcq=[_mcq_table(d, m) for m in d.models],
        regression=[t for m in d.models if (t := _regression_table(d, m))],
        colours=figures.COLOURS,
        figures={
            "3": figures.figure3(d), "4": figures.figure4(d), "5": figures.figure5(d), "7": figures.figure7(d),
            "7r": figures.figure7(d, Task.REGRESSION),
        },
        prompts=d.prompts.to_dict("records"),
        params=_params_table(d),
        changes=[row for m in d.models for row in _change_rows(d, m)],
        quarantine=d.quarantine.to_dict("records"),
        checks=checks,
        nav=[(p.file, p.title) for p in nav],
        absent=[p.title for p in pages.PAGES if p.studies and p not in nav],
        boards=board,
        unanalysed=unanalysed,
        failures=d.failures.to_dict("records"),
        answers=_answer_rows(d),
        context_names=", ".join(CONTEXT_NAMES.values()),
        n_questions=len(questions),
        filters={
            "model": [(m, m) for m in sorted({q["model"] for q in questions})],
            "pillar": [(p, p) for p in PILLARS if any(q["pillar"] == p for q in questions)],
            "test": [(t, t) for t in sorted({q["test"] for q in questions})],
            "outcome": [(o, name) for o, name in browser.OUTCOMES.items() if any(q["outcome"] == o for q in questions)],
        },
        examples=inline,
    )  # fmt: skip


def _day(when: pd.Timestamp) -> str:
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def _headline(d: ReportData, model: str) -> dict[str, Any]:
    row = d.runs[d.runs["model"] == model].iloc[0]
    points = [(f"{pillar}: {verdict}", evidence) for pillar, verdict, evidence in words.leaning(d, model)]
    extra = [x for x in (words.image_use(d, model), words.cade_change(d, model)) if x is not None]
    return {"model": model, "title": row["title"] or model, "provenance": row["provenance"], "leaning": points, "extra": extra}


def _cell(d: ReportData, where: dict[str, str], digits: int = 1) -> dict[str, Any] | None:
    """value, ci and n of one metric as text; None where the store has no such cell."""
    e = d.cell(**where)
    if e is None or e.value != e.value:
        return None
    scale = _SCALE.get(where["metric"], 100.0)
    ci = words.interval(e, scale, digits)
    return {"value": words.number(scale * e.value, digits), "ci": ci, "n": e.n}


def _mcq_table(d: ReportData, model: str) -> dict[str, Any]:
    rows = []
    for test in data.TESTS:
        cells = [_cell(d, {"model": model, "task": "mcq", "test": test, "method": m, "metric": "accuracy"}) for m in METHODS]
        if any(cells):
            rows.append({"test": test, "cells": cells, "n": _counts(cells)})
    return {"model": model, "rows": rows}


def _counts(cells: list[dict[str, Any] | None]) -> str:
    """The common n of a row, or its range where views differ."""
    n = sorted({c["n"] for c in cells if c})
    return f"{n[0]:,}" if len(n) == 1 else f"{n[0]:,}{words.DASH}{n[-1]:,}"


def _regression_table(d: ReportData, model: str) -> dict[str, Any] | None:
    """Interval accuracy pooled over targets, and MAE per target in its own unit (a pooled MAE would mix units)."""

    def rows(metric: str, where: list[tuple[str, str, dict[str, str]]], digits: int) -> list[dict[str, Any]]:
        out = []
        for label, unit, place in where:
            cells = [_cell(d, {"model": model, "task": "regression", "method": m, "metric": metric, **place}, digits) for m in METHODS]
            if any(cells):
                out.append({"label": label, "unit": unit, "cells": cells, "n": _counts(cells)})
        return out

    tests = [(t, "", {"test": t}) for t in ("T2", "T5", "all")]
    targets = d.indicators[d.indicators["task"] == "regression"]
    by_target = [
        (str(r.indicator_title or r.indicator), str(r.unit or ""), {"test": "all", "pillar": str(r.pillar), "indicator": str(r.indicator)})
        for r in targets.itertuples()
    ]
    interval = rows("interval_accuracy", tests, 1)
    return {"model": model, "interval": interval, "mae": rows("mae", by_target, 2), "pooled": rows("mae", tests, 2)} if interval else None


def _params_table(d: ReportData) -> list[dict[str, Any]]:
    out = []
    for r in d.params.to_dict("records"):
        value = float(r["val_value"])
        mcq = r["task"] == Task.MCQ.value
        shown = f"{words.number(100 * value)}{words.NBSP}%" if mcq else f"MAE {words.number(abs(value), 2)}"
        numbers = {k: words.number(float(r[k]), 3) for k in ("alpha", "lambda_kl", "beta", "tau")}
        out.append({"model": r["model"], "task": _TASKS[r["task"]], "test": r["test"], **numbers, "val": shown,
                    "n_val": f"{int(r['n_val']):,}", "n_draws": f"{int(r['n_draws']):,}"})  # fmt: skip
    return out


def _change_rows(d: ReportData, model: str) -> list[dict[str, Any]]:
    names = ("accuracy_gain", "changed_rate", "fixed_rate", "broken_rate", "kept_rate")
    out = []
    for test in data.TESTS:
        found = {m: d.cell(model=model, task="mcq", test=test, method="cade", metric=m) for m in names}
        gain = found["accuracy_gain"]
        if gain is None:
            continue
        cells: list[dict[str, str] | None] = []
        for metric, e in found.items():
            signed = metric == "accuracy_gain"
            cells.append({"value": words.number(100 * e.value, signed=signed), "ci": words.interval(e, signed=signed)} if e else None)
        out.append({"model": model, "test": test, "n": f"{gain.n:,}", "cells": cells})
    return out


def _answer_rows(d: ReportData) -> list[dict[str, Any]]:
    """Candidate mass, off-candidate and unparsed answers per model, task and view, pooled over tests."""
    out = []
    for model in d.models:
        for task in Task:
            for view in View:
                where = {"model": model, "task": task.value, "test": "all", "method": view.value}
                mass, off, unparsed = (_cell(d, {"metric": m, **where}) for m in ("candidate_mass", "off_candidate_rate", "unparsed_rate"))
                cells = [mass, off, unparsed]
                if any(cells):
                    out.append(
                        {"model": model, "task": _TASKS[task.value], "view": METHODS[view.value], "cells": cells, "n": _counts(cells)}
                    )
    return out
