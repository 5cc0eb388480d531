"""An engine in a child process that ends or hangs is started again, and one prompt fails."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store, suites
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.scoring.evaluate import evaluate
from sdgbias.scoring.plan import make_plan
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import ModelSpec
from tests.builders.planted_people import planted
from tests.builders.slow_engine import cached

#: In place of an interpreter: an engine that notes when it is asked one of the prompts, and does
#: something then.
DEADLY = """#!{python}
import os, time
from sdgbias.engines import planted_people, subprocess

real = planted_people.PlantedPeople.generate

def generate(self, prompts, *more):
    self.counts = {{"asked": getattr(self, "counts", {{}}).get("asked", 0) + len(prompts)}}
    if any((p.image_id, p.text) in {poison!r} for p in prompts):
        with open({log!r}, "a") as log:
            log.write("asked\\n")
        {act}
    return real(self, prompts, *more)

planted_people.PlantedPeople.generate = generate
subprocess.main()
"""


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Path, Path]:
    """A model, its benchmark and the results of its engine in this process."""
    folder = tmp_path_factory.mktemp("people")
    spec = planted(folder / "b")
    assert evaluate(spec, folder, folder / "b", folder / "r.duckdb").failed == 0
    return spec, folder / "b", folder / "r.duckdb"


def write_python(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def poisoned(
    people: tuple[ModelSpec, Path, Path], folder: Path, act: str, *rows: int, **options: object
) -> ModelSpec:
    """The model in a child process that ``act``s where it is asked these rows of the plan."""
    spec, benchmark, _ = people
    plan = make_plan(suites.of(benchmark).cells(benchmark, EvalSettings()), "f").distinct
    poison = [(str(plan.image_id[row]), str(plan.text[row])) for row in rows]
    known = {"python": sys.executable, "poison": poison, "log": str(folder / "log"), "act": act}
    python = write_python(folder / "python", DEADLY.format(**known))
    return replace(spec, options=spec.options | {"python": python} | options, batch_size=8)


@pytest.mark.parametrize(
    ("act", "kind", "why"),
    [
        ("os._exit(41)", "EngineDied", "exit code 41"),
        pytest.param("time.sleep(600)", "Hung", "no answer for 8 s", marks=pytest.mark.long),
    ],
)
def test_prompts_that_end_their_engine_twice_are_failures_and_the_others_are_scored(
    people: tuple[ModelSpec, Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    act: str,
    kind: str,
    why: str,
) -> None:
    _, benchmark, whole = people
    deadly = poisoned(people, tmp_path, act, 70, 71, chunk_timeout=8)
    results = tmp_path / "r.duckdb"
    done = evaluate(deadly, tmp_path, benchmark, results)
    assert (done.scored, done.failed) == (done.planned - 2, 2)
    assert (tmp_path / "log").read_text().count("asked") == 3, "with their neighbours, then alone"
    failures = store.query(results, "SELECT key, kind, message FROM failures")
    assert failures["kind"].tolist() == [kind] * 2
    assert failures["message"].str.contains("twice").all()
    assert capfd.readouterr().err.count(why) == 3
    wanted = cached(whole, deadly.name)["generations"]
    kept = wanted[~wanted["key"].isin(failures["key"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(cached(results, deadly.name)["generations"], kept)
    counted = store.query(results, "SELECT config -> 'engine' ->> 'asked' AS n FROM runs")
    assert int(counted["n"].item()) == len(kept), "the work of every child counts"


def test_an_engine_that_keeps_ending_ends_the_run_with_what_is_finished_kept(
    people: tuple[ModelSpec, Path, Path], tmp_path: Path
) -> None:
    _, benchmark, _ = people
    deadly = poisoned(people, tmp_path, "os._exit(41)", 20, 40, 60)
    with pytest.raises(InfrastructureError, match="ended 5 times, the last one: .* exit code 41"):
        evaluate(deadly, tmp_path, benchmark, tmp_path / "r.duckdb")
    assert len(cached(tmp_path / "r.duckdb", deadly.name)["generations"]) >= 38


def test_an_engine_that_starts_with_other_weights_ends_the_run(
    people: tuple[ModelSpec, Path, Path], tmp_path: Path
) -> None:
    """Its folder was changed meanwhile."""
    _, benchmark, _ = people
    act = f"open({str(tmp_path / 'changed')!r}, 'w'); os._exit(1)"
    deadly = poisoned(people, tmp_path, act, 9)
    python = tmp_path / "python"
    before = "subprocess.main()"
    loads = f"""load = planted_people.PlantedPeople.__init__
def changed(self, *more):
    load(self, *more)
    self.fingerprint += "x" * os.path.exists({str(tmp_path / "changed")!r})
planted_people.PlantedPeople.__init__ = changed
"""
    python.write_text(python.read_text().replace(before, loads + before))
    with pytest.raises(ModelError, match="started again, the engine loaded other weights"):
        evaluate(deadly, tmp_path, benchmark, tmp_path / "r.duckdb")


def test_an_engine_that_does_not_start_is_told_with_its_last_words(
    people: tuple[ModelSpec, Path, Path], tmp_path: Path
) -> None:
    spec, benchmark, _ = people
    python = write_python(
        tmp_path / "python", f"#!{sys.executable}\nimport sys\nsys.exit('no driver')\n"
    )
    gone = replace(spec, options=spec.options | {"python": python})
    with pytest.raises(InfrastructureError, match="ended with exit code 1: no driver"):
        evaluate(gone, tmp_path, benchmark, tmp_path / "r.duckdb")
