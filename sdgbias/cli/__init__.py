"""The command line: every command group, put together. Each command imports what it needs when it
runs, so that `sdgbias --help` answers at once.

* project, options, night_options, sections: paths, shared options, and the page of help
* data, benchmark, people, suite: from raw data to a benchmark
* models, register, fetch, watch, prompt: models
* scoring, night, stack, gate: evaluate, nightly, the local stack, regression checks
* results, analysis, cade, store: what was found
* serve, publish, wandb: what is passed on
* demo: all of it once
"""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from itertools import takewhile
from typing import Annotated

import typer

from sdgbias import __version__, lifeline, progress
from sdgbias.cli import (
    analysis,
    benchmark,
    demo,
    gate,
    night,
    project,
    publish,
    register,
    results,
    scoring,
    serve,
)
from sdgbias.cli.cade import cade_app
from sdgbias.cli.data import raw_app, release_app, review_app
from sdgbias.cli.models import models_app
from sdgbias.cli.people import people_app
from sdgbias.cli.sections import Sections
from sdgbias.cli.stack import stack_app
from sdgbias.cli.store import store_app
from sdgbias.cli.suite import suite_app
from sdgbias.cli.wandb import wandb_app
from sdgbias.errors import SdgbiasError

app = typer.Typer(
    name="sdgbias",
    cls=Sections,
    context_settings={"help_option_names": ["-h", "--help"]},
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
app.add_typer(cade_app, name="cade")
app.add_typer(raw_app, name="raw")
app.add_typer(review_app, name="review")
app.add_typer(release_app, name="release")
app.add_typer(models_app, name="models")
app.add_typer(people_app, name="people")
app.add_typer(suite_app, name="suite")
app.add_typer(wandb_app, name="wandb")
app.add_typer(store_app, name="store")
app.add_typer(stack_app, name="stack")
COMMANDS = (analysis, serve, gate, register, night, benchmark, scoring, results, publish, demo)
for commands in COMMANDS:
    commands.add_to(app)


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


def main() -> None:
    """Entry point: errors a person can fix are one line and an exit code of their own
    (errors.py). What a night started ends with it."""
    # torch and Great Expectations are a million objects that stay: walking them again and again
    # is a tenth of what a short command takes
    gc.set_threshold(50_000, 20, 100)
    lifeline.watch()
    words = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    # a server has no end to come nearer to
    shown = nullcontext() if words[:1] == ["serve"] else progress.shown(" ".join(words[:2]))
    try:
        with shown:
            app()
    except SdgbiasError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo(
            "stopped; what is finished is kept: run the same command again to go on", err=True
        )
        sys.exit(130)
