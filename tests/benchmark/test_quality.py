"""The gate over a benchmark folder, and the sift that stages of the build call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark import quality
from tests.builders.quality import (
    SUITES,
    Of,
    Plant,
    Put,
    Tables,
    drop_column,
    each_of,
    edit,
    only,
    save,
)
from tests.builders.refusals import Refusal


def quality_of(folder: Path) -> dict[str, dict[str, dict[str, object]]]:
    return dict(json.loads((folder / "quality.json").read_text(encoding="utf-8")))


# -- sift


def test_a_sift_takes_rows_out_and_says_which(tables: Tables) -> None:
    Put("series", "iso3", "WLD", row=2)(tables)
    Put("series", "value", 101.0, row=4)(tables)

    kept, lost = quality.sift("series", tables["series"], suites=SUITES)

    assert kept.index.tolist() == [i for i in range(len(tables["series"])) if i not in (2, 4)]
    assert list(lost.columns) == ["table", "key", "rule", "detail"]
    assert {"series-country-known", "value-in-range"} <= set(lost["rule"])
    again, none = quality.sift("series", kept, suites=SUITES)
    pd.testing.assert_frame_equal(again, kept)
    assert none.empty and list(none.columns) == list(lost.columns)


def test_a_sift_stops_at_a_gate(tables: Tables, refusal: Refusal) -> None:
    Put("series", "source", None)(tables)

    with refusal():
        quality.sift("series", tables["series"], suites=SUITES)


def test_a_row_that_leaves_breaks_no_gate(tables: Tables) -> None:
    """The unknown country is out before its lack of series could stop the build."""
    n = len(tables["clusters"])
    Put("clusters", "iso3", "ZZZ")(tables)

    given = {"series": tables["series"]}
    kept, lost = quality.sift("clusters", tables["clusters"], given, SUITES)

    assert lost["rule"].tolist() == ["country-known"]
    assert len(kept) == n - 1


def test_a_sift_judges_what_is_at_hand(tables: Tables) -> None:
    given = {
        "clusters": tables["clusters"],
        "images": tables["images"][["cluster_id", "image_id", "image_group"]],
    }
    for table in ("items_mcq", "items_regression", "images"):
        kept, lost = quality.sift(table, tables[table], given, SUITES)
        assert kept is tables[table] and lost.empty
    by_place = tables["items_mcq"].assign(split=tables["items_mcq"]["split_place"])
    assert quality.sift("items_mcq", by_place, given, SUITES, split="place")[0] is by_place


# -- gate


def test_a_passed_gate_holds_until_a_table_or_a_rule_changes(
    passed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(passed, tmp_path / "b"))
    rules = Path(shutil.copytree(SUITES, tmp_path / "rules"))
    assert quality.has_passed(folder, rules)
    for path in (folder / "prompts.parquet", rules / "prompts.sql"):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert not quality.has_passed(folder, rules)
        path.write_bytes(before)
    assert quality.has_passed(folder, rules)
    assert not quality.has_passed(folder, tmp_path / "nowhere")

    first = (folder / "quality.json").read_bytes()
    (folder / "quality.json").unlink()
    assert not quality.has_passed(folder, rules)
    report = quality.run_gate(folder, SUITES)

    assert report.path.read_bytes() == first, "same inputs, same bytes"
    assert capfd.readouterr() == ("", ""), "no progress bars, no logging"
    assert set(report.counts) == set(quality.TABLES) and report.warnings == []
    assert all(count == 0 for counts in report.counts.values() for count in counts.values())
    written = json.loads(first)
    assert (written["passed"], written["split"]) == (True, "id")
    assert written["tables"]["items_mcq"]["skipped"] == {"split-by-place": "the split is by id"}


#: What is wrong with a benchmark: its tables, or files of its folder; the rules that are asked.
Damage = Callable[[Path], object]
WRONG: dict[str, tuple[Plant | None, Damage | None, tuple[str, ...]]] = {
    "a rule of a gate": (
        edit("prompts", {"test": "T5"}, "text", lambda s: s.str.replace("?", " ?")),
        None,
        ("tests-differ-in-context-only",),
    ),
    "a row for quarantine": (
        Put("items_mcq", "option_c", Of(0, column="option_a")),
        None,
        ("options-distinct",),
    ),
    "a picture of other bytes": (
        Put("pictures", "parts", [b"\x89PNG"]),
        None,
        ("image-id-is-sha256", "image-is-whole"),
    ),
    "a split by place that is by id": (
        None,
        lambda folder: (folder / "items_notes.json").write_text('{"split": "place"}'),
        ("split-by-id", "split-by-place"),
    ),
    "an unknown split": (
        None,
        lambda folder: (folder / "items_notes.json").write_text('{"split": "thumb"}'),
        (),
    ),
    "broken notes": (None, lambda folder: (folder / "items_notes.json").write_text("{"), ()),
    "a broken table": (None, lambda f: (f / "prompts.parquet").write_bytes(b"PAR1 no"), ()),
    "no table": (None, lambda folder: (folder / "prompts.parquet").unlink(), ()),
    "a broken shard": (
        None,
        lambda f: (f / "images/BF-000.parquet").write_bytes(b"PAR1 no"),
        ("image-stored",),
    ),
    "no shard": (None, lambda f: (f / "images/BF-000.parquet").unlink(), ("image-stored",)),
    "a shard elsewhere": (
        lambda tables: Put("images", "shard", "../../elsewhere")(tables),
        None,
        ("image-stored",),
    ),
    "no image_id": (drop_column("images", "image_id"), None, ()),
    "no women_bmi": (drop_column("clusters", "women_bmi"), None, ()),
    "no task": (drop_column("prompts", "task"), None, ()),
    "no option_c": (drop_column("items_mcq", "option_c"), None, ()),
    "a file for the results": (None, lambda folder: (folder / "validation").write_text(""), ()),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_gate_stops_with_one_line(
    wrong: str, tables: Tables, tmp_path: Path, refusal: Refusal
) -> None:
    plant, damage, rules = WRONG[wrong]
    if plant:
        plant(tables)
    folder = save(tables, tmp_path)
    if damage:
        damage(folder)

    with refusal():
        quality.run_gate(folder, only(tmp_path, *rules))

    assert not quality.has_passed(folder, tmp_path / "expectations")
    if rules and (folder / "quality.json").exists():
        broken = [
            count
            for table in quality_of(folder)["tables"].values()
            for rule, count in table["rules"].items()
            if rule in rules
        ]
        assert sum(broken) > 0


def test_warnings_do_not_stop(tables: Tables, tmp_path: Path) -> None:
    Put("items_mcq", "value_year", 1890)(tables)

    report = quality.run_gate(save(tables, tmp_path), only(tmp_path, "value-year-near"))

    assert "rule value-year-near broken 1 time(s)" in report.warnings[0]


def test_a_folder_of_people_is_judged_by_its_own_rules(
    tables: Tables, tmp_path: Path, refusal: Refusal
) -> None:
    report = quality.run_gate(save(tables, tmp_path / "good", quality.PEOPLE), SUITES)
    assert tuple(report.counts) == quality.PEOPLE and report.warnings == []
    assert quality_of(tmp_path / "good")["passed"] is True
    page = (tmp_path / "good" / quality.PAGE).read_text()
    assert "The benchmark passed" in page and ">images.parquet</a>" in page and "series" not in page

    each_of(Put("items_people", "gold", "no"), Put("people", "w", 0.0))(tables)
    with refusal("two rules"):
        quality.run_gate(save(tables, tmp_path / "bad", quality.PEOPLE), SUITES)
    assert quality_of(tmp_path / "bad")["passed"] is False
    (tmp_path / "bad" / "prompts.parquet").unlink()
    with refusal("no table"):
        quality.run_gate(tmp_path / "bad", SUITES)


# -- a verdict on one table


def test_near_duplicates_keep_the_first_cluster_in_any_order(
    tables: Tables, tmp_path: Path
) -> None:
    """Whatever the ids and the order of the rows: the kept item is that of the lowest
    cluster_id."""
    images, items = tables["images"], tables["items_mcq"]
    alike = items.index[items["indicator"] == "stunting"][:3]
    shown = images["image_id"].isin(items.loc[alike, "image_id"])
    images.loc[shown, "image_group"] = items.loc[alike[0], "image_id"]
    labels = [c for c in items if c.endswith(("_index", "_mort", "_edu", "_bmi"))] + ["urban"]
    for name in labels:
        items.loc[alike, name] = items.loc[alike[0], name]
    items["item_id"] = items["item_id"].max() - items["item_id"]
    lost = sorted(str(i) for i in items.loc[alike].sort_values("cluster_id")["item_id"][1:])
    assert len(lost) == 2
    shuffled = items.sample(frac=1, random_state=1)
    suites = only(tmp_path, "near-duplicate-item")
    verdict = quality.check("items_mcq", shuffled, suites, tables)
    assert verdict.quarantine["key"].tolist() == lost
    assert sorted(shuffled["item_id"].astype(str).to_numpy()[~verdict.rows_ok]) == lost
    assert set(verdict.quarantine["table"]) == {"items_mcq"}
    images["image_group"] = images["image_id"].iloc[0]  # alike, in contexts of their own
    items.loc[alike, "asset_index"] = [1.0, 2.0, 3.0]
    assert quality.check("items_mcq", items, suites, tables).rows_ok[alike].all()
