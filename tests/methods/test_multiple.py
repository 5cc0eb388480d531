"""Many tests at once, by hand; letters of a leaderboard by their definition."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias.methods import stats
from sdgbias.suites.facet_groups import difference


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.01 * 3, 0.03 * 2, 0.03 * 2]), (
        "0.04 * 1 may not fall below the one before"
    )
    assert stats.holm([0.5, np.nan, 0.4]) == pytest.approx([0.8, np.nan, 0.8], nan_ok=True), (
        "NaN is no test"
    )
    assert stats.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert stats.holm([]).size == 0


def test_letters_of_a_chain() -> None:
    """Best and worst differ, the one between differs from neither: it belongs to both groups."""
    apart = np.zeros((3, 3), dtype=bool)
    apart[0, 2] = True
    assert stats.letters([0.9, 0.8, 0.7], apart) == ["a", "ab", "b"]
    assert stats.letters([0.7, 0.9, 0.8], np.zeros((3, 3), bool)) == ["a", "a", "a"]
    assert stats.letters([0.7, 0.9, np.nan], ~np.eye(3, dtype=bool)) == ["b", "a", ""]
    assert stats.letters([], np.zeros((0, 0), bool)) == []
    many = stats.letters(-np.arange(28.0), ~np.eye(28, dtype=bool))
    assert (many[0], many[25], many[26], many[27]) == ("a", "z", "aa", "ab")


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 7).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.booleans(), min_size=n * n, max_size=n * n),
            st.permutations(range(n)),
        )
    )
)
def test_entries_share_a_letter_exactly_when_they_do_not_differ(
    case: tuple[int, list[bool], list[int]],
) -> None:
    n, flags, values = case
    apart = np.triu(np.array(flags).reshape(n, n), 1)
    apart = apart | apart.T
    said = stats.letters(values, apart)
    for i in range(n):
        assert said[i]
        for j in range(i):
            assert bool(set(said[i]) & set(said[j])) != apart[i, j]


def test_headlines_over_three_attributes_are_wrong_in_at_most_five_of_a_hundred() -> None:
    """Recall 0.5 for everyone; each attribute splits the same people in two. A headline that takes
    any interval without zero would be wrong in 9 to 14."""
    rng, draws, people = np.random.default_rng(0), 400, 240
    wrong = np.zeros(2)
    for _ in range(draws):
        hits = rng.random(people) < 0.5
        family = []
        for _ in range(3):
            group = rng.random(people) < rng.uniform(0.2, 0.8)
            shares = [stats.share(hits[g], np.flatnonzero(g)) for g in (group, ~group)]
            family.append(difference(*shares))
        alone = [e.low > 0 or e.high < 0 for e in family]
        wrong += [any(stats.apart_from_zero(family)), any(alone)]
    together, each_alone = wrong / draws
    assert together <= 0.05 + 2.6 * (0.05 * 0.95 / draws) ** 0.5
    assert each_alone > 0.09


def test_p_of_an_interval_that_ends_at_zero_is_five_in_a_hundred() -> None:
    assert stats.p_of_interval(stats.Estimate(0.3, 90, 0.0, 0.7, 40)) == pytest.approx(0.05)
    assert stats.p_of_interval(stats.Estimate(-0.3, 90, -0.5, 0.0, 40)) == pytest.approx(0.05)
    assert stats.p_of_interval(stats.Estimate(0.3, 90, 0.2, 0.4, 40)) < 1e-5
    assert np.isnan(stats.p_of_interval(stats.Estimate(0.3, 9)))


def test_a_difference_is_measurable_only_among_its_whole_family() -> None:
    near = stats.Estimate(0.30, 90, 0.01, 0.59, 90)  # p 0.043
    clear = stats.Estimate(0.50, 90, 0.30, 0.70, 90)
    assert stats.apart_from_zero([near]) == [True]
    assert stats.apart_from_zero([near, stats.Estimate(0.0, 90, -0.2, 0.2, 90)]) == [False, False]
    assert stats.apart_from_zero([near, clear]) == [True, True]
    assert stats.apart_from_zero([near, stats.Estimate(0.3, 9)]) == [True, False], "no test"


def test_leaderboard_tests_pairs_on_the_rows_of_both() -> None:
    rng = np.random.default_rng(0)
    good = (rng.random(400) < 0.8).astype(float)
    same, bad = good.copy(), (rng.random(400) < 0.3).astype(float)
    same[:3] = 1 - same[:3]
    said, tests = stats.leaderboard([good, same, bad], np.arange(400))
    assert said == ["a", "a", "b"]
    alone = {
        (i, j): stats.paired(a - b, np.arange(400), "difference")
        for (i, a), (j, b) in combinations(enumerate((good, same, bad)), 2)
    }
    p = [test.p for test in tests.values()]
    assert list(tests) == list(alone)
    assert [test.estimate for test in tests.values()] == [t.estimate for t in alone.values()]
    assert p == pytest.approx(list(stats.holm([t.p for t in alone.values()])), rel=1e-9, abs=0)
    assert p[0] == pytest.approx(alone[0, 1].p), "the largest of three p is multiplied by one"
    assert p[0] > 0.05 > p[1]
    assert stats.leaderboard([good], np.arange(400))[0] == ["a"]


def test_models_without_a_common_question_cannot_be_told_apart() -> None:
    one = np.array([1.0] * 20 + [np.nan] * 20)
    other = np.array([np.nan] * 20 + [0.0] * 20)

    letters, tests = stats.leaderboard([one, other], np.arange(40))

    assert np.isnan(tests[0, 1].p)
    assert letters == ["a", "a"]
