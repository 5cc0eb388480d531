"""The report's data, read from the results file: the newest finished run of each model, its
benchmark and all dependent rows.

Also the rows behind the further pages: every study of the newest run of each model, with the names
used in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.methods import stats
from sdgbias.suites.rows import HEADLINE
from sdgbias.types import PILLARS
from sdgbias.vocabulary import METHODS

DIRECTIONS = ("pessimistic", "conservative", "optimistic")
TESTS = ("T1", "T2", "T3", "T4", "T5", "all")
_CELL = ["model", "task", "test", "method", "pillar", "indicator", "metric"]


#: Directions of the right answers: options ascend, so that of an indicator that is better when
#: higher the last one is the optimistic answer.
_GOLD = """
    WITH asked AS (
        SELECT benchmark_id, pillar, CASE WHEN gold = 'B' THEN 'conservative'
        WHEN (gold = 'C') = (polarity = 'higher') THEN 'optimistic' ELSE 'pessimistic'
        END AS direction
        FROM items WHERE benchmark_id IN {benchmarks} AND task = 'mcq' AND split = 'test'
        AND polarity IN ('higher', 'lower') AND json_array_length(options) = 3
    )
    SELECT benchmark_id, coalesce(pillar, 'all') AS pillar, direction, count(*) AS n FROM asked
    GROUP BY GROUPING SETS ((benchmark_id, pillar, direction), (benchmark_id, direction))
    ORDER BY ALL"""


@dataclass(frozen=True)
class ReportData:
    """One row of ``runs`` per model, sorted by name; the other tables cover exactly these runs and
    their benchmarks.

    ``image_use``: model, pillar ('all' or a pillar), value, n, ci_low, ci_high of the accuracy of
    Full minus that of CTX+Q at T1, paired by question, of the study 'directions'.
    ``prompts``: benchmark_id, pillar -> number of distinct Q-only questions (with options) behind
    its test items.
    ``quarantine``: benchmark_id, table, rule, n, key, detail (of the first row by key).
    ``failures``: model, kind, n, message.
    ``gold``: benchmark_id, pillar ('all' or a pillar), direction, n of the right answers to the
    test questions with three options.
    ``worded``: model, pillar, metric, value, n (prompts), ci_low, ci_high, clusters (indicators) of
    the study 'wordings'.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    params: pd.DataFrame
    image_use: pd.DataFrame
    prompts: pd.DataFrame
    indicators: pd.DataFrame
    quarantine: pd.DataFrame
    failures: pd.DataFrame
    gold: pd.DataFrame
    worded: pd.DataFrame

    def wordings(
        self, model: str, pillar: str, prefix: str = "share_"
    ) -> dict[str, stats.Estimate]:
        """Direction -> share of the prompts of a pillar over the wordings of its questions; {} if
        the wordings were not scored or not analysed. Clusters are indicators; with the ``prefix``
        'wordings_share_' the shares hold for other wordings of the same indicators alone, and
        clusters are prompts."""
        rows = self.worded[(self.worded["model"] == model) & (self.worded["pillar"] == pillar)]
        return {
            str(r["metric"]).removeprefix(prefix): stats.Estimate.of_row(r)
            for r in rows.to_dict("records")
            if str(r["metric"]).startswith(prefix)
        }

    def tuning_notes(self, model: str) -> list[str]:
        """Distinct notes on the rows that CADE was tuned on for multiple choice."""
        mine = self.params[(self.params["model"] == model) & (self.params["task"] == "mcq")]
        told = [n for text in mine["note"].fillna("") for n in str(text).split("; ") if n]
        return list(dict.fromkeys(told))

    @property
    def models(self) -> list[str]:
        return list(self.runs["model"])

    def config(self, model: str) -> str:
        """The configuration of a model's run, JSON text."""
        return str(self.runs.loc[self.runs["model"] == model, "config"].iloc[0] or "")

    def cell(self, **where: str) -> stats.Estimate | None:
        """The estimate of one cell of the public ``metrics`` view (pillar and indicator default to
        'all'), None if absent."""
        key = tuple(({"pillar": "all", "indicator": "all"} | where)[name] for name in _CELL)
        if (found := self._cells.get(key)) is None:
            return None
        value, n, low, high, clusters = found
        return stats.Estimate(value, int(n), low, high, int(clusters))

    @cached_property
    def _cells(self) -> dict[tuple[str, ...], tuple[float, ...]]:
        numbers = self.metrics[["value", "n", "ci_low", "ci_high", "clusters"]].astype(float)
        numbers = numbers.fillna({"n": 0, "clusters": 0})
        keys, values = (
            zip(*(frame[name].tolist() for name in frame), strict=True)
            for frame in (self.metrics[_CELL], numbers)
        )
        return dict(zip(keys, values, strict=True))


