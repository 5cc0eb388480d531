"""The figure of the morning page: what a rule measured before and now, the interval of the change, and how far it was allowed to go."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from sdgbias.lab import night_words as words
from sdgbias.lab.nights import ModelNight
from sdgbias.report.chart import Figure

BEFORE, NOW, LIMIT = "#0072b2", "#d55e00", "#7a828a"
LEGEND = (("before", BEFORE), ("now, with the 95 % interval of the change", NOW), ("limit of the rule", LIMIT))
#: Metrics that are a share and can stand on one axis.
_OTHER_UNITS = ("mae", "throughput", "cade_gain")


def moves(m: ModelNight) -> Figure | None:
    """The breaches of one model on one axis in per cent, each with the limit that it crossed; None where no breach is of a share."""
    frame = pd.DataFrame([_point(r) for r in m.breaches if r["metric"] not in _OTHER_UNITS and r["value"] == r["value"]])
    if frame.empty:
        return None
    order = list(frame["what"])
    y = alt.Y(
        "what:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=400, minExtent=7 * max(map(len, order)))
    )
    title = "per cent"
    x = alt.X("now:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(tickCount=6, grid=True))
    base = alt.Chart().encode(y=y)
    chart = alt.layer(
        base.mark_rule(strokeWidth=1, color=LIMIT).encode(x=alt.X("before:Q", title=title), x2="now:Q"),
        base.mark_rule(strokeWidth=3, color=NOW).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base.mark_tick(thickness=2.5, size=22, color=LIMIT).encode(x=alt.X("limit:Q", title=title)),
        base.mark_point(filled=False, size=80, strokeWidth=2, color=BEFORE, opacity=1).encode(x=alt.X("before:Q", title=title)),
        base.mark_point(filled=True, size=80, shape="diamond", color=NOW, opacity=1).encode(x=x),
    ).properties(height=alt.Step(34))
    return Figure(
        name=f"moves-{m.model}-{m.suite}".replace(".", "-"), title=f"What moved in {m.model}", reads="", axes="", frame=frame, chart=chart, filters=(),
        columns={"what": "What"}, legend=LEGEND,
    )  # fmt: skip


def _point(r: dict[str, Any]) -> dict[str, Any]:
    c, floor = words.cells(r), words.floor(r)
    now = 100 * float(r["value"])
    before = now if floor else 100 * float(r["before"])
    ends = [100 * float(r[k]) + (0.0 if floor else before) for k in ("ci_low", "ci_high")]
    allowed = 100 * float(r["allowed"])
    down = floor == "at least" if floor else float(r["change"]) < 0
    limit = allowed if floor else before - allowed if down else before + allowed
    return {
        "what": words.what(r).removesuffix(", all tests"), "before": None if floor else before, "now": now, "low": ends[0], "high": ends[1], "limit": limit,
        "said": f"{c['before']} to {c['value']}" if c["before"] else c["value"], "ci": c["ci"], "n": int(r["n"]),
    }  # fmt: skip
