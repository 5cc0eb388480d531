"""A results file that the version before wrote (schema 15, commit 6873785e: six runs of
tests/golden, with a part of their numbers) becomes one of this version when it is opened."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import duckdb
import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.store import database, migrate, night_files
from sdgbias.suites.rows import KEY
from tests.builders.store_rows import REPOSITORY, child, unpacked_earlier


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return unpacked_earlier(tmp_path)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, pd.DataFrame]]:
    """A file of schema 19 and the rows that it had then; nobody may change it."""
    path = unpacked_earlier(tmp_path_factory.mktemp("studied"), 19)
    return path, {name: raw(path, f"FROM {name}") for name in ("metric_rows", "study_rows")}


def raw(path: Path, sql: str) -> pd.DataFrame:
    with duckdb.connect(str(path), read_only=True) as con:
        return con.execute(sql).df()


def test_the_public_view_shows_the_same_numbers(earlier: Path) -> None:
    sql = "SELECT * FROM metrics ORDER BY ALL"
    before = raw(earlier, sql)

    after = store.query(earlier, sql)

    assert len(before) > 1000
    pd.testing.assert_frame_equal(after, before)
    settings = store.query(earlier, "SELECT DISTINCT settings FROM analyses")["settings"]
    assert [json.loads(text) for text in settings] == [{"bootstrap": 200, "draws": 300, "seed": 0}]
    assert store.query(earlier, "FROM numbers WHERE study = 'settings'").empty


def test_every_row_of_the_schema_before_is_a_number_of_today(
    studied: tuple[Path, dict[str, pd.DataFrame]],
) -> None:
    """Its runs are golden ones, so every number is among those that are computed today, but for the
    share of answers without a letter, which `unparsed_rate` counts, for first tokens that are no
    candidate, which are counted by question now, for calibration errors, risks, gains by divergence
    and CTX+Q over all tests and in studies, which have other intervals, and for what is computed no
    more."""
    (path, rows), key = studied, ["run_id", *KEY]

    after = store.query(path, "FROM numbers")

    assert len(after) == sum(map(len, rows.values())) > 10_000
    today = pd.read_parquet(REPOSITORY / "tests" / "golden" / "numbers.parquet")
    no_letter = after["metric"] == "share_"
    assert no_letter.sum() == 2
    gone = no_letter | after["method"].isin(["cc", "cade_cut"]) | (after["parameter"] == "country")
    both = after[~gone].merge(today, on=key, how="left", suffixes=("", "_today"), indicator=True)
    assert set(both["_merge"]) == {"both"}
    both = both[~both["metric"].isin(["off_candidate_rate", "ece_width", "ece_mass"])]
    both = both[~both["study"].isin(["selective", "divergence"])]
    of_context = (both[["method", "versus"]] == "ctx_q").any(axis=1)
    same = (both["test"] != "all") & both["study"].isin(["headline", "methods"])
    both = both[~of_context | same]
    for column in ("value", "n", "low", "high", "p_adjusted"):
        expected = both[f"{column}_today"].astype(float)
        np.testing.assert_allclose(both[column].astype(float), expected, atol=1e-9)


#: Rows of the schema before, and how their joined names became columns.
JOINED = {
    "study = 'headline' AND other = 'dark' AND x = 52": {
        **{"attribute": "skin", "group": "light", "metric": "disparity", "indicator": "all"}
    },
    "study = 'groups' AND metric = 'disparity_change' AND other = 'rural'": {
        **{"attribute": "urban", "group": "urban", "versus": "full", "p_adjusted": None}
    },
    "study = 'groups' AND indicator = 'women_bmi' AND attribute = 'urban x wealth'": {
        **{"group": "rural x middle", "metric": "mae", "missing_reason": "fewer than 20"}
    },
    "study = 'harm' AND metric = 'share_of_flips_by_first_term'": {
        **{"parameter": "context", "attribute": "pillar"}
    },
}


def test_joined_names_become_columns_and_a_p_its_two(
    studied: tuple[Path, dict[str, pd.DataFrame]],
) -> None:
    path, then = studied
    before = then["study_rows"].query("study == 'paired'")["p"].min()

    with store.held_open(path):
        for where, expected in JOINED.items():
            rows = store.query(path, f"FROM numbers WHERE {where}").astype(object)
            rows = rows.where(rows.notna(), None)[list(expected)].to_dict("records")
            assert expected in rows, where

    rows = store.query(path, "FROM numbers WHERE study = 'paired'")
    corrected = rows[rows["p_adjusted"].notna()]
    assert len(corrected) > 20 and (corrected["p"] <= corrected["p_adjusted"] + 0.0005).all()
    assert corrected["note"].str.contains(r"Holm over \d+ tests$").all()
    assert corrected["p_adjusted"].min() == before


def test_a_file_with_the_numbers_of_today_is_copied_as_it_is(earlier: Path) -> None:
    sql = "FROM numbers ORDER BY ALL"
    before = store.query(earlier, sql)
    with duckdb.connect(str(earlier)) as con:
        con.execute("UPDATE schema_version SET version = 20")
        con.execute("CREATE VIEW metric_rows AS FROM numbers WHERE study = 'headline'")
    migrate.CURRENT.clear()

    after = store.query(earlier, sql)

    pd.testing.assert_frame_equal(after, before)
    assert database.version(earlier, 1) == database.SCHEMA
    assert raw(earlier, "FROM duckdb_views() WHERE view_name = 'metric_rows'").empty


def test_the_old_file_stays_beside_the_new_one(earlier: Path) -> None:
    before = earlier.read_bytes()

    by_view = store.query(earlier, 'SELECT "view", count(*) AS n FROM scores GROUP BY 1')
    store.query(earlier, "FROM runs")

    assert by_view["n"].sum() == 400
    assert database.version(earlier, 1) == database.SCHEMA
    kept = list(earlier.parent.glob("*.schema*"))
    assert [path.name for path in kept] == ["results.schema15.duckdb"]
    assert kept[0].read_bytes() == before


def test_old_files_of_one_name_are_all_kept(earlier: Path) -> None:
    before, second = earlier.read_bytes(), earlier.with_name("results.schema15-2.duckdb")
    store.query(earlier, "FROM runs")
    earlier.write_bytes(before)
    second.write_bytes(b"kept before")
    migrate.CURRENT.clear()

    store.publish(earlier, {"run_id": "new", "model": "new", "benchmark_id": "b"}, {})

    assert len(store.run_ids(earlier)) == 7, "a writer migrates, too"
    assert second.read_bytes() == b"kept before"
    assert {path.name for path in earlier.parent.glob("*.schema*")} == {
        "results.schema15.duckdb",
        "results.schema15-2.duckdb",
        "results.schema15-3.duckdb",
    }


def test_a_process_that_is_killed_meanwhile_leaves_the_old_file(earlier: Path) -> None:
    before = earlier.read_bytes()
    code = f"""
