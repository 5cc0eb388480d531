"""Stages of a build: what one writes and the next reads; what is written in parts is what it is at
once."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdgbias.benchmark import build, items
from sdgbias.errors import UsageError
from sdgbias.raw.images import image_store
from sdgbias.raw.images.image_store import ImageSettings
from sdgbias.raw.indicators import Bins
from sdgbias.raw.synthetic import write_sample
from sdgbias.types import SDG, Stage, Task
from tests.builders.item_tables import make_clusters, make_images, make_series
from tests.builders.raw_folder import ONE, THREE, TWO, clusters_of, make_tile, put_photo, put_tile


def test_pictures_without_a_photo_are_near_duplicates_by_their_tiles(tmp_path: Path) -> None:
    """Two tiles that differ a little, and a third one with the same pixels and a photo beside it:
    that one shows something else."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    for cluster, light in ((ONE, 5.0), (TWO, 6.0), (THREE, 5.0)):
        put_tile(raw, cluster, make_tile(light=light))
    put_photo(raw, THREE, "1")
    build.write_table(out, "clusters", clusters_of(ONE, TWO, THREE))
    assert build.build_images(raw, out, ImageSettings(), 1) == (3, 0)
    index = pd.read_parquet(out / "images.parquet").set_index("cluster_id")
    assert index["image_id"].nunique() == 3
    assert index.loc[TWO, "image_group"] == index.loc[ONE, "image_id"]
    assert index.loc[THREE, "image_group"] == index.loc[THREE, "image_id"]


def test_few_pictures_start_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    run = image_store.run_shards
    monkeypatch.setattr(
        image_store, "run_shards", lambda draw, shards, n: started.append(n) or run(draw, shards, 1)
    )
    monkeypatch.setattr(build.os, "cpu_count", lambda: 4)
    write_sample(tmp_path / "raw", 3, 5)
    build.build_clusters(tmp_path / "raw", tmp_path / "b")
    for few, workers in ((4, None), (3, None), (3, 2)):
        monkeypatch.setattr(build, "FEW_PICTURES", few)
        build.build_images(tmp_path / "raw", tmp_path / "b", ImageSettings(), workers)
    assert started == [1, 4, 2], "a number that was asked for is taken"


def test_cuts_of_the_paper_bring_the_answers_near_table_b(tmp_path: Path) -> None:
    raw, gaps = tmp_path / "raw", {}
    write_sample(raw, 60, 0, None, False)
    for cuts in build.CUTS:
        draw = build.Draw(every=True, cuts=cuts)
        card = build.build(raw, raw / "indicators", tmp_path / cuts, draw)
        gaps[cuts] = sum(abs(row["gap"]) for row in card["table_b"])
    assert gaps["paper"] < gaps["ours"] / 2
    text = (tmp_path / "paper" / "README.md").read_text("utf-8")
    assert "cut at the quantiles that give Table B's shares" in text
    assert "The largest gap is" in text


def test_options_of_an_earlier_benchmark_are_kept(tmp_path: Path) -> None:
    """Terciles of other clusters would be others."""

    def options_of(seed: int, keep_bins: dict[str, Bins] | None = None) -> dict[str, Bins]:
        raw, out = tmp_path / f"raw{seed}", tmp_path / "b"
        if not raw.exists():
            write_sample(raw, 12, seed, None, False)
        job = build.Build(raw, raw / "indicators", out, build.Draw(every=True, keep_bins=keep_bins))
        for stage in (Stage.CLUSTERS, Stage.IMAGES, Stage.SERIES, Stage.ITEMS):
            job.run(stage)
        return build.earlier_bins(out)

    earlier = options_of(1)
    fresh, kept = options_of(2), options_of(2, earlier)

    both = [slug for slug in earlier if earlier[slug].labels and slug in fresh]
    assert any(fresh[slug] != earlier[slug] for slug in both)
    assert {slug: kept[slug] for slug in both} == {slug: earlier[slug] for slug in both}


@pytest.mark.parametrize("wrong", [{"cuts": "tercile"}, {"questions": "some"}])
def test_unknown_ways_to_cut_and_to_choose_name_the_valid_ones(wrong: dict[str, str]) -> None:
    draw = build.Draw(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="valid: .*paper"):
        draw.options()
        draw.indicators()


def test_tables_that_are_written_in_parts_hold_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = make_clusters()
    images = make_images(clusters)
    images = images.assign(image_group=images["image_id"], modalities="")
    candidates = items.find_candidates(clusters, images, make_series(), seed=0)
    for out, block, group in (
        (tmp_path / "a", items.BLOCK, build.GROUP),
        (tmp_path / "b", 99, 250),
    ):
        out.mkdir()
        monkeypatch.setattr(items, "BLOCK", block)
        monkeypatch.setattr(build, "GROUP", group)
        for task in Task:
            drawn = items.choose_items(candidates, mcq=None, regression=90)
            tables = (pa.Table.from_pandas(b, preserve_index=False) for b in drawn.blocks(task))
            build.write_parts(out / f"items_{task}.parquet", tables)
        build.build_prompts(out)
    for name in ("items_mcq", "items_regression", "prompts"):
        one, other = (pq.ParquetFile(tmp_path / at / f"{name}.parquet") for at in "ab")
        assert one.read().equals(other.read(), check_metadata=True)
        assert other.metadata.num_row_groups > 1 or len(one.read()) < 250


def test_the_papers_number_is_the_default_where_its_quotas_can_be_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "b"
    write_sample(raw, 12, 0, ["KE", "NI"], images=False)
    monkeypatch.setattr(items, "PAPER", {Task.MCQ: 9, Task.REGRESSION: 120})  # 12 x 9
    card = build.build(raw, raw / "indicators", out)
    assert card["counts"]["items_mcq"] == 9 and card["counts"]["items_regression"] > 50
    page = (out / "README.md").read_text(encoding="utf-8")
    assert "By default (mcq: the paper's quotas; regression: every question, as" in page
    build.build_items(out, build.Draw(every=True))
    notes = json.loads((out / "items_notes.json").read_text(encoding="utf-8"))
    assert notes["mcq"]["requested"] is None and "by_default" not in notes["asked"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("origin.json", '{"release": true}', "holds another benchmark"),
        ("origin.json", "{", "origin.json can't be read.*or delete that file"),
        ("benchmark.json", "", "benchmark.json can't be read.*or delete that file"),
        ("README.md", "my notes", "README.md is no benchmark's and would be replaced"),
    ],
)
def test_a_build_spares_what_is_not_of_its_suite(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says):
        build.refuse_other_suite(tmp_path, SDG)


def test_a_build_without_pictures_removes_no_picture_of_others(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "b"
    write_sample(raw, 12, 0, ["KE", "NI"], images=False)
    (out / "images").mkdir(parents=True)
    (out / "images" / "one.png").write_bytes(b"")
    build.build_clusters(raw, out)
    build.build_images(raw, out, None)
    assert (out / "images" / "one.png").exists()
