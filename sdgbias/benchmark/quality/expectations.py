"""Check one table against its suite (expectations/<table>.json) with Great Expectations on pandas
frames.

Every rule has a kebab-case name and a severity: ``gate`` rejects the benchmark, ``quarantine``
removes single rows, ``warn`` is only reported. Rules that Great Expectations has no expectation for
hold SQL (sql.py); its result is a flag column, checked by a custom expectation,
``expect_rule_to_hold``. Great Expectations stores nothing and sends nothing.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark.quality.checkpoints import run_checkpoint
from sdgbias.benchmark.quality.direct import judge
from sdgbias.benchmark.quality.sql import FLAG, RuleContext, Table, broken_rows, columns_of, length
from sdgbias.errors import InputError, one_of
from sdgbias.files import packaged, understood
from sdgbias.types import QUARANTINE_COLUMNS

#: Suites whose table has another file name: people benchmarks and custom-question benchmarks each
#: have an images.parquet and a prompts.parquet.
FILES = {
    "images_people": "images",
    "prompts_people": "prompts",
    "images_own": "images",
    "prompts_own": "prompts",
}
SEVERITIES = ("gate", "quarantine", "warn")
#: Rows that are judged at once; a longer table is read in blocks.
BLOCK = 100_000
_SHOWN = 5  # examples reported per broken rule
#: Types of expectations about all values of a column, or all rows.
_OF_COLUMNS = (
    "expect_column_values_to_be_unique",
    "expect_compound_columns_to_be_unique",
    "expect_column_max_to_be_between",
)
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
    """The result of checking N rows of one table against its suite.

    ``rows_ok``: (N,) bool, False where a quarantine rule is broken. ``quarantine``: table, key,
    rule, detail; one line per row and broken quarantine rule. ``counts``: every evaluated rule ->
    broken rows. ``skipped``: rule -> why it wasn't evaluated.
    """

    table: str
    rows: int
    rows_ok: np.ndarray
    quarantine: pd.DataFrame
    findings: tuple[BrokenRule, ...]
    counts: dict[str, int]
    skipped: dict[str, str]

    def of(self, severity: str) -> tuple[BrokenRule, ...]:
        """The broken rules of one severity ('gate', 'quarantine', 'warn')."""
        return tuple(f for f in self.findings if f.severity == severity)


def find_suites(start: Path | None = None) -> Path:
    """The expectations folder: that of the repository named by SDGBIAS_REGISTRY if it has one, else
    the nearest at or above ``start`` (default: the working folder), else, where ``start`` isn't
    given, that of the checkout that this package lies in. Raises InputError when there is none.
    """
    here = (start or Path.cwd()).resolve()
    named = os.environ.get("SDGBIAS_REGISTRY", "") if start is None else ""
    own = [] if start else [packaged().parent]
    for folder in (*([Path(named).resolve()] if named else []), here, *here.parents, *own):
        if (folder / "expectations" / "clusters.json").is_file():
            return folder / "expectations"
    raise InputError(
        f"no expectations/clusters.json at or above {here}; change to the repository, or: export"
        " SDGBIAS_REGISTRY=/path/to/repository"
    )


def load_suite(table: str, suites: Path) -> dict[str, Any]:
    """The suite of a table as read from JSON. Raises InputError: malformed, duplicate name, unknown
    severity."""
    path = suites / f"{table}.json"
    if not path.is_file():
        raise InputError(one_of("table", table, [rules.stem for rules in suites.glob("*.json")]))
    onward = "restore it: git checkout expectations"
    with understood(path, "not a suite", onward):
        suite = json.loads(path.read_text(encoding="utf-8"))
        rules = [
            (e["meta"]["rule"], e["meta"]["severity"], e["meta"]["message"], e["kwargs"])
            for e in suite["expectations"]
        ]
        keys = [str(k) for k in suite["meta"]["key"]]
    names = [rule for rule, *_ in rules]
    for rule, severity, *_ in rules:
        if severity not in SEVERITIES:
            raise InputError(f"{path}: rule {rule}: {one_of('severity', severity, SEVERITIES)}")
        if names.count(rule) > 1:
            raise InputError(f"{path}: rule {rule} is given twice; rename or remove one")
    if not keys or not rules:
        raise InputError(f"{path}: no key or no rule; {onward}")
    return dict(suite)


def needed_columns(suite: Mapping[str, Any]) -> set[str]:
    """The columns that a suite's whole-table rules need."""
    return {str(c) for e in suite["expectations"] for c in e["kwargs"].get("column_set", ())}


