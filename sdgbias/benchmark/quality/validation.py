"""Great Expectations judges a table: a Checkpoint over the flag column of every rule in SQL and
over the table's stock expectations. Its validation results are kept as it writes them, without
times and random ids; nothing is sent."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.quality.evaluate import BrokenRule, TableVerdict
from sdgbias.benchmark.quality.rules import QualityRule, RuleSet
from sdgbias.errors import InputError

#: Fields of a result that differ between two validations of the same table.
_VOLATILE = {
    "batch_markers",
    "checkpoint_id",
    "id",
    "run_id",
    "validation_id",
    "validation_time",
}
#: Our severities in Great Expectations' words.
_SEVERITIES = {"gate": "critical", "quarantine": "warning", "warn": "info"}
#: What its results hold of each rule: counts and five examples. SUMMARY costs half as much again.
_RESULT_FORMAT = {
    "result_format": "BASIC",
    "partial_unexpected_count": 5,
    "return_unexpected_index_query": False,
}
_DOCS = "benchmark"


def open_context(docs: Path | None = None) -> Any:
    """An ephemeral context of Great Expectations with one data source, of frames; it has no
    analytics, logging and progress bars. ``docs``: the folder that `render_docs` writes."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when the package is imported
    gc.disable()  # the import (2 s) makes a million objects that stay: looking through them is 10 %
    try:
        import great_expectations
        from great_expectations.data_context.types.base import ProgressBarsConfig
    finally:
        gc.enable()
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    context = great_expectations.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.data_sources.add_pandas("frames").add_dataframe_asset("frames")
    if docs is not None:
        store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.resolve())}
        context.add_data_docs_site(_DOCS, {"class_name": "SiteBuilder", "store_backend": store})
    return context


def validate(
    context: Any, suite: RuleSet, verdict: TableVerdict, present: Sequence[str]
) -> tuple[TableVerdict, dict[str, Any]]:
    """(the verdict as Great Expectations finds it, its validation results in its own JSON). Rules
    that were skipped aren't judged. ``context``: of `open_context`; it takes each table once.
    ``present``: the columns of the table. Raises InputError for a rule that can't be judged."""
    judged = [rule for rule in suite.every if rule.name not in verdict.skipped]
    result = _run(context, suite.table, _frame(suite, verdict, present), judged)
    by_rule = {str(one.expectation_config.meta["rule"]): one for one in result.results}
    examples = {finding.rule: finding for finding in verdict.findings}
    counts: dict[str, int] = {}
    findings = []
    for rule in judged:
        if rule.name not in by_rule:  # it can drop an expectation silently
            raise InputError(
                f"expectations/{suite.table}.json: rule {rule.name} wasn't judged; check its type"
                " and arguments"
            )
        outcome = by_rule[rule.name]
        counts[rule.name] = count = _count(suite.table, rule, outcome)
        finding = examples.get(rule.name) or BrokenRule(
            rule.name,
            rule.severity,
            count,
            tuple(map(str, outcome.result.get("partial_unexpected_list") or ())),
            rule.message + _observed(outcome.result),
        )
        findings += [replace(finding, count=count)] if count else []
    verdict = replace(verdict, counts=counts, findings=tuple(findings))
    return verdict, _stable(result.to_json_dict())


def render_docs(context: Any) -> None:
    """Great Expectations' own Data Docs of all that was validated."""
    context.build_data_docs(site_names=[_DOCS])


def _frame(suite: RuleSet, verdict: TableVerdict, present: Sequence[str]) -> pd.DataFrame:
    """The columns of stock expectations, a flag column per rule in SQL (1 where a row breaks it),
    and the other columns of the table by name only, for the rule about the table's columns."""
    columns = verdict.columns.drop(columns="row_no", errors="ignore")
    blank = np.zeros(verdict.rows, dtype=np.int8)
    others = {name: blank for name in present if name not in columns}
    flags: dict[str, np.ndarray] = {}
    for rule in suite.rules:
        if rule.sql and rule.name in verdict.flags:
            flags[_flag(rule)] = flag = np.zeros(verdict.rows, dtype=np.int8)
            flag[verdict.flags[rule.name]] = 1
    index = pd.RangeIndex(verdict.rows)
    return pd.concat([columns, pd.DataFrame(others | flags, index=index)], axis=1)


def _flag(rule: QualityRule) -> str:
    return f"breaks {rule.name}"


def _expectation(rule: QualityRule) -> dict[str, Any]:
    """A stock expectation as written; of a rule in SQL, that no row breaks it."""
    meta = {"rule": rule.name, "severity": rule.severity} | ({"sql": rule.sql} if rule.sql else {})
    return {
        "type": rule.type or "expect_column_sum_to_be_between",
        "kwargs": dict(rule.arguments) if rule.type else {"column": _flag(rule), "max_value": 0},
        "meta": meta,
        "description": rule.message,
        "severity": _SEVERITIES[rule.severity],
    }


def _run(context: Any, table: str, frame: pd.DataFrame, rules: Sequence[QualityRule]) -> Any:
    """The validation results of one table."""
    import great_expectations

    try:
        suite = great_expectations.ExpectationSuite(
            name=table, expectations=[_expectation(rule) for rule in rules]
        )
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"expectations/{table}.json: {why}; valid: expectation types of Great Expectations"
        ) from None
    frames = context.data_sources.get("frames").get_asset("frames")
    definition = great_expectations.ValidationDefinition(
        name=table,
        data=frames.add_batch_definition_whole_dataframe(table),
        suite=context.suites.add(suite),
    )
    checkpoint = great_expectations.Checkpoint(
        name=table,
        validation_definitions=[context.validation_definitions.add(definition)],
        result_format=_RESULT_FORMAT,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    [result] = done.run_results.values()
    return result


def _count(table: str, rule: QualityRule, outcome: Any) -> int:
    """Rows that break a rule; 1 for a broken rule about the whole table."""
    if outcome.success or outcome.result.get("observed_value", 0) is None:  # a statistic of no rows
        return 0
    if outcome.result.get("unexpected_count"):
        return int(outcome.result["unexpected_count"])
    if "observed_value" in outcome.result:
        return int(outcome.result["observed_value"]) if rule.sql else 1
    info = outcome.exception_info  # one flat dict, or one dict per metric
    blocks = [info] if "raised_exception" in info else list(info.values())
    failed = [str(b["exception_message"]) for b in blocks if b.get("raised_exception")]
    raise InputError(
        f"{table}: rule {rule.name} can't be judged: {(failed or ['no reason given'])[0]}; build it"
        " again: sdgbias build"
    )


def _observed(result: Mapping[str, Any]) -> str:
    if "observed_value" not in result:
        return ""
    missing = result.get("details", {}).get("mismatched", {}).get("missing")
    if missing:
        return f" (missing: {', '.join(missing)})"
    return f" (observed {result['observed_value']})"


def _stable(value: Any) -> Any:
    """Results without times and random ids: the same table gives the same bytes."""
    if isinstance(value, Mapping):
        return {k: _stable(v) for k, v in value.items() if k not in _VOLATILE}
    return [_stable(one) for one in value] if isinstance(value, list) else value
