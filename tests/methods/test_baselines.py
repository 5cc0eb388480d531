"""Baselines against hand arithmetic, and the exact identities that hold between them (METHODS
section 0)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from sdgbias.methods import cade
from sdgbias.methods.baselines import METHODS, Evidence, predict, scores
from sdgbias.methods.tuning import tune
from sdgbias.types import CadeParams

REPOSITORY = Path(__file__).resolve().parents[2]
NAN = float("nan")
GATE_OFF = 1.1


def logits(*rows: list[float]) -> np.ndarray:
    """Rows of probabilities -> logits with an offset of their own, as models have them."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(rows, dtype=float)) + np.arange(len(rows))[:, None] * 3.0


def evidence(
    full: np.ndarray, ctx: np.ndarray | None = None, q: np.ndarray | None = None, **more: object
) -> Evidence:
    other = np.full(full.shape, NAN)
    made = Evidence(
        full,
        other if ctx is None else ctx,
        other,
        other if q is None else q,
        ~np.isnan(full),
        np.zeros(len(full), dtype=np.int64),
        np.ones(len(full), dtype=bool),
    )
    return replace(made, **more)


@st.composite
def views(draw: st.DrawFn) -> Evidence:
    """Up to six rows of three candidates; some items have two, some views are missing, the first
    row is whole."""
    n = draw(st.integers(1, 6))
    cell = st.floats(-8, 8, allow_nan=False).map(lambda x: round(x, 3))
    arrays = [
        np.array(draw(st.lists(st.lists(cell, min_size=3, max_size=3), min_size=n, max_size=n)))
        for _ in range(4)
    ]
    present = np.ones((n, 3), dtype=bool)
    present[1:, 2] = draw(st.lists(st.booleans(), min_size=n - 1, max_size=n - 1))
    gone = draw(st.lists(st.sampled_from(["", "ctx", "img", "q"]), min_size=n, max_size=n))
    for name, z in zip(("full", "ctx", "img", "q"), arrays, strict=True):
        z[~present] = NAN
        for i, lost in enumerate(gone):
            if i and lost == name:
                z[i] = NAN
    return Evidence(*arrays, present, np.arange(n) % 2, np.ones(n, dtype=bool))


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Scores with the same answers: equal up to an offset and a positive factor per row, so that
    near ties don't matter."""
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(np.isneginf(one), np.isneginf(other))
        a, b = (x[np.isfinite(x)] - x[np.isfinite(x)].mean() for x in (one, other))
        scale = (
            np.abs(a).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-300)
            if np.abs(b).max(initial=0.0) > 1e-9
            else 1.0
        )
        np.testing.assert_allclose(a, b * scale, atol=1e-7 * max(1.0, np.abs(a).max(initial=0.0)))


def cade_scores(e: Evidence, params: CadeParams, stream: cade.Stream = "full") -> np.ndarray:
    return cade.decide(
        cade.streams(e.full, e.ctx, e.img, e.q, e.present, form=cade.Form(stream=stream)), params
    ).score


# ----------------------------------------------------------------------
# identities, METHODS 0


def whole(e: Evidence) -> Evidence:
    """The rows that have Full and CTX+Q, and every candidate in them: identities are about
    those."""
    rows = np.all([np.isfinite(z).any(axis=1) for z in (e.full, e.ctx, e.q, e.img)], axis=0)
    arrays = (e.full, e.ctx, e.img, e.q, e.present, e.group, e.fit)
    return Evidence(*(array[rows] for array in arrays))


@settings(max_examples=30, deadline=None)
@given(views(), st.floats(0.0, 5.0))
def test_1_vdd_without_a_cut_is_cade_with_alpha_a_over_1_plus_a(e: Evidence, a: float) -> None:
    e = whole(e)
    same(scores("vdd", e, a=a, b=0.0), cade_scores(e, CadeParams(a / (1 + a), 0.0, 0.0, GATE_OFF)))
    in_the_slot = replace(e, ctx=e.q)  # any contrast in the context's place
    same(
        scores("vdd_q", e, a=a, b=0.0),
        cade_scores(in_the_slot, CadeParams(a / (1 + a), 0.0, 0.0, GATE_OFF)),
    )


@settings(max_examples=30, deadline=None)
@given(views())
def test_2_post_hoc_without_a_floor_is_cade_with_alpha_1(e: Evidence) -> None:
    e = whole(e)
    same(scores("post_hoc", e, floor=0.0), cade_scores(e, CadeParams(1.0, 0.0, 0.0, GATE_OFF)))


