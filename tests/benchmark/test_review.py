"""Human review: a sample that stays put, CSVs as people return them, agreement by the book, and
nobody's work overwritten."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias.benchmark.review import draw_sample, import_reviews, load_verdicts
from sdgbias.benchmark.review.sheet import write_sheets
from sdgbias.benchmark.review.verdicts import COLUMNS, read_verdicts
from sdgbias.errors import InputError, SdgbiasError, UsageError
from sdgbias.raw.images.shards import store_images
from tests.builders.item_tables import CODES, build_items, make_clusters, make_series
from tests.builders.review import picture, write_benchmark

HEADER = ",".join(COLUMNS)


@pytest.fixture(scope="module")
def benchmark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("review") / "benchmark")


@pytest.fixture
def sheets(benchmark_folder: Path, tmp_path: Path) -> Path:
    return write_sheets(
        benchmark_folder, tmp_path / "sheets", share=0.1, reviewers=["anna", "ben"]
    ).out


def key_set(sample: pd.DataFrame) -> set[tuple[str, int]]:
    return set(zip(sample["task"], sample["item_id"], strict=True))


def fill(path: Path, verdicts: list[str], out: Path) -> Path:
    """A reviewer's CSV with its first rows filled: 'accept', 'reject ambiguous', ''; the rest is
    accepted."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    words = [*verdicts, *["accept"] * len(table)][: len(table)]
    table["verdict"] = [word.split(" ")[0] for word in words]
    table["reason"] = [word.partition(" ")[2] for word in words]
    table.to_csv(out, index=False)
    return out


# --- the sample


def test_sample_is_a_share_of_every_stratum(benchmark_folder: Path) -> None:
    sample = draw_sample(benchmark_folder, 0.25)
    items = pd.concat(
        pd.read_parquet(benchmark_folder / f"items_{t}.parquet").assign(task=t)
        for t in ("mcq", "regression")
    )
    of = items.groupby(
        ["task", "indicator", "cname"]
    ).size()  # 12 each, but for duplicates: 3 of 12
    drawn = sample.groupby(["task", "indicator", "cname"]).size().reindex(of.index, fill_value=0)
    assert ((drawn - 0.25 * of).abs() < 1).all()
    pillars = sample.groupby(["task", "pillar"]).size() / items.groupby(["task", "pillar"]).size()
    assert len(pillars) == 6 and ((pillars - 0.25).abs() < 0.02).all()
    assert sample["no"].tolist() == list(range(1, len(sample) + 1))


def test_no_stratum_is_left_out_and_the_whole_can_be_drawn(benchmark_folder: Path) -> None:
    few = draw_sample(benchmark_folder, 0.0001)
    assert few.groupby(["task", "indicator"]).size().tolist() == [1] * (14 + 9)
    assert len(draw_sample(benchmark_folder, 1)) == 60 * (14 + 9)


def test_a_country_more_changes_nothing_for_the_others(
    benchmark_folder: Path, tmp_path: Path
) -> None:
    more = write_benchmark(tmp_path / "more", codes=(*CODES, "PE"), images=False)
    before, after = draw_sample(benchmark_folder, 0.1), draw_sample(more, 0.1)
    assert key_set(after[after["cname"] != "PE"]) == key_set(before)
    assert after["cname"].eq("PE").any()
    order = after[after["cname"] != "PE"]["item_id"].tolist()
    assert order == before["item_id"].tolist()


def test_a_cluster_more_changes_one_item_of_a_stratum_at_most(
    benchmark_folder: Path, tmp_path: Path
) -> None:
    more = write_benchmark(tmp_path / "more", each=13, images=False)
    strata = [
        frame.groupby(["task", "indicator", "cname"])["item_id"].agg(set)
        for frame in (draw_sample(benchmark_folder, 0.2), draw_sample(more, 0.2))
    ]
    gone = [len(ids - strata[1].get(name, set())) for name, ids in strata[0].items()]
    assert max(gone) <= 1 and np.mean(gone) < 0.5


def test_order_of_the_tables_does_not_matter_and_the_seed_does(
    benchmark_folder: Path, tmp_path: Path
) -> None:
    for name in ("items_mcq", "items_regression"):
        table = pd.read_parquet(benchmark_folder / f"{name}.parquet")
        table.sample(frac=1, random_state=1).to_parquet(tmp_path / f"{name}.parquet")
    first = draw_sample(benchmark_folder, 0.1)
    pd.testing.assert_frame_equal(first, draw_sample(tmp_path, 0.1))
    assert len(key_set(first) & key_set(draw_sample(benchmark_folder, 0.1, seed=1))) < 0.3 * len(
        first
    )
    # pinned: another machine draws the same
    assert first["item_id"].head(3).tolist() == [47956551645608, 165588467929775, 66599260401705]


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_share_must_be_a_share(benchmark_folder: Path, share: float) -> None:
    with pytest.raises(UsageError, match="--share"):
        draw_sample(benchmark_folder, share)


