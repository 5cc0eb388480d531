"""Stages of a build: what one writes and the next reads."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark import build
from sdgbias.errors import UsageError
from sdgbias.raw.images.image_store import ImageSettings
from sdgbias.raw.synthetic import write_sample
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


def test_cuts_of_the_paper_bring_the_answers_near_table_b(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_sample(raw, 240, 0, None, False)

    gaps = {}
    for cuts in build.CUTS:
        draw = build.Draw(every=True, cuts=cuts)
        card = build.build(raw, raw / "indicators", tmp_path / cuts, draw)
        gaps[cuts] = sum(abs(row["gap"]) for row in card["table_b"])

    assert gaps["paper"] < gaps["ours"] / 2
    text = (tmp_path / "paper" / "README.md").read_text("utf-8")
    assert "cut at the quantiles that give Table B's shares" in text
    assert "The largest gap is" in text


@pytest.mark.parametrize("wrong", [{"cuts": "tercile"}, {"questions": "some"}])
def test_unknown_ways_to_cut_and_to_choose_name_the_valid_ones(wrong: dict[str, str]) -> None:
    draw = build.Draw(**wrong)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="valid: .*paper"):
        draw.options()
        draw.indicators()
