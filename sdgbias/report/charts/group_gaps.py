"""Figures of the page Groups: accuracy by country, urban and rural, wealth, with and without a
street photo; disparities between groups, and whether CADE narrows them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from sdgbias.analysis.night_text import p_value
from sdgbias.report.charts import Figure, drawn, figure, like_first, named, of_study, shaped
from sdgbias.report.data import Studies

BY = {
    "country": "country",
    "urban": "urban and rural",
    "wealth": "wealth",
    "urban x wealth": "urban and rural by wealth",
    "photo": "pictures with and without a street photo",
}
_LEVELS = ("poorest", "middle", "richest")


def figures(s: Studies) -> list[Figure]:
    return drawn(s, *(partial(_accuracy, by=by) for by in BY), _gaps, _change)


def _accuracy(s: Studies, by: str) -> Figure:
    """One figure per grouping, because countries are only shown for all tests together."""
    own = s.of("groups", "accuracy", task="mcq", attribute=by, method=["full", "cade"])
    frame = named(shaped(own), "groups").assign(group=lambda f: f["group"].str.replace(" x ", ", "))
    order = (
        sorted(set(frame["group"]), key=_rank)
        if by != "country"
        else {"field": "value", "op": "max", "order": "descending"}
    )
    small = int(own["value"].isna().sum())
    made = figure(
        "groups",
        frame,
        sort=order,
        said=BY[by],
        spread=_spread(frame),
        small=f" {small:,} groups of fewer than 20 questions have no value." if small else "",
    )
    filters = ("model",) if by == "country" else ("model", "test")
    return replace(made, name=f"groups-{by.replace(' x ', '-')}", filters=filters)


def _rank(group: str) -> list[tuple[int, str]]:
    """Poorest before richest, otherwise by name."""
    return [(_LEVELS.index(part) if part in _LEVELS else -1, part) for part in group.split(", ")]


def _spread(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    mine = like_first(frame, "model", "test")
    mine = mine[mine["method"] == "Full"]
    value = mine["value"].astype(float)
    ends: list[Any] = [value.idxmax(), value.idxmin()]
    top, low = (mine.loc[at] for at in ends)
    if None in (top["low"], low["high"]):
        verdict = "one of the two has no interval, so they can’t be compared"
    else:
        verdict = f"the two intervals {'don’t overlap' if top['low'] > low['high'] else 'overlap'}"
    return (
        f"Full of {first['model']} lies between"
        f" {low['said']} % ({low['group']}, CI {low['ci']}, n {low['n']:,}) and {top['said']} %"
        f" ({top['group']}, CI {top['ci']}, n {top['n']:,}): {verdict}."
    )


def _gaps(s: Studies) -> Figure:
    made = of_study("groups-gaps")(s)
    return replace(made, frame=made.frame.assign(p=made.frame["p"].map(p_value)))


def _change(s: Studies) -> Figure:
    own = s.of("groups", "disparity_change")
    frame = named(shaped(own, signed=True), "groups-change")
    frame = frame.assign(p=frame["p"].map(p_value))
    first = like_first(frame, "model", "test", "task")
    wider, narrower = (
        (first["low"].astype(float) > 0).sum(),
        (first["high"].astype(float) < 0).sum(),
    )
    return figure(
        "groups-change",
        frame,
        model=frame["model"].iloc[0],
        narrower=narrower,
        wider=wider,
        same=len(first) - wider - narrower,
    )
