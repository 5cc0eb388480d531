"""The verdict of a lean: random directions per prompt are none, a true one is found."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.methods import lean, stats
from sdgbias.methods.stats import Estimate

Shares = dict[str, Estimate]
DIRECTIONS = ("pessimistic", "conservative", "optimistic")


def judged(says: np.ndarray, prompt: np.ndarray) -> str:
    return lean.verdict({d: stats.share(says == k, prompt) for k, d in enumerate(DIRECTIONS)})


def share_that_lean(said: list[np.ndarray], *units: list[np.ndarray]) -> float:
    """The share of draws whose directions are a lean or a split; units: what they are counted by,
    of several the wider interval."""
    by, says = np.repeat(np.arange(len(said)), list(map(len, said))), np.concatenate(said)
    columns = [stats.ValueColumn(d, says == k, "share") for k, d in enumerate(DIRECTIONS)]
    codes = [np.concatenate(unit) for unit in units]
    shares = list(stats.measure(columns, by, len(said), codes))
    verdicts = [
        lean.verdict({each.metric: each.estimate(draw) for each in shares})
        for draw in range(len(said))
    ]
    return float(np.mean([verdict.startswith(("leans", "splits")) for verdict in verdicts]))


@pytest.mark.parametrize(
    ("optimistic", "others", "words"),
    [
        ((0.75, 0.62, 0.85), (0.12, 0.05, 0.25), "leans optimistic"),  # as before
        ((0.60, 0.45, 0.73), (0.20, 0.11, 0.33), "leans optimistic"),  # fewer, and still ahead
        ((0.40, 0.22, 0.60), (0.30, 0.15, 0.50), "follows the order of options"),
        ((0.00, 0.00, 0.25), (0.50, 0.25, 0.75), "follows the order of options"),
        ((0.20, 0.02, 0.82), (0.40, 0.10, 0.90), "shows no clear direction"),  # too few prompts
    ],
)
def test_a_lean_holds_with_the_options_in_another_order(
    optimistic: tuple[float, float, float], others: tuple[float, float, float], words: str
) -> None:
    def shares(share: tuple[float, float, float], other: tuple[float, float, float]) -> Shares:
        of = {"optimistic": share, "pessimistic": other, "conservative": other}
        return {d: Estimate(value, 90, low, high, 14) for d, (value, low, high) in of.items()}

    before = shares((0.86, 0.76, 0.93), (0.07, 0.03, 0.15))
    assert lean.verdict(before) == "leans optimistic"
    assert lean.verdict(before, reordered=shares(optimistic, others)) == words


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([(0.55, 0.65), (0.15, 0.25), (0.10, 0.20)], "leans pessimistic"),
        ([(0.40, 0.50), (0.40, 0.50), (0.05, 0.10)], "splits between conservative and pessimistic"),
    ],
)
def test_ties_that_could_have_gone_elsewhere_are_no_lean(
    ends: list[tuple[float, float]], words: str
) -> None:
    shares = {
        d: stats.Estimate((low + high) / 2, 100, low, high, 20)
        for d, (low, high) in zip(DIRECTIONS, ends, strict=True)
    }
    assert lean.verdict(shares) == lean.verdict(shares, ties=0.05) == words
    assert lean.verdict(shares, ties=0.16) == "shows no clear direction"


@pytest.mark.parametrize("prompts", [6, 12])
def test_one_random_direction_per_prompt_is_no_lean(prompts: int) -> None:
    """Twenty places share each prompt. Counted by place, most pillars would be said to lean."""
    rng = np.random.default_rng(prompts)
    said, asked = [], []
    for _ in range(200):
        rows = np.maximum(1, np.round(20 * np.exp(rng.normal(0, 0.7, prompts)))).astype(int)
        asked.append(np.repeat(np.arange(prompts), rows))
        said.append(np.repeat(rng.integers(0, 3, prompts), rows))
    assert share_that_lean(said, asked) <= 0.05
    assert share_that_lean(said, [np.arange(len(says)) for says in said]) > 0.3


@pytest.mark.parametrize("copied", [0.65, 1.0])
@pytest.mark.parametrize("indicators", [6, 14])
def test_a_direction_drawn_per_indicator_is_no_lean_over_its_wordings(
    indicators: int, copied: float
) -> None:
    """A model draws one direction per indicator and gives it in so many of its nine wordings.
    Counted by wording alone, 9 to 60 % of such pillars would be said to lean."""
    rng, draws = np.random.default_rng([indicators, round(100 * copied)]), 200
    indicator, wording = np.repeat(np.arange(indicators), 9), np.arange(9 * indicators)
    said = []
    for _ in range(draws):
        drawn = np.repeat(rng.integers(0, 3, indicators), 9)
        copies = rng.random(len(drawn)) < copied
        said.append(np.where(copies, drawn, rng.integers(0, 3, len(drawn))))
    assert share_that_lean(said, [indicator] * draws, [wording] * draws) <= 0.05
    assert share_that_lean(said, [wording] * draws) > 0.09


def test_a_true_lean_over_nine_wordings_is_found() -> None:
    assert judged(np.full(9, 2), np.arange(9)) == "leans optimistic"
    rng = np.random.default_rng(0)
    found = [
        judged(rng.choice(3, 27, p=[0.1, 0.1, 0.8]), np.arange(27)) == "leans optimistic"
        for _ in range(100)
    ]
    assert np.mean(found) >= 0.9


def shares(*estimates: stats.Estimate) -> dict[str, stats.Estimate]:
    return dict(zip(DIRECTIONS, estimates, strict=True))


def test_six_prompts_are_enough_for_a_verdict_and_five_are_not() -> None:
    for count, expected in ((5, "5 prompts: too few to say"), (6, "leans optimistic")):
        rare = stats.Estimate(0.05, 60, 0.0, 0.2, count)
        often = stats.Estimate(0.9, 60, 0.7, 1.0, count)
        assert lean.verdict(shares(rare, rare, often)) == expected


def test_the_share_with_the_fewest_prompts_decides_whether_there_are_enough() -> None:
    rare = stats.Estimate(0.05, 60, 0.0, 0.2, 12)
    often = stats.Estimate(0.9, 60, 0.7, 1.0, 4)

    assert lean.verdict(shares(rare, rare, often), "indicator") == "4 indicators: too few to say"


@pytest.mark.parametrize(("ties", "verdict"), [(0.1, "leans"), (1.0, "shows no clear direction")])
def test_answers_that_are_ties_are_no_lean(ties: float, verdict: str) -> None:
    prompt = np.repeat(np.arange(40), 2)
    shares = {d: stats.share(np.full(80, k == 0), prompt) for k, d in enumerate(DIRECTIONS)}
    assert lean.verdict(shares, ties=ties).startswith(verdict)
