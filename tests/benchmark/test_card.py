"""The dataset card of a small folder written by hand: every figure is arithmetic that a reader can
check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from sdgbias.benchmark import card
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.card.readme import SPANS, known_limits, spans
from sdgbias.benchmark.draw import PILLAR_WEIGHTS
from sdgbias.errors import InputError, StoreError
from sdgbias.types import Task
from tests.builders.card_tables import (
    HEALTH,
    HUMAN,
    NOTES,
    SERVICES,
    card_folder,
    clusters,
    images,
    mcq,
    prompts,
    put,
    regression,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return card_folder(tmp_path)


def rows(found: list[dict[str, Any]], **where: Any) -> list[dict[str, Any]]:
    return [row for row in found if all(row[k] == v for k, v in where.items())]


#: Every row of the tables of the page, by heading. KE-0 to KE-3 are of 2014, NM-0 to NM-2 of 2006;
#: KE-0 to KE-2 and NM-0, NM-1 have pictures, NM-1 without a photo.
TABLES = {
    "Questions per pillar, beside Table A": """
| mcq | Health & Nutrition | 222,900 | 44,580 | 4 | 4 | 20 | 0 |
| mcq | Basic Services & Infrastructure | 162,600 | 32,520 | 3 | 2 | 10 | 1 |
| mcq | Human Capital & Development | 114,500 | 22,900 | 2 | 0 | 0 | 2 |
| regression | Health & Nutrition | 19,427 | 19,427 | - | 1 | 1 | - |
| regression | Basic Services & Infrastructure | 16,761 | 16,761 | - | 0 | 0 | - |
| regression | Human Capital & Development | 13,812 | 13,812 | - | 1 | 1 | - |""",
    # no brackets: four places are too few for an interval
    "Answers per pillar, beside Table B": """
| Health & Nutrition | A | 27.75 | 25.00 | -2.75 | 1 | 4 |
| Health & Nutrition | B | 42.80 | 50.00 | 7.20 | 2 | 4 |
| Health & Nutrition | C | 29.45 | 25.00 | -4.45 | 1 | 4 |
| Basic Services & Infrastructure | A | 40.11 | 100.00 | 59.89 | 2 | 2 |
| Basic Services & Infrastructure | B | 39.11 | 0.00 | -39.11 | 0 | 2 |
| Basic Services & Infrastructure | C | 20.78 | 0.00 | -20.78 | 0 | 2 |
| Human Capital & Development | A | 32.03 | - | - | 0 | 0 |
| Human Capital & Development | B | 33.87 | - | - | 0 | 0 |
| Human Capital & Development | C | 34.11 | - | - | 0 | 0 |""",
    "Countries": """
| KE | Kenya | 4 | 3 | 3 | 100.00 | 3 | 4 | 1 |
| NM | Namibia | 3 | 2 | 1 | 50.00 | 2 | 2 | 1 |""",
    "What the pictures show": """
| photo, tile, nightlights | 4 | 80.00 | 5 | 1 |
| tile, nightlights | 1 | 20.00 | 1 | 1 |""",
    "Survey years": """
| 2005-2009 | 2 | 1 | 2 | 1 |
| 2010-2014 | 3 | 1 | 4 | 1 |""",
    # by split, then by split_place. val holds KE-0, NM-1 (mcq) and KE-2 (regression), test holds
    # all of these and KE-1, NM-0
    "Splits": """
| test | 4 | 1 | 5 | 2 |
| val | 2 | 1 | 3 | 2 |
| test | 4 | 1 | 3 | 1 |
| val | 2 | 1 | 2 | 1 |""",
    "What is missing": """
| asset_index | 0 | 7 | 0.00 |
| water_index | 0 | 7 | 0.00 |
| sanitation_index | 0 | 7 | 0.00 |
| under5_mort | 0 | 7 | 0.00 |
| women_edu | 0 | 7 | 0.00 |
| women_bmi | 2 | 7 | 28.57 |
| mcq | electricity | 0 | 5 | 0.00 | - | 2 | near-duplicate-item 1, rejected-in-review 1 |
| mcq | stunting | 1 | 5 | 20.00 | 4 | 4 | - |
| regression | education_access | 0 | 5 | 0.00 | - | 1 | - |
| regression | maternal_capital | 0 | 5 | 0.00 | - | 1 | - |""",
    "What was left out": """
