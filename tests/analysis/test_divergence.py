"""Study 'divergence': CADE gains where the picture moves the answer, and else nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.types import CadeParams
from tests.builders.analysis_run import mcq_cell, one, run_of

N = 100


def test_the_gain_is_where_the_views_differ() -> None:
    """Full prefers A by the context; the picture says B in the last fifth, where B is right."""
    full = np.tile([2.0, 0.0, 0.0], (N, 1))
    picture = full.copy()
    picture[-N // 5 :] = [0.0, 3.0, 0.0]
    picture[:, 2] += np.linspace(0, 1e-3, N)  # no two divergences are equal
    gold = "A" * (N - N // 5) + "B" * (N // 5)
    cell = mcq_cell(
        {"full": full, "img_q": picture, "ctx_q": full, "q_only": full},
        gold,
        params=CadeParams(1.0, 0.0, 0.0, 1.1),
    )

    rows = STUDIES["divergence"].rows(run_of(cell), AnalysisSettings())

    gain = {
        number: one(
            rows, test="T1", metric="accuracy_gain", attribute="divergence", group=str(number)
        )
        for number in range(1, 6)
    }
    assert [g["n"] for g in gain.values()] == [N // 5] * 5
    assert gain[5]["value"] == 1.0
    shown = [g["x"] for g in gain.values()]
    assert shown == sorted(shown) and shown[-1] > 10 * shown[-2]
    last = one(rows, test="T1", attribute="divergence", group="5", other="1")
    assert last["value"] == pytest.approx(gain[5]["value"] - gain[1]["value"])
    far = np.hypot(gain[5]["value"] - gain[5]["low"], gain[1]["high"] - gain[1]["value"])
    assert last["low"] == pytest.approx(last["value"] - far) and last["n"] == 2 * N // 5


def test_questions_of_one_divergence_stay_in_one_group() -> None:
    full = np.tile([2.0, 0.0, 0.0], (N, 1))
    cell = mcq_cell({"full": full}, "A" * N, params=CadeParams(1.0, 0.0, 0.0, 1.1))

    rows = STUDIES["divergence"].rows(run_of(cell), AnalysisSettings())

    assert set(rows["group"]) == {"3"} and set(rows["n"]) == {N}
