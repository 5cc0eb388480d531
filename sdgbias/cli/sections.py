"""The help of all commands: the order and the sections in which `sdgbias --help` lists them, a line
for each, and an example of each with the command that usually follows (data/commands.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

# read without sdgbias.files, which imports PyYAML: every command starts here
_FILE = Path(__file__).parents[1] / "data" / "commands.toml"
_TEXTS = tomllib.loads(_FILE.read_text(encoding="utf-8"))
#: Section -> command -> what it does.
SECTIONS: dict[str, dict[str, str]] = _TEXTS["sections"]
#: Command -> an example, and what to run next ('' where nothing follows).
EXAMPLES: dict[str, list[str]] = _TEXTS["examples"]


class Sections(TyperGroup):
    """A group whose help lists the commands by section."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for section in SECTIONS.values():
            for name, text in section.items():
                self.commands[name].short_help = text
        _teach(self)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=16)


def _teach(command: Any, path: tuple[str, ...] = ()) -> None:
    """Put its example at the end of the help of every command of a group."""
    for name, child in command.commands.items():
        here = (*path, name)
        example, onward = EXAMPLES.get(" ".join(here), ("", ""))
        if example:
            child.epilog = f"Example: {example}" + (f"\n\nNext: {onward}" if onward else "")
        if hasattr(child, "commands"):
            _teach(child, here)
