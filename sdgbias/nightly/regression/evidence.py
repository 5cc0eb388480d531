"""The evidence for a rule from two runs.

The evidence is the change of the rule's metric on the questions that both runs answered, with a
standard error clustered by place (suite people: by picture). d is the change in the direction that
the rule defines as worse.

Two additions for answers that are right or wrong (0 or 1). The test is the clustered t test or the
sign test over places, whichever has the larger p: with few changed answers the t test is
anticonservative. And if none of n places gets worse, this only shows that fewer than
1 - 0.025^(1/n) of all places are worse; the evidence carries this bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import suites
from sdgbias.analysis.nights import FIRST, MISSING
from sdgbias.methods import metrics, stats
from sdgbias.methods.stats.intervals import wilson
from sdgbias.nightly.regression.baseline import FIRST_RUN
from sdgbias.nightly.regression.measured import RunAnswers, paired
from sdgbias.nightly.regression.policy import ALL, EACH, Rule
from sdgbias.types import View
from sdgbias.wording import many, p_value

NAN = float("nan")
#: Metrics whose flips are between right and wrong.
HITS = ("accuracy", "interval_accuracy", "recall")
IMAGE_FREE = (View.Q_ONLY.value, View.CTX_Q.value)
AT_LEAST, AT_MOST = "at_least", "at_most"
#: Ranges of metrics that are not 0 or 1; they keep an interval inside.
_RANGES: Mapping[str, stats.Kind] = {"candidate_mass": "fraction", "mae": "amount"}


@dataclass(frozen=True)
class RuleEvidence:
    """Evidence for one rule, in columns of table ``verdicts`` and more.

    side: AT_LEAST or AT_MOST for a bound of the value, '' for a change. allowed: the change that is
    allowed, or the bound. before, value: of the old and the new run on the same questions; change,
    ci_low, ci_high: new - old with its 95 % interval (of a bound: that of the value). p: of "not
    worse", before correction. se, df: of the change. undetectable_share: the largest share of worse
    places that could remain unseen with this number of places, NaN if the metric isn't 0 or 1.
    verdict: MISSING or FIRST where there is nothing to judge, else ''. excused: because the model
    can't have this metric (no pictures, no scores).
    """

    rule: Rule
    task: str = ""
    test: str = ""
    method: str = ""
    level: str = ""
    metric: str = ""
    side: str = ""
    allowed: float = NAN
    before: float = NAN
    value: float = NAN
    change: float = NAN
    ci_low: float = NAN
    ci_high: float = NAN
    n: int = 0
    p: float = NAN
    se: float = NAN
    df: float = 0
    undetectable_share: float = NAN
    note: str = ""
    verdict: str = ""
    excused: bool = False

    @property
    def few(self) -> bool:
        """Fewer questions than the rule wants."""
        return self.n < self.rule.min_n

    @property
    def worse(self) -> tuple[float, float, float]:
        """(d, the change in the direction that the rule defines as worse; the lower and the upper
        bound of its interval)."""
        change, low, high = self.change, self.ci_low, self.ci_high
        if self.rule.worse == "higher":
            return change, low, high
        if self.rule.worse == "lower":
            return -change, -high, -low
        near, far = sorted((abs(low), abs(high)))
        return abs(change), near if low * high > 0 else 0.0, far

    def missing(self, note: str, **numbers: Any) -> RuleEvidence:
        """With nothing to judge, and why; ``numbers``: what is known all the same."""
        return replace(self, **{"note": note, "verdict": MISSING, **numbers})

    def tested(self, p: float, **measured: Any) -> RuleEvidence:
        """With its numbers, and p of "not worse" from the two-sided p; unchanged if the rule counts
        either direction as worse."""
        e = replace(self, **measured)
        one_sided = p / 2 if e.worse[0] > 0 else 1 - p / 2
        return replace(e, p=p if e.rule.worse == "either" else one_sided)


def of_rule(
    rule: Rule, new: RunAnswers, old: RunAnswers | None, why: str = ""
) -> list[RuleEvidence]:
    """All evidence for one rule. ``why``: the reason if there is no run to compare with."""
    limits = {"": rule.allowed, AT_LEAST: rule.at_least, AT_MOST: rule.at_most}
    of_sides = [
        RuleEvidence(rule, rule.task, metric=rule.metric, side=side, allowed=float(limit))
        for side, limit in limits.items()
        if limit is not None
    ]
    if rule.metric == "failed_share":
        return [_failed(e, new.run) for e in of_sides]
    tests, evidence = new.tests(rule.task), []
    named = dict.fromkeys(t for name in rule.tests for t in (tests if name == EACH else [name]))
    for metric, method, test, attribute in product(
        rule.metrics, rule.methods, named, rule.by or [rule.within]
    ):
        among = tests if test == ALL else [test]
        before, after = (
            run.of(rule.task, among, metric, method, attribute) if run else None
            for run in (old, new)
        )
        groups = [] if after is None else sorted(set(after["group"]) - {""})
        fault = ""
        if after is None:
            fault = new.lacks(rule.task, method)
        elif attribute and not groups:
            fault = _no_groups(new, attribute)
        for level, e in product((groups or [""]) if rule.within else [attribute], of_sides):
            e = replace(e, test=test, method=method, level=level, metric=metric)
            evidence.append(_of_answers(e, before, after, fault, why))
    return evidence


def _no_groups(run: RunAnswers, attribute: str) -> str:
    """Why the answers of a run can't be judged by groups of an attribute."""
    if attribute in run.attributes:
        return f"no question's {attribute} is known"
    listed = ", ".join(run.attributes) or "none (evaluate it again)"
    return f"the questions have no attribute {attribute!r}; there are: {listed}"


