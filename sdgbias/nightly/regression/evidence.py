"""The evidence for a rule from two runs.

The evidence is the change of the rule's metric on the questions that both runs answered, with a
standard error clustered by place (suite people: by picture). d is the change in the direction that
the rule defines as worse.

Two additions for answers that are right or wrong (0 or 1). The test is the clustered t test or the
sign test over places, whichever has the larger p: with few changed answers the t test is
anticonservative. And if none of n places gets worse, this only shows that fewer than
1 - 0.025^(1/n) of all places are worse; the evidence carries this bound.

Metrics of a whole run, without a value per question: share of failed prompts, prompts per second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdgbias import suites
from sdgbias.analysis.asked import needs
from sdgbias.methods import metrics, stats
from sdgbias.methods.stats.intervals import wilson
from sdgbias.nightly.regression.baseline import FIRST_RUN
from sdgbias.nightly.regression.measured import Measured, Pairs, RunMetrics, paired, pooled
from sdgbias.nightly.regression.policy import ALL, EACH, WHOLE, Rule
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import View

NAN = float("nan")
#: Metrics whose rows are 0 or 1, or differences of such; with few changed rows a t test rejects too
#: often.
COUNTED = ("accuracy", "interval_accuracy", "recall", "cade_gain", "parse_failures", "refusals")
#: Those of them whose flips are between right and wrong.
HITS = ("accuracy", "interval_accuracy", "recall")
#: Why there is no gap between groups, where there are groups.
NONE_RIGHT = "no answer is right, so groups can't be compared"
IMAGE_FREE = (View.Q_ONLY.value, View.CTX_Q.value)
AT_LEAST, AT_MOST = "at_least", "at_most"


@dataclass(frozen=True)
class RuleEvidence:
    """Evidence for one rule at one test, method, level and metric. before, value: of the old and
    the new run on the same questions; change, low, high: new - old with its 95 % interval (floors:
    of the value itself). p: of "not worse", before correction. se, df: of the change.
    undetectable_share: the largest share of worse places that could remain unseen with this number
    of places, NaN if the metric isn't 0 or 1. bound: allowed, or the floor. side: AT_LEAST or
    AT_MOST for a floor or ceiling, '' for a change. missing: nothing to judge; first: because this
    is the model's first run; excused: because the model can't have this metric (no pictures, no
    scores)."""

    rule: Rule
    task: str = ""
    test: str = ""
    method: str = ""
    level: str = ""
    metric: str = ""
    before: float = NAN
    value: float = NAN
    change: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0
    p: float = NAN
    se: float = NAN
    df: float = 0
    undetectable_share: float = NAN
    bound: float = NAN
    side: str = ""
    note: str = ""
    missing: bool = False
    first: bool = False
    excused: bool = False

    @property
    def floor(self) -> bool:
        return self.side != ""

    @property
    def worse(self) -> float:
        """d: the change in the direction that the rule defines as worse."""
        return {"lower": -self.change, "higher": self.change, "either": abs(self.change)}[
            self.rule.worse
        ]

    @property
    def upper(self) -> float:
        """Upper bound of d."""
        known = {
            "lower": -self.low,
            "higher": self.high,
            "either": max(abs(self.low), abs(self.high)),
        }[self.rule.worse]
        return known if np.isnan(self.undetectable_share) else max(known, self.undetectable_share)


def of_rule(
    rule: Rule, new: RunMetrics, old: RunMetrics | None, why: str = "", seed: int = 0
) -> list[RuleEvidence]:
    """All evidence for one rule. ``why``: the reason if there is no baseline run."""
    if rule.metric in WHOLE:
        return [
            RuleEvidence(rule, **found)
            for found in run_level_evidence(rule, new.run, old.run if old else None, why)
        ]
    made = []
    for metric in rule.metrics:
        for method in rule.methods:
            for test in _tests(rule, new):
                for by in rule.by or ("",):
                    e = RuleEvidence(
                        rule, task=rule.task, test=test, method=method, level=by, metric=metric
                    )
                    tests = list(new.tests.get(rule.task, ())) if test == ALL else [test]
                    if rule.allowed is not None:
                        made.append(_compared(e, new, old, tests, why, seed))
                    for side, floor in ((AT_LEAST, rule.at_least), (AT_MOST, rule.at_most)):
                        if floor is not None:
                            made.append(_bounded(e, new, tests, side, floor, seed))
    return made


def _tests(rule: Rule, new: RunMetrics) -> list[str]:
    return list(
        dict.fromkeys(
            t
            for name in rule.tests
            for t in (new.tests.get(rule.task, ()) if name == EACH else [name])
        )
    )


def _compared(
    e: RuleEvidence,
    new: RunMetrics,
    old: RunMetrics | None,
    tests: Sequence[str],
    why: str,
    seed: int,
) -> RuleEvidence:
    e = replace(e, bound=float(e.rule.allowed or 0.0))
    found = pooled(new, e.task, tests, e.metric, e.method)
    lacks = needs(new.run.get("config"), e.method, e.task) if found is None else ""
    if lacks:
        return replace(e, note=lacks, missing=True, excused=True)
    if old is None:
        value = (
            float(found.value.mean())
            if found is not None and len(found.value) and not e.rule.by
            else NAN
        )
        return replace(
            e,
            value=value,
            n=0 if found is None else len(found.value),
            note=why,
            missing=True,
            first=why == FIRST_RUN,
        )
    both = paired(old, new, e.task, tests, e.metric, e.method)
    if both is None:
        absent = "this run" if found is None else "the run compared with"
        note = f"{absent} has no {e.metric} for {e.method}"
        return replace(e, note=note, missing=True)
    if not len(both.before):
        return replace(e, note="no question is in both runs word for word", missing=True)
    note = f"{both.left:,} questions are in one run only" if both.left else ""
    return _gap(e, both, note, seed) if e.rule.by else _mean(e, both, note)


def _mean(e: RuleEvidence, both: Pairs, note: str) -> RuleEvidence:
    difference = both.after - both.before
    test = stats.paired(difference, both.cluster)
    made = replace(
        e,
        before=float(both.before.mean()),
        value=float(both.after.mean()),
        change=test.estimate.value,
        low=test.estimate.low,
        high=test.estimate.high,
        n=test.estimate.n,
        se=test.se,
        df=test.df,
    )
    p, unseen = test.p, NAN
    up, down = stats.net_signs(difference, both.cluster)
    if e.metric in COUNTED or e.metric.startswith("share_"):
        places = stats.codes(both.cluster)[1]
        p = max(p, stats.sign_test(up, down)) if p == p else p
        if e.method not in IMAGE_FREE:  # all image-free prompts are scored: none is unseen
            unseen = float(1 - 0.025 ** (1 / places))
    notes = [note]
    if e.metric in HITS:
        better, worse = int((difference > 0).sum()), int((difference < 0).sum())
        by_group = f"groups of questions {up:,} to {down:,}"
        sign = short_p(stats.sign_test(up, down))
        notes.insert(0, f"{better:,} better, {worse:,} worse, {by_group}, sign test p {sign}")
    if test.estimate.clusters < stats.FEWEST:
        notes.append(f"{test.estimate.clusters} independent groups of questions: too few to judge")
    elif test.estimate.clusters < 10:
        notes.append(f"{test.estimate.clusters} independent groups of questions only")
    return replace(
        made,
        p=_one_sided(p, made),
        undetectable_share=unseen,
        note="; ".join(n for n in notes if n),
    )


def short_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _one_sided(p: float, e: RuleEvidence) -> float:
    """p of "not worse" from the two-sided p; unchanged if the rule counts either direction as
    worse."""
    if e.rule.worse == "either" or p != p:
        return p
    return p / 2 if e.worse > 0 else 1 - p / 2


def _gap(e: RuleEvidence, both: Pairs, note: str, seed: int) -> RuleEvidence:
    """Change of the gap between groups: |after| - |before|, by resampling places."""
    chosen, names = _grouped(e, both.groups)
    if chosen is None:
        return replace(e, n=len(both.before), note=_no_groups(e, both.groups), missing=True)
    values = np.stack([both.before, both.after], axis=1)[chosen]
    if not values[:, 1].any() and np.isin(values, (0.0, 1.0)).all():
        return replace(e, n=int(chosen.sum()), note=NONE_RIGHT, missing=True)
    means = stats.group_means(values, both.groups[e.level][chosen], both.cluster[chosen], seed=seed)
    before, after = (stats.disparity(_column(means, i), _apart(e, names)) for i in (0, 1))
    change = stats.disparity_change(before, after)
    value = float(change.value[0])
    if value != value:
        return replace(
            e,
            n=int(chosen.sum()),
            note=f"a group by {e.level} has fewer than {stats.SMALLEST} questions",
            missing=True,
        )
    draws = change.draws[:, 0]
    made = replace(
        e,
        before=abs(float(before.value[0])),
        value=abs(float(after.value[0])),
        change=value,
        low=float(change.low[0]),
        high=float(change.high[0]),
        n=change.n,
        se=float(np.nanstd(draws)),
        df=max(stats.codes(both.cluster[chosen])[1] - 1, 1),
        note="; ".join(x for x in (_of_groups(e, names), _few(change, e), note) if x),
    )
    return replace(made, p=_one_sided(float(change.p[0]), made))


def _few(gap: stats.Disparity, e: RuleEvidence) -> str:
    many = int(gap.clusters[0])
    return (
        f"a group by {e.level} has {many} clusters: too few to judge"
        if gap.estimate().too_few
        else ""
    )


def _of_groups(e: RuleEvidence, names: list[str]) -> str:
    return (
        f"{names[0]} minus {names[1]}, in size"
        if len(names) == 2
        else f"largest minus smallest of {len(names)} groups"
    )


def _column(means: stats.GroupMeans, i: int) -> stats.GroupMeans:
    one = slice(i, i + 1)
    return replace(
        means,
        value=means.value[one],
        draws=means.draws[:, one],
        clusters=means.clusters[one],
        worth=means.worth[one],
    )


def _grouped(
    e: RuleEvidence, groups: Mapping[str, np.ndarray]
) -> tuple[np.ndarray | None, list[str]]:
    """Rows of known groups that are large enough, and the names of the groups; for levels in PAIRS
    the paper's two groups, or none."""
    of = groups.get(e.level)
    if of is None:
        return None, []
    names, count = np.unique(of[of != ""], return_counts=True)
    known = [str(n) for n, many in zip(names, count, strict=True) if many >= stats.SMALLEST]
    if e.level in PAIRS and not suites.named(e.rule.suite).custom:
        known = list(PAIRS[e.level]) if set(PAIRS[e.level]) <= set(known) else []
    return (np.isin(of, known), known) if len(known) > 1 else (None, [])


