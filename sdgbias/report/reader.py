"""What pages, figures and commands of the report ask of the results file: one short read-only
connection per request, and the numbers of some runs by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdgbias import store
from sdgbias.files import packaged_sql
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.store import night_files, views

if TYPE_CHECKING:
    import pandas as pd

#: The statements of pages (``data/pages.sql``), by name.
SQL = {
    name: sql.replace("{numbers}", store.NUMBERS) for name, sql in packaged_sql("pages.sql").items()
}
Row = dict[str, Any]
Params = Sequence[Any] | Mapping[str, Any]
Stamp = tuple[tuple[int, int, int] | None, ...]
#: Whether a run is one of ``$among``, of which None allows every run.
AMONG = "($among IS NULL OR list_contains($among::VARCHAR[], run_id))"


@dataclass(frozen=True)
class Results:
    """A results file. ``wait``: seconds to wait for a writer before a page gives up."""

    path: Path
    wait: float = 1.0

    def stamp(self) -> Stamp:
        """Changes whenever the file or the record of a night is written: inode, time and size of
        the file and its write-ahead log, and of the folders of the newest nights."""
        home = night_files.home(self.path)
        newest = sorted(home.glob("[0-9]*-*/"))[-3:]
        folders = [home, *newest, *(folder / "outcomes" for folder in newest)]
        files = (self.path, self.path.with_name(self.path.name + ".wal"))
        return tuple(map(stat_of, (*files, *folders)))

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """A reader for one request. The file is opened at the first query and closed at the end.
        Raises StoreError, Busy while another process is writing."""
        with ExitStack() as stack:
            yield Reader(self, stack)


class Reader:
    """The queries of one request."""

    def __init__(self, results: Results, stack: ExitStack) -> None:
        self.results, self._stack = results, stack

    @cached_property
    def _connection(self) -> Any:
        return self._stack.enter_context(
            store.connect(self.results.path, read_only=True, wait=self.results.wait)
        )

    def _run(self, sql: str, params: Params, runs: Sequence[str]) -> Any:
        if tables := views.tables_in(sql):
            views.show(self._connection, self.results.path, tables, list(runs))
        named = dict(params) if isinstance(params, Mapping) else list(params)
        return self._connection.execute(sql, named)

    def ask(self, sql: str, params: Params = (), runs: Sequence[str] = ()) -> list[Row]:
        """The rows of one statement as dicts, NULL as None.

        ``runs``: the runs whose details (predictions, scores, spoken) the statement reads; no
        others are opened.
        """
        result = self._run(sql, params, runs)
        names = [c[0] for c in result.description]
        return [dict(zip(names, values, strict=True)) for values in result.fetchall()]

    def frame(self, sql: str, params: Params = (), runs: Sequence[str] = ()) -> pd.DataFrame:
        """The rows as a frame."""
        frame: pd.DataFrame = self._run(sql, params, runs).df()
        return frame

    def frames(
        self, table: str, sql: str, statements: Mapping[str, str], given: Mapping[str, Any]
    ) -> dict[str, pd.DataFrame]:
        """The rows of several statements about a temporary table, by name, as frames. Each is
        ``given`` the parameters that it names."""

        def named(text: str) -> Params:
            return {name: value for name, value in given.items() if f"${name}" in text}

        self._run(f"CREATE OR REPLACE TEMP TABLE {table} AS {sql}", named(sql), ())
        return {name: self.frame(text, named(text)) for name, text in statements.items()}

    def one(self, sql: str, params: Params = (), runs: Sequence[str] = ()) -> Row | None:
        """The first row, or None."""
        rows = self.ask(sql, params, runs=runs)
        return rows[0] if rows else None


class Cells:
    """Headline numbers of some runs, and those of the studies of wordings, orders of options and
    directions, by their keys. runs: a row per run, by model."""

    def __init__(self, reader: Reader, run_ids: Sequence[str]) -> None:
        given = {"runs": list(run_ids)}
        self.runs = reader.ask(SQL["runs"], given)
        rows = reader.ask(SQL["cells"], given)
        self._rows = {tuple(r[name] for name in _CELL): r for r in rows}
        self.reasons = {r["missing_reason"] for r in rows if r["missing_reason"]}

    @property
    def models(self) -> list[str]:
        return [run["model"] for run in self.runs]

    def estimate(self, **where: str) -> Estimate | None:
        """The estimate of one number (of the study 'headline', pillar and indicator 'all' by
        default), None if it has no value."""
        row = self._rows.get(_key(where))
        return None if row is None or blank(row) else Estimate.of_row(row)

    def reason(self, **where: str) -> str:
        """Why a number has no value; '' where it has one, or the results don't say."""
        row = self._rows.get(_key(where))
        return "" if row is None else str(row["missing_reason"] or "")

    def wordings(self, model: str, pillar: str, prefix: str = "share_") -> dict[str, Estimate]:
        """Direction -> share of the prompts of a pillar over the wordings of its questions; {} if
        the wordings were not scored or not analysed. Clusters are indicators; with the ``prefix``
        'wordings_share_' the shares hold for other wordings of the same indicators alone, and
        clusters are prompts."""
        where = {"study": "wordings", "model": model, "test": "T1", "method": "q_only"}
        return self._by_direction(prefix, **where, pillar=pillar)

    def reordered(self, model: str, pillar: str, order: str) -> dict[str, Estimate]:
        """Direction -> share of the answers without evidence with the options in an order
        ('reversed' or 'random'); {} if they were not asked so, or not analysed."""
        where = {"study": order, "model": model, "test": "T1", "method": "q_only"}
        return self._by_direction("share_", **where, pillar=pillar)

    def shares(self, model: str, pillar: str, method: str) -> dict[str, Estimate]:
        """Direction -> share of the answers: without evidence (Q-only) at T1, else over all tests;
        without those that have no value."""
        test = "T1" if method.startswith("q_only") else "all"
        where = {"model": model, "test": test, "method": method}
        return self._by_direction("share_", **where, pillar=pillar)

    def _by_direction(self, prefix: str, **where: str) -> dict[str, Estimate]:
        shares = {d: self.estimate(**where, task="mcq", metric=prefix + d) for d in DIRECTIONS}
        return {d: e for d, e in shares.items() if e is not None}


_CELL = ("study", "model", "task", "test", "method", "pillar", "indicator", "metric")
_DEFAULTS = {"study": "headline", "pillar": "all", "indicator": "all"}


def _key(where: Mapping[str, str]) -> tuple[str, ...]:
    return tuple({**_DEFAULTS, **where}[name] for name in _CELL)


def blank(row: Mapping[Any, Any] | None) -> bool:
    """Whether a row has no value."""
    return row is None or row["value"] is None or row["value"] != row["value"]


def parsed(text: object, kind: type = dict) -> Any:
    """Parse JSON from the results; an empty ``kind`` if the text is missing or not of that kind."""
    try:
        content = json.loads(text if isinstance(text, str) else "null")
    except ValueError:
        content = None
    return content if isinstance(content, kind) else kind()


def paged(rows: list[Row], total: int, page: int, size: int) -> dict[str, Any]:
    """One page of a list for a template: its rows, which page of how many, and all rows' count."""
    return {"rows": rows, "total": total, "page": page, "pages": max(1, -(-total // size))}


def stat_of(path: Path) -> tuple[int, int, int] | None:
    """Inode, time and size of a file; None without one."""
    try:
        s = path.stat()
    except OSError:
        return None
    return s.st_ino, s.st_mtime_ns, s.st_size
