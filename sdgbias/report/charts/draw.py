"""From the results to figures: the rows of ``data/figures.sql``, with their numbers as text, names
instead of keys, and the sentences that only the rows can tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import pandas as pd

from sdgbias import store, wording
from sdgbias.files import packaged_sql
from sdgbias.methods import baselines
from sdgbias.methods.stats import Estimate
from sdgbias.report.charts import Figure, figure, texts
from sdgbias.report.reader import Reader
from sdgbias.types import PILLARS
from sdgbias.vocabulary import METHODS, WORDS, Word, metric_word
from sdgbias.wording import p_value

#: Columns of the store that an estimate is made of; not every table has clusters.
_ESTIMATE = ("value", "n", "ci_low", "ci_high", "clusters")
_VIEWS = ("q_only", "ctx_q", "img_q", "full")
_PILLARS = ["all", *PILLARS]
_LEVELS = ("poorest", "middle", "richest")


def draw(reader: Reader, runs: Sequence[str], names: Sequence[str]) -> list[Figure]:
    """The figures of these names that have rows of these runs, in their order. A name with a part,
    'groups/country', is of the rows about this attribute."""
    rows = select(reader, [name.partition("/")[0] for name in names], runs)
    drawn = (_draw(rows[name.partition("/")[0]], *name.partition("/")[::2]) for name in names)
    return [f for f in drawn if f is not None]


def select(
    reader: Reader, names: Sequence[str], runs: Sequence[str], data: Sequence[str] | None = None
) -> dict[str, pd.DataFrame]:
    """The rows of statements of ``data/figures.sql``. ``data``: what each run was asked about."""
    sql = packaged_sql("figures.sql")
    every = sql["every_row"].replace("{numbers}", store.NUMBERS)
    given = {"runs": list(runs), "data": list(data or [""] * len(runs)), "pillars": _PILLARS}
    overall = f"WITH overall AS ({sql['overall']}) "
    return reader.frames("every_row", every, given, {name: overall + sql[name] for name in names})


def _draw(rows: pd.DataFrame, name: str, part: str) -> Figure | None:
    if part:
        rows = rows[rows["attribute"] == part]
    shown = shaped(rows, **texts()[name].get("numbers", {}))
    if shown.empty:
        return None
    chart = texts()[name]["chart"]
    shown = named(shown, name)
    if chart["form"] == "both_ways":
        left = shown["metric"] == "broken"
        for column in ("value", "low", "high"):
            turned = [None if v is None else -v for v in shown[column]]
            shown[column] = shown[column].mask(left, pd.Series(turned, shown.index, dtype=object))
    if chart["form"] == "bars":
        keys = [*texts()[name]["filters"], chart["y"]]
        shown = stacked(shown, keys, chart["hue"], list(texts()[name]["legend"]))
    drawn = figure(name, shown, **_SAID.get(name, _nothing)(rows, shown))
    if not part:
        return drawn
    filters = ("model",) if part == "country" else drawn.filters
    return replace(drawn, name=f"{name}-{part.replace(' x ', '-')}", filters=filters)


# ----------------------------------------------------------------------
# rows


def shaped(frame: pd.DataFrame, digits: int | None = None, signed: bool = False) -> pd.DataFrame:
    """Rows of the store (metric, value, n, ci_low, ci_high) -> value, low, high in the unit in
    which the metric is shown, said, ci, n. Rows without a value are dropped. ``digits``,
    ``signed``: in place of those of the vocabulary."""
    frame = frame[frame["value"].notna()]
    records = frame[[c for c in _ESTIMATE if c in frame]].to_dict("records")
    estimates = [Estimate.of_row(r) for r in records]
    forms = [_in_figure(metric_word(metric), digits, signed) for metric in frame["metric"]]
    shown = [wording.written(e, word) for e, word in zip(estimates, forms, strict=True)]
    ends = [
        (word.scale * e.low, word.scale * e.high) if e.low == e.low and e.high == e.high else None
        for e, word in zip(estimates, forms, strict=True)
    ]
    columns = {
        "value": [round(word.scale * e.value, 5) for e, word in zip(estimates, forms, strict=True)],
        "low": [None if end is None else round(end[0], 5) for end in ends],
        "high": [None if end is None else round(end[1], 5) for end in ends],
        "n": [e.n for e in estimates],
    }
    return frame.assign(
        said=[written.value for written in shown],
        ci=[written.ci for written in shown],
        **{c: pd.Series(of, index=frame.index, dtype=object) for c, of in columns.items()},
    )


def _in_figure(word: Word, digits: int | None, signed: bool) -> Word:
    """A metric as a figure shows it, with its own number of digits and always with a sign."""
    sign = "+" if signed else word.format[:-3]
    digits = int(word.format[-2]) if digits is None else digits
    return word.model_copy(update={"format": f"{sign}.{digits}f"})


def named(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Rows with the columns that a figure names in ``data/figures.yaml``; those of several columns
    of the store by their values one after the other. Methods have their names, p three digits."""
    about = texts()[name]
    columns: dict[str, Any] = {}
    shown = {*about["columns"], *about["filters"]}
    if "title" in shown:
        columns = {"kind": frame["method"].map(kind_of), "title": frame["method"].map(title_of)}
    if "method" in shown:
        columns["method"] = frame["method"].map(lambda method: METHODS.get(method, method))
    if "score" in shown:
        columns["score"] = frame["metric"].map(_score)
    if "p" in shown:
        columns["p"] = frame["p"].map(p_value)
    for column, of in about.get("named", {}).items():
        values = reduce(lambda one, more: one + " " + more, (frame[c] for c in of["of"].split()))
        names = of.get("names", {})
        columns[column] = [names.get(value, value) for value in values]
    return frame.assign(**columns)


