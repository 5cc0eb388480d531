"""The damage done by CADE: answers implausible to the Full view, and the causes of flips.

CADE has no plausibility limit: a candidate unlikely in every view can win (METHODS 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Values
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData
from sdgbias.methods.cade import Bools, Floats, Ints, argmax_view, log_softmax, score_terms
from sdgbias.types import Task, View

#: A choice is implausible below this share of the Full view's largest probability.
CUT = 0.1
#: The terms of Eq. 9 in their order; 'image' is the effect of mixing IMG+Q into the Full view.
TERMS = ("image", "context", "prior")


def diagnosed(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome]:
    """The answers of tests that CADE was tuned for, and of each answer `implausible` and the terms
    that caused a flip; pooled where CADE was tuned for every test."""
    for task in Task:
        pools = answers.pools(run, task)
        outcomes = [_with_causes(o) for o in pools[:-1] if CADE in o.hit]
        yield from outcomes
        if outcomes and len(outcomes) == len(pools) - 1:
            yield answers.pooled(outcomes)


def flips(term: str) -> Callable[[TaskOutcome, str], Values]:
    """Of flipped answers whether a term caused it."""

    def values(o: TaskOutcome, method: str) -> Values:
        flipped = o.more["first"] >= 0
        return {
            f"share_of_flips_by_{by}_term": np.where(flipped, _caused(o, by, term), np.nan)
            for by in ("first", "largest")
        }

    return values


def net_of_flips(term: str) -> Callable[[TaskOutcome, str], Values]:
    """What the flips that a term caused gained, fixed minus broken."""

    def values(o: TaskOutcome, method: str) -> Values:
        change = o.hit[method] - o.hit[View.FULL.value]
        return {
            f"net_of_flips_by_{by}_term": np.where(_caused(o, by, term), change, np.nan)
            for by in ("first", "largest")
        }

    return values


def _caused(o: TaskOutcome, by: str, term: str) -> Bools:
    return np.asarray(o.more[by] == TERMS.index(term))


def fixed_and_broken(o: TaskOutcome, method: str) -> Values:
    change = o.hit[method] - o.hit[View.FULL.value]
    is_usable = ~np.isnan(change)
    return {
        "fixed": np.where(is_usable, change > 0, np.nan),
        "broken": np.where(is_usable, change < 0, np.nan),
    }


def implausible(log_full: Floats, choice: Ints, cut: float = CUT) -> Floats:
    """(N, K) Full log-probabilities, (N,) choices -> (N,) 1 where p_full < cut x max p_full, else
    0; NaN without either."""
    top = np.max(log_full, axis=1, initial=-np.inf)
    of_choice = log_full[np.arange(len(choice)), np.maximum(choice, 0)]
    return np.where((choice >= 0) & np.isfinite(top), of_choice < np.log(cut) + top, np.nan)


def _with_causes(o: TaskOutcome) -> TaskOutcome:
    """The answers, whether CADE's are implausible, and the terms that made them differ from Full's:
    ``first``, the index in TERMS of the first term in the order of Eq. 9 after which the
    argmax is no longer Full's choice; ``largest``, that of the term which contributes most to the
    lead of CADE's choice over Full's. As the terms are additive, their contributions are their
    Shapley values. -1 where the answer isn't flipped."""
    [cell] = o.cells
    decided = answers.decision(cell)
    assert decided is not None and cell.params is not None
    s, d, usable = decided
    choice = np.where(usable, d.choice, -1)
    flipped = (choice >= 0) & (s.base >= 0) & (choice != s.base)
    log_full = log_softmax(cell.filled(View.FULL), s.valid)
    terms = np.stack(score_terms(s, cell.params))  # (3, N, K)
    away = [argmax_view(total, s.valid) != s.base for total in np.cumsum(terms, axis=0)]
    terms[0] -= np.where(s.valid, log_full, 0.0)  # what the picture adds to Full's own lead
    at, new, old = np.arange(len(choice)), np.maximum(choice, 0), np.maximum(s.base, 0)
    causes = {"first": np.stack(away), "largest": terms[:, at, new] - terms[:, at, old]}
    more = {name: np.where(flipped, np.argmax(of, axis=0), -1) for name, of in causes.items()}
    more["implausible"] = implausible(log_full, choice)
    return replace(o, more={name: values[cell.test_rows] for name, values in more.items()})
