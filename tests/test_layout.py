"""The size of files and the names of modules and classes, so that a name says what a thing is."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = sorted((REPOSITORY / "sdgbias").rglob("*.py"))
FOLDERS = ("sdgbias", "flows", "bench", "scripts", "tests")
MOST_LINES = 500


def test_files_of_at_most_500_lines() -> None:
    found = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in found}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


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


def test_no_test_reads_a_private_name() -> None:
    """Neither by an import nor by a string; an attribute is ruff's SLF001."""
    read = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
                names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
            private = [name for name in names if re.match(r"_[a-z]\w*$|_[A-Z]", name)]
            read += [f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}" for name in private]
    assert read == []


#: The rooms of the package, whose own docstring says where to look for what.
ROOMS = sorted(path.parent for path in (REPOSITORY / "sdgbias").glob("*/__init__.py"))


def modules_of(room: Path) -> set[str]:
    """Modules and folders with code of a room."""
    files = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in room.glob("*/__init__.py")}


def named_by(room: Path) -> list[str]:
    """Modules that the list at the end of a room's docstring names: '* a, b: what they do'."""
    doc = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return ", ".join(re.findall(r"^\* ([\w, ]+):", doc, re.MULTILINE)).split(", ")


def test_the_docstring_of_every_room_names_its_modules() -> None:
    assert len(ROOMS) == 12
    for room in ROOMS:
        assert sorted(named_by(room)) == sorted(modules_of(room)), room.name


def test_every_fault_of_an_earlier_review_has_a_test_that_exists() -> None:
    """The table of tests/README.md."""
    page = (REPOSITORY / "tests" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (REPOSITORY / path).is_file()
        or f"def {name}(" not in (REPOSITORY / path).read_text(encoding="utf-8")
    ]
    assert len(named) > 40
    assert missing == [], "tests/README.md names tests that are gone: give the fault another"
