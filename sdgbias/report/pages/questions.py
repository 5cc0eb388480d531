"""The question browser: the answers of one run by test and method, filtered and paged (single
questions: question.py).

A selection is the parameters of the page's address, checked by the web application: run, task,
test, method, outcome, direction, cade, flipped, q and the filters, '' where one is not set. Names
and values of filters are bound parameters, never part of the SQL text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdgbias import suites
from sdgbias.raw.indicators import POLARITIES, letter_directions
from sdgbias.report.pages import runs as known
from sdgbias.report.reader import Reader, Row, paged, parsed
from sdgbias.types import OPTION_LETTERS

PAGE = 40
#: Names of the filters of custom questions begin with it: an author may name a column 'run' or 'q'.
GROUP = "group:"
#: The answer of a prediction (by its alias): the number of an estimate, else the letter or label.
SAID = (
    'CASE WHEN {0}."value" IS NULL OR isnan({0}."value") THEN {0}.pred'
    """ ELSE printf('%.4g', {0}."value") END"""
)
CADE_CHANGES = ("fixed", "broken", "changed")
PLACES = {"U": "urban", "R": "rural"}
#: Parameter of a selection -> its condition on an answer p to a question i, and on the answer o of
#: the run before. The direction is that of `option_directions`: options ascend.
_CONDITIONS = {
    "outcome": "p.correct = ($outcome = 'right')",
    "direction": """$direction = CASE WHEN coalesce(i.polarity NOT IN ('higher', 'lower'), true)
        OR p.pred NOT IN ('A', 'B', 'C') THEN NULL
        WHEN json_array_length(i.options) = 3 AND p.pred = 'B' THEN 'conservative'
        WHEN (p.pred = 'A') = (i.polarity = 'lower') THEN 'optimistic' ELSE 'pessimistic' END""",
    "cade": f"""p.item_id IN (SELECT item_id FROM predictions c JOIN predictions f
        USING (run_id, task, test, item_id) WHERE run_id = $run AND task = $task AND test = $test
        AND c.method = 'cade' AND f.method = 'full' AND CASE $cade
        WHEN 'fixed' THEN c.correct AND NOT f.correct WHEN 'broken' THEN f.correct AND NOT c.correct
        ELSE {SAID.format("c")} IS DISTINCT FROM {SAID.format("f")} END)""",
    "flipped": f"""$flipped = 'true' AND o.item_id IS NOT NULL
        AND {SAID.format("p")} IS DISTINCT FROM {SAID.format("o")}""",
    "q": "contains(lower(concat_ws(' ', i.about, i.question, i.options::VARCHAR)), lower($q))",
}
_ANSWERS = """(SELECT * FROM predictions
    WHERE run_id = {} AND task = $task AND test = $test AND method = $method)"""


def option_directions(item: Mapping[Any, Any]) -> dict[str, str]:
    """Letter -> the direction that it says of the place, of a multiple-choice question about an
    indicator with a better end; else {}."""
    options = option_rows(item)
    if item.get("polarity") not in POLARITIES or len(options) < 2:
        return {}
    ways = letter_directions(str(item["polarity"]), len(options))
    return dict(zip(OPTION_LETTERS, ways, strict=False))


def option_rows(item: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """(letter, text) of a multiple-choice item; [] of any other question."""
    texts = parsed(item.get("options"), list)
    return list(zip(OPTION_LETTERS, (str(t) for t in texts), strict=False))


def attribute_words(attributes: Mapping[str, str]) -> str:
    """What a question is about, its attributes in words."""
    return ", ".join(PLACES.get(v, v) if k == "urban" else v for k, v in attributes.items())


def cells(reader: Reader, run: Row) -> list[tuple[str, str, str]]:
    """All (task, test, method) with answers of the run, in order."""
    rows = reader.ask(
        "SELECT DISTINCT task, test, method FROM predictions WHERE run_id = ? ORDER BY ALL",
        [run["run_id"]],
        runs=(run["run_id"],),
    )
    return [(r["task"], r["test"], r["method"]) for r in rows]


def filters_of(reader: Reader, run: Row) -> Mapping[str, str]:
    """Filters of a run's questions, name -> SQL of the value: those of the suite, or the group
    columns. Their names are their author's, so they are quoted twice: as a JSON pointer
    and as an SQL string."""
    if filters := suites.named(run["suite"]).filters:
        return filters
    row = reader.one(
        "SELECT json_keys(groups) AS names FROM items WHERE benchmark_id = ? AND groups IS NOT NULL"
        " LIMIT 1",
        [run["benchmark_id"]],
    )
    names = row["names"] if row else []
    pointers = {name: name.replace("~", "~0").replace("/", "~1") for name in names}
    return {
        f"{GROUP}{name}": "json_extract_string(groups, '/{}')".format(pointer.replace("'", "''"))
        for name, pointer in pointers.items()
    }


def choices(reader: Reader, run: Row) -> dict[str, list[str]]:
    """Filter -> its values in the run's benchmark."""
    sql = f"""SELECT DISTINCT {{0}} AS value FROM {suites.named(run["suite"]).items_table}
        WHERE benchmark_id = ? AND {{0}} <> '' ORDER BY 1"""
    return {
        name: [r["value"] for r in reader.ask(sql.format(column), [run["benchmark_id"]])]
        for name, column in filters_of(reader, run).items()
    }


