"""A night calls a run unchanged only where `sdgbias evaluate` would make the same run: both ask
scoring/run_id.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdgbias import store
from sdgbias.methods import protocol, stats
from sdgbias.methods.labels import LetterGrams
from sdgbias.methods.protocol import RANGES
from sdgbias.nightly import plan
from sdgbias.registry import entries
from sdgbias.suites import facet, sdg
from sdgbias.types import FACET, SDG, Task
from tests.builders.night_stubs import NOW, entry, settings

WIDER = ((0.0, 9.0),) * 4


@pytest.fixture
def night(tmp_path: Path) -> plan.Settings:
    """A model on both suites, whose runs of an earlier night are finished."""
    s = settings(tmp_path, benchmarks=(tmp_path / "benchmark", tmp_path / "people"))
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "benchmark.json").write_text(
        json.dumps({"benchmark_id": "p1", "suite": FACET})
    )
    entry(tmp_path, "m", options={"suites": [SDG, FACET]})
    for job in plan.tonight(s, NOW, write=False).jobs:
        run = {
            "run_id": job.key,
            "model": "m",
            "suite": job.suite,
            "benchmark_id": "b1" if job.suite == SDG else "p1",
            "finished_at": NOW,
        }
        store.publish(s.results, run, {})
    assert _unchanged(s) == {SDG, FACET}
    return s


def _unchanged(s: plan.Settings) -> set[str]:
    """Suites that the night asks nothing of, because their run is known."""
    return {job.suite for job in plan.tonight(s, NOW, write=False).jobs if job.run_id}


@pytest.mark.parametrize(
    ("place", "name", "value", "still"),
    [
        (facet, "ANALYSIS", "next", {SDG}),
        (LetterGrams, "floor", 0.7, {SDG}),
        (LetterGrams, "name", "letter-grams-2", {SDG}),
        (stats, "SMALLEST", 30, {SDG}),
        (sdg, "ANALYSIS", "next", {FACET}),
        (protocol, "SEARCH_SHARE", 0.3, {FACET}),
        (protocol, "FINALISTS", 50, {FACET}),
        (stats, "LEVEL", 0.9, set()),
    ],
)
def test_a_raised_version_or_constant_is_evaluated_again(
    night: plan.Settings,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    value: object,
    still: set[str],
) -> None:
    before = getattr(place, name)
    assert value != before
    monkeypatch.setattr(place, name, value)
    assert _unchanged(night) == still
    monkeypatch.setattr(place, name, before)
    assert _unchanged(night) == {SDG, FACET}


@pytest.mark.parametrize("task", list(Task))
def test_another_search_range_is_evaluated_again(
    night: plan.Settings, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    monkeypatch.setitem(RANGES, task, WIDER)
    assert _unchanged(night) == {FACET}


def test_settings_of_the_night_count_for_the_suites_that_hang_on_them(night: plan.Settings) -> None:
    assert _unchanged(replace(night, seed=1)) == set()
    assert _unchanged(replace(night, draws=5)) == {FACET}
    assert _unchanged(replace(night, passes="none")) == {FACET}
    assert _unchanged(replace(night, passes="table_j")) == {FACET}


def test_planning_a_night_and_watching_the_hub_load_no_model_library(tmp_path: Path) -> None:
    """numba and scipy took a third of the time of a dry run over a thousand models, torch 5 of the
    6 seconds of a look at a hub with nothing new, or at a folder of weights that is gone."""
    s = settings(tmp_path, "m")
    (tmp_path / "rules.yaml").write_text("commits: true\n")
    entry(tmp_path, "gone", backend="hf", repo="local:weights/none", revision="local")
    code = """
import sys
from sdgbias.cli import main
plan, results, rules = sys.argv[1:]
for given in (
    ["nightly", "--dry-run", "--model", "m", "--benchmark", plan, "--results", results],
    ["models", "watch", "--rules", rules],
    ["models", "enable", "gone"],
):
    sys.argv = ["sdgbias", *given]
    try:
        main()
    except SystemExit as end:
        compilers = {"numba", "scipy"} if given[1] != "enable" else set()
        print(end.code, *(compilers | {"torch", "transformers"}) & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", code, s.benchmarks[0], s.results, tmp_path / "rules.yaml"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, entries.ENV_ROOT: str(tmp_path)},
    )
    lines = done.stdout.splitlines()
    assert (
        "m                        sdg    will be scored (cpu)" in done.stdout.partition("\n0\n")[0]
    )
    nothing, watched, said, refused = lines[-4:]
    assert (nothing, watched) == ("nothing to watch: no pinned hub models, no owners", "0")
    assert "no config.json" in said and refused == "8"