def check(
    table: str,
    rows: Table,
    suites: Path | None = None,
    tables: Mapping[str, Table] | None = None,
    split: str = "id",
    imported: bool = False,
    direct: bool = False,
) -> TableVerdict:
    """Check one table, a frame or a Parquet file, of which memory holds one block. ``tables``: the
    other tables of the benchmark, for rules across tables (otherwise skipped). ``split``: the rule
    that column `split` follows, 'id' (the authors') or 'place' (no country on both sides).
    ``imported``: the table comes from an imported release; rules that hold only for our builds
    (`not_for_releases` in the suite) are skipped. ``direct``: without Great Expectations where
    direct.py knows the rule's type; the verdict is the same.

    The order of rows matters only for ``rows_ok``. Raises InputError when a suite or a column's
    type makes a rule impossible to evaluate: no rule is skipped silently.
    """
    suite = load_suite(table, suites or find_suites())
    rules = {str(e["meta"]["rule"]): e for e in suite["expectations"]}
    rows = rows if isinstance(rows, Path) else rows.reset_index(drop=True)
    names = columns_of(rows)
    rest = {rule: e for rule, e in rules.items() if "column_set" not in e["kwargs"]}
    # without these columns no other rule can be evaluated
    if not needed_columns(suite) <= set(names):
        shape = {rule: e for rule, e in rules.items() if rule not in rest}
        broken = _run(table, pd.DataFrame(columns=names), shape, direct)
        return _verdict(table, rows, suite, broken, dict.fromkeys(rest, "a column is missing"))
    foreign = suite["meta"].get("not_for_releases", ()) if imported else ()
    skipped = {str(rule): "imported release" for rule in foreign}
    given = RuleContext(tables or {}, suite["meta"], split)
    by_sql = {r: e for r, e in rest.items() if "sql" in e["meta"] and r not in skipped}
    for rule in (e for r, e in rest.items() if r not in skipped and r not in by_sql):
        for name in _columns(rule):
            if name not in names:
                raise InputError(f"expectations/{table}.json: {one_of('column', name, names)}")
    try:
        flags, reasons = broken_rows(rows, by_sql, given)
    except (duckdb.Error, pa.ArrowException) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{table}: columns don't have the types of the benchmark ({detail}); build it again:"
            " sdgbias build"
        ) from None
    skipped |= reasons
    rules = {rule: e for rule, e in rules.items() if rule not in skipped}
    return _verdict(table, rows, suite, _judged(table, rows, rules, flags, direct), skipped)


def _judged(
    table: str,
    rows: Table,
    rules: Mapping[str, Mapping[str, Any]],
    flags: Mapping[str, np.ndarray],
    direct: bool,
) -> dict[str, Any]:
    """Rule -> broken rows, or a text; see _run. ``flags``: what SQL found. One pass judges all
    rules on the rows of a table of one block; Great Expectations copies them once per rule, and a
    pass costs as much as the rules of a small table."""
    broken: dict[str, Any] = {}
    if direct:
        broken |= {rule: flags[rule] for rule, e in rules.items() if e["type"] == FLAG}
    rest = {rule: e for rule, e in rules.items() if rule not in broken}
    parts: dict[str, list[Any]] = {rule: [] for rule in rest}
    for frame, own in _passes(rows, rest, flags):
        at = frame.index.to_numpy()
        judged = frame.apply(_no_gaps).reset_index(drop=True)
        for rule, found in _run(table, judged, own, direct).items():
            parts[rule].append(found if isinstance(found, str) else at[found])
    return broken | {
        rule: found[0] if len(found) == 1 else np.concatenate(found)
        for rule, found in parts.items()
    }


def _passes(
    rows: Table, rules: Mapping[str, Mapping[str, Any]], flags: Mapping[str, np.ndarray]
) -> Iterator[tuple[pd.DataFrame, dict[str, Mapping[str, Any]]]]:
    """(frame whose index numbers the rows of the table, the rules that are judged on it)."""
    long = length(rows) > BLOCK
    by_block = {}
    for rule, e in rules.items():
        names = _columns(e)
        if not (long or rule in flags) or (names and e["type"] not in _OF_COLUMNS):
            by_block[rule] = e
        elif not names:  # about the table's columns
            yield pd.DataFrame(columns=columns_of(rows)), {rule: e}
        elif rule in flags:
            yield pd.DataFrame({names[0]: flags[rule]}), {rule: e}
        else:
            yield _repeated(rows, names) if isinstance(rows, Path) else rows[[*names]], {rule: e}
    wanted = {name: rule for rule, e in by_block.items() for name in _columns(e)}
    for block in _blocks(rows, wanted) if by_block else ():
        judged: dict[str, Any] = {} if long else dict.fromkeys(columns_of(rows))
        for name, rule in wanted.items():
            judged[name] = ~block.index.isin(flags[rule]) if rule in flags else block[name]
        yield pd.DataFrame(judged, index=block.index), by_block


