"""Reviewers' CSVs as people return them, of items and of templates, and verdicts for the next
build."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark.review import load_verdicts
from sdgbias.benchmark.review.template_sheets import (
    template_agreement,
    template_rows,
    write_template_sheets,
)
from sdgbias.benchmark.review.verdicts import COLUMNS, read_verdicts, written_in
from tests.builders.item_tables import indicator
from tests.builders.refusals import Refusal

HEADER = ",".join(COLUMNS)
ROWS = [
    ("mcq", "123456789012345", "accept", "", ""),
    ("regression", "7", "reject", "wrong-gold", 'Straße, "neu"; alt'),
    ("mcq", "8", "", "", ""),
]


@pytest.mark.parametrize(
    ("separator", "encoding", "end"),
    [
        (",", "utf-8", "\n"),
        (";", "utf-8-sig", "\r\n"),
        (";", "cp1252", "\r\n"),
        ("\t", "utf-16", "\r\n"),
    ],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_csvs_as_people_return_them(
    tmp_path: Path, separator: str, encoding: str, end: str, prefix: bool
) -> None:
    table = pd.DataFrame(ROWS, columns=COLUMNS)
    if prefix:
        table["item_id"] = table["task"] + "-" + table["item_id"]
    table["verdict"] = table["verdict"].str.upper()
    text = table.to_csv(index=False, sep=separator, lineterminator=end)
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))

    verdicts = read_verdicts(tmp_path / "a.csv")

    assert list(verdicts.itertuples(name=None)) == [
        (f"{task}-{item_id}", line, *rest)
        for line, (task, item_id, *rest) in enumerate(ROWS, start=2)
    ]


def test_other_columns_blank_lines_and_short_rows_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "no,Verdict,task,item_id,note\n1,accept,mcq,5,x\n,,,,\n\n2, reject ,mcq,6\n"
    )
    verdicts = read_verdicts(tmp_path / "a.csv")
    assert verdicts["verdict"].to_dict() == {"mcq-5": "accept", "mcq-6": "reject"}
    assert verdicts["line"].tolist() == [2, 5]


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


@pytest.mark.parametrize("case", BAD_CSVS)
def test_a_csv_that_can_not_be_read_is_refused(case: str, tmp_path: Path, refusal: Refusal) -> None:
    path, body = tmp_path / "anna.csv", BAD_CSVS[case]
    if body is not None:
        path.write_text(body)
    with refusal():
        read_verdicts(path)
    assert written_in(path) == (body is not None), "somebody's work, however it reads"


@pytest.mark.parametrize("case", BAD_TEMPLATES)
def test_a_sheet_of_templates_that_can_not_be_read_is_refused(
    case: str, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "a.csv").write_text(BAD_TEMPLATES[case])
    with refusal():
        template_agreement(tmp_path / "a.csv", judged(tmp_path / "b.csv", "accept"))


REVIEWED = pd.DataFrame(
    [("regression", 3, "accepted", "a"), ("mcq", 9, "rejected", "a")],
    columns=["task", "item_id", "verdict", "by"],
)
BAD_REVIEWS = {
    "no verdicts": REVIEWED.drop(columns="verdict"),
    "unknown verdict": REVIEWED.assign(verdict="reject"),
    "unknown task": REVIEWED.assign(task="quiz"),
    "twice": pd.concat([REVIEWED, REVIEWED]),
    "no file": None,
}


def test_verdicts_for_the_next_build(tmp_path: Path) -> None:
    REVIEWED.to_parquet(tmp_path / "reviews.parquet")

    verdicts = load_verdicts(tmp_path / "reviews.parquet")

    assert list(verdicts) == ["task", "item_id", "verdict"]
    assert verdicts.to_numpy().tolist() == [["mcq", 9, "rejected"], ["regression", 3, "accepted"]]


@pytest.mark.parametrize("case", BAD_REVIEWS)
def test_reviews_that_can_not_be_read_are_refused(
    case: str, tmp_path: Path, refusal: Refusal
) -> None:
    reviews = BAD_REVIEWS[case]
    if reviews is not None:
        reviews.to_parquet(tmp_path / "reviews.parquet")
    with refusal():
        load_verdicts(tmp_path / "reviews.parquet")


# --- templates


def judged(path: Path, *verdicts: str) -> Path:
    rows = pd.DataFrame({"template": [f"mcq-{i}" for i in range(len(verdicts))]})
    rows.assign(verdict=verdicts).to_csv(path, index=False)
    return path


def test_every_template_is_shown_with_its_options_and_evidence(small_benchmark: Path) -> None:
    rows = template_rows(small_benchmark).set_index("template")

    items = pd.read_parquet(small_benchmark / "items_mcq.parquet")
    assert {f"mcq-{slug}" for slug in items["indicator"]} <= set(rows.index)
    row, item = rows.loc["mcq-stunting"], items[items["indicator"] == "stunting"].iloc[0]
    assert row["question"] == item["question"]
    assert row["options"].startswith(f"A. {item['option_a']}; B. {item['option_b']}")
    assert row["reasoning_target"] == indicator("stunting").template.reasoning
    assert rows.filter(like="regression-", axis=0)["answer"].str.contains("right within").all()


def test_verdicts_on_templates_survive_a_second_writing(
    small_benchmark: Path, tmp_path: Path
) -> None:
    [path] = write_template_sheets(small_benchmark, tmp_path, ["ann"])
    table = pd.read_csv(path, encoding="utf-8-sig", keep_default_na=False, dtype=str)
    table.loc[0, "verdict"] = "reject"
    table.to_csv(path, index=False)
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