def _of_answers(
    e: RuleEvidence,
    before: pd.DataFrame | None,
    after: pd.DataFrame | None,
    fault: str,
    why: str,
) -> RuleEvidence:
    """The evidence from the answers of the old and the new run. fault: what the model lacks for
    such answers, or that they can't be grouped. why: the reason if there is no run to compare
    with."""
    if fault and (after is None or e.rule.within):
        return e.missing(fault, excused=after is None)
    if e.rule.within:
        before, after = (a if a is None else a[a["group"] == e.level] for a in (before, after))
    if why and not e.side:
        n = 0 if after is None else int(after["value"].count())
        value = NAN if after is None or e.rule.by else float(after["value"].mean())
        return e.missing(why, value=value, n=n, verdict=FIRST if why == FIRST_RUN else MISSING)
    if fault:
        return e.missing(fault)
    if after is None:
        return e.missing(f"this run has no {e.metric} for {e.method}")
    if e.side:
        return (_gap if e.rule.by else _mean)(e, after.dropna(subset="value"))
    if before is None:
        return e.missing(f"the run compared with has no {e.metric} for {e.method}")
    both, left = paired(before, after)
    if both.empty:
        return e.missing("no question is in both runs word for word")
    compared = (_gap if e.rule.by else _mean_change)(e, both)
    note = f"{many(left, 'question is', 'questions are')} in one run only" if left else ""
    return replace(compared, note="; ".join(filter(None, (compared.note, note))))


def _mean(e: RuleEvidence, answers: pd.DataFrame) -> RuleEvidence:
    """The value itself, to compare with its bound."""
    value, cluster = answers["value"].to_numpy(dtype=float), answers["cluster"].to_numpy()
    counted = np.isin(value, (0.0, 1.0)).all()
    mean = stats.mean(value, cluster, "share" if counted else _RANGES.get(e.metric, "mean"))
    test = stats.paired(value - e.allowed, cluster)
    return replace(e, value=mean.value, n=mean.n, se=test.se, df=test.df, **_interval(mean))


def _mean_change(e: RuleEvidence, both: pd.DataFrame) -> RuleEvidence:
    """The change of the mean on the questions of both runs."""
    difference = (both["value"] - both["before"]).to_numpy()
    cluster = both["cluster"].to_numpy()
    test = stats.paired(difference, cluster)
    p, unseen, notes = test.p, NAN, []
    ends = _interval(test.estimate)
    up, down = stats.net_signs(difference, cluster)
    if np.isin(difference, (-1.0, 0.0, 1.0)).all():  # too few changes for a t test alone
        ends = {name: float(np.clip(end, -1, 1)) for name, end in ends.items()}
        p = max(p, stats.sign_test(up, down))  # NaN stays NaN
        if e.method not in IMAGE_FREE:  # all image-free prompts are scored: none is unseen
            unseen = float(1 - 0.025 ** (1 / stats.codes(cluster)[1]))
    if e.metric in HITS:
        better, worse = int((difference > 0).sum()), int((difference < 0).sum())
        by_group = f"groups of questions {up:,} to {down:,}"
        sign = p_value(stats.sign_test(up, down))
        notes.append(f"{better:,} better, {worse:,} worse, {by_group}, sign test p {sign}")
    if (groups := test.estimate.clusters) < 10:
        few = " only" if groups >= stats.FEWEST else ": too few to judge"
        notes.append(f"{many(groups, 'independent group')} of questions{few}")
    return e.tested(
        p,
        before=float(both["before"].mean()),
        value=float(both["value"].mean()),
        change=test.estimate.value,
        n=test.estimate.n,
        se=test.se,
        df=test.df,
        undetectable_share=unseen,
        note="; ".join(notes),
        **ends,
    )


