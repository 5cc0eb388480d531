"""Studies 'calibration' and 'selective': four confidences whose gaps and risks can be added up."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.studies import calibration
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods import metrics, stats
from sdgbias.types import CadeParams
from tests.builders.analysis_run import OPEN, mcq_cell, one, run_of

SETTINGS = AnalysisSettings(bootstrap=300)


def _sure(p: float) -> list[float]:
    """A with probability p, the rest shared."""
    return list(np.log([p, (1 - p) / 2, (1 - p) / 2]))


def test_area_of_a_model_that_knows_is_smaller() -> None:
    n = 200
    confidence = np.linspace(0.4, 0.95, n)
    knows = "".join("A" if i >= n // 2 else "B" for i in range(n))
    areas = {}
    for name, gold in (("knows", knows), ("doesn't", knows[::-1])):
        cell = mcq_cell({"full": [_sure(c) for c in confidence]}, gold)
        rows = STUDIES["selective"].rows(run_of(cell), SETTINGS)
        areas[name] = one(rows, study="selective", test="T1", method="full", metric="aurc")
    # steps of ten: errors begin after half, (k - 10) / k at step k; the other way round 1 until
    # half, then 10 / k
    assert areas["knows"]["value"] == pytest.approx(sum((k - 10) / k for k in range(11, 21)) / 20)
    assert areas["doesn't"]["value"] == pytest.approx(
        (10 + sum(10 / k for k in range(11, 21))) / 20
    )
    assert (
        areas["knows"]["low"]
        < areas["knows"]["value"]
        < areas["knows"]["high"]
        < areas["doesn't"]["low"]
    )


def test_places_count_as_rows_where_every_answer_is_right() -> None:
    """Twenty places of two answers without an error: the bound is Wilson's, with t of 19 degrees of
    freedom for 20 places. The two surest answers are of one place: too few."""
    cell = mcq_cell(
        {"full": [_sure(c) for c in np.linspace(0.4, 0.95, 40)]},
        "A" * 40,
        cluster_id=[f"place-{i // 2}" for i in range(40)],
    )

    rows = STUDIES["selective"].rows(run_of(cell), SETTINGS)

    risk = rows[(rows["metric"] == "risk") & (rows["test"] == "T1") & (rows["method"] == "full")]
    whole = risk[risk["x"] == 1.0].iloc[0]
    t = 2.0930240544
    assert (whole["value"], whole["low"]) == (0.0, 0.0)
    assert whole["high"] == pytest.approx(t**2 / 20 / (1 + t**2 / 20))
    assert list(risk["clusters"]) == list(range(1, 21)) and risk["low"].isna().sum() == 4


def test_intervals_of_risks_and_their_area_are_those_of_shares() -> None:
    """The last risk is that of all answers, and of 240 answers of 8 places the interval of the area
    covers the true one; percentiles of resampled areas cover 89 %."""
    covered = 0
    sure = np.linspace(0.4, 0.95, 40)
    true = np.mean([(1 - sure[::-1][: 2 * k]).mean() for k in range(1, 21)])
    for seed in range(100):
        is_right = np.random.default_rng(seed).random(40) < sure
        places = [f"place-{i % 8}" for i in range(40)]
        gold = "".join(np.where(is_right, "A", "B"))
        cell = mcq_cell({"full": [_sure(p) for p in sure]}, gold, cluster_id=places)
        rows = STUDIES["selective"].rows(run_of(cell), SETTINGS)
        area = one(rows, test="T1", method="full", metric="aurc")
        covered += area["low"] <= true <= area["high"]
    assert covered >= 94
    risk = rows[(rows["test"] == "T1") & (rows["x"] == 1.0)].iloc[0]
    whole = stats.share(~is_right, places)
    assert (risk["low"], risk["high"]) == pytest.approx((whole.low, whole.high))
    wrong, ends = 1.0 - is_right[::-1], np.arange(2, 41, 2)
    apart = [(wrong - wrong[:end].mean()) * (np.arange(40) < end) / end for end in ends]
    wanted = stats.linearised(area["value"], 40 * np.mean(apart, axis=0), places[::-1], "share")
    assert (area["low"], area["high"]) == pytest.approx((wanted.low, wanted.high))


def test_the_interval_of_a_calibration_error_holds_it_and_what_resampled_gaps_are_off() -> None:
    n, places = 60, 12
    rng = np.random.default_rng(1)
    place = np.sort(np.append(np.arange(places), rng.integers(0, 4, n - places)))
    sure, is_right = rng.uniform(0.4, 0.95, n), rng.random(n) < 0.6
    cell = mcq_cell(
        {"full": [_sure(c) for c in sure]},
        "".join(np.where(is_right, "A", "B")),
        cluster_id=[f"place-{p:02d}" for p in place],
    )

    rows = STUDIES["calibration"].rows(run_of(cell), SETTINGS)

    bins = metrics.equal_width(sure, calibration.BINS)
    sums = np.zeros((places, calibration.BINS + 1))
    np.add.at(sums, (place, bins), sure - is_right)
    sums[:, -1] = np.bincount(place)
    gaps = sums[:, :-1].sum(axis=0) / n
    draws = stats.replicates(sums, SETTINGS.bootstrap, SETTINGS.seed)
    off = np.abs(draws[:, :-1] / draws[:, -1:] - gaps).sum(axis=1)
    reach = np.quantile(off, 0.95) * stats.widening(n**2 / (sums[:, -1] ** 2).sum())
    e, value = one(rows, test="T1", method="full", metric="ece_width"), np.abs(gaps).sum()
    wanted = (value, max(0.0, value - reach), min(1.0, value + reach))
    assert (e["value"], e["low"], e["high"]) == pytest.approx(wanted)


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_intervals_of_calibration_errors_cover_the_true_one(error: float) -> None:
    """Percentiles of resampled errors, corrected for bias, cover 0 and 24 % of these."""
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sure = rng.uniform(0.4, 0.9, 100)
        is_right = rng.random(100) < sure - error
        gold = "".join(np.where(is_right, "A", "B"))
        cell = mcq_cell({"full": [_sure(c) for c in sure]}, gold)
        rows = STUDIES["calibration"].rows(run_of(cell), SETTINGS)
        e = one(rows, test="T1", method="full", metric="ece_mass")
        assert e["low"] <= e["value"] <= e["high"]
        covered += e["low"] <= error <= e["high"]
    assert covered >= 36


def test_after_is_full_where_kept_and_the_scores_elsewhere() -> None:
    views = {"full": [_sure(0.95), _sure(0.5)], "img_q": [_sure(0.1), _sure(0.7)]}
    cell = mcq_cell(views, "AA", params=CadeParams(0.0, 0.0, 0.0, 0.9))
    found = calibration.distributions(cell, "cade")
    assert found is not None
    assert np.exp(found[0][0]) == pytest.approx([0.95, 0.025, 0.025]), "kept"
    assert np.exp(found[0][1]) == pytest.approx(
        [(0.5 + 0.7) / 2, (0.25 + 0.15) / 2, (0.25 + 0.15) / 2]
    )
    assert calibration.distributions(mcq_cell(views, "AA"), "cade") is None


def test_a_calibrated_model_has_a_small_error() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.4, 1.0, 3_000)
    gold = "".join(np.where(rng.random(3_000) < confidence, "A", "B"))
    cell = mcq_cell({"full": [_sure(c) for c in confidence]}, gold, params=OPEN)
    rows = STUDIES["calibration"].rows(run_of(cell), SETTINGS)
    for name in ("ece_width", "ece_mass"):
        e = one(rows, study="calibration", test="T1", method="full", metric=name)
        assert e["value"] < 0.03 and e["low"] <= e["value"]
    cade = one(rows, study="calibration", test="T1", method="cade", metric="ece_width")
    assert cade["value"] == pytest.approx(
        one(rows, study="calibration", test="T1", method="full", metric="ece_width")["value"]
    ), "all views agree"
