"""Human review: a sample that stays put, CSVs as people return them, agreement by the book, and
nobody's work overwritten."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark.review import COLUMNS, draw_sample, load_verdicts, read_items
from sdgbias.benchmark.review.question_templates import (
    template_agreement,
    template_rows,
    write_template_sheets,
)
from sdgbias.benchmark.review.sheet import write_sheets
from sdgbias.benchmark.review.verdicts import import_reviews, kappa, read_verdicts, written_in
from sdgbias.errors import InputError, UsageError
from sdgbias.types import Task
from tests.builders.item_tables import CODES, indicator
from tests.builders.refusals import Refusal
from tests.builders.review import write_benchmark

HEADER = ",".join(COLUMNS)
PEOPLE = ["anna", "ben"]
STRATUM = ["task", "indicator", "cname"]


@pytest.fixture(scope="module")
def benchmark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("review") / "benchmark", each=6)


@pytest.fixture(scope="module")
def blank(benchmark_folder: Path) -> Path:
    """Sheets that nobody has touched."""
    out = benchmark_folder.parent / "blank"
    write_sheets(benchmark_folder, out, share=0.1, reviewers=PEOPLE)
    return out


@pytest.fixture
def sheets(blank: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blank, tmp_path / "sheets"))


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
    sizes = items.groupby(STRATUM).size()
    sample = draw_sample(benchmark_folder, 0.25)
    drawn = sample.groupby(STRATUM).size().reindex(sizes.index, fill_value=0)
    assert ((drawn - 0.25 * sizes).abs() < 1).all()
    few, whole = (draw_sample(benchmark_folder, share) for share in (0.0001, 1))
    assert set(few.groupby(["task", "indicator"]).size()) == {1}
    assert set(whole.index) == set(items.index)


def test_another_country_or_cluster_changes_nothing_for_the_others(
    benchmark_folder: Path, tmp_path: Path
) -> None:
    before = draw_sample(benchmark_folder, 0.2)
    country = write_benchmark(tmp_path / "country", (*CODES, "PE"), 6, images=False)
    cluster = write_benchmark(tmp_path / "cluster", each=7, images=False)
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
    assert first["item_id"].head(3).tolist() == [109876288502161, 131016877622634, 21187828745142]


# --- the sheets


def test_same_benchmark_same_sheets_and_what_was_cut_short_is_completed(
    benchmark_folder: Path, blank: Path, sheets: Path
) -> None:
    first, kept, *_ = sorted((sheets / "images").iterdir())
    before = kept.stat().st_mtime_ns
    for path in (first, sheets / "sheet.html", sheets / "ben.csv"):
        path.unlink()
    write_sheets(benchmark_folder, sheets, share=0.1, reviewers=PEOPLE)
    written, table = files(sheets), read_verdicts(sheets / "anna.csv")
    assert written == files(blank) and kept.stat().st_mtime_ns == before
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


def test_nobodys_work_is_overwritten(benchmark_folder: Path, sheets: Path) -> None:
    drawn = write_sheets(benchmark_folder, sheets, share=0.02, reviewers=PEOPLE)
    assert len(list((sheets / "images").iterdir())) == drawn["images"], "untouched: drawn anew"
    entered = fill(sheets / "anna.csv", ["reject other"], sheets / "anna.csv").read_bytes()
    (sheets / "ben.csv").write_bytes(b"PK\x03\x04 a workbook")
    again = write_sheets(benchmark_folder, sheets, share=0.02, reviewers=[*PEOPLE, "cem"])
    assert again["kept"] == ["anna.csv", "ben.csv"]
    assert "anna.csv" in "\n".join(templates.lines("sheets", **again))
    assert (sheets / "anna.csv").read_bytes() == entered and (sheets / "cem.csv").is_file()
    before = files(sheets)
    for names in (PEOPLE, ["dora", "emil"]):  # also those who aren't named any more
        with pytest.raises(UsageError, match=r"anna\.csv.*another sample.*--out"):
            write_sheets(benchmark_folder, sheets, share=0.2, reviewers=names)
    assert files(sheets) == before


def test_a_benchmark_without_images(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b", each=2, images=False)
    sheets = write_sheets(folder, tmp_path / "s", share=0.2)
    assert sheets["images"] == 0 and sheets["without_image"] == sheets["items"] > 0
    assert "no image" in "\n".join(templates.lines("sheets", **sheets))
    assert not (tmp_path / "s" / "images").exists()


def test_sheets_that_can_not_be_drawn_are_refused(
    benchmark_folder: Path, tmp_path: Path, refusal: Refusal
) -> None:
    for names in ("anna", "anna,Anna", "../x,ben", "a/b,ben", "adjudicator,ben", ", "):
        with refusal(f"reviewers {names}"):
            write_sheets(benchmark_folder, tmp_path / "s", reviewers=names.split(","))
    for names in ("", "a/../../x", "ann,Ann", "a" * 41):
        with refusal(f"reviewers of templates {names}"):
            write_template_sheets(benchmark_folder, tmp_path / "s", names.split(","))
    assert not list(tmp_path.rglob("*.csv"))
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


# --- reviewers' CSVs


@pytest.mark.parametrize(
    ("separator", "encoding", "end"),
    [
        (",", "utf-8", "\n"),
        (";", "utf-8-sig", "\r\n"),
        (";", "cp1252", "\r\n"),
        ("\t", "utf-8", "\r\n"),
    ],
)
def test_csvs_as_people_return_them(
    tmp_path: Path, separator: str, encoding: str, end: str
) -> None:
    rows = [
        ("mcq", "123456789012345", "accept", "", ""),
        ("regression", "7", "reject", "wrong-gold", 'Straße, "neu"; alt'),
        ("mcq", "-8", "", "", ""),  # of an imported release
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["verdict"] = table["verdict"].str.upper()
    excel = f"sep={separator}{end}"
    for above, prefix in (("", ""), (excel, table["task"] + "-")):  # a bare number, or the key
        text = table.assign(item_id=prefix + table["item_id"])
        text = above + text.to_csv(index=False, sep=separator, lineterminator=end)
        (tmp_path / "a.csv").write_bytes(text.encode(encoding))
        verdicts = read_verdicts(tmp_path / "a.csv")
        assert list(verdicts.itertuples(name=None)) == [
            (f"{task}-{item_id}", *rest) for task, item_id, *rest in rows
        ]
    # other columns, blank lines and short rows are fine
    text = "no,Verdict,task,item_id,note\n1,accept,mcq,5,x\n,,,,\n\n2, reject ,mcq,6\n"
    (tmp_path / "a.csv").write_text(text)
    verdicts = read_verdicts(tmp_path / "a.csv")["verdict"]
    assert verdicts.to_dict() == {"mcq-5": "accept", "mcq-6": "reject"}


#: What is wrong with a reviewer's CSV -> its text; None: there is none.
BAD_CSVS: dict[str, str | None] = {
    "no file": None,
    "empty": "",
    "no verdicts": "task,item_id,comment\nmcq,5,x\n",
    "a workbook": "PK\x03\x04\x00\x00",
    "unknown verdict": f"{HEADER}\nmcq,5,maybe,,\n",
    "unknown reason": f"{HEADER}\nmcq,5,reject,ugly,\n",
    "accepted with a reason": f"{HEADER}\nmcq,5,accept,other,\n",
    "unknown task": f"{HEADER}\nquiz,5,accept,,\n",
    "a shortened id": f"{HEADER}\nmcq,1.23457E+14,accept,,\n",
    "a column twice": f"Task,{HEADER}\nmcq,mcq,5,accept,,\n",
    "no id": f"{HEADER}\nmcq,,accept,,\n",
    "an id that climbs": f"{HEADER}\nmcq,../5,accept,,\n",
    "an id twice": f"{HEADER}\nmcq,5,accept,,\nmcq,6,,,\nmcq,mcq-5,reject,,\n",
    "a comma in a comment": f"{HEADER}\nmcq,5,accept,,late, or so\n",
    "a quote that stays open": f'{HEADER}\nmcq,5,accept,,"late\nmcq,6,accept,,\n',
}
BAD_TEMPLATES = {
    "unknown verdict": "template,verdict\nmcq-0,perhaps\n",
    "other columns": "a,b\n1,2\n",
    "nothing in both": "template,verdict\nmcq-0,\n",
}
REVIEWED = pd.DataFrame(
    [("regression", 3, "accepted", "a"), ("mcq", 9, "rejected", "a")],
    columns=["task", "item_id", "verdict", "by"],
)
BAD_REVIEWS = {
    "no verdicts": REVIEWED.drop(columns="verdict"),
    "unknown verdict": REVIEWED.assign(verdict="reject"),
    "unknown task": REVIEWED.assign(task="quiz"),
    "twice": pd.concat([REVIEWED, REVIEWED]),
}


@pytest.mark.parametrize("case", BAD_CSVS)
def test_a_csv_that_can_not_be_read_is_refused(case: str, tmp_path: Path, refusal: Refusal) -> None:
    path, body = tmp_path / "anna.csv", BAD_CSVS[case]
    if body is not None:
        path.write_text(body)
    with refusal():
        read_verdicts(path)
    assert written_in(path) == (body is not None), "somebody's work, however it reads"


def test_templates_and_reviews_that_can_not_be_read_are_refused(
    tmp_path: Path, refusal: Refusal
) -> None:
    sheet, reviews = tmp_path / "a.csv", tmp_path / "reviews.parquet"
    for case, body in BAD_TEMPLATES.items():
        sheet.write_text(body)
        with refusal(f"templates: {case}"):
            template_agreement(sheet, judged(tmp_path / "b.csv", "accept"))
    for case, table in BAD_REVIEWS.items():
        table.to_parquet(reviews)
        with refusal(f"reviews: {case}"):
            load_verdicts(reviews)
    with refusal("reviews: no file"):
        load_verdicts(tmp_path / "none.parquet")


def printed(reviews: dict[str, Any], out: Path, released: bool = False) -> list[str]:
    return templates.lines("reviews", f=reviews, out=out, released=released)


@pytest.fixture
def returned(blank: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two reviewers' CSVs: agreed; agreed, 2 reasons; disagreed; disagreed; one only; none;
    disagreed; and accepted by both from there on."""
    anna = ["accept", "reject ambiguous", "accept", "reject wrong-gold", "", "", "reject"]
    ben = ["accept", "reject other", "reject other", "accept", "reject other", "", "accept"]
    return (
        fill(blank / "anna.csv", anna, tmp_path / "anna.csv"),
        fill(blank / "ben.csv", ben, tmp_path / "ben.csv"),
    )


