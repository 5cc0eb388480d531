"""The question browser: the answers of one run by test and method, filtered and paged. Both suites.

Every value of a filter is a parameter of the statement, never part of it; names of columns come from FILTERS alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdgbias.serve import runs as known
from sdgbias.serve.source import Reader, Row
from sdgbias.types import FACET

PAGE = 40
#: Filters by suite: name in the address -> (column, what the page calls it).
FILTERS: dict[str, dict[str, tuple[str, str]]] = {
    "sdg": {"pillar": ("pillar", "Pillar"), "indicator": ("indicator_title", "Indicator"), "country": ("country", "Country"), "urban": ("urban", "Urban or rural")},
    "facet": {"class": ("class1", "Class"), "gender": ("gender", "Gender, perceived"), "skin": ("skin", "Skin tone, perceived"), "age": ("age", "Age, perceived")},
}  # fmt: skip
#: What a prediction (by its alias) says: the number of an estimate, else the letter or label.
SAID = """CASE WHEN {0}."value" IS NULL OR isnan({0}."value") THEN {0}.pred ELSE printf('%.4g', {0}."value") END"""
OUTCOMES = {"right": "Right", "wrong": "Wrong"}
_TABLES = {"sdg": "items", "facet": "people"}
PLACES = {"U": "urban", "R": "rural"}


def cells(reader: Reader, run: Row) -> list[tuple[str, str, str]]:
    """(task, test, method) of everything that the run answered, in order."""
    rows = reader.ask(
        "SELECT DISTINCT task, test, method FROM predictions WHERE run_id = ? ORDER BY ALL", [run["run_id"]], runs=(run["run_id"],)
    )
    return [(r["task"], r["test"], r["method"]) for r in rows]


def choices(reader: Reader, run: Row) -> dict[str, list[str]]:
    """Filter -> its values in the run's benchmark."""
    table, own = _TABLES[run["suite"]], FILTERS[run["suite"]]
    made = {}
    for name, (column, _) in own.items():
        sql = f"SELECT DISTINCT {column} AS v FROM {table} WHERE benchmark_id = ? AND {column} IS NOT NULL AND {column} != '' ORDER BY 1"
        made[name] = [str(r["v"]) for r in reader.ask(sql, [run["benchmark_id"]])]
    return made


def page(
    reader: Reader, run: Row, cell: tuple[str, str, str], filters: Mapping[str, str], outcome: str, flipped: bool, text: str, at: int
) -> dict[str, Any]:
    """rows (item_id, what, place, question, gold, said, correct, was, was_right, split), total, page, pages, previous (run before; None without one).

    ``filters``: name of a FILTERS entry -> value. ``flipped``: only answers that differ from the run before. ``text``: part of the
    question's words, whatever their case.
    """
    people = run["suite"] == FACET
    task, test, method = cell
    where, params = ["i.benchmark_id = ?"], [run["benchmark_id"]]
    if not people:
        where.append("i.task = ?")
        params.append(task)
    for name, value in filters.items():
        where.append(f"i.{FILTERS[run['suite']][name][0]} = ?")
        params.append(value)
    if outcome:
        where.append("p.correct = ?")
        params.append(outcome == "right")
    if text:
        found_in = (
            "concat_ws(' ', i.asked, i.class1, i.prompt)" if people else "concat_ws(' ', i.question, i.indicator_title, i.options::VARCHAR)"
        )
        where.append(f"contains(lower({found_in}), lower(?))")
        params.append(text)
    previous = known.before(reader, run)
    mine = "SELECT * FROM predictions WHERE run_id = ? AND task = ? AND test = ? AND method = ?"
    head: list[Any] = [run["run_id"], task, test, method]
    own = (run["run_id"], previous) if previous else (run["run_id"],)
    join, was = "", "NULL AS was, NULL AS was_right"
    if previous:
        join = f"LEFT JOIN ({mine}) o ON o.item_id = p.item_id"
        was = f"{SAID.format('o')} AS was, o.correct AS was_right"
        head += [previous, task, test, method]
    if flipped:
        where.append(f"{SAID.format('p')} IS DISTINCT FROM {SAID.format('o')} AND o.item_id IS NOT NULL" if previous else "false")
    shown = (
        "coalesce(nullif(i.asked, ''), i.class1) AS what, concat_ws(', ', i.gender, i.skin, i.age) AS place, i.prompt AS question"
        if people
        else "coalesce(i.indicator_title, i.indicator) AS what, concat_ws(', ', i.country, i.year, i.urban) AS place, i.question"
    )
    body = f"FROM ({mine}) p JOIN {_TABLES[run['suite']]} i ON i.item_id = p.item_id {join} WHERE {' AND '.join(where)}"
    total = reader.ask(f"SELECT count(*) AS n {body}", [*head, *params], runs=own)[0]["n"]
    rows = reader.ask(
        f"""SELECT p.item_id, {SAID.format("p")} AS said, p.correct, p.split, i.gold, {shown}, {was}
            {body} ORDER BY p.item_id LIMIT {PAGE} OFFSET ?""",
        [*head, *params, (at - 1) * PAGE],
        runs=own,
    )
    return {"rows": rows, "total": total, "page": at, "pages": max(1, -(-total // PAGE)), "previous": previous}
