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
    assert {"table": "images", "rule": "missing-photo", "n": 2} in made["quarantined_by_table"]
    assert len(pd.read_parquet(folder / "quarantine.parquet")) == 2 + 3


def test_by_country_and_years(folder: Path) -> None:
    made = card.build_card(folder)
    kenya = {
        "cname": "KE",
        "country": "Kenya",
        "clusters": 4,
        "clusters_with_image": 3,
        "clusters_with_photo": 3,
        "photo_percent": 100.0,
        "clusters_used": 3,
        "mcq": 4,
        "regression": 1,
    }
    namibia = {
        "cname": "NM",
        "country": "Namibia",
        "clusters": 3,
        "clusters_with_image": 2,
        "clusters_with_photo": 1,
        "photo_percent": 50.0,
        "clusters_used": 2,
        "mcq": 2,
        "regression": 1,
    }
    assert made["by_country"] == [kenya, namibia]
    assert made["by_modalities"] == [
        {
            "modalities": "photo, tile, nightlights",
            "percent": 80.0,
            "mcq": 5,
            "regression": 1,
            "clusters": 4,
        },
        {
            "modalities": "tile, nightlights",
            "percent": 20.0,
            "mcq": 1,
            "regression": 1,
            "clusters": 1,
        },
    ]
    assert any("1 of 5 clusters with a picture have no" in line for line in made["known_limits"])
    assert made["by_years"] == [
        {"years": "2005-2009", "mcq": 2, "regression": 1, "clusters": 2, "countries": 1},
        {"years": "2010-2014", "mcq": 4, "regression": 1, "clusters": 3, "countries": 1},
    ]


def test_splits_say_what_stands_on_both_sides(folder: Path) -> None:
    made = card.build_card(folder)["splits"]
    # val holds KE-0, NM-1 (mcq) and KE-2 (regression), test holds all of these and KE-1, NM-0
    assert (made["split"]["clusters_on_both"], made["split"]["countries_on_both"]) == (3, 2)
    assert (made["split_place"]["clusters_on_both"], made["split_place"]["countries_on_both"]) == (
        0,
        0,
    )
    assert made["split"]["sides"] == [
        {"side": "test", "mcq": 4, "regression": 1, "clusters": 5, "countries": 2},
        {"side": "val", "mcq": 2, "regression": 1, "clusters": 3, "countries": 2},
    ]
    assert made["split_place"]["sides"][1] == {
        "side": "val",
        "mcq": 2,
        "regression": 1,
        "clusters": 2,
        "countries": 1,
    }


def test_table_a(folder: Path) -> None:
    made = card.build_card(folder)
    health, services, human = rows(made["table_a"], task="mcq")
    assert health == {
        "task": "mcq",
        "pillar": HEALTH,
        "paper": 222_900,
        "paper_questions": 222_900 // 5,
        "asked": 4,
        "ours_questions": 4,
        "ours": 4 * 5,
        "missing": 0,
    }
    assert (services["missing"], human["missing"], human["paper_questions"]) == (
        3 - 2,
        2 - 0,
        22_900,
    )
    assert [row["paper"] for row in rows(made["table_a"], task="regression")] == [
        19_427,
        16_761,
        13_812,
    ]
    assert [row["asked"] for row in rows(made["table_a"], task="regression")] == [None] * 3
    assert sum(PILLAR_WEIGHTS[Task.MCQ].values()) == 500_000
    assert sum(PILLAR_WEIGHTS[Task.REGRESSION].values()) == 50_000
    assert made["short"] == NOTES["mcq"]["short"]
    assert (
        f"{HUMAN}, mcq: 2 of the 2 requested questions couldn't be built." in made["known_limits"]
    )


def test_table_b(folder: Path) -> None:
    made = card.build_card(folder)
    [row] = rows(made["table_b"], pillar=HEALTH, answer="B")
    assert (row["paper"], row["share"], row["count"], row["n"]) == (42.80, 50.0, 2, 4)
    assert (row["share_low"], row["share_high"]) == (None, None)  # four places: too few
    assert row["gap"] == pytest.approx(7.20)
    assert made["label_shares_percent"] == {
        HEALTH: {"A": 25.0, "B": 50.0, "C": 25.0},
        SERVICES: {"A": 100.0},
    }
    [empty] = rows(made["table_b"], pillar=HUMAN, answer="A")
    assert (empty["share"], empty["share_low"], empty["n"]) == (None, None, 0)


def test_a_limit_is_one_line_whatever_a_release_calls_its_indicators(folder: Path) -> None:
    made = card.build_card(folder)
    made["levels"] = [{**made["levels"][0], "indicator": "two\nlines", "national": 100.0}]
    assert any("wholly so: two lines" in line for line in known_limits(made))


def test_missing(folder: Path) -> None:
    made = card.build_card(folder)
    assert rows(made["missing_labels"], label="women_bmi") == [
        {"label": "women_bmi", "missing": 2, "n": 7, "percent": round(100 * 2 / 7, 2)}
    ]
    assert rows(made["missing_labels"], label="women_edu")[0]["missing"] == 0
    [stunting] = rows(made["missing_values"], indicator="stunting")
    assert stunting == {
        "task": "mcq",
        "indicator": "stunting",
        "clusters": 5,
        "missing": 1,
        "percent": 100 * 1 / 5,
        "usable": 2 + 0 + 2,
        "questions": 4,
        "other_rules": {},
    }
    [electricity] = rows(made["missing_values"], indicator="electricity")
    assert electricity["other_rules"] == {"near-duplicate-item": 1, "rejected-in-review": 1}
    assert made["series_not_found"] == [{"series": "haq", "indicators": ["haq_index"]}]


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


def test_levels(folder: Path) -> None:
    [electricity, stunting] = card.build_card(folder)["levels"]
    assert stunting == {
        "indicator": "stunting",
        "n": 4,
        "subnational": 100 * 2 / 4,
        "urban-rural": 0.0,
        "national": 100 * 2 / 4,
        "distinct_values": 3,
        "value_years": "2006-2014",
        "largest_gap": 2014 - 2012,
    }
    assert (electricity["urban-rural"], electricity["largest_gap"]) == (100.0, 2006 - 2005)


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


def test_the_page_tells_whose_numbers(folder: Path) -> None:
    card.build_card(folder)
    text = (folder / "README.md").read_text()
    assert "| mcq | Health & Nutrition | 222,900 | 44,580 | 4 | 4 | 20 | 0 |" in text
    assert "paper %" in text
    assert "3 of 5 clusters and 2 of 2 countries have questions in both val and test" in text
    assert "| KE | Kenya | 4 | 3 | 3 | 100.00 | 3 | 4 | 1 |" in text
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["size_categories"] == ["n<1K"]
    assert {entry["data_files"] for entry in front["configs"]} <= {
        path.name for path in folder.iterdir()
    }


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
    assert made["by_country"] == [
        {
            "cname": "",
            "country": "",
            "clusters": 7,
            "clusters_with_image": 5,
            "clusters_with_photo": 0,
            "photo_percent": None,
            "clusters_used": 5,
            "mcq": 6,
            "regression": 0,
        }
    ]
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