def test_two_reviewers_and_an_adjudicator_who_decides_what_they_disagree_on(
    benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path
) -> None:
    out, keys = tmp_path / "reviews.parquet", list(read_verdicts(returned[0]).index)
    n = len(keys)
    reviews = import_reviews(*returned, benchmark_folder, out)
    counts = {"items": n, "by_both": n - 2, "by_one": 1, "by_none": 1, "disagreed": 3, "open": 3}
    assert reviews.items() >= counts.items()
    assert reviews["to_adjudicate"] == tmp_path / "reviews-disagreements.csv"
    waiting = pd.read_csv(reviews["to_adjudicate"], encoding="utf-8-sig", keep_default_na=False)
    assert len(waiting) == 3 and (waiting["verdict"] == "").all()
    assert "anna accept | ben reject (other)" in waiting["said"].tolist()

    third = tmp_path / "cem.csv"
    rows = [(keys[0], "reject", "other"), (keys[2], "reject", "image-unusable")]
    rows.append((keys[3], "accept", ""))
    decided = pd.DataFrame(rows, columns=["item_id", "verdict", "reason"]).assign(task="")
    decided.to_csv(third, index=False)
    reviews = import_reviews(*returned, benchmark_folder, out, third)
    f, table = reviews, pd.read_parquet(out)
    assert (f["adjudicated"], f["open"], f["agreed"], f["rejected"]) == (2, 1, n - 5, 2)
    assert list(table) == ["task", "item_id", "verdict", "by", "reason"] and len(table) == n - 3
    by_key = table.set_index(table["task"] + "-" + table["item_id"].astype(str)).iloc[:, 2:]
    assert by_key.loc[keys[:4]].to_numpy().tolist() == [
        ["accepted", "anna+ben", ""],  # the adjudicator isn't asked where two agree
        ["rejected", "anna+ben", "ambiguous+other"],
        ["rejected", "cem", "image-unusable"],
        ["accepted", "cem", ""],
    ]
    assert f["reasons"] == {"ambiguous": 1, "image-unusable": 1, "other": 1}
    words = "\n".join(printed(reviews, out))
    assert "Cohen's kappa" in words and f"sdgbias build --review {out}" in words
    assert "sdgbias build" not in printed(reviews, out, released=True)[-1]
    assert f.items() >= json.loads(out.with_suffix(".json").read_text()).items()
    whole = f["agreement"][0]
    assert (whole["task"], whole["n"]) == ("all", n - 2)
    assert whole["agree"] == pytest.approx((n - 5) / (n - 2), abs=1e-6)
    strata = [row for row in f["verdicts"] if row["pillar"] != "all"]
    pillars = [row["n"] for row in strata if row["indicator"] == "all"]
    indicators = [row["n"] for row in strata if row["indicator"] != "all"]
    assert len(pillars) == 6 and sum(pillars) == sum(indicators) == len(table)
    bounds = [(0, r["low"], r["share"], r["high"], 1) for r in strata if r["low"] is not None]
    assert len(bounds) > 3 and all(list(row) == sorted(row) for row in bounds)
    verdicts = load_verdicts(out)
    assert list(verdicts) == ["task", "item_id", "verdict"]
    assert verdicts.equals(verdicts.sort_values(["task", "item_id"], ignore_index=True))


