"""An engine whose process ends is started again, and one prompt fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from sdgbias import store, suites
from sdgbias.engines import Restartable
from sdgbias.engines.planted import Planted
from sdgbias.errors import EngineDied, InfrastructureError
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.evaluate import evaluate
from sdgbias.scoring.plan import make_plan
from sdgbias.scoring.session import Outcome
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import Generated, Prompt
from tests.builders.planted_people import planted
from tests.builders.slow_engine import cached


class Mortal(Planted, Restartable):
    """An engine whose process ends when it is asked one of the prompts. The process is the only
    thing that is not real."""

    poison: ClassVar[list[tuple[str, str]]] = []
    asked: ClassVar[list[int]] = []

    def generate(self, prompts: Sequence[Prompt], *more: Any) -> Generated:
        if any((p.image_id, p.text) in self.poison for p in prompts):
            self.asked.append(len(prompts))
            raise EngineDied("planted: the server ended with exit code 41")
        return super().generate(prompts, *more)

    def restart(self) -> None:
        pass

    def kill(self) -> None:
        pass


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Path, Path]:
    """A model, its benchmark and the results of its engine in this process."""
    folder = tmp_path_factory.mktemp("people")
    spec = planted(folder / "b")
    assert evaluate(spec, folder, folder / "b", folder / "r.duckdb").failed == 0
    return spec, folder / "b", folder / "r.duckdb"


@pytest.fixture
def evaluate_with(
    people: tuple[ModelSpec, Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Outcome]:
    """Evaluates the model in batches of 8, whose engine some rows of the plan end."""
    spec, benchmark, _ = people
    plan = make_plan(suites.of(benchmark).cells(benchmark, EvalSettings()), "f").distinct
    monkeypatch.setattr("sdgbias.scoring.evaluate.load", Mortal)

    def evaluated(*rows: int) -> Outcome:
        named = [(str(plan.image_id[row]), str(plan.text[row])) for row in rows]
        monkeypatch.setattr(Mortal, "poison", named)
        monkeypatch.setattr(Mortal, "asked", [])
        eight = replace(spec, batch_size=8)
        return evaluate(eight, tmp_path, benchmark, tmp_path / "r.duckdb")

    return evaluated


def test_prompts_that_end_their_engine_twice_are_failures_and_the_others_are_scored(
    people: tuple[ModelSpec, Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    evaluate_with: Callable[..., Outcome],
) -> None:
    done = evaluate_with(70, 71)
    assert (done.scored, done.failed) == (done.planned - 2, 2)
    assert len(Mortal.asked) == 3 and Mortal.asked[1:] == [1, 1], "with neighbours, then alone"
    failures = store.query(tmp_path / "r.duckdb", "SELECT key, kind, message FROM failures")
    assert failures["kind"].tolist() == ["EngineDied"] * 2
    assert failures["message"].str.contains("twice").all()
    assert capfd.readouterr().err.count("exit code 41") == 3
    whole, torn = (
        cached(path, "planted")["generations"].drop(columns=["seconds", "run"], errors="ignore")
        for path in (people[2], tmp_path / "r.duckdb")
    )
    kept = whole[~whole["key"].isin(failures["key"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(torn, kept)


def test_an_engine_that_keeps_ending_ends_the_run_with_what_is_finished_kept(
    tmp_path: Path, evaluate_with: Callable[..., Outcome]
) -> None:
    with pytest.raises(InfrastructureError, match="ended 5 times, the last one: .* exit code 41"):
        evaluate_with(20, 40, 60)
    assert len(cached(tmp_path / "r.duckdb", "planted")["generations"]) >= 38
