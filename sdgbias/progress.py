"""What a command is doing now, on one line: task, stage, items done, rate and time left.

On a terminal the line is redrawn in place and what is printed appears above it; elsewhere a plain
line is printed every few seconds. A command that starts others shows theirs: it names a folder in
the environment, and each process writes its newest record there instead of drawing a line. A record
is replaced as a whole, so a reader never sees half of one, and a night of many hours leaves one
small file per process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
#: What long work reports: stage, items done, total.
Progress = Callable[[str, int, int], None]
#: Environment variables: the folder of records, and the name of this process's work in them.
FOLDER, TASK = "SDGBIAS_PROGRESS", "SDGBIAS_TASK"
#: Seconds between two records, before the first line is drawn, and until a record counts as left
#: by a process that is gone.
PERIOD, QUIET, STALE = 0.5, 1.0, 30.0
#: Plain lines: seconds between two of them for the first minutes, and after LONG seconds.
OFTEN, SELDOM, LONG = 4.0, 30.0, 600.0


@dataclass(frozen=True)
class Record:
    """task: e.g. 'tiny-llava (people)'. what: the stage, '' before the first. done, total: its
    items, total 0 where they aren't counted. rate: items per second in this stage, 0 if unknown.
    seconds: since the stage began."""

    task: str
    what: str = ""
    done: int = 0
    total: int = 0
    rate: float = 0.0
    seconds: float = 0.0


_LOCK = threading.Lock()
_NOW = Record("")
_BEGAN = (0.0, 0)  # when the stage began, and the items that were done by then
_RUNNING = False


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
    global _NOW, _BEGAN
    now = time.monotonic()
    with _LOCK:
        if what != _NOW.what or done < _NOW.done:
            _BEGAN = (now, done)
        since, before = _BEGAN
        passed = now - since
        rate = (done - before) / passed if passed > 0 else 0.0
        _NOW = Record(_NOW.task, what, done, total, rate)


def current() -> Record:
    """The stage of this process now."""
    with _LOCK:
        return replace(_NOW, seconds=time.monotonic() - _BEGAN[0])


def text(record: Record) -> str:
    """'tiny-llava: scoring prompts, 1,234 of 5,678, 98/s, 45 s left'."""
    parts = [record.what] if record.what else []
    if record.total > 1:
        parts.append(f"{record.done:,} of {record.total:,}")
        if record.rate > 0 and record.done < record.total:
            left = (record.total - record.done) / record.rate
            parts += [f"{record.rate:,.{0 if record.rate >= 10 else 1}f}/s", f"{span(left)} left"]
    if record.total <= 1 or record.rate <= 0 or record.done >= record.total:
        parts.append(span(record.seconds))
    return f"{record.task}: {', '.join(parts)}" if record.task else ", ".join(parts)


def span(seconds: float) -> str:
    """'45 s', '3 min 20 s', '2 h 05 min'."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def records(folder: Path) -> list[Record]:
    """Newest record of every process that writes into ``folder``, by task. Records that are older
    than STALE seconds or can't be read are left out."""
    found = []
    for path in folder.glob("*.json"):
        try:
            if time.time() - path.stat().st_mtime < STALE:
                found.append(Record(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # its process ended meanwhile
    return sorted(found, key=lambda record: record.task)


def _text_of(folder: Path) -> str:
    """The records of the processes that this one started; its own where there are none."""
    return " | ".join(map(text, records(folder))) or text(current())


@contextmanager
def shown(task: str) -> Iterator[None]:
    """Show this process's line, and those of the processes that it starts, until the block ends.
    A process that was started by such a command writes its records to it instead. Inside another
    such block nothing changes."""
    global _NOW, _BEGAN, _RUNNING
    if _RUNNING:
        yield
        return
    above = os.environ.get(FOLDER, "")
    with _LOCK:
        _NOW, _BEGAN = Record(os.environ.get(TASK) or task), (time.monotonic(), 0)
    given = Path(above) if above and Path(above).is_dir() else None
    try:
        folder = given or Path(tempfile.mkdtemp(prefix="sdgbias-progress-"))
    except OSError:  # nowhere to write records: the command works without its line
        yield
        return
    own = folder / f"{os.getpid()}.json" if given else None
    os.environ[FOLDER] = str(folder)
    over, _RUNNING = threading.Event(), True
    thread = threading.Thread(target=_show, args=(folder, own, over), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _RUNNING = False
        if own is None:
            os.environ.pop(FOLDER, None)
            shutil.rmtree(folder, ignore_errors=True)


def _show(folder: Path, own: Path | None, over: threading.Event) -> None:
    if own is not None:
        with suppress(OSError):  # the folder goes when the command that shows it ends
            _write(own, over)
            own.unlink()
    elif not over.wait(QUIET):
        (_draw if sys.stderr.isatty() else _print)(folder, over)


def _write(own: Path, over: threading.Event) -> None:
    part = own.with_suffix(".part")
    while True:
        part.write_text(json.dumps(asdict(current())), encoding="utf-8")
        part.replace(own)
        if over.wait(PERIOD):
            return


class _Above:
    """A terminal's stream: what is written to it appears above the line."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        with self._line.lock:
            self._line.clear()
            self._line.free = text.endswith("\n") if text else self._line.free
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Line:
    """The last line of the terminal. free: whether it is empty, so that it may be drawn."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.lock, self.free, self.drawn = stream, threading.RLock(), True, False

    def clear(self) -> None:
        if self.drawn:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()
            self.drawn = False

    def draw(self, text: str) -> None:
        with self.lock:
            if self.free:
                width = shutil.get_terminal_size((80, 24)).columns - 1
                short = text if len(text) <= width else f"{text[: width - 1]}…"
                self.stream.write(f"\r\x1b[2K{short}")
                self.stream.flush()
                self.drawn = True


def _draw(folder: Path, over: threading.Event) -> None:
    line = _Line(sys.stderr)
    before = sys.stdout, sys.stderr
    above = [_Above(stream, line) if stream.isatty() else stream for stream in before]
    sys.stdout, sys.stderr = above  # type: ignore[assignment]
    try:
        while True:
            line.draw(_text_of(folder))
            if over.wait(PERIOD):
                break
    finally:
        with line.lock:
            line.clear()
        sys.stdout, sys.stderr = before


def _print(folder: Path, over: threading.Event) -> None:
    began, last, stream = time.monotonic(), "", sys.stderr
    wait = OFTEN - QUIET
    while not over.wait(wait):
        line = _text_of(folder)
        if line != last:
            print(line, file=stream, flush=True)
        last = line
        wait = OFTEN if time.monotonic() - began < LONG else SELDOM
