"""CADE on many draws of a planted process whose answer is known: each term of Eq. 9 by itself, and
tuned on val, what is left on test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_1samp

from sdgbias.analysis.selfcheck import truth
from sdgbias.methods import cade, search
from sdgbias.types import CadeParams, ContextTest, Task, View
from tests.builders.planted_items import draw_items, expected_shares, plant

Views = dict[View, np.ndarray]
T1, T5 = ContextTest.T1, ContextTest.T5
#: A gate threshold above every confidence.
OFF = 2.0


def of_views(views: Views, form: cade.Form = cade.Form()) -> cade.Streams:
    return cade.streams(
        views[View.FULL], views[View.CTX_Q], views[View.IMG_Q], views[View.Q_ONLY], form=form
    )


def swapped(views: Views, form: cade.Form = cade.Form()) -> cade.Streams:
    return of_views({**views, View.CTX_Q: views[View.IMG_Q], View.IMG_Q: views[View.CTX_Q]}, form)


def wrong_sign(views: Views, form: cade.Form = cade.Form()) -> cade.Streams:
    s = of_views(views, form)
    return replace(s, log_q=-s.log_q)


def p_of_terms(streams: Callable[..., cade.Streams]) -> dict[str, float]:
    """Exact binomial p of CADE's accuracy with one term of Eq. 9 alone, at settings after which
    nothing but the evidence of the picture remains; and of a gate that keeps Full."""
    rng, n = np.random.default_rng(3), 20_000
    prior, misled = plant("prior").habits, plant("misled").habits
    seen, seen_misled = (
        expected_shares(replace(h, prior={}, context_noise=0.0), View.IMG_Q)[0]
        for h in (prior, misled)
    )
    p = draw_items(rng, n)
    with_prior, with_pull = truth.simulate(prior, p, T1, rng), truth.simulate(misled, p, T1, rng)
    alpha, beta = CadeParams(1.0, 0.0, 0.0, OFF), CadeParams(0.0, 0.0, 1.0, OFF)
    gate, full = CadeParams(1.0, 1.0, 1.0, 0.0), cade.Form(stream="full")
    cases = {
        "beta": (streams(with_prior), beta, seen),
        "alpha": (streams(with_prior), alpha, seen),
        "alpha of a misleading context": (streams(with_pull, full), alpha, seen_misled),
        "gate": (streams(with_prior), gate, expected_shares(prior, View.FULL)[0]),
    }
    return {
        name: binomtest(int((cade.decide(s, params).choice == p.gold).sum()), n, expected).pvalue
        for name, (s, params, expected) in cases.items()
    }


def test_each_term_of_eq_9_leaves_the_evidence_of_the_picture() -> None:
    assert min(p_of_terms(of_views).values()) > 0.001


@pytest.mark.parametrize(
    ("broken", "seen_by"),
    [(wrong_sign, {"beta"}), (swapped, {"alpha", "alpha of a misleading context"})],
)
def test_a_wrong_sign_or_a_view_taken_for_another_is_seen(
    broken: Callable[..., cade.Streams], seen_by: set[str]
) -> None:
    assert {name for name, p in p_of_terms(broken).items() if p < 1e-6} == seen_by


def tuned_gains(name: str, test: ContextTest, *, leak: bool = False) -> tuple[np.ndarray, float]:
    """(gain of CADE over Full on the test rows of each of 40 data sets, its mean accuracy there);
    tuned on val, with `leak` on all rows."""
    gains, accuracy = [], []
    for i in range(40):
        rng = np.random.default_rng([4, i])
        p = draw_items(rng, 1_000)
        s = of_views(truth.simulate(plant(name).habits, p, test, rng))
        payoff = (np.arange(3) == p.gold[:, None]).astype(float)
        rows = np.ones_like(p.test) if leak else ~p.test
        found = search.random_search(
            search.take(s, rows), payoff[rows], Task.MCQ, search.SearchSettings(draws=500, seed=i)
        )
        right = cade.decide(s, found.params).choice == p.gold
        accuracy.append(right[p.test].mean())
        gains.append(accuracy[-1] - (s.base == p.gold)[p.test].mean())
    return np.array(gains), float(np.mean(accuracy))


@pytest.mark.slow
def test_tuned_on_val_cade_gains_nothing_on_test_where_nothing_can_be_gained() -> None:
    gains, _ = tuned_gains("null", T1)
    assert ttest_1samp(gains, 0.0).pvalue > 0.01
    leaked, _ = tuned_gains("null", T1, leak=True)
    assert ttest_1samp(leaked, 0.0, alternative="greater").pvalue < 1e-6
    gains, _ = tuned_gains("even", T5)  # no context contradicts the picture
    assert (gains == 0.0).all()
    gains, _ = tuned_gains("even", T1)  # no rule that sees the four views beats Full
    assert gains.mean() < 0.0
    gains, _ = tuned_gains("right", T1)
    assert (gains == 0.0).all()


@pytest.mark.slow
def test_tuned_on_val_cade_comes_close_to_its_known_optimum() -> None:
    optimum, _ = expected_shares(replace(plant("prior").habits, prior={}), View.IMG_Q)
    gains, accuracy = tuned_gains("prior", T1)
    assert optimum - 0.03 < accuracy < optimum + 0.005
    assert gains.mean() > 0.15
