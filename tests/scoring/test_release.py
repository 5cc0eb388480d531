"""The engine is gone before CADE and the metrics are computed."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdgbias import suites
from sdgbias.engines.planted_people import PlantedPeople
from sdgbias.scoring import evaluate as evaluation
from tests.builders.planted_people import planted


def test_nothing_holds_the_engine_while_the_metrics_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = planted(tmp_path / "b")
    engines: list[weakref.ref[PlantedPeople]] = []
    alive: list[bool] = []

    def load(*given: Any) -> PlantedPeople:
        engine = PlantedPeople(*given)
        engine.itself = engine  # type: ignore[attr-defined]  # as a model's modules do
        engines.append(weakref.ref(engine))
        return engine

    suite = suites.of(tmp_path / "b")

    def tables(*given: Any) -> Any:
        alive.append(engines[0]() is not None)
        return suite.tables(*given)

    monkeypatch.setattr(evaluation, "load", load)
    monkeypatch.setattr(suites, "of", lambda _: replace(suite, tables=tables))
    outcome = evaluation.evaluate(spec, tmp_path, tmp_path / "b", tmp_path / "r.duckdb")
    assert outcome.failed == 0 and alive == [False]
