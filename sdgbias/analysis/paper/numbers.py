"""The two sides of the join, by one key: numbers of a results file, and those that the papers print
(``data/paper/*.csv``, see the README there).

Numbers come by study; '' is that of the headline metrics. What the results don't hold follows from
them (means over the tests, sweeps, costs, counts of a benchmark: ``data/paper.sql``) or is part of
this program ('code': prompts, ranges, tolerances).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import yaml

from sdgbias import store
from sdgbias.benchmark.people_items import CHOICES, P1
from sdgbias.files import packaged, packaged_sql
from sdgbias.methods import stats
from sdgbias.types import CONTEXT_NAMES, SDG, TOLERANCES, ContextTest, Task, View

#: What identifies a number, and which one is meant where nothing else is said.
KEY: Mapping[str, str] = {
    **{"study": "", "task": "mcq", "test": "all", "method": "full", "pillar": "all"},
    **{"indicator": "all", "versus": "", "parameter": "", "metric": "accuracy"},
}
#: Those that tell the numbers of one study apart.
NAMES = tuple(KEY)[1:]
VALUES = ["value", "n", "ci_low", "ci_high"]
PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")
#: The values in Table E's example.
TABLE_E_PLACE = {
    **{"asset_index": 1.0, "water_index": 3.4, "sanitation_index": 2.6, "under5_mort": 0.0},
    **{"women_edu": 9.5, "women_bmi": 24.4, "urban": "U"},
}
FOLDER = packaged("data", "paper")
SQL = packaged_sql("paper.sql")
WITH = f"WITH every AS {store.NUMBERS}, " + ", ".join(
    f"{name} AS ({SQL[name]})" for name in ("stored", "studied", "headline")
)


# -- of the results
# ----------------------------------------------------------------------


def of_study(ask: Callable[..., pd.DataFrame], study: str) -> pd.DataFrame:
    """The numbers of a study, or of a study as it is stored ('rows of STUDY'): run_id (of a
    benchmark its id), ``NAMES``, value (a number or a text), n, ci_low, ci_high (NaN if missing),
    status (why there is no value, '' where it isn't known) and kind (what a number is, where that
    isn't its run's). Of those with one key the first counts. ``ask``: a query over the chosen
    runs."""
    if study == "code":
        frame = pd.DataFrame([*_code()]).astype({"value": object})
    else:
        name, _, of = study.partition(" of ")
        query = SQL.get(name or "headline", "FROM studied WHERE study = $of")
        frame = ask(f"{WITH} FROM ({query})", of=of or name)
    if "place" in frame:
        frame = _shares(frame)
    frame = frame.reindex(columns=["run_id", *NAMES, *VALUES, "status", "kind"])
    frame = frame.fillna({**KEY, "run_id": "", "status": "", "kind": ""})
    return frame.astype(dict.fromkeys(VALUES[1:] if study == "code" else VALUES, float))


def _shares(places: pd.DataFrame) -> pd.DataFrame:
    """Shares of counts by place (a column each, beside n), clustered by place."""
    same = [name for name in ("run_id", *NAMES) if name in places]
    group: np.ndarray = places.groupby(same, sort=False).ngroup().to_numpy()
    groups = places[same].drop_duplicates()
    frames = [groups.iloc[:0]]
    for metric in places.columns.difference([*same, "place", "n"], sort=False):
        sums = stats.ClusterSums(places[metric].to_numpy(), places["n"].to_numpy(), group)
        shares = stats.measure_sums(metric, sums, np.ones(len(groups)), "share", tested=False)
        values = (shares.value, shares.n, shares.low, shares.high)
        frames.append(groups.assign(metric=metric, **dict(zip(VALUES, values, strict=True))))
    return pd.concat(frames, ignore_index=True)


def _code() -> Iterator[Mapping[str, Any]]:
    """Prompts, context lines, tolerances and ranges as the code has them."""
    from sdgbias.benchmark.prompts import context_lines, prompt_texts
    from sdgbias.methods.search import RANGES

    options = {"option_a": "{A}", "option_b": "{B}", "option_c": "{C}"}
    item = pd.DataFrame([{"question": "{QUESTION}", "target": "", **options}])
    for task in Task:
        at = {"task": task.value, "metric": "prompt"}
        lines = str(prompt_texts(item, task, ContextTest.T5, View.FULL).iloc[0]).split("\n")
        lines.insert(1, "Context: {CONTEXT} (left out without a context)")
        for number, line in enumerate(lines, start=1):
            yield {**at, "parameter": f"line {number}", "value": line}
        for parameter, limits in zip(PARAMETERS, RANGES[task], strict=True):
            for metric, limit in zip(("low", "high"), limits, strict=True):
                yield {**at, "parameter": parameter, "metric": metric, "value": limit}
    place = pd.DataFrame([{name: TABLE_E_PLACE[name] for name in CONTEXT_NAMES}])
    for test in ContextTest:
        context = str(context_lines(place, test).iloc[0]) or "(no Context line)"
        yield {"test": test.value, "metric": "context", "value": context}
    for target, tolerance in TOLERANCES.items():
        yield {"indicator": target, "metric": "tolerance", "value": tolerance}
    classes = P1.format(list="[FACET Classes]").replace("[[", "[").replace("]]", "]")
    choices = {test: sentence.format(name="[FACET class]") for test, sentence in CHOICES.items()}
    for name, sentence in {"p1": classes, **choices}.items():
        yield {"test": name, "metric": "text", "value": sentence}


# -- of the papers
# ----------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """value: in the results' unit (shares 0 to 1), None if the paper prints no number. text: the
    characters as printed."""

    value: float | None
    text: str


@cache
def described(suite: str) -> Mapping[str, Any]:
    """What is said of a suite's tables: ``tables`` by item, ``ours`` by the kind of our values,
    ``models``, the file of the models that the suite's paper shows."""
    path = packaged("data", f"tables_{suite}.yaml")
    content: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@cache
def rows(item: str) -> tuple[Mapping[str, str], ...]:
    """All lines of one file, by its stem: 'table_h', 'figure_8', 'claims', 'models'; none of ''."""
    if not item:
        return ()
    with (FOLDER / f"{item}.csv").open(encoding="utf-8", newline="") as handle:
        return tuple(csv.DictReader(handle))


@cache
def names(suite: str = SDG) -> Mapping[str, str]:
    """Registry name (or key) -> name, of the models that a suite's paper shows, in its order."""
    return {r["model"]: r["name"] for r in rows(described(suite)["models"])}


def find(item: str, **where: str) -> Printed | None:
    """The printed value of one line, None if the paper prints none. Columns not named in ``where``
    may hold anything. Raises ValueError if several lines fit."""
    lines = [r for r in rows(item) if where.items() <= r.items()]
    if len(lines) > 1:
        raise ValueError(f"{item}: {len(lines)} lines fit {where}; name more columns")
    if not lines:
        return None
    return Printed(float(lines[0]["value"]) if lines[0]["value"] else None, lines[0]["printed"])
