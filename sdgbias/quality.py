"""The quality gate: table rules as data (expectations/<table>.json), run by Great Expectations on pandas frames.

Every rule has a kebab-case name and a severity: ``gate`` stops the benchmark, ``quarantine`` takes single rows out,
``warn`` is only told. Automatic checks of Appendix B.2 (missing modality, inconsistent metadata, duplicates and
near-duplicates, invalid option sets) plus what the prompts promise. This is the only module that imports
great_expectations; nothing is stored by it and nothing leaves the machine.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from sdgbias import quality_flags
from sdgbias.errors import GateError, InputError, StoreError, one_of

TABLES = ("clusters", "images", "items_mcq", "items_regression", "prompts")
SEVERITIES = ("gate", "quarantine", "warn")
_PNG_BATCH = 256  # composites held in memory at once


@dataclass(frozen=True)
class Finding:
    """One broken rule: how many rows (1 for a rule about the whole table) and up to five of their keys."""

    rule: str
    severity: str
    count: int
    examples: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Verdict:
    """What the suite of one table says of N rows.

    ``rows_ok``: (N,) bool, False where a quarantine rule is broken. ``quarantine``: table, key, rule, detail; one line
    per row and broken quarantine rule. ``counts``: every judged rule -> broken rows. ``skipped``: rules whose other
    table wasn't given.
    """

    table: str
    rows: int
    rows_ok: np.ndarray
    quarantine: pd.DataFrame
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    skipped: tuple[str, ...]

    def of(self, severity: str) -> tuple[Finding, ...]:
        """The broken rules of one severity ('gate', 'quarantine', 'warn')."""
        return tuple(f for f in self.findings if f.severity == severity)


@dataclass(frozen=True)
class Report:
    """The verdicts of a benchmark folder by table, and where quality.json lies."""

    verdicts: dict[str, Verdict]
    path: Path

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {table: dict(verdict.counts) for table, verdict in self.verdicts.items()}

    @property
    def warnings(self) -> list[str]:
        """One line per broken warn rule."""
        return [_line(t, f) for t, v in self.verdicts.items() for f in v.of("warn")]


def find_suites(start: Path | None = None) -> Path:
    """The expectations folder: that of the repository named by SDGBIAS_REGISTRY if it has one, else the nearest at or
    above ``start`` (default: the working folder). InputError when there is none."""
    here = (start or Path.cwd()).resolve()
    named = os.environ.get("SDGBIAS_REGISTRY", "") if start is None else ""
    for folder in (*([Path(named).resolve()] if named else []), here, *here.parents):
        if (folder / "expectations" / "clusters.json").is_file():
            return folder / "expectations"
    raise InputError(
        f"no expectations/clusters.json at or above {here}; change to the repository, or: export SDGBIAS_REGISTRY=/path/to/repository"
    )


def load_suite(table: str, suites: Path) -> dict[str, Any]:
    """The suite of a table as read from JSON. InputError: malformed, a name given twice, a wrong severity."""
    if table not in TABLES:
        raise InputError(one_of("table", table, TABLES))
    path = suites / f"{table}.json"
    try:
        suite = json.loads(path.read_text(encoding="utf-8"))
        rules = [(e["meta"]["rule"], e["meta"]["severity"], e["meta"]["message"]) for e in suite["expectations"]]
        keys = [str(k) for k in suite["meta"]["key"]]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; restore it: git checkout expectations") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a suite ({type(error).__name__}: {error}); restore it: git checkout expectations") from None
    names = [rule for rule, _, _ in rules]
    for rule, severity, _ in rules:
        if severity not in SEVERITIES:
            raise InputError(f"{path}: rule {rule}: {one_of('severity', severity, SEVERITIES)}")
        if names.count(rule) > 1:
            raise InputError(f"{path}: rule {rule} is given twice; rename or remove one")
    if not keys or not rules:
        raise InputError(f"{path}: no key or no rule; restore it: git checkout expectations")
    return dict(suite)


def check(table: str, frame: pd.DataFrame, suites: Path | None = None, tables: Mapping[str, pd.DataFrame] | None = None) -> Verdict:
    """Judge one table. ``tables``: the other tables of the benchmark, for rules across tables (skipped without).

    Order of rows doesn't matter except for which rows are meant by ``rows_ok``. InputError when a suite or a column's
    type makes a rule impossible to judge: a rule is never passed over in silence.
    """
    suite = load_suite(table, suites or find_suites())
    rules = {str(e["meta"]["rule"]): e for e in suite["expectations"]}
    frame = frame.reset_index(drop=True)
    needed = _needed_columns(suite)
    if not needed <= set(frame):  # nothing else can be judged without its columns
        shape = {r: e for r, e in rules.items() if "column_set" in e["kwargs"]}
        return _verdict(table, frame, suite, _run(table, frame.iloc[:0], shape), tuple(r for r in rules if r not in shape))
    try:
        made = quality_flags.derived(table, frame, tables or {}, suite["meta"])
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{table}: columns don't have the types of the benchmark ({detail}); build it again: sdgbias build") from None
    skipped = tuple(r for r, e in rules.items() if made.get(e["kwargs"].get("column"), ()) is None)
    judged = frame[sorted(needed)].copy()
    for name in dict.fromkeys(str(e["kwargs"]["column"]) for r, e in rules.items() if "column" in e["kwargs"] and r not in skipped):
        if name not in made and name not in frame:
            raise InputError(f"expectations/{table}.json: {one_of('column', name, [*frame.columns, *made])}")
        judged[name] = made[name] if name in made else _no_gaps(frame[name])
    return _verdict(table, frame, suite, _run(table, judged, {r: e for r, e in rules.items() if r not in skipped}), skipped)


def _needed_columns(suite: Mapping[str, Any]) -> set[str]:
    """The columns that a suite's whole-table rules ask for."""
    return {str(c) for e in suite["expectations"] for c in e["kwargs"].get("column_set", ())}


