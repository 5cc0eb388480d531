"""Certain means certain: no scores within the bounds may lead CADE elsewhere; and the bounds must
not be idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sdgbias.methods.bounds import Bounds, alone, between, fill, payoff_bounds, verdict
from sdgbias.methods.cade import argmax_view, decide, streams
from sdgbias.types import CadeParams
from tests.builders.bounded import exactly

OFF = 2.0
#: Examples are seeds of random worlds: a smaller seed is no simpler world, and shrinking a failure
#: took more than two minutes.
NO_SHRINKING = tuple(phase for phase in Phase if phase not in (Phase.shrink, Phase.explain))


def world(seed: int, n: int, k: int, spread: float = 2.0) -> list[np.ndarray]:
    """Four correlated views of log-probabilities, as a model's views are."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, spread, (n, k))
    z = [shared + rng.normal(0, spread / 2, (n, k)) for _ in range(4)]
    return [v - np.log(np.exp(v).sum(1, keepdims=True)) - 0.05 for v in z]


def censor(view: np.ndarray, seen: int, slack: float = 0.0) -> Bounds:
    """Only the `seen` largest are told, the rest lie below the last of them; told ones may be
    `slack` larger than told."""
    last = -np.sort(-view, axis=1)[:, seen - 1 : seen]
    hidden = view < last
    return between(np.where(hidden, -np.inf, view), np.where(hidden, last, view + slack))


def within(rng: np.random.Generator, b: Bounds) -> np.ndarray:
    """Scores inside the bounds: corners, near the ends, far below, or uniform."""
    low = np.where(
        np.isneginf(b.low), b.high - rng.choice([0.1, 3.0, 30.0, 300.0], b.low.shape), b.low
    )
    t = rng.choice([0.0, 1.0, 0.5, 0.01, 0.99], b.low.shape)
    t = np.where(rng.random(b.low.shape) < 0.3, rng.random(b.low.shape), t)
    return low + t * (b.high - low)


def reached(
    possible: np.ndarray, views: list[Bounds], params: CadeParams, seed: int, tries: int = 60
) -> np.ndarray:
    """(N, K) candidates chosen at least once; asserts that all of them were called possible."""
    rng = np.random.default_rng(seed)
    n, k = views[0].high.shape
    seen = np.zeros((n, k), dtype=bool)
    for _ in range(tries):
        choice = decide(streams(*(within(rng, b) for b in views)), params).choice
        seen[np.flatnonzero(choice >= 0), choice[choice >= 0]] = True
    assert not (seen & ~possible).any()
    return seen


@settings(max_examples=30, deadline=None, phases=NO_SHRINKING)
@given(
    seed=st.integers(0, 10**6),
    k=st.sampled_from([2, 3, 5, 10]),
    seen=st.integers(1, 9),
    slack=st.sampled_from([0.0, 1e-3, 0.5]),
    alpha=st.floats(0, 7),
    lam=st.floats(0, 7),
    beta=st.floats(0, 7),
    tau=st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9, OFF]),
    exact=st.sets(st.integers(0, 3), max_size=4),
    missing=st.sets(st.integers(0, 3), max_size=2),
)
def test_no_scores_within_the_bounds_lead_elsewhere(
    seed, k, seen, slack, alpha, lam, beta, tau, exact, missing
) -> None:
    params = CadeParams(alpha, lam, beta, tau)
    views = [
        exactly(v) if i in exact else censor(v, min(seen, k), slack)
        for i, v in enumerate(world(seed, 24, k))
    ]
    for i in missing:
        views[i] = exactly(np.full((24, k), np.nan))
    possible = verdict(*views, params)
    reached(possible, views, params, seed)
    decidable = not {0, 2} <= missing
    assert (possible.any(axis=1) == decidable).all()


def test_rows_known_in_full_are_decided_by_cade_itself_ties_included() -> None:
    z = world(1, 300, 3)
    z = [np.vstack([v, np.zeros((1, 3))]) for v in z]
    params = CadeParams(0.8, 1.3, 0.6, 0.7)
    possible = verdict(*(exactly(x) for x in z), params)
    assert (possible == (np.arange(3) == decide(streams(*z), params).choice[:, None])).all()


