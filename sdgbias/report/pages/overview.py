"""The overview, index.html: one self-contained page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from sdgbias.analysis.asked import gives_scores, language_model, needs
from sdgbias.report import data, labels
from sdgbias.report.charts import paper
from sdgbias.report.data import METHODS, ReportData
from sdgbias.report.layout import TEMPLATES, TITLE, Page
from sdgbias.report.pages import examples, studies
from sdgbias.types import CONTEXT_NAMES, NEEDS_PICTURES, NEEDS_SCORES, PILLARS, Task, View

_SCALE = {"mae": 1.0}
_TASKS = {"mcq": "Choice", "regression": "Estimate"}


def context(
    d: ReportData,
    shown: dict[str, Any],
    checks: str = "",
    nav: Sequence[Page] = (),
    board: Sequence[dict[str, Any]] = (),
    unanalysed: Sequence[str] = (),
) -> dict[str, Any]:
    """Data of report.html.j2. ``shown``: the result of ``examples.examples``; ``checks``: link to
    the benchmark's Data Docs; ``nav``: the other pages; ``board``: the pooled leaderboard;
    ``unanalysed``: models without study rows."""
    # '<' can't end the script element early, and the two separators are line ends to old JavaScript
    # engines.
    inline = json.dumps(shown, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    inline = inline.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    questions = shown["questions"]
    return {
        "title": TITLE,
        "script": (TEMPLATES / "browser.js").read_text(encoding="utf-8"),
        "date": _day(d.runs["finished_at"].max()),
        "runs": [{**r, "extra_prompts": extra_prompts(r)} for r in d.runs.to_dict("records")],
        "mixed": d.runs["benchmark_id"].nunique() > 1,
        "planted": [
            m for m, p in zip(d.runs["model"], d.runs["provenance"], strict=True) if p == "planted"
        ],
        "synthetic": [c for c in d.runs["config"] if json.loads(c or "{}").get("synthetic")],
        "headlines": [_headline(d, m) for m in d.models],
        "methods": METHODS,
        "mcq": [_mcq_table(d, m) for m in d.models],
        "regression": [t for m in d.models if (t := _regression_table(d, m))],
        "colours": paper.COLOURS,
        "figures": {
            "3": paper.figure3(d),
            "4": paper.figure4(d),
            "5": paper.figure5(d),
            "7": paper.figure7(d),
            "7r": paper.figure7(d, Task.REGRESSION),
        },
        "prompts": d.prompts.to_dict("records"),
        "params": _params_table(d),
        "changes": [row for m in d.models for row in _change_rows(d, m)],
        "quarantine": d.quarantine.to_dict("records"),
        "checks": checks,
        "absent": [p.title for p in studies.PAGES if p.studies and p not in nav],
        "boards": board,
        "unanalysed": unanalysed,
        "failures": d.failures.to_dict("records"),
        "answers": _answer_rows(d),
        "context_names": ", ".join(CONTEXT_NAMES.values()),
        "n_questions": len(questions),
        "filters": {
            "model": [(m, m) for m in sorted({q["model"] for q in questions})],
            "pillar": [(p, p) for p in PILLARS if any(q["pillar"] == p for q in questions)],
            "test": [(t, t) for t in sorted({q["test"] for q in questions})],
            "outcome": [
                (o, name)
                for o, name in examples.OUTCOMES.items()
                if any(q["outcome"] == o for q in questions)
            ],
        },
        "examples": inline,
    }


def context_without_places(
    runs: pd.DataFrame, beside: Sequence[Page], what: str = "on pictures of people"
) -> dict[str, Any]:
    """Data of people_alone.html.j2, the overview of results without the first suite: it states
    what they cover and links to the existing pages. runs: with label and data."""
    return {
        "runs": runs.to_dict("records"),
        "beside": beside,
        "what": what,
        "date": _day(runs["finished_at"].max()),
    }


def _day(when: pd.Timestamp) -> str:
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def extra_prompts(run: dict[Any, Any]) -> int:
    """Distinct prompts of a run used only by extra prompts; the paper's views don't count them."""
    return int((json.loads(run["config"] or "{}").get("extra") or {}).get("prompts", 0))


def _headline(d: ReportData, model: str) -> dict[str, Any]:
    row = d.runs[d.runs["model"] == model].iloc[0]
    points = [
        (f"{pillar}: {verdict}", evidence) for pillar, verdict, evidence in labels.leaning(d, model)
    ]
    extra = [x for x in (labels.image_use(d, model), labels.cade_change(d, model)) if x is not None]
    if blind := language_model(d.config(model)):
        why = "a language model: it is asked the two views without a picture"
        extra.append((f"Pictures and CADE: {NEEDS_PICTURES}", why))
    if not gives_scores(d.config(model)):
        why = "its endpoint gives text only: its answers are read, as the papers read closed models"
        extra.append((f"Signatures and CADE: {NEEDS_SCORES}", why))
    return {
        "model": model,
        "title": row["title"] or model,
        "provenance": row["provenance"],
        "language": blind,
        "leaning": points,
        "extra": extra,
    }


def _cell(d: ReportData, where: dict[str, str], digits: int = 1) -> dict[str, Any] | None:
    """value, ci and n of one metric as text; `missing` why a language model has none; None if the
    store has no such cell."""
    e = d.cell(**where)
    if e is None or e.value != e.value:
        lacks = needs(d.config(where["model"]), where["method"], where.get("task", ""))
        return {"missing": lacks} if lacks else None
    scale = _SCALE.get(where["metric"], 100.0)
    ci = labels.interval(e, scale, digits)
    return {"value": labels.number(scale * e.value, digits), "ci": ci, "n": e.n}


def _mcq_table(d: ReportData, model: str) -> dict[str, Any]:
    rows = []
    for test in data.TESTS:
        cells = [
            _cell(
                d, {"model": model, "task": "mcq", "test": test, "method": m, "metric": "accuracy"}
            )
            for m in METHODS
        ]
        if _known(cells):
            rows.append({"test": test, "cells": cells, "n": _counts(cells)})
    return {"model": model, "rows": rows}


def _known(cells: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [c for c in cells if c and "n" in c]


def _counts(cells: list[dict[str, Any] | None]) -> str:
    """The common n of a row, or its range if the views differ."""
    n = sorted({c["n"] for c in _known(cells)})
    return f"{n[0]:,}" if len(n) == 1 else f"{n[0]:,}{labels.DASH}{n[-1]:,}"


def _regression_table(d: ReportData, model: str) -> dict[str, Any] | None:
    """Interval accuracy pooled over targets, and MAE per target in the target's unit (a pooled MAE
    would mix units)."""

    def rows(
        metric: str, where: list[tuple[str, str, dict[str, str]]], digits: int
    ) -> list[dict[str, Any]]:
        out = []
        for label, unit, place in where:
            cells = [
                _cell(
                    d,
                    {"model": model, "task": "regression", "method": m, "metric": metric, **place},
                    digits,
                )
                for m in METHODS
            ]
            if _known(cells):
                out.append({"label": label, "unit": unit, "cells": cells, "n": _counts(cells)})
        return out

    tests = [(t, "", {"test": t}) for t in ("T2", "T5", "all")]
    targets = d.indicators[d.indicators["task"] == "regression"]
    by_target = [
        (
            str(r.indicator_title or r.indicator),
            str(r.unit or ""),
            {"test": "all", "pillar": str(r.pillar), "indicator": str(r.indicator)},
        )
        for r in targets.itertuples()
    ]
    interval = rows("interval_accuracy", tests, 1)
    return (
        {
            "model": model,
            "interval": interval,
            "mae": rows("mae", by_target, 2),
            "pooled": rows("mae", tests, 2),
        }
        if interval
        else None
    )


def _params_table(d: ReportData) -> list[dict[str, Any]]:
    out = []
    for r in d.params.to_dict("records"):
        value = float(r["val_value"])
        mcq = r["task"] == Task.MCQ.value
        shown = (
            f"{labels.number(100 * value)}{labels.NBSP}%"
            if mcq
            else f"MAE {labels.number(abs(value), 2)}"
        )
        numbers = {k: labels.number(float(r[k]), 3) for k in ("alpha", "lambda_kl", "beta", "tau")}
        out.append(
            {
                "model": r["model"],
                "task": _TASKS[r["task"]],
                "test": r["test"],
                **numbers,
                "val": shown,
                "n_val": f"{int(r['n_val']):,}",
                "n_draws": f"{int(r['n_draws']):,}",
                "note": r["note"] if isinstance(r["note"], str) else "",
            }
        )
    return out


def _change_rows(d: ReportData, model: str) -> list[dict[str, Any]]:
    names = ("accuracy_gain", "changed_rate", "fixed_rate", "broken_rate", "kept_rate")
    out = []
    for test in data.TESTS:
        found = {
            m: d.cell(model=model, task="mcq", test=test, method="cade", metric=m) for m in names
        }
        gain = found["accuracy_gain"]
        if gain is None:
            continue
        cells: list[dict[str, str] | None] = []
        for metric, e in found.items():
            signed = metric == "accuracy_gain"
            cells.append(
                {
                    "value": labels.number(100 * e.value, signed=signed),
                    "ci": labels.interval(e, signed=signed),
                }
                if e
                else None
            )
        out.append({"model": model, "test": test, "n": f"{gain.n:,}", "cells": cells})
    return out


_ANSWER_METRICS = (
    "candidate_mass",
    "off_candidate_rate",
    "unparsed_rate",
    "tie_rate",
    "near_tie_rate",
)


def _answer_rows(d: ReportData) -> list[dict[str, Any]]:
    """_ANSWER_METRICS per model, task and view, pooled over tests."""
    out = []
    for model in d.models:
        for task in Task:
            for view in View:
                where = {"model": model, "task": task.value, "test": "all", "method": view.value}
                cells = [_cell(d, {"metric": m, **where}) for m in _ANSWER_METRICS]
                if _known(cells):
                    out.append(
                        {
                            "model": model,
                            "task": _TASKS[task.value],
                            "view": METHODS[view.value],
                            "cells": cells,
                            "n": _counts(cells),
                        }
                    )
    return out
