"""Check one table against its suite (expectations/<table>.json) with Great Expectations on pandas
frames.

Every rule has a kebab-case name and a severity: ``gate`` rejects the benchmark, ``quarantine``
removes single rows, ``warn`` is only reported. Rules that Great Expectations has no expectation for
are computed as flag columns and checked by a custom one, ``expect_rule_to_hold``. Great
Expectations stores nothing and sends nothing.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from sdgbias.benchmark.quality import rules_items as quality_items
from sdgbias.benchmark.quality import rules_own
from sdgbias.benchmark.quality import rules_people as quality_people
from sdgbias.benchmark.quality import rules_predictions as quality_predictions
from sdgbias.benchmark.quality import rules_raw as quality_flags
from sdgbias.benchmark.quality.checkpoints import run_checkpoint
from sdgbias.benchmark.quality.direct import judge
from sdgbias.benchmark.quality.rules_prompts import prompt_flags
from sdgbias.benchmark.quality.rules_raw import Flag, Judged, RuleContext, Whole, column
from sdgbias.errors import InputError, one_of
from sdgbias.files import packaged

SUITES = (
    "clusters",
    "series",
    "images",
    "items_mcq",
    "items_regression",
    "prompts",
    "predictions",
    "people",
    "images_people",
    "items_people",
    "prompts_people",
    "items_own",
    "images_own",
    "prompts_own",
)
#: Suites whose table has another file name: people benchmarks and custom-question benchmarks each
#: have an images.parquet and a prompts.parquet.
FILES = {
    "images_people": "images",
    "prompts_people": "prompts",
    "images_own": "images",
    "prompts_own": "prompts",
}
SEVERITIES = ("gate", "quarantine", "warn")
FLAGS: dict[str, dict[str, Flag]] = {
    **quality_flags.FLAGS,
    **quality_items.FLAGS,
    **quality_predictions.FLAGS,
    **quality_people.FLAGS,
    **rules_own.FLAGS,
}
_SHOWN = 5  # examples reported per broken rule
_UNIQUE = "expect_column_values_to_be_unique"
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


@dataclass(frozen=True)
class How:
    """How a table is checked. split: the rule that column `split` follows, 'id' (the authors') or
    'place' (no country on both sides). imported: the table comes from an imported release; rules
    that hold only for our builds (`not_for_releases` in the suite) are skipped. direct: without
    Great Expectations where direct.py knows the rule's type; the verdict is the same. whole: the
    file of which the frame is a block."""

    split: str = "id"
    imported: bool = False
    direct: bool = False
    whole: Whole | None = None


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
    if table not in SUITES:
        raise InputError(one_of("table", table, SUITES))
    path = suites / f"{table}.json"
    try:
        suite = json.loads(path.read_text(encoding="utf-8"))
        rules = [
            (e["meta"]["rule"], e["meta"]["severity"], e["meta"]["message"], e["kwargs"])
            for e in suite["expectations"]
        ]
        keys = [str(k) for k in suite["meta"]["key"]]
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; restore it: git checkout expectations"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a suite ({type(error).__name__}: {error}); restore it: git checkout"
            " expectations"
        ) from None
    names = [rule for rule, *_ in rules]
    for rule, severity, *_ in rules:
        if severity not in SEVERITIES:
            raise InputError(f"{path}: rule {rule}: {one_of('severity', severity, SEVERITIES)}")
        if names.count(rule) > 1:
            raise InputError(f"{path}: rule {rule} is given twice; rename or remove one")
    if not keys or not rules:
        raise InputError(f"{path}: no key or no rule; restore it: git checkout expectations")
    return dict(suite)


def needed_columns(suite: Mapping[str, Any]) -> set[str]:
    """The columns that a suite's whole-table rules need."""
    return {str(c) for e in suite["expectations"] for c in e["kwargs"].get("column_set", ())}


def check(
    table: str,
    frame: pd.DataFrame,
    suites: Path | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
    split: str = "id",
    imported: bool = False,
    direct: bool = False,
) -> TableVerdict:
    """Check one table. ``tables``: the other tables of the benchmark, for rules across tables
    (otherwise skipped). ``split``, ``imported``, ``direct``: see How.

    The order of rows matters only for ``rows_ok``. Raises InputError when a suite or a column's
    type makes a rule impossible to evaluate: no rule is skipped silently.
    """
    suite = load_suite(table, suites or find_suites())
    return _check(table, frame, suite, tables or {}, How(split, imported, direct))


def check_blocks(
    table: str,
    path: Path,
    blocks: Iterable[tuple[pd.DataFrame, Mapping[str, pd.DataFrame]]],
    suites: Path | None = None,
    how: How = How(),
) -> TableVerdict:
    """check, of a table that comes in blocks (each with the other tables that it needs) of the file
    ``path``: memory holds one block. Rules about all values of a column are judged on that column
    of the file."""
    suite = load_suite(table, suites or find_suites())
    of_blocks = replace(how, whole=Whole(path))
    rows = [e for e in suite["expectations"] if e["type"] != _UNIQUE]
    parts = [
        _check(table, frame, suite | {"expectations": rows}, tables, of_blocks)
        for frame, tables in blocks
    ]
    columns = []
    for rule in (e for e in suite["expectations"] if e["type"] == _UNIQUE):
        names = sorted({*map(str, suite["meta"]["key"]), *_columns(rule)})
        of = ", ".join(f'"{name}"' for name in _columns(rule))
        again = Whole(path).query(f"SELECT 1 FROM whole GROUP BY {of} HAVING count(*) > 1 LIMIT 1")
        # the rows are read only where one of them is repeated
        table_rows = pq.read_table(path, columns=names) if len(again) else None
        frame = (table_rows or pq.read_schema(path).empty_table().select(names)).to_pandas()
        columns.append(_check(table, frame, suite | {"expectations": [rule]}, {}, how))
    return _merged(suite, parts, columns)


def _merged(
    suite: Mapping[str, Any], parts: Sequence[TableVerdict], columns: Sequence[TableVerdict]
) -> TableVerdict:
    """The verdict of a table from those of its blocks and those of the rules about one column."""
    every = [*parts, *columns]
    found: list[BrokenRule] = []
    counts: dict[str, int] = {}
    for rule in (str(e["meta"]["rule"]) for e in suite["expectations"]):
        judged = [v.counts[rule] for v in every if rule in v.counts]
        broken = [f for v in every for f in v.findings if f.rule == rule]
        if judged:  # a rule about the whole table, which names no rows, is broken once
            counts[rule] = sum(judged) if all(f.examples for f in broken) else 1
        if broken:
            named = sorted(name for f in broken for name in f.examples)[:_SHOWN]
            found.append(replace(broken[0], count=counts[rule], examples=tuple(named)))
    rows_ok = np.concatenate([part.rows_ok for part in parts])
    for verdict in columns:
        if verdict.rows:
            rows_ok &= verdict.rows_ok
    lost = pd.concat([v.quarantine for v in every], ignore_index=True)
    lost = lost.sort_values(list(lost.columns), kind="stable", ignore_index=True)
    return TableVerdict(
        parts[0].table, len(rows_ok), rows_ok, lost, tuple(found), counts, parts[0].skipped
    )


def _check(
    table: str,
    frame: pd.DataFrame,
    suite: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    how: How,
) -> TableVerdict:
    rules = {str(e["meta"]["rule"]): e for e in suite["expectations"]}
    frame = frame.reset_index(drop=True)
    shape = {rule: e for rule, e in rules.items() if "column_set" in e["kwargs"]}
    # on no rows: Great Expectations copies the given table once per rule
    broken = _run(table, pd.DataFrame(columns=frame.columns), shape, how.direct)
    if not needed_columns(suite) <= set(
        frame
    ):  # without these columns no other rule can be evaluated
        return _verdict(
            table,
            frame,
            suite,
            broken,
            {rule: "a column is missing" for rule in rules if rule not in shape},
        )
    foreign = {
        str(rule): "imported release"
        for rule in suite["meta"].get("not_for_releases", ())
        if how.imported
    }
    wanted = {
        rule: _columns(e) for rule, e in rules.items() if rule not in shape and rule not in foreign
    }
    every = {name for names in wanted.values() for name in names}
    try:
        made = _derived(
            table, frame, RuleContext(tables, suite["meta"], how.split, how.whole), every
        )
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{table}: columns don't have the types of the benchmark ({detail}); build it again:"
            " sdgbias build"
        ) from None
    skipped = foreign | {
        rule: reason
        for rule, names in wanted.items()
        for name in names
        if isinstance(reason := made.get(name), str)
    }
    judged = {}
    for rule, names in wanted.items():
        for name in names:
            if name not in made and name not in frame:
                known = [*frame.columns, *made, *map(column, FLAGS.get(table, ()))]
                raise InputError(f"expectations/{table}.json: {one_of('column', name, set(known))}")
            if rule not in skipped:
                judged[name] = made[name] if name in made else _no_gaps(frame[name])
    rest = {rule: rules[rule] for rule in wanted if rule not in skipped}
    broken |= _run(table, pd.DataFrame(judged, index=frame.index), rest, how.direct)
    return _verdict(table, frame, suite, broken, skipped)