def _no_gaps(values: pd.Series) -> pd.Series:
    """Missing text as '', because Great Expectations passes over missing values; missing numbers stay missing."""
    return values if pd.api.types.is_numeric_dtype(values) else values.fillna("")


def _verdict(table: str, frame: pd.DataFrame, suite: Mapping[str, Any], broken: Mapping[str, Any], skipped: tuple[str, ...]) -> Verdict:
    """Assemble the verdict from rule -> array of broken row numbers, or a text for a rule about the whole table."""
    keys = [k for k in suite["meta"]["key"] if k in frame]
    rows_ok = np.ones(len(frame), dtype=bool)
    findings, lines = [], []
    for expectation in suite["expectations"]:
        rule, severity, message = (str(expectation["meta"][k]) for k in ("rule", "severity", "message"))
        found = broken.get(rule, ())
        if isinstance(found, str):
            findings.append(Finding(rule, severity, 1, (), f"{message} ({found})" if found else message))
        elif len(found):
            shown = found if severity == "quarantine" else found[:5]
            named = ["/".join(map(str, row)) for row in frame[keys].iloc[shown].itertuples(index=False, name=None)]
            findings.append(Finding(rule, severity, len(found), tuple(named[:5]), message))
            if severity == "quarantine":
                rows_ok[found] = False
                lines += [(table, key, rule, message) for key in named]
    counts = {rule: (1 if isinstance(b, str) and b else len(b)) for rule, b in broken.items()}
    quarantine = pd.DataFrame(sorted(lines), columns=["table", "key", "rule", "detail"], dtype="str")
    return Verdict(table, len(frame), rows_ok, quarantine, tuple(findings), counts, skipped)


# -------------------------------------------------------------------------------------- Great Expectations


@cache
def _gx() -> tuple[Any, Any]:
    """(great_expectations, an ephemeral context without progress bars, analytics or logging); imported on first use."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when the package is imported
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return gx, context


def _run(table: str, frame: pd.DataFrame, rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Rule -> sorted array of broken row numbers ((0,) when kept), or a text when a whole-table rule is broken."""
    if not rules:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gx, context = _gx()
        try:
            suite = gx.ExpectationSuite(name=table, expectations=[dict(e) for e in rules.values()])
        except Exception as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"expectations/{table}.json: {why}; valid: expectation types of Great Expectations") from None
        if len(suite.expectations) != len(rules):  # an unknown type can vanish from a suite without a word
            raise InputError(f"expectations/{table}.json: {len(rules)} rules written, {len(suite.expectations)} loaded")
        source = context.data_sources.add_or_update_pandas(table)
        batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe(table)
        batch = batch.get_batch(batch_parameters={"dataframe": frame})
        # without index columns GE lists the frame's own index, here row numbers: much faster than a key column
        detail = {"result_format": "COMPLETE", "return_unexpected_index_query": False}
        outcome = batch.validate(suite, result_format=detail)
    results = {str(r.expectation_config.meta["rule"]): r for r in outcome.results}
    if set(results) != set(rules):
        missing = sorted(set(rules) - set(results))
        raise InputError(f"expectations/{table}.json: rule {missing[0]} wasn't judged; check its type and arguments")
    return {rule: _broken(table, rule, results[rule]) for rule in rules}


