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
    return pd.DataFrame(
        [
            json.loads(line)
            for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    )


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
    for name in ("items_mcq", "items_regression", "prompts"):
        pd.testing.assert_frame_equal(
            pd.read_parquet(benchmark / f"{name}.parquet"),
            pd.read_parquet(again / f"{name}.parquet"),
        )
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
    for name in ("items_mcq", "items_regression", "prompts"):
        ours, again = (
            pd.read_parquet(tmp_path / folder / f"{name}.parquet")
            for folder in ("benchmark", "again")
        )
        pd.testing.assert_frame_equal(ours, again)
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


def test_seven_data_files_and_fourteen_views(folders: tuple[Path, Path, Path]) -> None:
    benchmark, release, _ = folders
    names = list(PARTS)
    assert sorted(p.stem for p in (release / "data").iterdir()) == sorted(names)
    assert sorted(p.stem for p in (release / "views").iterdir()) == sorted(
        [*names, *(f"{n}_text" for n in names)]
    )
    assert (release / "images" / "blank.png").is_file()
    items = pd.read_parquet(benchmark / "items_mcq.parquet")
    prompts = pd.read_parquet(benchmark / "prompts.parquet").query("task == 'mcq' and test == 'T2'")
    data, full, text = (
        records(release / "data", "mcq_T2"),
        records(release / "views", "mcq_T2"),
        records(release / "views", "mcq_T2_text"),
    )
    for table in (data, full, text):
        assert list(table["item_id"]) == list(items["item_id"])
        assert list(table["question"]) == list(prompts["text"])
        assert list(table["answer"]) == list(items["answer"])
        assert list(table["split"]) == list(items["split"])
        assert set(table["level"]) == {"T2"}
        assert list(table["num_options"]) == [2 + (c != "") for c in items["option_c"]]
    assert (
        list(full["image"]) == list(data["image"]) == [f"images/{i}.png" for i in items["image_id"]]
    )
    assert set(text["image"]) == {""}
    assert "cluster_id" in data.columns
    assert "cluster_id" not in full.columns
    assert set(records(release / "data", "regression_T5")["target"]) == set(
        pd.read_parquet(benchmark / "items_regression.parquet")["target"]
    )


def test_blank_text_views(small_benchmark: Path, tmp_path: Path) -> None:
    export(small_benchmark, tmp_path, "blank-image")
    full, text = records(tmp_path / "views", "mcq_T1"), records(tmp_path / "views", "mcq_T1_text")
    assert list(text["question"]) == [q + "\nIgnore the image." for q in full["question"]]
    assert set(text["image"]) == {"images/blank.png"}


def test_an_interrupted_export_is_finished(
    folders: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, release, _ = folders
    with monkeypatch.context() as patch:
        patch.setattr(
            release_files, "_write_part", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
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
    for name in ("release.json", "data/mcq_T1.jsonl"):
        (tmp_path / name).write_bytes((release / name).read_bytes())
    path = tmp_path / "data" / "mcq_T1.jsonl"
    path.write_text(
        "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"59 records, release.json says 60"):
        import_(tmp_path, tmp_path / "out")


def test_several_pictures_an_item(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Layout `several`: the record names the first picture, and all of them beside it."""
    benchmark, _, _ = folders
    reader, index = ImageReader(benchmark), pd.read_parquet(benchmark / "images.parquet")
    many = tmp_path / "many"
    many.mkdir()
    for name in ("items_mcq", "items_regression", "prompts"):
        pd.read_parquet(benchmark / f"{name}.parquet").to_parquet(many / f"{name}.parquet")
    (many / "benchmark.json").write_bytes((benchmark / "benchmark.json").read_bytes())
    extra = {old: reader[old][0] + b"\0" for old in index["image_id"]}
    rows = zip(index["cluster_id"], index["photo_id"], index["image_id"], strict=True)
    made = store_images(many, [(c, p, (reader[i][0], extra[i])) for c, p, i in sorted(rows)])
    made.to_parquet(many / "images.parquet")
    new = index.merge(made, on="cluster_id").set_index("image_id_x")["image_id_y"]
    for name in ("items_mcq", "items_regression", "prompts"):
        table = pd.read_parquet(many / f"{name}.parquet")
        table.assign(image_id=table["image_id"].map(new).astype("str")).to_parquet(
            many / f"{name}.parquet"
        )
    export(many, tmp_path / "release")
    first = records(tmp_path / "release" / "views", "mcq_T1").iloc[0]
    assert first["images"][0] == first["image"]
    assert len(first["images"]) == 2
    import_(tmp_path / "release", tmp_path / "again")
    for name in ("items_mcq", "prompts"):
        pd.testing.assert_frame_equal(
            pd.read_parquet(many / f"{name}.parquet"),
            pd.read_parquet(tmp_path / "again" / f"{name}.parquet"),
        )
    export(tmp_path / "again", tmp_path / "twice")
    assert {k: v for k, v in tree(tmp_path / "twice").items() if k != "release.json"} == {
        k: v for k, v in tree(tmp_path / "release").items() if k != "release.json"
    }


def test_a_benchmark_without_images_is_no_release(tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text(
        json.dumps({"benchmark_id": "0" * 16, "images": "none"})
    )
    with pytest.raises(InputError, match="--no-images"):
        export(tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="no benchmark here"):
        export(tmp_path / "nowhere", tmp_path / "out")
