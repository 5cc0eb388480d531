"""The time of a run by view: whose it is, what the cache saves, what an interrupted start paid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines import load
from sdgbias.progress import Progress, silent
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import scorer as scorer_module
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import Scorer
from sdgbias.scoring.session import Evaluation, Scoring, score_model
from sdgbias.scoring.timing import timings
from sdgbias.suites import sdg
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import TESTS, Task, View
from tests.builders.length_engine import Engine
from tests.scoring.test_cache import batch
from tests.scoring.test_scorer import SPEC, plan

PLANTED = ModelSpec("planted", "planted", "planted", "planted:optimist", "1", "enabled")
#: With an answer after each forced digit.
FORCED = EvalSettings(mode="continue", draws=50)


def cache_rows(seconds: dict[str, float], run: str, tokens: int = 10) -> pd.DataFrame:
    return pd.DataFrame(
        {"key": list(seconds), "seconds": list(seconds.values()), "run": run, "n_tokens": tokens}
    )


def by_view(table: pd.DataFrame, phase: str = "score") -> pd.DataFrame:
    return table[table["phase"] == phase].set_index("view")


NOTHING = pd.DataFrame({"key": [], "start": [], "seconds": [], "run": []})


def test_a_prompt_of_two_views_is_divided_and_alone_it_counts_whole() -> None:
    cells = pd.DataFrame(
        [
            ("mcq", "full", "a"),
            ("mcq", "full", "shared"),
            *[("mcq", "img_q", "shared")] * 3,
            ("mcq", "wording:0", "shared"),
            ("mcq", "wording:0", "b"),
        ],
        columns=["task", "view", "key"],
    )
    scores = cache_rows({"a": 2.0, "shared": 4.0, "b": 8.0}, "mine")
    t = by_view(timings(cells, scores, NOTHING, "mine", ("paraphrases",)))
    assert t["seconds"].to_dict() == {"full": 3.0, "img_q": 3.0, "wording:0": 8.0}
    assert t["seconds"].sum() == 14.0, "every second once"
    assert t["seconds_alone"].to_dict() == {"full": 6.0, "img_q": 4.0, "wording:0": 12.0}
    assert t["cells"].to_dict() == {"full": 2, "img_q": 3, "wording:0": 2}
    assert t["prompts"].to_dict() == {"full": 2, "img_q": 1, "wording:0": 2}
    assert t["tokens"]["full"] == 20 and t["pass"]["wording:0"] == "paraphrases"


def test_what_the_cache_gave_costs_this_run_nothing_and_is_counted() -> None:
    cells = pd.DataFrame([("mcq", "full", key) for key in "abc"], columns=["task", "view", "key"])
    scores = pd.concat([cache_rows({"a": 2.0}, "mine"), cache_rows({"b": 3.0}, "other")])
    old = cache_rows({"c": np.nan}, "other").assign(run=None)
    t = by_view(timings(cells, pd.concat([scores, old]), NOTHING, "mine")).loc["full"]
    assert (t["seconds"], t["seconds_measured"]) == (2.0, 5.0)
    assert (t["prompts"], t["cached"], t["untimed"]) == (3, 1, 1)


def test_a_batch_is_divided_by_tokens_also_by_a_later_start(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    rows = plan(["x" * 10, "x" * 30]).assign(run="mine")
    Scorer(Engine(), cache, {}, SPEC).score(rows, silent)
    answers = rows.assign(forced="", limit=8)
    Scorer(Engine(), cache, {}, SPEC).generate(answers, silent)
    lengths = cache.read("scores").set_index("key")["n_tokens"]
    for kind in ("scores", "generations"):
        timed = cache.read(kind, timed=True)
        rate = timed["seconds"].to_numpy() / lengths[timed["key"]].to_numpy()
        assert rate[0] == pytest.approx(rate[1], rel=1e-5) and rate[0] > 0
        assert set(timed["run"]) == {"mine"}


@pytest.fixture(scope="module")
def starts(small_benchmark: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Scoring]:
    """Evaluation 'first', interrupted once; then run 'second' on the same prompts."""
    path = tmp_path_factory.mktemp("timed") / "r.duckdb"

    def stop(what: str, done: int, total: int) -> None:
        if done * 2 > total:
            raise KeyboardInterrupt

    def start(run: str, progress: Progress = silent) -> Scoring:
        engine = load(PLANTED, small_benchmark)
        return score_model(
            engine, Evaluation(PLANTED, small_benchmark, path, FORCED, run), progress
        )

    with pytest.raises(KeyboardInterrupt):
        start("first", stop)
    return [start("first"), start("second")]


def test_an_interrupted_run_has_the_time_of_both_starts_and_one_from_the_cache_none(
    starts: list[Scoring],
) -> None:
    first, second = (one.times for one in starts)
    assert starts[0].outcome("").cached > 0, "the first start's prompts are found by the second"
    assert not first["cached"].any() and not first["untimed"].any()
    assert (first["seconds"] > 0).all() and set(first["phase"]) == {"score", "decode", "force"}
    assert (first["seconds"] == first["seconds_measured"]).all()
    full = first[first["phase"] == "score"].set_index(["task", "view"]).loc["mcq", "full"]
    assert full["cells"] == full["prompts"] and full["seconds_alone"] > full["seconds"]  # T5

    assert second["seconds"].sum() == 0 and (second["cached"] == second["prompts"]).all()
    same = ["task", "phase", "view", "cells", "prompts", "tokens", "seconds_measured"]
    pd.testing.assert_frame_equal(first[same], second[same])
    assert set(starts[1].scored.scores) & {"seconds", "run"} == set(), "no result holds a time"


def test_every_digit_is_decoded_on_val_and_the_chosen_one_on_test(
    starts: list[Scoring], small_benchmark: Path
) -> None:
    scored = starts[0].scored
    items = sdg.load_items(small_benchmark)[Task.REGRESSION]
    is_val = (items["split"] == "val").to_numpy()
    forced = scored.generations[scored.generations["start"] != ""]
    of_key = forced.groupby("key")["start"].agg(set)

    for test in TESTS[Task.REGRESSION]:
        keys = sdg.view_logits(scored, items, Task.REGRESSION, test, View.FULL)[0]
        chosen = sdg.run_test(scored, items, Task.REGRESSION, test, FORCED).choice["cade"]
        assert is_val.any() and all(of_key[key] == set("0123456789") for key in keys[is_val])
        assert [of_key[key] for key in keys[~is_val]] == [{str(at)} for at in chosen[~is_val]]


@pytest.mark.parametrize(
    ("forced", "scored", "seconds"),
    [(",0,1,2,3,4,5,6,7,8,9", 0, [0.5] * 22), ("", 1, [5.5, 5.5])],
    ids=["by prompts and starts", "evenly where a length is unknown"],
)
def test_the_time_of_a_batch_is_divided(
    forced: str,
    scored: int,
    seconds: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of two prompts takes eleven seconds of a clock that stands still in between."""
    clock = [0.0]

    class Clocked(Engine):
        forces_starts = True

        def generate(self, *given):  # type: ignore[no-untyped-def]
            clock[0] += 11.0
            return super().generate(*given)

    monkeypatch.setattr(scorer_module.time, "perf_counter", lambda: clock[0])
    cache = ScoreCache(tmp_path, "m", "f")
    rows = plan(["x", "y"]).assign(run="mine", limit=8, forced=forced)
    if scored:
        cache.append("scores", batch(*rows["key"][:scored]))
    Scorer(Clocked(), cache, {}, SPEC).generate(rows, lambda what, done, total: None)
    assert cache.read("generations", timed=True)["seconds"].tolist() == pytest.approx(seconds)
