"""The papers' tables as a join: every cell is the number of a run (or of a benchmark, or of this
program) and the number that the paper prints, both found by the key that its table, line and column
give (``data/tables_sdg.yaml`` and ``data/tables_people.yaml``).

A table is its title and texts, what it is ``of`` (models, benchmarks or code), ``lines`` and
``columns``. ``lines`` has one part for each label after the subject's: a mapping of labels to keys,
`each` combination of key columns that the subject has numbers of (not those of ``but``;
``printed``: that the paper prints of it; ``else``: lines if there is none), or a list of these. The
lines are their product. A line, a column and the table's ``at`` hold the part of the key that isn't
that of ``KEY``, and what is said otherwise about a cell:

* ``lacks``: why there is no number, if the results don't say it
* ``printed``: the columns of the printed file ``paper`` that must equal the key, or their values;
  ``printed_at``: where the paper's numbers are
* ``spoken``: of a model that gives text alone, what it said stands for the best candidate of a view
* ``run``: lines of what was run alone (true), or of what was not (false)
* ``show``: lines with one of our numbers (made), a number of the paper (printed), that the results
  know of (stored), or one of the last two (known); ``not_run``: the same of what was not run
* ``blank``: columns that a line leaves empty, methods that a column does; ``absent: blank``: what
  the results know nothing of is left empty
* ``metrics``: a line's metrics in place of a column's
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import pandas as pd

from sdgbias.analysis.paper import numbers
from sdgbias.analysis.paper.numbers import KEY, Printed, described
from sdgbias.analysis.paper.results import NOT_RUN, PaperResults, Subject
from sdgbias.errors import UsageError, one_of
from sdgbias.types import GENERATED, NEEDS_SCORES, PILLARS, SDG, VIEWS

#: Number format of a column. share: 0.412; percent: 41.2 (of a share); number: 12.34;
#: count: 1,234; text: as it is.
Kind = Literal["share", "percent", "number", "count", "text"]
Fields = Mapping[str, Any]
#: Labels, and the key that they stand for.
Lines = list[tuple[tuple[str, ...], Fields]]

SCORED = ("measured", "embedded", "planted")
COUNTED = ("counted", "synthetic")
#: Status of a cell that has a value. 'synthetic': counted in a benchmark built from synthetic raw
#: data; 'code': a constant of this program.
MADE = (*SCORED, *COUNTED, "code")
UNTUNED = "CADE was not tuned in this run (no val rows)"
NO_NUMBER = "no such number in this run"
#: Columns of the key that `each` sorts by, and what comes first in them.
SORTED = ("task", "test", "pillar", "indicator", "method")
FIRST = {**{pillar: str(at) for at, pillar in enumerate(PILLARS)}, "full_argmax": ""}


@dataclass(frozen=True)
class Cell:
    """value: ours, None if missing. n, low, high: its rows and 95 % interval (None, NaN if
    missing). paper: the printed value of the same quantity. status: one of ``MADE``, 'not run',
    'not analysed: ...', 'not in store: why', '' (intentionally blank)."""

    value: float | str | None = None
    n: int | None = None
    low: float = math.nan
    high: float = math.nan
    paper: Printed | None = None
    status: str = ""

    @property
    def made(self) -> bool:
        return self.status in MADE

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))


@dataclass(frozen=True)
class Column:
    """key: what its numbers are, and how it differs from its table."""

    name: str
    kind: Kind = "share"
    key: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """labels: one per label column of the table; cells: one per column."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """item: its `--table` name. definition: the meaning of the numbers, in a sentence or two.
    empty: why there are no rows at all."""

    item: str
    title: str
    definition: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    empty: str = ""

    @property
    def cells(self) -> list[Cell]:
        return [c for row in self.rows for c in row.cells]


# -- names
# ----------------------------------------------------------------------


def items(suite: str = SDG, *, studies: bool = True) -> list[str]:
    """`--table` names: the paper's items in its order, then companion tables, then raw study rows,
    which have no table in the paper (``studies``)."""
    tables = described(suite)["tables"]
    raw = [
        name
        for name, about in tables.items()
        if about.get("at", {}).get("study", "").startswith("rows of")
    ]
    return [name for name in tables if studies or name not in raw]


def chosen(names: Sequence[str], suite: str = SDG) -> list[str]:
    """Items of these names (case-insensitive), in the given order; some names stand for several,
    'all' for every one. Default: everything except the long tables of raw study rows. Raises
    UsageError."""
    aliases: Mapping[str, Sequence[str]] = described(suite)["aliases"]
    every = {**{name: [name] for name in items(suite)}, **aliases, "all": items(suite)}
    valid = {name.lower(): several for name, several in every.items()}
    for name in names:
        if name.lower() not in valid:
            raise UsageError("--table: " + one_of("table", name, every))
    if not names:
        return items(suite, studies=False)
    return list(dict.fromkeys(item for name in names for item in valid[name.lower()]))


# -- tables
# ----------------------------------------------------------------------


def build(results: PaperResults, names: Sequence[str] = ()) -> list[Table]:
    """The tables of these names, each with footnotes: the paper's contradictions and the limits of
    our values."""
    return [_table(results, name) for name in chosen(names, results.suite)]


def _table(results: PaperResults, item: str) -> Table:
    about, ours = (described(results.suite)[part] for part in ("tables", "ours"))
    about = about[item]
    columns = tuple(_columns(about["columns"]))
    rows = tuple(_rows(results, about, columns))
    cells = [c for row in rows for c in row.cells]
    kinds = {c.status for c in cells if c.made}
    if kinds & {*SCORED} and any(r.synthetic for r in results.runs):
        kinds.add("synthetic")
    if any(c.paper and c.status == "measured" for c in cells):
        kinds |= {f"{'' if r.authors_questions else 'not '}authors" for r in results.runs}
    limits = (text for kind, text in ours.items() if kind in kinds)
    notes = (*about.get("shared", ()), *about.get("notes", ()), *limits)
    texts = (about["title"], about["definition"], tuple(about["labels"]))
    return Table(item, *texts, columns, rows, notes, about.get("empty", ""))


def _columns(each: Mapping[str, Fields]) -> Iterator[Column]:
    """Columns by name: their kind, and their key with what is said otherwise."""
    for name, key in each.items():
        yield Column(key.get("name", name), key.get("kind", "share"), key)


def _rows(results: PaperResults, about: Fields, columns: Sequence[Column]) -> Iterator[Row]:
    of = about.get("of", "models")
    for subject in results.subjects(of, about.get("paper", "")):
        for parts in product(*(_lines(results, subject, about, part) for part in about["lines"])):
            line: dict[str, Any] = dict(about.get("at", {}))
            for _, more in parts:
                line |= more
            if line.get("run") == (subject.kind == NOT_RUN):
                continue
            keys = [_key(line, column) for column in columns]
            each = zip(columns, keys, strict=True)
            cells = tuple(_cell(results, subject, about, line, column, key) for column, key in each)
            stored = any(results.row(subject.key, key) for key in keys)
            printed = any(c.paper and c.paper.value is not None for c in cells)
            rules = {"made": any(c.made for c in cells), "printed": printed}
            rules |= {"stored": stored, "known": stored or printed}
            show = (
                about.get("not_run") if subject.kind == NOT_RUN else {**about, **line}.get("show")
            )
            if show is None or rules[show]:
                labels = [label for labels, _ in parts for label in labels]
                yield Row(tuple(labels if of == "code" else [subject.label, *labels]), cells)


def _lines(results: PaperResults, subject: Subject, about: Fields, part: Any) -> Lines:
    """The labels and keys of one part of a table's lines about a subject."""
    if isinstance(part, list):
        return [line for one in part for line in _lines(results, subject, about, one)]
    if "each" not in part:
        return [((label,), key) for label, key in part.items()]
    names, more = part["each"], {"show": part["show"]} if "show" in part else {}
    printed = [r for r in numbers.rows(about.get("paper", "")) if r["model"] == subject.model]
    frame = pd.DataFrame(printed)
    if not (part.get("printed") and printed):
        frame = results.study(about.get("at", {}).get("study", ""))
        frame = frame[frame["run_id"] == subject.key]
    for name, value in part.get("where", {}).items():
        frame = frame[frame[name] == value]
    each = frame[names].drop_duplicates()
    each = each[~each.isin(part.get("but", ())).any(axis=1)].to_dict("records")
    each.sort(key=lambda at: [FIRST.get(v, v) for name, v in at.items() if name in SORTED])
    if not each:
        return [((label,) * len(names), key) for label, key in part.get("else", {}).items()]
    if "label" in part:
        return [((part["label"].format(**at),), more | at) for at in each]
    return [(tuple(at.values()), more | at) for at in each]


