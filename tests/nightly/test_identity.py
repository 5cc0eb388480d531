"""A night calls a run unchanged only where `sdgbias evaluate` would make the same run: one function
makes the id and the key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sdgbias import files, store
from sdgbias.methods import protocol, stats
from sdgbias.methods.labels import LetterGrams
from sdgbias.methods.protocol import RANGES
from sdgbias.nightly import identity, plan
from sdgbias.registry import entries
from sdgbias.scoring import evaluate
from sdgbias.suites import SUITES, EvalSettings, facet, sdg
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
            "run_id": f"m-{job.suite}",
            "model": "m",
            "suite": job.suite,
            "benchmark_id": "b1" if job.suite == SDG else "p1",
            "finished_at": NOW,
        }
        store.publish(s.results, run, {})
        row = {"night": "2026-11-20T0130", "outcome": "published", "key": job.key}
        row |= {name: run[name] for name in ("model", "suite", "run_id")}
        store.upsert(s.results, {"night_outcomes": pd.DataFrame([row])})
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
    assert _unchanged(replace(night, passes="all")) == {FACET}


def test_each_setting_of_an_evaluation_makes_another_key_and_another_run(tmp_path: Path) -> None:
    settings(tmp_path, "m")
    spec = entries.load(tmp_path, "m")
    given: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"draws": 5},
        {"numerics": "reference"},
        {"mode": "replace"},
        {"passes": ("paraphrases",)},
        {"search": "exact"},
    ]
    each, suite = [EvalSettings(**more) for more in given], SUITES[SDG]
    keys = {identity.key(spec, tmp_path, "b1", suite, s, ("code",)) for s in each}
    card = {"benchmark_id": "b1"}
    runs = {evaluate.identify(spec, card, "fingerprint", suite, s) for s in each}
    found = [suite.identity(s) for s in each]
    assert len(keys) == len(runs) == len(given)
    assert json.loads(json.dumps(found)) == found, "an id is made of JSON values"


def test_changed_code_of_an_engine_is_evaluated_again(
    night: plan.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is over files: a copy of the package stands in for an upgrade."""
    package = tmp_path / "package"
    for room in ("engines/hf", "report/templates", "new_room", "engines/__pycache__"):
        (package / room).mkdir(parents=True)
    engine = package / "engines" / "hf" / "engine.py"
    engine.write_text("_VERSION = 'hf-2'")
    monkeypatch.setattr(files, "packaged", lambda *parts: package.joinpath(*parts))
    before = identity.code()
    (package / "report" / "templates" / "night.html.j2").write_text("a page")
    (package / "engines" / "__pycache__" / "engine.pyc").write_bytes(b"compiled")
    assert identity.code() == before
    engine.write_text("_VERSION = 'hf-3'")
    changed = identity.code()
    assert changed != before
    (package / "new_room" / "code.py").write_text("")
    assert len({before, changed, identity.code()}) == 3
    assert _unchanged(night) == set(), "the code is part of the key"


def test_only_rooms_above_scoring_do_not_count() -> None:
    """By the import contract no run can hang on those."""
    root = Path(__file__).parents[2]
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    above = layers[: layers.index("sdgbias.scoring")]
    rooms = {name.strip() for layer in above for name in layer.split("|")}
    assert {f"sdgbias.{room}" for room in identity.ABOVE} == rooms - {"flows"}


def test_every_file_of_the_weights_counts_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand models: each folder is listed once, not once per pattern."""
    settings(tmp_path)
    folder = tmp_path / "weights"
    (folder / "additional_chat_templates").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "additional_chat_templates/tool.jinja"):
        (folder / name).write_text("1")
    path = entry(tmp_path, "m", backend="hf", repo="local:weights", revision="local")

    def key() -> str:
        spec = entries.read(path)
        return identity.key(spec, tmp_path, "b1", SUITES[SDG], EvalSettings(), ("code",))

    keys = [key()]
    for name in ("additional_chat_templates/tool.jinja", "config.json", "model.safetensors"):
        (folder / name).write_text("22")
        keys.append(key())
    assert len(set(keys)) == 4
    for name in ("notes.md", "additional_chat_templates/notes.md"):
        (folder / name).write_text("not read by an engine")
    listed: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda at: listed.append(os.fspath(at)) or listdir(at))
    assert key() == keys[-1]
    assert len(listed) == len(set(listed)) == 2


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
