"""Figures of the page Parameters: the contribution of each part of CADE, sweeps, the search,
transfer, and few labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pandas as pd

from sdgbias.report.charts import (
    OF_TASK,
    Figure,
    NoRows,
    both_tasks,
    columns,
    drawn,
    figure,
    holm,
    shaped,
)
from sdgbias.report.charts.marks import Hue, Rows, SweptAxis, ValueAxis, dotted, lines, lost
from sdgbias.report.data import Studies, short_pillar

MODES = (("retuned", "#0072b2"), ("zeroed", "#d55e00"))
STEPS = {
    "full": "Full",
    "+alpha": "+ alpha",
    "+lambda": "+ lambda",
    "+beta": "+ beta",
    "+tau": "+ tau",
}
DIVERGENCES = (("KL", "#0072b2"), ("JS", "#d55e00"))
STREAMS = {"img": "IMG+Q", "full": "Full", "full+img": "Full and IMG+Q"}
SPLITS = (("validation", "#7f7f7f"), ("test", "#0072b2"))
PARAMETERS = {"alpha": "alpha", "lambda_kl": "lambda", "beta": "beta", "tau": "tau"}
SEARCHES = {
    "random": "random",
    "many_draws": "random, ten times",
    "exact": "exact",
    "exact_centred": "exact, centred",
}
SEEN = (("validation", "#7f7f7f"), ("validation, held out", "#009e73"), ("test", "#0072b2"))
#: What settings carry over between -> its plural, and the names on the axes.
_BETWEEN = {
    "test": ("tests", ["T1", "T2", "T3", "T4", "T5"]),
    "pillar": ("pillars", ["Health", "Services", "Human capital"]),
}


def figures(s: Studies) -> list[Figure]:
    between = (partial(_transfer, by=by) for by in _BETWEEN)
    return drawn(
        s,
        *(_ablation, _streams, _sweep, _search, _optimism, _plateaus),
        *between,
        *(_countries, _few_shot),
    )


def _ablation(s: Studies) -> Figure:
    own = s.of("ablation", "accuracy", "mae")
    frame = both_tasks(own).assign(step=lambda f: f["method"].map(STEPS), mode=lambda f: f["level"])
    return dotted(
        "ablation",
        frame,
        "step",
        ValueAxis(OF_TASK),
        Hue("mode", MODES),
        Rows(order=list(STEPS.values()), apart=True, step=34),
    )


def _streams(s: Studies) -> Figure:
    own = s.of("streams", "accuracy", "mae")
    frame = both_tasks(own).assign(
        stream=lambda f: f["method"].map(STREAMS), divergence=lambda f: f["level"].str.upper()
    )
    return dotted(
        "streams",
        frame,
        "stream",
        ValueAxis(OF_TASK),
        Hue("divergence", DIVERGENCES),
        Rows(order=list(STREAMS.values()), apart=True, step=38),
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
    frame = frame.assign(
        parameter=frame["by"].map(PARAMETERS),
        split=frame["method"].map({"val": "validation", "test": "test"}),
        at=frame["x"].map(words_of),
    )
    order = {name: i for i, name in enumerate(PARAMETERS.values())}
    frame = frame.sort_values("parameter", key=lambda c: c.map(order), kind="stable")
    chart = lines(
        SweptAxis("value of the parameter", marked="best"),
        OF_TASK,
        columns("sweep"),
        Hue("split", SPLITS),
        points=False,
        height=200,
    )
    return replace(figure("sweep", frame, chart, SPLITS), panel="parameter")


def words_of(value: object) -> str:
    return "" if value is None or value != value else f"{float(value):.4g}"  # type: ignore[arg-type]


def _search(s: Studies) -> Figure:
    seen = {
        "val_accuracy": "validation",
        "val_mae": "validation",
        "held_out_accuracy": "validation, held out",
        "held_out_mae": "validation, held out",
        "accuracy": "test",
        "mae": "test",
    }
    own = s.of("search", *seen)
    frame = both_tasks(own).assign(
        seen=lambda f: f["metric"].map(seen), search=lambda f: f["method"].map(SEARCHES)
    )
    return dotted(
        "search",
        frame,
        "search",
        ValueAxis(OF_TASK),
        Hue("seen", SEEN),
        Rows(order=list(SEARCHES.values()), apart=True, step=44),
    )


def _optimism(s: Studies) -> Figure:
    own = s.of("search", "optimism")
    names = {"mcq": "Choice: points", "regression": "Estimate: mean absolute error"}
    frame = both_tasks(own, names, signed=True)
    axis = ValueAxis(OF_TASK, zero=True)
    return dotted("search-optimism", frame, "test", axis)


def _plateaus(s: Studies) -> Figure:
    """The location of the best settings in each parameter's range."""
    from sdgbias.methods.search import RANGES
    from sdgbias.types import Task

    kinds = {"exact_centred": "exact, centred", "random": "random", "plateau": "plateau"}
    own = pd.concat(
        [
            s.of("search", *PARAMETERS, method=["exact_centred", "random"]),
            s.of("search", "plateau_width").assign(method="plateau"),
        ]
    )
    made = []
    for r in own.to_dict("records"):
        name = r["level"] if r["method"] == "plateau" else r["metric"]
        low, high = RANGES[Task(r["task"])][list(PARAMETERS).index(name)]
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
                "parameter": PARAMETERS[name],
                "where": kinds[r["method"]],
                "value": round(share[0], 4),
                "low": round(share[1], 4) if known else None,
                "high": round(share[2], 4) if known else None,
                "said": f"{middle:.4g}",
                "ci": f"{ends[0]:.4g}–{ends[1]:.4g}" if known else "no interval",
                "n": int(r["n"]),
                "range": f"{low:g}–{high:g}",
                "task": {"mcq": "Choice", "regression": "Estimate"}[r["task"]],
            }
        )
    if not made:
        raise NoRows
    frame = s.ordered(pd.DataFrame(made)).drop(columns="note")
    legend = (("exact, centred", "#0072b2"), ("random", "#d55e00"), ("plateau", "#009e73"))
    return dotted(
        "plateaus",
        frame,
        "parameter",
        ValueAxis("position in the range, %"),
        Hue("where", legend),
        Rows(order=list(PARAMETERS.values()), apart=True, step=44),
    )


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
    frame = frame.assign(
        source=frame["source"].map(short_pillar), target=frame["target"].map(short_pillar)
    )
    made = lost("transfer", frame, names, "all", by=by, word=word)
    filters = ("model",) if by == "test" else ("model", "test")
    return replace(made, name=f"transfer-{word}", filters=filters)


def _countries(s: Studies) -> Figure:
    frame = losses(s, "country")
    frame = frame[(frame["source"] == "others") & (frame["target"] != "others")]
    if frame.empty:
        raise NoRows
    axis = ValueAxis("points lost", zero=True)
    return dotted("transfer-countries", frame, "target", axis, rows=Rows(by_value=True))


def _few_shot(s: Studies) -> Figure:
    own = s.of("few_shot", "accuracy", "mae")
    frame = both_tasks(own).assign(
        rows=lambda f: f["x"].map(lambda x: f"{int(x):,}"), what="tuned on a sample"
    )
    chart = lines(
        SweptAxis("validation questions tuned on", log=True),
        OF_TASK,
        columns("few-shot"),
        Hue("what", (("tuned on a sample", "#0072b2"),)),
        whiskers=True,
    )
    return figure("few-shot", frame, chart)
