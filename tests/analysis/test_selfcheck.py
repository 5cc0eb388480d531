"""The self-check's own arithmetic, and that each fault put into the instrument on purpose is
caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, norm, ttest_1samp

from sdgbias.analysis import selfcheck
from sdgbias.analysis.selfcheck import pipeline, report, truth
from sdgbias.analysis.selfcheck.checks import (
    Check,
    effective_size,
    failed,
    p_mean,
    p_share,
)
from sdgbias.analysis.selfcheck.plants import PLANTS
from sdgbias.engines.planted import Habits
from sdgbias.errors import InputError, SelfcheckFailed, UsageError
from sdgbias.methods import cade, stats
from sdgbias.suites import sdg
from sdgbias.types import CadeParams, ContextTest, Task, View
from tests.builders.planted_items import draw_items, expected_shares, plant

ALL = np.ones((1, 3), dtype=bool)


def check(p: float, **more: object) -> Check:
    return replace(Check("null", "something", 0.5, 0.5, 100, 0.4, 0.6, p), **more)  # type: ignore[arg-type]


# -- truth
# ----------------------------------------------------------------------


def test_chances_of_two_answers_are_the_normal_distribution() -> None:
    """A beats B when N(mu_a - mu_b, 2 sd^2) is above zero; the masked third never wins."""
    found = truth.choice_probability(
        np.array([[1.0, 0.2, 9.0]]), np.array([0.7]), np.array([[True, True, False]])
    )
    assert found[0] == pytest.approx(
        [norm.cdf(0.8 / (0.7 * 2**0.5)), norm.cdf(-0.8 / (0.7 * 2**0.5)), 0.0], abs=1e-12
    )


def test_chances_of_three_and_ten_answers() -> None:
    assert truth.choice_probability(np.zeros((1, 3)), np.ones(1), ALL)[0] == pytest.approx(
        [1 / 3] * 3, abs=1e-12
    )
    assert truth.choice_probability(np.array([[0.0, 2.0, 2.0]]), np.zeros(1), ALL)[0].tolist() == [
        0,
        1,
        0,
    ], "no noise: the first of the highest"
    mu = np.linspace(0, 2, 10)
    z = mu + 0.9 * np.random.default_rng(0).standard_normal((200_000, 10))
    drawn = np.bincount(z.argmax(axis=1), minlength=10) / 200_000
    found = truth.choice_probability(mu[None], np.array([0.9]), np.ones((1, 10), dtype=bool))[0]
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert found == pytest.approx(drawn, abs=0.005)  # 4 standard errors


def test_the_second_writing_of_cade_agrees_with_the_first() -> None:
    """truth.cade_choice was written from the paper, cade.decide is what runs: the same answers for
    random scores and settings."""
    rng = np.random.default_rng(1)
    views = {view: 2 * rng.standard_normal((500, 3)) for view in View}
    for view in View:
        views[view][:100, 2] = np.nan  # two options
    for _ in range(20):
        params = CadeParams(*(float(x) for x in rng.uniform((0, 0, 0, 0.3), (2, 5, 1.5, 1.1))))
        s = cade.streams(views[View.FULL], views[View.CTX_Q], views[View.IMG_Q], views[View.Q_ONLY])
        assert (truth.cade_choice(views, params) == cade.decide(s, params).choice).all()


def test_simulation_and_closed_form_agree() -> None:
    h = plant("signs").habits
    p = draw_items(np.random.default_rng(2), 60_000)
    views = truth.simulate(h, p, ContextTest.T1, np.random.default_rng(3))
    for view in (View.CTX_Q, View.IMG_Q, View.FULL):
        hits = float(np.mean(views[view].argmax(axis=1) == p.gold))
        assert hits == pytest.approx(expected_shares(h, view)[0], abs=0.008)  # 4 standard errors


def test_population_reads_what_the_benchmark_holds(small_benchmark: Path) -> None:
    items = pd.read_parquet(small_benchmark / "items_mcq.parquet").sort_values(
        "item_id", ignore_index=True
    )
    p = truth.population(small_benchmark, Task.MCQ)
    assert ["ABC"[g] for g in p.gold] == items["answer"].tolist()
    says = items["polarity"].map({"higher": 2, "lower": 0}).to_numpy()
    assert (p.says[:, 2][p.present.all(axis=1)] == says[p.present.all(axis=1)]).all()
    assert p.context_share[ContextTest.T1].sum(axis=1) == pytest.approx(np.ones(len(items)))
    r = truth.population(small_benchmark, Task.REGRESSION)
    own = r.number[np.arange(len(r.gold)), r.gold]
    assert own == pytest.approx(r.answer, abs=0.051), (
        "the gold number's own first digit leads back to it, to one decimal"
    )


# -- p-values
# ----------------------------------------------------------------------


def test_p_of_a_share_is_the_exact_binomial_one() -> None:
    """Rows that are independent: the size behind the interval is the number of rows, the p that of
    the exact test."""
    hits = np.arange(300) < 110
    e = stats.share(hits, np.arange(300))
    # t(299) for the normal quantile takes off less than one in a hundred
    assert effective_size(e.value, e.low, e.high) == pytest.approx(299, abs=4)
    two_sided = 2 * binomtest(110, 300, 0.45, alternative="less").pvalue
    assert p_share(0.45, e.value, e.low, e.high) == pytest.approx(two_sided, rel=0.08)
    assert p_share(0.4, 1.0, *stats_bounds(np.ones(80))) < 1e-9
    assert p_share(1.0, 1.0, *stats_bounds(np.ones(80))) == 1.0
    assert np.isnan(p_share(0.5, 0.5, float("nan"), float("nan")))


def stats_bounds(hits: np.ndarray) -> tuple[float, float]:
    e = stats.share(hits, np.arange(len(hits)))
    return e.low, e.high


def test_p_of_a_mean_is_the_t_test() -> None:
    x = np.random.default_rng(4).normal(0.3, 1, 80)
    e = stats.mean(x, np.arange(80))
    assert p_mean(0.0, e.value, e.low, e.high, 79) == pytest.approx(
        ttest_1samp(x, 0).pvalue, rel=1e-6
    )
    assert p_mean(0.0, e.value, e.low, e.high, 79, spread=10.0) > 0.9, (
        "a process that spreads wider than the interval says"
    )
    assert p_mean(0.0, 0.0, 0.0, 0.0, 79) == 1.0
    assert p_mean(0.1, 0.0, 0.0, 0.0, 79) == 0.0
    assert np.isnan(p_mean(0.0, 0.0, float("nan"), float("nan"), 0))


def test_the_family_is_held_by_holm() -> None:
    """Four checks at 1 %: the smallest must lie below 0.01 / 4, the next below 0.01 / 3; one that
    measured nothing fails."""
    family = [check(0.0024), check(0.0034), check(0.5), check(0.9)]
    assert failed(family) == family[:1]
    family[1] = check(0.0033)
    assert failed(family) == family[:2]
    assert len(failed([check(float("nan")), check(0.5)])) == 1


# -- the instrument, whole and broken
# ----------------------------------------------------------------------


def _wrong_sign(*views: np.ndarray, **more: Any) -> cade.Streams:
    s = STREAMS(*views, **more)
    return replace(s, log_q=-s.log_q)


def _views_swapped(s: Any, items: Any, task: Task, test: Any, view: View) -> Any:
    other = {View.CTX_Q: View.IMG_Q, View.IMG_Q: View.CTX_Q}
    return VIEW_LOGITS(s, items, task, test, other.get(view, view))


def _tuned_on_all_rows(s: Any, items: pd.DataFrame, *rest: Any, **more: Any) -> Any:
    return RUN_TEST(s, items.assign(split="val"), *rest, **more)


STREAMS, VIEW_LOGITS, RUN_TEST = sdg.streams, sdg.view_logits, sdg.run_test
#: What a broken instrument does: function of the suite -> its replacement.
FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "sign": ("streams", _wrong_sign),
    "leak": ("run_test", _tuned_on_all_rows),
    "order": ("view_logits", _views_swapped),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "planted", "what"),
    [
        ("", "prior", ""),
        ("sign", "prior", "answers that the paper's equations give, MCQ at T1"),
        ("leak", "prior", "rows that CADE is tuned on, MCQ at T1"),
        ("order", "image-blind", "image use, Full minus CTX+Q at T1"),
    ],
)
def test_faults_are_caught_through_the_pipeline(
    fault: str,
    planted: str,
    what: str,
    small_benchmark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault:
        monkeypatch.setattr(sdg, *FAULTS[fault])
    results = tmp_path / "r.duckdb"
    found = pipeline.run(plant(planted), small_benchmark, results, seed=0, draws=500)
    people = {task: truth.population(small_benchmark, task) for task in Task}
    made = list(pipeline.checks(found, people, copies=20))
    assert len(made) > 60
    assert {type(v) for c in made for v in asdict(c).values()} <= {
        str,
        int,
        float,
        bool,
    }, "plain values, so that JSON takes them"
    bad = [c.what for c in failed(made)]
    assert (what in bad) if what else (bad == [])


def test_a_plant_is_what_its_words_say() -> None:
    """Closed forms of the planted models, so that no constant of theirs drifts away from its
    description."""
    assert expected_shares(plant("null").habits, View.FULL) == pytest.approx((1 / 3, 1 / 3))
    blind, unseeing = plant("image-blind").habits, plant("context-blind").habits
    assert expected_shares(blind, View.FULL) == expected_shares(blind, View.CTX_Q)
    assert expected_shares(unseeing, View.FULL) == expected_shares(unseeing, View.IMG_Q)
    assert expected_shares(plant("right").habits, View.FULL)[0] == pytest.approx(1.0, abs=1e-12)
    prior = plant("prior").habits
    assert expected_shares(prior, View.Q_ONLY)[1] == pytest.approx(1.0, abs=1e-12)
    bare = expected_shares(replace(prior, prior={}), View.IMG_Q)[0]
    assert bare > expected_shares(prior, View.FULL)[0] + 0.15, "there is something for CADE to gain"
    even = plant("even").habits
    assert (
        expected_shares(even, View.FULL)[0]
        > max(expected_shares(even, view)[0] for view in (View.CTX_Q, View.IMG_Q)) + 0.05
    )
    assert len({p.name for p in PLANTS}) == len(PLANTS)


# -- the verdict
# ----------------------------------------------------------------------


def verdict(*checks: Check) -> selfcheck.SelfcheckVerdict:
    made = [replace(c, headline=True) for c in checks]
    return selfcheck.SelfcheckVerdict(
        tuple(made),
        tuple(failed(made)),
        (plant("null"),),
        "small",
        0,
        "abc",
        True,
        120,
        40,
        55,
        12.0,
    )


def test_page_says_pass_and_fail(tmp_path: Path) -> None:
    good, bad = (
        verdict(check(0.5), check(0.6, what="something else")),
        verdict(check(0.5), check(0.0, what="something else", truth=0.9)),
    )
    assert "PASSED" in report.text(good)
    assert "FAILED something else" in report.text(bad)
    assert "planted model" in report.text(good).lower()
    told = json.loads(report.as_json(bad))
    assert [c["passed"] for c in told["checks"]] == [True, False]
    assert verdict(
        check(0.5), check(0.5, what="the same"), check(0.4, truth=0.7), check(1.0, truth=0.7)
    ).intervals() == (1, 2)
    report.write(bad, tmp_path / "page.html")
    written = (tmp_path / "page.html").read_text()
    assert "something else" in written and "http" not in written
    with pytest.raises(UsageError, match=r"\.html, \.json, \.txt"):
        report.check_name(tmp_path / "page.pdf")


def test_gate_names_what_failed() -> None:
    selfcheck.gate(verdict(check(0.5)))
    with pytest.raises(
        SelfcheckFailed, match="null: something else: planted 0.9, measured 0.5"
    ) as error:
        selfcheck.gate(verdict(check(0.5), check(0.0, what="something else", truth=0.9)))
    assert "\n" not in str(error.value)


def test_a_benchmark_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no benchmark here"):
        selfcheck.run(benchmark=tmp_path)
    few = replace(draw_items(np.random.default_rng(0), 40), split=np.full(40, "test", dtype=object))
    with pytest.raises(InputError, match="the self-check needs 60"):
        selfcheck.require_enough(tmp_path, few)


def test_noise_of_shared_prompts_is_no_expectation() -> None:
    """A Q-only prompt that items share is one draw: with noise nothing is expected of it, without
    noise everything."""
    p = draw_items(np.random.default_rng(0), 50)
    assert pipeline.probabilities(Habits(noise=1.0), p, ContextTest.T1, View.Q_ONLY) is None
    assert (
        pipeline.probabilities(
            Habits(prior={"all": (0.0, 1.0, 2.0)}), p, ContextTest.T1, View.Q_ONLY
        )
        is not None
    )
    assert pipeline.probabilities(Habits(noise=1.0), p, ContextTest.T1, View.IMG_Q) is not None
