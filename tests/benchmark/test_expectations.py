"""How a table is judged: the verdict, suites that can't be judged, columns of the wrong kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark import quality
from sdgbias.benchmark.draw import TABLE_B
from sdgbias.benchmark.quality import rules
from sdgbias.errors import InputError
from tests.builders.quality import GOOD, SUITES, check, copies, drop_column, only, put, repeat_row


def test_quarantine_names_the_rows(tmp_path: Path) -> None:
    tables = copies()
    put("items_mcq", "answer", "C", row=7)(tables)
    verdict = check("items_mcq", tables, tmp_path, only(tmp_path, "answer-among-options"))
    item = GOOD["items_mcq"]["item_id"][7]
    line = verdict.quarantine[verdict.quarantine["rule"] == "answer-among-options"].iloc[0]
    assert (line["table"], line["key"]) == ("items_mcq", str(item))
    assert np.flatnonzero(~verdict.rows_ok).tolist() == [7]


def test_near_duplicates_keep_the_first_cluster_in_any_order(tmp_path: Path) -> None:
    """Whatever the ids and the order of the rows: the kept item is that of the lowest
    cluster_id."""
    tables = copies()
    images, items = tables["images"], tables["items_mcq"]
    images.loc[3:5, "image_group"] = images["image_id"][5]
    own = items.index[items["indicator"] == "stunting"][3:6]
    for name in (
        "asset_index",
        "water_index",
        "sanitation_index",
        "under5_mort",
        "women_edu",
        "women_bmi",
        "urban",
    ):
        items.loc[own, name] = items.loc[own[0], name]
    items["item_id"] = items["item_id"].max() - items["item_id"]
    lost = sorted(str(i) for i in items.loc[own].sort_values("cluster_id")["item_id"][1:])
    for seed in (1, 2):
        shuffled = items.sample(frac=1, random_state=seed)
        verdict = quality.check(
            "items_mcq", shuffled, only(tmp_path / str(seed), "near-duplicate-item"), tables
        )
        assert verdict.quarantine["key"].tolist() == lost
        assert sorted(shuffled["item_id"].astype(str).to_numpy()[~verdict.rows_ok]) == lost


def test_another_context_is_no_near_duplicate(tmp_path: Path) -> None:
    tables = copies()
    tables["images"]["image_group"] = tables["images"]["image_id"][0]
    assert (
        check("items_mcq", tables, tmp_path, only(tmp_path, "near-duplicate-item")).counts[
            "near-duplicate-item"
        ]
        == 0
    )


def test_rules_across_tables_are_skipped_without_them_and_say_why() -> None:
    verdict = quality.check("items_mcq", GOOD["items_mcq"], SUITES)
    assert verdict.skipped == {
        "item-cluster-exists": "clusters isn't available",
        "labels-of-cluster": "clusters isn't available",
        "item-image-exists": "images isn't available",
        "image-of-cluster": "images isn't available",
        "modalities-of-image": "images.modalities isn't available",
        "near-duplicate-item": "images isn't available",
        "item-has-prompts": "prompts isn't available",
        "value-from-series": "series isn't available",
        "split-place-across-tasks": "items_regression isn't available",
        "split-by-place": "the split is by id",
    }
    assert verdict.findings == ()


def test_rules_about_pictures_are_skipped_without_them(tmp_path: Path) -> None:
    tables = copies()
    tables["images"] = GOOD["images"].assign(
        image_id=[f"pending:{i:032x}" for i in range(8)],
        photo_id="",
        n_photos=0,
        n_parts=0,
        modalities="",
        tile_hash="",
        photo_hash="",
        shard="",
    )
    tables["images"]["image_group"] = tables["images"]["image_id"]
    verdict = check("images", tables, tmp_path)
    assert verdict.findings == ()
    assert set(verdict.skipped.values()) == {"built with --no-images"}
    about_bytes = {
        "image-stored",
        "image-id-is-sha256",
        "image-is-whole",
        "modalities-known",
        "photo-id-present",
        "photo-hash-present",
        "photo-count",
        "part-count",
    }
    assert set(verdict.skipped) == about_bytes | {"tile-hash-format", "photo-hash-format"}


def test_missing_column_is_named_and_the_rest_skipped(tmp_path: Path) -> None:
    tables = copies()
    drop_column("clusters", "women_bmi")(tables)
    verdict = check("clusters", tables, tmp_path)
    assert "women_bmi" in verdict.findings[0].message
    assert set(verdict.skipped.values()) == {"a column is missing"}
    assert len(verdict.skipped) == len(quality.load_rules("clusters", SUITES).rules)


def test_column_of_the_wrong_type_is_not_passed_over(tmp_path: Path) -> None:
    tables = copies()
    tables["clusters"]["water_index"] = "many"
    with pytest.raises(InputError, match="clusters: .*water-index-range"):
        check("clusters", tables, tmp_path)


def test_categorical_columns_are_judged_as_text(tmp_path: Path) -> None:
    """Parquet's repeated texts are read as categories; the verdict is the same."""
    tables = copies()
    put("prompts", "text", None)(tables)
    put("prompts", "candidates", "ABCD", row=1)(tables)
    plain = check("prompts", tables, tmp_path)
    tables["prompts"] = tables["prompts"].astype(
        dict.fromkeys(("task", "test", "text", "candidates"), "category")
    )
    assert check("prompts", tables, tmp_path).counts == plain.counts
    assert {"prompt-text-form", "candidates-known"} <= {f.rule for f in plain.findings}


