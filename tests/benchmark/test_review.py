"""Human review: a sample that stays put, agreement by the book, and nobody's work overwritten."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias.benchmark.review import draw_sample, import_reviews, kappa, load_verdicts, read_items
from sdgbias.benchmark.review.sheet import write_sheets
from sdgbias.benchmark.review.verdicts import COLUMNS, read_verdicts
from sdgbias.errors import UsageError
from sdgbias.types import Task
from tests.builders.item_tables import CODES
from tests.builders.refusals import Refusal
from tests.builders.review import write_benchmark

HEADER = ",".join(COLUMNS)
PEOPLE = ["anna", "ben"]
STRATUM = ["task", "indicator", "cname"]


@pytest.fixture(scope="module")
def benchmark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("review") / "benchmark")


@pytest.fixture
def sheets(benchmark_folder: Path, tmp_path: Path) -> Path:
    return write_sheets(benchmark_folder, tmp_path / "sheets", share=0.1, reviewers=PEOPLE).out


def fill(path: Path, verdicts: list[str], out: Path) -> Path:
    """A reviewer's CSV with its first rows filled: 'accept', 'reject ambiguous', ''; the rest is
    accepted."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    words = [*verdicts, *["accept"] * len(table)][: len(table)]
    table["verdict"] = [word.split(" ")[0] for word in words]
    table["reason"] = [word.partition(" ")[2] for word in words]
    table.to_csv(out, index=False)
    return out


def files(folder: Path) -> dict[str, bytes]:
    written = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in written}


# --- the sample


def test_sample_is_a_share_of_every_stratum(benchmark_folder: Path) -> None:
    items = pd.concat([read_items(benchmark_folder, task) for task in Task])

    sample = draw_sample(benchmark_folder, 0.25)

    of = items.groupby(STRATUM).size()
    drawn = sample.groupby(STRATUM).size().reindex(of.index, fill_value=0)
    assert ((drawn - 0.25 * of).abs() < 1).all()
    pillars = sample.groupby(["task", "pillar"]).size() / items.groupby(["task", "pillar"]).size()
    assert len(pillars) == 6 and ((pillars - 0.25).abs() < 0.02).all()


def test_no_stratum_is_left_out_and_the_whole_can_be_drawn(benchmark_folder: Path) -> None:
    few, whole = (draw_sample(benchmark_folder, share) for share in (0.0001, 1))

    assert set(few.groupby(["task", "indicator"]).size()) == {1}
    assert set(whole.index) == {
        key for task in Task for key in read_items(benchmark_folder, task).index
    }


def test_another_country_or_cluster_changes_nothing_for_the_others(
    benchmark_folder: Path, tmp_path: Path
) -> None:
    before = draw_sample(benchmark_folder, 0.2)
    country = write_benchmark(tmp_path / "country", codes=(*CODES, "PE"), images=False)
    cluster = write_benchmark(tmp_path / "cluster", each=13, images=False)

    with_country, with_cluster = draw_sample(country, 0.2), draw_sample(cluster, 0.2)

    assert list(with_country.index[with_country["cname"] != "PE"]) == list(before.index)
    assert (with_country["cname"] == "PE").any()
    gone = before[~before.index.isin(with_cluster.index)].groupby(STRATUM).size()
    assert gone.max() <= 1 and len(gone) < 0.5 * before.groupby(STRATUM).ngroups


def test_order_of_the_tables_does_not_matter_and_the_seed_does(
    benchmark_folder: Path, tmp_path: Path
) -> None:
    for name in ("items_mcq", "items_regression"):
        table = pd.read_parquet(benchmark_folder / f"{name}.parquet")
        table.sample(frac=1, random_state=1).to_parquet(tmp_path / f"{name}.parquet")

    first = draw_sample(benchmark_folder, 0.1)

    pd.testing.assert_frame_equal(first, draw_sample(tmp_path, 0.1))
    assert first.index.isin(draw_sample(benchmark_folder, 0.1, seed=1).index).mean() < 0.3
    # pinned: another machine draws the same
    assert first["item_id"].head(3).tolist() == [47956551645608, 165588467929775, 66599260401705]


# --- the sheets