def _columns(rule: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that a rule about rows reads."""
    given = rule["kwargs"]
    one = (str(given[name]) for name in ("column", "column_A", "column_B") if name in given)
    return (*one, *map(str, given.get("column_list", ())))


def _derived(
    table: str, frame: pd.DataFrame, given: RuleContext, wanted: set[str]
) -> dict[str, np.ndarray | pd.Series | str]:
    """The columns of ``wanted`` that the table lacks; a text is the reason why a column can't be
    computed."""
    if table == "prompts":
        return {column(rule): _plain(flag) for rule, flag in prompt_flags(frame, given).items()}
    made: dict[str, np.ndarray | pd.Series | str] = {
        column(rule): _plain(flag(frame, given))
        for rule, flag in FLAGS[table].items()
        if column(rule) in wanted
    }
    if "label_share_gap" in wanted:
        made["label_share_gap"] = quality_items.label_share_gap(frame, given)
    return made


def _plain(flag: Judged) -> np.ndarray | str:
    """A flag as plain bool; unknown counts as broken."""
    if isinstance(flag, str) or (isinstance(flag, np.ndarray) and flag.dtype == bool):
        return flag
    return np.asarray(pd.Series(flag).fillna(False), dtype=bool)


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
    frame: pd.DataFrame,
    suite: Mapping[str, Any],
    broken: Mapping[str, Any],
    skipped: dict[str, str],
) -> TableVerdict:
    """Assemble the verdict from rule -> array of broken row numbers, or a text for a rule about the
    whole table."""
    keys = [k for k in suite["meta"]["key"] if k in frame]
    rows_ok = np.ones(len(frame), dtype=bool)
    findings, lost, counts = [], [], {}
    for expectation in suite["expectations"]:
        rule, severity, message = (
            str(expectation["meta"][k]) for k in ("rule", "severity", "message")
        )
        if rule in skipped:
            continue
        found = broken[rule]
        if isinstance(found, str):
            counts[rule] = 1
            findings.append(
                BrokenRule(rule, severity, 1, (), f"{message} ({found})" if found else message)
            )
            continue
        counts[rule] = len(found)
        if not len(found):
            continue
        named = _named(frame, keys, found if severity == "quarantine" else found[:_MOST])
        findings.append(
            BrokenRule(rule, severity, len(found), tuple(sorted(named)[:_SHOWN]), message)
        )
        if severity == "quarantine":
            rows_ok[found] = False
            lost.append(
                pd.DataFrame({"table": table, "key": named, "rule": rule, "detail": message})
            )
    columns = ["table", "key", "rule", "detail"]
    quarantine = pd.concat(lost, ignore_index=True) if lost else pd.DataFrame(columns=columns)
    quarantine = quarantine.astype("str").sort_values(columns, kind="stable", ignore_index=True)
    return TableVerdict(table, len(frame), rows_ok, quarantine, tuple(findings), counts, skipped)


def _named(frame: pd.DataFrame, keys: list[str], rows: np.ndarray) -> list[str]:
    """The keys of rows, parts joined by '/'."""
    part = frame[keys].iloc[rows].astype("str").fillna("")
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
