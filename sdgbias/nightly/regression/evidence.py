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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import suites
from sdgbias.methods import metrics, stats
from sdgbias.methods.cade import Floats
from sdgbias.methods.stats.intervals import wilson
from sdgbias.nightly.regression.baseline import FIRST_RUN
from sdgbias.nightly.regression.measured import ATTRIBUTE, RunMetrics, in_group, paired, pooled
from sdgbias.nightly.regression.policy import ALL, EACH, Rule
from sdgbias.types import View
from sdgbias.wording import p_value

NAN = float("nan")
#: Metrics whose flips are between right and wrong.
HITS = ("accuracy", "interval_accuracy", "recall")
#: Why there is no gap between groups, where there are groups.
NONE_RIGHT = "no answer is right, so groups can't be compared"
IMAGE_FREE = (View.Q_ONLY.value, View.CTX_Q.value)
AT_LEAST, AT_MOST = "at_least", "at_most"
#: Ranges of metrics that are not 0 or 1; they keep an interval inside.
_RANGES: Mapping[str, stats.Kind] = {"candidate_mass": "fraction", "mae": "amount"}


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
    def least(self) -> float:
        """Lower bound of d."""
        both = sorted((abs(self.low), abs(self.high)))[0] if self.low * self.high > 0 else 0.0
        return {"lower": -self.high, "higher": self.low, "either": both}[self.rule.worse]

    @property
    def upper(self) -> float:
        """Upper bound of d."""
        bound = {
            "lower": -self.low,
            "higher": self.high,
            "either": max(abs(self.low), abs(self.high)),
        }[self.rule.worse]
        return bound if np.isnan(self.undetectable_share) else max(bound, self.undetectable_share)

    def lacking(self, note: str, **values: Any) -> RuleEvidence:
        """With nothing to judge, and why; ``known``: what is known all the same."""
        return replace(self, note=note, missing=True, **values)


def of_rule(
    rule: Rule, new: RunMetrics, old: RunMetrics | None, why: str = "", seed: int = 0
) -> list[RuleEvidence]:
    """All evidence for one rule. ``why``: the reason if there is no baseline run."""
    allowed = float(rule.allowed or 0.0)
    bounds = {AT_LEAST: rule.at_least, AT_MOST: rule.at_most}
    floors: list[dict[str, Any]] = [
        {"side": s, "bound": bound} for s, bound in bounds.items() if bound is not None
    ]
    whole = RuleEvidence(rule, metric=rule.metric)
    if rule.metric == "throughput":
        return [_throughput(replace(whole, bound=allowed), new.run, old.run if old else None, why)]
    if rule.metric == "failed_share":
        return [_failed(replace(whole, **floor), new.run) for floor in floors]
    all_tests, evidence = list(new.tests.get(rule.task, ())), []
    named = dict.fromkeys(t for n in rule.tests for t in (all_tests if n == EACH else [n]))
    for metric, method, test, by in product(rule.metrics, rule.methods, named, rule.by or ("",)):
        tests = all_tests if test == ALL else [test]
        for level in _groups_within(rule, new, tests, metric, method) if rule.within else (by,):
            e = RuleEvidence(rule, rule.task, test, method, level, metric)
            if rule.within and not level and (answers := _answers(new, e, tests)) is not None:
                evidence.append(e.lacking(_no_groups(replace(e, level=rule.within), answers)))
                continue
            if rule.allowed is not None:
                evidence.append(_compared(replace(e, bound=allowed), new, old, tests, why, seed))
            evidence += [_bounded(replace(e, **floor), new, tests, seed) for floor in floors]
    return evidence


def _groups_within(
    rule: Rule, new: RunMetrics, tests: Sequence[str], metric: str, method: str
) -> list[str]:
    """The groups of a rule's attribute that the run has answers about; '' alone where it has
    none."""
    answers = pooled(new, rule.task, tests, metric, method)
    column = f"{ATTRIBUTE}{rule.within}"
    names = () if answers is None or column not in answers else answers[column]
    return sorted({str(name) for name in names} - {""}) or [""]


def _answers(run: RunMetrics, e: RuleEvidence, tests: Sequence[str]) -> pd.DataFrame | None:
    """The run's answers that the rule is judged by, of its group alone where it has one; None if
    the run doesn't have the metric."""
    answers = pooled(run, e.task, tests, e.metric, e.method)
    return in_group(answers, e.rule.within, e.level) if e.rule.within and e.level else answers


