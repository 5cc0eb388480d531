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

from sdgbias.analysis.nights import BREACH, INSUFFICIENT, MISSING, PASS
from sdgbias.methods import stats
from sdgbias.methods.stats.intervals import ROUNDING
from sdgbias.nightly.regression.evidence import AT_LEAST, NAN, RuleEvidence
from sdgbias.nightly.regression.policy import Policy
from sdgbias.vocabulary import metric_word
from sdgbias.wording import many, p_value

#: Columns that say what a rule was applied to, and columns of what was measured.
ABOUT = ("task", "test", "method", "level", "side", "metric")
NUMBERS = ("before", "value", "change", "ci_low", "ci_high", "n", "allowed")
ALIKE = "no interval: no variation to estimate one from"


def apply_multiplicity(evidence: Sequence[RuleEvidence], policy: Policy) -> list[dict[str, object]]:
    """Rows of table ``verdicts`` from all evidence for one model in one night, without night,
    model, suite, run_id and baseline."""
    few = np.array([e.few for e in evidence], dtype=bool)
    p = np.array([e.p for e in evidence])
    tested = np.where(few, NAN, p)
    corrected = np.where(few, np.minimum(1.0, p * np.isfinite(p).sum()), stats.holm(tested))
    family = int(np.isfinite(tested).sum())
    return [_row(e, p, family, policy) for e, p in zip(evidence, corrected.tolist(), strict=True)]


def _row(e: RuleEvidence, p: float, family: int, policy: Policy) -> dict[str, object]:
    verdict, why = _verdict(e, p, policy)
    if e.ci_low == e.ci_high:  # it was judged as it stands; nothing shows how sure it is
        e = replace(e, ci_low=NAN, ci_high=NAN, note="; ".join(filter(None, (e.note, ALIKE))))
    holm = (
        "" if e.few or np.isnan(p) else f"p: Holm over {many(family, 'test')}, alone {p_value(e.p)}"
    )
    return {
        "rule": e.rule.name,
        **{name: getattr(e, name) for name in (*ABOUT, *NUMBERS)},
        "verdict": verdict,
        "p": NAN if verdict == INSUFFICIENT and e.few else p,
        "mde": detectable(e, family, policy),
        "quarantines": verdict == BREACH and e.rule.then == "quarantine",
        "required": verdict == MISSING and e.rule.required and not e.excused,
        "note": "; ".join(filter(None, [e.note, why, holm])),
    }


def _verdict(e: RuleEvidence, p: float, policy: Policy) -> tuple[str, str]:
    """(verdict, a note on what the numbers alone don't show)."""
    change, least, most = e.worse
    if e.verdict:
        return e.verdict, ""
    if e.few:
        if p < policy.alpha and least > e.allowed:
            return BREACH, f"large, though of fewer than {e.rule.min_n:,} questions: look at them"
        return INSUFFICIENT, f"fewer than {e.rule.min_n:,}: nothing is concluded"
    if e.side:
        sign = -1 if e.side == AT_LEAST else 1
        near, far = sorted((sign * (e.ci_low - e.allowed), sign * (e.ci_high - e.allowed)))
        return (BREACH if near > 0 else PASS if far <= 0 else INSUFFICIENT), ""
    if p < policy.alpha and change > e.allowed:
        return BREACH, ""
    if most > e.allowed or np.isnan(most):
        return INSUFFICIENT, ""
    if e.undetectable_share > e.allowed:
        unseen = f"up to {100 * e.undetectable_share:.1f} % could go unseen in so few places"
        return INSUFFICIENT, unseen
    return PASS, ""


def detectable(e: RuleEvidence, family: int, policy: Policy) -> float:
    """The true worsening that gives a BREACH with the policy's power; for floors, the required
    distance of the value beyond the floor. NaN if no answer differs: the variance of answers is
    then unknown; and where no change of a share is large enough to be seen."""
    if e.df < 1 or not np.isfinite(e.se) or e.se <= ROUNDING:
        return NAN
    if e.side:
        return stats.minimum_detectable(e.se, e.df, power=policy.power)
    sides = 1 if e.rule.worse == "either" else 2
    alpha = min(0.999, sides * policy.alpha / max(family, 1))
    seen = stats.minimum_detectable(e.se, e.df, alpha=alpha, power=policy.power)
    seen = max(seen, e.allowed + float(stdtrit(e.df, policy.power)) * e.se)
    return seen if seen <= 1 or metric_word(e.metric).scale == 1 else NAN
