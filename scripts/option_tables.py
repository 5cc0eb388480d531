"""Write the tables of registry options and of recommended models in docs/ from their definitions.

    python scripts/option_tables.py [--check]

A page holds a table between `<!-- options: NAME -->` and `<!-- end of options -->`. With --check
nothing is written; exit code 1 if a page differs. `make docs` runs it, tests/test_docs.py checks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from sdgbias.engines.api.options import ApiOptions
from sdgbias.engines.entry_options import described
from sdgbias.registry.catalogue import RECOMMENDED, listed

DOCS = Path(__file__).resolve().parents[1] / "docs"
_MARKED = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(field: Field[Any]) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return "required"
    if field.default in (MISSING, "", None):
        return "none"
    value = field.default
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else f"{value}"
    )


def _api() -> str:
    rows = [
        _row(
            f"`{f.name}`", _default(f), *(described("api")[f.name][k] for k in ("valid", "meaning"))
        )
        for f in fields(ApiOptions)
    ]
    return _row("option", "default", "valid", "meaning") + "|---|---|---|---|\n" + "".join(rows)


def _vllm() -> str:
    rows = [_row(f"`{name}`", about["valid"]) for name, about in described("vllm").items()]
    return _row("option", "meaning and valid values") + "|---|---|\n" + "".join(rows)


def _recommended() -> str:
    rows = [_row(f"`{one['repo']}`", one["why"]) for one in listed(RECOMMENDED)]
    return _row("repository", "why") + "|---|---|\n" + "".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "api": _api,
    "vllm": _vllm,
    "recommended": _recommended,
}


def filled(text: str) -> str:
    """A page's text with its tables as the code has them."""
    return _MARKED.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args().check
    stale = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page)
            if not check:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(
            f"{page.relative_to(DOCS.parent)}: {'differs; run: make docs' if check else 'written'}"
        )
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
