"""Regression checks of a night: each run is compared, rule by rule, with the last good run of its
model. Verdicts and flips are stored in the results file.

policy          what counts as a breach, read from a file
measured        the metrics of a run per question, and the questions of two runs side by side
baseline        which runs are judged, and the last good run of each
evidence        the evidence for a rule from two runs
judge           the verdict on every rule
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.nights import BREACH, PASS, UNCHANGED, overall
from sdgbias.analysis.run import missing
from sdgbias.files import packaged_sql
from sdgbias.nightly.regression import baseline as runs
from sdgbias.nightly.regression import judge, measured
from sdgbias.nightly.regression.baseline import Target
from sdgbias.nightly.regression.evidence import RuleEvidence, of_rule
from sdgbias.nightly.regression.policy import Policy
from sdgbias.progress import Progress, each, silent
from sdgbias.types import NEEDS_SCORES

#: Methods whose flips are stored: the answer with all evidence, and CADE's; of a model that gives
#: no scores.
FLIPPING, FLIPPING_TEXTS = ["full", "cade"], ["full", "full_generated"]
_FLIP = ["task", "test", "method", "item_id", "gold", "was", "now", "better"]
_NO_FLIPS = pd.DataFrame(columns=_FLIP)


@dataclass(frozen=True)
class Judgement:
    """target; baseline: the run compared with ('' if none); rows of table ``verdicts``; verdict on
    the whole run; stored flips."""

    target: Target
    baseline: str
    rows: list[dict[str, Any]]
    verdict: str
    flips: pd.DataFrame

    @property
    def breached(self) -> bool:
        """In breach and not accepted by a user."""
        return self.verdict == BREACH and not self.target.accepted

    @property
    def about(self) -> dict[str, Any]:
        """What was judged: the first columns of its verdicts and flips."""
        t = self.target
        names = {"night": t.night, "model": t.model, "suite": t.suite, "run_id": t.run_id}
        return {**names, "baseline": self.baseline}

    @property
    def breaches(self) -> list[dict[str, Any]]:
        """The rows in breach, accepted or not."""
        return [row for row in self.rows if row["verdict"] == BREACH]


def judge_runs(
    results: Path,
    targets: Sequence[Target],
    policy: Policy,
    baseline: str = "",
    progress: Progress = silent,
) -> list[Judgement]:
    """Judge the runs and store verdicts and flips. ``baseline``: a run to compare with instead of
    the last good one.

    Multiple testing is corrected over all runs of one model in one night. A run that was already
    judged in an earlier night is not judged again: it gets a single row, which is BREACH while that
    run is in breach and not accepted. Raises StoreError.
    """
    judgements: list[Judgement] = []
    ordered = sorted(targets, key=lambda t: (t.night, t.model, t.suite))
    judging = each(progress, "judging runs", ordered)
    for _, of_model in groupby(judging, key=lambda t: (t.night, t.model)):
        waiting: list[tuple[Target, str, list[RuleEvidence]]] = []
        for t in of_model:
            if t.judged:
                judgements.append(_unchanged(t))
                continue
            with store.held_open(results):  # one run at a time: a writer waits for what is held
                waiting.append((t, *_evidence(results, t, policy, baseline)))
        family = [evidence for _, _, of_run in waiting for evidence in of_run]
        verdicts = iter(judge.apply_multiplicity(family, policy))
        for t, base, of_run in waiting:
            rows, examples = list(islice(verdicts, len(of_run))), _NO_FLIPS
            if base:
                wrong = {str(r["method"]) for r in rows if r["verdict"] == BREACH}
                examples = flips(results, base, t.run_id, t.suite, policy.examples, wrong)
            judgements.append(Judgement(t, base, rows, overall(rows), examples))
    judgements.sort(key=lambda j: (j.target.night, j.target.model, j.target.suite))
    _save(results, judgements)
    return judgements


def _evidence(
    results: Path, t: Target, policy: Policy, baseline: str
) -> tuple[str, list[RuleEvidence]]:
    """(the run compared with, '' if none; the evidence for all rules of the run's suite)."""
    if baseline:
        base, why = runs.named(results, t.run_id, baseline), ""
    else:
        base, why = runs.last_good(results, t.run_id)
    rules = [rule for rule in policy.rules if rule.suite == t.suite]
    methods = {method for rule in rules for method in rule.methods}
    new = measured.load(results, t.run_id, methods)
    old = measured.load(results, base, methods) if base else None
    return base, [e for rule in rules for e in of_rule(rule, new, old, why)]


def flips(
    results: Path, old: str, new: str, suite: str, limit: int, breached: Collection[str] = ()
) -> pd.DataFrame:
    """Questions whose answer changed from right to wrong, or back: at most ``limit`` rows of table
    ``flips`` without night, model, suite and runs. Order: right to wrong first; every question once
    before any question twice; methods in ``breached`` before others; highest confidence first (of
    the Full view, sum of both runs). Deterministic."""
    methods = FLIPPING_TEXTS if NEEDS_SCORES in missing(results, new).values() else FLIPPING
    sql = packaged_sql("nights.sql")["flips"].format(reported=suites.named(suite).reported("p"))
    given = {"new": new, "old": old, "methods": methods, "breached": sorted(breached)}
    return store.query(results, sql, given | {"limit": limit}, runs=[new, old])[_FLIP]


def _unchanged(t: Target) -> Judgement:
    then = "which found a breach that has not been accepted" if t.in_breach else "judged there"
    row = {
        **dict.fromkeys(judge.ABOUT, ""),
        "quarantines": False,
        "required": False,
        "rule": UNCHANGED,
        "verdict": BREACH if t.in_breach else PASS,
        "note": f"the same run as in night {t.judged}, {then}",
        "n": 0,
    }
    return Judgement(t, "", [row], str(row["verdict"]), _NO_FLIPS)


def _save(results: Path, judgements: Sequence[Judgement]) -> None:
    """Write verdicts and flips to the results file, replacing those of the same night, model and
    suite."""
    rows: dict[str, list[Any]] = {
        "verdicts": [j.about | row for j in judgements for row in j.rows],
        "flips": [j.about | row for j in judgements for row in j.flips.to_dict("records")],
    }
    tables = {name: pd.DataFrame(content) for name, content in rows.items() if content}
    if tables:
        store.upsert(results, tables, by=dict.fromkeys(tables, ("night", "model", "suite")))
