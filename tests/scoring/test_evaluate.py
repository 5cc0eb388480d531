"""One evaluation, in this process, on a few schematic people."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from sdgbias import store, suites
from sdgbias.engines.planted import Planted
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.registry import entries
from sdgbias.scoring.evaluate import _nothing_scored, evaluate
from sdgbias.scoring.scorer import NOT_FINITE
from sdgbias.types import Prompt, ScoreBatch
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


def test_a_model_whose_scores_all_overflow_is_at_fault_itself(tmp_path: Path) -> None:
    """An error of the machine would be retried."""
    failures = [("key", *NOT_FINITE)]
    fault = _nothing_scored(planted(tmp_path / "b"), tmp_path, suites.SUITES["people"], failures)
    assert isinstance(fault, ModelError) and "too large for float32" in str(fault)


def test_an_evaluation_that_loses_a_whole_view_is_no_success(
    small_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that lacks a setting failed on every picture, and the run was published."""
    root = entries.find_root()
    spec = entries.load(root, "planted-optimist")
    whole = Planted.candidate_scores

    def only_words(self: Planted, prompts: Sequence[Prompt]) -> ScoreBatch:
        if any(prompt.images for prompt in prompts):
            raise TypeError("unsupported operand type(s) for //: 'int' and 'NoneType'")
        return whole(self, prompts)

    results = tmp_path / "r.duckdb"
    with monkeypatch.context() as patch:
        patch.setattr(Planted, "candidate_scores", only_words)
        with pytest.raises(ModelError, match=r"every prompt of Full \(TypeError: unsupp"):
            evaluate(spec, root, small_benchmark, results)
    assert store.query(results, "SELECT run_id FROM runs").empty
    again = evaluate(spec, root, small_benchmark, results)
    assert again.published and not again.failed and again.cached > 0
