"""The question browser, for both suites: the answers of one run by test and method, filtered and
paged (single questions: question.py).

Filter values are bound parameters, never part of the SQL text; column names come only from
`filters_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sdgbias import suites
from sdgbias.benchmark.people_items import CHOICES, P1
from sdgbias.raw.facet import CLASSES
from sdgbias.report import labels
from sdgbias.report.pages import runs as known
from sdgbias.report.source import Reader, Row, paged
from sdgbias.types import OPTION_LETTERS

_LETTERS = {"A": "yes", "B": "no", "C": "unknown"}


def _asked(item: Row) -> str:
    """The exact question about a person; the list of classes is only named."""
    prompt = str(item["prompt"])
    if prompt in CHOICES:
        return CHOICES[prompt].format(name=item["asked"])
    return P1.format(list=f"the {len(CLASSES)} classes")


def option_rows(item: Row) -> list[tuple[str, str]]:
    """(letter, text) of a multiple-choice item; [] for an estimate."""
    texts = labels.parsed(item["options"], list)
    return list(zip(OPTION_LETTERS, (str(t) for t in texts), strict=False))


PAGE = 40


@dataclass(frozen=True)
class Layout:
    """How questions of one table are read and shown. filters: name in the URL -> (column of a
    question ``i``, label on the page). columns: columns of one question. searched: SQL for
    the words of a question ``i``. shown: SQL for its columns what, place and question. asked: the
    question's text; options: its (letter, text); letters: the meaning of single letters."""

    filters: Mapping[str, tuple[str, str]]
    columns: str
    searched: str
    shown: str
    asked: Callable[[Row], str]
    options: Callable[[Row], list[tuple[str, str]]]
    letters: Mapping[str, str]


#: Table of a suite's questions -> their layout.
_LAYOUTS = {
    "items": Layout(
        filters={
            "pillar": ("i.pillar", "Pillar"),
            "indicator": ("i.indicator_title", "Indicator"),
            "country": ("i.country", "Country"),
            "urban": ("i.urban", "Urban or rural"),
        },
        columns="* REPLACE (options::VARCHAR AS options, context::VARCHAR AS context)",
        searched="concat_ws(' ', i.question, i.indicator_title, i.options::VARCHAR)",
        shown=(
            "coalesce(i.indicator_title, i.indicator) AS what, concat_ws(', ', i.country, i.year,"
            " i.urban) AS place, i.question"
        ),
        asked=lambda item: str(item["question"] or ""),
        options=option_rows,
        letters={},
    ),
    "people": Layout(
        filters={
            "class": ("i.class1", "Class"),
            "gender": ("i.gender", "Gender, perceived"),
            "skin": ("i.skin", "Skin tone, perceived"),
            "age": ("i.age", "Age, perceived"),
        },
        columns="*",
        searched="concat_ws(' ', i.asked, i.class1, i.prompt)",
        shown=(
            "coalesce(nullif(i.asked, ''), i.class1) AS what, concat_ws(', ', i.gender, i.skin,"
            " i.age) AS place, i.prompt AS question"
        ),
        asked=_asked,
        options=lambda item: [],
        letters=_LETTERS,
    ),
}
#: Suites of custom questions: their id and their group columns, which only the benchmark knows.
_CUSTOM = replace(
    _LAYOUTS["items"],
    filters={},
    searched="concat_ws(' ', i.source_id, i.question, i.options::VARCHAR)",
    shown=(
        "coalesce(i.source_id, i.item_id::VARCHAR) AS what,"
        " coalesce(array_to_string(json_extract_string(i.groups, '$.*'), ', '), '') AS place,"
        " i.question"
    ),
)
#: The answer of a prediction (by its alias): the number of an estimate, else the letter or label.
SAID = (
    'CASE WHEN {0}."value" IS NULL OR isnan({0}."value") THEN {0}.pred'
    """ ELSE printf('%.4g', {0}."value") END"""
)
RIGHT_OR_WRONG = {"right": "Right", "wrong": "Wrong"}
PLACES = {"U": "urban", "R": "rural"}


def layout_of(suite: suites.Suite) -> Layout:
    return _CUSTOM if suite.custom else _LAYOUTS[suite.items_table]