from sdgbias import store
store.database.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
store.query({str(earlier)!r}, "FROM runs")
"""

    assert child(code).wait() == -9

    assert earlier.read_bytes() == before
    assert len(store.query(earlier, "FROM runs")) == 6


#: What the rows of an earlier file are before it is opened: a model of people that wasn't
#: understood, as it was stored; an endpoint that gave text alone; two nights.
CHANGED = """
UPDATE metric_rows SET note = 'no answer understood', "value" = NULL
    WHERE run_id = 'tiny-qwen' AND test = 'p1' AND metric = 'disparity';
UPDATE metric_rows SET "value" = 0 WHERE run_id = 'tiny-qwen' AND test = 'p1'
    AND method = 'full' AND metric = 'recall';
UPDATE runs SET config = '{"gives_scores": false}' WHERE suite = 'sdg';
DELETE FROM metric_rows WHERE method = 'cade';
INSERT INTO nights (night, status) VALUES ('2026-11-20T0130', 'running'),
    ('2026-11-21T0130', 'done');
INSERT INTO night_models (night, model, suite, outcome, attempts)
    VALUES ('2026-11-21T0130', 'm', 'sdg', 'published', 2);
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = unpacked_earlier(tmp_path_factory.mktemp("changed"))
    with duckdb.connect(str(path)) as con:
        con.execute(CHANGED)
    night_files.write(path, "nights", {"night": "2026-11-20T0130", "status": "done"})
    for night in ("2026-11-21T0130", "2026-11-22T0130"):  # the second isn't in the file yet
        file = night_files.path_of(path, "nights", {"night": night})
        file.parent.mkdir(parents=True)
        outcomes = [{"night": night, "model": "n", "suite": "sdg", "attempts": 3, "was": "more"}]
        content = {"night": {"night": night, "status": "failed"}, "outcomes": outcomes, "starts": 2}
        file.write_text(json.dumps(content))
    return path


