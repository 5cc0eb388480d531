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

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import MADE, NOT_RUN, Cell, Column, Row, Table
from sdgbias.analysis.paper.printed import Printed, described
from sdgbias.analysis.paper.results import KEY, PaperResults, Run, Subject
from sdgbias.types import GENERATED, NEEDS_SCORES, VIEWS

UNTUNED = "CADE was not tuned in this run (no val rows)"
NO_NUMBER = "no such number in this run"
_SCORED = {"measured", "embedded", "planted"}
Line = tuple[tuple[str, ...], Mapping[str, Any]]


def table(e: PaperResults, item: str) -> Table:
    """A table with its footnotes: what the paper leaves open, and the limits of our values."""
    from sdgbias.analysis.paper import own_rows

    about, ours = (described(e.suite)[part] for part in ("tables", "ours"))
    about = about[item]
    columns = [column(name, given) for name, given in _pairs(about["columns"])]
    columns = columns or own_rows.people_columns(e)
    if "rows" in about:
        rows = tuple(own_rows.ROWS[about["rows"]](e, item))
    else:
        rows = (*_stated(about, columns), *_rows(e, about, columns))
    kinds = {c.status for r in rows for c in r.cells if c.status in MADE}
    if kinds & _SCORED and any(r.synthetic for r in e.runs):
        kinds.add("synthetic")
    if any(c.paper and c.status == "measured" for r in rows for c in r.cells):
        kinds |= {f"{'' if r.authors_questions else 'not '}authors" for r in e.runs}
    limits = (text for kind, text in ours.items() if kind in kinds)
    notes = (*about.get("shared", ()), *about.get("notes", ()), *limits)
    texts = (about["title"], about["definition"], tuple(about["labels"]))
    return Table(item, *texts, tuple(columns), rows, notes, about.get("empty", ""))


def _pairs(columns: Any) -> list[tuple[str, Any]]:
    return [*columns.items()] if isinstance(columns, dict) else [(name, {}) for name in columns]


def column(name: str, given: str | Mapping[str, Any]) -> Column:
    """A column from its description: its kind, or its key with what is said otherwise."""
    if isinstance(given, str):
        return Column(name, given)  # type: ignore[arg-type]
    key = {k: v for k, v in given.items() if k not in ("kind", "name")}
    return Column(given.get("name", name), given.get("kind", "share"), key)


def _stated(about: Mapping[str, Any], columns: Sequence[Column]) -> Iterator[Row]:
    """One line for each method of a printed file that names no model."""
    if item := about.get("stated"):
        for method, label in {r["method"]: r["row"] for r in paper.rows(item)}.items():
            cells = (paper.find(item, method=method, metric=c.key["metric"]) for c in columns)
            known = ("not stated",) * (len(about["labels"]) - 1)
            made = (Cell(paper=p, status=NOT_RUN) if p else Cell() for p in cells)
            yield Row((*known, label), tuple(made))


def _rows(e: PaperResults, about: Mapping[str, Any], columns: Sequence[Column]) -> Iterator[Row]:
    for s in e.subjects(about.get("paper", "")):
        for labels, line in _lines(e, s, about):
            if line.get("run_only") and s.run is None:
                continue
            cells = tuple(cell(e, s, about, line, c) for c in columns)
            show = line.get("show", about.get("show"))
            if show == "made" and not any(c.made for c in cells):
                continue
            if show == "stored" and not any(c.status for c in cells):
                continue
            hidden = s.run is None and about.get("not_run") == "printed lines"
            if not (hidden and not any(c.paper for c in cells)):
                yield Row((s.label, *labels), cells)


def _lines(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Iterator[Line]:
    """The labels and keys of a table's lines about a model, with the table's own ``at``."""
    parts = (_part(e, s, about, part) for part in about["lines"])
    for combined in product(*parts):
        key: dict[str, Any] = dict(about.get("at", {}))
        for _, more in combined:
            key |= more
        yield tuple(label for labels, _ in combined for label in labels), key


def _part(e: PaperResults, s: Subject, about: Mapping[str, Any], part: Any) -> list[Line]:
    from sdgbias.analysis.paper import lines

    if isinstance(part, list):
        return [line for one in part for line in _part(e, s, about, one)]
    if isinstance(part, str):
        return lines.LINES[part](e, s, about)
    return [((label,), key) for label, key in part.items()]


def cell(
    e: PaperResults, s: Subject, about: Mapping[str, Any], line: Mapping[str, Any], column: Column
) -> Cell:
    """The number of a run at a line and a column beside the printed one."""
    given = {**line, **column.key}
    key = {**KEY, **{name: value for name, value in given.items() if name in KEY}}
    key["metric"] = line.get("metrics", {}).get(key["metric"], key["metric"])
    if column.name in line.get("blank", ()) or not key["metric"]:
        return Cell()
    printed = _printed(s, about, line, column, key)
    if given.get("ours") is False:
        return Cell(paper=printed)
    if s.run is None:
        return Cell(paper=printed, status=NOT_RUN)
    spoken = given.get("spoken", about.get("spoken")) and key["method"] in VIEWS
    silent = e.missing(s.run).get((key["task"], key["method"])) == NEEDS_SCORES
    read = key | ({"method": key["method"] + GENERATED} if spoken and silent else {})
    row = e.row(s.run, read)
    n = None if row is None or math.isnan(row["n"]) else int(row["n"])
    if row is not None and not math.isnan(row["value"]):
        return Cell(float(row["value"]), n, row["ci_low"], row["ci_high"], printed, s.run.kind)
    if row is None and about.get("absent") == "blank":
        return Cell()
    if row is None and about.get("show") == "stored":
        return Cell(paper=printed)
    if row is not None and row["status"]:
        return Cell(n=n, paper=printed, status=row["status"])
    return Cell(paper=printed, status=_lacks(e, s.run, about, given, key))


def _printed(
    s: Subject,
    about: Mapping[str, Any],
    line: Mapping[str, Any],
    column: Column,
    key: Mapping[str, str],
) -> Printed | None:
    """The printed value of the same model and key; None if the paper has none."""
    names = column.key.get("printed", about.get("printed", ()))
    fixed: dict[str, str] = {}
    for given in (line.get("printed", {}), names):
        if given is False:
            return None
        if isinstance(given, Mapping):
            fixed |= {name: str(value).format(**key) for name, value in given.items()}
    if isinstance(names, Mapping):
        names = about.get("printed", ())
    if any(key[name] != value for name, value in about.get("printed_at", {}).items()):
        return None
    where = {name: key[name] for name in names} | fixed
    if "parameter" in where:
        where["column"] = where.pop("parameter")
    return paper.find(about["paper"], model=s.model, **where) if s.model and where else None


def _lacks(
    e: PaperResults,
    run: Run,
    about: Mapping[str, Any],
    given: Mapping[str, Any],
    key: Mapping[str, str],
) -> str:
    """Why the results hold no number of this key."""
    text = str(given.get("lacks", about.get("lacks", NO_NUMBER))).format(**key)
    if key["method"] == "cade" and key["study"] in ("", "methods") and "lacks" not in given:
        return e.why(run, {**key, "study": ""}, UNTUNED)
    return e.why(run, key, text)
