"""The quality check of a benchmark: one gate engine for the rules of expectations/.

rules.py reads a table's rules, evaluate.py lets DuckDB find the rows that break them in one pass.
Each stage of a build and `evaluate` stop there (`check`, `sift`). `run_gate` checks a finished
benchmark: Great Expectations judges the flag columns and the stock expectations (validation.py),
and page.py shows the results. The automatic checks of App. B.2 (missing modality, inconsistent
metadata, duplicates and near-duplicates, invalid option sets) and the invariants of the prompts are
among the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark.quality.evaluate import (
    Available,
    BrokenRule,
    TableVerdict,
    columns_of,
    judge_rows,
)
from sdgbias.benchmark.quality.page import PAGE, write_page
from sdgbias.benchmark.quality.relations import Table
from sdgbias.benchmark.quality.rules import FILES, RuleSet, find_suites, load_rules
from sdgbias.benchmark.quality.stored import stored_facts
from sdgbias.benchmark.quality.validation import open_context, render_docs, validate
from sdgbias.errors import DataValidationError, InputError, argument
from sdgbias.files import build_command, is_release, json_file, json_object, write_json
from sdgbias.types import FACET

__all__ = [
    "DATA_DOCS",
    "PAGE",
    "TABLES",
    "Report",
    "check",
    "find_suites",
    "has_passed",
    "load_rules",
    "run_gate",
    "sift",
    "sift_file",
]

#: Tables of a benchmark folder, in build order.
TABLES = ("clusters", "series", "images", "items_mcq", "items_regression", "prompts")
#: Tables of a people benchmark, by the names of their suites; FILES maps them to files.
PEOPLE = ("people", "images_people", "items_people", "prompts_people")
#: Tables of a benchmark of custom questions.
OWN = ("images_own", "items_own", "prompts_own")
#: Kind of a benchmark (its suite, or own) -> its tables, where they aren't TABLES.
_KINDS = {FACET: PEOPLE, "own": OWN}
SPLITS = ("id", "place")
#: Beside a benchmark: the results of Great Expectations by table, and its own pages on request.
VALIDATION, DATA_DOCS = "validation", "data_docs"
_UNWRITABLE = "give a writable benchmark folder"


@dataclass(frozen=True)
class Report:
    """The verdicts of a benchmark folder by table, and the path of quality.json."""

    verdicts: dict[str, TableVerdict]
    path: Path

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {table: dict(verdict.counts) for table, verdict in self.verdicts.items()}

    @property
    def warnings(self) -> list[str]:
        """One line per broken warn rule."""
        return [_line(t, f) for t, v in self.verdicts.items() for f in v.of("warn")]


def check(
    table: str,
    rows: Table,
    suites: Path | None = None,
    tables: Mapping[str, Table] | None = None,
    split: str = "id",
) -> TableVerdict:
    """Check one table, a frame or a Parquet file. ``tables``: the other tables of the benchmark,
    for rules across tables (otherwise skipped). ``split``: the rule that column `split` follows,
    'id' (the authors') or 'place' (no country on both sides).

    The order of rows matters only for ``rows_ok``. Raises InputError when a rule or a column's type
    makes a rule impossible to evaluate: no rule is skipped silently.
    """
    suites = suites or find_suites()
    suite = load_rules(table, suites)
    verdict = judge_rows(suite, rows, Available(tables or {}, split), suites)
    if not verdict.left:
        return verdict
    return validate(open_context(), suite, verdict, columns_of(rows))[0]


def sift(
    table: str,
    frame: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame] | None = None,
    suites: Path | None = None,
    split: str = "id",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (the rows that satisfy every row rule, in their order; quarantine rows: table, key,
    rule, detail). ``split``: see check.

    Rules across tables are evaluated where ``tables`` has the other table. Raises
    DataValidationError when the remaining rows break a gate rule. Removing a row can make another
    one valid (for example when the first of two duplicates is removed for a different reason):
    call repeatedly until no row is removed.
    """
    verdict = check(table, frame, suites, tables, split)
    kept = frame if verdict.rows_ok.all() else frame[verdict.rows_ok]
    may_stop = bool(verdict.of("gate"))  # unless the rows that leave were the broken ones
    _stop(check(table, kept, suites, tables, split) if may_stop and kept is not frame else verdict)
    return kept, verdict.quarantine


def sift_file(
    table: str, path: Path, tables: Mapping[str, pd.DataFrame], split: str = "id"
) -> tuple[set[int], pd.DataFrame]:
    """sift of an item table in a Parquet file: the item_ids of the rows that break a row rule, and
    the quarantine rows. Raises DataValidationError."""
    verdict = check(table, path, None, tables, split)
    _stop(verdict)
    return set(verdict.quarantine["key"].astype("int64")), verdict.quarantine


def _stop(verdict: TableVerdict) -> None:
    """Raises DataValidationError where rows that a stage of the build has made break a gate
    rule."""
    if stops := verdict.of("gate"):
        raise DataValidationError(
            f"{_several([_line(verdict.table, finding) for finding in stops])}; fix the source,"
            " then: sdgbias build"
        )


def run_gate(benchmark: Path, suites: Path | None = None, data_docs: bool = False) -> Report:
    """Check the tables of a benchmark folder of any suite; write quality.json, quality.html and
    validation/ (the results of Great Expectations) into it, and with ``data_docs`` its own pages.

    Raises DataValidationError with table, rule and count when a gate rule is broken; a finished
    benchmark must not hold rows that belong in quarantine either. All outputs are written in any
    case. The rule that column `split` must follow, 'id' or 'place', is that of items_notes.json.
    Raises InputError when a table is missing or can't be read.
    """
    benchmark = Path(benchmark)
    suites = suites or find_suites()
    split, names, again = _split(benchmark), _tables(benchmark), build_command(benchmark)
    rules = {name: load_rules(name, suites) for name in names}
    tables = {name: _rows(benchmark, suite, again) for name, suite in rules.items()}
    # a table that lacks columns is reported, but can't be used by rules of other tables
    whole = {n: t for n, t in tables.items() if set(rules[n].columns) <= set(columns_of(t))}
    available = Available(whole, split, is_release(benchmark))
    verdicts: dict[str, TableVerdict] = {}
    context = open_context(benchmark / DATA_DOCS if data_docs else None)
    for name, suite in rules.items():
        verdict = judge_rows(suite, tables[name], available, suites)
        verdict, results = validate(context, suite, verdict, columns_of(tables[name]))
        # what was judged isn't needed any more: at 8.9 million questions it is a third of a GiB
        verdicts[name] = replace(verdict, flags={}, columns=pd.DataFrame())
        write_json(benchmark / VALIDATION / f"{name}.json", results, _UNWRITABLE)
    if data_docs:
        render_docs(context)
    faults = [
        _line(f"{FILES.get(name, name)}.parquet", finding)
        for name, verdict in verdicts.items()
        for severity in ("gate", "quarantine")
        for finding in verdict.of(severity)
    ]
    report = Report(verdicts, benchmark / "quality.json")
    content = {"passed": not faults, "split": split, "of": _content(benchmark, suites)}
    content["tables"] = {
        name: {
            "rows": verdict.rows,
            "rows_to_quarantine": int((~verdict.rows_ok).sum()),
            "rules": verdict.counts,
            "skipped": verdict.skipped,
            "broken": [asdict(finding) for finding in verdict.findings],
        }
        for name, verdict in verdicts.items()
    }
    write_json(report.path, content, _UNWRITABLE)
    write_page(benchmark / PAGE, rules, verdicts, _left_out(benchmark), not faults)
    if faults:
        raise DataValidationError(
            f"{benchmark}: {_several(faults)}; see {report.path}, fix the source, then: {again}"
        )
    return report


def _left_out(benchmark: Path) -> dict[str, int]:
    """table/rule -> rows that left the table because of it; {} where nothing is known."""
    path = benchmark / "quarantine.parquet"
    if not path.is_file():
        return {}
    rows = pd.read_parquet(path, columns=["table", "rule"])
    return {str(k): int(n) for k, n in (rows["table"] + "/" + rows["rule"]).value_counts().items()}


def has_passed(benchmark: Path, suites: Path | None = None) -> bool:
    """Whether `run_gate` passed these very tables under these very rules: quality.json holds a
    digest of both. False where anything differs or can't be read; the gate then has to run."""
    earlier = json_object(Path(benchmark) / "quality.json")
    try:
        return earlier.get("passed") is True and earlier.get("of") == _content(
            Path(benchmark), suites or find_suites()
        )
    except OSError:
        return False


def _content(benchmark: Path, suites: Path) -> str:
    """SHA-256 over the bytes of tables, cards and rules, and over name and size of every shard of
    pictures, which may hold hundreds of gigabytes and whose own digests are in the tables."""
    digest = hashlib.sha256()
    cards = [benchmark / name for name in ("benchmark.json", "origin.json", "items_notes.json")]
    read = [*sorted(benchmark.glob("*.parquet")), *filter(Path.is_file, cards)]
    code = Path(__file__).parent.glob("*.py")
    rules = [*sorted(suites.glob("*.json")), *sorted(suites.glob("*.sql")), *sorted(code)]
    for path in (*read, *rules):
        digest.update(f"{path.name}\0".encode())
        with path.open("rb") as handle:  # a table of every question has half a GiB
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    for path in sorted((benchmark / "images").glob("*.parquet")):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
    return digest.hexdigest()


def _tables(benchmark: Path) -> tuple[str, ...]:
    """The tables of a folder, by the `kind` in its card, else its `suite`."""
    card = json_object(benchmark / "benchmark.json")
    return _KINDS.get(str(card.get("kind") or card.get("suite")), TABLES)


def _several(lines: list[str]) -> str:
    return "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")