def test_a_number_that_is_not_there_says_why(changed: Path) -> None:
    rows = store.query(changed, "FROM numbers WHERE study = 'headline' AND method = 'full'")

    empty = rows["value"].isna()
    assert (rows.loc[empty, "missing_reason"].notna()).all()
    assert rows.loc[~empty, "missing_reason"].isna().all()
    silent = rows[(rows["run_id"] == "tiny-qwen") & (rows["test"] == "p1")]
    recall = silent[silent["metric"] == "recall"]
    assert set(recall["missing_reason"]) == {"no answer understood"} and len(recall) > 1
    assert set(rows.loc[empty, "missing_reason"]) >= {"fewer than 20"}


def test_what_the_model_of_an_earlier_run_could_not_have_says_why(changed: Path) -> None:
    sql = "FROM numbers WHERE study = 'headline' AND method = 'cade' AND metric = 'accuracy_gain'"
    rows = store.query(changed, sql)

    assert set(rows["missing_reason"]) == {"needs log-probabilities"}
    assert set(rows["test"]) >= {"T1", "all"} and rows["value"].isna().all()


def test_rows_of_nights_become_files_but_where_a_newer_file_is(changed: Path) -> None:
    sql = """SELECT n.night[9:10] AS day, n.status, n.starts, o.model, o.attempts FROM nights n
             LEFT JOIN night_outcomes o USING (night) ORDER BY ALL"""

    rows = store.query(changed, sql).astype(object)

    assert rows.where(rows.notna(), None).values.tolist() == [
        ["20", "done", None, None, None],
        ["21", "failed", 2, "m", 2],
        ["21", "failed", 2, "n", 3],
        ["22", "failed", 2, "n", 3],
    ]
    assert (
        changed.with_suffix(".nights") / "2026-11-21T0130" / "outcomes" / "m-sdg.json"
    ).is_file()


NIGHTS = ("2026-11-20T0130", "2026-11-21T0130")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder of nights as earlier versions had it: one of a.duckdb, one of b.duckdb."""
    folder = tmp_path / "nights"
    for night, name in zip(NIGHTS, "ab", strict=True):
        (folder / night / "outcomes").mkdir(parents=True)
        record = {"night": night, "status": "done", "config": {"results": f"results/{name}.duckdb"}}
        (folder / night / "night.json").write_text(json.dumps(record) + "\n")
        outcome = {
            "night": night,
            "model": "m",
            "suite": "sdg",
            "log": f"nights/{night}/logs/m.log",
        }
        (folder / night / "outcomes" / "m-sdg.json").write_text(json.dumps(outcome) + "\n")
    return folder


def logs(results: Path) -> list[str]:
    return list(night_files.query(results, "SELECT log FROM night_outcomes ORDER BY night")["log"])


def test_results_files_of_one_folder_get_their_nights_out_of_the_shared_one(shared: Path) -> None:
    a, b, none = (shared.with_name(f"{name}.duckdb") for name in ("a", "b", "none"))
    file = shared / NIGHTS[1] / "night.json"
    file.write_text(f'{{"night": {file.read_text()}, "outcomes": []}}')  # as before schema 19

    assert logs(none) == []
    assert logs(a) == [f"a.nights/{NIGHTS[0]}/logs/m.log"]
    assert logs(b) == [f"b.nights/{NIGHTS[1]}/logs/m.log"]
    assert not shared.exists() and (shared.with_name("b.nights") / NIGHTS[1]).is_dir()


def test_months_that_are_over_are_copied_where_other_results_have_nights_too(shared: Path) -> None:
    earlier = shared.with_name("earlier") / "a.duckdb"
    night_files.write(earlier, "nights", {"night": "2026-10-01T0130", "status": "done"})
    night_files.compact(earlier, "2026-11")
    for month in night_files.home(earlier).glob("*.parquet"):
        month.rename(shared / month.name)

    for name, night in zip("ab", NIGHTS, strict=True):
        results = shared.with_name(f"{name}.duckdb")
        nights = night_files.query(results, "SELECT night FROM nights ORDER BY night")["night"]
        assert list(nights) == ["2026-10-01T0130", night]


def test_a_folder_of_that_name_without_nights_is_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "nights").mkdir()
    (tmp_path / "nights" / "notes.txt").write_text("mine")
    assert logs(tmp_path / "a.duckdb") == []
    assert (tmp_path / "nights" / "notes.txt").is_file()


def test_shared_nights_are_read_where_nothing_may_be_written(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError))

    assert logs(shared.with_name("a.duckdb")) == [f"nights/{night}/logs/m.log" for night in NIGHTS]