| images | missing-photo | 2 |
| items_mcq | near-duplicate-item | 1 |
| items_mcq | no-indicator-value | 1 |
| items_mcq | rejected-in-review | 1 |""",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = card_folder(tmp_path_factory.mktemp("card"))
    card.build_card(folder)
    return (folder / "README.md").read_text()


def table_rows(page: str, heading: str) -> list[str]:
    """The rows of the tables under a heading, without their column names."""
    lines = page.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [
        line
        for line, below in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("| ") and not below.startswith("|---")
    ]


@pytest.mark.parametrize("heading", TABLES)
def test_every_figure_of_a_table_by_hand(page: str, heading: str) -> None:
    assert table_rows(page, heading) == TABLES[heading].strip().splitlines()


def test_levels_and_years_of_the_gold_values_by_hand(page: str) -> None:
    found = table_rows(page, "Indicators")

    assert found[:2] == [
        "| electricity | 2 | 0.00 | 100.00 | 0.00 | 2 | 2005-2014 | 1 |",
        "| stunting | 4 | 50.00 | 0.00 | 50.00 | 3 | 2006-2014 | 2 |",
    ]
    assert found[2:4] == [
        "| stunting | 4 | 3 | 1 | 0 | 0 | 0 | 0 |",
        "| electricity | 2 | 1 | 1 | 0 | 0 | 0 | 0 |",
    ]


def test_known_limits_and_front_matter(page: str, folder: Path) -> None:
    made = card.build_card(folder)

    for limit in (
        "- 1 of 5 clusters with a picture have no street photo",
        "3 of 5 clusters and 2 of 2 countries have questions in both val and test. By split_place"
        " it is 0 clusters and 0 countries.",
        f"{HUMAN}, mcq: 2 of the 2 requested questions couldn't be built.",
    ):
        assert limit in page
    front = yaml.safe_load(page.split("---\n")[1])
    assert front["size_categories"] == ["n<1K"]
    assert {entry["data_files"] for entry in front["configs"]} <= {p.name for p in folder.iterdir()}
    assert made["series_not_found"] == [{"series": "haq", "indicators": ["haq_index"]}]
    assert made["short"] == NOTES["mcq"]["short"]
    assert made["label_shares_percent"] == {
        HEALTH: {"A": 25.0, "B": 50.0, "C": 25.0},
        SERVICES: {"A": 100.0},
    }


def test_the_papers_counts_add_up() -> None:
    assert sum(PILLAR_WEIGHTS[Task.MCQ].values()) == 500_000
    assert sum(PILLAR_WEIGHTS[Task.REGRESSION].values()) == 50_000


def test_counts(folder: Path) -> None:
    made = card.build_card(folder)
    assert made == json.loads((folder / "benchmark.json").read_text())
    assert made["counts"] == {
        "clusters": 4 + 3,
        "images": 5,
        "image_groups": 5 - 1,
        "items_mcq": 6,
        "items_regression": 2,
        "prompts": 6 * 2 + 2 * 2,
        "clusters_used": 5,
        "countries_used": 2,
        "mcq_by_pillar": {HEALTH: 4, SERVICES: 2},
        "mcq_by_indicator": {"stunting": 4, "electricity": 2},
        "regression_by_task": {"maternal_capital": 1, "education_access": 1},
    }
    assert made["images"] == "composite"
    assert made["licence"] == "CC BY-SA 4.0"
    assert made["distinct_q_only_prompts"] == {"mcq": 2, "regression": 2}
    assert made["quarantined"] == {
        "missing-photo": 2,
        "no-indicator-value": 1,
        "near-duplicate-item": 1,
        "rejected-in-review": 1,
    }
    assert len(pd.read_parquet(folder / "quarantine.parquet")) == 2 + 3


def test_a_limit_is_one_line_whatever_a_release_calls_its_indicators(folder: Path) -> None:
    made = card.build_card(folder)
    made["levels"] = [{**made["levels"][0], "indicator": "two\nlines", "national": 100.0}]
    assert any("wholly so: two lines" in line for line in known_limits(made))


def test_how_far_the_gold_values_are_from_the_surveys(folder: Path) -> None:
    items = mcq()
    items["value_year"] = items["value_year"].astype(float)
    items.loc[items["cluster_id"] == "NM-0", "value_year"] = None
    put(folder / "items_mcq.parquet", items)
    assert card.build_card(folder)["gold_distance"] == [
        {"indicator": "stunting", "n": 4, "years_apart": {"0": 2, "2": 1}, "unknown": 1},
        {"indicator": "electricity", "n": 2, "years_apart": {"0": 1, "1": 1}, "unknown": 0},
    ]
    text = (folder / "README.md").read_text()
    use = intended_use()
    assert f"## Intended use and terms\n\n{use['summary']}\n\nFor:\n\n- {use['for'][0]}\n" in text
    assert f"- {use['terms'][-2]}\n- {use['terms'][-1]}\n" in text
    heading = "| indicator | questions | same year | 1-2 | 3-5 | 6-10 | over 10 | year unknown |"
    assert heading in text
    assert "| stunting | 4 | 2 | 1 | 0 | 0 | 0 | 1 |" in text


def test_every_distance_falls_into_one_span() -> None:
    row = {"indicator": "x", "n": 40, "years_apart": {str(y): 1 for y in range(40)}, "unknown": 2}
    told = spans(row)
    assert sum(told[name] for name, _, _ in SPANS) == 40
    assert [told[name] for name, _, _ in SPANS] == [1, 2, 3, 5, 29]


def test_sources_and_their_licences(folder: Path) -> None:
    made = card.build_card(folder)
    # 'my own table' names no known source; series.parquet says that it holds eg_elc_accs, which is
    # UNSD's
    assert {row["id"]: row["mcq"] for row in made["sources_used"]} == {
        **dict.fromkeys(
            ("sustainbench_labels", "sustainbench_tiles", "mapillary_metadata", "mapillary_imagery")
        ),
        "unsd_sdg": 2 + 2,
        "gdl_area": 2,
    }
    front = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert front["license"] == "other"  # the area database states no licence
    assert any(
        "Global Data Lab area database (none stated): 2 questions" in line
        for line in made["known_limits"]
    )
    (folder / "series.parquet").unlink()
    unknown = rows(card.build_card(folder)["sources_used"], id="my own table")
    assert [(row["licence"], row["mcq"]) for row in unknown] == [("unknown", 2)]


def test_templates_of_the_indicators_that_are_asked(folder: Path) -> None:
    quarantined = pd.DataFrame(
        [("items_mcq", f"KE-{i}|electricity", "missing-evidence", "x") for i in range(2)],
        columns=["table", "key", "rule", "detail"],
    )
    put(folder / "quarantine" / "more.parquet", quarantined)
    found = {row["indicator"]: row for row in card.build_card(folder)["templates"]}
    assert list(found) == ["stunting", "electricity", "maternal_capital", "education_access"]
    assert found["electricity"]["required"] == "tile, nightlights"
    assert (found["electricity"]["left_out"], found["stunting"]["left_out"]) == (2, 0)
    assert found["maternal_capital"]["reasoning"] in (folder / "README.md").read_text()


def test_synthetic_says_so(folder: Path) -> None:
    (folder / "origin.json").write_text('{"synthetic": true}')
    made = card.build_card(folder)
    text = (folder / "README.md").read_text()
    assert made["synthetic"] is True
    assert "nothing in it is real" in made["sources"][0]
    assert "**Synthetic" in text
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "cc0-1.0"
    assert made["licence"] == "CC0 1.0" and "CC BY-SA" not in text.split("## Licence")[1]


def test_kinds_of_images(folder: Path) -> None:
    assert card.build_card(folder)["images"] == "composite"
    put(folder / "images.parquet", images().assign(n_parts=[3, 3, 3, 2, 3]))
    assert card.build_card(folder)["images"] == "several"
    pending = [f"pending:{at:032x}" for at in range(5)]
    put(
        folder / "images.parquet", images().assign(n_parts=0, image_id=pending, image_group=pending)
    )
    made = card.build_card(folder)
    assert (made["images"], made["counts"]["images"], made["counts"]["image_groups"]) == (
        "none",
        0,
        0,
    )
    assert [row["clusters_with_image"] for row in made["by_country"]] == [0, 0]
    assert any("not evaluated" in line for line in made["known_limits"])
    assert "sustainbench_tiles" not in {row["id"] for row in made["sources_used"]}


def test_review(folder: Path) -> None:
    assert (
        "None so far" not in (card.build_card(folder), (folder / "README.md").read_text())[1]
    )  # one was left out for it
    put(
        folder / "items_mcq.parquet",
        mcq().assign(review=["accepted", "accepted", "rejected", "", "", ""]),
    )
    agreement = [{"task": "all", "n": 12, "kappa": 0.5, "kappa_low": 0.25, "kappa_high": 0.75}]
    (folder / "reviews.json").write_text(json.dumps({"agreement": agreement}))
    made = card.build_card(folder)["review"]
    assert made["questions"][0] == {"task": "mcq", "accepted": 2, "rejected": 1, "not_reviewed": 3}
    assert made["left_out"] == 1
    assert "n = 12: Cohen's kappa 0.500 [0.250, 0.750]" in (folder / "README.md").read_text()


def test_foreign_text_stays_in_its_cell(folder: Path) -> None:
    put(folder / "items_mcq.parquet", mcq().assign(pillar="x | <b>\n# y &lt;"))
    card.build_card(folder)
    text = (folder / "README.md").read_text()
    assert "| x \\| &lt;b> # y &amp;lt; |" in text
    assert "<b>" not in text


def test_an_imported_release_without_places_and_notes(folder: Path) -> None:
    bare = mcq()[["cluster_id", "indicator", "answer", "pillar", "split"]].assign(pillar="")
    put(folder / "items_mcq.parquet", bare)
    put(
        folder / "items_regression.parquet",
        regression()[["cluster_id", "indicator", "answer", "pillar"]].iloc[:0],
    )
    put(folder / "clusters.parquet", clusters()[["cluster_id"]].assign(cname="", country=""))
    put(folder / "images.parquet", images()[["cluster_id", "image_id"]])
    for name in (
        "items_notes.json",
        "series.parquet",
        "quarantine/images.parquet",
        "quarantine/items.parquet",
    ):
        (folder / name).unlink()
    (folder / "origin.json").write_text('{"synthetic": false, "release": true}')
    made = card.build_card(folder)
    assert rows(made["table_a"], task="mcq", pillar="")[0]["ours_questions"] == 6
    assert made["counts"]["countries_used"] == 0
    assert [list(row.values()) for row in made["by_country"]] == [["", "", 7, 5, 0, None, 5, 6, 0]]
    assert made["by_years"][0]["years"] == "unknown"
    assert made["splits"]["split"]["countries_on_both"] == 0
    assert made["quarantined"] == {}
    assert "imported release" in made["sources"][0]
    assert rows(made["sources_used"], id="")[0]["licence"] == "that of the release"


def everything(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / name).read_bytes()
        for name in ("benchmark.json", "README.md", "quarantine.parquet")
    }


def test_same_tables_same_bytes(folder: Path) -> None:
    card.build_card(folder)
    first = everything(folder)
    card.build_card(folder)
    assert everything(folder) == first
    assert not list(folder.glob(".*"))


def test_the_id_does_not_see_how_a_table_is_packed(folder: Path) -> None:
    before = card.benchmark_id(folder)
    table = prompts()
    put(
        folder / "prompts.parquet",
        table[table.columns[::-1]].astype({"text": "category"}),
        row_group_size=3,
        compression="none",
    )
    put(
        folder / "clusters.parquet",
        clusters().astype({"year": "int64"}),
        use_dictionary=False,
        row_group_size=2,
    )
    put(folder / "images.parquet", images().assign(shard="KE-017"))
    assert card.benchmark_id(folder) == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("clusters", lambda t: t.assign(women_edu=1.6)),
        ("clusters", lambda t: t.assign(women_bmi=t["women_bmi"].fillna(0.0))),
        ("images", lambda t: t.assign(image_id=t["image_id"].replace(t["image_id"][0], "f" * 64))),
        ("items_mcq", lambda t: t.assign(answer="A")),
        ("items_regression", lambda t: t.iloc[::-1]),
        ("prompts", lambda t: t.assign(text=["", *t["text"][1:]])),
        ("prompts", lambda t: t.iloc[:-1]),
        ("prompts", lambda t: t.rename(columns={"candidates": "letters"})),
    ],
)
def test_the_id_sees_what_a_table_says(folder: Path, name: str, change: Any) -> None:
    before = card.benchmark_id(folder)
    put(folder / f"{name}.parquet", change(pd.read_parquet(folder / f"{name}.parquet")))
    assert card.benchmark_id(folder) != before


def test_texts_do_not_run_into_each_other(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", pd.DataFrame({"x": ["ab", "c"]}))
    put(tmp_path / "b.parquet", pd.DataFrame({"x": ["a", "bc"]}))
    assert card.content_digest(tmp_path / "a.parquet") != card.content_digest(
        tmp_path / "b.parquet"
    )


def test_bad_folders_give_one_line(folder: Path) -> None:
    def said(wants: str) -> None:
        with pytest.raises(InputError) as error:
            card.build_card(folder)
        assert wants in str(error.value)
        assert "sdgbias" in str(error.value)
        assert "\n" not in str(error.value)

    (folder / "items_notes.json").write_text("{")
    said("items_notes.json: can't be read")
    (folder / "items_notes.json").write_text("{}")
    (folder / "prompts.parquet").write_bytes(b"PAR1 half a file")
    said("prompts.parquet: can't be read")
    (folder / "prompts.parquet").unlink()
    said("sdgbias build --stage prompts")
    put(folder / "prompts.parquet", prompts().drop(columns="test"))
    said("prompts.parquet: missing column(s) test")
    put(folder / "images.parquet", images().drop(columns="image_id"))
    said("images.parquet: missing column(s) image_id")
    (folder / "origin.json").unlink()
    said("origin.json: can't be read")


def test_a_folder_that_can_not_be_written(folder: Path) -> None:
    (folder / ".README.md.part").mkdir()
    with pytest.raises(StoreError, match=r"README\.md"):
        card.build_card(folder)
    assert not (folder / "benchmark.json").exists()
