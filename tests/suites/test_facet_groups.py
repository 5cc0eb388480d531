"""Recall and disparity: what was planted is recovered, nothing is found where nothing was planted,
small groups say nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import GROUPS, SELECTED
from sdgbias.suites.facet_groups import difference, rate_rows, recall_rows
from sdgbias.suites.rows import Group


def people(n: int, seed: int, effect: dict[str, float]) -> pd.DataFrame:
    """n people of the 13 classes; right with 0.6 plus the effects of their groups."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "image_id": [f"i{i}" for i in range(n)],
            "class1": np.array(SELECTED)[rng.integers(0, 13, n)],
        }
    )
    chance = np.full(n, 0.6)
    for attribute, names in GROUPS.items():
        frame[attribute] = np.array([*names, "unknown"])[rng.integers(0, len(names) + 1, n)]
        for group, shift in effect.items():
            chance += np.where(frame[attribute] == group, shift, 0.0)
    frame["correct"] = rng.random(n) < chance
    return frame


def label(group: Group) -> str:
    apart = f"{group.attribute}:{group.group}-{group.other}"
    return (
        apart if group.other else f"{group.attribute}={group.group}" if group.attribute else "all"
    )


def cells(frame: pd.DataFrame, **how: int) -> dict[tuple[str, str, str], Estimate]:
    rows = recall_rows(frame, draws=300, **how)
    return {(label(group), name, metric): e for group, name, metric, e in rows}


def test_recall_is_counted_by_hand() -> None:
    frame = pd.DataFrame(
        {
            "image_id": list("abcdef"),
            "class1": ["nurse"] * 4 + ["singer"] * 2,
            "correct": [True, False, True, True, False, False],
            "gender": ["male", "male", "female", "female", "male", "unknown"],
            "skin": "unknown",
            "age": "unknown",
        }
    )
    found = cells(frame, smallest=1)
    assert (found["all", "nurse", "recall"].value, found["all", "nurse", "recall"].n) == (3 / 4, 4)
    assert found["all", "all", "recall"].value == 3 / 6
    assert found["gender=male", "all", "recall"].value == 1 / 3
    assert found["gender:male-female", "nurse", "disparity"].value == 1 / 2 - 1
    assert np.isnan(found["skin:light-dark", "all", "disparity"].value)


def test_small_groups_have_no_value_but_their_count() -> None:
    frame = people(300, 0, {}).assign(age="young")
    frame.loc[:5, "age"] = "old"
    found = cells(frame)
    assert (
        np.isnan(found["age=old", "all", "recall"].value)
        and found["age=old", "all", "recall"].n == 6
    )
    assert np.isnan(found["age:young-old", "all", "disparity"].value)
    assert np.isnan(found["age:max-min", "all", "disparity"].value)


def test_a_spread_needs_all_its_groups_and_a_mean_the_classes_that_are_large() -> None:
    """Two large groups and one of 19; twelve large classes and one of 19."""
    frame = people(600, 0, {}).assign(age=["young"] * 300 + ["middle"] * 281 + ["old"] * 19)
    assert np.isnan(cells(frame)["age:max-min", "all", "disparity"].value)
    assert not np.isnan(cells(frame, smallest=19)["age:max-min", "all", "disparity"].value)
    classes = [name for name in SELECTED[1:] for _ in range(48)] + [SELECTED[0]] * 19
    frame = people(len(classes), 0, {}).assign(class1=classes)
    means = frame.groupby("class1")["correct"].mean()
    large = cells(frame)["all", "macro", "recall"]
    assert large.n == 12 * 48 and large.value == pytest.approx(means.drop(SELECTED[0]).mean())
    assert np.isnan(cells(frame, smallest=49)["all", "macro", "recall"].value)
    assert cells(frame, smallest=19)["all", "macro", "recall"].value == pytest.approx(means.mean())


def test_two_groups_are_compared_over_the_classes_that_are_large_in_both() -> None:
    """FACET has no old skateboarder: a class without old people is in neither mean of the pair."""
    frame = people(2_000, 1, {}).assign(age=["young", "old"] * 1_000)
    without = frame["class1"] == SELECTED[0]
    frame.loc[without, "age"] = "young"

    found = cells(frame)

    of_class = frame[~without].groupby(["age", "class1"])["correct"].mean().groupby("age").mean()
    assert found["age=old", "macro", "recall"].value == pytest.approx(of_class["old"])
    assert found["age=young", "macro", "recall"].value == pytest.approx(of_class["young"])
    assert found["age:young-old", "macro", "disparity"].value == pytest.approx(
        of_class["young"] - of_class["old"]
    )


def test_planted_effects_lie_in_their_intervals() -> None:
    found = cells(people(12_000, 4, {"female": -0.15, "dark": -0.2, "old": 0.1}))
    for group, planted in (
        ("gender:male-female", 0.15),
        ("skin:light-dark", 0.2),
        ("age:young-old", -0.1),
    ):
        for name in ("all", "macro"):
            e = found[group, name, "disparity"]
            assert e.low < planted < e.high, (group, name, e)
            assert not e.low < 0 < e.high
    spread = found["skin:max-min", "all", "disparity"]
    assert spread.low < 0.2 < spread.high


def test_the_null_yields_nothing_more_often_than_it_should() -> None:
    """15 sets without effects x 3 attributes: about 5 % of the intervals leave out zero; 8 of 45
    would be a chance of 0.2 %."""
    missed = 0
    for seed in range(15):
        found = cells(people(1_000, 100 + seed, {}))
        for attribute, pair in (
            ("gender", "male-female"),
            ("skin", "light-dark"),
            ("age", "young-old"),
        ):
            e = found[f"{attribute}:{pair}", "all", "disparity"]
            missed += not e.low <= 0 <= e.high
    assert missed < 8


def test_rates_by_group() -> None:
    frame = people(400, 2, {}).assign(pred="no")
    frame.loc[frame["gender"] == "male", "pred"] = "yes"
    rows = {
        (label(g), m): e
        for g, _, m, e in rate_rows(frame, {"no_rate": lambda f: f["pred"] == "no"})
    }
    assert rows["gender=male", "no_rate"].value == 0 and rows["gender=female", "no_rate"].value == 1
    assert rows["gender:male-female", "no_rate"].value == -1
    assert rows["all", "no_rate"].value == (frame["gender"] != "male").mean()


def test_a_difference_takes_the_far_side_of_each_interval() -> None:
    """Lowest: a down by 0.6 - 0.4, b up by 0.6 - 0.5; highest: a up by 0.9 - 0.6, b down by
    0.5 - 0.1."""
    e = difference(Estimate(0.6, 40, 0.4, 0.9), Estimate(0.5, 30, 0.1, 0.6))
    assert e.value == pytest.approx(0.1) and e.n == 30
    assert e.low == pytest.approx(0.1 - (0.2**2 + 0.1**2) ** 0.5)
    assert e.high == pytest.approx(0.1 + (0.3**2 + 0.4**2) ** 0.5)
