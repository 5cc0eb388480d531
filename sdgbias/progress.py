"""What a command is doing now, on one line: task, stage, items done, rate and time left.

On a terminal the line is redrawn in place and what is printed appears above it; elsewhere a line is
printed when a stage begins, 4 s later with its count or its seconds, and ever more rarely while it
goes on, up to every half minute; a count every 4 s as long as the stage is new, but not again while
it stands still. A command that starts others shows theirs: it listens on a datagram socket, named
in the environment, to which each process sends its newest record instead of drawing a line. The
socket has no file (Linux's abstract names), so a command that is killed leaves nothing behind; on
other systems a command shows its own line alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

T = TypeVar("T")
#: What long work reports: stage, items done, total.
Progress = Callable[[str, int, int], None]
#: Environment variables: the address of the command that shows the line, and the name of this
#: process's work on it.
ADDRESS, TASK = "SDGBIAS_PROGRESS", "SDGBIAS_TASK"
#: Seconds between two records, before the first line is drawn, and until a record counts as left
#: by a process that is gone.
PERIOD, QUIET, STALE = 0.5, 1.0, 30.0
#: Plain lines of one stage: least and most seconds between two of them.
AGAIN, RAREST = 4.0, 30.0


@dataclass(frozen=True)
class Record:
    """task: e.g. 'tiny-llava (people)'. what: the stage, '' before the first. done, total: its
    items, total 0 where they aren't counted. rate: items per second in the last half of this stage
    or more, 0 if unknown: it begins slowly. seconds: since the stage began."""

    task: str
    what: str = ""
    done: int = 0
    total: int = 0
    rate: float = 0.0
    seconds: float = 0.0


_LOCK = threading.Lock()
_NOW = Record("")
_BEGAN = 0.0  # when the stage began
#: (time, items done by then) from which rates count, and from which they will: the second one moves
#: whenever the time of the stage has doubled.
_MARKS = ((0.0, 0), (0.0, 0))


class RecordBoard:
    """The newest record of each process below this one (by its id, with the time of its arrival),
    passed on to the address ``above`` if there is one."""

    def __init__(self, above: str) -> None:
        self.records = dict[int, tuple[float, Record]]()
        self.address = f"sdgbias-progress-{os.getpid()}-{secrets.token_hex(8)}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{self.address}")
        self.above: socket.socket | None = None
        if above:
            with suppress(OSError):  # the command above is gone
                outgoing = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                outgoing.connect(f"\0{above}")
                self.above = outgoing
        self.thread = threading.Thread(target=self._listen, name="progress-board", daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        while (sent := self.socket.recv(65_536)) != b"":
            self.send(sent)
            with suppress(ValueError, TypeError, KeyError), _LOCK:
                record = json.loads(sent)
                pid = record.pop("pid")
                self.records.pop(pid, None)
                if record:
                    self.records[pid] = (time.monotonic(), Record(**record))

    def send(self, record: bytes) -> None:
        """Pass a record on; one that can't be is replaced by the next."""
        if self.above:
            with suppress(OSError):
                self.above.send(record, socket.MSG_DONTWAIT)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", f"\0{self.address}")
        self.thread.join()
        self.socket.close()


BOARD: RecordBoard | None = None
_SHOWN = False