def _listed(
    reader: Reader, run: Row, selection: Mapping[str, str]
) -> tuple[str, dict[str, Any], list[str]]:
    """The answers of a selection as SQL: p, the question i, and o, the answer of the run before;
    its parameters, and the runs whose answers it reads."""
    suite, previous = suites.named(run["suite"]), known.before(reader, run)
    filters = filters_of(reader, run)
    params: dict[str, Any] = {"benchmark": run["benchmark_id"], "previous": previous}
    where = ["i.benchmark_id = $benchmark"]
    for at, (name, value) in enumerate(selection.items()):
        if name in ("run", "task", "test", "method"):
            params[name] = value
        elif value and name in _CONDITIONS:
            params[name] = value
            where.append(_CONDITIONS[name])
        elif value:
            params[f"value{at}"] = value
            where.append(
                f"""p.item_id IN (SELECT item_id FROM {suite.items_table}
                WHERE benchmark_id = $benchmark AND {filters[name]} = $value{at}
                {"AND task = $task" if "task" in suite.question_keys else ""})"""
            )
    sql = f"""FROM {_ANSWERS.format("$run")} p
        JOIN questions i ON i.task = p.task AND i.item_id = p.item_id
        LEFT JOIN {_ANSWERS.format("$previous")} o ON o.item_id = p.item_id
        WHERE {" AND ".join(where)}"""
    return sql, params, [run["run_id"], *([previous] if previous else [])]


def page(reader: Reader, run: Row, selection: Mapping[str, str], page: int) -> dict[str, Any]:
    """rows (item_id, what, place, question, gold, said, correct, was, was_right, split, texts:
    letter -> option, ways: letter -> direction), total, page, pages, previous (run before; None
    without one)."""
    sql, params, runs = _listed(reader, run, selection)
    rows = reader.ask(
        f"""SELECT p.item_id, p.split, {SAID.format("p")} AS said, p.correct,
            {SAID.format("o")} AS was, o.correct AS was_right, count(*) OVER () AS total {sql}
            ORDER BY p.item_id LIMIT {PAGE} OFFSET $skip""",
        params | {"skip": (page - 1) * PAGE},
        runs=runs,
    )
    items = reader.ask(
        """SELECT item_id, about AS what, attributes, question, options, polarity, gold
           FROM questions WHERE benchmark_id = ? AND task = ? AND list_contains(?, item_id)""",
        [run["benchmark_id"], selection["task"], [r["item_id"] for r in rows]],
    )
    by_id = {i["item_id"]: i for i in items}
    shown = [
        r
        | (item := by_id[r["item_id"]])
        | {
            "place": attribute_words(item["attributes"]),
            "texts": dict(option_rows(item)),
            "ways": option_directions(item),
        }
        for r in rows
    ]
    total = rows[0]["total"] if rows else 0
    return paged(shown, total, page, PAGE) | {"previous": params["previous"]}


def neighbours(
    reader: Reader, run: Row, selection: Mapping[str, str], item_id: int
) -> tuple[int | None, int | None]:
    """The questions before and after one in the list of a selection; None at its ends, and where
    the list doesn't have it."""
    sql, params, runs = _listed(reader, run, selection)
    row = reader.one(
        f"""SELECT * FROM (SELECT p.item_id, lag(p.item_id) OVER by_id AS before,
            lead(p.item_id) OVER by_id AS after {sql} WINDOW by_id AS (ORDER BY p.item_id))
            WHERE item_id = $item""",
        params | {"item": item_id},
        runs=runs,
    )
    return (None, None) if row is None else (row["before"], row["after"])