def _no_groups(e: RuleEvidence, groups: Mapping[str, np.ndarray]) -> str:
    if e.level not in groups:
        there = ", ".join(groups) or "none (evaluate it again)"
        return f"the questions have no group column {e.level!r}; there are: {there}"
    return f"fewer than two groups by {e.level}"


def _apart(e: RuleEvidence, names: list[str]):  # type: ignore[no-untyped-def]
    """(..., g) means of the groups in sorted order -> (...,)."""
    if len(names) > 2:
        return metrics.max_min
    first, second = (sorted(names).index(n) for n in names)
    return lambda means: metrics.difference(means, first, second)


def _bounded(
    e: RuleEvidence, new: RunMetrics, tests: Sequence[str], side: str, floor: float, seed: int
) -> RuleEvidence:
    """Compare the value itself with a floor or a ceiling."""
    e = replace(e, side=side, bound=floor)
    found = pooled(new, e.task, tests, e.metric, e.method)
    if found is None or not len(found.value):
        lacks = needs(new.run.get("config"), e.method, e.task)
        note = lacks or f"this run has no {e.metric} for {e.method}"
        return replace(e, note=note, missing=True)
    if e.rule.by:
        return _bounded_gap(e, found, seed)
    value = stats.mean(found.value, found.cluster, _kind(e.metric, found.value))
    test = stats.paired(found.value - floor, found.cluster)
    return replace(
        e,
        value=value.value,
        low=value.low,
        high=value.high,
        n=value.n,
        se=test.se,
        df=test.df,
    )


