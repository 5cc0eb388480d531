"""Figures of the page Parameters: the contribution of each part of CADE, sweeps, the search,
transfer, and few labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from sdgbias.report.charts import (
    Figure,
    NoRows,
    both_tasks,
    drawn,
    figure,
    holm,
    named,
    of_study,
    shaped,
)
from sdgbias.report.data import Studies

PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")
#: What settings carry over between -> its plural, and the names on the axes.
_BETWEEN = {
    "test": ("tests", ["T1", "T2", "T3", "T4", "T5"]),
    "pillar": ("pillars", ["Health", "Services", "Human capital"]),
}


def figures(s: Studies) -> list[Figure]:
    between = (partial(_transfer, by=by) for by in _BETWEEN)
    return drawn(
        s,
        *map(of_study, ("ablation", "streams")),
        _sweep,
        of_study("search"),
        of_study("search-optimism"),
        _plateaus,
        *between,
        _countries,
        _few_shot,
    )


def _sweep(s: Studies) -> Figure:
    own = s.of("sweep", "accuracy", "mae")
    best = s.of("sweep", "optimum").set_index(["model", "task", "test", "by"])["value"].to_dict()
    optimum = [
        best.get(key)
        for key in own[["model", "task", "test", "by"]].itertuples(index=False, name=None)
    ]
    frame = both_tasks(
        own.assign(
            best=pd.Series(optimum, index=own.index, dtype=float),
            optimum=[words_of(x) for x in optimum],
        )
    )
    frame = frame.sort_values("by", key=lambda c: c.map(PARAMETERS.index), kind="stable")
    return figure("sweep", named(frame, "sweep").assign(at=frame["x"].map(words_of)))


def words_of(value: object) -> str:
    return "" if value is None or value != value else f"{float(value):.4g}"  # type: ignore[arg-type]


def _plateaus(s: Studies) -> Figure:
    """The location of the best settings in each parameter's range."""
    from sdgbias.methods.search import RANGES
    from sdgbias.types import Task

    own = pd.concat(
        [
            s.of("search", *PARAMETERS, method=["exact_centred", "random"]),
            s.of("search", "plateau_width").assign(method="plateau"),
        ]
    )
    made = []
    for r in own.to_dict("records"):
        name = r["level"] if r["method"] == "plateau" else r["metric"]
        low, high = RANGES[Task(r["task"])][PARAMETERS.index(name)]
        ends = (r["ci_low"], r["ci_high"])
        middle = r["value"]
        if r["method"] == "plateau":
            start, _, end = r["note"].partition(" to ")
            ends = (float(start), float(end))
            middle = sum(ends) / 2
        share = [100 * (x - low) / (high - low) for x in (middle, *ends)]
        known = ends[0] == ends[0]
        made.append(
            {
                **r,
                "parameter": name,
                "value": round(share[0], 4),
                "low": round(share[1], 4) if known else None,
                "high": round(share[2], 4) if known else None,
                "said": f"{middle:.4g}",
                "ci": f"{ends[0]:.4g}–{ends[1]:.4g}" if known else "no interval",
                "n": int(r["n"]),
                "range": f"{low:g}–{high:g}",
            }
        )
    if not made:
        raise NoRows
    frame = s.ordered(pd.DataFrame(made)).drop(columns="note")
    return figure("plateaus", named(frame, "plateaus"))


# ----------------------------------------------------------------------
# transfer


def losses(s: Studies, by: str) -> pd.DataFrame:
    """Rows of a transfer: source, target, loss in points (the target's setting minus the source's),
    0 on the diagonal, with both values as text."""
    own = s.of("transfer", "loss", "accuracy", by=by, task="mcq")
    if own.empty:
        raise NoRows
    pair = own["level"].str.split("->", n=1, expand=True)
    own = own.assign(source=pair[0], target=pair[1])
    keys = ["model", "test", "level"]
    reached = own[own["metric"] == "accuracy"].set_index(keys)
    diagonal = (
        reached[reached["source"] == reached["target"]]
        .reset_index()
        .assign(value=0.0, ci_low=float("nan"), ci_high=float("nan"), p=float("nan"))
    )
    frame = pd.concat([own[own["metric"] == "loss"], diagonal], ignore_index=True)
    value = (100 * reached["value"]).round(1).to_dict()
    found = shaped(frame, signed=True)
    found["reached"] = [
        f"{value.get(k, float('nan')):.1f} %"
        for k in found[keys].itertuples(index=False, name=None)
    ]
    found["p"] = found["p"].map(holm)
    return s.ordered(found.sort_values(["source", "target"], kind="stable"))


def _transfer(s: Studies, by: str) -> Figure:
    word, names = _BETWEEN[by]
    frame = losses(s, by)
    frame = frame[frame["target"] != "all"]
    made = lost("transfer", named(frame, "transfer"), [*names, "all"], names, by=by, word=word)
    filters = ("model",) if by == "test" else ("model", "test")
    return replace(made, name=f"transfer-{word}", filters=filters)


def _countries(s: Studies) -> Figure:
    frame = losses(s, "country")
    frame = frame[(frame["source"] == "others") & (frame["target"] != "others")]
    if frame.empty:
        raise NoRows
    return figure("transfer-countries", frame)


def lost(
    name: str, frame: pd.DataFrame, across: Sequence[str], down: Sequence[str], **said: str
) -> Figure:
    """The figure of settings tuned on one of ``across`` and used on one of ``down``; long names
    are slanted."""
    slanted = {"angle": -30, "room": 56} if max(map(len, across), default=0) >= 5 else {}
    return figure(name, frame, across=across, down=down, **slanted, **said)


def _few_shot(s: Studies) -> Figure:
    made = of_study("few-shot")(s)
    rows = made.frame["x"].map(lambda x: f"{int(x):,}")
    return replace(made, frame=made.frame.assign(rows=rows))
