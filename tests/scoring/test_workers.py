"""How a plan is shared out among engines: pieces of whole pictures, nothing lost, nothing twice;
devices and threads."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias import store, suites
from sdgbias.errors import InfrastructureError
from sdgbias.scoring import scorer, workers
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.evaluate import Pool, evaluate
from sdgbias.scoring.plan import make_plan
from sdgbias.scoring.ray import resources_for
from sdgbias.scoring.scorer import (
    WorkUnit,
    forget_notes,
    not_generated,
    split_work,
    suspects,
)
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import ModelSpec
from tests.builders.planted_people import planted
from tests.builders.slow_engine import cached

SPEC = ModelSpec(name="m", title="m", backend="hf", repo="r", revision="local", state="enabled")


def table(pictures: list[int], forced: bool = False) -> pd.DataFrame:
    """Rows of a plan: pictures[i] prompts about picture i, the last entry without a picture."""
    ids = [
        f"p{i}" if i < len(pictures) - 1 else "" for i, n in enumerate(pictures) for _ in range(n)
    ]
    rows = pd.DataFrame({"key": [f"k{n:03d}" for n in range(len(ids))], "image_id": ids})
    return rows.assign(forced=forced)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(1, 4),
    st.data(),
)
def test_every_row_is_in_one_piece_in_order_and_no_picture_is_parted(
    pictures: list[int], size: int, engines: int, data: st.DataObject
) -> None:
    plan = table(pictures)
    marks = st.lists(st.booleans(), min_size=len(plan), max_size=len(plan))
    missing, wanted = (
        plan[np.array(data.draw(marks), dtype=bool)],
        plan[np.array(data.draw(marks), dtype=bool)],
    )
    late = (
        set(data.draw(st.lists(st.sampled_from(plan["key"].tolist()), max_size=3)))
        if len(plan)
        else set()
    )
    pieces = split_work(missing, wanted, size, engines, late)
    early = [piece for piece in pieces if not piece.alone]
    for rows, name in ((missing, "score"), (wanted, "decode")):
        ordered = [key for piece in early for key in getattr(piece, name)["key"]]
        assert ordered == rows.loc[~rows["key"].isin(late), "key"].tolist()
        assert {
            key for piece in pieces if piece.alone for key in getattr(piece, name)["key"]
        } == late & set(rows["key"])
    assert all(len(piece.prompts()) == 1 for piece in pieces if piece.alone)
    assert [piece.alone for piece in pieces] == sorted(piece.alone for piece in pieces)
    asked = {key for piece in early for key in piece.prompts()}
    for picture, rows in plan[plan["key"].isin(asked)].groupby("image_id"):
        if picture and len(rows) <= size:
            assert sum(bool(set(rows["key"]) & set(piece.prompts())) for piece in early) == 1


def test_pieces_hold_at_most_sixteen_chunks_and_there_are_some_for_everyone() -> None:
    many, few = table([1] * 5000), table([1] * 41)
    nothing = many.iloc[:0]
    assert {len(piece) for piece in split_work(many, nothing, 4, 2)} == {64, 5000 % 64}
    assert len(split_work(few, nothing, 4, 2)) == 11  # 41 prompts in chunks of 4
    assert len(split_work(many, nothing, 4, 2, most=1)) == 5000 / 4


ANSWER = {"start": "", "text": "4", "limit": 8, "truncated": False}


def test_what_is_committed_is_not_handed_out_again(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    scored = pd.DataFrame(
        {
            "key": ["k000"],
            "candidates": "AB",
            "logits": [np.ones(2, np.float32)],
            "mass": 1.0,
            "minus_logit": 0.0,
        }
    )
    cache.append("scores", scored.assign(top_token="A", n_tokens=1, upper=None))
    cache.append("generations", pd.DataFrame({"key": ["k000", "k001"], **ANSWER}))
    plan = table([2, 1]).assign(limit=8)
    rest = workers.unfinished(WorkUnit(plan, plan), cache)
    assert rest.score["key"].tolist() == ["k001", "k002"] and rest.decode["key"].tolist() == [
        "k002"
    ]
    assert (
        not_generated(plan.assign(forced=True), cache.decoded())["key"].tolist()
        == plan["key"].tolist()
    )  # 11 answers each


def test_only_what_hung_is_suspected(tmp_path: Path) -> None:
    def note(text: str, part: str = "") -> None:
        ScoreCache(tmp_path, "m", "f", part).note.write_text(text)

    note('{"keys": ["a"], "pid": 1, "hung": true}')
    note('{"keys": ["b"], "pid": 1, "hung": true}', "1-of-3")
    note('{"keys": ["c"], "pid": 1, "hung": false}', "2-of-3")
    note("{half a no", "3-of-3")
    folder = ScoreCache(tmp_path, "m", "f").folder
    assert suspects(folder) == {"a", "b"}
    forget_notes(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("options", "visible", "expected"),
    [
        ({}, None, ["0", "1", "0"]),  # those of the host
        ({}, "0,1", ["0", "1", "0"]),  # three workers, two GPUs: shared in turn
        ({"num_gpus": 0.5}, "4,7", ["4", "4", "7"]),
        ({"tensor_parallel_size": 2}, "0,1,2,3", ["0,1", "2,3", "0,1"]),
        ({}, "", [None, None, None]),
    ],
)
def test_each_worker_gets_its_gpus(
    options: dict[str, object],
    visible: str | None,
    expected: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SDGBIAS_GPUS", "2x80")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    spec = ModelSpec(**{**SPEC.__dict__, "options": options})
    assert [workers._devices(spec, n).get("CUDA_VISIBLE_DEVICES") for n in range(3)] == expected
    assert workers._devices(ModelSpec(**{**SPEC.__dict__, "backend": "api"}), 0) == {}


def test_threads_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert workers._threads(3) == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert workers._threads(1)["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    assert workers._threads(10**6)["OMP_NUM_THREADS"] == "1"


def test_engines_that_fit_on_a_cluster() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert resources_for(SPEC, nodes) == ({"num_gpus": 1.0, "num_cpus": 0}, 5)
    two = ModelSpec(**{**SPEC.__dict__, "options": {"num_gpus": 2}})
    assert resources_for(two, nodes) == ({"num_gpus": 2.0, "num_cpus": 0}, 2)  # 4 // 2 + 1 // 2
    planted = ModelSpec(**{**SPEC.__dict__, "backend": "planted", "options": {"num_cpus": 2}})
    assert resources_for(planted, nodes) == ({"num_cpus": 2.0}, 5)  # 8 // 2 + 3 // 2
    assert resources_for(SPEC, [{"Alive": True, "Resources": {}}])[1] == 0


#: In place of an interpreter: an engine that notes when it is asked one prompt, and dies or hangs
#: on it.
DEADLY = """#!{python}
import os, time
from sdgbias.engines import planted_people, subprocess