_RANGES: Mapping[str, stats.Kind] = {"candidate_mass": "fraction", "mae": "amount"}


def _kind(metric: str, values: np.ndarray) -> stats.Kind:
    """The range of a metric; keeps its interval inside that range."""
    if np.isin(values, (0.0, 1.0)).all():
        return "share"
    return _RANGES.get(metric, "mean")


def _bounded_gap(e: RuleEvidence, found: Measured, seed: int) -> RuleEvidence:
    chosen, names = _grouped(e, found.groups)
    if chosen is None:
        return replace(e, n=len(found.value), note=_no_groups(e, found.groups), missing=True)
    if not found.value[chosen].any():
        return replace(e, n=int(chosen.sum()), note=NONE_RIGHT, missing=True)
    means = stats.group_means(
        found.value[chosen], found.groups[e.level][chosen], found.cluster[chosen], seed=seed
    )
    gap = stats.disparity(means, _apart(e, names))
    low, high = float(gap.low[0]), float(gap.high[0])
    inside = low <= 0 <= high
    ends = (0.0 if inside else min(abs(low), abs(high)), max(abs(low), abs(high)))
    return replace(
        e,
        value=abs(float(gap.value[0])),
        low=ends[0],
        high=ends[1],
        n=gap.n,
        se=float(np.nanstd(gap.draws[:, 0])),
        df=max(stats.codes(found.cluster[chosen])[1] - 1, 1),
        note="; ".join(x for x in (_of_groups(e, names), _few(gap, e)) if x),
    )


