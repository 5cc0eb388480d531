"""The paper's tables of published models: rows of studies that they read, and how a test looks up a
cell."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from sdgbias import store
from sdgbias.analysis import paper as tables
from sdgbias.analysis.paper import results
from sdgbias.analysis.paper.tables import Cell, Table
from sdgbias.analysis.rows import not_run, row, table
from sdgbias.methods.stats import Estimate
from sdgbias.types import PILLARS, SDG
from tests.builders.numbers import group_of

TESTS = ("T1", "T2", "T3", "T4", "T5")


LLAVA, TINY, QWEN = "LLaVA-v1.5-7B (measured)", "tiny-llava (embedded)", "qwen2.5-vl-7b (planted)"


def studied() -> pd.DataFrame:
    """A few rows of each study that a table reads; values are 0.5 plus what the test looks for."""

    def at(value: float) -> Estimate:
        return Estimate(value, 48, value - 0.1, value + 0.1)

    made = [row("methods", "accuracy", at(0.51), test=t, method="post_hoc") for t in ("T1", "all")]
    for test in (*TESTS, "all"):
        made.append(row("methods", "accuracy", at(0.34), test=test, method="always_b"))
    made.append(not_run("methods", "no val rows to tune on", method="bcl"))
    made.append(row("methods", "mae", at(8.5), task="regression", test="T2", method="vdd"))
    for i, step in enumerate(("+alpha", "+lambda", "+beta", "+tau")):
        columns = {"test": "T1", "method": step, "parameter": "retuned"}
        made.append(row("ablation", "accuracy", at(0.55 + i / 100), **columns))
        made.append(row("ablation", "gain", at(0.01), **columns))
    for i, test in enumerate(TESTS):
        columns = {"test": test, "method": "img", "parameter": "js"}
        made.append(row("streams", "accuracy", at(0.58 + i / 100), **columns))
    columns = {"test": "T1", "method": "q_only", "parameter": "reversed"}
    made.append(row("perturbation", "share_optimistic", at(0.61), **columns))
    gap = {"method": "full", "versus": "ctx_q"}
    for pillar in ("all", *PILLARS):
        columns = {"test": "T1", **gap, **group_of(pillar)._asdict()}
        made.append(row("directions", "accuracy_gain", at(0.02), **columns))
    columns = {"test": "T2", **gap, **group_of(PILLARS[0])._asdict(), "indicator": "stunting"}
    made.append(row("directions", "accuracy_gain", at(0.03), **columns))
    columns = {"test": "T2", "method": "cade", "indicator": "under5_mort"}
    made.append(row("regression", "mae", at(12.5), task="regression", **columns))
    made += [row("regression", "mae_macro", at(3.25), task="regression", test="T5", method="full")]
    for split, values in (("val", (0.50, 0.62, 0.62)), ("test", (0.45, 0.57, 0.60))):
        for x, value in zip((0.5, 1.0, 1.5), values, strict=True):
            columns = {"test": "T1", "method": split, "parameter": "alpha"}
            made.append(row("sweep", "accuracy", at(value), x=x, **columns))
    made += [row("sweep", "optimum", 0.82, test="T1", parameter="alpha")]
    made += [row("paired", "accuracy_gain", at(0.04), test="all", method="cade", p=0.03)]
    return table(made)


@cache
def _loaded(path: Path, suite: str) -> results.PaperResults:
    return results.load(path, suite=suite)


@cache
def build(path: Path, item: str, suite: str = SDG) -> Table:
    """One table of the results, which nobody may change any more."""
    with store.held_open(path):
        [found] = [t for t in tables.build(_loaded(path, suite), [item]) if t.item == item]
    return found


def everything(path: Path, suite: str = SDG) -> dict[str, Table]:
    with store.held_open(path):
        return {item: build(path, item, suite) for item in tables.items(suite)}


def cell(t: Table, column: str, *labels: str) -> Cell:
    [found] = [r for r in t.rows if r.labels == labels]
    return found.cells[[c.name for c in t.columns].index(column)]


def stored(
    path: Path, model: str, metric: str, method: str, test: str, task: str = "mcq"
) -> pd.Series:
    sql = """SELECT value, n, ci_low, ci_high FROM metrics WHERE model = ? AND metric = ? AND
             method = ? AND test = ? AND task = ?
             AND pillar = 'all' AND indicator = 'all'"""
    found = store.query(path, sql, [model, metric, method, test, task])
    assert len(found) == 1
    return found.iloc[0]
