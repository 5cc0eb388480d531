"""What one model's newest run on places found: sentences, the paper's figures of this model, errors
by target, CADE's parameters, and answers outside the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sdgbias import wording
from sdgbias.methods.stats import Estimate
from sdgbias.report.charts import draw, still_figure
from sdgbias.report.leans import leaning
from sdgbias.report.reader import SQL, Cells, Reader, Row
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, Task, View
from sdgbias.vocabulary import METHODS, WORDS

_COLUMNS = {name: title for name, title in METHODS.items() if name != "full_argmax"}
_ANSWERS = ("candidate_mass", "off_candidate_rate", "unparsed_rate", "tie_rate", "near_tie_rate")
_OF_TARGET = ("pillar", "indicator")
Place = Mapping[str, str]


def findings(reader: Reader, run_id: str) -> dict[str, Any]:
    """Everything of the page's first part, of one run."""
    given = {"runs": [run_id]}
    cells = Cells(reader, given["runs"])
    params = reader.ask(SQL["parameters"], given)
    figures = draw.draw(reader, given["runs"], ("model-views", "model-cade"))
    model = cells.models[0]
    return {
        "leaning": [(f"{v.pillar}: {v.verdict}", v.evidence) for v in leaning(cells, model)],
        "extra": [
            *_image_use(cells, model),
            *_cade(cells, model, params),
            *_withheld(cells, model),
            *_not_asked(cells),
        ],
        "methods": _COLUMNS,
        "figures": [*map(still_figure, figures.values())],
        "regression": _regression(cells, model, reader.ask(SQL["targets"], given)),
        "params": params,
        "answers": [
            {
                "task": WORDS.tasks[task.value].short.capitalize(),
                "view": METHODS[view.value],
                **line,
            }
            for task in Task
            for view in View
            for at in [{"model": model, "task": task.value, "test": "all", "method": view.value}]
            for line in _line(cells, ({**at, "metric": m} for m in _ANSWERS))
        ],
    }


def _change(e: Estimate, what: str, better: str, worse: str) -> str:
    """'CADE raises accuracy', as the interval of the change says."""
    none = "makes no measurable difference"
    return f"{what} { {1: better, 0: none, -1: worse}[wording.sign_of(e)] }"


def _image_use(cells: Cells, model: str) -> Iterable[tuple[str, str]]:
    """What the picture adds: Acc(Full) - Acc(CTX+Q) at T1."""
    where = {"study": "directions", "model": model, "task": "mcq", "test": "T1", "method": "full"}
    if (e := cells.estimate(**where, metric="accuracy_gain")) is not None:
        shown = wording.written(e, "accuracy_gain")
        text = f"{shown.value} points, Full minus CTX+Q at T1 {shown.aside}"
        yield _change(e, "The image", "helps", "hurts"), text


def _cade(cells: Cells, model: str, params: Sequence[Row]) -> Iterable[tuple[str, str]]:
    """What CADE changes, pooled over T1-T5."""
    names = ("accuracy_gain", "fixed_rate", "broken_rate")
    where = {"model": model, "task": "mcq", "test": "all", "method": "cade"}
    gain, fixed, broken = (cells.estimate(**where, metric=name) for name in names)
    if gain is None:
        return
    shown = wording.written(gain, "accuracy_gain")
    text = f"{shown.value} points over T1{wording.DASH}T5 {shown.aside}"
    if fixed is not None and broken is not None:
        of = (
            f"{wording.percent(e)} {{}} ({wording.labelled(wording.written(e).ci)})"
            for e in (fixed, broken)
        )
        text += "; " + ", ".join(map(str.format, of, ("of answers fixed", "broken")))
    notes = [n for p in params if p["task"] == "mcq" for n in (p["note"] or "").split("; ") if n]
    verdict = _change(gain, "CADE", "raises accuracy", "lowers accuracy")
    yield verdict, "; ".join([text, *dict.fromkeys(notes)])


def _withheld(cells: Cells, model: str) -> Iterable[tuple[str, str]]:
    """How much of what CADE answers depends on scores that an endpoint withheld."""
    where = {"model": model, "task": "mcq", "test": "all", "method": "cade"}
    names = ("certain_rate", "accuracy_low", "accuracy_high")
    certain, low, high = (cells.estimate(**where, metric=name) for name in names)
    if certain is not None and low is not None and high is not None and certain.value < 1:
        yield (
            "Some of CADE’s answers are one possibility of several",
            f"{wording.percent(certain)} of them hold whatever scores the endpoint withheld"
            f" {wording.written(certain).aside}; all scores could give an accuracy between"
            f" {wording.percent(low)} and {wording.percent(high)}",
        )


def _not_asked(cells: Cells) -> Iterable[tuple[str, str]]:
    """Why a model has no number of some views."""
    for what, need in (("Pictures", NEEDS_PICTURES), ("Signatures", NEEDS_SCORES)):
        if need in cells.reasons:
            yield f"{what} and CADE: {need}", WORDS.missing_reasons[need].description


def _line(cells: Cells, places: Iterable[Place]) -> list[dict[str, Any]]:
    """A row of a table, [] if the store has no number of it: cells, and their common n, or its
    range if they differ. A cell: value, ci and n as text; `missing` why there is none;
    None if the store has no such cell."""
    line: list[dict[str, Any] | None] = []
    for where in places:
        e = cells.estimate(**where)
        if e is not None:
            shown = wording.written(e, where["metric"])
            line.append({"value": shown.value, "ci": shown.ci, "n": e.n})
        else:
            lacks = cells.reason(**where)
            line.append({"missing": lacks} if lacks else None)
    counts = [c["n"] for c in line if c and "n" in c]
    return [{"cells": line, "n": wording.span(counts, wording.DASH)}] if counts else []


def _regression(cells: Cells, model: str, targets: Sequence[Row]) -> dict[str, Any] | None:
    """Interval accuracy pooled over targets, and MAE per target in the target's unit (a pooled MAE
    would mix units)."""

    def lines(metric: str, where: Sequence[tuple[str, str, Place]]) -> list[dict[str, Any]]:
        at = {"model": model, "task": "regression", "metric": metric}
        return [
            {"label": label, "unit": unit, **line}
            for label, unit, place in where
            for line in _line(cells, ({**at, **place, "method": m} for m in _COLUMNS))
        ]

    tests = [(t, "", {"test": t}) for t in ("T2", "T5", "all")]
    by_target = [
        (r["title"] or r["indicator"], r["unit"], {"test": "all"} | {k: r[k] for k in _OF_TARGET})
        for r in targets
    ]
    interval = lines("interval_accuracy", tests)
    parts = {"interval": interval, "mae": lines("mae", by_target), "pooled": lines("mae", tests)}
    return parts if interval else None
