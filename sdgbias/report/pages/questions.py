"""The question browser, for both suites: the answers of one run by test and method, filtered and
paged; and single questions: what was shown, the answer of each view, and why CADE chose its answer.

Filter values are bound parameters, never part of the SQL text; column names come only from
`filters_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sdgbias import suites
from sdgbias.benchmark.people_items import ATTRIBUTE, ATTRIBUTES, CHOICES, P1
from sdgbias.raw.facet import CLASSES
from sdgbias.raw.indicators import Template, load_indicators, load_regression_tasks
from sdgbias.report import labels
from sdgbias.report.pages import runs as known
from sdgbias.report.web.source import Reader, Row
from sdgbias.types import MODALITIES, OPTION_LETTERS, Task, View

#: How an answer about people was parsed (suites/facet.py).
HOW = {
    "exact": "word for word",
    "normalised": "after normalising",
    "option": "as an option letter",
    "cosine": "by the nearest label",
    "refusal": "declined",
    "unparsed": "not understood",
    "empty": "empty",
    "several": "names several",
    "argmax": "likeliest letter",
}
_LETTERS = {"A": "yes", "B": "no", "C": "unknown"}


def load(reader: Reader, run: Row, task: str, item_id: int, test: str) -> dict[str, Any] | None:
    """All data of one question under one test of a run; None if the run's benchmark doesn't contain
    the question.

    ``test`` '': the first test that was scored. Views: name, probabilities by candidate (None if
    not scored), mass, answer.
    """
    suite = suites.named(run["suite"])
    layout, people = _layout(suite), suite.private
    keys = {"task": task, "item_id": item_id}
    item = reader.one(
        f"SELECT {layout.columns} FROM {suite.items_table} WHERE benchmark_id = ? AND"
        f" {' AND '.join(f'{key} = ?' for key in suite.question_keys)}",
        [run["benchmark_id"], *(keys[key] for key in suite.question_keys)],
    )
    if item is None:
        return None
    own, key = (run["run_id"],), [run["run_id"], task, item_id]
    answers = reader.ask(
        "SELECT * FROM predictions WHERE run_id = ? AND task = ? AND item_id = ? ORDER BY test,"
        " method",
        key,
        runs=own,
    )
    tests = list(dict.fromkeys(a["test"] for a in answers))
    test = test or (tests[0] if tests else "")
    said = {a["method"]: a for a in answers if a["test"] == test}
    scores = reader.ask(
        """SELECT "view", logits, upper, candidates, mass, top_token FROM scores WHERE run_id = ?
           AND task = ? AND item_id = ? AND test = ?""",
        [*key, test],
        runs=own,
    )
    by_view = {s["view"]: s for s in scores}
    views = [
        _view(v.value, by_view.get(v.value), said)
        for v in View
        if v.value in by_view or v.value in said
    ]
    shown = reader.one(
        "SELECT 1 AS there FROM previews WHERE benchmark_id = ? AND image_id = ?",
        [run["benchmark_id"], item["image_id"]],
    )
    return {
        "item": item,
        "people": people,
        "groups": labels.parsed(item.get("groups")) if suite.custom else None,
        "asked": layout.asked(item),
        "task": task,
        "tests": tests,
        "test": test,
        "views": views,
        "said": said,
        "picture": shown is not None,
        "shown": caption(item.get("modalities")),
        "template": template_of(task, item) if suite.items_table == "items" else None,
        "options": layout.options(item),
        "context": str(labels.parsed(item.get("context")).get(test) or ""),
        "cade": _cade(reader, run, task, test, said),
        "letters": layout.letters,
        "spoken": [
            s | {"how_said": HOW.get(s["how"], s["how"])}
            for s in reader.ask(
                "SELECT * FROM spoken WHERE run_id = ? AND task = ? AND item_id = ? AND test = ?",
                [*key, test],
                runs=own,
            )
        ],
    }


def _asked(item: Row) -> str:
    """The exact question about a person; the list of classes or groups is only named."""
    prompt = str(item["prompt"])
    if prompt in CHOICES:
        return CHOICES[prompt].format(name=item["asked"])
    if prompt in ATTRIBUTES:
        return ATTRIBUTE.format(what=ATTRIBUTES[prompt], list="...")
    return P1.format(list=f"the {len(CLASSES)} classes")


def _view(name: str, score: Row | None, said: dict[str, Row]) -> dict[str, Any]:
    probabilities = None
    if score is not None and score["logits"]:
        bound = score["upper"] or [None] * len(score["logits"])
        z = [
            b if math.isinf(x) and b is not None else x
            for x, b in zip(score["logits"], bound, strict=False)
        ]
        z = z[: len(score["candidates"] or "")]
        if z and all(map(math.isfinite, z)):
            top = max(z)
            e = [math.exp(x - top) for x in z]
            probabilities = [(c, x / sum(e)) for c, x in zip(score["candidates"], e, strict=False)]
    return {
        "name": name,
        "probabilities": probabilities,
        "mass": score["mass"] if score else None,
        "answer": said.get(name),
    }


def _option_rows(item: Row) -> list[tuple[str, str]]:
    """(letter, text) of a multiple-choice item; [] for an estimate."""
    texts = labels.parsed(item["options"], list)
    return list(zip(OPTION_LETTERS, (str(t) for t in texts), strict=False))


def _cade(
    reader: Reader, run: Row, task: str, test: str, said: dict[str, Row]
) -> dict[str, Any] | None:
    """CADE's parameters, gate and sentence; None if it gave no answer."""
    answer, full = said.get("cade"), said.get("full")
    params = reader.one(
        "SELECT alpha, lambda_kl, beta, tau FROM cade_params WHERE run_id = ? AND task = ? AND"
        " test = ?",
        [run["run_id"], task, test],
    )
    if answer is None or params is None:
        return None
    tau, sure = (
        params["tau"],
        answer["confidence"] if answer["confidence"] is not None else math.nan,
    )
    if answer["kept"]:
        why = (
            f"The confidence of the Full view is {sure:.3f}, which reaches the gate"
            f" τ = {tau:.3f}: CADE keeps its answer."
        )
    else:
        changed = full is not None and (full["pred"], full["value"]) != (
            answer["pred"],
            answer["value"],
        )
        outcome = "and its answer differs from Full’s" if changed else "and gives the same answer"
        why = (
            f"The confidence of the Full view is {sure:.3f}, less than the gate"
            f" τ = {tau:.3f}: CADE combines the views again, {outcome}."
        )
    return {"params": params, "answer": answer, "why": why}