@pytest.mark.parametrize(
    "params", [CadeParams(0, 0, 0, OFF), CadeParams(0.8, 0, 0, OFF), CadeParams(0.8, 1.3, 0.6, 0.7)]
)
def test_the_bounds_are_not_idle(params: CadeParams) -> None:
    """Few rows are called open that can only go one way; and many rows are certain."""
    views = [censor(v, 3, 1e-3) for v in world(2, 400, 4)]
    possible = verdict(*views, params)
    certain = possible.sum(axis=1) == 1
    two_ways = reached(possible, views, params, 2, 400).sum(axis=1) > 1
    assert certain.mean() > 0.05
    assert (~certain & ~two_ways).mean() < 0.1


def test_censored_in_the_image_views_only_by_hand() -> None:
    """C is told in CTX+Q and Q-only, hidden below 0.05 in Full and IMG+Q; A has 0.6, B 0.3 in
    both."""
    seen = np.log(np.array([[0.6, 0.3, np.nan]]))
    picture = between(seen, np.log(np.array([[0.6, 0.3, 0.05]])))
    other = exactly(np.log(np.array([[0.4, 0.4, 0.2]])))
    even = verdict(picture, other, picture, other, CadeParams(1.0, 0.0, 0.0, OFF))
    # log(0.05 / 0.6) < log(0.2 / 0.4): even at its upper bound C stays behind A, and B has nothing
    # to gain on A
    assert even.tolist() == [[True, False, False]]
    harder = verdict(picture, other, picture, other, CadeParams(5.0, 0.0, 0.0, OFF))
    # at alpha 5 C can gain 5 log(0.4 / 0.2) = 3.47 > log(0.6 / 0.05) = 2.48
    assert harder.tolist() == [[True, False, True]]


