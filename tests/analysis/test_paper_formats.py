"""The paper's tables as text, CSV, JSON and Markdown, and the command that writes them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdgbias import cli
from sdgbias.analysis import paper as tables
from sdgbias.analysis.paper import formats, numbers, results
from sdgbias.analysis.paper.numbers import described
from sdgbias.errors import StoreError, UsageError
from sdgbias.raw.facet import GROUPS
from sdgbias.store import database
from sdgbias.types import FACET, SDG
from tests.builders.paper_tables import (
    LLAVA,
    build,
    everything,
)
from tests.builders.results import NAMED


@pytest.mark.parametrize(
    ("suite", "names", "items"),
    [
        (SDG, ["h"], ["H", "controls"]),
        (SDG, ["FIG3", "fig3", "k"], ["fig3", "K"]),
        (SDG, ["all"], tables.items()),
        (SDG, [], tables.items(studies=False)),
        (FACET, ["2", "Classes"], [f"{c}{a}" for c in ("", "classes-") for a in GROUPS]),
        (FACET, ["1", "data", "3"], ["data", "prompts"]),
        (FACET, [], tables.items(FACET)),
    ],
)
def test_tables_have_the_papers_numbers_as_names_in_any_case(
    suite: str, names: list[str], items: list[str]
) -> None:
    assert tables.chosen(names, suite) == items


def test_an_unknown_table_is_refused_with_those_of_the_suite() -> None:
    with pytest.raises(UsageError, match="--table: unknown table '7'; valid: 1, 2, 3, A, B"):
        tables.chosen(["7"])
    with pytest.raises(UsageError, match="unknown table 'H'; valid: .*classes.*rates"):
        tables.chosen(["H"], FACET)


def test_text_fits_120_columns_and_says_what_is_missing(full: Path) -> None:
    e = results.load(full)
    made = list(everything(full).values())
    text = formats.text(made, e.runs)
    assert max(len(line) for line in text.splitlines()) <= 120
    for t in made:
        assert t.title in text
    assert "llava-1.5-7b (measured): run llava-1.5-7b-0, benchmark 0123456789abcdef" in text


def test_a_column_that_says_nothing_is_left_out(bare: Path) -> None:
    def shown(model: str) -> bool:
        text = formats.text(tables.build(results.load(bare, [model]), ["fig4"]), [])
        return any(line.endswith("  the text says") for line in text.splitlines())

    assert shown("llava-1.5-7b") and not shown("tiny-llava")


def test_csv_and_json_hold_every_cell(full: Path) -> None:
    e = results.load(full)
    made = list(everything(full).values())
    said = [c for t in made for c in t.cells if c.status or c.paper]
    lines = list(csv.DictReader(io.StringIO(formats.as_csv(made))))
    assert len(lines) == len(said) and list(lines[0]) == list(formats.CSV_COLUMNS)
    read = json.loads(formats.as_json(made, e.runs))
    assert sum(len(t["cells"]) for t in read["tables"]) == len(said)
    assert {r["model"] for r in read["runs"]} == set(NAMED)
    [h] = [t["cells"] for t in read["tables"] if t["item"] == "H"]
    [line] = [c for c in h if (c["row"], c["column"]) == (f"{LLAVA} | Ours", "T3")]
    assert (line["paper"], line["paper_printed"], line["status"]) == (0.55, "0.55", "measured")
    assert line["ci_low"] < line["value"]
    counted = {k: sum(1 for c in said if c.status.split(":")[0] == k) for k in read["counts"]}
    assert read["counts"] == counted and counted["measured"] > 100 and counted["not run"] > 100


def test_footnotes_name_the_contradictions_and_what_ours_is(full: Path) -> None:
    by_item = {t.item: " ".join(t.footnotes) for t in everything(full).values()}
    words = {"I": "-10.09 %", "H": "0.396", "L": "0.130 s", "J": "Sec. 3.2"}
    for item, said in (*words.items(), ("H", "Planted:"), ("H", "Embedded:")):
        assert said in by_item[item]
    assert "Embedded:" not in by_item["G"]


def test_markdown_cell_shows_value_interval_n_and_paper(full: Path) -> None:
    text = formats.markdown(build(full, "1"))
    assert "| 0.510 (0.41..0.61, n 48); paper 0.34 |" in text and "| not run; paper 0.57 |" in text


def test_command_prints_writes_and_refuses(full: Path, tmp_path: Path) -> None:
    def run(*options: str) -> str:
        found = CliRunner().invoke(
            cli.app, ["reproduce", "--results", str(full), *options], catch_exceptions=False
        )
        assert found.exit_code == 0
        return found.stdout

    printed = run("--table", "H", "--model", "llava-1.5-7b")
    assert "Controls beside Table H" in printed and "InstructBLIP" not in printed.split("* ")[0]
    assert printed.rstrip().splitlines()[-1].startswith("2 tables, ")
    assert {t["item"] for t in json.loads(run("--json", "--table", "g"))["tables"]} == {"G"}
    assert run("--csv", "--table", "fig3").startswith("item,row,column,")
    run("--out", str(tmp_path), "--table", "A", "--table", "controls")
    names = [f"{item}.{ending}" for item in ("controls", "table_A") for ending in ("csv", "md")]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    with pytest.raises(UsageError, match="give one of"):
        run("--csv", "--json")
    with pytest.raises(UsageError, match="unknown table"):
        run("--table", "Z")
    with pytest.raises(StoreError, match=r"table_A.md: can't be written"):
        run("--table", "A", "--out", str(full / "tables"))


def test_the_results_are_opened_once(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, given = [], database.open_file
    monkeypatch.setattr(database, "open_file", lambda *how: opened.append(how) or given(*how))
    for paper in ("sdg", "fairness"):
        command = ["reproduce", "--results", str(full), "--paper", paper]
        CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert len(opened) == 2


#: What may stand in a description beside the key of a number.
TEXTS = {"title", "definition", "labels", "columns", "shared", "notes", "empty"}
RULES = {"lacks", "printed", "spoken", "show", "absent"}
OF_TABLES = {"at", "of", "lines", "paper", "printed_at", "not_run"}
OF_LINES = {"blank", "metrics", "run"}
OF_EACH = {"each", "where", "but", "label", "printed", "else", "show"}


def lines_in(part: dict[str, object] | list[object]) -> Iterator[dict[str, object]]:
    """The keys of lines of a part of `lines`, however nested."""
    if isinstance(part, list):
        yield from (line for one in part for line in lines_in(one))
    elif "each" in part:
        assert part.keys() <= OF_EACH
        yield from lines_in(part.get("else", {}))
    else:
        yield from part.values()


@pytest.mark.parametrize("suite", [SDG, FACET])
def test_a_word_that_nothing_reads_stands_in_no_description(suite: str) -> None:
    key = {*numbers.KEY}
    for item, about in described(suite)["tables"].items():
        assert about.keys() <= TEXTS | RULES | OF_TABLES, item
        assert about.get("at", {}).keys() <= key, item
        assert "paper" not in about or numbers.rows(about["paper"]), item
        for line in lines_in(about["lines"]):
            assert line.keys() <= key | RULES | OF_LINES, (item, line)
        for column in about["columns"].values():
            assert column.keys() <= {"name", "kind", "blank"} | key | RULES, (item, column)