def load(results: Path, run_ids: list[str] | None = None) -> ReportData:
    """Read the newest finished run of each model, or exactly ``run_ids``. Raises StoreError if
    there is none."""
    chosen = store.latest_runs(results) if run_ids is None else run_ids
    if not chosen:
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
    return read(partial(store.query, results, params={"runs": chosen}, runs=chosen))


def read(ask: Callable[[str], pd.DataFrame]) -> ReportData:
    """The data of the runs that ``ask`` passes to a statement as ``$runs``."""
    mine = "WHERE list_contains($runs, run_id)"
    benchmarks = f"(SELECT DISTINCT benchmark_id FROM runs {mine})"
    return ReportData(
        runs=ask(f"FROM runs {mine} ORDER BY model"),
        metrics=ask(f"FROM {store.NUMBERS} {mine} AND study = 'headline' ORDER BY ALL"),
        params=ask(
            f"SELECT model, p.* FROM cade_params p JOIN runs USING (run_id) {mine} ORDER BY model,"
            " task, test"
        ),
        image_use=ask(
            f"""FROM {store.NUMBERS} {mine} AND study = 'directions' AND test = 'T1' AND
            metric = 'accuracy_gain' AND versus = 'ctx_q' AND indicator = 'all'
            ORDER BY model, pillar"""
        ),
        prompts=ask(
            f"""
            SELECT benchmark_id, pillar, count(DISTINCT (question, options::VARCHAR)) AS n FROM
            items
            WHERE benchmark_id IN {benchmarks} AND task = 'mcq' AND split = 'test' GROUP BY ALL
            ORDER BY ALL"""
        ),
        indicators=ask(f"""
            SELECT DISTINCT ON (task, indicator) task, indicator, indicator_title, unit, pillar
            FROM items
            WHERE benchmark_id IN {benchmarks} ORDER BY task, indicator, item_id"""),
        quarantine=ask(
            f"""
            SELECT benchmark_id, "table", rule, count(*) AS n, min("key") AS "key", arg_min(detail,
            "key") AS detail
            FROM quarantine WHERE benchmark_id IN {benchmarks} GROUP BY ALL ORDER BY n DESC,
            "table", rule"""
        ),
        failures=ask(f"""
            SELECT model, kind, count(*) AS n, arg_min(message, "key") AS message FROM failures
            JOIN runs USING (run_id)
            {mine} GROUP BY ALL ORDER BY model, n DESC, kind"""),
        gold=ask(_GOLD.format(benchmarks=benchmarks)),
        worded=ask(
            f"""SELECT s.* REPLACE (c."value"::BIGINT AS clusters)
            FROM {store.NUMBERS} s JOIN numbers c USING (run_id, study, attribute, "group",
            indicator) {mine} AND study = 'wordings' AND indicator = 'all'
            AND contains(s.metric, 'share_') AND c.metric = if(starts_with(s.metric, 'share_'),
            'distinct_indicators', 'distinct_prompts') ORDER BY ALL"""
        ),
    )