def test_import_is_the_same_whatever_the_order_of_rows(
    benchmark_folder: Path, returned: tuple[Path, Path], tmp_path: Path
) -> None:
    import_reviews(*returned, benchmark_folder, tmp_path / "a" / "reviews.parquet")
    for path in returned:
        pd.read_csv(path, dtype=str).sample(frac=1, random_state=3).to_csv(path, index=False)
    import_reviews(*returned, benchmark_folder, tmp_path / "b" / "reviews.parquet")
    assert files(tmp_path / "a") == files(tmp_path / "b") and len(files(tmp_path / "a")) == 3


def test_partial_copied_and_empty_csvs_are_noted(
    benchmark_folder: Path, blank: Path, tmp_path: Path
) -> None:
    first = fill(blank / "anna.csv", ["accept"] * 5 + [""] * 1000, tmp_path / "anna.csv")
    second, out = Path(shutil.copy(first, tmp_path / "ben.csv")), tmp_path / "r.parquet"
    n = len(read_verdicts(first))
    reviews = import_reviews(first, second, benchmark_folder, out)
    assert (reviews["by_both"], reviews["by_none"]) == (5, n - 5)
    assert reviews["agreement"][0]["kappa"] is None  # all accepted: undefined, not 1
    assert "same to the byte" in "\n".join(printed(reviews, out))
    second.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:4]))
    reviews = import_reviews(first, second, benchmark_folder, out)
    assert (reviews["by_both"], reviews["by_one"]) == (3, 2)
    assert f"{n - 3:,} items stand in one of the two CSVs only." in printed(reviews, out)
    assert not list(tmp_path.glob("*disagreements*"))
    reviews = import_reviews(blank / "anna.csv", blank / "ben.csv", benchmark_folder, out)
    assert reviews["by_none"] == reviews["items"] == n
    assert reviews["agreement"] == [] and printed(reviews, out) and load_verdicts(out).empty


