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
from sdgbias.raw.facet import SELECTED
from sdgbias.report.charts import Figure, figure, names_in, texts
from sdgbias.report.reader import Reader, blank
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import PILLARS
from sdgbias.vocabulary import METHODS, WORDS, Word, metric_word
from sdgbias.wording import many, p_value

_READ = ("metric", "value", "n", "ci_low", "ci_high", "clusters", "silent")
_NUMBERS = ("value", "low", "high", "said", "ci", "n")
_VIEWS = ("q_only", "ctx_q", "img_q", "full")
_LEVELS = ("poorest", "middle", "richest")


def draw(
    reader: Reader, runs: Sequence[str], names: Sequence[str], data: Sequence[str] = ()
) -> dict[str, Figure]:
    """The figures that have rows of these runs, by these names. A name with a part,
    'groups/country', is of the rows about this attribute. ``data``: the set of people that each
    run was asked about; with several, each figure has a select for them."""
    sql = packaged_sql("figures.sql")
    statements = {name.partition("/")[0]: "" for name in names}
    shared = ", ".join(f"{name} AS ({sql[name]})" for name in ("overall", "people"))
    rows = reader.frames(
        "every_row",
        sql["every_row"].replace("{numbers}", store.NUMBERS),
        {name: f"WITH {shared} {sql[name]}" for name in statements},
        {
            "runs": list(runs),
            "data": list(data or [""] * len(runs)),
            "pillars": ["all", *PILLARS],
            "classes": SELECTED,
            "pairs": [f"{name}:{one}-{other}" for name, (one, other) in PAIRS.items()],
        },
    )
    drawn = {n: _draw(rows[n.partition("/")[0]], *n.partition("/")[::2]) for n in names}
    several = ("data",) * (len(set(data)) > 1)
    return {n: replace(f, filters=(*several, *f.filters)) for n, f in drawn.items() if f}


def _draw(rows: pd.DataFrame, name: str, part: str) -> Figure | None:
    about = texts()[name]
    if part:
        rows = rows[rows["attribute"] == part]
    shown = shaped(rows, **about.get("numbers", {}))
    if shown.empty:
        return None
    shown = _sorted(named(shown, name), name)
    if about["chart"]["form"] == "both_ways":
        left = shown["metric"] == "broken"
        for column in ("value", "low", "high"):
            turned = [None if v is None else -v for v in shown[column]]
            shown[column] = shown[column].mask(left, pd.Series(turned, shown.index, dtype=object))
    drawn = figure(name, shown, **_SAID.get(name, _nothing)(rows, shown))
    return replace(drawn, name=f"{name}-{part.replace(' x ', '-')}") if part else drawn


# ----------------------------------------------------------------------
# rows


def shaped(frame: pd.DataFrame, digits: int | None = None, signed: bool = False) -> pd.DataFrame:
    """Rows of the store (metric, value, n, ci_low, ci_high) -> value, low, high in the unit in
    which the metric is shown, said, ci, n. Rows without a value are dropped, unless the statement
    says which are ``drawn``. ``digits``, ``signed``: in place of those of the vocabulary."""
    frame = frame[frame["drawn"] if "drawn" in frame else frame["value"].notna()]
    words = {m: _in_figure(metric_word(m), digits, signed) for m in frame["metric"].unique()}
    read = frame[[name for name in _READ if name in frame]]  # of tens of thousands of rows
    numbers = [
        _without_value(row) if blank(row) else _number(row, words[row["metric"]])
        for row in read.to_dict("records")
    ]
    columns = zip(*numbers, strict=True) if numbers else [()] * len(_NUMBERS)
    return frame.assign(
        **{
            name: pd.Series(values, index=frame.index, dtype=object)
            for name, values in zip(_NUMBERS, columns, strict=True)
        }
    )


def _number(row: Mapping[Any, Any], word: Word) -> tuple[Any, ...]:
    """_NUMBERS of a row; no low and high without an interval."""
    e = Estimate.of_row(row)
    shown, bounded = wording.written(e, word), e.low == e.low and e.high == e.high
    ends = (round(word.scale * end, 5) if bounded else None for end in (e.low, e.high))
    return (round(word.scale * e.value, 5), *ends, shown.value, shown.ci, e.n)


