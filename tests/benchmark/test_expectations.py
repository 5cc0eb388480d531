"""How a table is judged: the verdict, rules that are skipped, suites that can't be judged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark import quality
from sdgbias.benchmark.draw import TABLE_B
from sdgbias.benchmark.quality import rules
from tests.builders.quality import SUITES, Tables, check, drop_column, only, put, repeat_row
from tests.builders.refusals import Refusal


def test_a_quarantine_names_the_rows(tables: Tables, tmp_path: Path) -> None:
    put("items_mcq", "answer", "", row=7)(tables)

    verdict = check("items_mcq", tables, tmp_path, only(tmp_path, "answer-among-options"))

    lost = verdict.quarantine[verdict.quarantine["rule"] == "answer-among-options"].iloc[0]
    item = str(tables["items_mcq"]["item_id"][7])
    assert (lost["table"], lost["key"]) == ("items_mcq", item)
    assert np.flatnonzero(~verdict.rows_ok).tolist() == [7]


def test_rules_across_tables_are_skipped_without_them_and_say_why(good: Tables) -> None:
    verdict = quality.check("items_mcq", good["items_mcq"], SUITES)

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


def test_rules_about_pictures_are_skipped_without_them(tables: Tables, tmp_path: Path) -> None:
    images = tables["images"]
    texts = ("photo_id", "modalities", "tile_hash", "photo_hash", "shard")
    counts = ("n_photos", "n_parts")
    pending = [f"pending:{i:032x}" for i in range(len(images))]
    blank = dict.fromkeys(texts, "") | dict.fromkeys(counts, 0)
    tables["images"] = images.assign(image_id=pending, image_group=pending, **blank)

    verdict = check("images", tables, tmp_path)

    assert verdict.findings == ()
    assert set(verdict.skipped.values()) == {"built with --no-images"}
    about_bytes = {"image-stored", "image-id-is-sha256", "image-is-whole", "modalities-known"}
    about_bytes |= {"photo-id-present", "photo-hash-present", "photo-count", "part-count"}
    assert set(verdict.skipped) == about_bytes | {"tile-hash-format", "photo-hash-format"}


def test_a_missing_column_is_named_and_the_rest_skipped(tables: Tables, tmp_path: Path) -> None:
    drop_column("clusters", "women_bmi")(tables)

    verdict = check("clusters", tables, tmp_path)

    assert "women_bmi" in verdict.findings[0].message
    assert set(verdict.skipped.values()) == {"a column is missing"}
    assert len(verdict.skipped) == len(quality.load_rules("clusters", SUITES).rules)


def test_categorical_columns_are_judged_as_text(tables: Tables, tmp_path: Path) -> None:
    """Parquet's repeated texts are read as categories; the verdict is the same."""
    put("prompts", "text", None)(tables)
    put("prompts", "candidates", "ABCD", row=1)(tables)
    plain = check("prompts", tables, tmp_path)
    texts = ("task", "test", "text", "candidates")
    tables["prompts"] = tables["prompts"].astype(dict.fromkeys(texts, "category"))

    assert check("prompts", tables, tmp_path).counts == plain.counts
    assert {"prompt-text-form", "candidates-known"} <= {f.rule for f in plain.findings}


def test_rules_in_sql_are_judged_by_their_flags(tables: Tables, tmp_path: Path) -> None:
    repeat_row("clusters")(tables)
    put("clusters", "lat", 95.0)(tables)
    assert check("clusters", tables, tmp_path).counts["coordinates-on-earth"] == 1


def changed_suite(tmp_path: Path, entry: Any) -> Path:
    """The suites; of the second expectation on images these fields are others."""
    folder = Path(shutil.copytree(SUITES, tmp_path / "expectations"))
    suite = json.loads((folder / "images.json").read_text(encoding="utf-8"))
    suite["expectations"][1].update(entry)
    (folder / "images.json").write_text(json.dumps(suite), encoding="utf-8")
    return folder


SUITE_FAULTS: dict[str, dict[str, Any]] = {
    "type": {"type": "expect_column_values_to_be_pretty"},
    "column": {"kwargs": {"column": "ok_unheard"}},
    "severity": {"meta": {"rule": "x", "severity": "fatal", "message": "x"}},
    "rule given twice": {"meta": {"rule": "columns-present", "severity": "gate", "message": "x"}},
    "no meta": {"meta": None},
}
SQL_FAULTS = {
    "no comment": "n_parts >= 1;",
    "severity in SQL": "-- part-count (fatal): a picture has parts\nn_parts >= 1;",
    "rule given twice in SQL": "-- image-shared (gate): a picture has parts\nn_parts >= 1;",
    "column in SQL": "-- more-parts (gate): a picture has parts\nn_bits >= 1;",
    "view of other rows": "CREATE VIEW judged AS SELECT * FROM rows LIMIT 1;\n"
    "-- more-parts (gate): a picture has parts\nn_parts >= 1;",
}


@pytest.mark.parametrize("fault", [*SUITE_FAULTS, *SQL_FAULTS, "no expectations"])
def test_a_suite_that_can_not_be_judged_is_refused(
    fault: str, good: Tables, tmp_path: Path, refusal: Refusal
) -> None:
    folder = changed_suite(tmp_path, SUITE_FAULTS.get(fault, {}))
    if fault in SQL_FAULTS:
        (folder / "images.sql").write_text(SQL_FAULTS[fault], encoding="utf-8")
    if fault == "no expectations":
        (folder / "images.json").write_text("{}", encoding="utf-8")
    with refusal():
        quality.check("images", good["images"], folder, good)


def test_a_table_that_can_not_be_judged_is_refused(
    tables: Tables, tmp_path: Path, refusal: Refusal
) -> None:
    with refusal("an unknown table"):
        quality.check("photos", pd.DataFrame(), SUITES)
    tables["clusters"]["water_index"] = "many"
    with refusal("a column of another type"):
        check("clusters", tables, tmp_path)


def test_a_rule_of_another_type_is_judged_by_great_expectations(
    good: Tables, tmp_path: Path
) -> None:
    """DuckDB has no condition for it, and it isn't passed over."""
    mean = {
        "type": "expect_column_mean_to_be_between",
        "kwargs": {"column": "n_parts", "max_value": 0.5},
        "meta": {"rule": "few-parts", "severity": "warn", "message": "few parts"},
    }

    found = quality.check("images", good["images"], changed_suite(tmp_path, mean), good)

    [finding] = found.findings
    assert (finding.rule, finding.count) == ("few-parts", 1)
    assert finding.message == "few parts (observed 1.0)"


def test_suites_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    monkeypatch.chdir(SUITES.parent / "tests")
    assert quality.find_suites() == SUITES
    with refusal():
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
