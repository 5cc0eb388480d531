"""Many tests at once, by hand; letters of a leaderboard by their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias.methods import stats


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


def test_leaderboard_tests_pairs_on_the_rows_of_both() -> None:
    rng = np.random.default_rng(0)
    good = (rng.random(400) < 0.8).astype(float)
    same, bad = good.copy(), (rng.random(400) < 0.3).astype(float)
    same[:3] = 1 - same[:3]
    said, p, differ = stats.leaderboard([good, same, bad], np.arange(400))
    assert (said[2], said[0]) == ("b", "a") and said[1] == "a"
    assert p[0, 1] == pytest.approx(stats.paired(good - same, np.arange(400)).p), (
        "the largest of three p is multiplied by one"
    )
    alone = [
        stats.paired(a - b, np.arange(400)).p for a, b in ((good, same), (good, bad), (same, bad))
    ]
    assert [p[0, 1], p[0, 2], p[1, 2]] == pytest.approx(list(stats.holm(alone)), rel=1e-9, abs=0)
    assert not differ[0, 1] and differ[0, 2] and np.isnan(p[0, 0])
    assert stats.leaderboard([good], np.arange(400))[0] == ["a"]
