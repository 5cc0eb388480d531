"""The leaderboard: the newest run of each model for one choice of suite, benchmark, task, metric,
method and test, and its history; and the comparison of models: intervals, significance letters and
the paired difference of every pair.

The comparison covers multiple choice on the test split, from the stored predictions. Two models are
compared on the questions that both answered; models of different benchmarks are never compared.
Planted models form a separate group unless ``rank_planted`` includes them in the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

import numpy as np
import pandas as pd

from sdgbias import store
from sdgbias.methods import stats
from sdgbias.report.reader import Reader, Row, blank
from sdgbias.suites import in_order
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, ContextTest
from sdgbias.vocabulary import METHODS, metric_word
from sdgbias.wording import ALL_TESTS

#: Selects in order: each one narrows the next. The default is the first of these values that
#: exists.
CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("mcq", "direct", "choice", "regression"),
    "metric": ("accuracy", "recall", "interval_accuracy"),
    "method": ("full", "cade", "q_only"),
    "test": ("all", "p1", "T1", "p2"),
    "pillar": ("all", "gender:male-female"),
    "indicator": ("all",),
}
WINDOWS = (30, 90, 365)
Cell = tuple[str, ...]
#: What a model may lack for a number.
NEEDS = (NEEDS_PICTURES, NEEDS_SCORES)


def suites(reader: Reader) -> list[str]:
    """Suites with a finished run, in order of importance."""
    rows = reader.ask("SELECT DISTINCT suite FROM runs WHERE finished_at IS NOT NULL")
    return in_order({r["suite"] for r in rows})


def benchmarks(reader: Reader, suite: str) -> list[Row]:
    """benchmark_id, runs and last time of each benchmark of a suite, most recently used first."""
    return reader.ask(
        """SELECT benchmark_id, count(*) AS n, max(finished_at) AS newest FROM runs WHERE suite = ?
           AND finished_at IS NOT NULL
           GROUP BY benchmark_id ORDER BY newest DESC, benchmark_id""",
        [suite],
    )


def newest_runs(reader: Reader, suite: str, benchmark: str) -> list[Row]:
    """The newest finished run of each model on one benchmark, by name."""
    return reader.ask(
        """SELECT run_id, model, title, provenance, finished_at, fingerprint,
           config->>'$.own.cluster_by' AS cluster_by,
           run_id IN (SELECT run_id FROM numbers WHERE missing_reason = $lacks) AS language
           FROM runs WHERE suite = $suite AND benchmark_id = $benchmark
           AND finished_at IS NOT NULL
           QUALIFY row_number() OVER (PARTITION BY model ORDER BY finished_at DESC, run_id DESC) =
           1 ORDER BY model""",
        {"suite": suite, "benchmark": benchmark, "lacks": NEEDS_PICTURES},
    )


def cells(reader: Reader, run: Row) -> list[Cell]:
    """Every (task, metric, method, test, pillar, indicator) of one run: the options of the
    selects."""
    sql = f"""SELECT {", ".join(CHOICES)} FROM {store.NUMBERS} WHERE run_id = ?
              AND study = 'headline' ORDER BY ALL"""
    rows = reader.ask(sql, [run["run_id"]])
    return list(map(itemgetter(*CHOICES), rows))


def choose(
    candidates: Sequence[Cell],
    wanted: Mapping[str, str],
    choices: Mapping[str, tuple[str, ...]] = CHOICES,
) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """(chosen, options, replaced): a value for every select, the options of each given the selects
    before it, and the names of those whose requested value isn't available under the previous
    choices and was replaced by the default."""
    chosen: dict[str, str] = {}
    options: dict[str, list[str]] = {}
    replaced = []
    for at, (name, defaults) in enumerate(choices.items()):
        options[name] = sorted({c[at] for c in candidates}, key=lambda v: (v != "all", v))
        if name == "indicator" and chosen["metric"] == "disparity":
            defaults = ("all-52", "all")  # the mean over classes, as the study reports it
        default = next(
            (d for d in defaults if d in options[name]), options[name][0] if options[name] else ""
        )
        value = wanted.get(name, "")
        chosen[name] = value if value in options[name] else default
        if value and value != chosen[name]:
            replaced.append(name)
        candidates = [c for c in candidates if c[at] == chosen[name]]
    return chosen, options, replaced


def numbers(reader: Reader, chosen: Mapping[str, str], runs: Iterable[str]) -> pd.DataFrame:
    """run_id, value, n, ci_low, ci_high, missing_reason of one cell, for these runs."""
    of = " AND ".join(f"{name} = ${name}" for name in CHOICES)
    return reader.frame(
        f"""SELECT run_id, "value", n, ci_low, ci_high, missing_reason FROM {store.NUMBERS}
            WHERE {of} AND study = 'headline' AND list_contains($runs::VARCHAR[], run_id)""",
        {name: chosen[name] for name in CHOICES} | {"runs": list(runs)},
    ).astype({"n": "Int64"})


def as_rows(frame: pd.DataFrame) -> list[Row]:
    """The rows as dicts, NULL as None."""
    named = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in named]


def table(runs: list[Row], estimates: pd.DataFrame, metric: str) -> list[Row]:
    """A row per newest run that can have the metric: value, ci_low, ci_high, n and the run's
    columns; best first, planted models last."""
    of_run = {run["run_id"]: run for run in runs}
    joined = pd.DataFrame({"run_id": list(of_run)}, dtype="str").merge(estimates, on="run_id")
    joined = joined[~joined["missing_reason"].isin(NEEDS)]
    rows = [of_run[r["run_id"]] | r for r in as_rows(joined)]
    better = metric_word(metric).better

    def rank(row: Row) -> tuple[bool, float, str]:
        last = math.inf if blank(row) else -better * row["value"]
        return row["provenance"] == "planted", last, row["model"]

    return sorted(rows, key=rank)


def lacking(runs: list[Row], estimates: pd.DataFrame) -> dict[str, list[str]]:
    """Why -> the models without a row in the `table` because they are shown no pictures (language
    models) or give no scores (endpoints that give text only)."""
    why: dict[str, list[str]] = {}
    reasons = dict(zip(estimates["run_id"], estimates["missing_reason"], strict=True))
    for r in runs:
        if (reason := reasons.get(r["run_id"])) in NEEDS:
            why.setdefault(reason, []).append(r["model"])
    return why


def widest(runs: list[Row]) -> Row | None:
    """The run whose cells are offered as choices: the newest, and a language model's only where
    there is no other, since it has two views of four."""
    key = [(not r["language"], r["finished_at"], r["run_id"]) for r in runs]
    return runs[key.index(max(key))] if runs else None


def nights_asked(reader: Reader, suite: str, benchmark: str, window: int) -> pd.DataFrame:
    """A row per model and night of the last ``window`` nights with a run: night, began, model,
    run_id, provenance, fresh, breach, finished_at.

    If no night is recorded (models were evaluated by hand), every run counts as a night.
    """
    if reader.ask("SELECT count(*) AS n FROM nights")[0]["n"]:
        sql = """
            WITH chosen AS (SELECT night, started_at FROM nights ORDER BY started_at DESC NULLS
            LAST, night DESC LIMIT ?)
            SELECT c.night, c.started_at AS began, r.model, r.run_id, r.provenance, nm.outcome =
            'published' AS fresh, r.finished_at, EXISTS (SELECT 1 FROM verdicts v WHERE v.night =
            c.night AND v.model = r.model AND v.suite = r.suite AND v.verdict = 'BREACH') AS breach
            FROM chosen c JOIN night_outcomes nm ON nm.night = c.night JOIN runs r ON r.run_id =
            nm.run_id AND r.suite = nm.suite
            WHERE r.suite = ? AND r.benchmark_id = ? AND r.finished_at IS NOT NULL AND nm.outcome
            IN ('published', 'unchanged')
            ORDER BY began, c.night, r.model"""
        return reader.frame(sql, [window, suite, benchmark])
    sql = """SELECT strftime(finished_at, '%Y-%m-%d %H:%M') AS night, finished_at AS began, model,
             run_id, provenance, true AS fresh, false AS breach, finished_at
             FROM runs WHERE suite = ? AND benchmark_id = ? AND finished_at IS NOT NULL ORDER BY
             finished_at DESC, model LIMIT ?"""
    return reader.frame(sql, [suite, benchmark, window * 20])[::-1]


def history(scored: pd.DataFrame, estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows of `nights_asked` with the numbers of their runs, oldest first."""
    return scored.merge(estimates[~estimates["missing_reason"].isin(NEEDS)], on="run_id")


