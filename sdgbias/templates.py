"""Texts from templates: sentences in Jinja files of the package, values from the code. What a
template doesn't get is an error; those named *.html.j2 escape what they show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sdgbias.errors import argument
from sdgbias.files import packaged

if TYPE_CHECKING:
    import jinja2


def render(template: str, /, **values: Any) -> str:
    """``template``: its path inside the package."""
    return _environment().get_template(template).render(values)


def lines(name: str, /, **values: Any) -> list[str]:
    """The lines of data/texts/<name>.txt.j2: what a command prints."""
    return render(f"data/texts/{name}.txt.j2", **values).splitlines()


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(packaged()),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(fmt=format, argument=argument, cell=_cell, line=_line, table=_table)
    return environment


def _table(rows: Iterable[Any], columns: Mapping[str, str] | Sequence[str]) -> str:
    """A Markdown table of `columns` (key -> heading of rows that are mappings, else headings);
    numbers right-aligned."""
    rows = list(rows)
    named = columns if isinstance(columns, Mapping) else dict(enumerate(columns))
    if not rows:
        return "None."
    numeric = [
        all(row[key] is None or isinstance(row[key], (int, float)) for row in rows) for key in named
    ]
    lines = [
        "| " + " | ".join(named.values()) + " |",
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
    ]
    lines += ["| " + " | ".join(_cell(row[key]) for key in named) + " |" for row in rows]
    return "\n".join(lines)


def _line(value: object) -> str:
    """Text without line breaks, such as the name of an indicator in somebody else's release."""
    return " ".join(str(value).split())


def _cell(value: Any) -> str:
    """Text that can't break out of its line, table cell or into HTML."""
    if value is None or value == "":
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    text = re.sub(r"&(?=#?\w+;)", "&amp;", _line(value))
    for character, safe in (("\\", "\\\\"), ("<", "&lt;"), ("|", "\\|")):
        text = text.replace(character, safe)
    return text
