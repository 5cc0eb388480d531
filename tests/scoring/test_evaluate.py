"""One evaluation, in this process, on a few schematic people."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sdgbias import store
from sdgbias.benchmark.people import build_people
from sdgbias.errors import InfrastructureError
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.scoring.evaluate import evaluate
from sdgbias.types import ModelSpec


def test_a_build_during_an_evaluation_is_no_mixture(tmp_path: Path) -> None:
    """Prompts are read before the scoring, questions after it. A folder that was built again in
    between would give the old benchmark's run the new one's answers."""
    write_people_sample(tmp_path / "raw", 20, 3)
    folder, results = tmp_path / "b", tmp_path / "r.duckdb"
    build_people(tmp_path / "raw", folder)
    spec = ModelSpec(
        name="planted",
        title="planted",
        backend="planted-people",
        repo="planted:people",
        revision="1",
        state="enabled",
        options={"oracle": str(folder), "recall": 0.7},
    )

    def build_again(what: str, done: int, total: int) -> None:
        shutil.copy2(folder / "items_people.parquet", folder / "new")
        (folder / "new").replace(folder / "items_people.parquet")

    with pytest.raises(InfrastructureError, match=r"built again while planted .*items_people"):
        evaluate(spec, tmp_path, folder, results, progress=build_again)
    assert store.query(results, "SELECT run_id FROM runs").empty
    again = evaluate(spec, tmp_path, folder, results)
    assert again.published and again.scored == 0, "what was scored is kept"