def nights_of(reader: Reader, window: int) -> dict[str, datetime]:
    """night -> start of the last ``window`` finished nights, oldest first; empty if none is
    recorded."""
    rows = reader.ask(
        """SELECT night, started_at FROM nights WHERE status IS DISTINCT FROM 'running' AND
           started_at IS NOT NULL
           ORDER BY started_at DESC, night DESC LIMIT ?""",
        [window],
    )
    return {r["night"]: r["started_at"] for r in reversed(rows)}


COMPARED = ("full_generated", "full", "cade")
_OF = ("benchmark_id", "kind", "method", "test")
_NUMBERS = ("value", "n", "ci_low", "ci_high")
_PLACES = [*_OF, "model", *_NUMBERS, "letters"]
_PAIRS = [*_OF, "one", "other", *_NUMBERS, "p", "mde"]


@dataclass(frozen=True)
class Board:
    """places: one row per model, method and test with its accuracy and letters; models of one
    benchmark and kind that share a letter can't be distinguished at 5 % (clustered t tests of every
    pair, Holm). pairs: one row per pair with the difference one - other, its Holm-adjusted p and
    the smallest difference that the test detects with 80 % power. kind: 'measured' or 'planted'
    ('all' when mixed). lacking: what (kind of answer), task, why, models of those without a place,
    since they are shown no pictures or give no scores."""

    places: pd.DataFrame
    pairs: pd.DataFrame
    lacking: list[dict[str, str]]