def _blocks(rows: Table, wanted: Collection[str]) -> Iterator[pd.DataFrame]:
    """The blocks of a table with the wanted columns, numbered on; one at least."""
    if not isinstance(rows, Path):
        yield rows
        return
    start = 0
    with pq.ParquetFile(rows) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted]
        for batch in file.iter_batches(BLOCK, columns=columns):
            yield batch.to_pandas().set_axis(pd.RangeIndex(start, start + len(batch)))
            start += len(batch)
        if not start:  # a task that has no questions
            yield file.schema_arrow.empty_table().select(columns).to_pandas()


def _repeated(rows: Path, names: Sequence[str]) -> pd.DataFrame:
    """The rows of a file whose values in these columns occur more than once."""
    listed = ", ".join(f'"{name}"' for name in names)
    with duckdb.connect(config={"memory_limit": "512MB"}) as con:
        found = con.execute(
            f"""WITH whole AS (SELECT {listed}, file_row_number AS row_no
                  FROM read_parquet($path, file_row_number = true))
                FROM whole SEMI JOIN (SELECT {listed} FROM whole GROUP BY ALL HAVING count(*) > 1)
                USING ({listed}) ORDER BY row_no""",
            {"path": str(rows)},
        ).df()
    return pd.DataFrame(found.set_index("row_no"))


def _columns(rule: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that a rule about rows reads."""
    given = rule["kwargs"]
    one = (str(given[name]) for name in ("column", "column_A", "column_B") if name in given)
    return (*one, *map(str, given.get("column_list", ())))


def _no_gaps(values: pd.Series) -> pd.Series:
    """Missing text as '', because Great Expectations skips missing values; missing numbers stay
    missing."""
    if pd.api.types.is_numeric_dtype(values):
        return values
    return (
        values.astype("str").fillna("")
        if isinstance(values.dtype, pd.CategoricalDtype)
        else values.fillna("")
    )


def _verdict(
    table: str,
    rows: Table,
    suite: Mapping[str, Any],
    broken: Mapping[str, Any],
    skipped: dict[str, str],
) -> TableVerdict:
    """Assemble the verdict from rule -> array of broken row numbers, or a text for a rule about the
    whole table."""
    keys = [k for k in suite["meta"]["key"] if k in columns_of(rows)]
    rows_ok = np.ones(length(rows), dtype=bool)
    findings, lost, counts = [], [], {}
    for expectation in suite["expectations"]:
        rule, severity, message = (
            str(expectation["meta"][k]) for k in ("rule", "severity", "message")
        )
        if rule in skipped:
            continue
        found = broken[rule]
        whole = isinstance(found, str)
        counts[rule] = 1 if whole else len(found)
        if not counts[rule]:
            continue
        most = None if severity == "quarantine" else _MOST
        named = [] if whole else _named(rows, keys, found[:most])
        shown = f"{message} ({found})" if whole else message
        findings.append(
            BrokenRule(rule, severity, counts[rule], tuple(sorted(named)[:_SHOWN]), shown)
        )
        if severity == "quarantine":
            rows_ok[found] = False
            lost.append(
                pd.DataFrame({"table": table, "key": named, "rule": rule, "detail": message})
            )
    quarantine = (
        pd.concat(lost, ignore_index=True) if lost else pd.DataFrame(columns=QUARANTINE_COLUMNS)
    )
    quarantine = quarantine.astype("str").sort_values(
        QUARANTINE_COLUMNS, kind="stable", ignore_index=True
    )
    return TableVerdict(table, len(rows_ok), rows_ok, quarantine, tuple(findings), counts, skipped)


def _named(rows: Table, keys: list[str], numbers: np.ndarray) -> list[str]:
    """The keys of rows, parts joined by '/'."""
    if isinstance(rows, Path):
        part = pq.read_table(rows, columns=keys).take(numbers).to_pandas()[keys]
    else:
        part = rows[keys].iloc[numbers]
    part = part.astype("str").fillna("")
    return ["/".join(row) for row in part.itertuples(index=False, name=None)]


def _run(
    table: str, frame: pd.DataFrame, rules: Mapping[str, Mapping[str, Any]], direct: bool
) -> dict[str, Any]:
    """Rule -> sorted array of broken row numbers ((0,) when satisfied), or a text when a
    whole-table rule is broken. ``direct``: see How."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = judge(frame, rules) if direct else {}
        rest = {rule: e for rule, e in rules.items() if rule not in known}
        return known | run_checkpoint(table, frame, rest) if rest else known
