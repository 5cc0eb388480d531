"""The numbers of the tables by study, in one form: those that the results hold, and those that
follow from them (means over the tests, relative changes, letters, sweeps, costs: data/paper.sql).

Columns: run_id, ``KEY`` without study, value, n, ci_low, ci_high, and status: why there is no
value, '' where it isn't known. '' is the study of the headline metrics.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias import store
from sdgbias.analysis.paper.results import KEY, NAMES, PaperResults
from sdgbias.files import packaged_sql
from sdgbias.methods import stats
from sdgbias.types import LETTERS

_SQL = packaged_sql("paper.sql")
_WITH = f"WITH every AS {store.NUMBERS}, " + ", ".join(
    f"{name} AS ({_SQL[name]})" for name in ("stored", "studied", "headline")
)
VALUES = ["value", "n", "ci_low", "ci_high"]


def of_study(e: PaperResults, study: str) -> pd.DataFrame:
    """All numbers of a study of the chosen runs; of those with one key the first counts."""

    def read() -> pd.DataFrame:
        query = _SQL.get(study or "headline", "FROM studied WHERE study = $study")
        frame = _letters(e) if study == "letters" else e.ask(f"{_WITH} FROM ({query})", study=study)
        frame = frame.reindex(columns=["run_id", *NAMES, *VALUES, "status"])
        return frame.fillna({**KEY, "status": ""}).astype(dict.fromkeys(VALUES, float))

    found: pd.DataFrame = e.kept(("numbers", study), read)
    return found


def _letters(e: PaperResults) -> pd.DataFrame:
    """Shares of answers that are A, B or C (metric), by test and pooled, clustered by place."""
    each = ", ".join(f"count_if(pred = '{letter}')::DOUBLE AS {letter}" for letter in LETTERS)
    places = e.ask(
        f"""SELECT run_id, method, coalesce(test, 'all') AS test, coalesce(cluster_id, '') AS place,
            count(*)::DOUBLE AS n, {each}
            FROM answers WHERE list_contains($runs, run_id) AND task = 'mcq' AND split = 'test'
            GROUP BY GROUPING SETS ((run_id, method, test, place), (run_id, method, place))
            ORDER BY ALL"""
    )
    same = ["run_id", "method", "test"]
    group: np.ndarray = places.groupby(same).ngroup().to_numpy()
    groups = places[same].drop_duplicates()
    made = [groups.iloc[:0]]
    for letter in LETTERS:
        sums = stats.ClusterSums(places[letter].to_numpy(), places["n"].to_numpy(), group)
        shares = stats.measure_sums(letter, sums, np.ones(len(groups)), "share", tested=False)
        values = (shares.value, shares.n, shares.low, shares.high)
        named = dict(zip(VALUES, values, strict=True))
        made.append(groups.assign(metric=letter, **named))
    return pd.concat(made, ignore_index=True)
