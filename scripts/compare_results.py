"""Do two results files say the same? Benchmarks, questions, scores and metric rows of each model's
latest run.

    python scripts/compare_results.py BEFORE.duckdb AFTER.duckdb [--tolerance 1e-12]

Use it around a change that must not move a number: run the demo on both sides, then compare.
Prints one line per kind of row (rows on each side, rows that differ) and up to five examples.
Exit code 0 when nothing differs, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from sdgbias import store

#: kind of row -> (SQL over the latest finished run of each model and suite, columns that identify a
#: row)
KINDS = {
    "benchmarks": (
        "SELECT model, suite, benchmark_id FROM latest",
        ["model", "suite"],
    ),
    "questions": (
        "SELECT benchmark_id, task, item_id, question, CAST(options AS VARCHAR) AS options, gold,"
        " gold_value, split, image_id FROM items WHERE benchmark_id IN"
        " (SELECT benchmark_id FROM latest)",
        ["benchmark_id", "task", "item_id"],
    ),
    "scores": (
        'SELECT l.model, l.suite, s.task, s.item_id, s.test, s."view", CAST(s.logits AS VARCHAR)'
        " AS logits, s.top_token FROM scores s JOIN latest l USING (run_id)",
        ["model", "suite", "task", "item_id", "test", "view"],
    ),
    "metric rows": (
        "SELECT l.model, l.suite, m.task, m.test, m.method, m.pillar, m.indicator, m.metric,"
        " m.value, m.n, m.ci_low, m.ci_high FROM metric_rows m JOIN latest l USING (run_id)",
        ["model", "suite", "task", "test", "method", "pillar", "indicator", "metric"],
    ),
}
LATEST = """WITH latest AS (SELECT run_id, model, suite, benchmark_id FROM runs
            WHERE finished_at IS NOT NULL
            QUALIFY row_number() OVER
            (PARTITION BY model, suite ORDER BY finished_at DESC, run_id DESC) = 1) """


def differences(
    before: pd.DataFrame, after: pd.DataFrame, key: list[str], tolerance: float
) -> pd.DataFrame:
    """The rows that stand on one side only or whose values differ by more than ``tolerance``,
    with both values."""
    both = before.merge(
        after, on=key, how="outer", suffixes=("_before", "_after"), indicator="side"
    )
    differs = both["side"] != "both"
    for name in before.columns.difference(key):
        a, b = both[f"{name}_before"], both[f"{name}_after"]
        if pd.api.types.is_float_dtype(a) or pd.api.types.is_float_dtype(b):
            equal = ((a - b).abs() <= tolerance) | (a.isna() & b.isna()) | (a == b)
        else:
            equal = (a == b) | (a.isna() & b.isna())
        differs |= ~equal.fillna(False).astype(bool)
    return both[differs]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--tolerance", type=float, default=1e-12, help="largest difference of two equal numbers"
    )
    given = parser.parse_args()
    changed = False
    for kind, (sql, key) in KINDS.items():
        before, after = (store.query(path, LATEST + sql) for path in (given.before, given.after))
        rows = differences(before, after, key, given.tolerance)
        changed |= not rows.empty
        print(f"{kind:12} {len(before):>9,} before {len(after):>9,} after {len(rows):>9,} differ")
        if not rows.empty:
            print(rows.head(5).to_string(index=False))
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