@settings(max_examples=30, deadline=None, phases=NO_SHRINKING)
@given(
    seed=st.integers(0, 10**6),
    k=st.sampled_from([2, 3, 10]),
    seen=st.integers(1, 9),
    slack=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_no_scores_within_the_bounds_change_a_certain_answer_of_one_view(
    seed: int, k: int, seen: int, slack: float
) -> None:
    rng = np.random.default_rng(seed)
    view = censor(world(seed, 40, k)[0], min(seen, k), slack)
    present = np.ones((40, k), dtype=bool)
    possible = alone(view, present)
    reached = np.zeros_like(present)
    for _ in range(60):
        reached[np.arange(40), within(rng, view).argmax(axis=1)] = True
    assert not (reached & ~possible).any()
    named = argmax_view(np.where(np.isfinite(view.low), view.low, np.nan), present)
    assert possible[np.arange(40), named].all()
    # below the last one named, a withheld score can't be the largest
    assert slack > 0 or seen == 1 or (possible.sum(axis=1) == 1).all()


INF, NAN = np.inf, np.nan
#: The scores of one row, what is known above the hidden ones, what is possible.
ONE_VIEW = [
    ([-1, -3, -INF], [NAN, NAN, -2], [1, 0, 0]),
    ([-1, -3, -INF], [NAN, NAN, -0.5], [1, 0, 1]),  # C may be the largest
    ([-INF] * 3, [-4, -5, -4], [1, 1, 1]),  # nothing is named
    ([-2, -2, NAN], [NAN] * 3, [1, 0, 0]),  # a tie that is known goes to A
    ([NAN] * 3, [NAN] * 3, [0, 0, 0]),  # no view
    ([-1, -2, NAN], [-1, -0.9, NAN], [1, 1, 0]),  # another spelling may lift B above A
]


@pytest.mark.parametrize(("told", "upper", "expected"), ONE_VIEW)
def test_one_view_by_hand(told: list[float], upper: list[float], expected: list[int]) -> None:
    present = np.array([[True, True, not (np.isnan(told[2]) and np.isnan(upper[2]))]])
    possible = alone(between(np.array([told], float), np.array([upper], float)), present)
    assert possible[0].tolist() == expected


def test_payoffs_lie_between_their_bounds() -> None:
    z = world(7, 500, 3)
    params = CadeParams(0.7, 0.5, 0.3, 0.8)
    possible = verdict(*(censor(x, 2) for x in z), params)
    payoff = np.eye(3)[np.random.default_rng(0).integers(0, 3, 500)]
    low, high = payoff_bounds(possible, payoff)
    real = payoff[np.arange(500), decide(streams(*z), params).choice]
    assert (low <= real).all() and (real <= high).all()
    assert (low == high)[possible.sum(axis=1) == 1].all() and (low < high).any()
    assert np.isnan(payoff_bounds(np.zeros((1, 3), dtype=bool), payoff[:1])).all()


def test_absent_candidates_stay_absent_and_order_does_not_matter() -> None:
    z = world(3, 50, 3)
    present = np.ones((50, 3), dtype=bool)
    present[::2, 2] = False
    views = [censor(np.where(present, v, np.nan), 2) for v in z]
    for b in views:
        b.low[~present], b.high[~present] = np.nan, np.nan
    params = CadeParams(0.7, 0.5, 0.3, 0.8)
    possible = verdict(*views, params, present)
    assert not possible[~present].any()
    turned = verdict(*(Bounds(b.low[::-1], b.high[::-1]) for b in views), params, present[::-1])
    assert (turned == possible[::-1]).all()


def test_between_and_fill() -> None:
    b = between(
        np.array([[-0.1, np.nan, -np.inf, np.nan]]), np.array([[-0.05, -4.0, -5.0, np.nan]])
    )
    assert (
        b.low[0].tolist()[:3] == [-0.1, -np.inf, -np.inf]
        and np.isnan(b.low[0, 3])
        and np.isnan(b.high[0, 3])
    )
    assert b.high[0].tolist()[:3] == [-0.05, -4.0, -5.0]
    assert fill(b)[0].tolist()[:3] == [-0.1, -4.0, -5.0]
    with pytest.raises(ValueError, match=">= 0"):
        verdict(b, b, b, b, CadeParams(-1, 0, 0, 0.5))


def test_two_that_are_level_are_both_possible() -> None:
    """A and B lead with 0.4 each in every view; C is hidden in Q-only, which weighs nothing."""
    seen = between(np.log(np.array([[0.4, 0.4, np.nan]])), np.log(np.array([[0.4, 0.4, 0.2]])))
    known = exactly(np.log(np.array([[0.4, 0.4, 0.2]])))
    possible = verdict(known, known, known, seen, CadeParams(0.0, 0.0, 0.0, OFF))
    assert possible.tolist() == [[True, True, False]]


def test_a_gate_that_only_may_keep_the_baseline_decides_nothing() -> None:
    """A's 0.5 of 0.5 + 0.3 + c, with c from 0 to 0.2, is between 0.5 and 0.625. At tau 0.6 the gate
    may keep A or leave the choice to CADE: B, as CTX+Q takes 5 log(0.7 / 0.1) from A's lead. At
    tau 0.49 it always keeps A, at 0.64 never."""
    full = between(np.log(np.array([[0.5, 0.3, np.nan]])), np.log(np.array([[0.5, 0.3, 0.2]])))
    img = exactly(np.log(np.array([[0.5, 0.3, 0.2]])))
    ctx = exactly(np.log(np.array([[0.7, 0.1, 0.2]])))
    want = {0.49: [True, False, False], 0.6: [True, True, False], 0.64: [False, True, False]}
    for tau, possible in want.items():
        assert verdict(full, ctx, img, img, CadeParams(5.0, 0.0, 0.0, tau)).tolist() == [possible]


def test_a_divergence_of_hidden_scores_reaches_as_far_as_the_scores_may() -> None:
    """The third candidate is hidden in Full and IMG+Q. Where it is far below its bounds the
    divergence is large, and the first candidate wins: it must stay possible."""
    full = np.array([[-2.258, -0.289, -np.inf]])
    ctx = np.array([[-1.485, -0.454, -2.414]])
    img = np.array([[-4.557, -0.062, -np.inf]])
    q = np.array([[-0.492, -1.103, -4.814]])
    full_view = between(full, np.array([[-2.258, -0.289, -2.258]]))
    img_view = between(img, np.array([[-4.557, -0.062, -4.557]]))
    params = CadeParams(1.267732437050385, 4.801854785303741, 0.04324788381589012, 2.0)

    possible = verdict(full_view, exactly(ctx), img_view, exactly(q), params)

    full[0, 2], img[0, 2] = -32.258, -304.557
    assert decide(streams(full, ctx, img, q), params).choice[0] == 0
    assert possible[0, 0]