NOT_ANALYSED = "not analysed: sdgbias analyse"
ALL_TESTS, ALL_PILLARS = "all tests", "all pillars"
#: Numbers of some runs about all indicators, sorted by run, test (all first), pillar (all first),
#: then key.
_ROWS = f"""
    SELECT * REPLACE (if(test = 'all', '{ALL_TESTS}', test) AS test,
    if(attribute = 'pillar', "group", '{ALL_PILLARS}') AS pillar)
    FROM {store.NUMBERS} WHERE list_contains($runs, run_id) AND indicator = 'all'
    ORDER BY list_position($runs, run_id), study, task, if(test = '{ALL_TESTS}', '', test),
    coalesce(list_position($pillars, pillar), 99), method, metric, attribute, "group", parameter, x,
    other"""


@dataclass(frozen=True)
class Studies:
    """runs: run_id, model, provenance, benchmark_id, finished_at, label ('x (planted)' for planted
    models); measured models before planted ones.
    rows: their study rows without those of single indicators, in the order of models, tests and
    pillars, with label instead of run_id and 'all' spelled out. metrics: the same for the headline
    metrics."""

    runs: pd.DataFrame
    rows: pd.DataFrame
    metrics: pd.DataFrame

    def of(self, study: str, *metrics: str, **where: str | Sequence[str]) -> pd.DataFrame:
        """Rows of one study (of these metrics), without the rows that record what could not be
        run."""
        frame = self.rows[(self.rows["study"] == study) & (self.rows["metric"] != "not_run")]
        return _where(frame, metrics, where)

    def headline(self, *metrics: str, **where: str | Sequence[str]) -> pd.DataFrame:
        return _where(self.metrics, metrics, where)

    def ordered(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows combined from several tables, sorted by model, test and pillar."""
        models = {m: i for i, m in enumerate(self.runs["label"])}
        order = pd.DataFrame(
            {
                "model": frame["model"].map(models),
                "test": frame["test"].where(frame["test"] != ALL_TESTS, ""),
            }
        )
        order["pillar"] = frame["pillar"].map(
            {ALL_PILLARS: -1, **{p: i for i, p in enumerate(PILLARS)}}
        )
        return frame.loc[
            order.sort_values(["model", "test", "pillar"], kind="stable").index
        ].reset_index(drop=True)

    @property
    def not_run(self) -> pd.DataFrame:
        return self.rows[self.rows["metric"] == "not_run"]

    @property
    def unanalysed(self) -> list[str]:
        """Models that were not analysed."""
        known = {*self.rows["model"], *self.runs.loc[self.runs["analysed"], "label"]}
        return [m for m in self.runs["label"] if m not in known]


def _where(
    frame: pd.DataFrame, metrics: Sequence[str], where: dict[str, str | Sequence[str]]
) -> pd.DataFrame:
    if metrics:
        frame = frame[frame["metric"].isin(metrics)]
    for column, wanted in where.items():
        frame = frame[frame[column].isin([wanted] if isinstance(wanted, str) else list(wanted))]
    return frame


def load_studies(results: Path, run_ids: Sequence[str]) -> Studies:
    """Read the rows of these runs."""

    runs = store.query(
        results,
        """SELECT run_id, model, provenance, benchmark_id, finished_at,
           run_id IN (SELECT run_id FROM analyses) AS analysed,
           CASE WHEN provenance = 'planted' THEN model || ' (planted)' ELSE model END AS label
           FROM runs WHERE list_contains($runs, run_id)
           ORDER BY coalesce(provenance = 'planted', false), model""",
        {"runs": list(run_ids)},
    )
    order = {"runs": list(runs["run_id"]), "pillars": [ALL_PILLARS, *PILLARS]}
    label = dict(zip(runs["run_id"], runs["label"], strict=True))
    rows = store.query(results, _ROWS, order)
    rows = rows.assign(model=rows["run_id"].map(label))
    headline = rows["study"] == HEADLINE
    return Studies(runs, *(rows[of].reset_index(drop=True) for of in (~headline, headline)))


def method_name(name: str) -> str:
    """Display names for the views and CADE; other methods by the name used in commands."""
    return METHODS.get(name, name)
