"""What pages, figures and commands of the report ask of the results file: one short read-only
connection per request, a cache of answers that is valid while the file is unchanged, and the
numbers of some runs by their keys.

While a writer has the file open, no other process can open it. A page whose answers are all cached
is served from the cache and shows their time; any other page raises Unavailable, which the
application turns into "being written, try again".
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdgbias import store
from sdgbias.errors import Busy, StoreError
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
#: Maximum number of cached rows over all answers; the least recently used are evicted first. A
#: year's leaderboard has about 4,000.
KEPT = 300_000

#: Whether a run is one of ``$among``, of which None allows every run.
AMONG = "($among IS NULL OR list_contains($among::VARCHAR[], run_id))"


class Unavailable(Exception):
    """The results can't be read now; the message gives the reason in one line. ``missing``: there
    is no results file yet. ``busy``: another process is writing, so that a retry helps."""

    def __init__(self, message: str, missing: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.missing, self.busy = missing, busy


@dataclass
class _Answer:
    stamp: Stamp
    rows: Any  # list of Row, or a frame
    at: datetime


@dataclass
class Results:
    """A results file and its cached answers. ``wait``: seconds to wait for a writer before a page
    gives up."""

    path: Path
    wait: float = 1.0
    _kept: OrderedDict[tuple[str, tuple[Any, ...]], _Answer] = field(default_factory=OrderedDict)
    _rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def stamp(self) -> Stamp:
        """Changes whenever the file or the record of a night is written: inode, time and size of
        the file and its write-ahead log, and of the folders of the newest nights."""
        home = night_files.home(self.path)
        newest = sorted(home.glob("[0-9]*-*/"))[-3:]
        folders = [home, *newest, *(folder / "outcomes" for folder in newest)]
        files = (self.path, self.path.with_name(self.path.name + ".wal"))
        return tuple(map(_stat, (*files, *folders)))

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """A reader for one request. The file is opened at the first query without a cached answer
        and closed at the end.

        Raises Unavailable if a query can neither be run nor answered from the cache.
        """
        try:
            with self.opened() as reader:
                yield reader
        except StoreError as error:
            raise self._unavailable(error) from None

    @contextmanager
    def opened(self) -> Iterator[Reader]:
        """As `reading`, for the static report: raises StoreError."""
        with ExitStack() as stack:
            yield Reader(self, stack, self.stamp())

    def _unavailable(self, error: StoreError) -> Unavailable:
        missing = not self.path.exists()
        return Unavailable(
            str(error).replace(str(self.path), self.path.name), missing, isinstance(error, Busy)
        )

    def answer_to(self, key: tuple[str, tuple[Any, ...]]) -> _Answer | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: tuple[str, tuple[Any, ...]], answer: _Answer) -> None:
        with self._lock:
            before = self._kept.pop(key, None)
            self._rows += 1 + len(answer.rows) - (1 + len(before.rows) if before else 0)
            self._kept[key] = answer
            while self._rows > KEPT and len(self._kept) > 1:
                self._rows -= 1 + len(self._kept.popitem(last=False)[1].rows)


class Reader:
    """The queries of one request. ``stale``: read time of the oldest cached answer that may be
    outdated; None if there is none."""

    def __init__(self, results: Results, stack: ExitStack, stamp: Stamp) -> None:
        self.results, self.stale, self._stack, self._stamp = results, None, stack, stamp
        self._con: Any = None
        self._made: Any = None  # the temporary table that is there
        self._held: StoreError | None = None

    stale: datetime | None

    def ask(
        self, sql: str, params: Params = (), keep: bool = True, runs: Sequence[str] = ()
    ) -> list[Row]:
        """The rows of one statement as dicts, NULL as None. The rows are shared: callers must not
        change them.

        ``runs``: the runs whose details (predictions, scores, spoken) the statement reads; no
        others are opened.
        """
        found: list[Row] = self._answer("rows", sql, params, keep, runs)
        return found

    def frame(
        self, sql: str, params: Params = (), keep: bool = True, runs: Sequence[str] = ()
    ) -> pd.DataFrame:
        """The rows as a frame, which callers must not change."""
        rows: pd.DataFrame = self._answer("frame", sql, params, keep, runs)
        return rows

    def frames(
        self, table: str, sql: str, params: Params, statements: Mapping[str, str]
    ) -> dict[str, pd.DataFrame]:
        """The rows of several statements about a temporary table, by name, as frames."""
        made = (table, sql)
        return {
            name: self._answer("frame", statement, params, True, (), made)
            for name, statement in statements.items()
        }

    def _answer(
        self,
        kind: str,
        sql: str,
        params: Params,
        keep: bool,
        runs: Sequence[str],
        table: tuple[str, str] | None = None,
    ) -> Any:
        given = params.items() if isinstance(params, Mapping) else params
        key = (f"{kind} {table} {sql}", tuple(map(repr, given)))
        kept = self.results.answer_to(key) if keep else None
        if kept is not None and kept.stamp == self._stamp:
            return kept.rows
        con = self._open()
        if con is None:
            if kept is None:
                assert self._held is not None
                raise self._held
            self.stale = min(self.stale or kept.at, kept.at)
            return kept.rows
        if tables := views.tables_in(sql):
            views.show(con, self.results.path, tables, list(runs))
        named = dict(params) if isinstance(params, Mapping) else list(params)
        if table is not None:
            if self._made != (table, named):
                con.execute(f"CREATE OR REPLACE TEMP TABLE {table[0]} AS {table[1]}", named)
                self._made = (table, named)
            named = []
        found = con.execute(sql, named)
        rows: Any
        if kind == "frame":
            rows = found.df()
        else:
            names = [c[0] for c in found.description]
            rows = [dict(zip(names, values, strict=True)) for values in found.fetchall()]
        if keep:
            self.results.keep(key, _Answer(self._stamp, rows, datetime.now(UTC)))
        return rows

    def one(self, sql: str, params: Params = (), runs: Sequence[str] = ()) -> Row | None:
        """The first row, or None."""
        rows = self.ask(sql, params, runs=runs)
        return rows[0] if rows else None

    def _open(self) -> Any:
        """The request's connection; None (with the reason in _held) if it can't be opened."""
        if self._con is None and self._held is None:
            try:
                self._con = self._stack.enter_context(
                    store.connect(
                        self.results.path, read_only=True, wait=self.results.wait, details=()
                    )
                )
            except StoreError as error:
                self._held = error
        return self._con


class Cells:
    """Headline numbers of some runs, and those of the studies of wordings and directions, by their
    keys. runs: a row per run, by model."""

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
        where |= {"task": "mcq", "pillar": pillar}
        shares = {d: self.estimate(**where, metric=prefix + d) for d in sorted(DIRECTIONS)}
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


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        s = path.stat()
    except OSError:
        return None
    return s.st_ino, s.st_mtime_ns, s.st_size
