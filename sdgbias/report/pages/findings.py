"""What one model's newest run on places found: sentences, the paper's figures of this model, errors
by target, CADE's parameters, and answers outside the candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sdgbias.analysis.asked import gives_scores, language_model, needs
from sdgbias.report import labels
from sdgbias.report.charts import places, still_figure
from sdgbias.report.data import ReportData
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, Task, View
from sdgbias.vocabulary import METHODS, WORDS

_COLUMNS = {name: title for name, title in METHODS.items() if name != "full_argmax"}


def of_model(d: ReportData, model: str) -> ReportData:
    """The same data with the rows of one model alone."""
    runs = d.runs[d.runs["model"] == model]
    return replace(
        d,
        runs=runs,
        metrics=d.metrics[d.metrics["model"] == model],
        params=d.params[d.params["model"] == model],
        image_use=d.image_use[d.image_use["model"] == model],
        worded=d.worded[d.worded["model"] == model],
    )


def findings(d: ReportData, model: str) -> dict[str, Any]:
    """Everything of the page's first part. ``d``: with this model among its runs."""
    own = of_model(d, model)
    return _headline(own, model) | {
        "methods": _COLUMNS,
        "figures": [still_figure(f) for f in places.of_model(own)],
        "regression": _regression_table(own, model),
        "params": own.params.to_dict("records"),
        "answers": _answer_rows(own),
    }


def _headline(d: ReportData, model: str) -> dict[str, Any]:
    points = [(f"{v.pillar}: {v.verdict}", v.evidence) for v in labels.leaning(d, model)]
    extra = [x for x in (labels.image_use(d, model), labels.cade_change(d, model)) if x is not None]
    if language_model(d.config(model)):
        why = "a language model: it is asked the two views without a picture"
        extra.append((f"Pictures and CADE: {NEEDS_PICTURES}", why))
    if not gives_scores(d.config(model)):
        why = "its endpoint gives text only: its answers are read, as the papers read closed models"
        extra.append((f"Signatures and CADE: {NEEDS_SCORES}", why))
    return {"leaning": points, "extra": extra}


def _cell(d: ReportData, where: dict[str, str]) -> dict[str, Any] | None:
    """value, ci and n of one metric as text; `missing` why a language model has none; None if the
    store has no such cell."""
    e = d.cell(**where)
    if e is None or e.value != e.value:
        lacks = needs(d.config(where["model"]), where["method"], where.get("task", ""))
        return {"missing": lacks} if lacks else None
    shown = labels.written(e, where["metric"])
    return {"value": shown.value, "ci": shown.ci, "n": e.n}


def _known(cells: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [c for c in cells if c and "n" in c]


def _counts(cells: list[dict[str, Any] | None]) -> str:
    """The common n of a row, or its range if the views differ."""
    return labels.span((c["n"] for c in _known(cells)), labels.DASH)


def _regression_table(d: ReportData, model: str) -> dict[str, Any] | None:
    """Interval accuracy pooled over targets, and MAE per target in the target's unit (a pooled MAE
    would mix units)."""

    def rows(metric: str, where: list[tuple[str, str, dict[str, str]]]) -> list[dict[str, Any]]:
        out = []
        for label, unit, place in where:
            cells = [
                _cell(
                    d, {"model": model, "task": "regression", "method": m, "metric": metric} | place
                )
                for m in _COLUMNS
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
    interval = rows("interval_accuracy", tests)
    return (
        {
            "interval": interval,
            "mae": rows("mae", by_target),
            "pooled": rows("mae", tests),
        }
        if interval
        else None
    )


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
                            "task": WORDS.tasks[task.value].short.capitalize(),
                            "view": METHODS[view.value],
                            "cells": cells,
                            "n": _counts(cells),
                        }
                    )
    return out