def _broken(table: str, rule: str, outcome: Any) -> np.ndarray | str:
    rows = outcome.result.get("unexpected_index_list")
    if outcome.success or outcome.result.get("observed_value", 0) is None:  # a statistic of no rows
        return np.array([], dtype=np.int64)
    if rows:
        return np.unique(np.array(rows, dtype=np.int64))
    if "observed_value" in outcome.result:
        missing = outcome.result.get("details", {}).get("mismatched", {}).get("missing")
        return f"missing: {', '.join(missing)}" if missing else f"observed {outcome.result['observed_value']}"
    failed = next((v for v in _exceptions(outcome.exception_info)), "no reason given")
    raise InputError(f"{table}: rule {rule} can't be judged: {failed.splitlines()[0]}; build it again: sdgbias build")


def _exceptions(info: Any) -> list[str]:
    """Exception messages in GE's two shapes: one flat dict, or one dict per metric."""
    blocks = [info] if "raised_exception" in info else list(info.values())
    return [str(b["exception_message"]) for b in blocks if b.get("raised_exception")]


# ---------------------------------------------------------------------------------------------- the gate


def run_gate(benchmark: Path, suites: Path | None = None, strict: bool = True) -> Report:
    """Judge the tables of a benchmark folder, write ``quality.json`` into it, and return the report.

    GateError names table, rule and count when a gate rule is broken. A finished benchmark must not hold rows that
    belong in quarantine either: with ``strict`` (default) they raise too, without they are only counted. quality.json
    is written in both cases. InputError when a table is missing or can't be read.
    """
    benchmark = Path(benchmark)
    suites = suites or find_suites()
    tables = {name: _read(benchmark, name) for name in TABLES}
    # a table without its columns is told of, but nothing can be compared with it
    whole = {name: frame for name, frame in tables.items() if _needed_columns(load_suite(name, suites)) <= set(frame)}
    verdicts = {name: check(name, tables[name], suites, whole) for name in TABLES}
    stops = ("gate", "quarantine") if strict else ("gate",)
    faults = [_line(f"{name}.parquet", f) for name, v in verdicts.items() for s in stops for f in v.of(s)]
    report = Report(verdicts, benchmark / "quality.json")
    _write(report, passed=not faults)
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise GateError(f"{benchmark}: {'; '.join(faults[:5])}{more}; see {report.path}, mend the source, then: sdgbias build")
    return report


def _line(where: str, finding: Finding) -> str:
    rows = f" (e.g. {', '.join(finding.examples[:3])})" if finding.examples else ""
    belong = ", rows that belong in quarantine" if finding.severity == "quarantine" else ""
    return f"{where}: rule {finding.rule} broken {finding.count} time(s){rows}{belong}: {finding.message}"


def _read(benchmark: Path, name: str) -> pd.DataFrame:
    """One table; of images only what the rules need, so that the composites never lie in memory all at once."""
    path = benchmark / f"{name}.parquet"
    if not path.is_file():
        raise InputError(f"{path}: no such table; make it: sdgbias build --out {benchmark}")
    try:
        if name != "images":
            return pd.read_parquet(path)
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if "png" not in names or "image_id" not in names:
                return pd.DataFrame(file.read([n for n in names if n != "png"]).to_pandas())
            parts = []
            for batch in file.iter_batches(batch_size=_PNG_BATCH):
                part = batch.drop_columns(["png"]).to_pandas()
                png, ids = batch.column("png").to_pylist(), part["image_id"].tolist()
                part["id_is_sha256"], part["is_composite"] = quality_flags.image_facts(ids, png)
                parts.append(part.assign(png=True))
            empty = file.schema_arrow.empty_table().to_pandas()
            return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(empty)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise InputError(f"{path}: can't be read ({type(error).__name__}); make it again: sdgbias build --out {benchmark}") from None


def _write(report: Report, passed: bool) -> None:
    tables = {
        name: {
            "rows": v.rows,
            "rows_to_quarantine": int((~v.rows_ok).sum()),
            "rules": v.counts,
            "skipped": list(v.skipped),
            "broken": [
                {
                    "rule": f.rule,
                    "severity": f.severity,
                    "count": f.count,
                    "examples": list(f.examples),
                    "message": f.message,
                }
                for f in v.findings
            ],
        }
        for name, v in report.verdicts.items()
    }
    text = json.dumps({"passed": passed, "tables": tables}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    part = report.path.with_name(f".{report.path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(report.path)
    except OSError as error:
        raise StoreError(f"{report.path}: can't be written ({error.strerror}); give a writable benchmark folder") from None
