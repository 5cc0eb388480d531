"""The help of all commands: the order and the sections in which `sdgbias --help` lists them, a line
for each, and an example of each with the command that usually follows (data/commands.toml); and
where each is.

What an option is for stands in the part "Args:" of its command's docstring, as Prefect reads the
parameters of a flow; an option that several commands share has its own help (options.py).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

# read without sdgbias.files, which imports PyYAML: every command starts here
_FILE = Path(__file__).parents[1] / "data" / "commands.toml"
_TEXTS = tomllib.loads(_FILE.read_text(encoding="utf-8"))
#: Section -> command -> what it does.
SECTIONS: dict[str, dict[str, str]] = _TEXTS["sections"]
#: Command -> an example, and what to run next ('' where nothing follows).
EXAMPLES: dict[str, list[str]] = _TEXTS["examples"]
_ARGS = "\n\nArgs:\n"
#: Command -> its file in this folder, and the function or the group there.
WHERE = {
    "analyse": "analysis:analyse",
    "build": "benchmark:build",
    "cade": "cade:cade_app",
    "compare": "pair:compare",
    "demo": "demo:demo",
    "evaluate": "scoring:evaluate",
    "gate": "gate:gate_app",
    "init": "init:init",
    "models": "models:models_app",
    "nightly": "night:nightly",
    "people": "people:people_app",
    "plan": "scoring:plan",
    "publish": "publish:publish",
    "raw": "data:raw_app",
    "register-model": "register:register_model",
    "release": "data:release_app",
    "report": "results:report",
    "reproduce": "analysis:reproduce",
    "results": "results:results",
    "review": "data:review_app",
    "sample": "benchmark:sample",
    "selfcheck": "analysis:selfcheck",
    "serve": "serve:serve",
    "store": "store:store_app",
    "suite": "suite:suite_app",
    "wandb": "wandb:wandb_app",
}


class Sections(TyperGroup):
    """A group whose help lists the commands by section."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()  # type: ignore[assignment]  # nobody adds to it

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.commands[cmd_name] if cmd_name in WHERE else None

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=16)


class _Commands(Mapping[str, Any]):
    """The commands by name, each put together when it is asked for: with all 25 of them, their
    modules and their options, a short command would take a third longer."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, *WHERE[name].split(":"))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(WHERE)

    def __len__(self) -> int:
        return len(WHERE)


def _command(name: str, file: str, attribute: str) -> Any:
    """A command of the command line, with its line in the help and its examples."""
    found = getattr(import_module(f"sdgbias.cli.{file}"), attribute)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    command = typer.main.get_group(alone).commands[name]
    command.short_help = next(texts[name] for texts in SECTIONS.values() if name in texts)
    _teach({name: command})
    return command


def arguments(docstring: str | None) -> dict[str, str]:
    """The part "Args:" of a docstring: argument -> what it is for."""
    _, _, part = cleandoc(docstring or "").partition(_ARGS)
    told = re.split(r"^    (\w+): ", part, flags=re.MULTILINE)[1:]
    texts = (" ".join(text.split()) for text in told[1::2])
    return dict(zip(told[::2], texts, strict=True))


def _teach(commands: dict[str, Any], path: tuple[str, ...] = ()) -> None:
    """Give the commands and those below them what their docstrings say of their options, and put
    its example at the end of the help of each."""
    for name, command in commands.items():
        told = arguments(command.callback.__doc__ if command.callback else "")
        for parameter in command.params:
            parameter.help = told.pop(parameter.name, getattr(parameter, "help", None))
        if told:
            raise KeyError(f"{name}: no option is called {', '.join(told)}")
        command.help = command.help and command.help.partition(_ARGS)[0]
        here = (*path, name)
        example, onward = EXAMPLES.get(" ".join(here), ("", ""))
        if example:
            command.epilog = f"Example: {example}" + (f"\n\nNext: {onward}" if onward else "")
        _teach(getattr(command, "commands", {}), here)
