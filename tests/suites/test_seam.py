"""What differs between suites stands in sdgbias/suites: nowhere else is a suite asked for its name.

A comparison with a name makes half of one suite and half of another out of every third one. Ask the
Suite (`suites.of`, `suites.named`). Its `items_table` says where its questions are, and nothing
else hangs on it: it stands in a query, never in a comparison or a look-up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flows
import sdgbias
from sdgbias.types import SUITES

PACKAGES = [Path(str(package.__file__)).parent for package in (sdgbias, flows)]
CONSTANTS = ("SDG", "FACET")
_TABLE = ".items_table"
_SQL = re.compile(rf"suite\W*\s(=|!=|<>|IN)\s*\(?'({'|'.join(SUITES)})'", re.IGNORECASE)
_TEMPLATE = re.compile(rf"""[!=]=\s*['"]({"|".join(SUITES)})['"]""")


def names_a_suite(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in SUITES
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(names_a_suite, node.elts))
    if isinstance(node, ast.Attribute):
        names = (*CONSTANTS, "items_table")
        return node.attr in names or ast.unparse(node) in ("sdg.NAME", "facet.NAME")
    return isinstance(node, ast.Name) and node.id in CONSTANTS


def comparisons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, source) of every comparison with a suite's name, in code and in SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            map(names_a_suite, [node.left, *node.comparators])
        ):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Subscript) and _TABLE in ast.unparse(node.slice):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.MatchValue) and names_a_suite(node.value):
            yield node.lineno, f"case {ast.unparse(node)}"
        if isinstance(node, ast.Constant) and _SQL.search(str(node.value)):
            yield node.lineno, str(node.value)


def modules() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(package).as_posix(), path)
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
    ]


def test_no_module_outside_suites_compares_with_a_suites_name() -> None:
    found = []
    for name, path in modules():
        if name.startswith("suites/"):
            continue
        found += [
            f"{name}:{line}: {source}"
            for line, source in comparisons(ast.parse(path.read_text(encoding="utf-8")))
        ]
    assert len(modules()) > 200 and found == []


def test_no_template_does() -> None:
    templates = [
        path for package in PACKAGES for kind in ("*.j2", "*.js") for path in package.rglob(kind)
    ]
    found = [p.name for p in templates if _TEMPLATE.search(p.read_text(encoding="utf-8"))]
    assert len(templates) > 20 and found == []


@pytest.mark.parametrize(
    "source",
    [
        'x = 1 if suite == "people" else 2',
        "if run['suite'] != FACET: pass",
        "ok = types.SDG == suite",
        "ok = suite == facet.NAME",
        "ok = suite in ('sdg', 'own')",
        "template = shown(item) if suite.items_table == 'items' else None",
        "known = FILTERS[suite.items_table]",
        "match suite:\n    case 'people': pass",
        """sql = "SELECT * FROM runs WHERE suite = 'sdg'" """,
        """sql = "... ORDER BY suite != 'sdg'" """,
    ],
)
def test_each_way_to_compare_is_seen(source: str) -> None:
    assert list(comparisons(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["x = SHOWN['people']", "ok = name in SUITES", "ok = suite.name == other", "f('sdg')"]
)
def test_looking_something_up_is_none(source: str) -> None:
    assert not list(comparisons(ast.parse(source)))
