"""Figures of the page Fairness: disparities by attribute, class and prompt, and the effect of
debiasing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pandas as pd

from sdgbias.raw.facet import SELECTED
from sdgbias.report.charts import Figure, figure
from sdgbias.report.charts.draw import named, select, shaped, title_of
from sdgbias.report.reader import Reader
from sdgbias.suites.facet import NONE_RIGHT, NOT_UNDERSTOOD
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.vocabulary import WORDS
from sdgbias.wording import p_value

#: Reading of an answer, and pool of classes -> its name.
READINGS, CLASSES = (
    {key: word.name for key, word in words.items()} for words in (WORDS.readings, WORDS.classes)
)
_STATEMENTS = (
    *("fairness", "fairness-classes", "fairness-prompts", "fairness-debiased", "fairness-cost"),
    "fairness-silent",
)
_ASKED = ["data", "model", "test", "method"]


def figures(reader: Reader, runs: Sequence[str], data: Sequence[str]) -> list[Figure]:
    """The figures that have rows of these runs. ``data``: the set of people of each; with several
    sets, each figure has a select for them."""
    rows = select(reader, _STATEMENTS, runs, data)
    silent = rows["fairness-silent"]
    drawn = [
        *_apart(rows["fairness"]),
        *_classes(rows["fairness-classes"]),
        *_prompts(rows["fairness-prompts"], silent),
        *_debiased(rows["fairness-debiased"]),
        *_cost(rows["fairness-cost"]),
    ]
    mute = silent[(silent["missing_reason"] == NOT_UNDERSTOOD) & (silent["method"] == "full")]
    shown = [_understood_first(f, set(mute["model"])) for f in drawn]
    several = len(set(data)) > 1
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
            for model, part in same_reason.groupby("model", sort=False)
        )
        + "."
        for why, same_reason in out.groupby("missing_reason", sort=True)
    )


def _without(rows: pd.DataFrame, what: str) -> dict[str, str]:
    """The sentences on the rows that have no value, because a group is small, or because the model
    says nothing about groups."""
    small = int((rows["value"].isna() & ~_is_silent(rows)).sum())
    sentence = f" {small:,} {what} fewer than 20 people." if small else ""
    return {"small": sentence, "silent": _silent(rows)}


def _apart(rows: pd.DataFrame) -> Iterator[Figure]:
    """A figure per attribute."""
    for attribute, (one, other) in PAIRS.items():
        of_pair = rows[rows["attribute"] == attribute]
        frame = shaped(of_pair)
        if frame.empty:
            continue
        frame = frame.assign(
            term=frame["indicator"].map(CLASSES), method=frame["method"].replace(READINGS)
        )
        of = {"method": READINGS.values(), "by": [f"{one}-{other}"], "term": CLASSES.values()}
        frame = _ordered(frame, **of)
        chart = figure(
            "fairness",
            frame,
            step=48 if frame["model"].nunique() <= 6 else 33,
            attribute=WORDS.groups[attribute].name,
            one=one,
            other=other,
            **_without(of_pair, "differences have no value: a group or a class has"),
        )
        filters = ("method", "by", "term") if frame["by"].nunique() > 1 else ("method", "term")
        yield replace(chart, name=f"fairness-{attribute}", filters=filters)


def _classes(rows: pd.DataFrame) -> Iterator[Figure]:
    """Those of 13 classes that have a value, by three attributes; a cell without one shows its
    n."""
    selected = rows[rows["target"].isin(SELECTED)]
    kept = selected.groupby([*_ASKED, "target"])["value"].transform("count") > 0
    if not kept.any():
        return
    classes = sorted(set(selected["target"]) - set(selected.loc[kept, "target"]))
    silent = _silent(selected)
    selected = selected[kept]
    void = selected[selected["value"].isna()]
    void = void.assign(low=None, high=None, ci="no value", n=void["n"].fillna(0).astype(int))
    small = void["n"].map("n {:,}".format)
    void = void.assign(said=small.mask(_is_silent(void), "none"), value=None)
    frame = pd.concat([shaped(selected, digits=0), void.astype({"value": object, "n": object})])
    frame = frame.sort_index().assign(method=lambda f: f["method"].replace(READINGS))
    absent = f" Not shown, for want of 20 people in both groups: {', '.join(classes)}."
    yield figure(
        "fairness-classes",
        _ordered(frame, method=READINGS.values()),
        across=[f"{one} − {other}" for one, other in PAIRS.values()],
        down=list(SELECTED),
        absent=absent if classes else "",
        silent=silent,
    )


def _prompts(rows: pd.DataFrame, silent: pd.DataFrame) -> Iterator[Figure]:
    frame = named(shaped(rows), "fairness-prompts")
    frame = frame.assign(method=rows["method"].replace(READINGS))
    if len(frame):
        frame = _ordered(frame, method=READINGS.values())
        yield figure("fairness-prompts", frame, silent=_silent(silent))


def _point(frame: pd.DataFrame) -> pd.DataFrame:
    plain = frame["method"].str.removesuffix("@recall")
    at = frame["method"].str.endswith("@recall").map({True: "at equal recall", False: "as scored"})
    name = plain.map(lambda m: "full" if m == "full_argmax" else m)
    return frame.assign(name=name, title=name.map(title_of), point=at)


def _debiased(rows: pd.DataFrame) -> Iterator[Figure]:
    shown = shaped(rows)
    frame, change = (shown[shown["metric"] == m] for m in ("disparity", "disparity_change"))
    if frame.empty:
        return
    key = [*_ASKED, "level"]
    words = [f"{r['said']} ({r['ci']}), p {p_value(r['p'])}" for r in change.to_dict("records")]
    frame = frame.merge(change[key].assign(change=words), on=key, how="left")
    frame = frame.assign(by=frame["level"], change=frame["change"].astype(object).fillna(""))
    yield figure("fairness-debiased", _ordered(_point(frame), name=("full", "cade")))


def _cost(rows: pd.DataFrame) -> Iterator[Figure]:
    if len(frame := named(shaped(rows), "fairness-cost")):
        yield figure("fairness-cost", _ordered(_point(frame), name=("full", "cade")))
