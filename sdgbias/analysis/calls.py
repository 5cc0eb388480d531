"""Studies of answers as tables of calls to `stats.measure`: what is measured, in which groups, and
what its intervals count; one runner makes their rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats, Ints
from sdgbias.suites.rows import FEWER

StudyRow = dict[str, object]


@dataclass(frozen=True)
class Level:
    """A grouping of rows. code (n,): each row's group, -1 for none. columns: the columns of the
    study row of each group. smallest: a group of fewer rows gets no value."""

    code: Ints
    columns: Sequence[Mapping[str, object]]
    smallest: int = 1


@dataclass(frozen=True)
class Call:
    """(n,) values by metric, measured in each group of the levels. columns: of all its rows.
    clusters: what rows are sampled by; of several, the one that claims less. tested: with p, of the
    value against 0."""

    columns: Mapping[str, object]
    levels: Sequence[Level]
    values: Mapping[str, Floats]
    clusters: Sequence[Ints]
    kind: stats.Kind = "share"
    tested: bool = False


Calls = Callable[[RunData, AnalysisSettings], Iterable[Call | StudyRow]]


def measured(
    study: str, calls: Calls, family: Callable[[StudyRow], Hashable] = lambda row: None
) -> Callable[[RunData, AnalysisSettings], pd.DataFrame]:
    """The function that makes the rows of a study from its calls, and rows that no call gives.
    family: what the tests of a row are adjusted together with (Holm); None: it isn't tested."""

    def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
        made: list[StudyRow] = []
        for call in calls(run, settings):
            made += rows_of(study, call) if isinstance(call, Call) else [call]
        families: dict[Hashable, list[StudyRow]] = {}
        for one in made:
            families.setdefault(family(one), []).append(one)
        for key, members in families.items():
            if key is not None:
                adjust(members)
        return table(made)

    return rows


def rows_of(study: str, call: Call) -> list[StudyRow]:
    """The rows of a call; empty groups are left out. A group of fewer rows than its level's
    smallest has no value."""
    made = []
    for level in call.levels:
        tables = stats.measure(
            (stats.ValueColumn(metric, v, call.kind) for metric, v in call.values.items()),
            level.code,
            len(level.columns),
            call.clusters,
            smallest=level.smallest,
            p="each" if call.tested else "",
        )
        for of_metric in tables:
            for i in np.flatnonzero(of_metric.n > 0):
                more: StudyRow = {"p": float(of_metric.p[i])} if call.tested else {}
                if of_metric.small[i]:
                    more["missing_reason"] = FEWER
                columns = {**call.columns, **level.columns[i], **more}
                made.append(row(study, of_metric.metric, of_metric.estimate(int(i)), **columns))
    return made


def grouping(
    keys: pd.Series, named: Callable[[str], Mapping[str, str]], smallest: int = 1
) -> Level:
    """Rows with the same key are a group, rows without one (NaN) have none; groups stand in the
    order of their keys. named: a key -> the columns of its study rows."""
    code, names = pd.factorize(keys, sort=True)
    return Level(code.astype(np.int64), tuple(named(str(name)) for name in names), smallest)


def levels_of(items: pd.DataFrame) -> list[Level]:
    """Groupings: all rows, by pillar, and by indicator within its pillar, where there are any."""
    whole = Level(np.zeros(len(items), dtype=np.int64), ({},))
    pillars = items["pillar"].where(items["pillar"] != "")
    both = pillars + "\t" + items["indicator"]

    def named(key: str) -> dict[str, str]:
        names = dict(zip(("group", "indicator"), key.split("\t"), strict=False))
        return {"attribute": "pillar", **names}

    return [whole, grouping(pillars, named), grouping(both, named)]


def distinct(
    study: str,
    levels: Sequence[Level],
    unit: Ints,
    columns: Mapping[str, object],
    metric: str = "distinct_prompts",
) -> list[StudyRow]:
    """Number of distinct units of each group, the effective n where many rows share one. unit: (n,)
    codes. columns: values shared by all rows."""
    made = []
    for level in levels:
        inside = level.code >= 0
        seen = pd.Series(unit[inside]).groupby(level.code[inside]).agg(["nunique", "size"])
        for group, k, n in seen.itertuples():
            estimate = stats.Estimate(float(k), int(n))
            made.append(row(study, metric, estimate, **{**columns, **level.columns[group]}))
    return made


def adjust(rows: Sequence[StudyRow]) -> None:
    """Holm's p of one family's rows, in place; the note has the size of the family."""
    raw = [float(r["p"]) for r in rows]  # type: ignore[arg-type]
    many = sum(not np.isnan(p) for p in raw)
    for r, p, adjusted in zip(rows, raw, stats.holm(raw), strict=True):
        if not np.isnan(p):
            note = f"{r['note']}; " if r["note"] else ""
            r["p_adjusted"], r["note"] = float(adjusted), f"{note}Holm over {many} tests"
