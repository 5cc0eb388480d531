"""The suites as values: which there are, whose a benchmark is, and what a run's id hangs on."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from sdgbias import store, suites
from sdgbias.errors import InputError
from sdgbias.methods.labels import LetterGrams
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.run_id import run_id
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import SUITES
from tests.builders.results import empty

SPEC = ModelSpec(
    name="m", title="M", backend="planted", repo="planted:x", revision="1", state="enabled"
)


def folder(path: Path, **card: object) -> Path:
    (path / "benchmark.json").write_text(json.dumps(card), encoding="utf-8")
    return path


def test_a_benchmarks_card_names_its_suite(tmp_path: Path) -> None:
    assert suites.of(folder(tmp_path, benchmark_id="x", suite="people")).name == "people"
    assert suites.of(folder(tmp_path, benchmark_id="x")).name == "sdg"  # made before there were two
    with pytest.raises(InputError, match="unknown suite 'dots'"):
        suites.of(folder(tmp_path, benchmark_id="x", suite="dots"))


def test_stored_runs_of_an_unknown_suite_are_read_as_multiple_choice() -> None:
    dots = suites.named("dots")
    assert (dots.name, dots.title, dots.items_table) == ("dots", "dots", "items")
    assert dots.docs_folder == "benchmark-dots"
    assert not (dots.signatures or dots.private or dots.attributes) and dots.unpublished
    assert suites.named("people") is suites.SUITES["people"]
    assert suites.in_order(["zebra", "people", "dots", "sdg"]) == ["sdg", "people", "dots", "zebra"]


@pytest.mark.parametrize("name", SUITES)
def test_a_runs_id_hangs_on_model_benchmark_settings_and_version(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, settings = suites.named(name), EvalSettings()

    def of(**changed: object) -> str:
        given = {"spec": SPEC, "root": Path(), "benchmark_id": "b" * 16, "suite": suite}
        return run_id(**{"settings": settings, **given, **changed})  # type: ignore[arg-type]

    first = of()
    assert first == of() and first.startswith("m-")
    for changed in (
        {"benchmark_id": "c" * 16},
        {"spec": replace(SPEC, options={"seed": 2})},
        {"suite": replace(suite, version=suite.version + "x")},
        {"settings": EvalSettings(seed=1)},
    ):
        assert of(**changed) != first
    tuned = {"settings": EvalSettings(draws=5, search="exact")}
    assert (of(**tuned) != first) == suite.held_out  # nothing is tuned on people
    monkeypatch.setattr(LetterGrams, "floor", LetterGrams.floor / 2)
    assert (of() == first) == suite.held_out  # free answers are read by the encoder


@pytest.mark.parametrize("name", ["peoples", "peple", "Two words", "", 3])
def test_a_slip_of_the_pen_is_no_name_of_a_suite(name: object) -> None:
    assert "valid: people, sdg" in entries.suite_fault(name)


def test_newest_runs_of_every_suite_that_results_hold(tmp_path: Path) -> None:
    results = empty(tmp_path / "r.duckdb")
    for n, (suite, model, benchmark) in enumerate(
        [
            ("people", "m", "p1"),
            ("people", "m", "p2"),
            ("dots", "m", "d1"),
            ("sdg", "m", "b1"),
            ("sdg", "m", "b2"),
            ("sdg", "n", "b1"),
        ]
    ):
        at = datetime(2026, 11, 20 + n)
        run = {"run_id": f"{suite}-{model}-{benchmark}", "suite": suite, "model": model}
        store.publish(results, run | {"benchmark_id": benchmark, "finished_at": at}, {})
    people = ["people-m-p1", "people-m-p2"]
    assert suites.newest_runs(results) == ["sdg-m-b2", "sdg-n-b1", *people, "dots-m-d1"]
    every = ["sdg-m-b1", "sdg-m-b2", "sdg-n-b1", *people, "dots-m-d1"]
    assert suites.newest_runs(results, per_benchmark=True) == every
    assert suites.newest_runs(results, ["sdg-m-b1", "dots-m-d1"]) == ["sdg-m-b1", "dots-m-d1"]
