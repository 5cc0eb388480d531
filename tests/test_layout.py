"""The size of files and the names of modules and classes, so that a name says what a thing is."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = sorted((REPOSITORY / "sdgbias").rglob("*.py"))
MOST_LINES = 500


def test_files_of_at_most_500_lines() -> None:
    found = {
        str(path.relative_to(REPOSITORY)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("sdgbias", "flows", "tests")
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    assert {name: n for name, n in found.items() if n > MOST_LINES} == {}


def test_no_class_name_twice_in_the_package() -> None:
    names = [
        node.name
        for path in PACKAGE
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert {name: n for name, n in Counter(names).items() if n > 1} == {}


def test_no_module_name_three_times_in_the_package() -> None:
    names = Counter(path.stem for path in PACKAGE if path.stem != "__init__")
    assert {name: n for name, n in names.items() if n > 2} == {}
