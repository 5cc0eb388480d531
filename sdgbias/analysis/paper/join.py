"""The paper's tables as a join: every cell is the number of a run and the number that the paper
prints, both found by the key that its table, line and column give (``data/tables_sdg.yaml`` and
``data/tables_people.yaml``).

A table is its title and texts, ``lines`` and ``columns``. ``lines`` has one part for each label
after the model's, a mapping of labels to keys, the name of a function of lines.py that makes one
from the results, or a list of these; the lines are their product. A line, a column and the table's
``at`` hold the part of the key that isn't that of ``KEY``, and what is said otherwise about a cell:

* ``lacks``: why there is no number, if the results don't say it
* ``printed``: the columns of the printed file ``paper`` that must equal the key, or their values;
  ``printed_at``: where the paper's numbers are
* ``spoken``: of a model that gives text alone, what it said stands for the best candidate of a view
* ``show``: lines with one of our numbers alone (made), or that the results know of (stored);
  ``run_only``: not of a model that was not run; ``not_run: printed lines``: of it those alone that
  the paper prints a number of
* ``blank``: columns that a line leaves empty; ``metrics``: its metrics in place of a column's
* ``ours: false``: of the column there are printed values alone; ``absent: blank``: what a run has
  no row of is left empty
* ``stated``: a printed file whose numbers are of no model that it names

Tables whose lines are no models are made by a function of own_rows.py (``rows``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from sdgbias.analysis.paper import lines, own_rows
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import MADE, NOT_RUN, Cell, Column, Row, Table
from sdgbias.analysis.paper.printed import Printed, described
from sdgbias.analysis.paper.results import KEY, PaperResults, Run, Subject
from sdgbias.types import GENERATED, NEEDS_SCORES, VIEWS

UNTUNED = "CADE was not tuned in this run (no val rows)"
NO_NUMBER = "no such number in this run"
_SCORED = {"measured", "embedded", "planted"}
Described = Mapping[str, Any]


def table(e: PaperResults, item: str) -> Table:
    """A table with its footnotes: what the paper leaves open, and the limits of our values."""
    about, ours = (described(e.suite)[part] for part in ("tables", "ours"))
    about = about[item]
    columns = _columns(about["columns"]) or own_rows.people_columns(e)
    of_item = own_rows.ROWS[about["rows"]](e, item) if "rows" in about else _rows(e, about, columns)
    rows = tuple(of_item)
    cells = [c for row in rows for c in row.cells]
    kinds = {c.status for c in cells if c.status in MADE}
    if kinds & _SCORED and any(r.synthetic for r in e.runs):
        kinds.add("synthetic")
    if any(c.paper and c.status == "measured" for c in cells):
        kinds |= {f"{'' if r.authors_questions else 'not '}authors" for r in e.runs}
    limits = (text for kind, text in ours.items() if kind in kinds)
    notes = (*about.get("shared", ()), *about.get("notes", ()), *limits)
    texts = (about["title"], about["definition"], tuple(about["labels"]))
    return Table(item, *texts, tuple(columns), rows, notes, about.get("empty", ""))


def _columns(described: Mapping[str, Any] | Sequence[str]) -> list[Column]:
    """Columns by name: their kind, or their key with what is said otherwise."""
    if not isinstance(described, Mapping):
        return [Column(name) for name in described]
    each = {
        name: {"kind": given} if isinstance(given, str) else given
        for name, given in described.items()
    }
    named: list[tuple[str, Any]] = [(c.get("name", name), c) for name, c in each.items()]
    return [Column(name, c.get("kind", "share"), c) for name, c in named]


def _rows(e: PaperResults, about: Described, columns: Sequence[Column]) -> Iterator[Row]:
    item = about.get("stated", "")
    for method, label in {r["method"]: r["row"] for r in paper.rows(item)}.items():
        texts = (paper.find(item, method=method, metric=c.key["metric"]) for c in columns)
        cells = (Cell(paper=p, status=NOT_RUN) if p else Cell() for p in texts)
        yield Row((*["not stated"] * (len(about["labels"]) - 1), label), tuple(cells))
    for s in e.subjects(about.get("paper", "")):
        for parts in product(*(_part(e, s, about, part) for part in about["lines"])):
            line: dict[str, Any] = dict(about.get("at", {}))
            for _, more in parts:
                line |= more
            row = Row(
                (s.label, *(label for labels, _ in parts for label in labels)),
                tuple(cell(e, s, about, line, c) for c in columns),
            )
            if _shown(s, about, line, row.cells):
                yield row


def _part(e: PaperResults, s: Subject, about: Described, part: Any) -> lines.Lines:
    """The labels and keys of one part of a table's lines about a model."""
    if isinstance(part, list):
        return [line for one in part for line in _part(e, s, about, one)]
    if isinstance(part, str):
        return lines.LINES[part](e, s, about)
    return [((label,), key) for label, key in part.items()]


