"""One evaluation, in this process, on a few schematic people."""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sdgbias import store, suites
from sdgbias.engines.planted import Planted
from sdgbias.errors import EndpointUnavailable, InfrastructureError, InputError, ModelError
from sdgbias.raw.images.shards import pending_index
from sdgbias.registry import entries
from sdgbias.scoring import evaluate as evaluation
from sdgbias.scoring import session
from sdgbias.scoring.evaluate import evaluate, nothing_scored
from sdgbias.scoring.scorer import NOT_FINITE
from sdgbias.scoring.session import Evaluation
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import Prompt, ScoreBatch, View
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


def test_a_benchmark_without_pictures_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, images = planted(tmp_path / "b"), tmp_path / "b" / "images.parquet"
    pending_index(pd.read_parquet(images)).to_parquet(images)
    monkeypatch.setattr(evaluation, "load", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(InputError, match="built with --no-images"):
        evaluate(spec, tmp_path, tmp_path / "b", tmp_path / "r.duckdb")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (NOT_FINITE, "too large for float32"),
        (("PromptRefused", "no image inputs"), "no image inputs"),
    ],
)
def test_a_model_that_scores_nothing_is_at_fault_itself(
    tmp_path: Path, failure: tuple[str, str], words: str
) -> None:
    """An error of the machine would be retried."""
    failures = [("key", *failure)]
    run = Evaluation(planted(tmp_path / "b"), tmp_path / "b", tmp_path / "r.duckdb", EvalSettings())
    fault = nothing_scored(run, failures)
    assert isinstance(fault, ModelError) and words in str(fault)


_MISSES = TypeError("unsupported operand type(s) for //: 'int' and 'NoneType'")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (_MISSES, ModelError),
        (EndpointUnavailable("down"), EndpointUnavailable),  # else the model is put aside
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_evaluation_that_loses_a_whole_view_is_no_success(
    small_benchmark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    raised: type[Exception],
) -> None:
    """A processor that lacks a setting failed on every picture, and the run was published."""
    root = entries.find_root()
    spec = entries.load(root, "planted-optimist")
    whole = Planted.candidate_scores

    def only_words(self: Planted, prompts: Sequence[Prompt]) -> ScoreBatch:
        if any(prompt.images for prompt in prompts):
            raise error
        return whole(self, prompts)

    results = tmp_path / "r.duckdb"
    with monkeypatch.context() as patch:
        patch.setattr(Planted, "candidate_scores", only_words)
        words = re.escape(f"every prompt of Full ({type(error).__name__}: {error}) failed")
        # a folder without an entry has no name that a command would take
        with pytest.raises(raised, match=f"{words}, .* run the same command again$"):
            evaluate(spec, root, small_benchmark, results)
    assert store.query(results, "SELECT run_id FROM runs").empty
    again = evaluate(spec, root, small_benchmark, results)
    assert again.published and not again.failed and again.cached > 0


@pytest.fixture
def first_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FIRST_LOOK", 0.0)


RUN = """SELECT run_id, n_prompts_planned AS planned, n_scored, n_cached, n_failed,
         CAST(config -> 'extra' ->> 'prompts' AS BIGINT) AS extra FROM runs"""


@pytest.mark.usefixtures("first_look_at_once")
def test_the_papers_views_are_published_before_the_extra_prompts_are_asked(
    small_benchmark: Path, tmp_path: Path
) -> None:
    root = entries.find_root()
    spec, settings = entries.load(root, "planted-optimist"), EvalSettings(passes=("table_j",))
    results, whole = tmp_path / "r.duckdb", tmp_path / "whole" / "r.duckdb"

    def stop(what: str, done: int, total: int) -> None:
        """Ends the evaluation at the first extra prompt."""
        if results.is_file() and not store.query(results, "SELECT 1 FROM runs").empty:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(spec, root, small_benchmark, results, settings, stop)
    first = store.query(results, RUN).iloc[0]
    waiting = store.query(results, "SELECT DISTINCT kind FROM failures")["kind"].tolist()
    views = store.query(results, "SELECT DISTINCT view FROM timings")["view"].tolist()

    assert first["n_failed"] == first["extra"] > 0 and waiting == ["NotAskedYet"]
    assert first["n_scored"] + first["n_failed"] == first["planned"]
    assert sorted(views) == sorted(view.value for view in View)

    done = evaluate(spec, root, small_benchmark, results, settings)
    assert (done.run_id, done.failed, done.extra) == (first["run_id"], 0, first["extra"])
    # what was finished when it ended is within one commit of the scores of the paper's views
    assert done.cached >= first["n_scored"] and len(store.query(results, RUN)) == 1
    evaluate(spec, root, small_benchmark, whole, settings)
    same = [store.query(path, "SELECT * FROM metrics ORDER BY ALL") for path in (results, whole)]
    pd.testing.assert_frame_equal(*same)


def test_extra_prompts_that_take_seconds_dont_cost_a_second_cade(
    small_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[object] = []
    monkeypatch.setattr(evaluation.store, "publish", lambda *given: published.append(given))
    root = entries.find_root()
    spec = entries.load(root, "planted-optimist")
    evaluate(spec, root, small_benchmark, tmp_path / "r", EvalSettings(passes=("table_j",)))
    assert len(published) == 1


def test_nothing_holds_the_engine_while_the_metrics_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = planted(tmp_path / "b")
    engines: list[weakref.ref[Planted]] = []
    alive: list[bool] = []

    def load(*given: Any) -> Planted:
        engine = Planted(*given)
        engine.itself = engine  # type: ignore[attr-defined]  # as a model's modules do
        engines.append(weakref.ref(engine))
        return engine

    suite = suites.of(tmp_path / "b")

    def tables(*given: Any) -> Any:
        alive.append(engines[0]() is not None)
        return suite.tables(*given)

    monkeypatch.setattr(evaluation, "load", load)
    monkeypatch.setattr(suites, "of", lambda _: replace(suite, tables=tables))
    outcome = evaluate(spec, tmp_path, tmp_path / "b", tmp_path / "r.duckdb")
    assert outcome.failed == 0 and alive == [False]
