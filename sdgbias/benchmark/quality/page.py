"""The page of a quality check: every rule of every table, what it asks, whether it holds, the rows
that left and examples. It needs no network and is the same for the same results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdgbias import templates
from sdgbias.benchmark.quality.rules import FILES, RuleSet
from sdgbias.benchmark.quality.verdict import TableVerdict
from sdgbias.files import write_atomically

PAGE = "quality.html"


def write_page(
    path: Path,
    suites: Mapping[str, RuleSet],
    verdicts: Mapping[str, TableVerdict],
    left_out: Mapping[str, int],
    passed: bool,
) -> None:
    """``left_out``: rule -> rows that left the tables because of it when they were built."""
    tables = [
        {
            "name": name,
            "file": f"{FILES.get(name, name)}.parquet",
            "rows": verdict.rows,
            "broken": len(verdict.findings),
            "skipped": len(verdict.skipped),
            "rules": _rows(suites[name], verdict, left_out),
        }
        for name, verdict in verdicts.items()
    ]
    text = templates.render("benchmark/quality/quality.html.j2", tables=tables, passed=passed)
    write_atomically(path, text, "give a writable benchmark folder")


def _rows(
    suite: RuleSet, verdict: TableVerdict, left_out: Mapping[str, int]
) -> list[dict[str, Any]]:
    broken = {finding.rule: finding for finding in verdict.findings}
    return [
        {
            "name": rule.name,
            "severity": rule.severity,
            "asks": _sentence(
                broken[rule.name].message if rule.name in broken else rule.message, suite
            ),
            "state": "skipped"
            if rule.name in verdict.skipped
            else "broken"
            if rule.name in broken
            else "held",
            "why": verdict.skipped.get(rule.name, ""),
            "count": broken[rule.name].count if rule.name in broken else 0,
            "left": left_out.get(f"{suite.table}/{rule.name}", 0),
            "examples": broken[rule.name].examples if rule.name in broken else (),
        }
        for rule in suite.every
    ]


def _sentence(message: str, suite: RuleSet) -> str:
    """A message with a capital at its start, unless it starts with a column's name, and a full
    stop."""
    first = message.split(maxsplit=1)[0].rstrip(",")
    start = message[:1] if first in suite.columns else message[:1].upper()
    return start + message[1:] + ("" if message.endswith((".", ")")) else ".")
