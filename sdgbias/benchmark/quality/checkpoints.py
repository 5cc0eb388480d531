"""Great Expectations: a table's rules as a suite, run by a Checkpoint whose Action hands over the
broken rows. Nothing is stored between runs and nothing is sent."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pandas as pd

from sdgbias.errors import InputError

#: Rule -> its outcome in the Checkpoint that ran last, put there by the Checkpoint's Action.
_outcomes: dict[str, Any] = {}


@dataclass(frozen=True)
class Gx:
    """Great Expectations: the package, an ephemeral context, the batch definition that takes
    frames, and the Action of every Checkpoint."""

    package: Any
    context: Any
    frames: Any
    hand_over: Any


@cache
def gx() -> Gx:
    """Great Expectations without progress bars, analytics or logging; imported on first use. One
    data source serves all tables: creating one costs more than checking a small table."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when the package is imported
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    import great_expectations as package
    from great_expectations.checkpoint import ValidationAction
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.expectations.core import ExpectColumnValuesToBeInSet

    class ExpectRuleToHold(ExpectColumnValuesToBeInSet):
        """Checks a flag column: True = the row satisfies the rule. Defining the class registers it
        as `expect_rule_to_hold`."""

        value_set: list[Any] = [True]  # noqa: RUF012

    class HandOver(ValidationAction):
        """Keeps each rule's outcome under the rule's name."""

        type: Literal["hand_over"] = "hand_over"

        def run(self, checkpoint_result: Any, action_context: Any = None) -> dict[str, Any]:
            for run in checkpoint_result.run_results.values():
                for outcome in run.results:
                    _outcomes[str(outcome.expectation_config.meta["rule"])] = outcome
            return {}

    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    context = package.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_pandas("frames")
    asset = source.add_dataframe_asset("frames")
    frames = asset.add_batch_definition_whole_dataframe("frames")
    return Gx(package, context, frames, HandOver(name="hand over"))


def run_checkpoint(
    table: str, frame: pd.DataFrame, rules: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray | str]:
    """Rule -> sorted numbers of the broken rows of ``frame`` ((0,) when satisfied), or a text when
    a rule about the whole table is broken. Raises InputError for a rule that can't be judged."""
    checkpoint = _checkpoint(table, json.dumps(rules))
    _outcomes.clear()
    checkpoint.run(batch_parameters={"dataframe": frame})
    if set(_outcomes) != set(rules):
        missing = sorted(set(rules) - set(_outcomes))
        raise InputError(
            f"expectations/{table}.json: rule {missing[0]} wasn't judged; check its type and"
            " arguments"
        )
    found = {rule: _broken(table, rule, outcome) for rule, outcome in _outcomes.items()}
    _outcomes.clear()
    return found


@cache
def _checkpoint(table: str, rules: str) -> Any:
    """The Checkpoint of these rules, written as JSON."""
    great, suite = gx(), expectations(table, json.loads(rules))
    suite.name = f"{table}-{len(great.context.suites.all())}"
    definition = great.package.ValidationDefinition(
        name=suite.name, data=great.frames, suite=great.context.suites.add(suite)
    )
    checkpoint = great.package.Checkpoint(
        name=suite.name,
        validation_definitions=[great.context.validation_definitions.add(definition)],
        actions=[great.hand_over],
        # without index columns GE lists the frame's index, here row numbers: much faster than a
        # key column
        result_format={"result_format": "COMPLETE", "return_unexpected_index_query": False},
    )
    return great.context.checkpoints.add(checkpoint)


def expectations(table: str, rules: Mapping[str, Mapping[str, Any]]) -> Any:
    """A Great Expectations suite with all of these rules; an unknown type raises InputError and is
    never dropped."""
    package = gx().package
    written = [
        {**e, "description": f"{rule} ({e['meta']['severity']}): {e['meta']['message']}"}
        for rule, e in rules.items()
    ]
    try:
        suite = package.ExpectationSuite(name=table, expectations=written)
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"expectations/{table}.json: {why}; valid: expectation types of Great Expectations"
        ) from None
    if len(suite.expectations) != len(
        rules
    ):  # Great Expectations can drop an unknown type silently
        raise InputError(
            f"expectations/{table}.json: {len(rules)} rules written, {len(suite.expectations)}"
            " loaded"
        )
    return suite


def _broken(table: str, rule: str, outcome: Any) -> np.ndarray | str:
    rows = outcome.result.get("unexpected_index_list")
    if outcome.success or outcome.result.get("observed_value", 0) is None:  # a statistic of no rows
        return np.array([], dtype=np.int64)
    if rows:
        return np.unique(np.array(rows, dtype=np.int64))
    if "observed_value" in outcome.result:
        missing = outcome.result.get("details", {}).get("mismatched", {}).get("missing")
        return (
            f"missing: {', '.join(missing)}"
            if missing
            else f"observed {outcome.result['observed_value']}"
        )
    failed = next((v for v in _exceptions(outcome.exception_info)), "no reason given")
    raise InputError(
        f"{table}: rule {rule} can't be judged: {failed.splitlines()[0]}; build it again: sdgbias"
        " build"
    )


def _exceptions(info: Any) -> list[str]:
    """Exception messages in GE's two shapes: one flat dict, or one dict per metric."""
    blocks = [info] if "raised_exception" in info else list(info.values())
    return [str(b["exception_message"]) for b in blocks if b.get("raised_exception")]
