"""The fairness paper's printed values as transcribed, checked by the arithmetic that holds between
them; and what that arithmetic shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.analysis.paper import printed as paper
from sdgbias.raw.facet import SELECTED
from sdgbias.suites.facet_groups import PAIRS

TASKS = ("direct", "choice")
#: How many pictures each column of Table 2 pools. Not printed: the only numbers up to 4,500, but
#: for their multiples, that fit.
SIZES = {
    "gender=male": 3_821,
    "gender=female": 1_660,
    "skin=light": 2_402,
    "skin=medium": 1_641,
    "skin=dark": 325,
    "age=young": 1_286,
    "age=middle": 3_145,
    "age=old": 468,
}
MODELS = tuple(r["model"] for r in paper.rows("fairness/models"))
DIFFERENCE = {attribute: f"{attribute}:{one}-{other}" for attribute, (one, other) in PAIRS.items()}
ITEMS = ("table_1", "table_2", "table_3", "classes")


def pooled(model: str, task: str, pillar: str) -> float | None:
    found = paper.find("fairness/table_2", model=model, task=task, pillar=pillar)
    assert found is not None, (model, task, pillar)
    return found.value


def known(model: str, task: str, pillar: str) -> float:
    value = pooled(model, task, pillar)
    assert value is not None
    return value


def fits(value: float, n: int) -> bool:
    """Whether |value|, printed with four digits, can be k/n."""
    nearest = round(abs(value) * n)
    return any(round(k / n, 4) == round(abs(value), 4) for k in (nearest - 1, nearest, nearest + 1))


# -- the files
# ----------------------------------------------------------------------


@pytest.mark.parametrize("item", ITEMS)
def test_lines_name_their_item_and_values_are_the_printed_digits(item: str) -> None:
    about = "item row column task model test method pillar indicator metric value printed"
    columns = about.split()
    for line in paper.rows(f"fairness/{item}"):
        assert list(line) == columns and line["item"] == item and line["printed"] and line["metric"]
        assert (
            line["model"] in {"", *MODELS}
            and line["indicator"] in {"", "all", *SELECTED}
            and line["task"] in {"", *TASKS}
        )
        if line["value"]:
            assert float(line["value"]) == float(line["printed"].split()[0].replace(",", ""))
        else:
            assert line["printed"] == "N/A" or item == "table_3"


def test_names_lead_to_registry_entries_and_to_the_printed_rows() -> None:
    registry = Path(__file__).resolve().parents[2] / "registry" / "models"
    lines = paper.rows("fairness/models")
    assert all((registry / f"{r['registry']}.yaml").is_file() for r in lines)
    assert [r["registry"] for r in lines] == [r["model"] for r in lines]
    printed = {spelling: r["model"] for r in lines for spelling in r["printed"].split("; ")}
    assert (
        printed["Gimini 1.5 Pro"] == "gemini-1.5-pro"
        and printed["ShareGPT4V(13B)"] == printed["ShareGPT4V (13B)"]
    )
    for item in ("table_2", "classes"):
        assert all(printed[r["row"]] == r["model"] for r in paper.rows(f"fairness/{item}"))


# -- what holds
# ----------------------------------------------------------------------


def test_every_disparity_is_the_difference_of_two_recalls() -> None:
    """54 of 54 to 0.0001; the 19 that are off by it were taken before rounding."""
    off = []
    for attribute, (one, other) in PAIRS.items():
        for model in MODELS:
            for task in TASKS:
                printed = pooled(model, task, DIFFERENCE[attribute])
                if printed is not None:
                    exact = known(model, task, f"{attribute}={one}") - known(
                        model, task, f"{attribute}={other}"
                    )
                    off.append(round(1e4 * (printed - exact)))
    assert len(off) == 3 * (10 + 8) and set(off) <= {-1, 0, 1}
    assert (off.count(0), len(off) - off.count(0)) == (35, 19)
    assert known("gpt-4o", "direct", "gender=male") - known(
        "gpt-4o", "direct", "gender=female"
    ) == pytest.approx(0.7124 - 0.7386)
    assert pooled("gpt-4o", "choice", "gender:male-female") == 0.1086 != round(0.8055 - 0.6970, 4)


@pytest.mark.parametrize(("group", "n"), SIZES.items())
def test_every_recall_of_a_group_is_counted_over_the_same_pictures(group: str, n: int) -> None:
    """18 recalls of a column are k/n for one n: the 13 classes are pooled (micro), all models and
    prompts saw the same people, and a mean of p2 and p3 would lie on the twice as fine grid."""
    values = [
        v for model in MODELS for task in TASKS if (v := pooled(model, task, group)) is not None
    ]
    assert len(values) == 18
    possible = [m for m in range(1, 4_500) if all(fits(v, m) for v in values)]
    assert possible[0] == n and all(m % n == 0 for m in possible)


# -- what doesn't
# ----------------------------------------------------------------------