def test_no_benchmark(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="items_mcq.parquet: not there.*sdgbias build"):
        draw_sample(tmp_path)
    (tmp_path / "items_mcq.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="items_mcq.parquet: can't be read"):
        draw_sample(tmp_path)


# --- the sheets


def files(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_same_benchmark_same_sheets(benchmark_folder: Path, sheets: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_sheets(benchmark_folder, again, share=0.1, reviewers=["anna", "ben"])
    written = files(sheets)
    assert files(again) == written
    assert {"sheet.html", "README.md"} <= set(written)
    assert not [name for name in written if ".part" in name]
    facts = json.loads(written["sample.json"])
    table = read_verdicts(sheets / "anna.csv")
    assert facts["items"] == len(table) == sum(row["n"] for row in facts["strata"])
    assert facts["benchmark_id"] == "0123456789abcdef"
    assert (table["verdict"] == "").all()


def test_what_a_spreadsheet_gets_is_text(sheets: Path) -> None:
    data = (sheets / "anna.csv").read_bytes()
    assert data.startswith(b"\xef\xbb\xbf" + HEADER.encode() + b"\r\n")
    ids = pd.read_csv(sheets / "anna.csv", encoding="utf-8-sig")["item_id"]
    assert ids.str.fullmatch(r"(mcq|regression)-\d+").all()


def with_pictures(folder: Path, parts: list[bytes]) -> Path:
    """A benchmark of two places that show these bytes, each followed by the place's name."""
    clusters = make_clusters(("KE",), 2)
    stored = (
        (name, "", [part + name.encode() for part in parts]) for name in clusters["cluster_id"]
    )
    index = store_images(folder, stored)
    made = build_items(clusters, index, make_series(("KE",)), mcq=None, regression=None, seed=0)
    for name in ("items_mcq", "items_regression"):
        getattr(made, name).to_parquet(folder / f"{name}.parquet")
    index.to_parquet(folder / "images.parquet")
    (folder / "benchmark.json").write_text('{"benchmark_id": "0123456789abcdef"}')
    return folder


def test_pictures_carry_no_metadata_and_no_surprise(tmp_path: Path) -> None:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x010E] = "taken at home"
    Image.new("RGB", (2000, 1000), "red").save(buffer, "JPEG", exif=exif, comment=b"a name")
    write_sheets(with_pictures(tmp_path / "b", [buffer.getvalue()]), tmp_path / "s", share=1)
    found = list((tmp_path / "s" / "images").iterdir())
    assert len(found) == 2
    for path in found:
        assert b"taken at home" not in path.read_bytes() and b"a name" not in path.read_bytes()
        with Image.open(path) as shown:
            assert shown.format == "JPEG" and shown.size == (800, 400)


def test_interrupted_sheets_are_completed(benchmark_folder: Path, sheets: Path) -> None:
    whole = files(sheets)
    (sheets / "sheet.html").unlink()
    lost = sorted((sheets / "images").iterdir())[:3]
    kept = sorted((sheets / "images").iterdir())[3]
    before = kept.stat().st_mtime_ns
    for path in lost:
        path.unlink()
    (sheets / "images" / f".{lost[0].name}.part").write_bytes(b"half")
    write_sheets(benchmark_folder, sheets, share=0.1, reviewers=["anna", "ben"])
    assert files(sheets) == whole
    assert kept.stat().st_mtime_ns == before  # not drawn again


def test_nobodys_work_is_overwritten(benchmark_folder: Path, sheets: Path) -> None:
    mine = fill(sheets / "anna.csv", ["reject other"], sheets / "anna.csv").read_bytes()
    again = write_sheets(benchmark_folder, sheets, share=0.1, reviewers=["anna", "ben", "cem"])
    assert again.kept == ("anna.csv",) and "anna.csv" in "\n".join(again.lines())
    assert (sheets / "anna.csv").read_bytes() == mine and (sheets / "cem.csv").is_file()
    before = files(sheets)
    for names in (["anna", "ben"], ["dora", "emil"]):  # also those who aren't named any more
        with pytest.raises(UsageError, match=r"anna\.csv.*another sample.*--out"):
            write_sheets(benchmark_folder, sheets, share=0.2, reviewers=names)
    assert files(sheets) == before
    (sheets / "ben.csv").write_bytes(b"PK\x03\x04 a workbook")
    assert (
        "ben.csv"
        in write_sheets(benchmark_folder, sheets, share=0.1, reviewers=["anna", "ben"]).kept
    )


def test_an_untouched_sheet_can_be_drawn_anew(benchmark_folder: Path, sheets: Path) -> None:
    made = write_sheets(benchmark_folder, sheets, share=0.02, reviewers=["anna", "ben"])
    assert len(list((sheets / "images").iterdir())) == made.images < 60
    assert len(read_verdicts(sheets / "ben.csv")) == made.items


@pytest.mark.parametrize(
    "names", ["anna", "anna,Anna", "../x,ben", "a/b,ben", "adjudicator,ben", ", "]
)
def test_names_of_reviewers(benchmark_folder: Path, tmp_path: Path, names: str) -> None:
    with pytest.raises(UsageError, match="--reviewers"):
        write_sheets(benchmark_folder, tmp_path / "s", reviewers=names.split(","))
    assert not (tmp_path / "s").exists()


def test_a_benchmark_without_images(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b", each=2, images=False)
    made = write_sheets(folder, tmp_path / "s", share=0.2)
    assert made.images == 0 and made.without_image == made.items > 0
    assert "no image" in "\n".join(made.lines()) and not list((tmp_path / "s" / "images").glob("*"))


@pytest.mark.parametrize(
    ("parts", "id_prefix", "words"),
    [
        ([b"no picture"], "", "can't be decoded.*sdgbias build"),
        ([picture("x")], "../../", "climbs out of"),
    ],
)
def test_a_picture_that_can_not_be_shown_is_named(
    tmp_path: Path, parts: list[bytes], id_prefix: str, words: str
) -> None:
    folder = with_pictures(tmp_path / "b", parts)
    for name in ("items_mcq", "items_regression", "images"):
        table = pd.read_parquet(folder / f"{name}.parquet")
        table.assign(image_id=id_prefix + table["image_id"]).to_parquet(folder / f"{name}.parquet")
    with pytest.raises(InputError, match=words):
        write_sheets(folder, tmp_path / "s", share=0.2)


# --- import


@pytest.fixture
def returned(sheets: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two reviewers' CSVs: agreed; agreed, 2 reasons; disagreed; disagreed; one only; none;
    disagreed; and accepted by both from there on."""
    anna = ["accept", "reject ambiguous", "accept", "reject wrong-gold", "", "", "reject"]
    ben = ["accept", "reject other", "reject other", "accept", "reject other", "", "accept"]
    return (
        fill(sheets / "anna.csv", anna, tmp_path / "anna.csv"),
        fill(sheets / "ben.csv", ben, tmp_path / "ben.csv"),
    )


def test_two_reviewers(benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path) -> None:
    made = import_reviews(*returned, benchmark_folder, tmp_path / "reviews.parquet")
    n = len(read_verdicts(returned[0]))
    counts = {"items": n, "by_both": n - 2, "by_one": 1, "by_none": 1, "disagreed": 3, "open": 3}
    assert made.figures.items() >= counts.items()
    assert made.to_adjudicate == tmp_path / "reviews-disagreements.csv"
    asked = pd.read_csv(made.to_adjudicate, encoding="utf-8-sig", keep_default_na=False)
    assert len(asked) == 3 and (asked["verdict"] == "").all()
    assert "anna accept | ben reject (other)" in asked["said"].tolist()


def test_the_adjudicator_decides_what_two_disagree_on(
    benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path
) -> None:
    ids = read_verdicts(returned[0])[["task", "item_id"]]
    third, out = tmp_path / "cem.csv", tmp_path / "reviews.parquet"
    decided = ids.iloc[[0, 2, 3]].assign(
        verdict=["reject", "reject", "accept"], reason=["other", "image-unusable", ""]
    )
    decided.to_csv(third, index=False)

    made = import_reviews(*returned, benchmark_folder, out, third)

    n, f = len(ids), made.figures
    assert (f["adjudicated"], f["open"], f["agreed"], f["rejected"]) == (2, 1, n - 5, 2)
    table = pd.read_parquet(out)
    assert list(table) == ["task", "item_id", "verdict", "by", "reason"] and len(table) == n - 3
    got = table.set_index(["task", "item_id"])
    assert [got.loc[tuple(ids.iloc[at])].tolist() for at in (0, 1, 2, 3)] == [
        ["accepted", "anna+ben", ""],  # the adjudicator isn't asked where two agree
        ["rejected", "anna+ben", "ambiguous+other"],
        ["rejected", "cem", "image-unusable"],
        ["accepted", "cem", ""],
    ]
    assert f["reasons"] == {"ambiguous": 1, "image-unusable": 1, "other": 1}
    words = "\n".join(made.lines())
    assert "cem.csv: 1 verdicts on items without a disagreement" in words
    assert "Cohen's kappa" in words and f"sdgbias build --review {out}" in words
    assert json.loads(out.with_suffix(".json").read_text()) == f
    whole = f["agreement"][0]
    assert (whole["task"], whole["n"]) == ("all", n - 2)
    assert whole["agree"] == pytest.approx((n - 5) / (n - 2), abs=1e-6)
    mcq = next(row for row in f["verdicts"] if row["task"] == "mcq" and row["pillar"] == "all")
    assert mcq["n"] == (table["task"] == "mcq").sum()
    assert 0 <= mcq["low"] <= mcq["share"] <= mcq["high"] <= 1
    rows = [row for row in f["verdicts"] if row["pillar"] != "all"]
    pillars = [row for row in rows if row["indicator"] == "all"]
    indicators = [row for row in rows if row["indicator"] != "all"]
    assert (len(pillars), len(indicators)) == (6, 23)
    assert sum(row["n"] for row in pillars) == sum(row["n"] for row in indicators) == len(got)


def test_import_is_the_same_whatever_the_order_of_rows(
    benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path
) -> None:
    import_reviews(*returned, benchmark_folder, tmp_path / "a" / "reviews.parquet")
    for path in returned:
        pd.read_csv(path, dtype=str).sample(frac=1, random_state=3).to_csv(path, index=False)
    import_reviews(*returned, benchmark_folder, tmp_path / "b" / "reviews.parquet")
    assert files(tmp_path / "a") == files(tmp_path / "b") and len(files(tmp_path / "a")) == 3


def test_half_filled_partial_and_copied_csvs_are_counted(
    benchmark_folder: Path, sheets: Path, tmp_path: Path
) -> None:
    first = fill(sheets / "anna.csv", [""] * 1000, tmp_path / "anna.csv")
    table = pd.read_csv(first, dtype=str, keep_default_na=False)
    table.loc[:4, "verdict"] = "accept"
    table.loc[5:6, "comment"] = "come back"
    table.loc[7, "reason"] = "other"
    table.to_csv(first, index=False)
    second = Path(shutil.copy(first, tmp_path / "ben.csv"))
    made = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet")
    assert (made.figures["by_both"], made.figures["by_none"]) == (5, len(table) - 5)
    assert made.figures["agreement"][0]["kappa"] is None  # all accepted: undefined, not 1
    words = "\n".join(made.lines())
    assert "anna.csv: 3 rows have a reason or a comment and no verdict" in words
    assert "same to the byte" in words and "undefined" in words
    table.iloc[:3].to_csv(second, index=False)
    made = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet")
    assert (made.figures["by_both"], made.figures["by_one"]) == (3, 2)
    assert f"{len(table) - 3:,} items stand in one of the two CSVs only." in made.lines()
    assert not list(tmp_path.glob("*disagreements*"))


def test_nothing_reviewed_at_all(benchmark_folder: Path, sheets: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    made = import_reviews(sheets / "anna.csv", sheets / "ben.csv", benchmark_folder, out)
    assert made.figures["by_none"] == made.figures["items"]
    assert made.figures["agreement"] == [] and made.lines()
    assert load_verdicts(out).empty


def test_the_adjudicators_work_is_never_overwritten(
    benchmark_folder: Path, sheets: Path, tmp_path: Path
) -> None:
    first = fill(sheets / "anna.csv", ["accept", "accept"], tmp_path / "anna.csv")
    second = fill(sheets / "ben.csv", ["reject", "reject"], tmp_path / "ben.csv")
    out = tmp_path / "r.parquet"
    asked = import_reviews(first, second, benchmark_folder, out).to_adjudicate
    assert asked is not None
    text = asked.read_bytes().decode("utf-8-sig")
    asked.write_text(text.replace(",,,,", ",reject,other,,", 1), encoding="utf-8")
    mine = asked.read_bytes()
    more = import_reviews(first, second, benchmark_folder, out, asked)
    assert more.to_adjudicate == tmp_path / "r-disagreements-2.csv" and asked.read_bytes() == mine
    assert (more.figures["adjudicated"], more.figures["open"]) == (1, 1)


def test_imports_that_can_not_be(benchmark_folder: Path, sheets: Path, tmp_path: Path) -> None:
    first, second = sheets / "anna.csv", sheets / "ben.csv"
    strange, out = tmp_path / "cem.csv", tmp_path / "r.parquet"
    strange.write_text(f"{HEADER}\nmcq,5,accept,,\n")
    unknown = r"line 2: no item mcq-5 in .*\(1 such rows\); give --benchmark"
    cases: list[tuple[Path, Path, Path, type[SdgbiasError], str]] = [
        (strange, benchmark_folder, out, InputError, unknown),
        (first, benchmark_folder, out, UsageError, "two reviewers with one name"),
        (second, benchmark_folder, tmp_path / "r.csv", UsageError, "ends in .parquet"),
        (second, tmp_path, out, InputError, "sdgbias build"),
    ]
    for other, benchmark, to, kind, words in cases:
        with pytest.raises(kind, match=words):
            import_reviews(first, other, benchmark, to)
        assert not to.exists()