def _shown(s: Subject, about: Described, line: Described, cells: Sequence[Cell]) -> bool:
    if s.run is None and line.get("run_only"):
        return False
    if s.run is None and about.get("not_run") == "printed lines":
        return any(c.paper for c in cells)
    show = line.get("show", about.get("show"))
    wanted = {"made": any(c.made for c in cells), "stored": any(c.status for c in cells)}
    return wanted.get(show, True)


def cell(e: PaperResults, s: Subject, about: Described, line: Described, column: Column) -> Cell:
    """The number of a run at a line and a column beside the printed one."""
    given = {**line, **column.key}
    key = {**KEY, **{name: value for name, value in given.items() if name in KEY}}
    key["metric"] = line.get("metrics", {}).get(key["metric"], key["metric"])
    if column.name in line.get("blank", ()) or not key["metric"]:
        return Cell()
    printed = _printed(s, about, [line, column.key], key)
    if given.get("ours") is False:
        return Cell(paper=printed)
    if s.run is None:
        return Cell(paper=printed, status=NOT_RUN)
    spoken = given.get("spoken", about.get("spoken")) and key["method"] in VIEWS
    silent = e.missing(s.run).get((key["task"], key["method"])) == NEEDS_SCORES
    read = key | ({"method": key["method"] + GENERATED} if spoken and silent else {})
    row = e.row(s.run, read)
    if row is None and about.get("absent") == "blank":
        return Cell()
    if row is None and about.get("show") == "stored":
        return Cell(paper=printed)
    n = None if row is None or math.isnan(row["n"]) else int(row["n"])
    if row is not None and not math.isnan(row["value"]):
        return Cell(float(row["value"]), n, row["ci_low"], row["ci_high"], printed, s.run.kind)
    if row is not None and row["status"]:
        return Cell(n=n, paper=printed, status=row["status"])
    return Cell(paper=printed, status=_lacks(e, s.run, about, given, key))


def _printed(
    s: Subject, about: Described, described: Sequence[Described], key: Mapping[str, str]
) -> Printed | None:
    """The printed value of the same model and key; None if the paper has none."""
    wanted = [part["printed"] for part in (about, *described) if "printed" in part]
    elsewhere = any(key[name] != value for name, value in about.get("printed_at", {}).items())
    if not s.model or not wanted or elsewhere or any(names is False for names in wanted):
        return None
    where: dict[str, str] = {}
    for names in wanted:
        given = names if isinstance(names, Mapping) else {name: key[name] for name in names}
        where |= {name: str(value).format(**key) for name, value in given.items()}
    if "parameter" in where:
        where["column"] = where.pop("parameter")
    return paper.find(about["paper"], model=s.model, **where)


def _lacks(
    e: PaperResults, run: Run, about: Described, given: Described, key: Mapping[str, str]
) -> str:
    """Why the results hold no number of this key."""
    if key["method"] == "cade" and key["study"] in ("", "methods") and "lacks" not in given:
        return e.why(run, {**key, "study": ""}, UNTUNED)
    text = str(given.get("lacks", about.get("lacks", NO_NUMBER))).format(**key)
    return e.why(run, key, text)
