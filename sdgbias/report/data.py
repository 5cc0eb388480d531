"""What the report shows, read from the results file: the newest finished run of each model and everything that hangs from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias import stats, store
from sdgbias.errors import StoreError
from sdgbias.types import PILLARS

METHODS = {"q_only": "Q-only", "ctx_q": "CTX+Q", "img_q": "IMG+Q", "full": "Full", "cade": "CADE"}
DIRECTIONS = ("pessimistic", "conservative", "optimistic")
TESTS = ("T1", "T2", "T3", "T4", "T5", "all")
_CELL = ["model", "task", "test", "method", "pillar", "indicator", "metric"]


#: Acc(Full) - Acc(CTX+Q) at T1 on the same questions, summed up by place in the database: millions of rows stay there.
_IMAGE_USE = """
    WITH pairs AS (
        SELECT run_id, item_id, sum(CASE WHEN method = 'full' THEN correct::INT ELSE -correct::INT END) AS d
        FROM predictions WHERE run_id IN (SELECT unnest($runs)) AND task = 'mcq' AND test = 'T1' AND split = 'test'
        AND method IN ('full', 'ctx_q') GROUP BY run_id, item_id HAVING count(*) = 2
    ), places AS (
        SELECT model, i.pillar, i.cluster_id, sum(d) AS s, count(*) AS m
        FROM pairs JOIN runs r USING (run_id) JOIN items i ON i.benchmark_id = r.benchmark_id AND i.task = 'mcq' AND i.item_id = pairs.item_id
        GROUP BY model, i.pillar, i.cluster_id
    ), pools AS (
        FROM places UNION ALL SELECT model, 'all', cluster_id, sum(s), sum(m) FROM places GROUP BY model, cluster_id
    )
    SELECT model, pillar, sum(m)::DOUBLE AS n, sum(s)::DOUBLE AS total, count(*) AS places, sum(s * s)::DOUBLE AS ss,
    sum(s * m)::DOUBLE AS sm, sum(m * m)::DOUBLE AS mm FROM pools GROUP BY ALL ORDER BY ALL"""


@dataclass(frozen=True)
class ReportData:
    """One row of ``runs`` per model, sorted by name; the other tables cover exactly these runs and their benchmarks.

    ``image_use``: model, pillar ('all' or a pillar), value, n, low, high of Acc(Full) - Acc(CTX+Q) at T1, paired by item.
    ``prompts``: benchmark_id, pillar -> number of distinct Q-only questions (with options) behind its test items.
    ``quarantine``: benchmark_id, table, rule, n, key, detail (of the first row by key). ``failures``: model, kind, n, message.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    params: pd.DataFrame
    image_use: pd.DataFrame
    prompts: pd.DataFrame
    indicators: pd.DataFrame
    quarantine: pd.DataFrame
    failures: pd.DataFrame

    @property
    def models(self) -> list[str]:
        return list(self.runs["model"])

    def cell(self, **where: str) -> stats.Estimate | None:
        """The estimate of one cell of the public ``metrics`` view (pillar and indicator default to 'all'), None if absent."""
        key = tuple(({"pillar": "all", "indicator": "all"} | where)[name] for name in _CELL)
        return self._cells.get(key)

    @property
    def _cells(self) -> dict[tuple[str, ...], stats.Estimate]:
        if not hasattr(self, "_index"):
            numbers = self.metrics[["value", "n", "ci_low", "ci_high"]].astype({"n": "Int64"}).fillna({"n": 0})
            keys = self.metrics[_CELL].itertuples(index=False, name=None)
            index = {k: stats.Estimate(float(v), int(n), float(a), float(b))
                     for k, (v, n, a, b) in zip(keys, numbers.itertuples(index=False, name=None), strict=True)}  # fmt: skip
            object.__setattr__(self, "_index", index)
        found: dict[tuple[str, ...], stats.Estimate] = self.__dict__["_index"]
        return found


def load(results: Path, run_ids: list[str] | None = None) -> ReportData:
    """Reads the newest finished run of each model, or exactly ``run_ids``. Raises StoreError when there is none."""
    chosen = store.latest_runs(results) if run_ids is None else run_ids
    if not chosen:
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate --model NAME` first")

    def ask(sql: str) -> pd.DataFrame:
        return store.query(results, sql, {"runs": chosen}, runs=chosen)

    mine = "WHERE list_contains($runs, run_id)"
    benchmarks = f"(SELECT DISTINCT benchmark_id FROM runs {mine})"
    return ReportData(
        runs=ask(f"FROM runs {mine} ORDER BY model"),
        metrics=ask(f"FROM metrics {mine} ORDER BY ALL"),
        params=ask(f"SELECT model, p.* FROM cade_params p JOIN runs USING (run_id) {mine} ORDER BY model, task, test"),
        image_use=_image_use(ask(_IMAGE_USE)),
        prompts=ask(f"""
            SELECT benchmark_id, pillar, count(DISTINCT (question, options::VARCHAR)) AS n FROM items
            WHERE benchmark_id IN {benchmarks} AND task = 'mcq' AND split = 'test' GROUP BY ALL ORDER BY ALL"""),
        indicators=ask(f"""
            SELECT DISTINCT ON (task, indicator) task, indicator, indicator_title, unit, pillar FROM items
            WHERE benchmark_id IN {benchmarks} ORDER BY task, indicator, item_id"""),
        quarantine=ask(f"""
            SELECT benchmark_id, "table", rule, count(*) AS n, min("key") AS "key", arg_min(detail, "key") AS detail
            FROM quarantine WHERE benchmark_id IN {benchmarks} GROUP BY ALL ORDER BY n DESC, "table", rule"""),
        failures=ask(f"""
            SELECT model, kind, count(*) AS n, arg_min(message, "key") AS message FROM failures JOIN runs USING (run_id)
            {mine} GROUP BY ALL ORDER BY model, n DESC, kind"""),
    )  # fmt: skip


def _image_use(sums: pd.DataFrame) -> pd.DataFrame:
    """Mean difference with its cluster-robust interval (as stats.mean of the rows), per model x (all, each pillar)."""
    rows = []
    for r in sums.to_dict("records"):
        value, places = r["total"] / r["n"], int(r["places"])
        spread = r["ss"] - 2 * value * r["sm"] + value**2 * r["mm"]  # of the places' sums around their expectation
        variance = places / (places - 1) * max(spread, 0.0) / r["n"] ** 2 if places > 1 else float("nan")
        e = stats.t_estimate(float(value), int(r["n"]), float(variance), places)
        rows.append((r["model"], r["pillar"], e.value, e.n, e.low, e.high))
    order = {name: at for at, name in enumerate(("all", *PILLARS))}
    rows.sort(key=lambda row: (row[0], order.get(row[1], len(order))))
    return pd.DataFrame(rows, columns=["model", "pillar", "value", "n", "low", "high"])
