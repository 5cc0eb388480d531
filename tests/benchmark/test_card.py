"""The dataset card of a small folder written by hand: every figure is arithmetic that a reader can
check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sdgbias.benchmark import card
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.card.readme import SPANS, known_limits, spans
from sdgbias.raw.clusters import LABELS
from sdgbias.types import PILLARS, QUARANTINE_COLUMNS
from tests.builders.refusals import Refusal

HEALTH, SERVICES, HUMAN = PILLARS
#: code, name, survey year, clusters
COUNTRIES = (("KE", "Kenya", 2014, 4), ("NM", "Namibia", 2006, 3))


def clusters() -> pd.DataFrame:
    places = [(f"{c}-{at}", c, name, year) for c, name, year, n in COUNTRIES for at in range(n)]
    frame = pd.DataFrame(places, columns=["cluster_id", "cname", "country", "year"])
    frame = frame.astype({"year": "int32"}).assign(**dict.fromkeys(LABELS, 1.5))
    frame.loc[[0, 1], "women_bmi"] = None
    return frame


def images() -> pd.DataFrame:
    """Five of the seven clusters; KE-0 and KE-1 show nearly the same."""
    ids = [f"{name:0>64}" for name in "abcde"]
    columns = {"image_id": ids, "image_group": [ids[0], *ids[:1], *ids[2:]], "n_parts": 1}
    shown = ["photo, tile, nightlights"] * 4 + ["tile, nightlights"]
    used = ["KE-0", "KE-1", "KE-2", "NM-0", "NM-1"]
    return pd.DataFrame({"cluster_id": used, **columns, "modalities": shown, "shard": "KE-000"})


QUESTION = ["cluster_id", "pillar", "indicator", "answer", "split"]
GOLD = ["value", "value_year", "source", "level"]
UNSD, GDL, OWN = "unsd_sdg SH_STA_STUNT", "gdl_area stunting", "my own table"


def mcq() -> pd.DataFrame:
    """Four health questions (A B B C), two on services (A A), none on human capital."""
    questions = [
        ("KE-0", HEALTH, "stunting", "A", "val", 10.0, 2014, UNSD, "national"),
        ("KE-1", HEALTH, "stunting", "B", "test", 25.0, 2014, GDL, "subnational"),
        ("KE-2", HEALTH, "stunting", "B", "test", 25.0, 2012, GDL, "subnational"),
        ("NM-0", HEALTH, "stunting", "C", "test", 35.0, 2006, UNSD, "national"),
        ("KE-0", SERVICES, "electricity", "A", "test", 20.0, 2014, OWN, "urban-rural"),
        ("NM-1", SERVICES, "electricity", "A", "val", 30.0, 2005, OWN, "urban-rural"),
    ]
    return placed(pd.DataFrame(questions, columns=[*QUESTION, *GOLD]))


def regression() -> pd.DataFrame:
    questions = [
        ("KE-2", HEALTH, "maternal_capital", 55.0, "val"),
        ("NM-1", HUMAN, "education_access", 7.0, "test"),
    ]
    return placed(pd.DataFrame(questions, columns=QUESTION)).assign(target="x")


def placed(items: pd.DataFrame) -> pd.DataFrame:
    place = clusters()[["cluster_id", "cname", "country", "year"]]
    items = items.merge(place, on="cluster_id").assign(review="", item_id=range(len(items)))
    shown = images().set_index("cluster_id")["modalities"]
    items["modalities"] = items["cluster_id"].map(shown)
    return items.assign(split_place=items["cname"].map({"KE": "test", "NM": "val"}))


def prompts() -> pd.DataFrame:
    """T1 texts all differ; T5 texts are one per indicator or regression task."""
    parts = [
        items[["item_id"]].assign(
            task=task,
            test=test,
            text=items["indicator"] + ("" if test == "T5" else items["cluster_id"]),
            image_id="",
            candidates="ABC",
        )
        for task, items, tests in (("mcq", mcq(), "T1 T5"), ("regression", regression(), "T2 T5"))
        for test in tests.split()
    ]
    return pd.concat(parts, ignore_index=True)


NOTES: dict[str, Any] = {
    "clusters": 7,
    "clusters_with_image": 5,
    "mcq": {
        "pillar_quotas": {HEALTH: 4, SERVICES: 3, HUMAN: 2},
        "short": ["Human Capital & Development: wanted 2, the data gives 0"],
    },
    "regression": {"pillar_quotas": None, "short": []},
    "coverage": {"stunting": {"subnational": 2, "urban-rural": 0, "national": 2}},
    "series_not_found": ["haq"],
}


def put(path: Path, frame: pd.DataFrame, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, **options)


def quarantine(*rows: tuple[str, str, str, str]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=QUARANTINE_COLUMNS)


def card_folder(path: Path) -> Path:
    """The tables, what was left out and the notes, as the stages of a build leave them."""
    series = pd.DataFrame({"series": ["eg_elc_accs"] * 2, "source": [OWN] * 2})
    tables = {"clusters": clusters(), "images": images(), "prompts": prompts(), "series": series}
    tables |= {"items_mcq": mcq(), "items_regression": regression()}
    tables["quarantine/images"] = quarantine(
        ("images", "KE-3", "missing-photo", "none"), ("images", "NM-2", "missing-photo", "none")
    )
    tables["quarantine/items"] = quarantine(
        ("items_mcq", "NM-1|stunting", "no-indicator-value", "none"),
        ("items_mcq", "KE-1|electricity", "near-duplicate-item", "as KE-0"),
        ("items_mcq", "KE-2|electricity", "rejected-in-review", "item 9"),
    )
    for name, frame in tables.items():
        put(path / f"{name}.parquet", frame)
    (path / "items_notes.json").write_text(json.dumps(NOTES))
    (path / "origin.json").write_text('{"synthetic": false}')
    return path


COUNTED = Path(__file__).with_name("card.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return card_folder(tmp_path)


def rows(found: list[dict[str, Any]], **where: Any) -> list[dict[str, Any]]:
    return [row for row in found if all(row[k] == v for k, v in where.items())]


def test_every_figure_of_the_page_is_that_of_the_page_counted_by_hand(
    folder: Path, request: pytest.FixtureRequest
) -> None:
    """KE-0 to KE-3 are of 2014, NM-0 to NM-2 of 2006; KE-0 to KE-2 and NM-0, NM-1 have pictures,
    NM-1 without a photo. val holds KE-0, NM-1 (mcq) and KE-2 (regression), test holds all of these
    and KE-1, NM-0. Four places are too few for an interval."""
    card.build_card(folder)

    page = (folder / "README.md").read_text("utf-8")
    if request.config.getoption("--write-golden"):
        COUNTED.write_text(page, "utf-8")
    counted = COUNTED.read_text("utf-8").splitlines()
    assert page.splitlines() == counted, "another page (--write-golden, and count again)"
    front = yaml.safe_load(page.split("---\n")[1])
    assert {entry["data_files"] for entry in front["configs"]} <= {p.name for p in folder.iterdir()}


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
    assert made["distinct_q_only_prompts"] == {"mcq": 2, "regression": 2}
    assert made["series_not_found"] == [{"series": "haq", "indicators": ["haq_index"]}]
    assert made["short"] == NOTES["mcq"]["short"]
    assert made["label_shares_percent"] == {
        HEALTH: {"A": 25.0, "B": 50.0, "C": 25.0},
        SERVICES: {"A": 100.0},
    }
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
    assert "| stunting | 4 | 2 | 1 | 0 | 0 | 0 | 1 |" in (folder / "README.md").read_text()
    row = {"indicator": "x", "n": 40, "years_apart": {str(y): 1 for y in range(40)}, "unknown": 2}
    assert [spans(row)[name] for name, _, _ in SPANS] == [1, 2, 3, 5, 29]


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
    lacking = "missing-evidence", "x"
    quarantined = quarantine(*(("items_mcq", f"KE-{i}|electricity", *lacking) for i in range(2)))
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
    unknown = {"cname": "", "country": "", "year": 0, "split_place": "", "modalities": ""}
    gold = {"value": float("nan"), "value_year": 0, "source": "", "level": ""}
    put(folder / "items_mcq.parquet", mcq().assign(**unknown, **gold, pillar=""))
    put(folder / "items_regression.parquet", regression().iloc[:0])
    put(folder / "clusters.parquet", clusters().assign(cname="", country=""))
    put(folder / "images.parquet", images().assign(modalities=""))
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


def test_a_folder_above_that_names_a_column_is_only_a_folder(tmp_path: Path) -> None:
    places = [tmp_path / "plain", tmp_path / "country=XX" / "split=val" / "rule=none"]
    written = []
    for place in places:
        place.mkdir(parents=True)
        written.append(card.build_card(card_folder(place)))
    assert written[0] == written[1]


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


def without(name: str, column: str) -> Callable[[Path], object]:
    return lambda folder: put(
        folder / f"{name}.parquet",
        pd.read_parquet(folder / f"{name}.parquet").drop(columns=column),
    )


WRONG: dict[str, Callable[[Path], object]] = {
    "broken notes": lambda folder: (folder / "items_notes.json").write_text("{"),
    "half a table": lambda folder: (folder / "prompts.parquet").write_bytes(b"PAR1 half a file"),
    "no prompts": lambda folder: (folder / "prompts.parquet").unlink(),
    "prompts without tests": without("prompts", "test"),
    "images without ids": without("images", "image_id"),
    "no origin": lambda folder: (folder / "origin.json").unlink(),
    "a folder in the way": lambda folder: (folder / ".README.md.part").mkdir(),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_folder_without_a_card_is_refused(wrong: str, folder: Path, refusal: Refusal) -> None:
    WRONG[wrong](folder)
    with refusal():
        card.build_card(folder)
    assert not (folder / "benchmark.json").exists()


def test_the_intended_use_says_whose_terms_hold_and_the_readme_repeats_it() -> None:
    use = intended_use()
    points = " ".join([use["summary"], *use["for"], *use["not_for"], *use["terms"]])
    for words in ("non-commercial research", "high-stakes", "ranking places", "DHS", "Mapillary"):
        assert words in " ".join(points.split())
    readme = Path(__file__).resolve().parents[2].joinpath("README.md").read_text("utf-8")
    assert " ".join(use["summary"].split()) in " ".join(readme.split())