def _compared(
    e: RuleEvidence,
    new: RunMetrics,
    old: RunMetrics | None,
    tests: Sequence[str],
    why: str,
    seed: int,
) -> RuleEvidence:
    answers = _answers(new, e, tests)
    if answers is None and (lacks := new.lacks(e.task, e.method)):
        return e.lacking(lacks, excused=True)
    if old is None:
        n = 0 if answers is None else int(answers["value"].notna().sum())
        value = NAN if answers is None or e.rule.by else float(answers["value"].mean())
        return e.lacking(why, value=value, n=n, first=why == FIRST_RUN)
    before = _answers(old, e, tests)
    if answers is None or before is None:
        absent = "this run" if answers is None else "the run compared with"
        return e.lacking(f"{absent} has no {e.metric} for {e.method}")
    both, left = paired(before, answers)
    if both.empty:
        return e.lacking("no question is in both runs word for word")
    note = f"{left:,} questions are in one run only" if left else ""
    return _gap(e, both, ["before", "value"], seed, note) if e.rule.by else _mean(e, both, note)


def _mean(e: RuleEvidence, both: pd.DataFrame, note: str) -> RuleEvidence:
    difference = (both["value"] - both["before"]).to_numpy()
    cluster = both["cluster"].to_numpy()
    test = stats.paired(difference, cluster)
    low, high = _stated(test.estimate)
    evidence = replace(
        e,
        before=float(both["before"].mean()),
        value=float(both["value"].mean()),
        change=test.estimate.value,
        low=low,
        high=high,
        n=test.estimate.n,
        se=test.se,
        df=test.df,
    )
    p, unseen = test.p, NAN
    up, down = stats.net_signs(difference, cluster)
    if np.isin(difference, (-1.0, 0.0, 1.0)).all():  # too few changes for a t test alone
        places = stats.codes(cluster)[1]
        p = max(p, stats.sign_test(up, down)) if p == p else p
        if e.method not in IMAGE_FREE:  # all image-free prompts are scored: none is unseen
            unseen = float(1 - 0.025 ** (1 / places))
    notes = [note]
    if e.metric in HITS:
        better, worse = int((difference > 0).sum()), int((difference < 0).sum())
        by_group = f"groups of questions {up:,} to {down:,}"
        sign = p_value(stats.sign_test(up, down))
        notes.insert(0, f"{better:,} better, {worse:,} worse, {by_group}, sign test p {sign}")
    if (many := test.estimate.clusters) < 10:
        few = " only" if many >= stats.FEWEST else ": too few to judge"
        notes.append(f"{many} independent groups of questions{few}")
    text = "; ".join(filter(None, notes))
    return replace(evidence, p=_one_sided(p, evidence), undetectable_share=unseen, note=text)


def _one_sided(p: float, e: RuleEvidence) -> float:
    """p of "not worse" from the two-sided p; unchanged if the rule counts either direction as
    worse."""
    if e.rule.worse == "either" or p != p:
        return p
    return p / 2 if e.worse > 0 else 1 - p / 2


def _gap(
    e: RuleEvidence, answers: pd.DataFrame, columns: list[str], seed: int, note: str = ""
) -> RuleEvidence:
    """The size of the gap between groups, from the one column of values of a run; or its change,
    from the two columns of two runs: |after| - |before|, by resampling places."""
    names = _groups(e, answers)
    if not names:
        return e.lacking(_no_groups(e, answers), n=len(answers))
    answers = answers[answers[f"{ATTRIBUTE}{e.level}"].isin(names)]
    values, cluster = answers[columns].to_numpy(), answers["cluster"].to_numpy()
    if not values[:, -1].any() and np.isin(values, (0.0, 1.0)).all():
        return e.lacking(NONE_RIGHT, n=len(values))
    group = answers[f"{ATTRIBUTE}{e.level}"].to_numpy(dtype=str)
    means = stats.group_means(values, group, cluster, seed=seed)
    gaps = [stats.disparity(one, _apart(names)) for one in _columns(means)]
    gap = stats.disparity_change(*gaps) if len(gaps) > 1 else gaps[0]
    apart = (
        f"{names[0]} minus {names[1]}, in size"
        if len(names) == 2
        else f"largest minus smallest of {len(names)} groups"
    )
    few = f"a group by {e.level} has {int(gap.clusters[0])} clusters: too few to judge"
    few = few if gap.estimate().too_few else ""
    low, high = float(gap.low[0]), float(gap.high[0])
    evidence = replace(
        e,
        value=abs(float(gaps[-1].value[0])),
        n=gap.n,
        se=float(np.nanstd(gap.draws[:, 0])),
        df=max(stats.codes(cluster)[1] - 1, 1),
        note="; ".join(filter(None, (apart, few, note))),
    )
    if len(gaps) > 1:
        before, change = abs(float(gaps[0].value[0])), float(gap.value[0])
        evidence = replace(evidence, before=before, change=change, low=low, high=high)
        return replace(evidence, p=_one_sided(float(gap.p[0]), evidence))
    near, far = sorted((abs(low), abs(high)))
    return replace(evidence, low=0.0 if low <= 0 <= high else near, high=far)


def _columns(means: stats.GroupMeans) -> Iterator[stats.GroupMeans]:
    for i in range(len(means.value)):
        one = slice(i, i + 1)
        yield replace(
            means,
            value=means.value[one],
            draws=means.draws[:, one],
            clusters=means.clusters[one],
            worth=means.worth[one],
        )


