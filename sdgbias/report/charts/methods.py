"""Figures of the page Methods: every debiasing method beside the views and CADE, reordered options
(Table J), answer directions."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sdgbias.report.charts import Figure, NoRows, drawn, like_first, shaped
from sdgbias.report.charts.marks import Hue, Rows, ValueAxis, barred, dotted, stacked
from sdgbias.report.charts.paper import COLOURS
from sdgbias.report.data import METHODS, Studies, method_name

#: Kinds of method and their colours.
KINDS = (
    ("view", "#7f7f7f"),
    ("CADE", "#d55e00"),
    ("fixed settings", "#2f86c4"),
    ("tuned on val", "#009e73"),
    ("control", "#b5679a"),
)
DIRECTIONS = tuple((d, COLOURS[d]) for d in ("pessimistic", "conservative", "optimistic"))
INVALID = ("invalid", "#7b5ea7")
ORDERS = ("original", "reversed", "random", "abc", "123")
_VIEWS = ("q_only", "ctx_q", "img_q", "full")


def figures(s: Studies) -> list[Figure]:
    return drawn(s, _accuracy, _gain, _estimation, _perturbation, _directions, _two_options)


def kind_of(method: str) -> str:
    """Category of a method: a view, CADE, one with fixed settings, one tuned on val, or a control
    that uses no evidence."""
    from sdgbias.methods.baselines import METHODS as BASELINES

    if method == "cade":
        return "CADE"
    if method in _VIEWS:
        return "view"
    return (
        "control"
        if method not in BASELINES
        else "tuned on val"
        if BASELINES[method].tuned
        else "fixed settings"
    )


def title_of(method: str) -> str:
    from sdgbias.methods.baselines import METHODS as BASELINES

    return (
        str(BASELINES[method].title)
        if method in BASELINES
        else METHODS.get(method, method.replace("_", " "))
    )


def _with_methods(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(
        kind=frame["method"].map(kind_of),
        title=frame["method"].map(title_of),
        method=frame["method"].map(method_name),
    )


def _sorted(name: str, frame: pd.DataFrame, title: str, unit: str, *, zero: bool = False) -> Figure:
    axis, hue = ValueAxis(title, zero=zero), Hue("kind", KINDS)
    rows = Rows(by_value=True)
    return dotted(name, frame, "method", axis, hue, rows, best=_best(frame, unit))


def _ranked(s: Studies, own: pd.DataFrame, headline: pd.DataFrame) -> pd.DataFrame:
    """Rows of the study and the headline metrics of the same models, in the order of the runs."""
    return s.ordered(
        pd.concat([own, headline[headline["model"].isin(set(own["model"]))]], ignore_index=True)
    )


def _best(frame: pd.DataFrame, unit: str) -> str:
    """A sentence about the first model, pooled over everything. A method is called the highest only
    where its interval lies above those of all others; else the number of methods that its interval
    does not tell apart from it is given."""
    mine = like_first(frame, "model", "test", "pillar")
    at: Any = mine["value"].astype(float).idxmax()
    top, others = mine.loc[at], mine.drop(index=at)
    measured = (
        f"{top['method']} with {top['said']}{unit} (95 % CI {top['ci']}, n {top['n']:,};"
        f" {top['test']})"
    )
    # an estimate without an interval (too few places) can be told apart from nothing
    low = float("nan") if top["low"] is None else float(top["low"])
    reach = int((~(others["high"].astype(float) < low)).sum())
    if reach == 0:
        return f"for {top['model']}, the highest is {measured}."
    return (
        f"for {top['model']}, no method is the highest beyond its interval: first {measured}, and"
        f" {reach} of {len(others)} others can't be told apart from it."
    )


def _accuracy(s: Studies) -> Figure:
    own = s.of("methods", "accuracy", task="mcq")
    frame = _with_methods(shaped(_ranked(s, own, s.headline("accuracy", task="mcq"))))
    return _sorted("methods-accuracy", frame, "accuracy, %", " %")


def _gain(s: Studies) -> Figure:
    own = s.of("methods", "accuracy_gain", task="mcq")
    frame = _with_methods(
        shaped(_ranked(s, own, s.headline("accuracy_gain", task="mcq", method="cade")), signed=True)
    )
    return _sorted("methods-gain", frame, "gain over Full, points", " points", zero=True)


def _estimation(s: Studies) -> Figure:
    own = s.of("methods", "interval_accuracy", task="regression", pillar="all pillars")
    headline = s.headline("interval_accuracy", task="regression", pillar="all pillars")
    frame = _with_methods(shaped(_ranked(s, own, headline)))
    return _sorted("methods-estimation", frame, "within tolerance, %", " %")


def _shares(
    frame: pd.DataFrame, prefix: str, keys: list[str], legend: tuple[tuple[str, str], ...]
) -> pd.DataFrame:
    frame = shaped(frame).assign(
        direction=lambda f: f["metric"].str.removeprefix(prefix).str.removesuffix("_two_option")
    )
    return stacked(frame, keys, "direction", [n for n, _ in legend])


def _perturbation(s: Studies) -> Figure:
    own = s.of("perturbation", *(f"share_{d}" for d, _ in DIRECTIONS), by="order")
    frame = _shares(own, "share_", ["model", "pillar", "level"], DIRECTIONS)
    prompts = (
        s.of("perturbation", "distinct_prompts")
        .set_index(["model", "pillar", "level"])["value"]
        .to_dict()
    )
    frame["prompts"] = [
        f"{int(prompts.get((r.model, r.pillar, r.level), 0)):,}" for r in frame.itertuples()
    ]
    title, hue = "share of answers, %", Hue("direction", DIRECTIONS)
    return barred("perturbation", frame, "level", title, hue, ORDERS)


def _directions(s: Studies) -> Figure:
    views = s.of("directions", *(f"answered_{d}" for d, _ in (*DIRECTIONS, INVALID)))
    cade = s.of("directions", *(f"share_{d}" for d, _ in DIRECTIONS), method="cade", by="")
    if views.empty:
        raise NoRows
    legend = (*DIRECTIONS, INVALID)
    both = _ranked(
        s,
        views.assign(metric=views["metric"].str.removeprefix("answered_")),
        cade.assign(metric=cade["metric"].str.removeprefix("share_")),
    )
    frame = _shares(
        both.assign(method=both["method"].map(method_name)),
        "",
        ["model", "test", "pillar", "method"],
        legend,
    )
    return _by_direction("directions", frame, legend)


def _two_options(s: Studies) -> Figure:
    legend = (DIRECTIONS[0], DIRECTIONS[2])
    own = s.of("directions", *(f"share_{d}_two_option" for d, _ in legend), by="")
    frame = _shares(
        own.assign(method=own["method"].map(method_name)),
        "share_",
        ["model", "test", "pillar", "method"],
        legend,
    )
    return _by_direction("directions-two", frame, legend)


def _by_direction(name: str, frame: pd.DataFrame, legend: tuple[tuple[str, str], ...]) -> Figure:
    hue, order = Hue("direction", legend), list(METHODS.values())
    return barred(name, frame, "method", "share of answers, %", hue, order)
