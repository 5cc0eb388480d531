"""Numbers over nights, a chart for each model; and the figure of the morning page: the value of a
metric before and now, the interval of the change, and the allowed limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import wording
from sdgbias.analysis import night_text as words
from sdgbias.analysis.nights import ModelNight
from sdgbias.report.charts import Figure, figure, svg_of


@dataclass(frozen=True)
class Trend:
    """One model over nights. name: with '(planted)' for planted models. nights: how many have a
    number. said: the chart in words."""

    name: str
    nights: int
    said: str
    svg: str


def trends(
    rows: pd.DataFrame, nights: Mapping[str, datetime], metric: str, order: Sequence[str]
) -> list[Trend]:
    """A chart for each model of ``rows`` (night, began, model, provenance, value, ci_low, ci_high,
    fresh, breach), in ``order``, then by name. All axes have one span, so that a move looks alike
    in each; bounds of shares end at 0 and 100 %.

    ``nights``: night -> start, in order; a line breaks where its model has no number. Without any
    (runs started by hand share no nights), a line goes from run to run.
    """
    times = dict(nights) or dict(zip(rows["night"], rows["began"], strict=True))
    rows = rows[rows["night"].isin(times) & rows["value"].notna()]
    rows = rows.drop_duplicates(["model", "night"], keep="last")
    if rows.empty:
        return []
    share = wording.is_share(metric)
    ends = rows[["value", "ci_low", "ci_high"]].astype(float) * (100 if share else 1)
    if share:
        ends = ends.clip(-100 if wording.is_difference(metric) else 0, 100)
    rows = rows.assign(value=ends["value"], low=ends["ci_low"], high=ends["ci_high"])
    lowest = rows[["value", "low"]].min(axis=1).groupby(rows["model"]).min()
    highest = rows[["value", "high"]].max(axis=1).groupby(rows["model"]).max()
    span = max(float((highest - lowest).max()), 0.1 * float(highest.abs().max()), 1e-9)
    unit = "" if not share or wording.is_difference(metric) else " %"
    plots = []
    for model in [*order, *sorted(set(rows["model"]) - set(order))]:
        part = rows[rows["model"] == model].set_index("night")
        if part.empty:
            continue
        start = (lowest[model] + highest[model] - span) / 2
        start = max(start, 0.0) if lowest[model] >= 0 else start
        drawn = part.reindex(list(times)) if nights else part.sort_values("began")
        name = f"{model} (planted)" if (part["provenance"] == "planted").any() else str(model)
        marks = _marks(drawn, [times[night] for night in drawn.index])
        plots.append(
            Trend(
                name,
                len(part),
                _said(name, part["value"], metric),
                svg_of(
                    "trend",
                    f"{metric}-{model}",
                    marks,
                    days=_days([mark["at"] for mark in marks]),
                    ends=[start, start + span],
                    label=f"datum.label + '{unit}'",
                ),
            )
        )
    return plots


def _marks(part: pd.DataFrame, times: Sequence[datetime]) -> list[dict[str, Any]]:
    """Rows of the chart: at (milliseconds since 1970, UTC), value, low, high, dot (whether the
    model was scored or its line has no other night), breach."""
    has_value = part["value"].notna()
    alone = has_value & ~has_value.shift(fill_value=False) & ~has_value.shift(-1, fill_value=False)
    frame = pd.DataFrame(
        {
            "at": [round((at - datetime(1970, 1, 1)).total_seconds() * 1000) for at in times],
            **{name: part[name].round(4) for name in ("value", "low", "high")},
            "dot": (part["fresh"].fillna(False).astype(bool) & has_value) | alone,
            "breach": part["breach"].fillna(False).astype(bool) & has_value,
        }
    ).replace({np.nan: None})
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def _days(times: Sequence[int]) -> list[int]:
    """Up to four of these times (milliseconds, in order) for the axis, evenly over them, each of
    another day."""
    days = list({at // 86_400_000: at for at in reversed(times)}.values())[::-1]
    return [days[round(i)] for i in np.linspace(0, len(days) - 1, min(len(days), 4))]


def _said(name: str, values: pd.Series, metric: str) -> str:
    """'tiny-llava: 12 nights, from 40.0 % to 52.0 %'."""
    scale = 100 if wording.is_share(metric) else 1
    first, last = (wording.amount(values.iloc[at] / scale, metric) for at in (0, -1))
    many = f"{len(values)} nights, " if len(values) > 1 else ""
    return f"{name}: {many}from {first} to {last}"


#: Metrics that are no shares and don't fit on one axis with them.
_OTHER_UNITS = ("mae", "throughput", "cade_gain")


def moves(m: ModelNight) -> Figure | None:
    """The breaches of one model on one axis in per cent, each with the limit that it crossed; None
    if no breach is of a share."""
    frame = pd.DataFrame(
        [
            _point(r)
            for r in m.breaches
            if r["metric"] not in _OTHER_UNITS and r["value"] == r["value"]
        ]
    )
    if frame.empty:
        return None
    order = list(frame["what"])
    room = 7 * max(map(len, order))
    chart = figure("moves", frame, model=m.model, order=order, room=room)
    return replace(chart, name=f"moves-{m.model}-{m.suite}".replace(".", "-"))


def _point(r: Mapping[str, Any]) -> dict[str, Any]:
    c, floor = words.cells(r), words.floor(r)
    now = 100 * float(r["value"])
    before = now if floor else 100 * float(r["before"])
    ends = [100 * float(r[k]) + (0.0 if floor else before) for k in ("ci_low", "ci_high")]
    low, high = (min(max(end, 0.0), 100.0) for end in ends)  # where a share can be now
    allowed = 100 * float(r["allowed"])
    down = floor == "at least" if floor else float(r["change"]) < 0
    limit = allowed if floor else before - allowed if down else before + allowed
    return {
        "what": words.what(r).removesuffix(", all tests"),
        "before": None if floor else before,
        "now": now,
        "low": low,
        "high": high,
        "limit": limit,
        "said": f"{c['before']} to {c['value']}" if c["before"] else c["value"],
        "ci": c["ci"],
        "n": int(r["n"]),
    }
