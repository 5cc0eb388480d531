"""Great Expectations judges a table: a Checkpoint over the flag column of every rule in SQL and
over the table's stock expectations. Its validation results are kept as it writes them, without
times and random ids; nothing is sent."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
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
_EXAMPLES = 5


@cache
def _library() -> tuple[Any, Any, Any]:
    """(Great Expectations without analytics and logging, an ephemeral context without progress
    bars, the batch definition that takes frames). It is imported on first use (6 s), and one data
    source serves all tables: creating one costs more than checking a small table."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when the package is imported
    import great_expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig

    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    context = great_expectations.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("frames")
    return great_expectations, context, asset.add_batch_definition_whole_dataframe("frames")


def validate(
    suite: RuleSet, verdict: TableVerdict, present: Sequence[str], docs: Path | None = None
) -> tuple[TableVerdict, dict[str, Any]]:
    """(the verdict as Great Expectations finds it, its validation results in its own JSON). Rules
    that were skipped aren't judged. ``present``: the columns of the table. ``docs``: a folder
    for Great Expectations' own Data Docs. Raises InputError for a rule that can't be judged."""
    judged = [rule for rule in suite.every if rule.name not in verdict.skipped]
    result = _run(suite.table, _frame(suite, verdict, present), judged, docs)
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


def _frame(suite: RuleSet, verdict: TableVerdict, present: Sequence[str]) -> pd.DataFrame:
    """The columns of stock expectations, a flag column per rule in SQL, and the other columns of
    the table by name only, for the rule about the table's columns."""
    columns = verdict.columns.drop(columns="row_no", errors="ignore")
    blank = np.zeros(verdict.rows, dtype=np.int8)
    others = {name: blank for name in present if name not in columns}
    flags: dict[str, np.ndarray] = {}
    for rule in suite.rules:
        if rule.sql and rule.name in verdict.flags:
            flags[f"ok {rule.name}"] = flag = np.ones(verdict.rows, dtype=bool)
            flag[verdict.flags[rule.name]] = False
    index = pd.RangeIndex(verdict.rows)
    return pd.concat([columns, pd.DataFrame(others | flags, index=index)], axis=1)


def _expectation(rule: QualityRule) -> dict[str, Any]:
    """A stock expectation as written; of a rule in SQL, that its flag column is True."""
    meta = {"rule": rule.name, "severity": rule.severity} | ({"sql": rule.sql} if rule.sql else {})
    return {
        "type": rule.type or "expect_column_values_to_be_in_set",
        "kwargs": dict(rule.arguments)
        if rule.type
        else {"column": f"ok {rule.name}", "value_set": [True]},
        "meta": meta,
        "description": rule.message,
        "severity": _SEVERITIES[rule.severity],
    }


def _run(table: str, frame: pd.DataFrame, rules: Sequence[QualityRule], docs: Path | None) -> Any:
    """The validation results of one table."""
    library, context, frames = _library()
    try:
        suite = library.ExpectationSuite(
            name=table, expectations=[_expectation(rule) for rule in rules]
        )
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"expectations/{table}.json: {why}; valid: expectation types of Great Expectations"
        ) from None
    definition = library.ValidationDefinition(
        name=table, data=frames, suite=context.suites.add_or_update(suite)
    )
    checkpoint = library.Checkpoint(
        name=table,
        validation_definitions=[context.validation_definitions.add_or_update(definition)],
        actions=_actions(context, docs),
        result_format={
            "result_format": "SUMMARY",
            "partial_unexpected_count": _EXAMPLES,
            "return_unexpected_index_query": False,
        },
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = context.checkpoints.add_or_update(checkpoint).run(
            batch_parameters={"dataframe": frame}
        )
    [result] = done.run_results.values()
    return result


def _actions(context: Any, docs: Path | None) -> list[Any]:
    """Great Expectations' own action that renders its Data Docs into a folder."""
    if docs is None:
        return []
    from great_expectations.checkpoint import UpdateDataDocsAction

    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.resolve())}
    if "benchmark" in context.get_site_names():
        context.delete_data_docs_site("benchmark")
    context.add_data_docs_site("benchmark", {"class_name": "SiteBuilder", "store_backend": store})
    return [UpdateDataDocsAction(name="render", site_names=["benchmark"])]


def _count(table: str, rule: QualityRule, outcome: Any) -> int:
    """Rows that break a rule; 1 for a broken rule about the whole table."""
    if outcome.success or outcome.result.get("observed_value", 0) is None:  # a statistic of no rows
        return 0
    if outcome.result.get("unexpected_count"):
        return int(outcome.result["unexpected_count"])
    if "observed_value" in outcome.result:
        return 1
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