def test_the_adjudicators_work_is_never_overwritten(
    benchmark_folder: Path, blank: Path, tmp_path: Path
) -> None:
    first = fill(blank / "anna.csv", ["accept", "accept"], tmp_path / "anna.csv")
    second = fill(blank / "ben.csv", ["reject", "reject"], tmp_path / "ben.csv")
    waiting = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet")[
        "to_adjudicate"
    ]
    assert waiting is not None
    text = waiting.read_bytes().decode("utf-8-sig")
    waiting.write_text(text.replace(",,,,", ",reject,other,,", 1), encoding="utf-8")
    entered = waiting.read_bytes()
    more = import_reviews(first, second, benchmark_folder, tmp_path / "r.parquet", waiting)
    assert more["to_adjudicate"] == tmp_path / "r-disagreements-2.csv"
    assert waiting.read_bytes() == entered
    assert (more["adjudicated"], more["open"]) == (1, 1)


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


#: By hand: observed (20 + 15) / 50, by chance 25/50 * 30/50 + 25/50 * 20/50; the standard error by
#: the delta method is 0.126996.
HALF = 1.959964 * 0.126996
NONE = (np.nan, np.nan)  # where its variance is 0


@pytest.mark.parametrize(
    ("counts", "value", "bounds"),
    [
        ((20, 5, 10, 15), 0.4, (0.4 - HALF, 0.4 + HALF)),
        ((0, 0, 0, 30), np.nan, NONE),  # chance explains it all
        ((0, 0, 0, 0), np.nan, NONE),
        ((5, 0, 0, 25), 1.0, NONE),
        ((0, 15, 15, 0), -1.0, NONE),
        ((3, 0, 9, 0), 0.0, NONE),
    ],
)
def test_kappa_and_its_interval(
    counts: tuple[int, ...], value: float, bounds: tuple[float, float]
) -> None:
    """Counts: rejected by both, by the first, by the second, by none."""
    one = np.repeat([True, True, False, False], counts)
    k = kappa(one, np.repeat([True, False, True, False], counts))
    assert k.value == pytest.approx(value, nan_ok=True) and k.n == sum(counts)
    assert (k.low, k.high) == pytest.approx(bounds, nan_ok=True)