def _interval(estimate: stats.Estimate) -> dict[str, Any]:
    """The interval that a rule is judged by: a value that is the same in every group of questions
    stands as it is."""
    alike = np.isnan(estimate.low) and estimate.clusters >= stats.FEWEST
    low, high = (estimate.value,) * 2 if alike else (estimate.low, estimate.high)
    return {"ci_low": low, "ci_high": high}


def _gap(e: RuleEvidence, answers: pd.DataFrame) -> RuleEvidence:
    """The size of the gap between groups; or its change, |after| - |before|, by resampling
    places."""
    sizes = answers["group"].value_counts()
    names = sorted(set(sizes[sizes >= stats.SMALLEST].index) - {""})
    if pair := suites.named(e.rule.suite).pairs.get(e.level):
        names = list(pair) if set(pair) <= set(names) else []
    if len(names) < 2:
        return e.missing(f"fewer than two groups by {e.level}", n=len(answers))
    answers = answers[answers["group"].isin(names)]
    values = answers[["value"] if e.side else ["before", "value"]].to_numpy()
    counted = np.isin(values, (0.0, 1.0)).all()
    if not values[:, -1].any() and counted:
        return e.missing("no answer is right, so groups can't be compared", n=len(values))
    group, cluster = answers["group"].to_numpy(dtype=str), answers["cluster"].to_numpy()
    means = stats.group_means(values, group, cluster)
    apart, reduction = f"largest minus smallest of {len(names)} groups", metrics.max_min
    if len(names) == 2:
        apart = f"{names[0]} minus {names[1]}, in size"
        reduction = partial(metrics.difference, one=0, other=1)
    gaps = stats.disparity(means, reduction)
    before, after = gaps.take([0]), gaps.take([-1])
    gap = after if e.side else stats.disparity_change(before, after)
    few = f"a group by {e.level} has {int(gap.clusters[0])} clusters: too few to judge"
    low, high = float(gap.low[0]), float(gap.high[0])
    if counted:
        low, high = map(float, np.clip((low, high), -1, 1))
    if e.side:  # of the size
        near, far = sorted((abs(low), abs(high)))
        low, high = (0.0 if low <= 0 <= high else near), far
    measured: dict[str, Any] = {
        "value": abs(float(after.value[0])),
        "ci_low": low,
        "ci_high": high,
        "n": gap.n,
        "se": float(np.nanstd(gap.draws[:, 0])),
        "df": max(stats.codes(cluster)[1] - 1, 1),
        "note": "; ".join([apart, few] if gap.estimate().too_few else [apart]),
    }
    if e.side:
        return replace(e, **measured)
    changed = {"before": abs(float(before.value[0])), "change": float(gap.value[0])}
    return e.tested(float(gap.p[0]), **measured, **changed)


def _failed(e: RuleEvidence, run: Mapping[str, Any]) -> RuleEvidence:
    """Share of planned prompts without a score, treating prompts as independent (Wilson). ``run``:
    its row of ``runs``."""
    planned, failed = int(run["n_prompts_planned"] or 0), int(run["n_failed"] or 0)
    if planned <= 0:
        return e.missing("the run names no number of prompts")
    share, df = failed / planned, planned - 1
    variance = share * (1 - share) / planned
    terms = (share, planned, variance, planned, max(df, 1))
    low, high = map(float, wilson(*(np.array(float(v)) for v in terms)))
    return replace(e, value=share, ci_low=low, ci_high=high, n=planned, se=variance**0.5, df=df)
