"""Models beside each other: the leaderboard with intervals and significance letters, and every pair's paired difference.

Multiple choice, test split, from the stored predictions. Two models are compared on the questions that both answered; models of
different benchmarks never. Planted models stand in a group of their own unless they are asked into the ranking.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import stats, store
from sdgbias.report.data import METHODS
from sdgbias.report.studies import ALL_TESTS
from sdgbias.types import ContextTest

COMPARED = ("full", "cade")
_PLACES = ["benchmark_id", "kind", "method", "test", "model", "value", "n", "ci_low", "ci_high", "letters"]
_PAIRS = ["benchmark_id", "kind", "method", "test", "one", "other", "value", "n", "ci_low", "ci_high", "p", "mde"]


@dataclass(frozen=True)
class Board:
    """places: one row per model, method and test with its accuracy and letters; models of one benchmark and kind that share a letter
    can't be told apart at 5 % (clustered t tests of every pair, Holm). pairs: one row per pair with the difference one - other, its
    Holm-adjusted p and the smallest difference that the test finds with 80 % power. kind: 'measured' or 'planted' ('all' when mixed)."""

    places: pd.DataFrame
    pairs: pd.DataFrame


def compare(results: Path, runs: pd.DataFrame, *, rank_planted: bool = False) -> Board:
    """runs: as in ``Studies``."""
    places: list[dict[str, object]] = []
    pairs: list[dict[str, object]] = []
    kind = np.where((runs["provenance"] == "planted") & (not rank_planted), "planted", "all" if rank_planted else "measured")
    for (benchmark, group), mine in runs.assign(kind=kind).groupby(["benchmark_id", "kind"], sort=True):
        labels = dict(zip(mine["run_id"], mine["label"], strict=True))
        for method in COMPARED:
            asked = {t.value: _hits(results, list(labels), method, t.value) for t in ContextTest}
            tests = {t: found for t, found in asked.items() if found is not None}
            if tests:
                tests = {
                    "all": (np.concatenate([h for h, _ in tests.values()], axis=1), np.concatenate([c for _, c in tests.values()])),
                    **tests,
                }
            for test, (hits, place) in tests.items():
                columns = {
                    "benchmark_id": benchmark,
                    "kind": group,
                    "method": METHODS[method],
                    "test": test if test != "all" else ALL_TESTS,
                }
                one_places, one_pairs = _one(hits, place, list(labels.values()))
                places += [{**columns, **r} for r in one_places]
                pairs += [{**columns, **r} for r in one_pairs]
    return Board(pd.DataFrame(places, columns=_PLACES), pd.DataFrame(pairs, columns=_PAIRS))


def _hits(results: Path, run_ids: list[str], method: str, test: str) -> tuple[np.ndarray, np.ndarray] | None:
    """(R, N) 1 right, 0 wrong, NaN not answered, and (N,) places as text; None where no run has any."""
    sql = """
        SELECT list_position($runs, run_id) - 1 AS who, p.item_id, i.cluster_id AS place, p.correct
        FROM predictions p JOIN runs r USING (run_id)
        JOIN items i ON i.benchmark_id = r.benchmark_id AND i.task = p.task AND i.item_id = p.item_id
        WHERE list_contains($runs, run_id) AND p.task = 'mcq' AND p.method = $method AND p.test = $test AND p.split = 'test'
          AND p.correct IS NOT NULL ORDER BY p.item_id, who"""
    frame = store.query(results, sql, {"runs": run_ids, "method": method, "test": test}, runs=run_ids)
    if frame.empty:
        return None
    code, unique = pd.factorize(frame["item_id"])
    hits = np.full((len(run_ids), len(unique)), np.nan)
    hits[frame["who"].to_numpy(dtype=np.int64), code] = frame["correct"].to_numpy(dtype=float)
    place = frame["place"].to_numpy(dtype=str)
    return hits, place[np.unique(code, return_index=True)[1]]


def _one(hits: np.ndarray, place: np.ndarray, names: list[str]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    answered = [i for i in range(len(names)) if not np.isnan(hits[i]).all()]
    hits, names = hits[answered], [names[i] for i in answered]
    code = pd.factorize(place, sort=True)[0].astype(np.int64)
    letters, p, _ = stats.leaderboard(hits, code)
    places: list[dict[str, object]] = [
        {"model": name, **_columns(stats.share(h, code)), "letters": said if len(names) > 1 else ""}
        for name, h, said in zip(names, hits, letters, strict=True)
    ]
    pairs: list[dict[str, object]] = []
    for i, j in combinations(range(len(names)), 2):
        test = stats.paired(hits[i] - hits[j], code)
        mde = stats.minimum_detectable(test.se, test.df)
        pairs.append({"one": names[i], "other": names[j], **_columns(test.estimate), "p": float(p[i, j]), "mde": mde})
    return places, pairs


def _columns(e: stats.Estimate) -> dict[str, object]:
    return {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}
