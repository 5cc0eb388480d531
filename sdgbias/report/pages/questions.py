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
from sdgbias.raw.indicators import POLARITIES, letter_directions
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


def option_directions(item: Mapping[Any, Any]) -> dict[str, str]:
    """Letter -> the direction that it says of the place, of a multiple-choice question about an
    indicator with a better end; else {}."""
    options = labels.parsed(item["options"], list)
    if item.get("polarity") not in POLARITIES or len(options) < 2:
        return {}
    ways = letter_directions(str(item["polarity"]), len(options))
    return dict(zip(OPTION_LETTERS, ways, strict=False))


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
            " i.urban) AS place, i.question, i.options::VARCHAR AS options, i.polarity"
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
            " i.age) AS place, i.prompt AS question, '[]' AS options, NULL AS polarity"
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
        " i.question, i.options::VARCHAR AS options, NULL AS polarity"
    ),
)
#: The answer of a prediction (by its alias): the number of an estimate, else the letter or label.
SAID = (
    'CASE WHEN {0}."value" IS NULL OR isnan({0}."value") THEN {0}.pred'
    """ ELSE printf('%.4g', {0}."value") END"""
)
RIGHT_OR_WRONG = {"right": "Right", "wrong": "Wrong"}
#: What CADE did to the answer of Full -> its condition on their answers c and f.
CADE_CHANGES = {
    "fixed": "c.correct AND NOT f.correct",
    "broken": "f.correct AND NOT c.correct",
    "changed": "c.pred IS DISTINCT FROM f.pred",
}
#: Direction of the answer p to a question i, as `option_directions`: options ascend.
_DIRECTION = """CASE WHEN i.polarity NOT IN ('higher', 'lower') OR p.pred NOT IN ('A', 'B', 'C')
    THEN NULL WHEN json_array_length(i.options) = 3 AND p.pred = 'B' THEN 'conservative'
    WHEN (p.pred = 'A') = (i.polarity = 'lower') THEN 'optimistic' ELSE 'pessimistic' END"""
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
    both. direction: of the answer. cade: one of CADE_CHANGES. flipped: only answers that differ
    from the previous run. text: part of the question's text, case-insensitive. page: from 1.
    filters: name of one of `filters_of` -> value."""

    cell: tuple[str, str, str]
    outcome: str = ""
    direction: str = ""
    cade: str = ""
    flipped: bool = False
    text: str = ""
    page: int = 1
    filters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Listed:
    """The answers of a selection as SQL: p, the question i, and o, the answer of the run before."""

    sql: str
    params: list[Any]
    runs: tuple[str, ...]
    previous: str | None


def _listed(reader: Reader, run: Row, listed: Selection) -> _Listed:
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
    if listed.direction:
        where.append(f"{_DIRECTION} = ?")
        params.append(listed.direction)
    if listed.cade:
        where.append(
            f"""p.item_id IN (SELECT item_id FROM predictions c JOIN predictions f
            USING (run_id, task, test, item_id) WHERE run_id = ? AND task = ? AND test = ?
            AND c.method = 'cade' AND f.method = 'full' AND {CADE_CHANGES[listed.cade]})"""
        )
        params += [run["run_id"], task, test]
    if listed.text:
        where.append(f"contains(lower({layout.searched}), lower(?))")
        params.append(listed.text)
    previous = known.before(reader, run)
    mine = "SELECT * FROM predictions WHERE run_id = ? AND task = ? AND test = ? AND method = ?"
    head: list[Any] = [run["run_id"], task, test, method]
    runs = (run["run_id"], previous) if previous else (run["run_id"],)
    join = ""
    if previous:
        join = f"LEFT JOIN ({mine}) o ON o.item_id = p.item_id"
        head += [previous, task, test, method]
    if listed.flipped:
        where.append(
            f"{SAID.format('p')} IS DISTINCT FROM {SAID.format('o')} AND o.item_id IS NOT NULL"
            if previous
            else "false"
        )
    sql = (
        f"FROM ({mine}) p JOIN {suite.items_table} i ON i.item_id = p.item_id {join} WHERE"
        f" {' AND '.join(where)}"
    )
    return _Listed(sql, [*head, *params], runs, previous)


def page(reader: Reader, run: Row, listed: Selection) -> dict[str, Any]:
    """rows (item_id, what, place, question, gold, said, correct, was, was_right, split, texts:
    letter -> option, ways: letter -> direction), total, page, pages, previous (run before; None
    without one)."""
    shown = layout_of(suites.named(run["suite"])).shown
    of = _listed(reader, run, listed)
    was = f"{SAID.format('o')} AS was, o.correct AS was_right"
    total = reader.ask(f"SELECT count(*) AS n {of.sql}", of.params, runs=of.runs)[0]["n"]
    rows = reader.ask(
        f"""SELECT p.item_id, {SAID.format("p")} AS said, p.correct, p.split, i.gold,
            {shown}, {was if of.previous else "NULL AS was, NULL AS was_right"} {of.sql}
            ORDER BY p.item_id LIMIT {PAGE} OFFSET ?""",
        [*of.params, (listed.page - 1) * PAGE],
        runs=of.runs,
    )
    choice = listed.cell[0] == "mcq"
    told = [
        r
        | {
            "texts": dict(option_rows(r)) if choice else {},
            "ways": option_directions(r) if choice else {},
        }
        for r in rows
    ]
    return paged(told, total, listed.page, PAGE) | {"previous": of.previous}


def neighbours(
    reader: Reader, run: Row, listed: Selection, item_id: int
) -> tuple[int | None, int | None]:
    """The questions before and after one in the list of a selection; None at its ends, and where
    the list doesn't have it."""
    of = _listed(reader, run, listed)
    found = reader.one(
        f"""SELECT * FROM (SELECT p.item_id, lag(p.item_id) OVER by_id AS before,
            lead(p.item_id) OVER by_id AS after {of.sql} WINDOW by_id AS (ORDER BY p.item_id))
            WHERE item_id = ?""",
        [*of.params, item_id],
        runs=of.runs,
    )
    return (None, None) if found is None else (found["before"], found["after"])
