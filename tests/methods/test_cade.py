"""CADE against hand arithmetic, the identities of the method digest, and its handling of missing
numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias.methods.cade import (
    BASELINE,
    Form,
    decide,
    divergence_of,
    streams,
    usable,
)
from sdgbias.types import CadeParams

OFF = 2.0  # a gate above 1 never keeps the baseline


def views(seed: int, n: int = 50, k: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 2, (n, k)) for _ in range(4)]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_the_paper(full, ctx, img, q, p: CadeParams) -> tuple[str | int, float]:
    """Eqs. 1-10 for one row, written as the paper writes them."""
    pf, pc, pi, pq = (softmax(z) for z in (full, ctx, img, q))
    stream = pf + pi
    stream = stream / stream.sum()
    d = float(np.sum(stream * np.log(stream / pc)))
    if pf.max() >= p.tau:
        return int(pf.argmax()), d
    alpha = p.alpha * (1 + p.lambda_kl * d)
    return int((np.log(stream) - alpha * np.log(pc) - p.beta * np.log(pq)).argmax()), d


@pytest.mark.parametrize("k", [2, 3, 10])
def test_agrees_with_the_equations_row_by_row(k: int) -> None:
    full, ctx, img, q = views(1, 80, k)
    p = CadeParams(alpha=0.8, lambda_kl=1.3, beta=0.6, tau=0.7)
    s = streams(full, ctx, img, q)
    got = decide(s, p)
    for i in range(80):
        choice, d = by_the_paper(full[i], ctx[i], img[i], q[i], p)
        assert got.choice[i] == choice
        assert s.divergence[i] == pytest.approx(d, abs=1e-12)


def test_gate_of_zero_is_the_full_argmax_and_above_one_never_keeps() -> None:
    full, ctx, img, q = views(2)
    s = streams(full, ctx, img, q)
    assert (decide(s, BASELINE).choice == full.argmax(1)).all()
    assert decide(s, BASELINE).kept.all()
    open_gate = decide(s, CadeParams(0, 0, 0, OFF))
    assert not open_gate.kept.any()
    assert (open_gate.choice == (softmax(full) + softmax(img)).argmax(1)).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_an_absent_option_is_as_if_it_had_never_been_there(seed: int) -> None:
    three = [np.column_stack([z, np.full(8, np.nan)]) for z in views(seed, 8, 2)]
    p = CadeParams(0.9, 2.0, 0.4, 0.9)
    assert (
        decide(streams(*three), p).choice == decide(streams(*views(seed, 8, 2)), p).choice
    ).all()


def test_a_masked_candidate_is_never_scored_as_zero() -> None:
    full, ctx, img, q = (np.full((1, 3), -30.0) for _ in range(4))
    full[0, 0], img[0, 0] = -20.0, -20.0
    for bad in (np.nan, np.inf, -np.inf):
        broken = ctx.copy()
        broken[0, 2] = bad
        s = streams(full, broken, img, q, np.ones((1, 3), bool))
        assert not s.valid[0, 2]
        assert decide(s, CadeParams(2, 5, 1.5, OFF)).choice[0] != 2
        assert np.isfinite(s.divergence).all()


def test_missing_views_exact_and_reference() -> None:
    full, ctx, img, q = views(6, 4)
    gone = np.full_like(full, np.nan)
    everything = np.ones_like(full, bool)
    p = CadeParams(1.0, 2.0, 0.0, OFF)
    without_ctx = streams(full, gone, img, q, everything)
    assert (without_ctx.divergence == 0).all()
    assert (decide(without_ctx, p).choice == (softmax(full) + softmax(img)).argmax(1)).all()
    reference = streams(full, gone, img, q, everything, form=Form("reference"))
    stream = (softmax(full) + softmax(img)) / 2
    assert reference.divergence == pytest.approx((stream * np.log(stream * 3)).sum(1))
    for numerics in ("exact", "reference"):
        no_img = streams(full, ctx, gone, q, everything, form=Form(numerics))
        assert np.exp(no_img.log_img) == pytest.approx(softmax(full)), (
            "left out of the image stream"
        )
    no_full = streams(gone, ctx, img, q, everything)
    assert (no_full.base == -1).all()
    assert (decide(no_full, CadeParams(0, 0, 0, 0)).choice == img.argmax(1)).all()
    nothing = streams(gone, ctx, gone, q, everything)
    assert (decide(nothing, p).choice == -1).all()


def test_reference_floors_at_1e_9() -> None:
    z = np.array([[0.0, -100.0, -1.0]])
    s = streams(z, z, z, z, form=Form("reference"))
    assert s.log_ctx[0, 1] == pytest.approx(np.log(1e-9))
    assert streams(z, z, z, z).log_ctx[0, 1] < -99


def test_ties_go_to_the_lowest_index_and_are_counted() -> None:
    z = np.zeros((3, 3))
    got = decide(streams(z, z, z, z), CadeParams(0.5, 0, 0.5, OFF))
    assert (got.choice == 0).all()
    assert got.ties == 3


def test_a_tie_in_a_row_that_the_gate_keeps_is_no_tie() -> None:
    """Full is sure (0.8 >= tau) in the first row only; CADE's scores are all equal in both rows."""
    sure, even = np.log([0.8, 0.1, 0.1]), np.log([1 / 3, 1 / 3, 1 / 3])
    full = np.array([sure, even])
    got = decide(streams(full, full, full, full), CadeParams(1.0, 0.0, 0.0, 0.5))
    assert got.score == pytest.approx(np.zeros((2, 3)), abs=1e-12), "log p - 1 x log p"
    got = decide(streams(full, full, full, full), CadeParams(0.5, 0.0, 0.5, 0.5))
    assert got.kept.tolist() == [True, False] and got.ties == 1


def test_reference_divergence_is_never_below_zero() -> None:
    """CTX+Q floors 1e-12 to 1e-9, so its probabilities sum to more than one: KL of the image stream
    (1 - 1e-9, 1e-9) against it is (1 - 1e-9) log((1 - 1e-9) / (1 - 1e-12)) + 0 = -1e-9."""
    seen = np.log(np.array([[1 - 1e-9, 1e-9]]))
    context = np.log(np.array([[1 - 1e-12, 1e-12]]))
    s = streams(seen, context, seen, seen, form=Form("reference"))
    assert np.exp(s.log_ctx) == pytest.approx(np.array([[1.0, 1e-9]]), rel=1e-6)
    assert float(divergence_of(s.log_img, s.log_ctx)[0]) == pytest.approx(-1e-9, rel=1e-2)
    assert s.divergence.tolist() == [0.0]


def test_usable_rows_have_a_candidate_and_every_payoff() -> None:
    valid = np.array([[True, False], [False, False], [True, True], [True, True]])
    payoff = np.array([[1.0, 0.0], [1.0, 0.0], [np.nan, 0.0], [0.0, 1.0]])
    assert usable(valid, payoff).tolist() == [True, False, False, True]
