"""What counts as the same score, and the gate that reads the verdict."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sdgbias.engines.agreement import compare, log_shares, require_agreement
from sdgbias.errors import EnginesDisagree, StoreError
from sdgbias.types import ScoreBatch

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


def test_log_shares_are_a_log_softmax_over_the_candidates_there_are() -> None:
    shares = log_shares(np.array([[math.log(1), math.log(3), NAN], [500.0, 500.0, 500.0]]))
    assert shares[0, :2] == pytest.approx([math.log(1 / 4), math.log(3 / 4)]) and np.isnan(
        shares[0, 2]
    )
    assert shares[1] == pytest.approx([math.log(1 / 3)] * 3)


def test_a_constant_per_prompt_is_no_difference() -> None:
    """Logits of one engine, log-probabilities of the other."""
    one = [[2.0, 1.0, NAN], [0.0, 4.0, 1.0]]
    found = compare("x", batch(one), batch([[z - 7.25 for z in row] for row in one]), 1e-3)
    assert found.logp_max == pytest.approx(0, abs=1e-12) and found.agrees(1e-3)
    assert (found.n, found.left_out, found.flips, found.near_ties, found.lengths) == (2, 0, 0, 0, 0)


def test_differences_are_told_probe_by_probe() -> None:
    """Shares 1/2 and 1/2 against 1/4 and 3/4: log(2) apart at most, at the second of three
    probes."""
    one = batch([[0.0, 1.0], [0.0, 0.0], [3.0, 0.0]], mass=[0.2, 0.9, 0.4], tokens=[5, 6, 7])
    two = batch(
        [[0.0, 1.0], [0.0, math.log(3)], [3.0, 0.0]], mass=[0.2, 0.8, 0.4], tokens=[5, 6, 8]
    )
    found = compare("x", one, two, 1e-3)
    assert found.logp_max == pytest.approx(math.log(2), rel=1e-6) and found.logp_median == 0
    assert found.mass_max == pytest.approx(0.1, rel=1e-5) and found.mass_median == 0
    assert (found.worst, found.lengths) == (1, 1)
    assert not found.agrees(0.69) and found.agrees(0.70)


def test_a_flip_between_two_that_tie_is_counted_apart() -> None:
    tie = compare("x", batch([[0.0, 0.0004, -5.0]]), batch([[0.0004, 0.0, -5.0]]), 1e-3)
    assert (tie.flips, tie.near_ties) == (0, 1) and tie.agrees(1e-3)
    real = compare("x", batch([[0.0, 0.4, -5.0]]), batch([[0.4, 0.0, -5.0]]), 1e-3)
    assert (real.flips, real.near_ties) == (1, 0) and not real.agrees(1e-3)
    one_sided = compare("x", batch([[0.0, 0.0004]]), batch([[0.5, 0.0]]), 1e-3)
    assert (one_sided.flips, one_sided.near_ties) == (0, 1) and not one_sided.agrees(1e-3), (
        "the difference itself is too large"
    )


def test_within_the_tolerance_no_flip_can_be_a_real_one() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=(4000, 3)) * 0.002
    moved = z + random.uniform(-4e-4, 4e-4, z.shape)
    found = compare("x", batch(z.tolist()), batch(moved.tolist()), 1e-3)
    assert found.logp_max <= 1e-3 and found.near_ties > 50 and found.flips == 0


def test_probes_without_an_exact_score_are_left_out_and_counted() -> None:
    one = batch([[1.0, 2.0, NAN], [1.0, 2.0, 3.0], [NAN, NAN, NAN], [1.0, 2.0, 3.0]])
    two = batch([[1.0, 2.0, NAN], [1.0, -INF, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    found = compare("x", one, two, 1e-3)
    assert (found.n, found.left_out) == (2, 2) and found.agrees(1e-3)
    nothing = compare("x", batch([[NAN, NAN]]), batch([[1.0, 2.0]]), 1e-3)
    assert (nothing.n, nothing.left_out, nothing.worst) == (0, 1, -1) and not nothing.agrees(1e-3)


def test_equal_scores_and_another_mass_disagree() -> None:
    assert not compare("x", batch([[1.0, 2.0]], [0.5]), batch([[1.0, 2.0]], [0.4]), 1e-3).agrees(
        1e-3
    )


def stored(folder: Path, **more: object) -> None:
    told = {
        "fingerprint": "f1",
        "verdict": "disagree",
        "reasons": ["hf / vllm: differ by 0.3"],
        "again": "sdgbias models parity m",
    }
    (folder / "parity").mkdir()
    (folder / "parity" / "m.json").write_text(json.dumps({**told, **more}))


def test_the_gate(tmp_path: Path) -> None:
    require_agreement(tmp_path, "m", "f1")  # never checked
    stored(tmp_path)
    with pytest.raises(
        EnginesDisagree,
        match=(
            r"^m: hf / vllm: differ by 0.3; nothing is published, scores are kept: .*: sdgbias"
            r" models parity m$"
        ),
    ):
        require_agreement(tmp_path, "m", "f1")
    require_agreement(tmp_path, "m", "f2")  # other weights or versions by now
    require_agreement(tmp_path, "n", "f1")


@pytest.mark.parametrize("verdict", ["agree", "only one backend here"])
def test_the_gate_is_open(tmp_path: Path, verdict: str) -> None:
    stored(tmp_path, verdict=verdict)
    require_agreement(tmp_path, "m", "f1")


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff"])
def test_a_verdict_that_cannot_be_read_is_not_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / "m.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=r"m\.json: can't be read .*sdgbias models parity m"):
        require_agreement(tmp_path, "m", "f1")