def _line(where: str, finding: BrokenRule) -> str:
    rows = f" (e.g. {', '.join(finding.examples[:3])})" if finding.examples else ""
    belong = ", rows that belong in quarantine" if finding.severity == "quarantine" else ""
    return (
        f"{where}: rule {finding.rule} broken {finding.count} time(s){rows}{belong}:"
        f" {finding.message}"
    )


def _split(benchmark: Path) -> str:
    """The split rule recorded by the build."""
    path = benchmark / "items_notes.json"
    if not path.is_file():
        return "id"
    onward = f"make it again: sdgbias build --out {argument(benchmark)}"
    rule = json_file(path, "can't be read", onward).get("split", "id")
    if rule not in SPLITS:
        raise InputError(f"{path}: unknown split {rule!r}; valid: {', '.join(SPLITS)}")
    return str(rule)


def _rows(benchmark: Path, suite: RuleSet, again: str) -> Table:
    """The file of a table; the index of pictures as a frame, with what the shards say of each."""
    path = benchmark / f"{FILES.get(suite.table, suite.table)}.parquet"
    if not path.is_file():
        if suite.table == "series" and is_release(benchmark):  # a release has no series table
            return pd.DataFrame(columns=sorted(suite.columns))
        raise InputError(f"{path}: no such table; make it: {again}")
    try:
        names = [column for column in pq.read_schema(path).names if column in suite.columns]
        if path.stem != "images":
            return path
        index = pd.read_parquet(path, columns=names)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(
            f"{path}: can't be read ({type(error).__name__}); make it again: {again}"
        ) from None
    return stored_facts(benchmark, index) if set(suite.columns) <= set(names) else index
