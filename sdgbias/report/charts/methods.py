"""Figures of the page Methods: every debiasing method beside the views and CADE, reordered options
(Table J), answer directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from sdgbias.report.charts import Figure, NoRows, drawn, figure, like_first, shaped
from sdgbias.report.charts.marks import stacked
from sdgbias.report.data import DIRECTIONS, Studies, method_name
from sdgbias.vocabulary import METHODS

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
    # an estimate without an interval (too few places) can't be told apart from any other
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
    return figure("methods-accuracy", frame, best=_best(frame, " %"))


def _gain(s: Studies) -> Figure:
    own = s.of("methods", "accuracy_gain", task="mcq")
    frame = _with_methods(
        shaped(_ranked(s, own, s.headline("accuracy_gain", task="mcq", method="cade")), signed=True)
    )
    return figure("methods-gain", frame, best=_best(frame, " points"))


def _estimation(s: Studies) -> Figure:
    own = s.of("methods", "interval_accuracy", task="regression", pillar="all pillars")
    headline = s.headline("interval_accuracy", task="regression", pillar="all pillars")
    frame = _with_methods(shaped(_ranked(s, own, headline)))
    return figure("methods-estimation", frame, best=_best(frame, " %"))


def _shares(frame: pd.DataFrame, keys: Sequence[str], directions: Sequence[str]) -> pd.DataFrame:
    """Parts of bars, one per direction, of which metrics speak as share_D, answered_D or
    share_D_two_option."""
    frame = shaped(frame).assign(
        method=lambda f: f["method"].map(method_name),
        direction=lambda f: f["metric"].str.split("_").str[1],
    )
    return stacked(frame, keys, "direction", directions)


def _perturbation(s: Studies) -> Figure:
    own = s.of("perturbation", *(f"share_{d}" for d in DIRECTIONS))
    keys = ["model", "pillar", "parameter"]
    frame = _shares(own, keys, DIRECTIONS)
    prompts = s.of("perturbation", "distinct_prompts").set_index(keys)["value"].to_dict()
    frame["prompts"] = [
        f"{int(prompts.get((r.model, r.pillar, r.parameter), 0)):,}" for r in frame.itertuples()
    ]
    return figure("perturbation", frame)


def _directions(s: Studies) -> Figure:
    directions = (*DIRECTIONS, "invalid")
    views = s.of("directions", *(f"answered_{d}" for d in directions))
    cade = s.of("directions", *(f"share_{d}" for d in DIRECTIONS), method="cade")
    if views.empty:
        raise NoRows
    return _by_direction("directions", _ranked(s, views, cade), directions)


def _two_options(s: Studies) -> Figure:
    directions = ("pessimistic", "optimistic")
    own = s.of("directions", *(f"share_{d}_two_option" for d in directions))
    return _by_direction("directions-two", own, directions)


def _by_direction(name: str, own: pd.DataFrame, directions: Sequence[str]) -> Figure:
    frame = _shares(own, ["model", "test", "pillar", "method"], directions)
    return figure(name, frame, sort=list(METHODS.values()))