def compare(reader: Reader, runs: pd.DataFrame, *, rank_planted: bool = False) -> Board:
    """Build the leaderboard and all pairs. ``runs``: run_id, label, provenance, benchmark_id."""
    places: list[dict[str, object]] = []
    pairs: list[dict[str, object]] = []
    kind = runs["provenance"].map(lambda p: "planted" if p == "planted" else "measured")
    runs = runs.assign(kind="all" if rank_planted else kind)
    for (benchmark, group), comparable in runs.groupby(["benchmark_id", "kind"], sort=True):
        named = dict(zip(comparable["run_id"], comparable["label"], strict=True))
        complete: set[str] = set()
        for method in reversed(COMPARED):
            by_test = {t.value: _hits(reader, list(named), method, t.value) for t in ContextTest}
            tests = {t: result for t, result in by_test.items() if result is not None}
            complete |= tests.keys()
            if tests and tests.keys() == complete:  # not for answers generated at T1 alone
                tests = {"all": _pooled(list(tests.values())), **tests}
            for test, (hits, place) in tests.items():
                shown = test if test != "all" else ALL_TESTS
                columns = dict(zip(_OF, (benchmark, group, METHODS[method], shown), strict=True))
                one_places, one_pairs = _one(hits, place, list(named.values()))
                places += [{**columns, **r} for r in one_places]
                pairs += [{**columns, **r} for r in one_pairs]
    absent = reader.frame(
        """SELECT DISTINCT run_id, method, missing_reason FROM numbers WHERE task = 'mcq'
           AND list_contains($runs, run_id) AND list_contains($needs, missing_reason)""",
        {"runs": list(runs["run_id"]), "needs": list(NEEDS)},
    )
    models = as_rows(runs[["run_id", "label"]].rename(columns={"label": "model"}))
    without = [
        {"what": METHODS[method], "task": "choice", "why": why, "models": ", ".join(names)}
        for method in METHODS
        if method in COMPARED
        for why, names in sorted(lacking(models, absent[absent["method"] == method]).items())
    ]
    return Board(
        pd.DataFrame(places, columns=_PLACES), pd.DataFrame(pairs, columns=_PAIRS), without
    )


def _pooled(tests: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(R, N) hits and (N,) places over all tests; a run that answers fewer tests is left out."""
    hits = np.concatenate([h for h, _ in tests], axis=1)
    hits[[any(np.isnan(h[run]).all() for h, _ in tests) for run in range(len(hits))]] = np.nan
    return hits, np.concatenate([c for _, c in tests])


def _hits(
    reader: Reader, run_ids: list[str], method: str, test: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """(R, N) 1 right, 0 wrong, NaN not answered, and (N,) places as text; None if no run has
    predictions."""
    sql = """
        SELECT list_position($runs, run_id) - 1 AS who, p.item_id, i.cluster_id AS place, p.correct
        FROM predictions p JOIN runs r USING (run_id)
        JOIN items i ON i.benchmark_id = r.benchmark_id AND i.task = p.task AND i.item_id =
        p.item_id
        WHERE list_contains($runs, run_id) AND p.task = 'mcq' AND p.method = $method AND p.test =
        $test AND p.split = 'test'
          AND p.correct IS NOT NULL ORDER BY p.item_id, who"""
    given = {"runs": run_ids, "method": method, "test": test}
    frame = reader.frame(sql, given, runs=run_ids)
    if frame.empty:
        return None
    code, unique = pd.factorize(frame["item_id"])
    hits = np.full((len(run_ids), len(unique)), np.nan)
    hits[frame["who"].to_numpy(dtype=np.int64), code] = frame["correct"].to_numpy(dtype=float)
    place = frame["place"].to_numpy(dtype=str)
    return hits, place[np.unique(code, return_index=True)[1]]


def smallest_shown(test: stats.PairedTest) -> float:
    """The difference that the test would show; NaN where its places are too few for an interval,
    and so for any difference, or for one that shares can have."""
    return test.mde if test.estimate.low == test.estimate.low and test.mde <= 1 else np.nan


def _one(
    hits: np.ndarray, place: np.ndarray, names: list[str]
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    answered = [i for i in range(len(names)) if not np.isnan(hits[i]).all()]
    hits, names = hits[answered], [names[i] for i in answered]
    code = pd.factorize(place, sort=True)[0].astype(np.int64)
    letters, tests = stats.leaderboard(hits, code)
    letters = letters if len(names) > 1 else [""] * len(names)
    places = [
        {"model": name, "letters": letter} | _columns(stats.share(h, code))
        for name, h, letter in zip(names, hits, letters, strict=True)
    ]
    pairs = [
        {"one": names[i], "other": names[j], "p": test.p, "mde": smallest_shown(test)}
        | _columns(test.estimate)
        for (i, j), test in tests.items()
    ]
    return places, pairs


def _columns(e: stats.Estimate) -> dict[str, object]:
    return dict(zip(_NUMBERS, (e.value, e.n, e.low, e.high), strict=True))
