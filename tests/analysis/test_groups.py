"""Study 'groups': accuracy and lean by place, disparities and what CADE does to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sdgbias.analysis.rows import KEY, AnalysisSettings
from sdgbias.analysis.studies import groups
from sdgbias.analysis.studies.table import STUDIES
from sdgbias.methods import stats
from sdgbias.types import View
from tests.builders.analysis_run import OPEN, mcq_cell, one, run_of

A, B = [3.0, 0.0, 0.0], [0.0, 9.0, 0.0]
SETTINGS = AnalysisSettings(bootstrap=400)


def _run(n: int = 40):  # type: ignore[no-untyped-def]
    """Full says A everywhere: right in all n urban places and in half of the n rural ones. The
    picture turns the other half to B, which is right there, so that CADE is right everywhere but in
    the places without a name, which are always wrong."""
    cells = [
        mcq_cell(
            {"full": [A] * (2 * n + 1), "img_q": [A] * n + [A, B] * (n // 2) + [A]},
            "A" * n + "AB" * (n // 2) + "C",
            test=test,
            params=OPEN,
            urban=["U"] * n + ["R"] * n + [""],
            wealth=["richest"] * n + ["poorest"] * n + ["richest"],
            country=["Peru"] * n + ["Nepal"] * (n + 1),
            photo=["with photo"] * n + ["without photo"] * n + [""],
        )
        for test in ("T1", "T2")
    ]
    return run_of(*cells)


#: attribute, group, method, metric: value and n.
BY_GROUP = [
    ("urban", "rural", "full", "accuracy", 20 / 40, 40),
    ("urban", "rural", "cade", "accuracy", 1.0, 40),
    ("urban", "rural", "full", "share_pessimistic", 1.0, 40),  # A, higher is better
    ("urban x wealth", "rural x poorest", "cade", "share_pessimistic", 0.5, 40),
    ("photo", "without photo", "full", "accuracy", 20 / 40, 40),
]


def test_accuracy_and_lean_by_group() -> None:
    rows = STUDIES["groups"].rows(_run(), SETTINGS)
    for attribute, group, method, metric, value, n in BY_GROUP:
        at = {"attribute": attribute, "group": group, "method": method, "metric": metric}
        found = one(rows, test="T1", **at)
        assert (found["value"], found["n"]) == (value, n), at
    # countries are only pooled; the unnamed place has one
    nepal = one(rows, attribute="country", group="Nepal", method="full", metric="accuracy")
    assert (nepal["test"], nepal["n"]) == ("all", 2 * 41)
    assert set(rows.loc[rows["attribute"] == "country", "test"]) == {"all"}
    for attribute, groups_shown in (
        ("urban", {"urban", "rural"}),
        ("photo", {"with photo", "without photo"}),
    ):
        assert set(rows.loc[rows["attribute"] == attribute, "group"]) == groups_shown
    assert not rows.duplicated(list(KEY)).any()


@pytest.mark.parametrize(
    ("by", "group", "other"),
    [("urban", "urban", "rural"), ("photo", "with photo", "without photo")],
)
def test_the_gap_of_one_half_between_two_groups_is_closed_by_cade(
    by: str, group: str, other: str
) -> None:
    rows = STUDIES["groups"].rows(_run(), SETTINGS)
    apart = {"test": "T1", "attribute": by, "group": group, "other": other}
    full = one(rows, method="full", metric="disparity", **apart)
    change = one(rows, method="cade", metric="disparity_change", **apart)
    assert full["value"] == pytest.approx(1 - 0.5) and full["low"] > 0.2
    assert change["value"] == pytest.approx(0 - 0.5) and change["high"] < 0


def test_answers_without_a_picture_are_sampled_by_prompt_alone() -> None:
    """Eighty prompts, two at each of forty places, which are answered alike."""
    number = np.arange(80)
    is_right = (number // 2) % 3 == 0
    cell = mcq_cell(
        {"full": [A if right else B for right in is_right]},
        "A" * 80,
        question=[f"q{i}" for i in number],
        cluster_id=[f"place-{i // 2}" for i in number],
    )

    rows = STUDIES["groups"].rows(run_of(cell), SETTINGS)

    where = {"attribute": "urban", "group": "urban", "metric": "accuracy"}
    row = one(rows, test="T1", method="q_only", **where)
    expected = stats.share(is_right.astype(float), number)
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_a_row_of_an_unknown_group_is_in_no_intersection() -> None:
    items = mcq_cell(
        {"full": [A] * 4},
        "AAAA",
        urban=["U", "U", "R", ""],
        wealth=["middle", "", "poorest", "middle"],
    ).items
    level = groups.level_of(items, "urban x wealth")
    assert [c["group"] for c in level.columns] == ["rural x poorest", "urban x middle"] and list(
        level.code
    ) == [1, -1, 0, -1]


def test_of_a_model_without_pictures_the_view_with_most_evidence_is_compared() -> None:
    cell = next(iter(_run().cells.values()))
    unseen = {view: np.full((81, 3), np.nan) for view in View if view.has_image}

    rows = STUDIES["groups"].rows(run_of(replace(cell, logits={**cell.logits, **unseen})), SETTINGS)

    assert set(rows.loc[rows["metric"] == "disparity", "method"]) == {"ctx_q"}
