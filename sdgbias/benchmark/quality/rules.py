"""The rules of a table: expectations/<table>.json and expectations/<table>.sql.

The JSON file is a suite of Great Expectations' stock expectations, each about one column, with the
rule's name, severity and message in its ``meta``. The SQL file holds the rules that span columns,
rows or tables: a comment ``-- name (severity, needs ...): message``, then a condition that holds
for every row, or a SELECT of the numbers (``row_no``) of the rows that break the rule; statements
that begin with CREATE are definitions for the rules below them. ``meta.shares`` names the SQL files
of rules that the table shares with others. A rule has a kebab-case name and a severity: ``gate``
rejects the benchmark, ``quarantine`` removes single rows, ``warn`` is only reported.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdgbias.errors import InputError, one_of
from sdgbias.files import project_file, understood

#: Suites whose table has another file name: people benchmarks and custom-question benchmarks each
#: have an images.parquet and a prompts.parquet.
FILES = {
    "images_people": "images",
    "prompts_people": "prompts",
    "images_own": "images",
    "prompts_own": "prompts",
}
SEVERITIES = ("gate", "quarantine", "warn")
_RESTORE = "restore it: git checkout expectations"
#: The comment lines above a rule.
_HEAD = re.compile(r"-- ([a-z0-9-]+) \(([a-z]+)(?:, needs ([^)]+))?\): (.+)", re.DOTALL)
#: The comment lines above a statement, and the statement up to a semicolon at a line's end.
_STATEMENT = re.compile(r"((?:--.*\n|[ \t]*\n)*+)((?:.*\n)*?.*?)(?:;[ \t]*(?:\n|\Z)|\s*\Z)")


@dataclass(frozen=True)
class QualityRule:
    """One rule. ``needs``: what has to be available for it: a table, a table's column, or one of
    the facts of evaluate.Available. ``sql``: its condition or SELECT; '' for a stock expectation,
    which has ``type`` and ``arguments``."""

    name: str
    severity: str
    message: str
    needs: tuple[str, ...] = ()
    sql: str = ""
    type: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a stock expectation is about."""
        one = self.arguments.get("column")
        return (*([str(one)] if one else []), *map(str, self.arguments.get("column_list", ())))


@dataclass(frozen=True)
class RuleSet:
    """The rules of a table. ``key``: the columns that name a row. ``columns``: what the table must
    have (rule ``shape``); ``definitions``: CREATE statements, in order."""

    table: str
    key: tuple[str, ...]
    shape: QualityRule
    rules: tuple[QualityRule, ...]
    definitions: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(map(str, self.shape.arguments["column_set"]))

    @property
    def every(self) -> tuple[QualityRule, ...]:
        return (self.shape, *self.rules)


def find_suites() -> Path:
    """The expectations folder: that of the project named by SDGBIAS_REGISTRY if it has one, else
    the nearest at or above the working folder, else the package's own."""
    here, named = Path.cwd().resolve(), os.environ.get("SDGBIAS_REGISTRY")
    for folder in (*([Path(named).resolve()] if named else []), here, *here.parents):
        if (folder / "expectations" / "clusters.json").is_file():
            return folder / "expectations"
    return project_file("expectations")


def load_rules(table: str, suites: Path) -> RuleSet:
    """The rules of a table. Raises InputError: no such table, a malformed file, a name given twice,
    an unknown severity, not one rule with a column_set."""
    path = suites / f"{table}.json"
    if not path.is_file():
        raise InputError(one_of("table", table, [rules.stem for rules in suites.glob("*.json")]))
    with understood(path, "not a suite", _RESTORE):
        suite = json.loads(path.read_text(encoding="utf-8"))
        stock = [_stock(entry) for entry in suite["expectations"]]
        key = tuple(map(str, suite["meta"]["key"]))
        shared = [suites / f"{name}.sql" for name in suite["meta"].get("shares", ())]
    read = [read_sql(file) for file in (*shared, suites / f"{table}.sql")]
    rules = [*stock, *(rule for _, spanning in read for rule in spanning)]
    times = Counter(rule.name for rule in rules)
    for rule in rules:
        if rule.severity not in SEVERITIES:
            severity = one_of("severity", rule.severity, SEVERITIES)
            raise InputError(f"{path}: rule {rule.name}: {severity}")
        if times[rule.name] > 1:
            raise InputError(f"{path}: rule {rule.name} is given twice; rename or remove one")
    shapes = [rule for rule in rules if "column_set" in rule.arguments]
    if not key or len(shapes) != 1:
        raise InputError(f"{path}: no key, or not one rule with a column_set; {_RESTORE}")
    rest = tuple(rule for rule in rules if rule is not shapes[0])
    return RuleSet(table, key, shapes[0], rest, tuple(one for sql, _ in read for one in sql))


def _stock(entry: Mapping[str, Any]) -> QualityRule:
    meta = entry["meta"]
    name, severity, message = (str(meta[k]) for k in ("rule", "severity", "message"))
    needs = tuple(map(str, meta.get("needs", ())))
    return QualityRule(
        name, severity, message, needs, "", str(entry["type"]), dict(entry["kwargs"])
    )


def read_sql(path: Path) -> tuple[tuple[str, ...], list[QualityRule]]:
    """(definitions, rules) of an SQL file. Raises InputError for a file that can't be read and for
    a statement that is neither."""
    definitions: list[str] = []
    rules: list[QualityRule] = []
    with understood(path, "no rules", _RESTORE):
        text = path.read_text(encoding="utf-8")
    for comments, sql in _STATEMENT.findall(text):
        head = _HEAD.fullmatch(comments.strip().rpartition("\n\n")[2])
        if sql.upper().startswith("CREATE "):
            definitions.append(sql)
        elif head and sql:
            name, severity, needs, message = head.groups()
            wanted = tuple(need.strip() for need in (needs or "").split(",") if need.strip())
            rules.append(QualityRule(name, severity, message.replace("\n-- ", " "), wanted, sql))
        elif sql:
            raise InputError(
                f"{path}: {sql.splitlines()[0][:60]!r} has no comment line '-- name (severity):"
                " message' above it; write one"
            )
    return tuple(definitions), rules