real = planted_people.PlantedPeople.generate

def generate(self, prompts, *more):
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
    """A model, its benchmark and the results of one engine in this process."""
    folder = tmp_path_factory.mktemp("people")
    spec = planted(folder / "b")
    assert evaluate(spec, folder, folder / "b", folder / "r.duckdb").failed == 0
    return spec, folder / "b", folder / "r.duckdb"


def test_engines_in_processes_of_their_own_give_the_rows_of_one_here(
    people: tuple[ModelSpec, Path, Path], tmp_path: Path
) -> None:
    spec, benchmark, one = people
    results = tmp_path / "r.duckdb"
    pool = Pool(workers=3)
    done = evaluate(replace(spec, batch_size=4), tmp_path, benchmark, results, pool=pool)
    assert (done.scored, done.failed) == (done.planned, 0)
    alone, several = cached(one, spec.name), cached(results, spec.name)
    pd.testing.assert_frame_equal(several["generations"], alone["generations"])
    config = "SELECT CAST(config -> 'engine' ->> 'engines' AS INTEGER) AS n FROM runs"
    assert store.query(results, config)["n"].tolist() == [3]


@pytest.mark.parametrize(
    ("engines", "act", "kind", "words"),
    [
        (2, "os._exit(41)", "EngineDied", "exit code 41"),
        (1, "os._exit(41)", "EngineDied", "exit code 41"),
        pytest.param(*(2, "time.sleep(600)", "Hung", "no answer for 10 s"), marks=pytest.mark.long),
    ],
)
def test_prompts_that_end_their_engine_twice_are_failures_and_stop_nobody(
    people: tuple[ModelSpec, Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engines: int,
    act: str,
    kind: str,
    words: str,
) -> None:
    spec, benchmark, one = people
    rows = make_plan(suites.of(benchmark).cells(benchmark, EvalSettings()), "f").distinct
    poison = [(str(row.image_id), str(row.text)) for row in rows.iloc[70:72].itertuples()]
    log, python = tmp_path / "log", tmp_path / "python"
    python.write_text(DEADLY.format(python=sys.executable, poison=poison, log=str(log), act=act))
    python.chmod(0o755)
    deadly = replace(spec, options=spec.options | {"python": str(python)}, batch_size=8)
    if kind == "Hung":
        monkeypatch.setattr(scorer, "CHUNK_TIMEOUT", 10.0)
    results = tmp_path / "r.duckdb"
    done = evaluate(deadly, tmp_path, benchmark, results, pool=Pool(workers=engines))
    assert (done.scored, done.failed) == (done.planned - 2, 2)
    assert log.read_text().count("asked") == 3, "with their neighbours, then each alone"
    failures = store.query(results, "SELECT key, kind, message FROM failures")
    assert failures["kind"].tolist() == [kind] * 2
    assert failures["message"].str.contains("twice").all()
    assert capfd.readouterr().err.count(words) == 3
    alone = cached(one, spec.name)["generations"]
    kept = alone[~alone["key"].isin(failures["key"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(cached(results, spec.name)["generations"], kept)
    assert not list(tmp_path.rglob("in_flight*"))


def test_engines_that_keep_dying_end_the_run_with_what_is_finished_kept(
    people: tuple[ModelSpec, Path, Path], tmp_path: Path
) -> None:
    spec, benchmark, _ = people
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no driver')\n")
    python.chmod(0o755)
    gone = replace(spec, options=spec.options | {"python": str(python)})
    with pytest.raises(InfrastructureError, match="ended with exit code 1: no driver"):
        evaluate(gone, tmp_path, benchmark, tmp_path / "r.duckdb", pool=Pool(workers=2))