def silent(what: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


def each(progress: Progress, what: str, items: Collection[T], every: int = 1) -> Iterator[T]:
    """The items one by one. ``progress`` hears of none done, of every ``every``-th and the last."""
    progress(what, 0, len(items))
    for done, item in enumerate(items, 1):
        yield item
        if done % every == 0 or done == len(items):
            progress(what, done, len(items))


def update(what: str, done: int = 0, total: int = 0) -> None:
    """Set the stage of this process. ``total`` 0: a stage without a count."""
    global _NOW, _BEGAN, _MARKS
    now = time.monotonic()
    with _LOCK:
        if what != _NOW.what or done < _NOW.done:
            _BEGAN, _MARKS = now, ((now, done), (now, done))
        elif now - _BEGAN >= max(1, 2 * (_MARKS[1][0] - _BEGAN)):
            _MARKS = (_MARKS[1], (now, done))
        since, before = _MARKS[0]
        passed = now - since
        rate = (done - before) / passed if passed > 0.1 else 0.0
        _NOW = Record(_NOW.task, what, done, total, rate)


def begin(task: str) -> None:
    """This process works on something else from now on, such as the next model."""
    global _NOW, _BEGAN
    with _LOCK:
        _NOW, _BEGAN = Record(task), time.monotonic()


def current() -> Record:
    """The stage of this process now."""
    with _LOCK:
        return replace(_NOW, seconds=time.monotonic() - _BEGAN)


def text(record: Record) -> str:
    """'tiny-llava: scoring prompts, 1,234 of 5,678, 98/s, 45 s left'. ``seconds`` below 0 aren't
    shown."""
    parts = [record.what] if record.what else []
    if record.total > 1:
        parts.append(f"{record.done:,} of {record.total:,}")
        if record.rate > 0 and record.done < record.total:
            left = (record.total - record.done) / record.rate
            if record.rate >= 0.05:
                parts.append(f"{record.rate:,.{0 if record.rate >= 10 else 1}f}/s")
            parts.append(f"{span(left)} left")
    uncounted = record.total <= 1 or record.rate <= 0 or record.done >= record.total
    if uncounted and record.seconds >= 0:
        parts.append(span(record.seconds))
    words = ": ".join(filter(None, (record.task, ", ".join(parts))))
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def span(seconds: float) -> str:
    """'45 s', '3 min 20 s', '2 h 05 min'."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def records() -> list[Record]:
    """Newest record of every process below this one, by task. Records that are older than STALE
    seconds are left out; there are none outside of `shown` and `listening`."""
    if BOARD is None:
        return []
    with _LOCK:
        heard = list(BOARD.records.values())
    now = time.monotonic()
    return sorted((r for at, r in heard if now - at < STALE), key=lambda record: record.task)


@contextmanager
def listening() -> Iterator[None]:
    """Collect the `records` of the processes that are started in the block. Nothing changes inside
    another such block, or where no socket can be made."""
    global BOARD
    if BOARD is not None:
        yield
        return
    above = os.environ.get(ADDRESS, "")
    try:
        board = RecordBoard(above)
    except OSError:
        yield
        return
    BOARD, os.environ[ADDRESS] = board, board.address
    try:
        yield
    finally:
        BOARD = None
        os.environ.pop(ADDRESS)
        if above:
            os.environ[ADDRESS] = above
        board.close()


@contextmanager
def shown(task: str) -> Iterator[None]:
    """Show this process's line, and those of the processes that it starts, until the block ends.
    A process that was started by such a command sends its records to it instead. Inside another
    such block nothing changes."""
    global _SHOWN
    if _SHOWN:
        yield
        return
    begin(os.environ.get(TASK) or task)
    over = threading.Event()
    with listening():
        show = _send if BOARD is not None and BOARD.above else _show
        thread = threading.Thread(target=show, args=(over,), name="progress", daemon=True)
        _SHOWN = True
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            _SHOWN = False


def _show(over: threading.Event) -> None:
    if not over.wait(QUIET):
        (_draw if sys.stderr.isatty() else _print)(over)


def _send(over: threading.Event) -> None:
    """Send this process's record until the end, and then that it is gone."""
    board, process = BOARD, {"pid": os.getpid()}
    while board is not None:
        board.send(json.dumps(asdict(current()) | process).encode())
        if over.wait(PERIOD):
            board.send(json.dumps(process).encode())
            return


def _lines() -> list[Record]:
    """The records of the processes below this one; its own where there are none."""
    return records() or [current()]


def _draw(over: threading.Event) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)
    is_tty = sys.stdout.isatty()  # what is piped must not land on the terminal
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=is_tty) as live:
        while True:
            line = " | ".join(map(text, _lines()))
            live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            if over.wait(PERIOD):
                return


def _print(over: threading.Event) -> None:
    stream = sys.stderr
    printed: dict[str, tuple[Record, float, float]] = {}  # with its time and the wait for the next
    newest = 0.0  # time of the newest line of any task
    while True:
        now = time.monotonic()
        for record in _lines():
            last, at, wait = printed.get(record.task, (Record(""), 0.0, AGAIN))
            if record.task in printed:
                begun = record.what not in ("", last.what)
            else:
                begun = bool(record.what) or record.seconds >= AGAIN
            # without a count a line says only that the work goes on: nobody needs it below others
            since = newest if record.total <= 1 else at
            goes_on = record.total <= 1 or record.done != last.done
            if begun or (record.task in printed and goes_on and now - since >= wait):
                bare = begun and record.what and record.total <= 1
                line = text(replace(record, seconds=-1) if bare else record)
                print(line, file=stream, flush=True)
                soon = begun or (record.total > 1 and record.seconds < RAREST)
                printed[record.task] = record, now, AGAIN if soon else min(2 * wait, RAREST)
                newest = now
        if over.wait(PERIOD):
            return
