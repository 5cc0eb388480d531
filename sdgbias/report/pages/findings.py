"""What one model's newest run on places found: sentences, the paper's figures of this model, errors
by target, CADE's parameters, and answers outside the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sdgbias.methods.stats import Estimate
from sdgbias.report import labels
from sdgbias.report.charts import places, still_figure
from sdgbias.report.data import ReportData
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, Task, View
from sdgbias.vocabulary import METHODS, WORDS

_COLUMNS = {name: title for name, title in METHODS.items() if name != "full_argmax"}
_ANSWERS = ("candidate_mass", "off_candidate_rate", "unparsed_rate", "tie_rate", "near_tie_rate")
Place = Mapping[str, str]


def of_model(d: ReportData, model: str) -> ReportData:
    """The same data with the rows of one model alone."""
    tables = ("runs", "metrics", "params", "image_use", "worded")
    return replace(d, **{t: (rows := getattr(d, t))[rows["model"] == model] for t in tables})


def findings(d: ReportData, model: str) -> dict[str, Any]:
    """Everything of the page's first part. ``d``: with this model among its runs."""
    own = of_model(d, model)
    return {
        "leaning": [(f"{v.pillar}: {v.verdict}", v.evidence) for v in labels.leaning(own, model)],
        "extra": [*_image_use(own), *_cade(own, model), *_not_asked(own)],
        "methods": _COLUMNS,
        "figures": [still_figure(f) for f in places.of_model(own)],
        "regression": _regression(own, model),
        "params": own.params.to_dict("records"),
        "answers": [
            {
                "task": WORDS.tasks[task.value].short.capitalize(),
                "view": METHODS[view.value],
                **line,
            }
            for task in Task
            for view in View
            for at in [{"model": model, "task": task.value, "test": "all", "method": view.value}]
            for line in _line(own, ({**at, "metric": m} for m in _ANSWERS))
        ],
    }


def _change(e: Estimate, what: str, better: str, worse: str) -> str:
    """'CADE raises accuracy', as the interval of the change says."""
    none = "makes no measurable difference"
    return f"{what} { {1: better, 0: none, -1: worse}[labels.sign_of(e)] }"


def _image_use(d: ReportData) -> Iterable[tuple[str, str]]:
    """What the picture adds: Acc(Full) - Acc(CTX+Q) at T1."""
    for row in d.image_use[d.image_use["pillar"] == "all"].to_dict("records"):
        e = Estimate.of_row(row)
        shown = labels.written(e, "accuracy_gain")
        text = f"{shown.value} points, Full minus CTX+Q at T1 {shown.aside}"
        yield _change(e, "The image", "helps", "hurts"), text


def _cade(d: ReportData, model: str) -> Iterable[tuple[str, str]]:
    """What CADE changes, pooled over T1-T5."""
    names = ("accuracy_gain", "fixed_rate", "broken_rate")
    where = {"model": model, "task": "mcq", "test": "all", "method": "cade"}
    gain, fixed, broken = (d.cell(**where, metric=name) for name in names)
    if gain is None:
        return
    shown = labels.written(gain, "accuracy_gain")
    text = f"{shown.value} points over T1{labels.DASH}T5 {shown.aside}"
    if fixed is not None and broken is not None:
        of = (f"{labels.percent(e)} {{}} (CI {labels.interval(e)})" for e in (fixed, broken))
        text += "; " + ", ".join(map(str.format, of, ("of answers fixed", "broken")))
    verdict = _change(gain, "CADE", "raises accuracy", "lowers accuracy")
    yield verdict, "; ".join([text, *d.tuning_notes(model)])


def _not_asked(own: ReportData) -> Iterable[tuple[str, str]]:
    """Why a model has no number of some views."""
    reasons = set(own.metrics["missing_reason"])
    if NEEDS_PICTURES in reasons:
        why = "a language model: it is asked the two views without a picture"
        yield f"Pictures and CADE: {NEEDS_PICTURES}", why
    if NEEDS_SCORES in reasons:
        why = "its endpoint gives text only: its answers are read, as the papers read closed models"
        yield f"Signatures and CADE: {NEEDS_SCORES}", why


def _line(d: ReportData, cells: Iterable[Place]) -> list[dict[str, Any]]:
    """A row of a table, [] if the store has no number of it: cells, and their common n, or its
    range if they differ. A cell: value, ci and n as text; `missing` why there is none;
    None if the store has no such cell."""
    made: list[dict[str, Any] | None] = []
    for where in cells:
        e = d.cell(**where)
        if e is not None:
            shown = labels.written(e, where["metric"])
            made.append({"value": shown.value, "ci": shown.ci, "n": e.n})
        else:
            lacks = d.reason(**where)
            made.append({"missing": lacks} if lacks else None)
    counts = [c["n"] for c in made if c and "n" in c]
    return [{"cells": made, "n": labels.span(counts, labels.DASH)}] if counts else []


def _regression(d: ReportData, model: str) -> dict[str, Any] | None:
    """Interval accuracy pooled over targets, and MAE per target in the target's unit (a pooled MAE
    would mix units)."""

    def rows(metric: str, where: Sequence[tuple[str, str, Place]]) -> list[dict[str, Any]]:
        at = {"model": model, "task": "regression", "metric": metric}
        return [
            {"label": label, "unit": unit, **line}
            for label, unit, place in where
            for line in _line(d, ({**at, **place, "method": m} for m in _COLUMNS))
        ]

    tests = [(t, "", {"test": t}) for t in ("T2", "T5", "all")]
    targets = d.indicators[d.indicators["task"] == "regression"].fillna("").astype(str)
    by_target = [
        (
            r["indicator_title"] or r["indicator"],
            r["unit"],
            {"test": "all", "pillar": r["pillar"], "indicator": r["indicator"]},
        )
        for r in targets.to_dict("records")
    ]
    interval = rows("interval_accuracy", tests)
    parts = {"interval": interval, "mae": rows("mae", by_target), "pooled": rows("mae", tests)}
    return parts if interval else None
