"""Studies of answers as tables of calls to `stats.measure`: whose answers, which value, in which
groups, against what, and in which family of tests; one runner makes their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdgbias.analysis.outcomes import TaskOutcome, units
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Bools, Floats, Ints
from sdgbias.suites.facet import NONE_RIGHT
from sdgbias.suites.facet_groups import difference
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
    """What is measured of one method. values, before: (n,) by metric, of its answers and of those
    that they are compared with, if any. columns: of its rows."""

    values: Values
    before: Values | None
    columns: dict[str, object]

    def difference(self) -> tuple[str, Floats]:
        """The only metric, and the (n,) differences of its values."""
        [(metric, values)] = self.values.items()
        return metric, values if self.before is None else values - self.before[metric]


@dataclass(frozen=True)
class Measurement:
    """Samples of the same answers, clustered alike, to be reduced in the groups of a level in one
    pass. units: what each of the clusters is, as a word."""

    study: str
    call: Call
    o: TaskOutcome
    level: Level
    units: Sequence[str]
    clusters: Sequence[Ints]
    samples: Sequence[Sample]
    settings: AnalysisSettings

    def row(self, s: Sample, metric: str, e: stats.Estimate, i: int = 0, **more: Any) -> StudyRow:
        """A row of group i. Notes are joined."""
        columns = {**s.columns, **self.level.columns[i], **more}
        notes = (str(part.get("note", "")) for part in (s.columns, more))
        columns["note"] = "; ".join(note for note in notes if note)
        return row(self.study, metric, e, **columns)

    def measured(self) -> Iterator[tuple[Sample, stats.MeansByGroup]]:
        """Each sample's metrics, measured in all groups."""
        columns = [(s, metric) for s in self.samples for metric in s.values]
        tables = stats.measure(
            (
                stats.ValueColumn(f"{metric}{self.call.suffix}", s.values[metric], self.call.kind)
                for s, metric in columns
            ),
            self.level.code,
            len(self.level.columns),
            self.clusters,
            versus=(None if s.before is None else s.before[metric] for s, metric in columns),
            smallest=self.level.smallest,
            p="each" if self.call.tested or self.call.family else "",
        )
        return zip((s for s, _ in columns), tables, strict=True)


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
    statistic: Callable[[Measurement], Iterable[StudyRow]] = field(default_factory=lambda: means)
    clusters: Callable[[TaskOutcome, str, str], tuple[str, ...]] = units
    tested: bool = False
    family: str = ""
    columns: Mapping[str, object] = field(default_factory=dict)

    def rows(self, study: str, o: TaskOutcome, settings: AnalysisSettings) -> Iterator[StudyRow]:
        """The rows of these answers: of each method, against each other one, in each grouping."""
        chosen = self.methods(o) if callable(self.methods) else self.methods
        values = cache(partial(self.values, o))
        samples: dict[tuple[str, ...], list[Sample]] = {}
        others = [v for v in self.versus if not v or not np.isnan(o.hit.get(v, np.nan)).all()]
        for method, versus in product((m for m in chosen if m in o.choice), others):
            if method != versus:
                columns = {**o.columns(method), "versus": versus, **self.columns}
                before = values(versus) if versus else None
                names = self.clusters(o, method, versus)
                samples.setdefault(names, []).append(Sample(values(method), before, columns))
        for names, alike in samples.items():
            clusters = [o.codes(name) for name in names]
            for level in o.grouped(self.by):
                yield from self.statistic(
                    Measurement(study, self, o, level, names, clusters, alike, settings)
                )


