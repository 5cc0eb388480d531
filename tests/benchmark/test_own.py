"""A folder of own questions is read whole: what it holds, and every fault with its line."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sdgbias import formats
from sdgbias.benchmark import own_spec
from sdgbias.benchmark.own import OPTIONS, assign_splits, build_own, card_of, read_folder
from tests.builders.own_questions import HEADER, LEAST, YAML, png, rows, write

ROW = "q{},How many?,one,two,three,{},pictures/{}.png,,test,b1,red".format


def faults(folder: Path) -> list[str]:
    try:
        read_folder(folder)
    except own_spec.FolderFaults as error:
        return [str(fault) for fault in error.faults]
    return []


def table(*lines: str) -> str:
    return "\n".join([HEADER, *lines]) + "\n"


def options_of(folder: Path) -> list[list[str]]:
    """The filled options of every question of a folder without faults."""
    items = read_folder(folder)[1]
    return [[text for text in row if text] for row in items[OPTIONS].to_numpy()]


def test_a_folder_without_faults(tmp_path: Path) -> None:
    suite, items = read_folder(write(tmp_path))
    card = card_of(suite, items)
    assert len(items) == 40 and len(card["views"]) == 4 and not card["cade_left_out"]
    first, second = (items.loc[line] for line in (2, 3))
    assert (first["answer"], second["answer"]) == ("A", "B")  # a letter, and the text "two"
    assert list(first[OPTIONS][:4]) == ["one", "two", "three", ""]
    assert json.loads(first["groups"]) == {"colour": "red"}
    assert (first["cluster_id"], first["split"]) == ("b0", "val")
    assert first["picture"] == "pictures/0.png"


def test_the_card_shows_the_authors_words_as_text(tmp_path: Path) -> None:
    yaml = YAML.replace("Counting dots", "<b>Dots")
    first = "\n".join([HEADER, *rows()]).replace(",red", ',"red\n- blue"')
    build_own(write(tmp_path / "f", yaml, first + "\n"), tmp_path / "b")
    lines = (tmp_path / "b" / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# &lt;b>Dots"
    assert "- group colour: blue 20, red - blue 20" in lines


# -- suite.yaml


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("name: dots", "name: Dots!"), 1, "name is 'Dots!'; valid: Small letters"),
        (("name: dots", "name: peoples"), 1, "name: 'peoples' is reserved, or close to one"),
        (("title: Counting dots", "titel: Counting dots"), 2, "did you mean 'title'?"),
        (("version: 1", "version: [1]"), 3, "version is ['1']; valid: text"),
        (("version: 1\n", "version: 1\nversion: 2\n"), 4, "field 'version' is given twice"),
        (("items.csv", "item.csv"), 4, "unknown table 'item.csv'; valid: items.csv; did you mean"),
        (("items.csv", "items.txt"), 4, "a table is one of .csv, .jsonl, .parquet"),
        (("items.csv", "../items.csv"), 4, "climbs out of"),
        (("question: question", "question: qestion"), 5, "did you mean 'question'?"),
        (("image: picture", "picture: picture"), 5, "columns: unknown field 'picture'"),
        (("answer: answer, ", ""), 5, "columns: missing field 'answer'; required: id"),
        (("options: [a, b, c]", "options: [a]"), 5, "options is ['a']; valid: 2 to 10 columns"),
        (("options: [a, b, c]", "options: a"), 5, "options is 'a'; valid: a list: 2 to 10"),
        (("cluster_by: batch", "cluster_by: bach"), 6, "did you mean 'batch'?"),
        (("groups: [colour]", "groups: [color]"), 7, "did you mean 'colour'?"),
        (("groups: [colour]", "polarity: up"), 7, "unknown polarity 'up'; valid: higher, lower"),
        (("groups: [colour]", "groups: [colour"), 8, "can't be read as YAML"),
        (("groups: [colour]", "groups: [a=b]"), 7, "'a=b'; valid: A column of one line, no '='"),
        (("groups: [colour]", 'groups: ["a\\nb"]'), 7, "'a\\nb'; valid: A column of one line"),
        (("title: Counting", "title: |\n two\n lines\nx: Counting"), 2, "valid: One line"),
        (("title: Counting dots", 'title: "\\e[2J"'), 2, "without control characters"),
    ],
)
def test_faults_of_suite_yaml(
    tmp_path: Path, change: tuple[str, str], line: int, words: str
) -> None:
    found = faults(write(tmp_path, YAML.replace(*change)))
    assert any(f.startswith(f"suite.yaml:{line}: ") and words in f for f in found), found


def test_every_fault_of_suite_yaml_is_listed_before_the_table_is_read(tmp_path: Path) -> None:
    wrong = YAML.replace("name: dots", "name: Dots!").replace("groups: [colour]", "polarity: up")
    assert [f.split(":")[1] for f in faults(write(tmp_path, wrong, table="no table"))] == ["1", "7"]
    (tmp_path / "suite.yaml").rename(tmp_path / "suite.yml")
    assert "rename suite.yml" in faults(tmp_path)[0]
    assert f"no folder {tmp_path / 'none'}; name one" in faults(tmp_path / "none")[0]


def test_the_schema_for_editors_takes_what_the_reader_takes() -> None:
    schema = formats.schema(own_spec.SuiteFile)
    for text in (YAML, LEAST.format(items="i.csv", options="a, b")):
        jsonschema.validate(yaml.safe_load(text), schema)
    for change in (("options: [a, b, c]", "options: [a]"), ("title:", "titel:")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(YAML.replace(*change)), schema)


# -- rows


def test_all_faults_are_listed_with_their_lines(tmp_path: Path) -> None:
    lines = [
        ROW(1, "A", 0),
        "q1,How many?,one,two,three,four,pictures/9.png,,test,b1,red",
        "q3,,one,,three,A,../x.png,,train,,red",
        "q4,How many?,one,,,A,,,test,b1,red",
        "q5,How many?,one,one,two,A,,,test,b1,red",
        "q6,How many?,one,two",
        ROW(7, "A", 0),
        ",,,,,,,,,,",
        "q9,How many?,one,two,three,Two,https://x.org/1.png,,test,b1,red",
        ROW(10, "two", 0),
    ]
    assert faults(write(tmp_path, table=table(*lines))) == [
        "items.csv:3: id 'q1' is also that of line 2; ids are unique",
        "items.csv:3: image 'pictures/9.png' is not there; give a path inside the folder",
        "items.csv:3: unknown answer 'four'; valid: A, B, C, one, three, two",
        "items.csv:4: column 'batch' is empty; fill it",
        "items.csv:4: column 'question' is empty; fill it",
        "items.csv:4: image '../x.png' leads out of the folder; put the picture into the folder,"
        " without '..' or links",
        "items.csv:4: option 'b' is empty and 'c' is not; leave options out at the end only",
        "items.csv:4: split (column 'split') is 'train'; write val or test",
        "items.csv:5: has 1 option; fill 2 to 10 option columns",
        "items.csv:6: options 'a' and 'b' are both 'one'; options of a question differ",
        "items.csv:7: has 4 cells, the header 11; put double quotes around a cell that holds a"
        " comma",
        "items.csv:9: is an empty row; delete it",
        "items.csv:10: image 'https://x.org/1.png' is an address; put the picture into the folder"
        " and name its path",
        "items.csv:10: unknown answer 'Two'; valid: A, B, C, one, three, two; did you mean 'two'?",
        "items.csv:11: answer B contradicts line 2, which has A for the same text, options, picture"
        " and context; keep one of the two",
    ]


@pytest.mark.parametrize(
    ("answer", "options", "words"),
    [
        ("A", "A,B,", ""),  # both readings agree
        ("A", "B,A,", "the letter of option 'B' and the text of option B"),
        ("C", "x,y,", "unknown answer 'C'"),
        ("a", "x,y,", "unknown answer 'a'"),
        ("\u0410", "x,y,", "unknown answer '\u0410' (CYRILLIC CAPITAL LETTER A); valid: A, B"),
        ("e\u0301te\u0301", "\xe9t\xe9,y,", ""),
        ("#REF!", "x,y,", "column 'answer' holds '#REF!', a spreadsheet's error; correct it"),
    ],
)
def test_an_answer_that_is_letter_and_text(
    tmp_path: Path, answer: str, options: str, words: str
) -> None:
    found = faults(write(tmp_path, table=table(f"q,?,{options},{answer},,,test,b1,red")))
    assert words in found[0] if words else not found


def test_pictures_that_can_not_be_shown(tmp_path: Path) -> None:
    folder = write(tmp_path / "f")
    pictures, outside = folder / "pictures", tmp_path / "outside.png"
    (pictures / "text.png").write_text("no picture")
    (pictures / "half.png").write_bytes(png(side=200)[:90])
    outside.write_bytes(png())
    (pictures / "link.png").symlink_to(outside)
    (pictures / "loop.png").symlink_to(pictures / "loop.png")
    os.mkfifo(pictures / "pipe.png")
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b""))
    )
    (pictures / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    wrong = {
        "pictures/text.png": "no readable JPEG or PNG",
        "pictures/half.png": "no readable JPEG or PNG",
        "pictures/link.png": "leads out of the folder",
        "pictures/loop.png": "can't be read",
        "pictures/pipe.png": "is not there",
        "pictures/huge.png": "shrink the photo",
        str(outside): "leads out of the folder",
        "pictures": "is a folder",
    }
    lines = [f"q{at},?,one,two,,A,{name},,test,b1,red" for at, name in enumerate(wrong)]
    found = faults(write(folder, table=table(*lines)))
    for line, (fault, words) in enumerate(zip(found, wrong.values(), strict=True), 2):
        assert fault.startswith(f"items.csv:{line}: ") and words in fault


# -- tables as they are written


@pytest.mark.parametrize("text", [HEADER + "\n", "\n\n", ""])
def test_a_table_without_questions(tmp_path: Path, text: str) -> None:
    no_question = "items.csv: holds no question; add a row below the header"
    assert faults(write(tmp_path, table=text)) == [no_question]


GOOD = table(*rows())
QUOTED = 'q99,"two\nlines, quoted",one,two,three,A,,,test,b1,red\n'
BYTES = {
    "a byte order mark and Windows line ends": (
        b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode(),
        "",
    ),
    "Excel's first line": (b"sep=,\r\n" + GOOD.encode(), ""),
    "semicolons": (GOOD.replace(",", ";").encode(), "items.csv:1: separates columns by ';'; save"),
    "latin 1": (
        GOOD.replace("one", "\xe9ins", 2).encode("latin-1"),
        "items.csv:2: byte 0xE9 is not UTF-8; save it as UTF-8",
    ),
    "UTF-16": (GOOD.encode("utf-16"), "items.csv:1: byte 0xFF is not UTF-8; save it as UTF-8"),
    "an open quote": (
        (GOOD + 'q99,"an open quote,one,two\n').encode(),
        "items.csv:42: not CSV (unexpected end of data): is a double quote not closed?",
    ),
    "lines of the file, not rows": (
        (GOOD + QUOTED + "q100,?,one,two,three,D,,,val,b1,red\n").encode(),
        "items.csv:44: unknown answer 'D'",
    ),
}


@pytest.mark.parametrize("how", BYTES)
def test_a_csv_as_tools_write_it(tmp_path: Path, how: str) -> None:
    content, words = BYTES[how]
    (write(tmp_path) / "items.csv").write_bytes(content)
    found = faults(tmp_path)
    assert words in found[0] if words else not found


def test_jsonl_keeps_numbers_as_written_and_refuses_lists(tmp_path: Path) -> None:
    yaml = LEAST.format(items="items.jsonl", options="a, b, c")
    lines = [
        '{"id": 1, "question": "Half?", "a": 0.50, "b": 5, "c": NaN, "answer": 0.50}',
        '{"id": 2, "question": "True?", "a": true, "b": false, "answer": "B"}',
        '{"id": 3, "question": "?", "a": ["x"], "b": 1, "c": 2, "answer": "A"}',
        '{"id": 4, "question": "?", "a": 1, "a": 2, "b": 3, "answer": "A"}',
        "[1, 2]",
        '{"id": 7,',
        '{"id": 8, "question": "?", "a": "\\ud800", "b": 3, "answer": "A"}',
        '{"id": 9, "question": "?", "a": 2, "b": 3, "answer": "A", "\\udfff": 1}',
    ]
    folder = write(tmp_path, yaml, "\ufeff" + "\n".join(lines[:2]) + "\n", "items.jsonl")
    assert options_of(folder) == [["0.50", "5"], ["true", "false"]]
    assert read_folder(folder)[1]["answer"].tolist() == ["A", "B"]
    found = faults(write(tmp_path, yaml, "\n".join(lines), "items.jsonl"))
    assert [f.split(":")[1] for f in found] == ["3", "4", "5", "6", "7", "8"]
    assert "column 'a' holds a list; give each option a column of its own" in found[0]
    assert "a name is there twice" in found[1] and "not a JSON object" in found[3]
    assert "column 'a' holds the control character '\\ud800'; remove it" in found[4]
    assert "column '\\udfff' holds the control character" in found[5]


def test_parquet_with_numbers_and_gaps(tmp_path: Path) -> None:
    folder = write(tmp_path, LEAST.format(items="items.parquet", options="a, b, c"), "", "unused")
    # pandas makes floats of whole numbers with gaps
    options = {"a": [1, 2], "b": [3.0, 2.5], "c": [4.0, None], "answer": [4.0, 2.5]}
    frame = pd.DataFrame({"id": [1, 2], "question": ["How many?", "Which?"], **options})
    frame.to_parquet(folder / "items.parquet")
    assert options_of(folder) == [["1", "3", "4"], ["2", "2.5"]]
    assert read_folder(folder)[1]["answer"].tolist() == ["C", "B"]
    frame.assign(b=np.float32([0.1, 2.5])).to_parquet(folder / "items.parquet")
    assert options_of(folder) == [["1", "0.1", "4"], ["2", "2.5"]]
    frame.assign(a=[["x"], ["y"]]).to_parquet(folder / "items.parquet")
    assert faults(folder)[0].startswith("items.parquet:row 1: column 'a' holds a list")
    path = folder / "items.parquet"
    frame.assign(COLOUR="x").to_parquet(path)
    path.write_bytes(path.read_bytes().replace(b"COLOUR", b"COL\xd6UR"))
    assert faults(folder) == ["items.parquet: b'COL\\xd6UR' is not UTF-8; write it again"]
    dates = pa.array([2**30, 1], pa.date32())  # past what Python can show
    pq.write_table(pa.table(dict(frame)).append_column("day", dates), folder / "items.parquet")
    assert "items.parquet: can't be read (days=" in faults(folder)[0]
    frame.assign(id=[1, 1]).to_parquet(folder / "items.parquet")
    assert "items.parquet:row 2: id '1' is also that of row 1" in faults(folder)[0]
    (folder / "items.parquet").write_bytes(b"no parquet")
    assert "items.parquet: can't be read" in faults(folder)[0]
    (folder / "items.parquet").unlink()
    (folder / "items.parquet").mkdir()
    assert "unknown table 'items.parquet'; there is none yet" in faults(folder)[0]


# -- splits and views


def test_the_split_follows_clusters_and_not_the_order_of_rows(tmp_path: Path) -> None:
    items = read_folder(write(tmp_path, YAML.replace(", split: split", "")))[1]
    sides = items.groupby("split")["cluster_id"].agg(set)
    assert len(sides["val"]) == 2 and not sides["val"] & sides["test"]
    again = assign_splits("dots", items[::-1].drop(columns="split"))
    assert again["split"].sort_index().equals(items["split"])
    assert assign_splits("dots", items[:1])["split"].tolist() == ["test"]


def test_what_a_folder_can_not_have_is_noted(tmp_path: Path) -> None:
    yaml = YAML.replace(", image: picture", "").replace(", context: hint", "")
    card = card_of(*read_folder(write(tmp_path, yaml)))
    assert card["views"] == ["q_only"] and "needs a view with a picture" in card["cade_left_out"]
    assert "view full is left out: no question has a picture" in card["notes"]
    assert "view ctx_q is left out: no question has a context" in card["notes"]
    all_val, no_val = (
        table(*(row.replace(f",{a},", f",{b},") for row in rows()))
        for a, b in (("test", "val"), ("val", "test"))
    )
    assert "no question has split test" in faults(write(tmp_path, table=all_val))[0]
    card = card_of(*read_folder(write(tmp_path, table=no_val)))
    assert "tuned on split val" in card["cade_left_out"]