_SHOWN = {
    "photo": "a street photo",
    "tile": "the satellite tile, north up",
    "nightlights": "the night lights",
}


def template_of(task: str, item: Row) -> Template | None:
    """The template of the item's indicator; None where the question isn't ours (a release, custom
    questions) or is of another version."""
    entries = load_regression_tasks() if task == Task.REGRESSION.value else load_indicators()
    for entry in entries:
        if (entry.slug, entry.question) == (item["indicator"], item["question"]):
            return entry.template
    return None


def caption(modalities: object) -> str:
    """What the picture of a question shows, in words; of a question of an earlier version, whose
    picture isn't described, the usual panels."""
    known = str(modalities or "")
    names = [name for name in MODALITIES if name in known.split(", ")] or list(MODALITIES)
    text = f"What the model was shown: {', '.join(_SHOWN[name] for name in names)}."
    return text if "photo" in names else f"{text} There is no street photo of this place."


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
        options=_option_rows,
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


def _layout(suite: suites.Suite) -> Layout:
    return _CUSTOM if suite.custom else _LAYOUTS[suite.items_table]


def filters_of(reader: Reader, run: Row) -> Mapping[str, tuple[str, str]]:
    """Filters of a run's questions: name in the URL -> (column of a question ``i``, label on the
    page). Custom questions are filtered by their group columns, ``group:NAME`` in the URL."""
    suite = suites.named(run["suite"])
    if not suite.custom:
        return _layout(suite).filters
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
    layout, columns = _layout(suite), filters_of(reader, run)
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
    return {
        "rows": rows,
        "total": total,
        "page": listed.page,
        "pages": max(1, -(-total // PAGE)),
        "previous": previous,
    }
