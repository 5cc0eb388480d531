"""Studies of answers as tables of calls to `stats.measure`: whose answers, which value, in which
groups, against what, and in which family of tests; one runner makes their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdgbias.analysis.outcomes import TaskOutcome, units
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Floats, Ints
from sdgbias.suites.facet import NONE_RIGHT
from sdgbias.suites.rows import FEWER

StudyRow = dict[str, object]
Values = dict[str, Floats]


@dataclass(frozen=True)
class Level:
    """A grouping of rows. code (n,): each row's group, -1 for none. columns: the columns of the
    study row of each group. smallest: a group of fewer rows gets no value. declared: a group
    without a row is shown, too. pair: the two groups of which a difference is reported."""

    code: Ints
    columns: Sequence[Mapping[str, object]]
    smallest: int = 1
    declared: bool = False
    pair: tuple[str, str] | None = None


def every(o: TaskOutcome) -> Iterable[str]:
    """All methods that answered."""
    return o.choice


def whole(o: TaskOutcome) -> Iterator[Level]:
    """All rows as one group."""
    yield Level(np.zeros(len(o.items), dtype=np.int64), ({},))


@dataclass(frozen=True)
class Sample:
    """The values of a method, and of what it is compared with, to be reduced in the groups of a
    level. values, before: (n,) by metric. columns: of all rows."""

    study: str
    o: TaskOutcome
    level: Level
    values: Values
    before: Values | None
    clusters: Sequence[Ints]
    columns: dict[str, object]
    call: Call
    settings: AnalysisSettings

    def difference(self) -> tuple[str, Floats]:
        """The only metric, and the (n,) differences of its values."""
        [(metric, values)] = self.values.items()
        return metric, values if self.before is None else values - self.before[metric]

    def row(self, metric: str, e: stats.Estimate, i: int = 0, **more: Any) -> StudyRow:
        """A row of group i. Notes are joined."""
        columns = {**self.columns, **self.level.columns[i], **more}
        notes = (str(part.get("note", "")) for part in (self.columns, more))
        columns["note"] = "; ".join(note for note in notes if note)
        return row(self.study, metric, e, **columns)


@dataclass(frozen=True)
class Call:
    """One line of a study. values: (n,) numbers of a method by metric. by: the groupings. kind: of
    the values. methods: whose values; versus: which methods they are compared with, '' for none;
    suffix: of the name of a compared metric. statistic: what is made of the values in a group.
    clusters: what rows are sampled by; of several, the one that claims less. tested: with p.
    family: what a row's p is adjusted together with (Holm), its columns in braces; '' for none.
    columns: of all rows."""

    values: Callable[[TaskOutcome, str], Values]
    by: Callable[[TaskOutcome], Iterable[Level]] = whole
    kind: stats.Kind = "share"
    methods: Callable[[TaskOutcome], Iterable[str]] | Sequence[str] = every
    versus: Sequence[str] = ("",)
    suffix: str = ""
    statistic: Callable[[Sample], Iterable[StudyRow]] = field(default_factory=lambda: means)
    clusters: Callable[[TaskOutcome, str, str], list[Ints]] = units
    tested: bool = False
    family: str = ""
    columns: Mapping[str, object] = field(default_factory=dict)

    def samples(self, study: str, o: TaskOutcome, settings: AnalysisSettings) -> Iterator[Sample]:
        """What is measured of these answers: each method, against each other one, in each
        grouping."""
        chosen = self.methods(o) if callable(self.methods) else self.methods
        levels = list(self.by(o))
        for method in (m for m in chosen if m in o.choice):
            values = self.values(o, method)
            for versus in (v for v in self.versus if v in o.choice or not v):
                columns = {**o.columns(method), "versus": versus, **self.columns}
                before = self.values(o, versus) if versus else None
                clusters = self.clusters(o, method, versus)
                for level in levels:
                    yield Sample(study, o, level, values, before, clusters, columns, self, settings)


class Study(NamedTuple):
    """answers: the selection of a run's answers; rows among them are of the study as they stand."""

    name: str
    answers: Callable[[RunData, AnalysisSettings], Iterable[TaskOutcome | StudyRow]]
    calls: Sequence[Call]

    def rows(self, run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
        """The rows of all calls, sorted by key."""
        selected = list(self.answers(run, settings))
        made = [one for one in selected if isinstance(one, dict)]
        families: dict[str, list[StudyRow]] = {}
        for call in self.calls:
            for o in selected:
                if isinstance(o, dict):
                    continue
                for sample in call.samples(self.name, o, settings):
                    rows = list(call.statistic(sample))
                    made += rows
                    for r in rows if call.family else ():
                        families.setdefault(call.family.format_map(r), []).append(r)
        for members in families.values():
            adjust(members)
        return table(made)


def adjust(rows: Sequence[StudyRow]) -> None:
    """Holm's p of one family's rows, in place; the note has the size of the family."""
    raw = [float(r["p"]) for r in rows]  # type: ignore[arg-type]
    many = sum(not np.isnan(p) for p in raw)
    for r, p, adjusted in zip(rows, raw, stats.holm(raw), strict=True):
        if not np.isnan(p):
            note = f"{r['note']}; " if r["note"] else ""
            r["p_adjusted"], r["note"] = float(adjusted), f"{note}Holm over {many} tests"


# ----------------------------------------------------------------------
# groupings


def grouping(
    keys: pd.Series, named: Callable[[str], Mapping[str, str]], smallest: int = 1
) -> Level:
    """Rows with the same key are a group, rows without one (NaN) have none; groups stand in the
    order of their keys. named: a key -> the columns of its study rows."""
    code, names = pd.factorize(keys, sort=True)
    return Level(code.astype(np.int64), tuple(named(str(name)) for name in names), smallest)


def pillars(o: TaskOutcome) -> Iterator[Level]:
    """All rows, and by pillar, where there are any."""
    yield from whole(o)
    names = o.items["pillar"]
    yield grouping(names.where(names != ""), lambda name: {"attribute": "pillar", "group": name})


def indicators(o: TaskOutcome) -> Iterator[Level]:
    """By indicator within its pillar."""
    pillar = o.items["pillar"].where(o.items["pillar"] != "")

    def named(key: str) -> dict[str, str]:
        return {
            "attribute": "pillar",
            **dict(zip(("group", "indicator"), key.split("\t"), strict=True)),
        }

    yield grouping(pillar + "\t" + o.items["indicator"], named)


def depths(o: TaskOutcome) -> Iterator[Level]:
    """All rows, by pillar, and by indicator within its pillar."""
    yield from pillars(o)
    yield from indicators(o)


# ----------------------------------------------------------------------
# statistics


def _tables(s: Sample) -> Iterator[stats.MeansByGroup]:
    metric_columns = (
        stats.ValueColumn(f"{metric}{s.call.suffix}", values, s.call.kind)
        for metric, values in s.values.items()
    )
    return stats.measure(
        metric_columns,
        s.level.code,
        len(s.level.columns),
        s.clusters,
        versus=None if s.before is None else s.before.values(),
        smallest=s.level.smallest,
        p="each" if s.call.tested or s.call.family else "",
    )


def means(s: Sample) -> Iterator[StudyRow]:
    """The mean of the values in each group, or of their differences. Groups without a row are left
    out, unless they are declared."""
    for found in _tables(s):
        for i in range(len(found.n)) if s.level.declared else np.flatnonzero(found.n > 0):
            more: dict[str, Any] = {"p": float(found.p[i])}
            if found.small[i] and s.level.smallest > 1:
                more["missing_reason"] = FEWER
            yield s.row(found.metric, found.estimate(int(i)), int(i), **more)


def mde(s: Sample) -> Iterator[StudyRow]:
    """The minimum detectable effect of the test of each mean."""
    for found in _tables(s):
        for i in np.flatnonzero(found.n > 0):
            e = stats.Estimate(found.test(int(i)).mde, int(found.n[i]))
            yield s.row("mde", e, int(i), note="two-sided 5 %, power 80 %")


def mcnemar(s: Sample) -> Iterator[StudyRow]:
    """The mean difference of right and wrong with the p of a sign test, in which each cluster has
    one vote."""
    _, change = s.difference()
    for found in _tables(s):
        for i in np.flatnonzero(found.n > 0):
            rows = (s.level.code == i) & ~np.isnan(change)
            votes = stats.net_signs(change[rows], s.clusters[found.way[i]][rows])
            up, down = ((change[rows] > 0).sum(), (change[rows] < 0).sum())
            note = f"{up} better, {down} worse; by place {votes[0]} to {votes[1]}"
            p = stats.sign_test(*votes)
            yield s.row("mcnemar", found.estimate(int(i)), int(i), p=p, note=note)


def across_countries(s: Sample) -> Iterator[StudyRow]:
    """The mean difference with the standard error of places within countries, its p by country, and
    the minimum detectable effect."""
    if not (s.o.items["country"] != "").any():
        return
    metric, difference = s.difference()
    estimate, note = stats.two_way(difference, s.o.place, s.o.country, "difference")
    test = stats.paired(difference, s.o.country, "difference")
    yield s.row(f"{metric}{s.call.suffix}", estimate, p=test.p, note=note)
    yield s.row("mde", stats.Estimate(test.mde, test.estimate.n), note=note)


def distinct(s: Sample) -> Iterator[StudyRow]:
    """Number of distinct values in each group: the effective n where many rows share a prompt."""
    inside = s.level.code >= 0
    for metric, values in s.values.items():
        counts = pd.Series(values[inside]).groupby(s.level.code[inside]).agg(["nunique", "size"])
        for i, many, n in counts.itertuples():
            yield s.row(metric, stats.Estimate(float(many), int(n)), int(i))


def macro(s: Sample) -> Iterator[StudyRow]:
    """The mean over groups of their means, each group weighing the same."""
    for metric, values in s.values.items():
        each = [stats.macro(values, s.level.code, unit, s.call.kind) for unit in s.clusters]
        whole_of = {"attribute": "", "group": "", "indicator": "all"}
        yield row(s.study, f"{metric}{s.call.suffix}", stats.widest(each), **s.columns | whole_of)


def last_minus_first(s: Sample) -> Iterator[StudyRow]:
    """The difference of the means of the last and the first group."""
    metric, values = s.difference()
    last = len(s.level.columns) - 1
    first, most = (values[s.level.code == at] for at in (0, last))
    if len(first) and len(most):
        e = stats.Estimate(float(most.mean() - first.mean()), len(first) + len(most))
        other = s.level.columns[0]["group"]
        yield s.row(f"{metric}{s.call.suffix}", e, last, other=other, x=float("nan"))


def disparity(s: Sample) -> Iterator[StudyRow]:
    """How far the groups lie apart: of a pair their difference, of more the largest minus the
    smallest mean; compared, the change of its size. No value where a group is too small, or where
    no answer is right: 0 would read as fairness."""
    columns = [v for values in (s.before, s.values) if values for v in values.values()]
    known, groups = s.level.code >= 0, len(s.level.columns)
    if groups < 2:
        return
    rows = np.bincount(s.level.code[known], minlength=groups)
    means_of = None
    fewest = s.level.smallest if s.level.declared else 1
    if rows.min() >= fewest and all(np.nansum(v[known]) for v in columns):
        means_of = stats.group_means(
            np.stack([v[known] for v in columns], axis=1),
            s.level.code[known],
            s.clusters[0][known],
            draws=s.settings.bootstrap,
            seed=s.settings.seed,
        )
    metric = "disparity" if s.before is None else "disparity_change"
    for (group, other), reduction in _reductions(s.level).items():
        e, p = stats.nothing(int(rows.min())), float("nan")
        reason: dict[str, Any] = {
            "missing_reason": NONE_RIGHT if rows.min() >= s.level.smallest else FEWER
        }
        if means_of is not None:
            found = stats.disparity(means_of, reduction)
            if s.before is not None:
                found = stats.disparity_change(found.take([0]), found.take([1]))
            e, p = found.estimate(), float(found.p[0])
            reason = {"missing_reason": FEWER} if np.isnan(e.value) else {}
            if s.level.declared:  # of people: n is that of the smaller group
                e = replace(e, n=int(rows.min()))
        yield s.row(metric, e, 0, p=p, group=group, other=other, **reason)


def _reductions(level: Level) -> dict[tuple[str, str], Callable[[Floats], Floats]]:
    """(group, other) -> their difference, of the means of a level's groups."""
    names = [str(columns["group"]) for columns in level.columns]
    made: dict[tuple[str, str], Callable[[Floats], Floats]] = {}
    # of two groups max minus min is the size of their difference
    if level.pair is None or len(names) > 2:
        made["max", "min"] = metrics.max_min
    if level.pair is not None and set(level.pair) <= set(names):
        one, other = map(names.index, level.pair)
        made[level.pair] = lambda v: metrics.difference(v, one, other)
    return made
