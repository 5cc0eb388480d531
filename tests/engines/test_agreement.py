"""What counts as the same score, and scores that are asked for in several ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.agreement import compare, log_shares, score
from sdgbias.errors import InfrastructureError, ModelError, OutOfMemory
from sdgbias.types import Prompt, ScoreBatch
from tests.builders.length_engine import Engine

NAN, INF = float("nan"), float("inf")


def batch(
    rows: list[list[float]], mass: list[float] | None = None, tokens: list[int] | None = None
) -> ScoreBatch:
    n = len(rows)
    logits = np.array(rows, dtype=np.float32)
    return ScoreBatch(
        logits,
        np.array(mass or [0.5] * n, dtype=np.float32),
        np.zeros(n, np.float32),
        ["A"] * n,
        np.array(tokens or [9] * n, np.int32),
    )


def compared(one: ScoreBatch, two: ScoreBatch, tolerance: float = 1e-3) -> dict[str, Any]:
    prompts = [Prompt(str(at), "ABC"[: one.logits.shape[1]]) for at in range(len(one.logits))]
    return compare("x", prompts, one, two, tolerance)


def test_log_shares_are_a_log_softmax_over_the_candidates_there_are() -> None:
    shares = log_shares(np.array([[math.log(1), math.log(3), NAN], [500.0, 500.0, 500.0]]))
    assert shares[0, :2] == pytest.approx([math.log(1 / 4), math.log(3 / 4)]) and np.isnan(
        shares[0, 2]
    )
    assert shares[1] == pytest.approx([math.log(1 / 3)] * 3)


def test_a_constant_per_prompt_is_no_difference() -> None:
    """Logits of one engine, log-probabilities of the other."""
    one = [[2.0, 1.0, NAN], [0.0, 4.0, 1.0]]
    row = compared(batch(one), batch([[z - 7.25 for z in row] for row in one]))
    assert row["logp_max"] == pytest.approx(0, abs=1e-12) and row["agrees"]
    counts = [row[name] for name in ("n", "left_out", "flips", "near_ties", "lengths")]
    assert counts == [2, 0, 0, 0, 0]


def test_differences_are_those_of_each_prompt() -> None:
    """Shares 1/2 and 1/2 against 1/4 and 3/4: log(2) apart at most, at the second of three."""
    one = batch([[0.0, 1.0], [0.0, 0.0], [3.0, 0.0]], mass=[0.2, 0.9, 0.4], tokens=[5, 6, 7])
    two = batch(
        [[0.0, 1.0], [0.0, math.log(3)], [3.0, 0.0]], mass=[0.2, 0.8, 0.4], tokens=[5, 6, 8]
    )
    row = compared(one, two)
    assert row["logp_max"] == pytest.approx(math.log(2), rel=1e-6) and row["logp_median"] == 0
    assert row["mass_max"] == pytest.approx(0.1, rel=1e-5) and row["mass_median"] == 0
    assert (row["worst"]["probe"], row["lengths"]) == (1, 1)
    assert not compared(one, two, 0.69)["agrees"] and compared(one, two, 0.70)["agrees"]


@pytest.mark.parametrize(
    ("one", "two", "flips", "near_ties", "agrees"),
    [
        pytest.param([0.0, 0.0004, -5.0], [0.0004, 0.0, -5.0], 0, 1, True, id="tie"),
        pytest.param([0.0, 0.4, -5.0], [0.4, 0.0, -5.0], 1, 0, False, id="real"),
        pytest.param([0.0, 0.0004], [0.5, 0.0], 0, 1, False, id="a tie on one side alone"),
    ],
)
def test_a_flip_between_two_that_tie_is_counted_apart(
    one: list[float], two: list[float], flips: int, near_ties: int, agrees: bool
) -> None:
    row = compared(batch([one]), batch([two]))
    assert (row["flips"], row["near_ties"], row["agrees"]) == (flips, near_ties, agrees)


def test_within_the_tolerance_no_flip_can_be_a_real_one() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=(4000, 3)) * 0.002
    moved = z + random.uniform(-4e-4, 4e-4, z.shape)
    row = compared(batch(z.tolist()), batch(moved.tolist()))
    assert row["logp_max"] <= 1e-3 and row["near_ties"] > 50 and row["flips"] == 0


def test_prompts_without_an_exact_score_are_left_out_and_counted() -> None:
    one = batch([[1.0, 2.0, NAN], [1.0, 2.0, 3.0], [NAN, NAN, NAN], [1.0, 2.0, 3.0]])
    two = batch([[1.0, 2.0, NAN], [1.0, -INF, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    row = compared(one, two)
    assert (row["n"], row["left_out"], row["agrees"]) == (2, 2, True)
    nothing = compared(batch([[NAN, NAN]]), batch([[1.0, 2.0]]))
    shown = [nothing[name] for name in ("n", "left_out", "worst", "agrees")]
    assert shown == [0, 1, None, False]


def test_equal_scores_and_another_mass_disagree() -> None:
    assert not compared(batch([[1.0, 2.0]], [0.5]), batch([[1.0, 2.0]], [0.4]))["agrees"]


PROMPTS = [Prompt("x" * n, "AB") for n in range(1, 10)]


@pytest.mark.parametrize("order", [range(9), (8, 0, 3, 1, 2, 7, 6, 5, 4)])
def test_scores_stand_at_their_prompts_in_whatever_order_they_were_asked_for(
    order: Sequence[int],
) -> None:
    scores, failures, refused = score(Engine(), PROMPTS, order, 4)
    assert scores.logits[:, 0].tolist() == scores.n_tokens.tolist() == list(range(1, 10))
    assert (failures, refused) == ([], None)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad\nand more"), "ValueError: bad"),
        (OutOfMemory("large"), "OutOfMemory: large"),
    ],
)
def test_a_prompt_that_fails_leaves_the_others_alone(error: Exception, line: str) -> None:
    scores, failures, refused = score(Engine(["xxx"], error), PROMPTS, range(9), 4)
    assert np.isnan(scores.logits[2]).all() and failures == [line] and refused is None
    assert np.isfinite(np.delete(scores.logits, 2, axis=0)).all()


def test_a_batch_that_fails_though_its_prompts_do_not_is_named() -> None:
    class Single(Engine):
        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            if len(prompts) > 1:
                raise ValueError("one at a time")
            return super().candidate_scores(prompts)

    scores, failures, refused = score(Single(), PROMPTS, range(9), 4)
    assert np.isfinite(scores.logits).all() and not failures
    assert str(refused) == "one at a time"


def test_an_outage_and_a_model_that_scores_nothing_are_raised() -> None:
    with pytest.raises(InfrastructureError, match="gone"):
        score(Engine(["xxx"], InfrastructureError("gone")), PROMPTS, range(9), 4)
    everything = [prompt.text for prompt in PROMPTS]
    with pytest.raises(ModelError, match="no token"):
        score(Engine(everything, ModelError("no token")), PROMPTS, range(9), 4)
    with pytest.raises(ModelError, match="each of 9 probes fails, the first: ValueError: at x"):
        score(Engine(everything), PROMPTS, range(9), 4)