def broken_suites(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    folder = tmp_path / "expectations"
    shutil.copytree(SUITES, folder)
    suite = json.loads((folder / "images.json").read_text(encoding="utf-8"))
    change(suite)
    (folder / "images.json").write_text(json.dumps(suite), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: s["expectations"][1].update(type="expect_column_values_to_be_pretty"),
            "expect_column_values_to_be_pretty|rules written",
        ),
        (
            lambda s: s["expectations"][1]["kwargs"].update(column="ok_unheard"),
            "unknown column 'ok_unheard'",
        ),
        (lambda s: s["expectations"][1]["meta"].update(severity="fatal"), "gate, quarantine, warn"),
        (lambda s: s["expectations"][1]["meta"].update(rule="columns-present"), "given twice"),
        (lambda s: s["expectations"][1].pop("meta"), "not a suite"),
        (lambda s: s.pop("expectations"), "not a suite"),
    ],
)
def test_suite_that_can_not_be_judged_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        quality.check("images", GOOD["images"], broken_suites(tmp_path, change), GOOD)


def test_rules_in_sql_are_judged_by_their_flags(tmp_path: Path) -> None:
    tables = copies()
    repeat_row("clusters")(tables)
    put("clusters", "lat", 95.0)(tables)
    assert check("clusters", tables, tmp_path).counts["coordinates-on-earth"] == 1


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("n_parts >= 1;", "has no comment line"),
        ("-- part-count (fatal): a picture has parts\nn_parts >= 1;", "gate, quarantine, warn"),
        ("-- image-shared (gate): a picture has parts\nn_parts >= 1;", "given twice"),
        ("-- more-parts (gate): a picture has parts\nn_bits >= 1;", "n_bits"),
        (
            "CREATE VIEW judged AS SELECT * FROM rows LIMIT 1;\n"
            "-- more-parts (gate): a picture has parts\nn_parts >= 1;",
            "view judged has 1 rows, the table 8",
        ),
    ],
)
def test_sql_that_can_not_be_judged_is_refused(tmp_path: Path, sql: str, words: str) -> None:
    folder = broken_suites(tmp_path, lambda suite: None)
    (folder / "images.sql").write_text(sql, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        quality.check("images", GOOD["images"], folder, GOOD)


def test_a_rule_of_another_type_is_judged_by_great_expectations(tmp_path: Path) -> None:
    """DuckDB has no condition for it, and it isn't passed over."""

    def add_mean(suite: dict[str, Any]) -> None:
        suite["expectations"].append(
            {
                "type": "expect_column_mean_to_be_between",
                "kwargs": {"column": "n_parts", "max_value": 0.5},
                "meta": {"rule": "few-parts", "severity": "warn", "message": "few parts"},
            }
        )

    found = quality.check("images", GOOD["images"], broken_suites(tmp_path, add_mean), GOOD)
    [finding] = found.findings
    assert (finding.rule, finding.count) == ("few-parts", 1)
    assert finding.message == "few parts (observed 1.125)"


def test_unknown_table_lists_the_valid_ones() -> None:
    with pytest.raises(
        InputError,
        match=(
            "valid: clusters, images, images_own, images_people, items_mcq, items_own,"
            " items_people, items_regression, people, predictions, prompts, prompts_own,"
            " prompts_people, series"
        ),
    ):
        quality.check("photos", pd.DataFrame(), SUITES)


def test_find_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    monkeypatch.chdir(SUITES.parent / "tests")
    assert quality.find_suites() == SUITES
    with pytest.raises(InputError, match="SDGBIAS_REGISTRY"):
        quality.find_suites(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert quality.find_suites() == SUITES, "that of the checkout, in any folder"
    (tmp_path / "registry" / "models").mkdir(parents=True)
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    assert quality.find_suites() == SUITES, "a registry of one's own has no rules of its own"
    own = tmp_path / "expectations" / "clusters.json"
    own.parent.mkdir()
    own.write_text("{}", encoding="utf-8")
    assert quality.find_suites() == own.parent


def test_the_gate_judges_answers_by_the_shares_of_the_papers_table_b() -> None:
    definitions, _ = rules.read_sql(SUITES / "items_mcq.sql")
    [shares_table] = [sql for sql in definitions if "TABLE label_shares" in sql]
    with duckdb.connect() as con:
        con.execute(shares_table)
        gate_shares = con.sql("SELECT pillar, A, B, C FROM label_shares").fetchall()
    assert {
        pillar: tuple(float(share) for share in shares) for pillar, *shares in gate_shares
    } == TABLE_B
    assert all(sum(shares) == pytest.approx(100, abs=0.02) for shares in TABLE_B.values())