def test_same_benchmark_same_sheets(benchmark_folder: Path, sheets: Path, tmp_path: Path) -> None:
    write_sheets(benchmark_folder, tmp_path / "again", share=0.1, reviewers=PEOPLE)

    written, table = files(sheets), read_verdicts(sheets / "anna.csv")
    assert files(tmp_path / "again") == written
    assert {"sheet.html", "README.md", "ben.csv"} <= set(written)
    facts = json.loads(written["sample.json"])
    assert facts["items"] == len(table) == sum(row["n"] for row in facts["strata"])
    assert facts["benchmark_id"] == "0123456789abcdef"
    assert written["anna.csv"].startswith(b"\xef\xbb\xbf" + HEADER.encode() + b"\r\n")
    assert (table["verdict"] == "").all()


def test_pictures_carry_no_metadata_and_no_surprise(tmp_path: Path) -> None:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x010E] = "taken at home"
    Image.new("RGB", (2000, 1000), "red").save(buffer, "JPEG", exif=exif, comment=b"a name")
    folder = write_benchmark(tmp_path / "b", ("KE",), 2, content=buffer.getvalue())

    write_sheets(folder, tmp_path / "s", share=1)

    images = list((tmp_path / "s" / "images").iterdir())
    assert len(images) == 2
    for path in images:
        assert b"taken at home" not in path.read_bytes() and b"a name" not in path.read_bytes()
        with Image.open(path) as shown:
            assert shown.format == "JPEG" and shown.size == (800, 400)


def test_interrupted_sheets_are_completed(benchmark_folder: Path, sheets: Path) -> None:
    whole = files(sheets)
    first, kept, *_ = sorted((sheets / "images").iterdir())
    before = kept.stat().st_mtime_ns
    for path in (first, sheets / "sheet.html"):
        path.unlink()

    write_sheets(benchmark_folder, sheets, share=0.1, reviewers=PEOPLE)

    assert files(sheets) == whole and kept.stat().st_mtime_ns == before


def test_nobodys_work_is_overwritten(benchmark_folder: Path, sheets: Path) -> None:
    mine = fill(sheets / "anna.csv", ["reject other"], sheets / "anna.csv").read_bytes()
    (sheets / "ben.csv").write_bytes(b"PK\x03\x04 a workbook")

    again = write_sheets(benchmark_folder, sheets, share=0.1, reviewers=[*PEOPLE, "cem"])

    assert again.kept == ("anna.csv", "ben.csv") and "anna.csv" in "\n".join(again.lines())
    assert (sheets / "anna.csv").read_bytes() == mine and (sheets / "cem.csv").is_file()
    before = files(sheets)
    for names in (PEOPLE, ["dora", "emil"]):  # also those who aren't named any more
        with pytest.raises(UsageError, match=r"anna\.csv.*another sample.*--out"):
            write_sheets(benchmark_folder, sheets, share=0.2, reviewers=names)
    assert files(sheets) == before


def test_an_untouched_sheet_can_be_drawn_anew(benchmark_folder: Path, sheets: Path) -> None:
    drawn = write_sheets(benchmark_folder, sheets, share=0.02, reviewers=PEOPLE)

    assert len(list((sheets / "images").iterdir())) == drawn.images < 60
    assert len(read_verdicts(sheets / "ben.csv")) == drawn.items


