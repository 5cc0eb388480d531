"""One evaluation, in this process, on a few schematic people."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store, suites
from sdgbias.errors import Busy, InfrastructureError, ModelError
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.evaluate import Pool, _nothing_scored, evaluate
from sdgbias.scoring.plan import Part
from sdgbias.scoring.scorer import NOT_FINITE
from tests.builders.planted_people import planted


def test_a_build_during_an_evaluation_is_no_mixture(tmp_path: Path) -> None:
    """Prompts are read before the scoring, questions after it. A folder that was built again in
    between would give the old benchmark's run the new one's answers."""
    folder, results = tmp_path / "b", tmp_path / "r.duckdb"
    spec = planted(folder)

    def build_again(what: str, done: int, total: int) -> None:
        shutil.copy2(folder / "items_people.parquet", folder / "new")
        (folder / "new").replace(folder / "items_people.parquet")

    with pytest.raises(InfrastructureError, match=r"built again while planted .*items_people"):
        evaluate(spec, tmp_path, folder, results, progress=build_again)
    assert store.query(results, "SELECT run_id FROM runs").empty
    again = evaluate(spec, tmp_path, folder, results)
    assert again.published and again.scored == 0, "what was scored is kept"


def test_parts_scored_apart_are_the_run_of_one_process(tmp_path: Path) -> None:
    """In any order, one of them twice, and none of them publishes anything."""
    folder = tmp_path / "b"
    spec = planted(folder)
    one, several = tmp_path / "one" / "r.duckdb", tmp_path / "several" / "r.duckdb"
    whole = evaluate(spec, tmp_path, folder, one)
    assert whole.scored == whole.planned > 3 * 8

    def part(number: int) -> tuple[int, int, int]:
        done = evaluate(spec, tmp_path, folder, several, pool=Pool(part=Part(number, 3)))
        assert not done.published and done.run_id == whole.run_id and not done.failed
        return done.planned, done.scored, done.cached

    parts = [part(number) for number in (2, 3, 1)]
    assert all(planned == scored and not cached for planned, scored, cached in parts)
    assert sum(planned for planned, _, _ in parts) == whole.planned
    assert part(2)[1] == 0 and not store.run_ids(several)
    (kept,) = (several.parent / "scores" / "planted").iterdir()
    with ScoreCache(several.parent, "planted", kept.name, "1-of-3").exclusive():
        with pytest.raises(Busy, match="another evaluation of this model"):
            evaluate(spec, tmp_path, folder, several)
        with pytest.raises(Busy, match="another evaluation of this model"):
            part(1)
        assert part(3)[1] == 0, "the parts don't wait for each other"
    done = evaluate(spec, tmp_path, folder, several)
    assert done.published and (done.scored, done.cached) == (0, whole.planned)
    sql = "SELECT * EXCLUDE (run_id) FROM metrics ORDER BY ALL"
    pd.testing.assert_frame_equal(store.query(one, sql), store.query(several, sql))
    timed = "SELECT view, phase, prompts, cached FROM timings ORDER BY ALL"
    pd.testing.assert_frame_equal(store.query(one, timed), store.query(several, timed))


def test_a_model_whose_scores_all_overflow_is_at_fault_itself(tmp_path: Path) -> None:
    """An error of the machine would be retried."""
    failures = [("key", *NOT_FINITE)]
    fault = _nothing_scored(planted(tmp_path / "b"), tmp_path, suites.SUITES["people"], failures)
    assert isinstance(fault, ModelError) and "too large for float32" in str(fault)