class Study(NamedTuple):
    """answers: the selection of a run's answers; rows among them are of the study as they stand."""

    name: str
    answers: Callable[[RunData, AnalysisSettings], Iterable[TaskOutcome | StudyRow]]
    calls: Sequence[Call]

    def rows(self, run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
        """The rows of all calls, sorted by key."""
        selected = list(self.answers(run, settings))
        rows = [one for one in selected if isinstance(one, dict)]
        families: dict[str, list[StudyRow]] = {}
        for o in (one for one in selected if isinstance(one, TaskOutcome)):
            for call in self.calls:
                of_call = list(call.rows(self.name, o, settings))
                rows += of_call
                for r in of_call if call.family else ():
                    families.setdefault(call.family.format_map(r), []).append(r)
        for members in families.values():
            adjust(members)
        return table(rows)


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
    yield from o.grouped(pillars)
    yield from o.grouped(indicators)


# ----------------------------------------------------------------------
# statistics


def means(m: Measurement) -> Iterator[StudyRow]:
    """The mean of the values in each group, or of their differences. Groups without a row are left
    out, unless they are declared."""
    for s, by_group in m.measured():
        for i in range(len(by_group.n)) if m.level.declared else np.flatnonzero(by_group.n > 0):
            more: dict[str, Any] = {"p": float(by_group.p[i])}
            if by_group.small[i] and m.level.smallest > 1:
                more["missing_reason"] = FEWER
            yield m.row(s, by_group.metric, by_group.estimate(int(i)), int(i), **more)


def mde(m: Measurement) -> Iterator[StudyRow]:
    """The minimum detectable effect of the test of each mean."""
    for s, by_group in m.measured():
        for i in np.flatnonzero(by_group.n > 0):
            e = stats.Estimate(by_group.test(int(i)).mde, int(by_group.n[i]))
            yield m.row(s, "mde", e, int(i), note="two-sided 5 %, power 80 %")


def mcnemar(m: Measurement) -> Iterator[StudyRow]:
    """The mean difference of right and wrong with the p of a sign test, in which each cluster has
    one vote."""
    for s, by_group in m.measured():
        _, change = s.difference()
        for i in np.flatnonzero(by_group.n > 0):
            rows = (m.level.code == i) & ~np.isnan(change)
            unit, codes = m.units[by_group.way[i]], m.clusters[by_group.way[i]]
            votes = stats.net_signs(change[rows], codes[rows])
            up, down = ((change[rows] > 0).sum(), (change[rows] < 0).sum())
            note = f"{up} better, {down} worse; by {unit} {votes[0]} to {votes[1]}"
            p = stats.sign_test(*votes)
            yield m.row(s, "mcnemar", by_group.estimate(int(i)), int(i), p=p, note=note)


def distinct(m: Measurement) -> Iterator[StudyRow]:
    """Number of distinct values in each group: the effective n where many rows share a prompt."""
    inside = m.level.code >= 0
    for s in m.samples:
        for metric, values in s.values.items():
            by_group = pd.Series(values[inside]).groupby(m.level.code[inside])
            for i, many, n in by_group.agg(["nunique", "size"]).itertuples():
                yield m.row(s, metric, stats.Estimate(float(many), int(n)), int(i))


def macro(m: Measurement) -> Iterator[StudyRow]:
    """The mean over groups of their means, each group weighing the same."""
    whole_of: dict[str, Any] = {"attribute": "", "group": "", "indicator": "all"}
    for s in m.samples:
        for metric, values in s.values.items():
            each = [stats.macro(values, m.level.code, unit, m.call.kind) for unit in m.clusters]
            yield m.row(s, f"{metric}{m.call.suffix}", stats.widest(each), **whole_of)


def last_minus_first(m: Measurement) -> Iterator[StudyRow]:
    """The difference of the means of the last and the first group."""
    last, other = len(m.level.columns) - 1, m.level.columns[0]["group"]
    for s, by_group in m.measured():
        if by_group.n[0] and by_group.n[last]:
            apart = difference(by_group.estimate(last), by_group.estimate())
            e = replace(apart, n=int(by_group.n[0] + by_group.n[last]))
            yield m.row(s, by_group.metric, e, last, other=other, x=float("nan"))


def disparity(m: Measurement) -> Iterator[StudyRow]:
    """How far the groups lie apart: of a pair their difference, of more the largest minus the
    smallest mean; of a compared method, the change of its size. No value where a group is too
    small, or where no answer is right: 0 would read as fairness."""
    has_group, groups = m.level.code >= 0, len(m.level.columns)
    if groups < 2:
        return
    by_method: dict[object, Floats] = {}
    for s in m.samples:
        for name, given in ((s.columns["versus"], s.before), (s.columns["method"], s.values)):
            if given:
                [values] = given.values()
                by_method[name] = values[has_group]
    at = {name: i for i, name in enumerate(by_method)}
    fewest = int(np.bincount(m.level.code[has_group], minlength=groups).min())
    small = m.level.declared and fewest < m.level.smallest
    absent = {
        name: FEWER if small else NONE_RIGHT
        for name, values in by_method.items()
        if small or not np.nansum(values)
    }
    means_of = None if small else _resampled(m, has_group, list(by_method.values()))
    for (group, other), reduction in _reductions(m.level).items():
        of_each = None if means_of is None else stats.disparity(means_of, reduction)
        for s in m.samples:
            of, versus = s.columns["method"], s.columns["versus"]
            e, p = stats.nothing(fewest), float("nan")
            reason = absent.get(of) or absent.get(versus)
            if of_each is not None and not reason:
                gap = of_each.take([at[of]])
                if versus:
                    gap = stats.disparity_change(of_each.take([at[versus]]), gap)
                e, p = gap.estimate(), float(gap.p[0])
                if m.level.declared:  # of people: n is that of the smaller group
                    e = replace(e, n=fewest)
            more: dict[str, Any] = {"missing_reason": reason or FEWER} if np.isnan(e.value) else {}
            metric = "disparity_change" if versus else "disparity"
            yield m.row(s, metric, e, p=p, group=group, other=other, **more)


def _resampled(m: Measurement, rows: Bools, columns: Sequence[Floats]) -> stats.GroupMeans:
    """The means of some rows' columns in each group of a level, and of resampled clusters."""
    return stats.group_means(
        np.stack(columns, axis=1),
        m.level.code[rows],
        m.clusters[0][rows],
        draws=m.settings.bootstrap,
        seed=m.settings.seed,
    )


def _reductions(level: Level) -> dict[tuple[str, str], Callable[[Floats], Floats]]:
    """(group, other) -> their difference, of the means of a level's groups."""
    names = [str(columns["group"]) for columns in level.columns]
    reductions: dict[tuple[str, str], Callable[[Floats], Floats]] = {}
    # of two groups max minus min is the size of their difference
    if level.pair is None or len(names) > 2:
        reductions["max", "min"] = metrics.max_min
    if level.pair is not None and set(level.pair) <= set(names):
        one, other = map(names.index, level.pair)
        reductions[level.pair] = lambda v: metrics.difference(v, one, other)
    return reductions