def filters_of(reader: Reader, run: Row) -> Mapping[str, tuple[str, str]]:
    """Filters of a run's questions: name in the URL -> (column of a question ``i``, label on the
    page). Custom questions are filtered by their group columns, ``group:NAME`` in the URL."""
    suite = suites.named(run["suite"])
    if not suite.custom:
        return layout_of(suite).filters
    known = reader.one(
        "SELECT json_keys(groups) AS names FROM items WHERE benchmark_id = ? AND groups IS NOT NULL"
        " LIMIT 1",
        [run["benchmark_id"]],
    )
    return {f"group:{name}": (_level(name), name) for name in (known or {"names": []})["names"]}


def _level(name: str) -> str:
    """SQL of the level of a group column. The name is its author's, so it is quoted twice: as a
    JSON pointer and as an SQL string."""
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    return "json_extract_string(i.groups, '{}')".format(pointer.replace("'", "''"))


def cells(reader: Reader, run: Row) -> list[tuple[str, str, str]]:
    """All (task, test, method) with answers of the run, in order."""
    rows = reader.ask(
        "SELECT DISTINCT task, test, method FROM predictions WHERE run_id = ? ORDER BY ALL",
        [run["run_id"]],
        runs=(run["run_id"],),
    )
    return [(r["task"], r["test"], r["method"]) for r in rows]


def choices(reader: Reader, run: Row) -> dict[str, list[str]]:
    """Filter -> its values in the run's benchmark."""
    table, own = suites.named(run["suite"]).items_table, filters_of(reader, run)
    made = {}
    for name, (column, _) in own.items():
        sql = (
            f"SELECT DISTINCT {column} AS v FROM {table} i WHERE i.benchmark_id = ? AND {column} IS"
            f" NOT NULL AND {column} != '' ORDER BY 1"
        )
        made[name] = [str(r["v"]) for r in reader.ask(sql, [run["benchmark_id"]])]
    return made


@dataclass(frozen=True)
class Selection:
    """Which answers of a run are listed. cell: task, test, method. outcome: right, wrong, or '' for
    both. flipped: only answers that differ from the previous run. text: part of the question's
    text, case-insensitive. page: from 1. filters: name of one of `filters_of` -> value."""

    cell: tuple[str, str, str]
    outcome: str = ""
    flipped: bool = False
    text: str = ""
    page: int = 1
    filters: Mapping[str, str] = field(default_factory=dict)


def page(reader: Reader, run: Row, listed: Selection) -> dict[str, Any]:
    """rows (item_id, what, place, question, gold, said, correct, was, was_right, split), total,
    page, pages, previous (run before; None without one)."""
    suite = suites.named(run["suite"])
    layout, columns = layout_of(suite), filters_of(reader, run)
    task, test, method = listed.cell
    where, params = ["i.benchmark_id = ?"], [run["benchmark_id"]]
    if "task" in suite.question_keys:
        where.append("i.task = ?")
        params.append(task)
    for name, value in listed.filters.items():
        where.append(f"{columns[name][0]} = ?")
        params.append(value)
    if listed.outcome:
        where.append("p.correct = ?")
        params.append(listed.outcome == "right")
    if listed.text:
        where.append(f"contains(lower({layout.searched}), lower(?))")
        params.append(listed.text)
    previous = known.before(reader, run)
    mine = "SELECT * FROM predictions WHERE run_id = ? AND task = ? AND test = ? AND method = ?"
    head: list[Any] = [run["run_id"], task, test, method]
    own = (run["run_id"], previous) if previous else (run["run_id"],)
    join, was = "", "NULL AS was, NULL AS was_right"
    if previous:
        join = f"LEFT JOIN ({mine}) o ON o.item_id = p.item_id"
        was = f"{SAID.format('o')} AS was, o.correct AS was_right"
        head += [previous, task, test, method]
    if listed.flipped:
        where.append(
            f"{SAID.format('p')} IS DISTINCT FROM {SAID.format('o')} AND o.item_id IS NOT NULL"
            if previous
            else "false"
        )
    body = (
        f"FROM ({mine}) p JOIN {suite.items_table} i ON i.item_id = p.item_id {join} WHERE"
        f" {' AND '.join(where)}"
    )
    total = reader.ask(f"SELECT count(*) AS n {body}", [*head, *params], runs=own)[0]["n"]
    rows = reader.ask(
        f"""SELECT p.item_id, {SAID.format("p")} AS said, p.correct, p.split, i.gold,
            {layout.shown}, {was} {body} ORDER BY p.item_id LIMIT {PAGE} OFFSET ?""",
        [*head, *params, (listed.page - 1) * PAGE],
        runs=own,
    )
    return paged(rows, total, listed.page, PAGE) | {"previous": previous}
