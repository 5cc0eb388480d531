"""What counts as the same score, and scores that are asked for in several ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sdgbias.engines.agreement import compare, log_shares, score
from sdgbias.engines.client import PromptRefused
from sdgbias.errors import InfrastructureError, ModelError, OutOfMemory
from sdgbias.types import Prompt, ScoreBatch
from tests.builders.length_engine import Engine

NAN, INF = float("nan"), float("inf")
LOG2, LOG3 = math.log(2), math.log(3)
Rows = list[list[float]]


def batch(rows: Rows, mass: Sequence[float] = (), tokens: Sequence[int] = ()) -> ScoreBatch:
    n = len(rows)
    return ScoreBatch(
        np.array(rows, dtype=np.float32),
        np.array(mass or [0.5] * n, dtype=np.float32),
        np.zeros(n, np.float32),
        ["A"] * n,
        np.array(tokens or [9] * n, np.int32),
    )


def compared(one: ScoreBatch, two: ScoreBatch, tolerance: float = 1e-3) -> dict[str, Any]:
    prompts = [Prompt(str(at), "ABC"[: one.logits.shape[1]]) for at in range(len(one.logits))]
    return compare("x", prompts, one, two, tolerance)


def test_log_shares_are_a_log_softmax_over_the_candidates_there_are() -> None:
    shares = log_shares(np.array([[0, LOG3, NAN], [500.0, 500.0, 500.0]]))
    assert shares[0, :2] == pytest.approx([math.log(1 / 4), math.log(3 / 4)])
    assert np.isnan(shares[0, 2]) and shares[1] == pytest.approx([math.log(1 / 3)] * 3)


#: Two ways of scoring, as logits -> prompts compared, left out, flips, near ties, whether they
#: agree.
PAIRS: dict[str, tuple[Rows, Rows, list[Any]]] = {
    # logits of one engine, log-probabilities of the other
    "a constant": ([[2, 1, NAN], [0, 4, 1]], [[-5, -6, NAN], [-7, -3, -6]], [2, 0, 0, 0, True]),
    "a tie": ([[0, 0.0004, -5]], [[0.0004, 0, -5]], [1, 0, 0, 1, True]),
    "a flip": ([[0, 0.4, -5]], [[0.4, 0, -5]], [1, 0, 1, 0, False]),
    "a tie on one side": ([[0, 0.0004]], [[0.5, 0]], [1, 0, 0, 1, False]),
    "no score": (
        [[1, 2, 3], [NAN] * 3, [1, 2, 3]],
        [[1, -INF, 3]] + 2 * [[1, 2, 3]],
        [1, 2, 0, 0, True],
    ),
    "none at all": ([[NAN, NAN]], [[1, 2]], [0, 1, 0, 0, False]),
}


@pytest.mark.parametrize(("one", "two", "verdict"), PAIRS.values(), ids=PAIRS)
def test_flips_and_ties_are_counted_apart_and_what_has_no_score_is_left_out(
    one: Rows, two: Rows, verdict: list[Any]
) -> None:
    row = compared(batch(one), batch(two))
    assert [row[n] for n in ("n", "left_out", "flips", "near_ties", "agrees")] == verdict
    assert (row["worst"] is None) == (row["n"] == 0)


def test_differences_are_those_of_each_prompt() -> None:
    """Shares 1/2 and 1/2 against 1/4 and 3/4: log(2) apart at most, at the second of three."""
    one = batch([[0, 1], [0, 0], [3, 0]], mass=[0.2, 0.9, 0.4], tokens=[5, 6, 7])
    two = batch([[0, 1], [0, LOG3], [3, 0]], mass=[0.2, 0.8, 0.4], tokens=[5, 6, 8])
    row = compared(one, two)
    assert row["logp_max"] == pytest.approx(LOG2, rel=1e-6) and row["logp_median"] == 0
    assert row["mass_max"] == pytest.approx(0.1, rel=1e-5) and row["mass_median"] == 0
    assert (row["worst"]["probe"], row["lengths"]) == (1, 1)
    assert not compared(one, two, 0.69)["agrees"] and compared(one, two, 0.70)["agrees"]
    assert not compared(batch([[1, 2]], [0.5]), batch([[1, 2]], [0.4]))["agrees"], "another mass"


def test_within_the_tolerance_no_flip_can_be_a_real_one() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=(4000, 3)) * 0.002
    moved = z + random.uniform(-4e-4, 4e-4, z.shape)
    row = compared(batch(z.tolist()), batch(moved.tolist()))
    assert row["logp_max"] <= 1e-3 and row["near_ties"] > 50 and row["flips"] == 0


PROMPTS = [Prompt("x" * n, "AB") for n in range(1, 10)]


@pytest.mark.parametrize("order", [range(9), (8, 0, 3, 1, 2, 7, 6, 5, 4)])
def test_scores_stand_at_their_prompts_in_whatever_order_they_were_asked_for(
    order: Sequence[int],
) -> None:
    scores, failures, refused = score(Engine(), PROMPTS, order, 4)
    assert scores.logits[:, 0].tolist() == scores.n_tokens.tolist() == list(range(1, 10))
    assert (failures, refused) == ([], None)


@pytest.mark.parametrize("error", [ValueError("bad\nand more"), OutOfMemory("bad")])
def test_a_prompt_that_fails_leaves_the_others_alone(error: Exception) -> None:
    scores, failures, refused = score(Engine(["xxx"], error), PROMPTS, range(9), 4)
    assert np.isnan(scores.logits[2]).all() and refused is None
    assert failures == [f"{type(error).__name__}: bad"]
    assert np.isfinite(np.delete(scores.logits, 2, axis=0)).all()


def test_a_batch_that_fails_though_its_prompts_do_not_is_named() -> None:
    scores, failures, refused = score(Engine(room=1), PROMPTS, range(9), 4)
    assert np.isfinite(scores.logits).all() and not failures
    assert str(refused) == "out of memory: tried to allocate"


@pytest.mark.parametrize(
    ("bad", "error", "kind", "words"),
    [
        (["xxx"], InfrastructureError("gone"), InfrastructureError, "gone"),
        ([p.text for p in PROMPTS], ModelError("no token"), ModelError, "no token"),
        (
            [p.text for p in PROMPTS],
            ValueError,
            ModelError,
            "each of 9 probes fails, the first: ValueError: at x",
        ),
        # else it passes by all that ask for a verdict on the model
        ([p.text for p in PROMPTS], PromptRefused("no"), ModelError, "first: PromptRefused: no"),
    ],
)
def test_an_outage_and_a_model_that_scores_nothing_are_raised(
    bad: list[str], error: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        score(Engine(bad, error), PROMPTS, range(9), 4)