@settings(max_examples=30, deadline=None)
@given(views())
def test_4_m3id_is_nothing_at_the_first_step_and_next_to_nothing_at_the_second(e: Evidence) -> None:
    first, second = scores("m3id", e, t=0), scores("m3id", e)  # t = 1
    np.testing.assert_array_equal(predict(first), cade.argmax_view(e.full, e.present))
    np.testing.assert_allclose(second, scores("vdd", e, a=0.02020134), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(views(), st.floats(0.5, 2.0), st.floats(0.0, 1.5), st.floats(0.0, 5.0))
def test_5_at_t5_cade_is_the_image_over_the_prior(
    e: Evidence, alpha: float, beta: float, strength: float
) -> None:
    e = whole(e)
    t5 = replace(e, full=e.img, ctx=e.q)
    s = cade.streams(t5.full, t5.ctx, t5.img, t5.q, t5.present)
    alpha_i = alpha * (1 + strength * s.divergence)[:, None]
    with np.errstate(invalid="ignore"):
        expected = np.where(
            s.valid,
            cade.log_softmax(e.img, s.valid) - (alpha_i + beta) * cade.log_softmax(e.q, s.valid),
            -np.inf,
        )
    found = cade_scores(t5, CadeParams(alpha, strength, beta, GATE_OFF), "full+img")
    np.testing.assert_allclose(
        found[s.valid],
        expected[s.valid],
        atol=1e-9 * (1 + np.abs(expected[s.valid]).max(initial=0.0)),
    )


@settings(max_examples=30, deadline=None)
@given(views(), st.sampled_from(list(METHODS)))
def test_an_offset_of_one_view_never_changes_scores_and_absent_options_never_win(
    e: Evidence, name: str
) -> None:
    found = scores(name, e)
    assert np.isneginf(found[~e.present]).all()
    there = np.isfinite(e.full).any(axis=1)
    assert np.isfinite(found[there].max(axis=1)).all() and np.isneginf(found[~there]).all()
    moved = replace(e, full=e.full + 7.0, ctx=e.ctx - 3.0, q=e.q + 11.0, img=e.img + 1.0)
    np.testing.assert_allclose(found, scores(name, moved), atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(views())
def test_log_softmax_is_that_of_scipy(e: Evidence) -> None:
    valid = e.present & np.isfinite(e.full)
    rows = valid.any(axis=1)
    want = special.log_softmax(np.where(valid, e.full, -np.inf)[rows], axis=1)
    found = cade.log_softmax(e.full, valid)
    np.testing.assert_allclose(found[rows], want, atol=1e-12)
    assert np.isneginf(found[~rows]).all()


# ----------------------------------------------------------------------
# by hand


BATCH = evidence(  # the last row's group has no fit row
    logits([0.8, 0.2], [0.6, 0.4], [0.1, 0.9], [0.3, 0.7]),
    group=np.array([0, 0, 0, 1]),
    fit=np.array([True, True, False, False]),
)
POSED = evidence(logits([0.6, 0.3, 0.1]), logits([0.8, 0.15, 0.05]), logits([0.2, 0.05, 0.75]))
VIEWED = evidence(logits([0.6, 0.3, 0.1]), logits([0.2, 0.2, 0.6]), logits([0.7, 0.2, 0.1]))
PRIOR = evidence(  # a fit row without Q-only tells nothing of the prior, nor does the last row
    logits(*[[0.5, 0.5]] * 4),
    q=logits([0.5, 0.5], [0.9, 0.1], [NAN, NAN], [0.01, 0.99]),
    fit=np.array([True, True, True, False]),
)
#: Method, evidence, settings, row: exp of the scores there.
BY_HAND = [
    ("post_hoc", POSED, {}, 0, [0.6 / (0.8 + 1e-4), 0.3 / (0.15 + 1e-4), 0.1 / (0.05 + 1e-4)]),
    ("post_hoc_mean", POSED, {"floor": 0.0}, 0, [0.6 / 0.5, 0.3 / 0.1, 0.1 / 0.4]),
    ("bc", BATCH, {}, 2, [0.1 / 0.7, 0.9 / 0.3]),
    ("bc", BATCH, {}, 3, [0.3, 0.7]),
    ("bc_geometric", BATCH, {}, 2, [0.1 / (0.8 * 0.6) ** 0.5, 0.9 / (0.2 * 0.4) ** 0.5]),
    ("bcl", BATCH, {"gamma": 0.0}, 2, [0.1, 0.9]),
    ("cc_q", PRIOR, {}, 3, [0.5 / 0.7, 0.5 / 0.3]),
    ("pmi", VIEWED, {"gamma": 2.0}, 0, [0.6 / 0.49, 0.3 / 0.04, 0.1 / 0.01]),
    ("mean_views", VIEWED, {}, 0, [1.5 / 3, 0.7 / 3, 0.8 / 3]),  # IMG+Q is missing
]


@pytest.mark.parametrize(("name", "e", "more", "row", "expected"), BY_HAND)
def test_scores_by_hand(
    name: str, e: Evidence, more: dict[str, float], row: int, expected: list[float]
) -> None:
    assert np.exp(scores(name, e, **more)[row]) == pytest.approx(expected, rel=1e-7)


def test_post_hoc_identity_is_not_turned_round() -> None:
    """p - p_cf sums to 0; the reference divides by that sum, which its floor makes negative, and so
    picks the worst."""
    e = evidence(logits([0.6, 0.3, 0.1]), logits([0.3, 0.3, 0.4]))
    np.testing.assert_allclose(scores("post_hoc_identity", e)[0], [0.3, 0.0, -0.3], atol=1e-12)
    assert predict(scores("post_hoc_identity", e)).tolist() == [0]


def test_the_cut_is_over_the_candidates() -> None:
    """a = 1: (0.5 / 0.9) 0.5 = 0.28, (0.3 / 0.09) 0.3 = 1.0, (0.2 / 0.01) 0.2 = 4.0; 0.2 < 0.5 x
    0.5 is cut at b = 0.5."""
    e = evidence(
        logits([0.5, 0.3, 0.2]) - 50.0, logits([0.9, 0.09, 0.01])
    )  # -50: next to nothing of the vocabulary
    assert predict(scores("vdd", e, b=0.1)).tolist() == [2]
    assert predict(scores("vdd", e, b=0.5)).tolist() == [1]
    assert predict(scores("vdd", e, b=1.0)).tolist() == [0]


def test_a_masked_candidate_is_never_chosen_and_a_missing_contrast_changes_nothing() -> None:
    full = np.array([[0.0, -np.inf, 1.0], [0.0, 2.0, NAN], [NAN, NAN, NAN], [1.0, 0.0, 0.0]])
    ctx = np.array([[5.0, -9.0, 5.0], [NAN, NAN, NAN], [1.0, 2.0, 3.0], [1.0, 2.0, -np.inf]])
    present = np.ones((4, 3), dtype=bool)
    present[1, 2] = False
    e = Evidence(full, ctx, ctx, ctx, present, np.arange(4), np.ones(4, dtype=bool))
    for name in list(METHODS):
        a, b, nothing, d = predict(scores(name, e))
        assert (a in (0, 2), b in (0, 1), nothing, d in (0, 1)) == (True, True, -1, True), name
    against = "post_hoc post_hoc_identity vdd m3id pai_logit pmi mean_views vdd_mean"
    for name in against.split():
        assert predict(scores(name, e))[1] == 1, name


# ----------------------------------------------------------------------
# tuning


def planted(n: int = 400, k: int = 3) -> tuple[Evidence, np.ndarray, np.ndarray]:
    """The context shouts the wrong answer, so that taking it out helps; (evidence, payoff, val)."""
    rng = np.random.default_rng(3)
    gold, shout = rng.integers(0, k, n), rng.integers(0, k, n)
    ctx = 2.0 * (np.arange(k) == shout[:, None]) + rng.normal(0, 0.3, (n, k))
    full = 1.5 * (np.arange(k) == gold[:, None]) + ctx + rng.normal(0, 0.3, (n, k))
    val = np.arange(n) % 4 == 0
    e = evidence(full, ctx, ctx, group=np.zeros(n, dtype=np.int64), fit=val)
    return e, (np.arange(k) == gold[:, None]).astype(float), val


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if m.tuned])
@pytest.mark.parametrize("k", [3, 10])
def test_tuning_is_the_papers_protocol_by_brute_force(name: str, k: int) -> None:
    """150 draws on 20 of the 100 val rows, the best 100 of them on all, the first best of those."""
    e, payoff, val = planted(k=k)
    found = tune(name, e, payoff, val, draws=150, seed=5)
    assert found is not None and found.n_val == 100 and found.n_search == 20
    ranges = METHODS[name].tuned
    assert ranges is not None
    rng = np.random.default_rng(5)
    low, high = np.array(list(ranges.values())).T
    drawn = rng.uniform(low, high, size=(150, len(low)))
    rows = np.flatnonzero(val)
    subset = rows[rng.permutation(100)[:20]]

    def value(x: np.ndarray, at: np.ndarray) -> float:
        choice = predict(scores(name, e, **dict(zip(ranges, x, strict=True))))
        return float(payoff[at, choice[at]].mean())

    finalists = sorted(np.argsort([-value(x, subset) for x in drawn], kind="stable")[:100])
    best = max(finalists, key=lambda i: (value(drawn[i], rows), -i))
    assert list(found.settings.values()) == pytest.approx(drawn[best].tolist())
    assert found.value == pytest.approx(value(drawn[best], rows))


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("vdd_tuned", "a in 0..3, b in 0..0.5"),
        ("bcl", "gamma tuned in -5..5"),
        ("pmi_tuned", "tuned in 0..3"),
    ],
)
def test_a_method_is_tuned_within_the_ranges_of_the_documentation(name: str, ranges: str) -> None:
    page = (REPOSITORY / "docs" / "reference" / "methods.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith("|") and f"`{name}` |" in line]
    assert ranges in line

    tuned = METHODS[name].tuned

    assert tuned is not None
    numbers = re.findall(r"(-?[\d.]+?)\.\.([\d.]+)", ranges)
    assert list(tuned.values()) == [(float(low), float(high)) for low, high in numbers]


def test_an_unknown_payoff_is_left_out_of_tuning() -> None:
    e, payoff, val = planted()
    assert tune("pmi_tuned", e, payoff, val & False, draws=50) is None
    payoff[0] = NAN
    found = tune("pmi_tuned", e, payoff, val, draws=50)
    assert found is not None and found.n_val == 99 and np.isfinite(found.value)
    with pytest.raises(ValueError, match="vdd has nothing to tune"):
        tune("vdd", e, payoff, val)
