"""Study 'harm': fixed and broken by hand; the term behind a flip from numbers that a reader can add
up."""

from __future__ import annotations

import numpy as np
import pytest

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


def flips(cell: TaskCell) -> tuple[list[str], list[str]]:
    """Of each flip the term that came first, and the largest."""
    o, *_ = harm.diagnosed(run_of(cell), AnalysisSettings())
    at = o.more["first"] >= 0
    first, largest = (np.array(harm.TERMS)[o.more[name][at]] for name in ("first", "largest"))
    return first.tolist(), largest.tolist()


@pytest.mark.parametrize(
    ("img", "ctx", "q", "first", "largest"),
    [
        # the image stream has A 6/12, B 4/12: the picture does not turn it, C = (8, 1, 1)/10 does
        ((2, 3, 1), (8, 1, 1), (1, 1, 1), "context", "context"),
        # (4 + 1) to (1 + 5): the picture turns it, and the context takes four times as much
        ((1, 5, 0.1), (8, 1, 1), (1, 1, 1), "image", "context"),
        # log(0.99 / 0.83) + log 4 in the picture's favour, log 2 in the context's
        ((1, 5, 0.1), (2, 1, 1), (1, 1, 1), "image", "image"),
        ((2, 3, 1), (1, 1, 1), (8, 1, 1), "prior", "prior"),
    ],
)
def test_the_term_behind_a_flip_by_hand(
    img: tuple[float, ...], ctx: tuple[float, ...], q: tuple[float, ...], first: str, largest: str
) -> None:
    """Full (4/6, 1/6, 1/6) says A, CADE says B."""
    views = {"full": [_log(4, 1, 1)], "img_q": [_log(*img)]}
    views |= {"ctx_q": [_log(*ctx)], "q_only": [_log(*q)]}

    cell = mcq_cell(views, "B", params=CadeParams(1.0, 0.0, 1.0, 1.1))

    assert flips(cell) == ([first], [largest])


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_other_than_fulls_has_its_first_term(seed: int) -> None:
    """With the terms before the first one the answer is still Full's, with it another."""
    rng = np.random.default_rng(seed)
    params = CadeParams(*rng.uniform(0, (2, 3, 2)), 0.8)
    names = ("full", "ctx_q", "img_q", "q_only")
    z = rng.normal(0, 1.5, (4, 60, 3))
    cell = mcq_cell(dict(zip(names, z.tolist(), strict=True)), "A" * 60, params=params)
    s = cell.streams()

    first, _ = flips(cell)

    flipped = np.flatnonzero(cade.decide(s, params).choice != s.base)
    assert len(first) == len(flipped), "what the gate keeps is Full's answer"
    by_term = np.cumsum(cade.score_terms(s, params), axis=0).argmax(axis=2)  # (3, N)
    for i, term in zip(flipped, map(harm.TERMS.index, first), strict=True):
        assert by_term[term, i] != s.base[i] and (by_term[:term, i] == s.base[i]).all()


def test_the_cut_is_a_tenth_of_the_likeliest_and_not_a_tenth() -> None:
    """0.1 x 0.6 = 0.06: 0.05 lies below it, 0.08 does not; without Full nothing is implausible."""
    log_full = np.array([_log(0.6, 0.32, 0.08), _log(0.6, 0.35, 0.05), [-np.inf] * 3])
    found = harm.implausible(log_full, np.array([2, 2, 2]))
    assert found.tolist()[:2] == [0.0, 1.0] and np.isnan(found[2])