def run_level_evidence(
    rule: Rule, new: Mapping[str, Any], old: Mapping[str, Any] | None, why: str
) -> list[dict[str, Any]]:
    """Fields of ``judge.RuleEvidence`` for a rule on failed_share or throughput. new, old: rows of
    ``runs``."""
    return [_throughput(rule, new, old, why)] if rule.metric == "throughput" else _failed(rule, new)


def _failed(rule: Rule, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Share of planned prompts without a score, treating prompts as independent (Wilson)."""
    planned, failed = int(run["n_prompts_planned"] or 0), int(run["n_failed"] or 0)
    made = []
    for side, bound in ((AT_LEAST, rule.at_least), (AT_MOST, rule.at_most)):
        if bound is None:
            continue
        common = {"metric": rule.metric, "side": side, "bound": bound}
        if planned <= 0:
            made.append({**common, "note": "the run names no number of prompts", "missing": True})
            continue
        share = failed / planned
        variance = share * (1 - share) / planned
        low, high = wilson(
            *(np.array(float(v)) for v in (share, planned, variance, planned, max(planned - 1, 1)))
        )
        made.append(
            {
                **common,
                "value": share,
                "low": float(low),
                "high": float(high),
                "n": planned,
                "se": variance**0.5,
                "df": planned - 1,
            }
        )
    return made


def _throughput(
    rule: Rule, new: Mapping[str, Any], old: Mapping[str, Any] | None, why: str
) -> dict[str, Any]:
    """Ratio of prompts scored per second, if both runs scored enough prompts on engines of the same
    kind and number. Not a statistical test."""
    common = {"metric": rule.metric, "bound": float(rule.allowed or 0.0)}
    rate, count, engines = speed(new)
    if old is None:
        first = why == FIRST_RUN
        return {
            **common,
            "value": rate,
            "n": count,
            "note": why,
            "missing": True,
            "first": first,
        }
    was, count_was, engines_was = speed(old)
    known = {**common, "before": was, "value": rate, "n": min(count, count_was)}
    if not (rate > 0 and was > 0):
        return {**known, "note": "a run names no seconds of scoring", "missing": True}
    if min(count, count_was) < rule.min_n:
        return {
            **known,
            "note": (
                f"a run scored fewer than {rule.min_n:,} prompts itself, the rest came from the"
                " cache"
            ),
            "missing": True,
        }
    if (new["backend"], engines) != (old["backend"], engines_was):
        return {
            **known,
            "note": f"{new['backend']} x {engines} now, {old['backend']} x {engines_was} before",
            "missing": True,
        }
    return {
        **known,
        "change": rate / was - 1,
        "note": f"prompts a second, {rate / was:.2f} times as fast; a ratio, not a test",
    }


def speed(run: Mapping[str, Any]) -> tuple[float, int, int]:
    """(prompts scored per second, prompts scored by this run itself, engines); NaN if the run
    doesn't record it."""
    engine = json.loads(run["config"] or "{}").get("engine") or {}
    seconds, count = float(engine.get("seconds") or 0.0), int(run["n_scored"] or 0)
    return (
        (count / seconds if seconds > 0 else float("nan")),
        count,
        int(engine.get("engines", 1) or 1),
    )
