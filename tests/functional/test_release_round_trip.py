"""A benchmark of our own out into the authors' files and in again: nothing is lost, and a model can
be scored on it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark.build import build
from sdgbias.benchmark.release import export as release_files
from sdgbias.benchmark.release.authors import PARTS
from sdgbias.benchmark.release.export import export
from sdgbias.benchmark.release.import_ import import_
from sdgbias.errors import InputError, UsageError
from sdgbias.raw.images.shards import ImageReader, store_images


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def records(folder: Path, name: str) -> pd.DataFrame:
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return pd.DataFrame(map(json.loads, lines))


def assert_same_items(one: Path, two: Path) -> None:
    for name in ("items_mcq", "items_regression", "prompts"):
        before, after = (pd.read_parquet(folder / f"{name}.parquet") for folder in (one, two))
        pd.testing.assert_frame_equal(before, after)


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, small_benchmark: Path
) -> tuple[Path, Path, Path]:
    """(benchmark, its export, the export imported)."""
    base = tmp_path_factory.mktemp("release")
    export(small_benchmark, base / "release")
    import_(base / "release", base / "again")
    return small_benchmark, base / "release", base / "again"


def test_a_round_trip_loses_nothing(folders: tuple[Path, Path, Path]) -> None:
    benchmark, _, again = folders
    assert_same_items(benchmark, again)
    before, after = (
        pd.read_parquet(f / "images.parquet").set_index("image_id") for f in (benchmark, again)
    )
    shown = sorted(set(pd.read_parquet(benchmark / "prompts.parquet")["image_id"]))
    assert sorted(after.index) == shown
    for name in ("photo_id", "modalities"):
        assert (after[name] == before.loc[after.index, name]).all()
    ours, theirs = ImageReader(benchmark), ImageReader(again)
    assert all(ours[key] == theirs[key] for key in shown)
    assert json.loads((again / "origin.json").read_text())["synthetic"] is True


def test_a_round_trip_of_real_bytes(shared: Path, tmp_path: Path) -> None:
    """Real photos, tiles, labels and series: numbers as they are published, not as a generator
    rounds them."""
    build(shared / "realpack", shared / "indicators", tmp_path / "benchmark")
    export(tmp_path / "benchmark", tmp_path / "release")
    import_(tmp_path / "release", tmp_path / "again")
    assert_same_items(tmp_path / "benchmark", tmp_path / "again")
    assert len(pd.read_parquet(tmp_path / "again" / "items_mcq.parquet")) > 100


def test_the_files_come_back_byte_for_byte(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, release, again = folders
    export(again, tmp_path / "out")
    before, after = tree(release), tree(tmp_path / "out")
    assert before.pop("release.json") != after.pop(
        "release.json"
    )  # another benchmark_id: coordinates don't travel
    assert before == after


@pytest.mark.parametrize("text_view", ["none", "blank-image"])
def test_seven_data_files_and_fourteen_views(
    folders: tuple[Path, Path, Path], tmp_path: Path, text_view: str
) -> None:
    benchmark, release, _ = folders
    if text_view != "none":
        release = tmp_path
        export(benchmark, release, text_view)
    views = {f"{name}{suffix}" for name in PARTS for suffix in ("", "_text")}
    assert {path.stem for path in (release / "data").iterdir()} == set(PARTS)
    assert {path.stem for path in (release / "views").iterdir()} == views
    items = pd.read_parquet(benchmark / "items_mcq.parquet")
    prompts = pd.read_parquet(benchmark / "prompts.parquet")
    texts = prompts.query("task == 'mcq' and test == 'T2'")["text"]
    data, full, text = (
        records(release / folder, name)
        for folder, name in (("data", "mcq_T2"), ("views", "mcq_T2"), ("views", "mcq_T2_text"))
    )
    tail = "\nIgnore the image." if text_view == "blank-image" else ""
    for table, end in ((data, ""), (full, ""), (text, tail)):
        for name in ("item_id", "answer", "split"):
            assert list(table[name]) == list(items[name])
        assert list(table["question"]) == list(texts + end)
        assert set(table["level"]) == {"T2"}
        assert list(table["num_options"]) == [2 + (c != "") for c in items["option_c"]]
    pictures = [f"images/{i}.png" for i in items["image_id"]]
    assert list(full["image"]) == list(data["image"]) == pictures
    assert set(text["image"]) == {"images/blank.png" if tail else ""}
    assert (release / "images" / "blank.png").is_file()
    assert "cluster_id" in data.columns and "cluster_id" not in full.columns
    targets = set(pd.read_parquet(benchmark / "items_regression.parquet")["target"])
    assert set(records(release / "data", "regression_T5")["target"]) == targets


def test_an_interrupted_export_is_finished(
    folders: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, release, _ = folders
    with monkeypatch.context() as patch:
        patch.setattr(
            release_files, "write_part", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            export(benchmark, tmp_path / "out")
    with pytest.raises(InputError, match="interrupted; finish it"):
        import_(tmp_path / "out", tmp_path / "benchmark")
    with pytest.raises(UsageError, match="not empty"):
        export(benchmark, tmp_path / "out", "blank-image")
    export(benchmark, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(release)


def test_a_file_that_lost_lines_is_refused(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, release, _ = folders
    (tmp_path / "data").mkdir()
    (tmp_path / "release.json").write_bytes((release / "release.json").read_bytes())
    lines = (release / "data" / "mcq_T1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "data" / "mcq_T1.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(InputError, match=r"59 records, release.json says 60"):
        import_(tmp_path, tmp_path / "out")


def test_several_pictures_an_item(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Layout `several`: the record names the first picture, and all of them beside it."""
    benchmark, many = folders[0], tmp_path / "many"
    reader, index = ImageReader(benchmark), pd.read_parquet(benchmark / "images.parquet")
    many.mkdir()
    (many / "benchmark.json").write_bytes((benchmark / "benchmark.json").read_bytes())
    rows = index.sort_values("cluster_id")[["cluster_id", "photo_id", "image_id"]].to_numpy()
    parts = ((place, photo, (*reader[old], reader[old][0] + b"\0")) for place, photo, old in rows)
    stored = store_images(many, parts)
    stored.to_parquet(many / "images.parquet")
    new = index.merge(stored, on="cluster_id").set_index("image_id_x")["image_id_y"]
    for name in ("items_mcq", "items_regression", "prompts"):
        table = pd.read_parquet(benchmark / f"{name}.parquet")
        table["image_id"] = table["image_id"].map(new).astype("str")
        table.to_parquet(many / f"{name}.parquet")
    export(many, tmp_path / "release")
    first = records(tmp_path / "release" / "views", "mcq_T1").iloc[0]
    assert first["images"][0] == first["image"] and len(first["images"]) == 2
    import_(tmp_path / "release", tmp_path / "again")
    assert_same_items(many, tmp_path / "again")
    export(tmp_path / "again", tmp_path / "twice")
    before, after = tree(tmp_path / "release"), tree(tmp_path / "twice")
    assert before.pop("release.json") != after.pop("release.json") and before == after


def test_a_benchmark_without_images_is_no_release(tmp_path: Path) -> None:
    for card in ({"benchmark_id": "0" * 16, "images": "none"}, {"images": "composite"}):
        (tmp_path / "benchmark.json").write_text(json.dumps(card))
        with pytest.raises(InputError, match="--no-images"):
            export(tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="no benchmark here"):
        export(tmp_path / "nowhere", tmp_path / "out")
