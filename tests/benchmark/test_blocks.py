"""Long tables: what is judged, drawn and written in blocks is what it is at once."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdgbias.benchmark import build, items, quality
from sdgbias.raw.synthetic import write_sample
from sdgbias.types import Task
from tests.benchmark.test_quality_defects import DEFECTS
from tests.builders.item_tables import make_clusters, make_images, make_series
from tests.builders.quality import SUITES, Tables, save

#: The rules that compare rows with rows that can stand in another block.
ACROSS = {
    "items_mcq": (
        *("item-id-unique", "split-place-by-country", "indicator-uniform", "item-has-prompts"),
        *("duplicate-item", "near-duplicate-item", "answers-follow-values", "label-shares"),
    ),
    "items_regression": ("duplicate-item", "split-place-across-tasks"),
    "prompts": (
        *("prompts-complete", "prompt-item-exists", "context-values", "prompt-image-of-item"),
        *("tests-differ-in-context-only", "target-leak"),
    ),
}


@pytest.mark.parametrize("split", ["id", "place"])
def test_files_give_the_verdict_of_frames(split: str, tables: Tables, tmp_path: Path) -> None:
    for table, rules in ACROSS.items():
        for rule in rules:
            DEFECTS[table][rule](tables)
    folder = save(tables, tmp_path)
    files = {name: folder / f"{name}.parquet" for name in ACROSS}
    frames = {name: tables[name] for name in ACROSS}
    for table, rules in ACROSS.items():
        one = quality.check(table, tables[table], SUITES, frames, split)
        other = quality.check(table, files[table], SUITES, files, split)
        assert (one.counts, one.findings) == (other.counts, other.findings)
        assert (one.rows_ok == other.rows_ok).all() and one.skipped == other.skipped
        pd.testing.assert_frame_equal(one.quarantine, other.quarantine)
        assert [r for r in rules if r not in one.skipped and not one.counts[r]] == []


def test_a_table_without_rows_breaks_no_rule_of_rows(good: Tables, tmp_path: Path) -> None:
    folder = save({**good, "items_regression": good["items_regression"].iloc[:0]}, tmp_path)
    verdict = quality.check("items_regression", folder / "items_regression.parquet", SUITES)
    assert verdict.rows == 0 and len(verdict.counts) > 20 and not any(verdict.counts.values())


def test_tables_that_are_written_in_parts_hold_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = make_clusters()
    images = make_images(clusters)
    images["image_group"], images["modalities"] = images["image_id"], ""
    found = items.find_candidates(clusters, images, make_series(), seed=0)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def write(out: Path) -> None:
        for task in Task:
            built = items.choose_items(found, mcq=None, regression=90)
            tables = (pa.Table.from_pandas(b, preserve_index=False) for b in built.blocks(task))
            build.write_parts(out / f"items_{task}.parquet", tables)
        build.build_prompts(out)

    write(tmp_path / "a")
    monkeypatch.setattr(items, "BLOCK", 100)
    monkeypatch.setattr(build, "GROUP", 250)
    write(tmp_path / "b")
    for name in ("items_mcq", "items_regression", "prompts"):
        one, other = (pq.ParquetFile(tmp_path / at / f"{name}.parquet") for at in "ab")
        assert one.read().equals(other.read(), check_metadata=True)
        assert other.metadata.num_row_groups > 1 or len(one.read()) < 250


def test_the_paper_s_number_is_the_default_where_the_quotas_can_be_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters = make_clusters()
    found = items.find_candidates(clusters, make_images(clusters), make_series(), seed=0)
    assert [items.papers_number(found, task) for task in Task] == [None, None]
    monkeypatch.setattr(items, "PAPER", {Task.MCQ: 200, Task.REGRESSION: 10_000})
    assert [items.papers_number(found, task) for task in Task] == [200, None]


def test_a_build_without_numbers_says_in_its_card_what_it_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "b"
    write_sample(raw, 12, 0, ["KE", "NI"], images=False)
    monkeypatch.setattr(items, "PAPER", {Task.MCQ: 9, Task.REGRESSION: 10_000})
    card = build.build(raw, raw / "indicators", out)
    assert card["counts"]["items_mcq"] == 9 and card["counts"]["items_regression"] > 50
    page = (out / "README.md").read_text(encoding="utf-8")
    assert "By default (mcq: the paper's quotas; regression: every question, as" in page
    build.build_items(out, build.Draw(every=True))
    notes = json.loads((out / "items_notes.json").read_text(encoding="utf-8"))
    assert notes["mcq"]["requested"] is None and "by_default" not in notes["asked"]
