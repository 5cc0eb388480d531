"""Write the tables of registry options in docs/ from their definitions.

    python scripts/option_tables.py

A page holds a table between `<!-- options: NAME -->` and `<!-- end of options -->`. `make docs`
runs it, tests/test_docs.py checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sdgbias.engines import options

DOCS = Path(__file__).resolve().parents[1] / "docs"
_MARKED = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}


def _in_words(about: Mapping[str, Any]) -> str:
    """What a JSON Schema of these models takes, in words."""
    if "enum" in about:
        return ", ".join(str(value) for value in about["enum"] if value != "")
    parts = [part for part in about.get("anyOf", [about]) if part != {"type": "null"}]
    words = " or ".join(dict.fromkeys(map(_kind, parts)))
    for example in about.get("examples", ()):
        flow = yaml.safe_dump([example], default_flow_style=True, sort_keys=False, width=1000)
        words += f" such as {flow.strip()[1:-1]}".replace("'", "")
    return words


def _kind(about: Mapping[str, Any]) -> str:
    words = _KINDS[about.get("type", "object")]  # a model of its own is a mapping
    low, above, high = (about.get(n) for n in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None:
        words += f" from {low:g} " + ("on" if high is None else f"to {high:g}")
    if above is not None:
        words += f" above {above:g}" + ("" if high is None else f" and up to {high:g}")
    return words


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(about: Mapping[str, Any]) -> str:
    if "default" not in about:
        return "required"
    value = about["default"]
    plain = isinstance(value, bool | int | float | str) and value != ""
    return str(value).lower() if plain else "none"


def _options(model: type[options.Options]) -> str:
    """The options that every backend has are in registry/README.md."""
    rows = [
        _row(f"`{name}`", _default(about), _in_words(about), about["description"])
        for name, about in options.schema(model).items()
        if name not in options.Options.model_fields
    ]
    return _row("option", "default", "valid", "meaning") + "|---|---|---|---|\n" + "".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "api": lambda: _options(options.ApiOptions),
    "vllm": lambda: _options(options.VllmOptions),
}


def filled(text: str) -> str:
    """A page's text with its tables as the code has them."""
    return _MARKED.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            print(f"{page.relative_to(DOCS.parent)}: written")


if __name__ == "__main__":
    main()
