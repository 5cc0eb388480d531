"""The verdict on one table: which rules are broken, by how many rows, and which rows leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from sdgbias.benchmark.quality.evaluate import Available, broken_rows, columns_of, length
from sdgbias.benchmark.quality.relations import Table
from sdgbias.benchmark.quality.rules import QualityRule, RuleSet
from sdgbias.types import QUARANTINE_COLUMNS

_SHOWN = 5  # examples reported per broken rule
_MOST = 10_000  # broken rows of one gate or warn rule that are searched for examples


@dataclass(frozen=True)
class BrokenRule:
    """One broken rule: how many rows (1 for a rule about the whole table) and up to five of their
    keys."""

    rule: str
    severity: str
    count: int
    examples: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class TableVerdict:
    """The result of checking N rows of one table against its rules.

    ``rows_ok``: (N,) bool, False where a quarantine rule is broken. ``quarantine``: table, key,
    rule, detail; one line per row and broken quarantine rule. ``counts``: every evaluated rule ->
    broken rows. ``skipped``: rule -> why it wasn't evaluated. ``left``: rules that only Great
    Expectations can judge. ``flags``: rule -> the numbers of the rows that break it. ``columns``:
    those that stock expectations are about.
    """

    table: str
    rows: int
    rows_ok: np.ndarray
    quarantine: pd.DataFrame
    findings: tuple[BrokenRule, ...]
    counts: dict[str, int]
    skipped: dict[str, str]
    left: tuple[QualityRule, ...]
    flags: Mapping[str, np.ndarray]
    columns: pd.DataFrame

    def of(self, severity: str) -> tuple[BrokenRule, ...]:
        """The broken rules of one severity ('gate', 'quarantine', 'warn')."""
        return tuple(f for f in self.findings if f.severity == severity)


def judge_rows(suite: RuleSet, rows: Table, available: Available, suites: Path) -> TableVerdict:
    """Evaluate the rules of a suite on a table, a frame or a Parquet file. Rules that need what
    isn't available are skipped, with the reason; rules of types that DuckDB has no condition for
    are ``left``. Raises InputError."""
    rows = rows if isinstance(rows, Path) else rows.reset_index(drop=True)
    missing = sorted(set(suite.columns) - set(columns_of(rows)))
    if missing:  # without these columns no other rule can be evaluated
        skipped = dict.fromkeys((rule.name for rule in suite.rules), "a column is missing")
        message = f"{suite.shape.message} (missing: {', '.join(missing)})"
        finding = BrokenRule(suite.shape.name, suite.shape.severity, 1, (), message)
        good, none = np.ones(length(rows), dtype=bool), pd.DataFrame(columns=QUARANTINE_COLUMNS)
        counts = {suite.shape.name: 1}
        return TableVerdict(
            suite.table,
            len(good),
            good,
            none,
            (finding,),
            counts,
            skipped,
            (),
            {},
            none.iloc[:, :0],
        )
    reasons = {rule.name: available.reason(rule, rows) for rule in suite.rules}
    wanted = [rule for rule in suite.rules if not reasons[rule.name]]
    flags, columns = broken_rows(rows, suite, wanted, available, suites)
    return replace(
        _verdict(suite, rows, flags),
        skipped={name: why for name, why in reasons.items() if why},
        left=tuple(rule for rule in wanted if rule.name not in flags),
        columns=columns,
    )


def _verdict(suite: RuleSet, rows: Table, flags: Mapping[str, np.ndarray]) -> TableVerdict:
    keys = [k for k in suite.key if k in columns_of(rows)]
    rows_ok = np.ones(length(rows), dtype=bool)
    findings: list[BrokenRule] = []
    lost: list[pd.DataFrame] = []
    for rule in (rule for rule in suite.rules if len(flags.get(rule.name, ()))):
        numbers = flags[rule.name]
        named = _named(rows, keys, numbers if rule.severity == "quarantine" else numbers[:_MOST])
        examples = tuple(sorted(named)[:_SHOWN])
        findings.append(BrokenRule(rule.name, rule.severity, len(numbers), examples, rule.message))
        if rule.severity == "quarantine":
            rows_ok[numbers] = False
            about = {"table": suite.table, "key": named, "rule": rule.name, "detail": rule.message}
            lost.append(pd.DataFrame(about))
    quarantine = (
        pd.concat(lost, ignore_index=True) if lost else pd.DataFrame(columns=QUARANTINE_COLUMNS)
    )
    quarantine = quarantine.astype("str").sort_values(
        QUARANTINE_COLUMNS, kind="stable", ignore_index=True
    )
    counts = {suite.shape.name: 0} | {name: len(numbers) for name, numbers in flags.items()}
    return TableVerdict(
        suite.table,
        len(rows_ok),
        rows_ok,
        quarantine,
        tuple(findings),
        counts,
        {},
        (),
        flags,
        pd.DataFrame(),
    )


def _named(rows: Table, keys: list[str], numbers: np.ndarray) -> list[str]:
    """The keys of rows, parts joined by '/'."""
    if isinstance(rows, Path):
        part = pq.read_table(rows, columns=keys).take(numbers).to_pandas()[keys]
    else:
        part = rows[keys].iloc[numbers]
    part = part.astype("str").fillna("")
    return ["/".join(row) for row in part.itertuples(index=False, name=None)]
