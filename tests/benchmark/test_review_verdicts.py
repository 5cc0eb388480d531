"""Reviewers' CSVs, the agreement of two reviewers, and verdicts for the next build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.review import kappa, load_verdicts
from sdgbias.benchmark.review.verdicts import COLUMNS, read_verdicts, written_in
from sdgbias.errors import InputError

HEADER = ",".join(COLUMNS)


ROWS = [
    ("mcq", 123456789012345, "accept", "", ""),
    ("regression", 7, "reject", "wrong-gold", 'Straße, "neu"; alt'),
    ("mcq", 8, "", "", ""),
]


@pytest.mark.parametrize(
    ("sep", "encoding", "end"),
    [
        (",", "utf-8", "\n"),
        (";", "utf-8-sig", "\r\n"),
        (";", "cp1252", "\r\n"),
        ("\t", "utf-16", "\r\n"),
        (",", "utf-8-sig", "\n"),
    ],
)
@pytest.mark.parametrize("prefix", [True, False])
def test_csvs_as_people_return_them(
    tmp_path: Path, sep: str, encoding: str, end: str, prefix: bool
) -> None:
    table = pd.DataFrame(ROWS, columns=COLUMNS)
    if prefix:
        table["item_id"] = table["task"] + "-" + table["item_id"].astype(str)
    table["verdict"] = table["verdict"].str.upper()
    (tmp_path / "a.csv").write_bytes(
        table.to_csv(index=False, sep=sep, lineterminator=end).encode(encoding)
    )
    found = read_verdicts(tmp_path / "a.csv")
    assert list(found[list(COLUMNS)].itertuples(index=False, name=None)) == ROWS
    assert found["row"].tolist() == [2, 3, 4]


def test_other_columns_blank_lines_and_short_rows_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "no,Verdict,task,item_id,note\n1,accept,mcq,5,x\n,,,,\n\n2, reject ,mcq,6\n"
    )
    found = read_verdicts(tmp_path / "a.csv")
    assert found[["item_id", "verdict", "reason", "comment"]].values.tolist() == [
        [5, "accept", "", ""],
        [6, "reject", "", ""],
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "missing column(s) task, item_id, verdict"),
        ("task,item_id,comment\nmcq,5,x\n", "missing column(s) verdict"),
        (f"{HEADER}\nmcq,5,maybe,,\n", "line 2: unknown verdict 'maybe'; valid: accept, reject"),
        (
            f"{HEADER}\nmcq,5,reject,ugly,\n",
            "line 2: unknown reason 'ugly'; valid: ambiguous, image-unusable",
        ),
        (f"{HEADER}\nmcq,5,accept,other,\n", "line 2: accepted with the reason 'other'"),
        (f"{HEADER}\nquiz,5,accept,,\n", "line 2: unknown task 'quiz'; valid: mcq, regression"),
        (
            f"{HEADER}\nmcq,regression-5,accept,,\n",
            "line 2: item_id 'regression-5' is not of the task 'mcq'",
        ),
        (
            f"{HEADER}\nmcq,1.23457E+14,accept,,\n",
            "line 2: item_id '1.23457E+14' is no id; a spreadsheet has shortened it",
        ),
        (f'{HEADER}\nmcq,"1,23457E+14",accept,,\n', "a spreadsheet has shortened it"),
        (f"{HEADER}\nmcq,,accept,,\n", "line 2: item_id '' is no id"),
        (f"{HEADER}\nmcq,../5,accept,,\n", "is no id"),
        (
            f"{HEADER}\nmcq,5,accept,,\nmcq,6,,,\nmcq,mcq-5,reject,,\n",
            "line 4: mcq-5 stands in line 2 already",
        ),
        (f"{HEADER}\nmcq,5,accept,,late, or so\n", "line 2: more fields than columns"),
        (f'{HEADER}\nmcq,5,accept,,"late\nmcq,6,accept,,\n', "no CSV (unexpected end of data)"),
        ("PK\x03\x04\x00\x00", "missing column(s)"),
    ],
)
def test_bad_csvs_give_one_line(tmp_path: Path, body: str, words: str) -> None:
    path = tmp_path / "anna.csv"
    path.write_text(body)
    with pytest.raises(InputError) as caught:
        read_verdicts(path)
    assert (
        words in str(caught.value)
        and "anna.csv" in str(caught.value)
        and "\n" not in str(caught.value)
    )
    assert written_in(path)


def test_no_csv(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nobody.csv: can't be read"):
        read_verdicts(tmp_path / "nobody.csv")
    assert not written_in(tmp_path / "nobody.csv")


def table_of(
    both_no: int, first_no: int, second_no: int, both_yes: int
) -> tuple[np.ndarray, np.ndarray]:
    one = np.repeat([True, True, False, False], [both_no, first_no, second_no, both_yes])
    two = np.repeat([True, False, True, False], [both_no, first_no, second_no, both_yes])
    return one, two


def test_kappa_by_hand() -> None:
    found = kappa(*table_of(20, 5, 10, 15))
    # observed (20 + 15) / 50; by chance 25/50 * 30/50 + 25/50 * 20/50
    assert found.value == pytest.approx((0.7 - 0.5) / (1 - 0.5)) and found.n == 50
    assert found.low < found.value < found.high


@pytest.mark.parametrize(
    "counts", [(20, 5, 10, 15), (30, 20, 10, 340), (3, 40, 60, 4), (100, 1, 30, 7000)]
)
def test_variance_of_kappa_is_that_of_the_delta_method(counts: tuple[int, int, int, int]) -> None:
    """Another way to the same number: the gradient of kappa, numerically, and the multinomial's
    covariance."""

    def value(p: np.ndarray) -> float:
        table = p.reshape(2, 2)
        chance = table.sum(1) @ table.sum(0)
        return float((np.trace(table) - chance) / (1 - chance))

    n = sum(counts)
    p = np.array(counts) / n
    gradient = np.array([(value(p + step) - value(p - step)) / 2e-6 for step in 1e-6 * np.eye(4)])
    variance = gradient @ (np.diag(p) - np.outer(p, p)) @ gradient / n
    found = kappa(*table_of(*counts))
    assert (found.high - found.low) / 2 / 1.959964 == pytest.approx(variance**0.5, rel=1e-5)


def test_kappa_where_it_says_little() -> None:
    assert np.isnan(
        kappa(*table_of(0, 0, 0, 30)).value
    )  # both accept everything: chance explains it all
    perfect = kappa(*table_of(5, 0, 0, 25))
    assert perfect.value == 1 and np.isnan(perfect.low) and np.isnan(perfect.high)
    assert kappa(*table_of(0, 15, 15, 0)).value == pytest.approx(-1)
    assert np.isnan(kappa(np.array([], bool), np.array([], bool)).value)


def test_verdicts_for_the_next_build(tmp_path: Path) -> None:
    path = tmp_path / "reviews.parquet"
    rows = pd.DataFrame(
        {
            "task": ["regression", "mcq"],
            "item_id": [3, 9],
            "verdict": ["accepted", "rejected"],
            "by": "a",
            "reason": "",
        }
    )
    rows.to_parquet(path)
    found = load_verdicts(path)
    assert found.values.tolist() == [
        ["mcq", 9, "rejected"],
        ["regression", 3, "accepted"],
    ] and list(found) == ["task", "item_id", "verdict"]
    for broken, words in (
        (rows.drop(columns="verdict"), "missing column"),
        (rows.assign(verdict="reject"), "unknown verdict 'reject'; valid: accepted, rejected"),
        (rows.assign(task="quiz"), "unknown task 'quiz'"),
        (pd.concat([rows, rows]), "regression-3 has two verdicts|mcq-9 has two verdicts"),
    ):
        broken.to_parquet(path)
        with pytest.raises(InputError, match=words):
            load_verdicts(path)
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match="reviews.parquet: can't be read"):
        load_verdicts(path)
    with pytest.raises(InputError, match="nothing.parquet: not there.*sdgbias review import"):
        load_verdicts(tmp_path / "nothing.parquet")
