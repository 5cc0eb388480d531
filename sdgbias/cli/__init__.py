"""The command line. A command is put together when it is asked for (sections.py) and imports what
it needs when it runs, so that every command starts at once.

* project, options, night_options, sections: paths, shared options, and the page of help
* init: a project of one's own
* data, benchmark, people, suite: from raw data to a benchmark
* models, register, fetch, watch, prompt: models
* scoring, night, gate: evaluate, nightly, regression checks
* results, pair, analysis, cade, store: what was found
* serve, publish, wandb: what is passed on
* demo: all of it once
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import nullcontext
from itertools import takewhile
from typing import Annotated

import typer

from sdgbias import __version__, exits, progress
from sdgbias.cli import project
from sdgbias.cli.sections import Sections
from sdgbias.errors import InfrastructureError, SdgbiasError, StoreError

app = typer.Typer(
    name="sdgbias",
    cls=Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=(
        "How biased is a vision-language model about sustainable development, and how much of it"
        " can be taken out?\n\nA first run: make demo. Step by step: sample, build, evaluate,"
        " results, report.\n\nPaths that many commands need come from their option, else from"
        " SDGBIAS_RESULTS, SDGBIAS_BENCHMARK, SDGBIAS_RAW or SDGBIAS_REGISTRY, else from a project"
        ' file: sdgbias.toml, here or above, with lines such as results = "night.duckdb".'
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sdgbias {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    project.apply()


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
    words = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    # a server has no end to come nearer to
    shown = nullcontext() if words[:1] == ["serve"] else progress.shown(" ".join(words[:2]))
    try:
        with shown:
            app()
    except SdgbiasError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except (MemoryError, ImportError, OSError) as error:
        if not (line := _of_the_machine(error)):
            raise
        typer.echo(f"error: {line[0]}", err=True)
        sys.exit(line[1])
    except SystemExit as ended:
        if ended.code == 130:  # Typer's own answer to Ctrl-C, without a word
            typer.echo(interruption(progress.current()), err=True)
        raise