def _groups(e: RuleEvidence, answers: pd.DataFrame) -> list[str]:
    """Names of the known groups that are large enough; where the suite names two,
    these. [] where there are not two."""
    count = answers.get(f"{ATTRIBUTE}{e.level}", pd.Series(dtype=str)).value_counts()
    groups = sorted(str(n) for n, many in count.items() if n and many >= stats.SMALLEST)
    if pair := suites.named(e.rule.suite).pairs.get(e.level):
        groups = list(pair) if set(pair) <= set(groups) else []
    return groups if len(groups) > 1 else []


def _no_groups(e: RuleEvidence, answers: pd.DataFrame) -> str:
    names = map(str, answers.columns)
    attributes = [name.removeprefix(ATTRIBUTE) for name in names if name.startswith(ATTRIBUTE)]
    if e.level not in attributes:
        listed = ", ".join(attributes) or "none (evaluate it again)"
        return f"the questions have no attribute {e.level!r}; there are: {listed}"
    return f"fewer than two groups by {e.level}"


def _apart(names: list[str]) -> Callable[[Floats], Floats]:
    """(..., g) means of the groups in sorted order -> (...,)."""
    if len(names) > 2:
        return metrics.max_min
    first, second = (sorted(names).index(n) for n in names)
    return lambda means: metrics.difference(means, first, second)


def _bounded(e: RuleEvidence, new: RunMetrics, tests: Sequence[str], seed: int) -> RuleEvidence:
    """Compare the value itself with a floor or a ceiling."""
    answers = _answers(new, e, tests)
    if answers is None:
        lacks = new.lacks(e.task, e.method)
        return e.lacking(lacks or f"this run has no {e.metric} for {e.method}")
    answers = answers.dropna(subset="value")
    if e.rule.by:
        return _gap(e, answers, ["value"], seed)
    value, cluster = answers["value"].to_numpy(), answers["cluster"].to_numpy()
    counted = np.isin(value, (0.0, 1.0)).all()
    kind = "share" if counted else _RANGES.get(e.metric, "mean")
    mean = stats.mean(value, cluster, kind)
    test = stats.paired(value - e.bound, cluster)
    low, high = _stated(mean)
    return replace(e, value=mean.value, low=low, high=high, n=mean.n, se=test.se, df=test.df)


def _stated(estimate: stats.Estimate) -> tuple[float, float]:
    """(low, high) that a rule is judged by: a value that is the same in every group of questions
    stands as it is."""
    alike = estimate.low != estimate.low and estimate.clusters >= stats.FEWEST
    return (estimate.value,) * 2 if alike else (estimate.low, estimate.high)


def _failed(e: RuleEvidence, run: Mapping[str, Any]) -> RuleEvidence:
    """Share of planned prompts without a score, treating prompts as independent (Wilson). ``run``:
    its row of ``runs``."""
    planned, failed = int(run["n_prompts_planned"] or 0), int(run["n_failed"] or 0)
    if planned <= 0:
        return e.lacking("the run names no number of prompts")
    share = failed / planned
    variance = share * (1 - share) / planned
    terms = (share, planned, variance, planned, max(planned - 1, 1))
    low, high = map(float, wilson(*(np.array(float(v)) for v in terms)))
    se, df = variance**0.5, planned - 1
    return replace(e, value=share, low=low, high=high, n=planned, se=se, df=df)


def _throughput(
    e: RuleEvidence, new: Mapping[str, Any], old: Mapping[str, Any] | None, why: str
) -> RuleEvidence:
    """Ratio of prompts scored per second, if both runs scored enough prompts on the same backend.
    Not a statistical test. new, old: rows of ``runs``."""
    rate, count = speed(new)
    if old is None:
        return e.lacking(why, value=rate, n=count, first=why == FIRST_RUN)
    was, count_was = speed(old)
    e = replace(e, before=was, value=rate, n=min(count, count_was))
    if not (rate > 0 and was > 0):
        return e.lacking("a run names no seconds of scoring")
    if e.n < e.rule.min_n:
        few = f"a run scored fewer than {e.rule.min_n:,} prompts itself"
        return e.lacking(f"{few}, the rest came from the cache")
    if new["backend"] != old["backend"]:
        return e.lacking(f"{new['backend']} now, {old['backend']} before")
    note = f"prompts a second, {rate / was:.2f} times as fast; a ratio, not a test"
    return replace(e, change=rate / was - 1, note=note)


def speed(run: Mapping[str, Any]) -> tuple[float, int]:
    """(prompts scored per second, prompts scored by this run itself); NaN if the run doesn't record
    it."""
    engine = json.loads(run["config"] or "{}").get("engine") or {}
    seconds, count = float(engine.get("seconds") or 0.0), int(run["n_scored"] or 0)
    return count / seconds if seconds > 0 else NAN, count
