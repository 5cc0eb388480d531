"""Figures of the page Fairness: disparities by attribute, class and prompt, and the effect of
debiasing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pandas as pd

from sdgbias.analysis.night_text import p_value
from sdgbias.raw.facet import SELECTED
from sdgbias.report.charts import Figure, NoRows, drawn, figure, named, shaped
from sdgbias.report.charts.methods import title_of
from sdgbias.suites.facet import NONE_RIGHT, NOT_UNDERSTOOD
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.vocabulary import WORDS

#: Reading of an answer, and pool of classes -> its name.
READINGS, CLASSES = dict(WORDS.readings), dict(WORDS.classes)
_ASKED = ["data", "model", "test", "method"]


def figures(metrics: pd.DataFrame, studies: pd.DataFrame) -> list[Figure]:
    """The figures that have rows. ``metrics``, ``studies``: as in pages.disparities.Fairness. With
    several data sets, each figure has a select for them."""
    apart = (partial(_apart, attribute=attribute) for attribute in PAIRS)
    made = drawn(metrics, *apart, _classes, _prompts) + drawn(studies, _debiased, _cost)
    several = metrics["data"].nunique() > 1
    silent = metrics[(metrics["missing_reason"] == NOT_UNDERSTOOD) & (metrics["method"] == "full")]
    shown = [_understood_first(f, set(silent["model"])) for f in made]
    return [replace(f, filters=("data", *f.filters)) if several else f for f in shown]


def _understood_first(f: Figure, silent: set[str]) -> Figure:
    """The figure opening on a model that has a value and isn't one of ``silent``, whose answers
    weren't understood."""
    if "model" not in f.filters:
        return f
    frame = f.frame
    empty = set(frame["model"]) - set(frame.loc[frame["value"].notna(), "model"])
    order = frame["model"].isin(silent | empty)
    if "data" in frame:  # the first set of people stays the first
        rank = {d: i for i, d in enumerate(dict.fromkeys(frame["data"]))}
        order = frame["data"].map(rank) * 2 + order
    by = frame.assign(_last=order).sort_values("_last", kind="stable", ignore_index=True)
    return replace(f, frame=by.drop(columns="_last"))


def _ordered(frame: pd.DataFrame, **orders: Collection[str]) -> pd.DataFrame:
    """Sorted by columns in the given orders of their values, unknown values last, so that the first
    row holds the default choice."""

    def rank(column: pd.Series) -> pd.Series:
        order = list(orders[str(column.name)])
        return column.map({name: i for i, name in enumerate(order)}).fillna(len(order))

    return frame.sort_values(list(orders), key=rank, kind="stable", ignore_index=True)


def _is_silent(rows: pd.DataFrame) -> pd.Series:
    """Which disparities have no value because the model's answers say nothing about groups."""
    return rows["missing_reason"].isin([NOT_UNDERSTOOD, NONE_RIGHT])


def _silent(rows: pd.DataFrame) -> str:
    """A sentence per reason, naming the models and prompts without any disparity; '' for none."""
    out = rows[_is_silent(rows) & (rows["metric"] == "disparity")]
    return "".join(
        f" {str(why).capitalize()}, so without a disparity: "
        + "; ".join(
            f"{model!s}, {', '.join(sorted(set(part['test'])))}"
            for model, part in mine.groupby("model", sort=False)
        )
        + "."
        for why, mine in out.groupby("missing_reason", sort=True)
    )


def _without(own: pd.DataFrame, what: str) -> dict[str, str]:
    """The sentences on the rows that have no value, because a group is small, or because the model
    says nothing about groups."""
    small = int((own["value"].isna() & ~_is_silent(own)).sum())
    said = f" {small:,} {what} fewer than 20 people." if small else ""
    return {"small": said, "silent": _silent(own)}