def test_a_benchmark_without_images(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b", each=2, images=False)

    sheets = write_sheets(folder, tmp_path / "s", share=0.2)

    assert sheets.images == 0 and sheets.without_image == sheets.items > 0
    assert "no image" in "\n".join(sheets.lines()) and not (tmp_path / "s" / "images").exists()


@pytest.mark.parametrize(
    "names", ["anna", "anna,Anna", "../x,ben", "a/b,ben", "adjudicator,ben", ", "]
)
def test_names_that_reviewers_can_not_have_are_refused(
    benchmark_folder: Path, tmp_path: Path, names: str, refusal: Refusal
) -> None:
    with refusal():
        write_sheets(benchmark_folder, tmp_path / "s", reviewers=names.split(","))
    assert not (tmp_path / "s").exists()


def test_sheets_that_can_not_be_drawn_are_refused(
    benchmark_folder: Path, tmp_path: Path, refusal: Refusal
) -> None:
    for share in (0, 1.01, float("nan")):
        with refusal(f"a share of {share}"):
            draw_sample(benchmark_folder, share)
    with refusal("no questions"):
        draw_sample(tmp_path)
    for case, content, prefix in (
        ("no picture", b"no picture", ""),
        ("a picture outside", b"", "../../"),
    ):
        folder = write_benchmark(tmp_path / case, ("KE",), 2, content=content)
        for name in ("items_mcq", "items_regression", "images"):
            table = pd.read_parquet(folder / f"{name}.parquet")
            table.assign(image_id=prefix + table["image_id"]).to_parquet(folder / f"{name}.parquet")
        with refusal(case):
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
    reviews = import_reviews(*returned, benchmark_folder, tmp_path / "reviews.parquet")

    n = len(read_verdicts(returned[0]))
    counts = {"items": n, "by_both": n - 2, "by_one": 1, "by_none": 1, "disagreed": 3, "open": 3}
    assert reviews.figures.items() >= counts.items()
    assert reviews.to_adjudicate == tmp_path / "reviews-disagreements.csv"
    waiting = pd.read_csv(reviews.to_adjudicate, encoding="utf-8-sig", keep_default_na=False)
    assert len(waiting) == 3 and (waiting["verdict"] == "").all()
    assert "anna accept | ben reject (other)" in waiting["said"].tolist()


def test_the_adjudicator_decides_what_two_disagree_on(
    benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path
) -> None:
    keys = list(read_verdicts(returned[0]).index)
    third, out = tmp_path / "cem.csv", tmp_path / "reviews.parquet"
    rows = [(keys[0], "reject", "other"), (keys[2], "reject", "image-unusable")]
    rows.append((keys[3], "accept", ""))
    decided = pd.DataFrame(rows, columns=["item_id", "verdict", "reason"]).assign(task="")
    decided.to_csv(third, index=False)

    reviews = import_reviews(*returned, benchmark_folder, out, third)

    n, f = len(keys), reviews.figures
    assert (f["adjudicated"], f["open"], f["agreed"], f["rejected"]) == (2, 1, n - 5, 2)
    table = pd.read_parquet(out)
    assert list(table) == ["task", "item_id", "verdict", "by", "reason"] and len(table) == n - 3
    by_key = table.set_index(table["task"] + "-" + table["item_id"].astype(str)).iloc[:, 2:]
    assert by_key.loc[keys[:4]].to_numpy().tolist() == [
        ["accepted", "anna+ben", ""],  # the adjudicator isn't asked where two agree
        ["rejected", "anna+ben", "ambiguous+other"],
        ["rejected", "cem", "image-unusable"],
        ["accepted", "cem", ""],
    ]
    assert f["reasons"] == {"ambiguous": 1, "image-unusable": 1, "other": 1}
    words = "\n".join(reviews.lines())
    assert "Cohen's kappa" in words and f"sdgbias build --review {out}" in words
    assert json.loads(out.with_suffix(".json").read_text()) == f
    whole = f["agreement"][0]
    assert (whole["task"], whole["n"]) == ("all", n - 2)
    assert whole["agree"] == pytest.approx((n - 5) / (n - 2), abs=1e-6)
    strata = [row for row in f["verdicts"] if row["pillar"] != "all"]
    pillars = [row["n"] for row in strata if row["indicator"] == "all"]
    indicators = [row["n"] for row in strata if row["indicator"] != "all"]
    assert len(pillars) == 6 and sum(pillars) == sum(indicators) == len(table)
    assert all(0 <= row["low"] <= row["share"] <= row["high"] <= 1 for row in strata)


def test_import_is_the_same_whatever_the_order_of_rows(
    benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path
) -> None:
    import_reviews(*returned, benchmark_folder, tmp_path / "a" / "reviews.parquet")
    for path in returned:
        pd.read_csv(path, dtype=str).sample(frac=1, random_state=3).to_csv(path, index=False)

    import_reviews(*returned, benchmark_folder, tmp_path / "b" / "reviews.parquet")

    assert files(tmp_path / "a") == files(tmp_path / "b") and len(files(tmp_path / "a")) == 3


def test_partial_and_copied_csvs_are_noted(
    benchmark_folder: Path, sheets: Path, tmp_path: Path
) -> None:
    first = fill(sheets / "anna.csv", ["accept"] * 5 + [""] * 1000, tmp_path / "anna.csv")
    second = Path(shutil.copy(first, tmp_path / "ben.csv"))
    n = len(read_verdicts(first))

    reviews = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet")

    assert (reviews.figures["by_both"], reviews.figures["by_none"]) == (5, n - 5)
    assert reviews.figures["agreement"][0]["kappa"] is None  # all accepted: undefined, not 1
    assert "same to the byte" in "\n".join(reviews.lines())
    second.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:4]))
    reviews = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet")
    assert (reviews.figures["by_both"], reviews.figures["by_one"]) == (3, 2)
    assert f"{n - 3:,} items stand in one of the two CSVs only." in reviews.lines()
    assert not list(tmp_path.glob("*disagreements*"))


