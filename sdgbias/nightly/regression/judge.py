"""Verdicts from the evidence for all rules of a model in one night.

d is the change in the direction that the rule defines as worse (evidence.py).

BREACH                  d <= 0 is rejected at alpha, Holm-corrected over all tests of the model in
this night, and d > allowed
PASS                    the upper bound of d's 95 % interval is at most allowed; for answers that
are right or wrong, so is the share of places that could be worse unseen
INSUFFICIENT_EVIDENCE   neither, or fewer than min_n questions; these are a BREACH only where all of
the 95 % interval lies beyond what is allowed and p times all of the model's tests is below alpha
FIRST_RUN               a change, in the model's first run: the next one is compared with it
MISSING                 nothing to judge: the note says why

The minimum detectable effect is the true worsening that gives a BREACH with the policy's power, at
the corrected level that a single breach has to meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from sdgbias.analysis.nights import BREACH, FIRST, INSUFFICIENT, MISSING, PASS
from sdgbias.methods import stats
from sdgbias.nightly.regression.evidence import AT_LEAST, NAN, RuleEvidence
from sdgbias.nightly.regression.policy import Policy
from sdgbias.wording import p_value

#: Columns that say what a rule was applied to.
ABOUT = ("task", "test", "method", "level", "side", "metric")


def apply_multiplicity(evidence: Sequence[RuleEvidence], policy: Policy) -> list[dict[str, object]]:
    """Rows of table ``verdicts`` from all evidence for one model in one night, without night,
    model, suite, run_id and baseline."""
    tested = [e.p if e.n >= e.rule.min_n and not e.missing else NAN for e in evidence]
    adjusted = stats.holm(tested)
    family = int(np.sum(~np.isnan(tested)))
    every = sum(e.p == e.p and not e.missing for e in evidence)
    few = [e.n < e.rule.min_n and not e.missing for e in evidence]
    corrected = [
        min(1.0, e.p * every) if small else float(p)
        for e, p, small in zip(evidence, adjusted, few, strict=True)
    ]
    return [_row(e, p, family, policy) for e, p in zip(evidence, corrected, strict=True)]


def _row(e: RuleEvidence, p: float, family: int, policy: Policy) -> dict[str, object]:
    verdict, why = _verdict(e, p, policy)
    notes = [e.note, why]
    if p == p and e.n >= e.rule.min_n:
        notes.append(f"p: Holm over {family} tests, alone {p_value(e.p)}")
    return {
        "rule": e.rule.name,
        **{name: getattr(e, name) for name in ABOUT},
        "verdict": verdict,
        "before": e.before,
        "value": e.value,
        "change": NAN if e.floor else e.change,
        "ci_low": e.low,
        "ci_high": e.high,
        "n": e.n,
        "p": NAN if verdict == INSUFFICIENT and e.n < e.rule.min_n else p,
        "mde": detectable(e, family, policy),
        "allowed": e.bound,
        "quarantines": verdict == BREACH and e.rule.then == "quarantine",
        "required": verdict == MISSING and e.rule.required and not e.excused,
        "note": "; ".join(filter(None, notes)),
    }


def _verdict(e: RuleEvidence, p: float, policy: Policy) -> tuple[str, str]:
    """(verdict, a note on what the numbers alone don't show)."""
    if e.missing:
        return FIRST if e.first else MISSING, ""
    if e.n < e.rule.min_n:
        if p < policy.alpha and e.least > e.bound:
            return BREACH, f"large, though of fewer than {e.rule.min_n:,} questions: look at them"
        return INSUFFICIENT, f"fewer than {e.rule.min_n:,}: nothing is concluded"
    if e.rule.metric == "throughput":
        return (BREACH if e.worse > e.bound else PASS), ""
    if e.floor:
        below, above = (
            (e.high < e.bound, e.low >= e.bound)
            if e.side == AT_LEAST
            else (e.low > e.bound, e.high <= e.bound)
        )
        return (BREACH, "") if below else (PASS, "") if above else (INSUFFICIENT, "")
    if p < policy.alpha and e.worse > e.bound:
        return BREACH, ""
    if e.upper <= e.bound:
        return PASS, ""
    unseen = f"up to {100 * e.undetectable_share:.1f} % could go unseen in so few places"
    measured = replace(e, undetectable_share=NAN).upper
    return INSUFFICIENT, unseen if measured <= e.bound else ""


def detectable(e: RuleEvidence, family: int, policy: Policy) -> float:
    """The true worsening that gives a BREACH with the policy's power; for floors, the required
    distance of the value beyond the floor. NaN if no answer differs: the variance of answers is
    then unknown."""
    if e.df < 1 or not np.isfinite(e.se) or e.se == 0:
        return NAN
    sides = 1 if e.rule.worse == "either" or e.floor else 2
    alpha = 0.05 if e.floor else min(1.0, sides * policy.alpha / max(family, 1))
    seen = stats.minimum_detectable(e.se, e.df, alpha=min(alpha, 0.999), power=policy.power)
    return seen if e.floor else max(seen, e.bound + float(stdtrit(e.df, policy.power)) * e.se)
