"""The application that every command registers itself with, and the page that lists them."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from sdgbias import __version__, settings

#: Earlier names of commands, and what does the same today.
MOVED = {
    "models list": "sdgbias models",
    "people sample": "sdgbias sample --suite people",
    "people read": "sdgbias analyse --encoder ENCODER",
    "suite example": "sdgbias sample --suite questions --out DIR",
    "store info": "sdgbias store check",
}


class Commands(TyperGroup):
    """A group of commands that says what became of an earlier name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        of_program = ctx.find_root().command_path  # several words with `python -m sdgbias.cli`
        path = ctx.command_path.removeprefix(of_program).split()
        earlier = " ".join([*path, *args[:1]])
        if earlier in MOVED:
            ctx.fail(f"sdgbias {earlier} has moved; run: {MOVED[earlier]}")
        return super().resolve_command(ctx, args)


class Panels(Commands):
    """A group whose help lists its commands by ``rich_help_panel``, in plain text: rich's boxes and
    columns of types make the help of a command twice as long as a screen."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            text = command.get_short_help_str(limit=80)
            panels.setdefault(str(getattr(command, "rich_help_panel", "")), []).append((name, text))
        for title in PANELS:
            with formatter.section(title):
                formatter.write_dl(panels[title], col_max=16)


#: In the order in which a team meets them.
PANELS = START, DATA, MODELS, SCORES, RESULTS, NIGHTS, MAINTENANCE = (
    "Start",
    "Data",
    "Models",
    "Scores",
    "Results",
    "Nights",
    "Maintenance",
)
app = typer.Typer(
    name="sdgbias",
    cls=Panels,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@cache
def command_tree() -> TyperGroup:
    """All commands; Typer would make them anew for each call of ``app``."""
    return get_group(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sdgbias {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """How biased is a vision-language model about sustainable development, and how much of the bias
    can be removed?

    For a first run, type `make demo` in a checkout. Step by step: sample, build, evaluate, results,
    report.

    A path that many commands need is taken from its option, else from SDGBIAS_RESULTS,
    SDGBIAS_BENCHMARK, SDGBIAS_RAW or SDGBIAS_REGISTRY, else from the project file sdgbias.toml in
    this folder or above it, with lines such as results = "night.duckdb".
    """
    settings.apply()


def group(name: str, panel: str, about: str = "") -> typer.Typer:
    """Commands below one name. It prints their help, or, without ``about``, is a command itself,
    whose docstring the callback has."""
    settings: dict[str, Any] = {"cls": Commands, "help": about, "no_args_is_help": True}
    if not about:
        settings = {"cls": Commands, "invoke_without_command": True}
    commands = typer.Typer(**settings)
    app.add_typer(commands, name=name, rich_help_panel=panel)
    return commands