def stacked(
    frame: pd.DataFrame, keys: Sequence[str], part: str, order: Sequence[str]
) -> pd.DataFrame:
    """Add start, end and middle of each part of a bar, in the order of ``order``."""
    rank = frame[part].map({name: i for i, name in enumerate(order)})
    frame = frame.assign(rank=rank).sort_values("rank", kind="stable")
    value = frame["value"].astype(float)
    end = value.groupby([frame[k] for k in keys]).cumsum()
    start = end - value
    return frame.assign(
        start=start.round(5), end=end.round(5), middle=((start + end) / 2).round(5)
    ).sort_index()


def kind_of(method: str) -> str:
    """Category of a method: a view, CADE, one with fixed settings, one tuned on val, or a control
    that uses no evidence."""
    if method == "cade":
        return "CADE"
    if method in _VIEWS:
        return "view"
    if method not in baselines.METHODS:
        return "control"
    return "tuned on val" if baselines.METHODS[method].tuned else "fixed settings"


def title_of(method: str) -> str:
    if method in baselines.METHODS:
        return str(baselines.METHODS[method].title)
    return METHODS.get(method, method.replace("_", " "))


def _score(metric: str) -> str:
    return wording.title(metric) + (", %" if wording.is_share(metric) else "")


# ----------------------------------------------------------------------
# sentences


def _nothing(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Any]:
    return {}


def _like_first(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows that have in these columns what the first row has."""
    return frame[(frame[list(columns)] == frame[list(columns)].iloc[0]).all(axis=1)]


def best(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, str]:
    """A sentence about the first model, pooled over everything. A method is called the highest only
    where its interval lies above those of all others; else the number of methods that its interval
    does not tell apart from it is given."""
    comparable = _like_first(shown, "model", "test", "pillar")
    at: Any = comparable["value"].astype(float).idxmax()
    top, others = comparable.loc[at], comparable.drop(index=at)
    unit = wording.unit_of(top["metric"]).replace(wording.NBSP, " ")
    measured = (
        f"{top['method']} with {top['said']}{unit} (95 % CI {top['ci']}, n {top['n']:,};"
        f" {top['test']})"
    )
    # an estimate without an interval (too few places) can't be told apart from any other
    low = float("nan") if top["low"] is None else float(top["low"])
    reach = int((~(others["high"].astype(float) < low)).sum())
    if reach == 0:
        return {"best": f"for {top['model']}, the highest is {measured}."}
    return {
        "best": f"for {top['model']}, no method is the highest beyond its interval: first"
        f" {measured}, and {reach} of {len(others)} others can't be told apart from it."
    }


def _spread(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Any]:
    """How far the groups of the first model lie apart, and the order of the groups: poorest before
    richest, otherwise by name; countries by their value."""
    by = rows["attribute"].iloc[0]
    first = _like_first(shown, "model", "test")
    first = first[first["method"] == "Full"]
    value = first["value"].astype(float)
    ends: list[Any] = [value.idxmax(), value.idxmin()]
    top, low = (first.loc[at] for at in ends)
    if None in (top["low"], low["high"]):
        verdict = "one of the two has no interval, so they can’t be compared"
    else:
        verdict = f"the two intervals {'don’t overlap' if top['low'] > low['high'] else 'overlap'}"
    small = int(rows["value"].isna().sum())
    order: Any = sorted(set(shown["group"]), key=_rank)
    if by == "country":
        order = {"field": "value", "op": "max", "order": "descending"}
    return {
        "sort": order,
        "said": WORDS.groups[by].name,
        "spread": f"Full of {top['model']} lies between {low['said']} % ({low['group']}, CI"
        f" {low['ci']}, n {low['n']:,}) and {top['said']} % ({top['group']}, CI {top['ci']}, n"
        f" {top['n']:,}): {verdict}.",
        "small": f" {small:,} groups of fewer than 20 questions have no value." if small else "",
    }


def _rank(group: str) -> list[tuple[int, str]]:
    return [(_LEVELS.index(p) if p in _LEVELS else -1, p) for p in group.split(", ")]


def _narrowed(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Any]:
    first = _like_first(shown, "model", "test", "task")
    wider, narrower = (
        (first["low"].astype(float) > 0).sum(),
        (first["high"].astype(float) < 0).sum(),
    )
    same = len(first) - wider - narrower
    model = first["model"].iloc[0]
    return {"model": model, "narrower": narrower, "wider": wider, "same": same}


def _fixed(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, str]:
    first = _like_first(shown, "model", "test", "pillar", "task")
    by_change = {r["change"]: r for r in first.to_dict("records")}
    if not {"fixed", "broken"} <= set(by_change):
        return {"counts": ""}
    return {
        "counts": f"; {first['model'].iloc[0]}: {by_change['fixed']['said']} % fixed,"
        f" {by_change['broken']['said']} % broken (n {by_change['fixed']['n']:,})"
    }


_SAID: Mapping[str, Callable[[pd.DataFrame, pd.DataFrame], dict[str, Any]]] = {
    **dict.fromkeys(("methods-accuracy", "methods-gain", "methods-estimation"), best),
    "groups": _spread,
    "groups-change": _narrowed,
    "harm-fixed": _fixed,
}
