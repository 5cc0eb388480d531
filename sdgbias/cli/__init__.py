"""The command line. A command imports what it needs when it runs, so that every command starts at
once.

* application, options: the application, shared options and output
* start: the tour, a project of one's own
* data, review: from raw data to a benchmark
* register, models: the registry
* scores: plan, evaluate, CADE on prediction tables
* night, gate: nights and regression checks
* results, analysis, serve, publish: what the results say, and passing it on
* store: the results file
"""

from __future__ import annotations

import gc
import io
import os
import resource
import sys
from contextlib import nullcontext
from itertools import takewhile

import typer

from sdgbias import exits, progress
from sdgbias.cli.application import app, command_tree
from sdgbias.errors import InfrastructureError, SdgbiasError, StoreError

# Each registers its commands, in the order of the help.
# isort: off
from sdgbias.cli import (  # noqa: F401
    start,
    data,
    review,
    register,
    models,
    scores,
    results,
    serve,
    analysis,
    publish,
    night,
    gate,
    store,
)

# isort: on

__all__ = ["app", "main"]

#: Open files that any command can do with: the report's charts need 20.
FILES = 64


def _of_the_machine(error: BaseException) -> tuple[str, int] | None:
    """(message, exit code) for want of memory and for an output that can't be written; None for an
    error of the program."""
    lacks = "failed to map segment" in str(error) or "annot allocate memory" in str(error)
    if isinstance(error, MemoryError) or lacks:
        return (
            "out of memory; free some, or raise the limit (ulimit -v), then run this again",
            InfrastructureError.exit_code,
        )
    if isinstance(error, OSError) and error.filename is None and error.errno in exits.UNWRITABLE:
        return exits.unwritable(error), StoreError.exit_code
    return None


def _require_files() -> None:
    """InfrastructureError where so few files may be open at once that libraries fail anywhere."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < FILES:
        raise InfrastructureError(
            f"only {most} files may be open at once; allow more (ulimit -n 1024), then run this"
            " again"
        )


def interruption(stage: progress.Record) -> str:
    """What Ctrl-C leaves behind: progress counts the prompts whose scores are committed."""
    kept = f"what is finished is kept{f' ({stage.what})' if stage.what else ''}"
    if stage.what in ("scoring prompts", "decoding answers"):
        kept = f"{stage.done:,} of {stage.total:,} prompts are kept"
    return f"interrupted: {kept}; run the same command again to go on"


def main() -> None:
    """Entry point: errors a person can fix are one line and an exit code of their own
    (errors.py)."""
    # torch and Great Expectations are a million objects that stay: walking them again and again
    # is a tenth of what a short command takes
    gc.set_threshold(50_000, 20, 100)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = sys.stderr
        typer.echo("error: standard output is closed; redirect it, e.g. > /dev/null", err=True)
        sys.exit(StoreError.exit_code)
    if isinstance(raw := sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: a write that a full disk cuts short would be no error
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), sys.stdout.encoding, sys.stdout.errors, line_buffering=True
        )
    words = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    # a server has no end to come nearer to
    shown = nullcontext() if words[:1] == ["serve"] else progress.shown(" ".join(words[:2]))
    try:
        with shown:
            _require_files()
            command_tree()()
    except SdgbiasError as error:
        line = " ".join(str(error).splitlines())  # a file's name may hold line breaks
        typer.echo(f"error: {line}", err=True)
        sys.exit(error.exit_code)
    except (MemoryError, ImportError, OSError) as error:
        if not (lacks := _of_the_machine(error)):
            raise
        typer.echo(f"error: {lacks[0]}", err=True)
        sys.exit(lacks[1])
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Typer ends with 1
            sys.exit(exits.READER_GONE)
        # Typer's own answer to Ctrl-C, without a word; it is how a server is meant to end
        if ended.code == 130 and words[:1] != ["serve"]:
            typer.echo(interruption(progress.current()), err=True)
        raise
