"""The numbers behind the pages over many nights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.methods import stats
from sdgbias.report import leaderboard
from sdgbias.report.reader import Results
from tests.builders.nights import publish_persons
from tests.builders.results import copied
from tests.builders.web_pages import RUN


@pytest.fixture(scope="module")
def results(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_persons(copied(served, tmp_path_factory.mktemp("persons") / "r.duckdb"))


@pytest.mark.parametrize("run", [RUN, "unfair-0"])
def test_any_cell_has_the_numbers_of_the_store_and_every_cell_is_offered(
    results: Path, run: str
) -> None:
    shown = ["value", "n", "ci_low", "ci_high"]
    sql = f"SELECT {', '.join([*leaderboard.CHOICES, *shown])} FROM metrics WHERE run_id = ?"
    stored = store.query(
        results, f"{sql} ORDER BY indicator IN ('all', 'all-52'), hash(test, metric)", [run]
    )
    with Results(results).reading() as reader:
        record = reader.one("FROM runs WHERE run_id = ?", [run])
        assert record is not None
        cells = leaderboard.cells(reader, record)
        for want in pd.concat([stored.head(5), stored.tail(5)]).to_dict("records"):
            chosen = {name: want[name] for name in leaderboard.CHOICES}
            [found] = leaderboard.as_rows(leaderboard.numbers(reader, chosen, [run]))
            values = [float("nan") if found[n] is None else found[n] for n in shown]
            assert values == pytest.approx([want[n] for n in shown], nan_ok=True), chosen
    wanted = set(stored[list(leaderboard.CHOICES)].itertuples(index=False, name=None))
    assert len(cells) == len(set(cells)) and set(cells) == wanted


def test_planted_models_come_last_however_good() -> None:
    kinds = {"p": "planted", "a": "real", "b": "real", "none": "real"}
    runs = [{"run_id": n, "model": n, "provenance": p} for n, p in kinds.items()]
    found = pd.DataFrame({"run_id": list(kinds), "value": [0.99, 0.4, 0.5, None]})
    found["missing_reason"] = [None, None, None, "not scored"]
    ranked = [r["model"] for r in leaderboard.table(runs, found, "accuracy")]
    assert ranked == ["b", "a", "none", "p"]


@pytest.mark.parametrize(("places", "shows"), [(2, False), (9, True)])
def test_too_few_places_show_no_difference_of_any_size(places: int, shows: bool) -> None:
    changes = [1.0, 0, 0, -1, 1] * places
    test = stats.paired(changes, [i % places for i in range(len(changes))], "difference")
    assert (leaderboard.smallest_shown(test) > 0) == shows
    wide = replace(test, se=0.4)  # 2.8 standard errors are more than 100 points
    assert np.isnan(leaderboard.smallest_shown(wide))