def _without_value(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """_NUMBERS of a row that is drawn without a value: its n, or that there is nothing to count."""
    n = 0 if pd.isna(row["n"]) else int(row["n"])
    return None, None, None, "none" if row["silent"] else f"n {n:,}", "no value", n


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
    if "change" in frame:
        columns["change"] = frame["change"].map(_change, na_action="ignore").fillna("")
    for column, of in about.get("named", {}).items():
        values = reduce(lambda one, more: one + " " + more, (frame[c] for c in of["of"].split()))
        names = names_in(name, column)
        columns[column] = [names.get(value, value) for value in values]
    return frame.assign(**columns)


def _sorted(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows by the columns of a figure's ``order``, so that the first one holds the default
    choice; names in their order in the vocabulary or in ``figures.yaml``, others last."""

    def rank(column: pd.Series) -> pd.Series:
        names = names_in(name, str(column.name)).values()
        places = {value: at for at, value in enumerate(names)}
        return column.map(places).fillna(len(places)) if places else column

    order = texts()[name].get("order")
    if not order:
        return frame
    return frame.sort_values(order, key=rank, kind="stable", ignore_index=True)


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


def _change(change: Mapping[str, Any]) -> str:
    """The change of a disparity with its interval and p; '' where it has no value."""
    if blank(change):
        return ""
    shown = wording.written(Estimate.of_row(change), "disparity_change")
    return f"{shown.value} ({shown.ci}), p {p_value(change['p'])}"


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
        f"{top['method']} with {top['said']}{unit} ({wording.labelled(top['ci'], wording.CI)},"
        f" n {top['n']:,}; {top['test']})"
    )
    # an estimate without an interval (too few places) can't be told apart from any other
    low = float("nan") if top["low"] is None else float(top["low"])
    reach = int((~(others["high"].astype(float) < low)).sum())
    if reach == 0:
        return {"best": f"for {top['model']}, the highest is {measured}."}
    return {
        "best": f"for {top['model']}, no method is clearly the highest: {measured} ranks first, but"
        f" {reach} of {len(others)} others can’t be distinguished from it."
    }


def _spread(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Any]:
    """How far the groups of the first model lie apart, and the order of the groups: poorest before
    richest, otherwise by name; countries by their value."""
    by = rows["attribute"].iloc[0]
    first = _like_first(shown, "model", "test", "method")
    value = first["value"].astype(float)
    ends: list[Any] = [value.idxmax(), value.idxmin()]
    top, low = (first.loc[at] for at in ends)
    if None in (top["low"], low["high"]):
        verdict = "one of the two has no interval, so they can’t be compared"
    else:
        verdict = f"the two intervals {'don’t overlap' if top['low'] > low['high'] else 'overlap'}"
    spread = f"lies between {_in_group(low)} and {_in_group(top)}: {verdict}"
    if len(first) == 1:
        spread = f"has one group of 20 questions or more: {_in_group(top)}"
    small = int(rows["value"].isna().sum())
    order: Any = sorted(set(shown["group"]), key=_rank)
    if by == "country":
        order = {"field": "value", "op": "max", "order": "descending"}
    return {
        "sort": order,
        "said": WORDS.groups[by].name,
        "spread": f"The accuracy of {top['model']} with {top['method']} {spread}.",
        "small": f" Not shown: {many(small, 'value')} over fewer than 20 questions."
        if small
        else "",
    }


def _in_group(row: pd.Series) -> str:
    return f"{row['said']} % ({row['group']}, {wording.labelled(row['ci'])}, n {row['n']:,})"


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


def _pair(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Any]:
    """Of disparities by an attribute: its two groups, and which differences have no value."""
    attribute = rows["attribute"].iloc[0]
    one, other = PAIRS[attribute]
    small = int((rows["value"].isna() & ~rows["silent"]).sum())
    what = "differences have no value: a group or a class has fewer than 20 people"
    return {
        "step": 48 if shown["model"].nunique() <= 6 else 33,
        "attribute": WORDS.groups[attribute].name,
        "one": one,
        "other": other,
        "small": f" {small:,} {what}." if small else "",
        **_silent(rows, shown),
    }


def _classes(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Any]:
    """The order of classes and attributes, and the classes that have no value at all."""
    absent = ", ".join(sorted(set(rows["target"]) - set(shown["target"])))
    return {
        "across": [f"{one} − {other}" for one, other in PAIRS.values()],
        "down": SELECTED,
        "absent": f" Not shown, for want of 20 people in both groups: {absent}." if absent else "",
        **_silent(rows, shown),
    }


def _silent(rows: pd.DataFrame, shown: pd.DataFrame) -> dict[str, str]:
    """A sentence per reason, naming the models and prompts without any disparity; '' for none."""
    sentences = []
    for why, part in rows[rows["silent"]].groupby("missing_reason", sort=True):
        tests = part.groupby("model", sort=False)["test"].agg(lambda t: ", ".join(sorted(set(t))))
        models = "; ".join(f"{model}, {prompts}" for model, prompts in tests.items())
        sentences.append(f" {str(why).capitalize()}, so without a disparity: {models}.")
    return {"silent": "".join(sentences)}


_SAID: Mapping[str, Callable[[pd.DataFrame, pd.DataFrame], dict[str, Any]]] = {
    **dict.fromkeys(("methods-accuracy", "methods-gain", "methods-estimation"), best),
    "groups": _spread,
    "groups-change": _narrowed,
    "harm-fixed": _fixed,
    "fairness": _pair,
    "fairness-classes": _classes,
    "fairness-prompts": _silent,
}
