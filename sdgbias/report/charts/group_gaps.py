"""Figures of the page Groups: accuracy by country, urban and rural, wealth, with and without a
street photo; disparities between groups, and whether CADE narrows them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from sdgbias.report.charts import Figure, drawn, holm, like_first, shaped
from sdgbias.report.charts.marks import Hue, Rows, ValueAxis, dotted
from sdgbias.report.data import Studies, method_name

METHODS = (("Full", "#0072b2"), ("CADE", "#d55e00"))
BY = {
    "country": "country",
    "urban": "urban and rural",
    "wealth": "wealth",
    "urban x wealth": "urban and rural by wealth",
    "photo": "pictures with and without a street photo",
}
#: (grouping, reduction) -> description of the comparison.
GAPS = {
    ("country", "max_min"): "best − worst country",
    ("urban", "urban_minus_rural"): "urban − rural",
    ("wealth", "max_min"): "best − worst wealth",
    ("wealth", "richest_minus_poorest"): "richest − poorest",
    ("urban x wealth", "max_min"): "best − worst of both",
    ("photo", "with_minus_without_photo"): "with − without photo",
}
_LEVELS = ("poorest", "middle", "richest")


def figures(s: Studies) -> list[Figure]:
    return drawn(s, *(partial(_accuracy, by=by) for by in BY), _gaps, _change)


def _accuracy(s: Studies, by: str) -> Figure:
    """One figure per grouping, because countries are only shown for all tests together."""
    own = s.of("groups", "accuracy", task="mcq", by=by, method=["full", "cade"])
    frame = shaped(own).assign(
        method=lambda f: f["method"].map(method_name),
        level=lambda f: f["level"].str.replace(" x ", ", "),
    )
    order = sorted(set(frame["level"]), key=_rank) if by != "country" else []
    small = int(own["value"].isna().sum())
    made = dotted(
        "groups",
        frame,
        "level",
        ValueAxis("accuracy, %"),
        Hue("method", METHODS),
        Rows(order=order, by_value=by == "country", apart=True, step=34),
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
    apart = None not in (top["low"], low["high"]) and top["low"] > low["high"]
    return (
        f"Full of {first['model']} lies between"
        f" {low['said']} % ({low['level']}, CI {low['ci']}, n {low['n']:,}) and {top['said']} %"
        f" ({top['level']}, CI {top['ci']}, n {top['n']:,}): the two intervals"
        f" {'lie apart' if apart else 'overlap'}."
    )


def _gaps(s: Studies) -> Figure:
    own = s.of("groups", *(metric for _, metric in GAPS))
    frame = shaped(own, signed=True).assign(
        gap=[
            GAPS[k]
            for k in own[["by", "metric"]][own["value"].notna()].itertuples(index=False, name=None)
        ],
        method=lambda f: f["method"].map(method_name),
        p=lambda f: f["p"].map(holm),
        task=lambda f: f["task"].map(
            {"mcq": "Choice: accuracy", "regression": "Estimate: within tolerance"}
        ),
    )
    return dotted(
        "groups-gaps",
        frame,
        "gap",
        ValueAxis("difference, points", zero=True),
        Hue("method", METHODS),
        Rows(apart=True, step=34, order=list(GAPS.values())),
    )


def _change(s: Studies) -> Figure:
    own = s.of("groups", "disparity_change")
    frame = shaped(own, signed=True).assign(
        gap=[
            GAPS[k]
            for k in own[["by", "level"]][own["value"].notna()].itertuples(index=False, name=None)
        ],
        p=lambda f: f["p"].map(holm),
        task=lambda f: f["task"].map(
            {"mcq": "Choice: accuracy", "regression": "Estimate: within tolerance"}
        ),
    )
    first = like_first(frame, "model", "test", "task")
    wider, narrower = (
        (first["low"].astype(float) > 0).sum(),
        (first["high"].astype(float) < 0).sum(),
    )
    return dotted(
        "groups-change",
        frame,
        "gap",
        ValueAxis("change of the difference, points", zero=True),
        rows=Rows(step=30, order=list(GAPS.values())),
        model=frame["model"].iloc[0],
        narrower=narrower,
        wider=wider,
        same=len(first) - wider - narrower,
    )
