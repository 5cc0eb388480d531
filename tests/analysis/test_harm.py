"""Study 'harm': fixed and broken by hand; the term behind a flip from numbers that a reader can add
up."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sdgbias.analysis import outcomes
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import TaskCell
from sdgbias.analysis.studies import harm
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods import cade
from sdgbias.types import CadeParams
from tests.builders.analysis_run import OPEN, mcq_cell, one, run_of

A, B, C = [3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]
SURE = [0.0, 9.0, 0.0]


def test_fixed_broken_and_net() -> None:
    """Full says A to all; a picture that is sure of B turns the first four."""
    cell = mcq_cell({"full": [A] * 6, "img_q": [SURE] * 4 + [A] * 2}, "BBBAAC", params=OPEN)

    rows = STUDIES["harm"].rows(run_of(cell), AnalysisSettings())

    cade_at_t1 = {"test": "T1", "method": "cade"}
    values = [one(rows, **cade_at_t1, metric=m)["value"] for m in ("fixed", "broken", "flipped")]
    assert values == [3 / 6, 1 / 6, 4 / 6]
    where = {"indicator": "wasting", "group": "Health & Nutrition"}
    exact = one(rows, **cade_at_t1, metric="mcnemar", **where)
    assert "3 better, 1 worse" in exact["note"] and exact["p"] == 0.625, "2 (1 + 4) / 2^4"
    won = one(rows, **cade_at_t1, metric="net_of_flips_by_first_term", parameter="image")
    assert (won["value"], won["n"]) == ((3 - 1) / 4, 4)


def _log(*p: float) -> list[float]:
    return list(np.log(p))


#: METHODS 3.1: the third option is improbable in every view, and wins.
HAZARD = {
    "full": [_log(0.5, 0.4999, 0.0001)],
    "img_q": [_log(0.5, 0.4999, 0.0001)],
    "ctx_q": [_log(0.55, 0.45, 1e-5)],
    "q_only": [_log(0.6, 0.39, 0.01)],
}
STRONG = CadeParams(alpha=0.7, lambda_kl=0.0, beta=1.0, tau=1.1)


def test_an_implausible_choice_is_found() -> None:
    cell = mcq_cell(HAZARD, "B", params=STRONG)
    assert cade.decide(cell.streams(), STRONG).choice[0] == 2
    rows = STUDIES["harm"].rows(run_of(cell), AnalysisSettings())
    assert one(rows, test="T1", method="cade", metric="implausible")["value"] == 1.0


def diagnosed(cell: TaskCell) -> pd.DataFrame:
    known = outcomes.decision(cell)
    assert known is not None
    return pd.DataFrame(harm._why(cell, *known))


def test_diagnosis_adds_up_by_hand() -> None:
    """Full (4/6, 1/6, 1/6) says A; the picture alone doesn't turn it, the context does: C = (8, 1,
    1)/10."""
    views = {
        "full": [_log(4, 1, 1)],
        "img_q": [_log(2, 3, 1)],
        "ctx_q": [_log(8, 1, 1)],
        "q_only": [_log(1, 1, 1)],
    }
    found = diagnosed(mcq_cell(views, "B", params=CadeParams(1.0, 0.0, 1.0, 1.1)))
    (r,) = found.to_dict("records")
    assert (r["full"], r["cade"], r["kept"]) == (0, 1, False)
    assert harm.TERMS[r["first"]] == harm.TERMS[r["largest"]] == "context"
    mixed = np.log((1 / 6 + 3 / 6) / (4 / 6 + 2 / 6))  # lead of B over A in the image stream
    assert (r["start"], r["image"], r["context"], r["prior"]) == pytest.approx(
        (np.log(1 / 4), mixed - np.log(1 / 4), np.log(8), 0.0)
    )
    assert r["margin"] == pytest.approx(mixed + np.log(8))


@settings(deadline=None, max_examples=60)
@given(
    arrays(np.float64, (4, 6, 3), elements=st.floats(-4, 4)),
    st.floats(0, 2),
    st.floats(0, 3),
    st.floats(0, 2),
)
def test_terms_add_up_to_the_lead_in_the_score(
    z: np.ndarray, alpha: float, lambda_kl: float, beta: float
) -> None:
    params = CadeParams(alpha, lambda_kl, beta, 0.8)
    cell = mcq_cell(
        dict(zip(("full", "ctx_q", "img_q", "q_only"), z.tolist(), strict=True)),
        "AAAAAA",
        params=params,
    )
    d, found = cade.decide(cell.streams(), params), diagnosed(cell)
    flipped = found["flipped"].to_numpy()
    assert (flipped == (d.choice != cell.streams().base)).all(), (
        "what the gate keeps is Full's answer"
    )
    at = np.flatnonzero(flipped)
    lead = d.score[at, d.choice[at]] - d.score[at, found["full"].to_numpy()[at]]
    assert found["margin"].to_numpy()[at] == pytest.approx(lead, abs=1e-9)
    total = found[["start", "image", "context", "prior"]].sum(axis=1).to_numpy()[at]
    assert total == pytest.approx(lead, abs=1e-9) and (found["start"].to_numpy()[at] <= 0).all()
    assert (found["first"][flipped] >= 0).all() and (found["first"][~flipped] == -1).all()


def test_the_cut_is_a_tenth_of_the_likeliest_and_not_a_tenth() -> None:
    """0.1 x 0.6 = 0.06: 0.05 lies below it, 0.08 does not; without Full nothing is implausible."""
    log_full = np.array([_log(0.6, 0.32, 0.08), _log(0.6, 0.35, 0.05), [-np.inf] * 3])
    found = harm.implausible(log_full, np.array([2, 2, 2]))
    assert found.tolist()[:2] == [0.0, 1.0] and np.isnan(found[2])
