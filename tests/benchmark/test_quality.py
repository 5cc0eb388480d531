"""The gate over a benchmark folder, and the sift that stages of the build call."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark import quality
from sdgbias.errors import DataValidationError, InputError
from sdgbias.raw.images import shards
from tests.builders.quality import (
    GOOD,
    SUITES,
    copies,
    drop_column,
    edit,
    only,
    picture,
    put,
    repeat_row,
    save,
    save_people,
)


def test_sift_takes_rows_out_and_says_which(tmp_path: Path) -> None:
    tables = copies()
    put("series", "iso3", "WLD", row=2)(tables)
    put("series", "value", 101.0, row=4)(tables)
    kept, lost = quality.sift("series", tables["series"], suites=SUITES)
    assert kept.index.tolist() == [i for i in range(len(GOOD["series"])) if i not in (2, 4)]
    assert list(lost.columns) == ["table", "key", "rule", "detail"]
    assert {"series-country-known", "value-in-range"} <= set(lost["rule"])
    again, none = quality.sift("series", kept, suites=SUITES)
    pd.testing.assert_frame_equal(again, kept)
    assert none.empty and list(none.columns) == list(lost.columns)


def test_sift_stops_at_a_gate_and_names_it() -> None:
    tables = copies()
    put("series", "source", None)(tables)
    with pytest.raises(
        DataValidationError, match=r"series: rule source-present broken 1 time\(s\) .*sdgbias build"
    ):
        quality.sift("series", tables["series"], suites=SUITES)


def test_a_row_that_leaves_breaks_no_gate() -> None:
    """The unknown country is out before its lack of series could stop the build."""
    tables = copies()
    put("clusters", "iso3", "ZZZ")(tables)
    kept, lost = quality.sift("clusters", tables["clusters"], {"series": GOOD["series"]}, SUITES)
    assert lost["rule"].tolist() == ["country-known"]
    assert len(kept) == len(GOOD["clusters"]) - 1


def test_sift_of_what_is_at_hand() -> None:
    given = {
        "clusters": GOOD["clusters"],
        "images": GOOD["images"][["cluster_id", "image_id", "image_group"]],
    }
    for table in ("items_mcq", "items_regression"):
        kept, lost = quality.sift(table, GOOD[table], given, SUITES)
        assert kept is GOOD[table] and lost.empty
    kept, lost = quality.sift("images", GOOD["images"], {"clusters": GOOD["clusters"]}, SUITES)
    assert kept is GOOD["images"] and lost.empty
    by_place = GOOD["items_mcq"].assign(split=GOOD["items_mcq"]["split_place"])
    assert quality.sift("items_mcq", by_place, given, SUITES, split="place")[0] is by_place


def test_gate_passes_a_good_benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = quality.run_gate(save(GOOD, tmp_path), SUITES)
    assert set(report.counts) == set(quality.TABLES)
    assert all(count == 0 for counts in report.counts.values() for count in counts.values())
    assert report.warnings == []
    first = report.path.read_bytes()
    written = json.loads(first)
    assert (written["passed"], written["split"]) == (True, "id")
    assert written["tables"]["items_mcq"]["skipped"] == {"split-by-place": "the split is by id"}
    quality.run_gate(tmp_path, SUITES)
    assert report.path.read_bytes() == first  # same inputs, same bytes
    assert capfd.readouterr() == ("", "")  # no progress bars, no logging


def test_a_task_without_questions_is_judged(tmp_path: Path) -> None:
    """sdgbias build --regression 0."""
    folder = save(GOOD, tmp_path)
    prompts = pd.read_parquet(folder / "prompts.parquet")
    prompts[prompts["task"] != "regression"].to_parquet(folder / "prompts.parquet", index=False)
    path = folder / "items_regression.parquet"
    pd.read_parquet(path).iloc[:0].to_parquet(path, index=False)
    verdict = quality.run_gate(folder, SUITES).counts["items_regression"]
    assert all(count == 0 for count in verdict.values())


def test_a_passed_gate_holds_until_a_table_or_a_rule_changes(tmp_path: Path) -> None:
    folder, rules = save(GOOD, tmp_path / "b"), tmp_path / "rules"
    shutil.copytree(SUITES, rules)
    assert not quality.has_passed(folder, rules)
    quality.run_gate(folder, rules)
    assert quality.has_passed(folder, rules)
    before = (folder / "prompts.parquet").read_bytes()
    (folder / "prompts.parquet").write_bytes(before + b" ")
    assert not quality.has_passed(folder, rules)
    (folder / "prompts.parquet").write_bytes(before)
    assert quality.has_passed(folder, rules)
    (rules / "prompts.sql").write_text((rules / "prompts.sql").read_text() + "\n")
    assert not quality.has_passed(folder, rules)
    assert not quality.has_passed(folder, tmp_path / "nowhere")


def test_gate_stops_and_says_why(tmp_path: Path) -> None:
    suites = only(tmp_path, "tests-differ-in-context-only")
    tables = copies()
    edit("prompts", {"test": "T5"}, "text", lambda s: s.str.replace("?", " ?"))(tables)
    with pytest.raises(DataValidationError) as caught:
        quality.run_gate(save(tables, tmp_path), suites)
    n = 4 * len(GOOD["items_mcq"]) + len(GOOD["items_regression"])
    assert f"prompts.parquet: rule tests-differ-in-context-only broken {n} time(s)" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    written = json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))
    assert written["passed"] is False and not quality.has_passed(tmp_path, suites)
    assert written["tables"]["prompts"]["rules"]["tests-differ-in-context-only"] == n


def test_rows_for_quarantine_stop_a_finished_benchmark(tmp_path: Path) -> None:
    suites = only(tmp_path, "image-is-whole")
    tables = copies()
    cut = [picture(0)[:-20]]
    tables["pictures"].at[0, "parts"] = cut
    for name in ("images", "pictures"):
        tables[name].loc[0, "image_id"] = shards.image_id(cut)
    save(tables, tmp_path)
    with pytest.raises(
        DataValidationError,
        match=r"images\.parquet: rule image-is-whole broken 1 time\(s\) .*quarantine",
    ):
        quality.run_gate(tmp_path, suites)
    found = json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))
    broken = found["tables"]["images"]["broken"]
    assert [(f["rule"], f["count"], f["examples"]) for f in broken] == [
        ("image-is-whole", 1, [GOOD["clusters"]["cluster_id"][0]])
    ]


def test_warnings_do_not_stop(tmp_path: Path) -> None:
    tables = copies()
    put("items_mcq", "value_year", 1990)(tables)
    report = quality.run_gate(save(tables, tmp_path), only(tmp_path, "value-year-near"))
    assert "rule value-year-near broken 1 time(s)" in report.warnings[0]


def test_split_by_place_is_what_the_build_wrote_down(tmp_path: Path) -> None:
    tables = copies()
    suites = only(tmp_path, "split-by-id", "split-by-place")
    save(tables, tmp_path)
    notes = tmp_path / "items_notes.json"
    notes.write_text('{"split": "place"}', encoding="utf-8")
    with pytest.raises(DataValidationError, match="split-by-place"):
        quality.run_gate(tmp_path, suites)
    for name in ("items_mcq", "items_regression"):
        tables[name]["split"] = tables[name]["split_place"]
    report = quality.run_gate(save(tables, tmp_path), suites)
    assert report.counts["items_mcq"] == {"columns-present": 0, "split-by-place": 0}
    for text, words in (
        ('{"split": "thumb"}', "unknown split 'thumb'; valid: id, place"),
        ("{", r"items_notes\.json: can't be read"),
    ):
        notes.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=words):
            quality.run_gate(tmp_path, suites)


def test_missing_or_broken_table(tmp_path: Path) -> None:
    save(GOOD, tmp_path)
    (tmp_path / "prompts.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"prompts\.parquet: can't be read .*sdgbias build"):
        quality.run_gate(tmp_path, SUITES)
    (tmp_path / "prompts.parquet").unlink()
    with pytest.raises(
        InputError, match=r"prompts\.parquet: no such table; make it: sdgbias build"
    ):
        quality.run_gate(tmp_path, SUITES)


def test_missing_or_broken_shard(tmp_path: Path) -> None:
    suites = only(tmp_path, "image-stored")
    shard = save(GOOD, tmp_path) / "images" / "BF-000.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(
        InputError, match=r"BF-000\.parquet: can't be read .*sdgbias build --stage images"
    ):
        quality.run_gate(tmp_path, suites)
    shard.unlink()
    with pytest.raises(DataValidationError, match=r"rule image-stored broken 2 time\(s\)"):
        quality.run_gate(tmp_path, suites)


def test_shard_names_stay_in_their_folder(tmp_path: Path) -> None:
    tables = copies()
    put("images", "shard", "../../elsewhere")(tables)
    with pytest.raises(InputError, match="climbs out of"):
        quality.run_gate(save(tables, tmp_path), only(tmp_path, "image-stored"))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("images", "image_id"),
        ("clusters", "women_bmi"),
        ("prompts", "task"),
        ("items_mcq", "option_c"),
    ],
)
def test_missing_column_on_disk(tmp_path: Path, table: str, column: str) -> None:
    tables = copies()
    drop_column(table, column)(tables)
    with pytest.raises(
        DataValidationError,
        match=rf"{table}.parquet: rule columns-present broken 1 time.*missing: {column}",
    ) as caught:
        quality.run_gate(save(tables, tmp_path), only(tmp_path))
    assert str(caught.value).count("rule ") == 1


def test_columns_beyond_the_format_do_no_harm(tmp_path: Path) -> None:
    tables = copies()
    tables["clusters"]["note"] = "mine"
    repeat_row("clusters", cluster_id="AL-2010-5#-00000099")(tables)
    quality.run_gate(save(tables, tmp_path), only(tmp_path, "cluster-id-unique"))


def test_a_folder_of_people_is_judged_by_its_own_rules(tmp_path: Path) -> None:
    report = quality.run_gate(save_people(copies(), tmp_path / "good"), SUITES)
    assert tuple(report.counts) == quality.PEOPLE and report.warnings == []
    assert json.loads(report.path.read_text())["passed"] is True
    page = (tmp_path / "good" / quality.PAGE).read_text()
    assert "The benchmark passed" in page and ">images.parquet</a>" in page and "series" not in page
    tables = copies()
    put("items_people", "gold", "no")(tables)
    put("people", "w", 0.0)(tables)
    with pytest.raises(
        DataValidationError,
        match=(
            "people.parquet: rule box-has-area .* items_people.parquet: rule gold-fits .* then:"
            " sdgbias people build"
        ),
    ):
        quality.run_gate(save_people(tables, tmp_path / "bad"), SUITES)
    assert json.loads((tmp_path / "bad" / "quality.json").read_text())["passed"] is False
    (tmp_path / "bad" / "prompts.parquet").unlink()
    with pytest.raises(
        InputError, match="prompts.parquet: no such table; make it: sdgbias people build --out"
    ):
        quality.run_gate(tmp_path / "bad", SUITES)
