"""The page of a quality check: every rule of every table, what it asks, whether it holds, the rows
that left and examples. It needs no network and is the same for the same results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdgbias import templates
from sdgbias.benchmark.quality.evaluate import TableVerdict
from sdgbias.benchmark.quality.rules import FILES, RuleSet
from sdgbias.files import write_atomically

PAGE = "quality.html"


def write_page(
    path: Path,
    suites: Mapping[str, RuleSet],
    verdicts: Mapping[str, TableVerdict],
    left_out: Mapping[str, int],
    passed: bool,
) -> None:
    """``left_out``: table/rule -> rows that left the table because of it when it was built."""
    tables = []
    for name, verdict in verdicts.items():
        broken = {finding.rule: finding for finding in verdict.findings}
        rules = [
            {
                "rule": rule,
                "asks": _sentence((broken.get(rule.name) or rule).message, suites[name]),
                "broken": broken.get(rule.name),
                "left": left_out.get(f"{name}/{rule.name}", 0),
            }
            for rule in suites[name].every
        ]
        file = f"{FILES.get(name, name)}.parquet"
        tables.append({"verdict": verdict, "file": file, "rules": rules})
    text = templates.render("benchmark/quality/quality.html.j2", tables=tables, passed=passed)
    write_atomically(path, text, "give a writable benchmark folder")


def _sentence(message: str, suite: RuleSet) -> str:
    """A message with a capital at its start, unless it starts with a column's name, and a full
    stop."""
    first = message.split(maxsplit=1)[0].rstrip(",")
    start = message[:1] if first in suite.columns else message[:1].upper()
    return start + message[1:] + ("" if message.endswith((".", ")")) else ".")