# -- cells
# ----------------------------------------------------------------------


def _key(line: Fields, column: Column) -> dict[str, str]:
    given = {**KEY, **line, **column.key}
    key = {name: given[name] for name in KEY}
    return key | {"metric": line.get("metrics", {}).get(key["metric"], key["metric"])}


def _cell(
    results: PaperResults,
    subject: Subject,
    about: Fields,
    line: Fields,
    column: Column,
    key: Mapping[str, str],
) -> Cell:
    """The number of a subject at a line and a column beside the printed one."""
    given = {**line, **column.key}
    blank = column.name in line.get("blank", ()) or key["method"] in column.key.get("blank", ())
    if blank or not key["metric"]:
        return Cell()
    printed = _printed(subject, about, [line, column.key], key)
    spoken, absent = (given.get(rule, about.get(rule)) for rule in ("spoken", "absent"))
    silent = spoken and key["method"] in VIEWS and results.lacks(subject.key, key) == NEEDS_SCORES
    row = results.row(subject.key, {**key, "method": key["method"] + GENERATED} if silent else key)
    if row is None and absent == "blank":
        return Cell(paper=printed)
    if subject.kind == NOT_RUN:
        return Cell(paper=printed, status=NOT_RUN)
    if row is None or (row["value"] != row["value"] and not row["status"]):
        return Cell(paper=printed, status=_lacks(results, subject, about, given, key))
    value, n = row["value"], None if math.isnan(row["n"]) else int(row["n"])
    if value != value:
        return Cell(n=n, paper=printed, status=row["status"])
    kind = row["kind"] or subject.kind
    value = int(value) if kind in COUNTED and column.kind == "count" else value
    return Cell(value, n, row["ci_low"], row["ci_high"], printed, kind)


def _printed(
    subject: Subject, about: Fields, parts: Sequence[Fields], key: Mapping[str, str]
) -> Printed | None:
    """The printed value of the same model and key; None if the paper has none."""
    wanted = [part["printed"] for part in (about, *parts) if "printed" in part]
    elsewhere = any(key[name] != value for name, value in about.get("printed_at", {}).items())
    if subject.model is None or not wanted or elsewhere or False in wanted:
        return None
    where: dict[str, str] = {}
    for names in wanted:
        given = names if isinstance(names, Mapping) else {name: key[name] for name in names}
        where |= {name: str(value).format(**key) for name, value in given.items()}
    return numbers.find(about["paper"], model=subject.model, **where)


def _lacks(
    results: PaperResults, subject: Subject, about: Fields, given: Fields, key: Mapping[str, str]
) -> str:
    """Why the results hold no number of this key."""
    if key["method"] == "cade" and key["study"] in ("", "methods") and "lacks" not in given:
        return results.why(subject.key, {**key, "study": ""}, UNTUNED)
    text = str(given.get("lacks", about.get("lacks", NO_NUMBER)))
    return results.why(subject.key, key, text.format(**key))
