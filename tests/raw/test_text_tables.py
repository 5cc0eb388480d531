"""CSV files of other people (sdgbias/raw/text_tables.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.errors import InputError
from sdgbias.raw.text_tables import read_text


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,2\n3,4", 2),
        ('a,"b, in years"\n1,2', 1),
        ('a,b\n1,2\n"a note, on\ntwo lines",4', 2),
        ("a,b", 0),
        ("sep=;\na;b\n1;2", 1),
        ("sep=;\ra;b\r1,5;2\r3;4", 2),
    ],
    ids=["whole", "comma in a name", "cell of two lines", "names alone", "Excel", "Excel on a Mac"],
)
def test_a_file_without_a_last_line_break_is_read_whole(
    tmp_path: Path, text: str, rows: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, newline="")

    assert len(read_text(path)) == rows


def test_a_file_that_ends_within_a_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,2,3\n4,5")

    with pytest.raises(InputError, match="its last line is cut off"):
        read_text(path)


@pytest.mark.parametrize("above", ["", "\n", ";;\r\n", "\ufeffsep=;\n", "\n \nsep=;\n"])
def test_rows_have_the_numbers_of_their_lines_and_empty_ones_are_none(
    tmp_path: Path, above: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{above}a;b\n\n1;2\n;\n3;4\n\n", newline="")

    names = above.count("\n") + 1
    assert read_text(path)["a"].to_dict() == {names + 2: "1", names + 4: "3"}


def test_a_separator_at_the_end_of_each_line_is_no_cell(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1;2;\n3;4; \n")
    assert read_text(path).to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"]}
    path.write_text("a;b\n1;2;\n3;4;5\n")
    with pytest.raises(InputError, match="line 3 has 3 cells, the line of names 2"):
        read_text(path)
