"""Compares two runs on the same questions: differences with their intervals, the minimum detectable
effect, and the answers that changed.

Sums by place are computed in the database, so that millions of answers stay there; their statistics
are those of `stats.measure_sums`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sdgbias import suites
from sdgbias.methods import stats
from sdgbias.report.leaderboard import smallest_shown
from sdgbias.report.pages.questions import SAID
from sdgbias.report.reader import Reader, Row, paged
from sdgbias.vocabulary import METHODS

PAGE = 50
#: The answers a and b of two runs to a question q that they were asked word for word alike; of
#: people those about the class that a person has.
_PAIRS = """(SELECT * FROM predictions WHERE run_id = $a) a
    JOIN (SELECT * FROM predictions WHERE run_id = $b) b USING (task, item_id, test, method)
    JOIN (FROM questions WHERE benchmark_id = $old AND NOT negative{alike}) q USING (task, item_id)
"""
_ALIKE = """ AND (task, item_id, content_key) IN
    (SELECT (task, item_id, content_key) FROM questions WHERE benchmark_id = $new)"""


def pairable(old: Row, new: Row) -> str:
    """The reason why two runs can't be compared question by question; '' if they can."""
    if old["run_id"] == new["run_id"]:
        return "The same run was chosen twice. Choose another run on one side."
    if old["suite"] != new["suite"]:
        return (
            f"One run is of suite {old['suite']}, the other of suite {new['suite']}: their"
            " questions differ."
        )
    apart = suites.named(old["suite"]).per_benchmark
    if apart and old["benchmark_id"] != new["benchmark_id"]:
        return f"The two runs were made on different benchmarks of {old['suite']}."
    return ""


def differences(reader: Reader, old: Row, new: Row) -> list[dict[str, Any]]:
    """Rows task, test (or 'all'), method, before, after, difference (new minus old, value with n,
    ci_low, ci_high), p, p_adjusted (Holm over the rows), mde, better, worse.

    Shares of correct answers on the test split (second suite: over all people); estimates count as
    correct within their tolerance.
    """
    suite = suites.named(old["suite"])
    sql = f"""
        WITH pairs AS (
            SELECT task, test, method, unit_of(method, test, prompt_key, cluster_id) AS place,
            a.correct::INT AS was, b.correct::INT AS now
            FROM {_pairs(old, new)} WHERE true{suite.reported("a", "b")}
        ),
        places AS (
            SELECT task, test, method, place, sum(now - was) AS s, count(*) AS m, sum(was) AS was,
            sum(now) AS now,
                   count(*) FILTER (now > was) AS better, count(*) FILTER (now < was) AS worse FROM
                   pairs GROUP BY ALL
        ),
        pools AS (
            FROM places UNION ALL SELECT task, 'all', method, place, sum(s), sum(m), sum(was),
            sum(now), sum(better), sum(worse)
            FROM places GROUP BY task, method, place
        ),
        alike AS (
            SELECT task, test, method, s::DOUBLE AS s, m::DOUBLE AS m, count(*) AS places,
            sum(was) AS was, sum(now) AS now, sum(better) AS better, sum(worse) AS worse
            FROM pools GROUP BY task, test, method, s, m
        )
        SELECT task, test, method, list(s ORDER BY s, m) AS s, list(m ORDER BY s, m) AS m,
               list(places ORDER BY s, m) AS places, sum(was)::DOUBLE AS was,
               sum(now)::DOUBLE AS now, sum(better)::BIGINT AS better, sum(worse)::BIGINT AS worse
        FROM alike GROUP BY task, test, method"""
    order = list(METHODS)
    rows = sorted(
        reader.ask(sql, _named(old, new), runs=_both(old, new)),
        key=lambda r: (
            r["task"],
            r["test"] == "all",
            r["test"],
            order.index(r["method"]) if r["method"] in order else 99,
        ),
    )
    return _differences(rows)


def _differences(rows: list[Row]) -> list[dict[str, Any]]:
    """Computed from the sums per place: s and m, and the number of places with that sum and number
    of answers. The rows are one family of tests."""
    if not rows:
        return []
    places = [r["places"] for r in rows]
    sums, answers = (
        np.concatenate([np.repeat(r[name], k) for r, k in zip(rows, places, strict=True)])
        for name in ("s", "m")
    )
    cell = np.repeat(np.arange(len(rows)), list(map(sum, places)))
    n = np.bincount(cell, weights=answers)
    changed = np.array([r["better"] + r["worse"] for r in rows]) / n
    [tests] = stats.adjusted(
        [stats.measure_sums("accuracy", stats.ClusterSums(sums, answers, cell), changed)]
    )
    names = ("task", "test", "method", "better", "worse")
    comparisons = []
    for at, r in enumerate(rows):
        test = tests.test(at)
        e = test.estimate
        numbers = {
            **{"before": r["was"] / n[at], "after": r["now"] / n[at], "value": e.value, "n": e.n},
            **{"ci_low": e.low, "ci_high": e.high},
            **{"p": test.p, "p_adjusted": float(tests.p_adjusted[at]), "mde": smallest_shown(test)},
        }
        comparisons.append({name: r[name] for name in names} | numbers)
    return comparisons


def flips(
    reader: Reader, old: Row, new: Row, cell: tuple[str, str, str], page: int
) -> dict[str, Any]:
    """Test questions that the two runs answered differently in one cell (task, test, method):
    item_id, what, gold, was, now, better."""
    suite = suites.named(old["suite"])
    sql = f"""
        SELECT item_id, about AS what, gold, {SAID.format("a")} AS was,
               {SAID.format("b")} AS now, a.correct AS was_right, b.correct AS now_right,
               count(*) OVER () AS total
        FROM {_pairs(old, new)}
        WHERE task = $task AND test = $test AND method = $method
              AND {SAID.format("a")} IS DISTINCT FROM {SAID.format("b")}{suite.reported("a")}
        ORDER BY was_right = now_right, now_right, item_id LIMIT {PAGE} OFFSET $skip"""
    task, test, method = cell
    more = {"task": task, "test": test, "method": method, "skip": (page - 1) * PAGE}
    rows = reader.ask(sql, _named(old, new) | more, runs=_both(old, new))
    total = rows[0]["total"] if rows else 0
    return paged(rows, total, page, PAGE)


def _both(old: Row, new: Row) -> tuple[str, str]:
    return old["run_id"], new["run_id"]


def _pairs(old: Row, new: Row) -> str:
    one = old["benchmark_id"] == new["benchmark_id"]
    return _PAIRS.format(alike="" if one else _ALIKE)


def _named(old: Row, new: Row) -> dict[str, Any]:
    named = {"a": old["run_id"], "b": new["run_id"], "old": old["benchmark_id"]}
    one = old["benchmark_id"] == new["benchmark_id"]
    return named if one else named | {"new": new["benchmark_id"]}
