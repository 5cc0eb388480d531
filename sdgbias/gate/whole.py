"""Figures of a whole run that no question has: prompts that failed, prompts a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sdgbias.gate.policy import Rule
from sdgbias.stats.intervals import wilson


def whole(rule: Rule, new: Mapping[str, Any], old: Mapping[str, Any] | None, why: str) -> list[dict[str, Any]]:
    """Fields of ``judge.Evidence`` for a rule on failed_share or throughput. new, old: rows of ``runs``."""
    return [_throughput(rule, new, old, why)] if rule.metric == "throughput" else _failed(rule, new)


def _failed(rule: Rule, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Share of planned prompts without a score, each prompt by itself (Wilson)."""
    planned, failed = int(run["n_prompts_planned"] or 0), int(run["n_failed"] or 0)
    made = []
    for level, bound in (("at_least", rule.at_least), ("at_most", rule.at_most)):
        if bound is None:
            continue
        common = {"metric": rule.metric, "level": level, "bound": bound}
        if planned <= 0:
            made.append({**common, "note": "the run names no number of prompts", "missing": True})
            continue
        share = failed / planned
        variance = share * (1 - share) / planned
        low, high = wilson(*(np.array(float(v)) for v in (share, planned, variance, planned)))
        made.append(
            {**common, "value": share, "low": float(low), "high": float(high), "n": planned, "se": variance**0.5, "df": planned - 1}
        )
    return made


def _throughput(rule: Rule, new: Mapping[str, Any], old: Mapping[str, Any] | None, why: str) -> dict[str, Any]:
    """Ratio of prompts scored a second, where both runs scored enough of them on engines of the same kind and number. Not a test."""
    common = {"metric": rule.metric, "bound": float(rule.allowed or 0.0)}
    rate, count, engines = speed(new)
    if old is None:
        return {**common, "value": rate, "n": count, "note": why, "missing": True}
    was, count_was, engines_was = speed(old)
    known = {**common, "before": was, "value": rate, "n": min(count, count_was)}
    if not (rate > 0 and was > 0):
        return {**known, "note": "a run names no seconds of scoring", "missing": True}
    if min(count, count_was) < rule.min_n:
        return {**known, "note": f"a run scored fewer than {rule.min_n:,} prompts itself, the rest came from the cache", "missing": True}
    if (new["backend"], engines) != (old["backend"], engines_was):
        return {**known, "note": f"{new['backend']} x {engines} now, {old['backend']} x {engines_was} before", "missing": True}
    return {**known, "change": rate / was - 1, "note": f"prompts a second, {rate / was:.2f} times as fast; a ratio, not a test"}


def speed(run: Mapping[str, Any]) -> tuple[float, int, int]:
    """(prompts scored a second, prompts scored by this run itself, engines); NaN where the run doesn't say."""
    engine = json.loads(run["config"] or "{}").get("engine") or {}
    seconds, count = float(engine.get("seconds") or 0.0), int(run["n_scored"] or 0)
    return (count / seconds if seconds > 0 else float("nan")), count, int(engine.get("engines", 1) or 1)
