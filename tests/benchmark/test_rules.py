"""Rules: arithmetic with edges of its own, what is skipped and why, suites that can't be judged."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from sdgbias.benchmark import quality
from sdgbias.benchmark.draw import TABLE_B
from sdgbias.benchmark.quality import rules
from sdgbias.benchmark.quality.ranges import option_range, unit_range
from sdgbias.benchmark.quality.stored import is_whole
from tests.builders.quality import SUITES, Tables, check, drop_column, picture
from tests.builders.refusals import Refusal

INF = math.inf
FIELDS = ("option_a", "option_b", "option_c", "unit")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("below 21 %", (-INF, 21, True, False)),
        ("21 % to under 44 %", (21, 44, True, False)),
        ("16 to under 1,500 per 100,000", (16, 1500, True, False)),
        ("12 or more per 100,000", (12, INF, True, True)),
        ("100 %", (100, 100, True, True)),
        ("20-40", (20, 40, True, True)),
        ("20 % – 40 %", (20, 40, True, True)),
        ("-0.5 to under −0.1", (-0.5, -0.1, True, False)),
        ("at least 3", (3, INF, True, True)),
        ("at most 3", (-INF, 3, True, True)),
        ("more than 3", (3, INF, False, True)),
        ("low", None),
    ],
)
def test_option_range(text: str, found: tuple[float, float, bool, bool] | None) -> None:
    assert option_range(text) == found


@pytest.mark.parametrize(
    ("unit", "limits"),
    [("% of children", (0, 100)), ("index, 0-1", (0, 1)), ("deaths", (-INF, INF))],
)
def test_unit_range(unit: str, limits: tuple[float, float]) -> None:
    assert unit_range(unit) == limits


#: By DuckDB alone and by Great Expectations as well, which takes two seconds to import.
EITHER = pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.slow)])


def broken(table: str, rule: str, frame: pd.DataFrame) -> list[int]:
    return [int(row) for row in quality.check(table, frame, SUITES).flags[rule]]


def kept(frame: pd.DataFrame, rule: str, table: str = "items_mcq") -> list[bool]:
    """Whether each row keeps a rule."""
    wrong = broken(table, rule, frame)
    return [row not in wrong for row in range(len(frame))]


def repeated(frame: pd.DataFrame, **columns: Sequence[Any]) -> pd.DataFrame:
    """The first row once for each value of these columns, which it has in place of its own."""
    rows = max(map(len, columns.values()))
    return pd.concat([frame.head(1)] * rows, ignore_index=True).assign(**columns)


def with_options(items: pd.DataFrame, *options: tuple[str, ...], **more: Any) -> pd.DataFrame:
    """A question for each three options and their unit."""
    return repeated(items, **dict(zip(FIELDS, zip(*options, strict=True), strict=True)), **more)


@pytest.mark.parametrize("holds", [True, False])
def test_bins_cover(holds: bool, good: Tables) -> None:
    right = [
        ("below 20 %", "20 % to under 30 %", "30 % or more", "%"),
        ("below 20 %", "20 % to under 100 %", "100 %", "%"),  # the top of the scale
        ("below 20 %", "20 % or more", "", "%"),
        ("low", "middle", "high", "%"),  # words can't be judged
    ]
    wrong = [
        ("below 20 %", "20 % to under 30 %", "31 % or more", "%"),  # gap
        ("below 20 %", "15 % to under 30 %", "30 % or more", "%"),  # overlap
        ("0-20", "20-40", "40-100", "%"),  # 20 and 40 lie in two
        ("at most 20", "20 or more", "", "%"),
        ("below 20", "more than 20", "", "%"),  # 20 lies in none
        ("below 20 %", "20 % to under 30 %", "30 % to under 60 %", "%"),  # nothing above 60
        ("10 % to under 20 %", "20 % or more", "", "%"),  # nothing below 10
        ("below 0.5", "0.5 to under 1", "1", "deaths"),  # no top is known
    ]
    items = with_options(good["items_mcq"], *(right if holds else wrong))
    assert set(kept(items, "bins-cover")) == {holds}


def test_gold_lies_in_its_option(good: Tables) -> None:
    options = ("below 20 %", "20 % to under 30 %", "30 % or more", "%")
    answers = {  # value, answer: whether it lies there
        (19.99, "A"): True,
        (math.nan, "A"): True,
        (20.0, "A"): False,
        (20.0, "B"): True,
        (30.0, "B"): False,
        (30.0, "C"): True,
        (5.0, "Z"): True,
    }
    values, letters = zip(*answers, strict=True)
    items = with_options(good["items_mcq"], *[options] * len(answers), value=values, answer=letters)
    assert kept(items, "gold-in-option") == [*answers.values()]


def test_the_context_is_the_second_line_of_a_prompt() -> None:
    mcq = (
        "Question: How high is it?\n{}Options: A. x; B. y\nVALID OPTIONS: A, B\nSTRICT OUTPUT:"
        " Return one.\nNothing else."
    )
    bare, line = mcq.format(""), "Context: Given: urban=Urban\n"
    texts = [
        mcq.format(line),
        bare,
        mcq.format(line + line),
        bare + "\n" + line,
        None,
        "Question: ?",
    ]
    frame = pd.DataFrame({"task": "mcq", "item_id": range(6), "test": "T1", "text": texts})
    frame[["image_id", "candidates"]] = ["", "AB"]
    assert broken("prompts", "prompt-text-form", frame) == [2, 4, 5]
    frame["item_id"], frame["test"] = 1, ["T1", "T5", "T2", "T3", "T4", "T1"]
    assert broken("prompts", "tests-differ-in-context-only", frame) == [2, 3, 4, 5]
    assert broken("prompts", "context-line-unexpected", frame.assign(test="T5")) == [0, 2]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_whole_pictures(kind: str) -> None:
    data = picture(7, 40, kind)
    assert is_whole([data, data])
    assert not is_whole([data, data[:-1]])
    assert not is_whole([data[1:]])
    assert not is_whole([b""])


def test_region_of_country(good: Tables) -> None:
    regions = {  # region, stratum: whether Albania has them
        ("", "urban"): True,
        ("albr101", "all"): True,
        ("albr101", "urban"): False,  # Global Data Lab's regional values know no strata
        ("namr101", "all"): False,
    }
    names, strata = zip(*regions, strict=True)
    frame = repeated(good["series"].assign(iso3="ALB"), region=names, stratum=strata)
    assert kept(frame, "region-of-country", "series") == [*regions.values()]


# -- what is judged


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


@EITHER
def test_rules_about_pictures_are_skipped_without_them(
    both: bool, tables: Tables, tmp_path: Path
) -> None:
    images = tables["images"]
    texts = ("photo_id", "modalities", "tile_hash", "photo_hash", "shard")
    counts = ("n_photos", "n_parts")
    pending = [f"pending:{i:032x}" for i in range(len(images))]
    blank = dict.fromkeys(texts, "") | dict.fromkeys(counts, 0)
    tables["images"] = images.assign(image_id=pending, image_group=pending, **blank)

    verdict = check("images", tables, tmp_path, both=both)

    assert verdict.findings == ()
    assert set(verdict.skipped.values()) == {"built with --no-images"}
    about_bytes = {"image-stored", "image-id-is-sha256", "image-is-whole", "modalities-known"}
    about_bytes |= {"photo-id-present", "photo-hash-present", "photo-count", "part-count"}
    assert set(verdict.skipped) == about_bytes | {"tile-hash-format", "photo-hash-format"}


@EITHER
def test_a_missing_column_is_named_and_the_rest_skipped(
    both: bool, tables: Tables, tmp_path: Path
) -> None:
    drop_column("clusters", "women_bmi")(tables)

    verdict = check("clusters", tables, tmp_path, both=both)

    assert "women_bmi" in verdict.findings[0].message
    assert set(verdict.skipped.values()) == {"a column is missing"}
    assert len(verdict.skipped) == len(quality.load_rules("clusters", SUITES).rules)


def changed_suite(tmp_path: Path, entry: Any) -> Path:
    """The suites; of the second expectation on images these fields are others."""
    folder = Path(shutil.copytree(SUITES, tmp_path / "expectations"))
    suite = json.loads((folder / "images.json").read_text(encoding="utf-8"))
    suite["expectations"][1].update(entry)
    (folder / "images.json").write_text(json.dumps(suite), encoding="utf-8")
    return folder


TYPE = pytest.param("type", marks=pytest.mark.slow)  # Great Expectations is asked for it
SUITE_FAULTS: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("fault", [TYPE, *SUITE_FAULTS, *SQL_FAULTS, "no expectations", "no SQL"])
def test_a_suite_that_can_not_be_judged_is_refused(
    fault: str, good: Tables, tmp_path: Path, refusal: Refusal
) -> None:
    unknown = {"type": "expect_column_values_to_be_pretty"} if fault == "type" else {}
    folder = changed_suite(tmp_path, SUITE_FAULTS.get(fault, unknown))
    if fault in SQL_FAULTS:
        (folder / "images.sql").write_text(SQL_FAULTS[fault], encoding="utf-8")
    if fault == "no expectations":
        (folder / "images.json").write_text("{}", encoding="utf-8")
    if fault == "no SQL":  # the rules in it were passed over
        (folder / "images.sql").unlink()
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


@pytest.mark.slow
def test_a_rule_of_another_type_is_judged_by_great_expectations(
    good: Tables, tmp_path: Path
) -> None:
    """DuckDB has no condition for it, and it isn't passed over."""
    mean = {
        "type": "expect_column_mean_to_be_between",
        "kwargs": {"column": "n_parts", "max_value": 0.5},
        "meta": {"rule": "few-parts", "severity": "warn", "message": "few parts"},
    }

    verdict = quality.check("images", good["images"], changed_suite(tmp_path, mean), good)

    [finding] = verdict.findings
    assert (finding.rule, finding.count) == ("few-parts", 1)
    assert finding.message == "few parts (observed 1.0)"


def test_suites_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    monkeypatch.chdir(SUITES.parent / "tests")
    assert quality.find_suites() == SUITES
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
