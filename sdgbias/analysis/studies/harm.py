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
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods.cade import (
    Bools,
    Decision,
    Floats,
    Ints,
    Streams,
    log_softmax,
    score_terms,
)
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


def _why(cell: TaskCell, s: Streams, d: Decision, usable: Bools) -> dict[str, np.ndarray]:
    """Why CADE's answer differs from the Full view's, for all N items, val included.

    full, cade: candidate index, -1 none; kept (gate); flipped. For a flipped row, comparing CADE's
    choice with Full's: image, context, prior are the contributions of the terms to CADE's lead in
    nats; together with ``start``, Full's lead (at most 0), they add up to ``margin``. As the terms
    are additive, these are their Shapley values. ``first``: index in TERMS of the first term in
    the order of Eq. 9 after which the argmax is no longer Full's choice; ``largest``: that of the
    largest contribution. -1 and NaN where not flipped.
    """
    assert cell.params is not None
    choice = np.where(usable, d.choice, -1)
    flipped = (choice >= 0) & (s.base >= 0) & ~d.kept & (choice != s.base)
    img, ctx, prior = score_terms(s, cell.params)
    at, new, old = np.arange(len(choice)), np.maximum(choice, 0), np.maximum(s.base, 0)

    def lead(term: Floats) -> Floats:
        safe = np.where(s.valid, term, 0.0)
        return np.where(flipped, safe[at, new] - safe[at, old], np.nan)

    start = lead(log_softmax(cell.known(View.FULL), s.valid))
    parts = np.stack([lead(img) - start, lead(ctx), lead(prior)], axis=1)
    away = np.stack(
        [_argmax(total, s.valid) != s.base for total in (img, img + ctx, img + ctx + prior)], axis=1
    )
    return {
        "full": s.base,
        "cade": choice,
        "kept": d.kept,
        "flipped": flipped,
        "start": start,
        **{name: parts[:, i] for i, name in enumerate(TERMS)},
        "margin": start + parts.sum(axis=1),
        "first": np.where(flipped, np.argmax(away, axis=1), -1),
        "largest": np.where(flipped, np.argmax(np.nan_to_num(parts, nan=-np.inf), axis=1), -1),
    }


def _argmax(score: Floats, valid: Bools) -> Ints:
    return np.argmax(np.where(valid, score, -np.inf), axis=1).astype(np.int64)


def _with_causes(o: TaskOutcome) -> TaskOutcome:
    """The answers, and why CADE's differ from the Full view's."""
    [cell] = o.cells
    decided = answers.decision(cell)
    assert decided is not None and cell.params is not None
    s, d, usable = decided
    log_full = log_softmax(cell.known(View.FULL), s.valid)
    why = _why(cell, *decided)
    more = {
        "implausible": implausible(log_full, np.where(usable, d.choice, -1)),
        "first": why["first"],
        "largest": why["largest"],
    }
    return replace(o, more={name: values[cell.test_rows] for name, values in more.items()})