# --- templates


def judged(path: Path, *verdicts: str) -> Path:
    rows = pd.DataFrame({"template": [f"mcq-{i}" for i in range(len(verdicts))]})
    rows.assign(verdict=verdicts).to_csv(path, index=False)
    return path


def test_every_template_is_shown_and_verdicts_survive_a_second_writing(
    small_benchmark: Path, tmp_path: Path
) -> None:
    rows = template_rows(small_benchmark).set_index("template")
    items = pd.read_parquet(small_benchmark / "items_mcq.parquet")
    assert {f"mcq-{slug}" for slug in items["indicator"]} <= set(rows.index)
    row, item = rows.loc["mcq-stunting"], items[items["indicator"] == "stunting"].iloc[0]
    assert row["question"] == item["question"]
    assert row["options"].startswith(f"A. {item['option_a']}; B. {item['option_b']}")
    assert row["reasoning_target"] == indicator("stunting").template.reasoning
    assert rows.filter(like="regression-", axis=0)["answer"].str.contains("right within").all()
    [path] = write_template_sheets(small_benchmark, tmp_path, ["ann"])
    table = pd.read_csv(path, encoding="utf-8-sig", keep_default_na=False, dtype=str)
    for column in ("comment", "verdict"):
        table.assign(**{column: "reject"}).to_csv(path, index=False)
        before = path.read_bytes()
        write_template_sheets(small_benchmark, tmp_path, ["ann"])
        assert path.read_bytes() == before


def test_agreement_names_what_an_adjudicator_decides(tmp_path: Path) -> None:
    first = judged(tmp_path / "a.csv", "accept", "accept", "reject", "reject", "accept", "")
    second = judged(tmp_path / "b.csv", "accept", "reject", "reject", "Reject ", "accept", "accept")
    agreement = template_agreement(first, second)
    assert agreement["templates"] == 5 and agreement["equal_verdicts"] == 0.8
    assert agreement["kappa"] == pytest.approx((0.8 - 0.48) / (1 - 0.48))
    assert agreement["to_adjudicate"] == ["mcq-1"]
    assert agreement["rejected_by_both"] == ["mcq-2", "mcq-3"]
    second.write_text(second.read_text() + "mcq-0,reject\n")
    with pytest.raises(InputError, match="template 'mcq-0': is there twice"):
        template_agreement(first, second)