def _apart(metrics: pd.DataFrame, attribute: str) -> Figure:
    own = metrics[
        (metrics["metric"] == "disparity")
        & metrics["pillar"].str.startswith(f"{attribute}:")
        & metrics["indicator"].isin(list(CLASSES))
    ]
    frame = shaped(own, signed=True)
    frame = frame.assign(
        by=frame["pillar"].str.removeprefix(f"{attribute}:"),
        term=frame["indicator"].map(CLASSES),
        method=frame["method"].replace(READINGS),
        prompt=frame["test"],
    )
    one, other = PAIRS[attribute]
    frame = _ordered(frame, method=READINGS.values(), by=[f"{one}-{other}"], term=CLASSES.values())
    made = figure(
        "fairness",
        frame,
        step=48 if frame["model"].nunique() <= 6 else 33,
        attribute=WORDS.attributes[attribute],
        one=one,
        other=other,
        **_without(own, "differences have no value: a group or a class has"),
    )
    filters = ("method", "by", "term") if frame["by"].nunique() > 1 else ("method", "term")
    return replace(made, name=f"fairness-{attribute}", filters=filters)


def _classes(metrics: pd.DataFrame) -> Figure:
    """Those of 13 classes that have a value, by three attributes; a cell without one shows its
    n."""
    pairs = {f"{a}:{one}-{other}": f"{one} − {other}" for a, (one, other) in PAIRS.items()}
    own = metrics[
        (metrics["metric"] == "disparity")
        & metrics["pillar"].isin(list(pairs))
        & metrics["indicator"].isin(SELECTED)
    ]
    of_class = [*_ASKED, "indicator"]
    kept = own.groupby(of_class)["value"].transform("count") > 0
    if not kept.any():
        raise NoRows
    classes = sorted(set(own["indicator"]) - set(own.loc[kept, "indicator"]))
    said = _silent(own)
    own = own[kept]
    void = own[own["value"].isna()]
    void = void.assign(low=None, high=None, ci="no value", n=void["n"].fillna(0).astype(int))
    small = void["n"].map("n {:,}".format)
    void = void.assign(said=small.mask(_is_silent(void), "none"), value=None)
    known = shaped(own, signed=True, digits=0)
    frame = pd.concat([known, void.astype({"value": object, "n": object})])
    frame = frame.sort_index().assign(
        source=lambda f: f["pillar"].map(pairs),
        target=lambda f: f["indicator"],
        method=lambda f: f["method"].replace(READINGS),
    )
    frame = _ordered(frame, method=READINGS.values())
    absent = f" Not shown, for want of 20 people in both groups: {', '.join(classes)}."
    return figure(
        "fairness-classes",
        frame,
        across=list(pairs.values()),
        down=list(SELECTED),
        absent=absent if classes else "",
        silent=said,
    )


def _prompts(metrics: pd.DataFrame) -> Figure:
    whole = (metrics["pillar"] == "all") & (metrics["indicator"] == "all-52")
    shares = metrics[whole & metrics["metric"].isin(["recall", "false_yes_rate"])]
    frame, silent = shaped(shares), _silent(metrics)
    frame = named(frame, "fairness-prompts").assign(method=frame["method"].replace(READINGS))
    frame = _ordered(frame, method=READINGS.values())
    return figure("fairness-prompts", frame, silent=silent)


def _point(frame: pd.DataFrame) -> pd.DataFrame:
    plain = frame["method"].str.removesuffix("@recall")
    at = frame["method"].str.endswith("@recall").map({True: "at equal recall", False: "as scored"})
    name = plain.map(lambda m: "full" if m == "full_argmax" else m)
    return frame.assign(name=name, title=name.map(title_of), point=at)


def _debiased(studies: pd.DataFrame) -> Figure:
    frame = shaped(studies[studies["metric"] == "disparity"], signed=True)
    key = [*_ASKED, "pillar"]
    change = studies[studies["metric"] == "disparity_change"]
    change = shaped(change, signed=True, some=False)
    change["change"] = [
        f"{r['said']} ({r['ci']}), p {p_value(r['p'])}" for r in change.to_dict("records")
    ]
    frame = frame.merge(change[[*key, "change"]], on=key, how="left")
    frame = _point(frame).assign(
        by=frame["pillar"], change=frame["change"].astype(object).fillna("")
    )
    frame = _ordered(frame, name=("full", "cade"))
    return figure("fairness-debiased", frame)


def _cost(studies: pd.DataFrame) -> Figure:
    own = studies[
        (studies["pillar"] == "all")
        & studies["metric"].isin(["recall", "false_yes_rate"])
        & ~studies["method"].str.endswith("@recall")
    ]
    frame = _ordered(_point(named(shaped(own), "fairness-cost")), name=("full", "cade"))
    return figure("fairness-cost", frame)