def test_nothing_reviewed_at_all(benchmark_folder: Path, sheets: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    reviews = import_reviews(sheets / "anna.csv", sheets / "ben.csv", benchmark_folder, out)

    assert reviews.figures["by_none"] == reviews.figures["items"]
    assert reviews.figures["agreement"] == [] and reviews.lines()
    assert load_verdicts(out).empty


def test_the_adjudicators_work_is_never_overwritten(
    benchmark_folder: Path, sheets: Path, tmp_path: Path
) -> None:
    first = fill(sheets / "anna.csv", ["accept", "accept"], tmp_path / "anna.csv")
    second = fill(sheets / "ben.csv", ["reject", "reject"], tmp_path / "ben.csv")
    waiting = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet").to_adjudicate
    assert waiting is not None
    text = waiting.read_bytes().decode("utf-8-sig")
    waiting.write_text(text.replace(",,,,", ",reject,other,,", 1), encoding="utf-8")
    mine = waiting.read_bytes()

    more = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet", waiting)

    assert more.to_adjudicate == tmp_path / "r-disagreements-2.csv"
    assert waiting.read_bytes() == mine
    assert (more.figures["adjudicated"], more.figures["open"]) == (1, 1)


def test_imports_that_can_not_be_are_refused(
    benchmark_folder: Path, sheets: Path, tmp_path: Path, refusal: Refusal
) -> None:
    first, second = sheets / "anna.csv", sheets / "ben.csv"
    strange, out = tmp_path / "cem.csv", tmp_path / "r.parquet"
    strange.write_text(f"{HEADER}\nmcq,5,accept,,\n")
    for case, other, benchmark, to in (
        ("an unknown question", strange, benchmark_folder, out),
        ("one reviewer twice", first, benchmark_folder, out),
        ("another kind of file", second, benchmark_folder, tmp_path / "r.csv"),
        ("no benchmark", second, tmp_path, out),
    ):
        with refusal(case, BENCHMARK=benchmark_folder):
            import_reviews(first, other, benchmark, to)
        assert not to.exists()


# --- agreement


def verdicts_of(*counts: int) -> tuple[np.ndarray, np.ndarray]:
    """Rejected by both, by the first, by the second, by none."""
    one = np.repeat([True, True, False, False], counts)
    return one, np.repeat([True, False, True, False], counts)


def test_kappa_by_hand() -> None:
    k = kappa(*verdicts_of(20, 5, 10, 15))
    # observed (20 + 15) / 50; by chance 25/50 * 30/50 + 25/50 * 20/50
    assert k.value == pytest.approx((0.7 - 0.5) / (1 - 0.5)) and k.n == 50
    # delta method: the standard error is 0.126996
    assert (k.low, k.high) == pytest.approx((0.4 - 1.959964 * 0.126996, 0.4 + 1.959964 * 0.126996))


def test_kappa_where_it_says_little() -> None:
    accepted = kappa(*verdicts_of(0, 0, 0, 30))
    assert np.isnan(accepted.value) and accepted.n == 30, "chance explains it all"
    perfect = kappa(*verdicts_of(5, 0, 0, 25))
    assert perfect.value == 1 and np.isnan(perfect.low) and np.isnan(perfect.high)
    for counts, value in (((0, 15, 15, 0), -1), ((3, 0, 9, 0), 0)):  # variance 0: no interval
        k = kappa(*verdicts_of(*counts))
        assert k.value == pytest.approx(value) and np.isnan(k.low) and np.isnan(k.high)
    assert np.isnan(kappa(*verdicts_of(0, 0, 0, 0)).value)
