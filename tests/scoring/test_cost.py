"""What `sdgbias plan` promises is what the engine then does, to the token."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sdgbias import store, suites
from sdgbias.benchmark.build import Draw, build
from sdgbias.cli.scores import cost_text
from sdgbias.engines import load
from sdgbias.errors import UsageError
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.synthetic import write_sample
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.cost import cost, hours
from sdgbias.scoring.plan import make_plan
from sdgbias.scoring.scorer import Scorer
from sdgbias.suites.extra_prompts import choose

ROOT = entries.find_root()
TINY = entries.load(ROOT, "tiny-llava")
MCQ, REGRESSION = 2, 1
MORE = choose("table_j,paraphrases")  # prompts of other lengths, and shared ones
UNTIMED = {"hours": None, "low": None, "high": None, "runs": 0}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costs")
    write_sample(folder / "raw", 6, 5)
    draw = Draw(mcq=MCQ, regression=REGRESSION)
    build(folder / "raw", folder / "raw" / "indicators", folder / "b", draw)
    return folder / "b"


@pytest.mark.parametrize(("shared", "passes"), [(True, MORE), (False, ())])
def test_the_engine_does_what_the_plan_says(
    benchmark: Path, tmp_path: Path, shared: bool, passes: tuple[str, ...]
) -> None:
    spec = replace(TINY, options={"share_prefix": shared})
    counts = cost(spec, ROOT, benchmark, passes=passes)
    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings(passes=passes))
    plan, engine = make_plan(cells, "f"), load(spec, ROOT)
    cache, images = ScoreCache(tmp_path, "m", "f"), ImageReader(benchmark)
    Scorer(engine, cache, images, spec).score(plan.distinct, lambda *a: None)

    done = engine.counts  # type: ignore[attr-defined]
    assert plan.planned == counts["prompts_planned"] + counts["prompts_extra"]
    assert done["tokens_prefilled"] == counts["tokens_planned"] + counts["tokens_extra"]
    assert counts["prompts_naive"] == MCQ * 20 + REGRESSION * 8
    assert counts["prompts_full"] == MCQ * 5 + REGRESSION * 2
    assert set(counts["asked"]) == {"mcq", "regression"}
    assert (counts["tokens_planned"] < counts["tokens_distinct"]) == shared
    assert bool(counts["prompts_extra"]) == bool(passes)
    if not passes:
        assert done["tokens_of_prompts"] == counts["tokens_distinct"]
        assert counts["tokens_extra"] == 0


def test_neither_extra_passes_nor_larger_pictures_change_what_they_should_not(
    benchmark: Path,
) -> None:
    bare = cost(TINY, ROOT, benchmark, task="mcq")
    more = cost(TINY, ROOT, benchmark, task="mcq", passes=MORE)
    same = [f"{what}_{kind}" for what in ("prompts", "tokens") for kind in ("naive", "planned")]
    assert {name: more[name] for name in same} == {name: bare[name] for name in same}
    ratio = round(bare["tokens_naive"] / bare["tokens_planned"], 3)
    assert more["ratio_naive"] == bare["ratio_naive"] == ratio
    shown = [cost_text({"estimate": UNTIMED, **one}) for one in (more, bare)]
    assert "extra passes add" in shown[0] and "both without extra passes" in shown[0]
    assert "extra passes" not in shown[1]
    assert "not known without a timed run" in shown[1]
    timed = cost_text({"estimate": {"hours": 10.0, "low": 5.0, "high": 30.0, "runs": 2}, **bare})
    assert timed.endswith("\ndevice hours: 10 (5 to 30), by 2 measured runs")

    own, large = (cost(TINY, ROOT, benchmark, image_tokens=n, task="mcq") for n in (36, 576))
    assert own == bare, "36 is tiny-llava's own"
    assert large["tokens_naive"] - own["tokens_naive"] == (576 - 36) * MCQ * 10


def test_an_engine_without_a_tokenizer_is_one_line(benchmark: Path) -> None:
    with pytest.raises(UsageError, match="backend planted has no tokenizer.*asked the same"):
        cost(entries.load(ROOT, "planted-optimist"), ROOT, benchmark)


SPEC = ModelSpec("m", "m", "vllm", "a/b", "0" * 40, "enabled")
ASKED = {"mcq": 3000, "regression": 600}


def publish(path: Path, run: str, day: int, seconds: float, model: str = "m", **more: Any) -> None:
    """A run of 300 MCQ prompts, 60 regression prompts, which take a tenth of the time of the
    first, and 40 prompts that are answered freely alone, which take a fifth."""
    of_kinds = [("mcq", "score", 300, 0.75), ("mcq", "decode", 50, 0.25)]
    of_kinds += [("regression", "score", 60, 0.1), ("direct", "decode", 40, 0.2)]
    rows = [
        {"task": task, "phase": phase, "view": "full", "pass": ""}
        | {"cells": n, "prompts": n, "cached": 0, "untimed": 0, "tokens": 9000}
        | dict.fromkeys(("seconds", "seconds_measured", "seconds_alone"), share * seconds)
        | more
        for task, phase, n, share in of_kinds
    ]
    record = {"run_id": run, "suite": "sdg", "model": model, "benchmark_id": "b"}
    record |= {"finished_at": datetime(2026, 11, day)}
    store.publish(path, record, {"timings": pd.DataFrame(rows)})


def test_hours_are_those_of_the_models_timed_runs_and_first_looks(tmp_path: Path) -> None:
    runs, look = tmp_path / "r.duckdb", tmp_path / "first-look.duckdb"
    assert hours(SPEC, ASKED, (runs, look))["hours"] is None, "nothing was measured"

    publish(look, "first", 1, 360.0)
    one = hours(SPEC, ASKED, (runs, look))
    assert one["hours"] == pytest.approx(360 * 11 / 3600), "ten times the prompts of both tasks"
    assert (one["low"], one["high"]) == (one["hours"], one["hours"])

    publish(runs, "second", 2, 720.0)
    publish(runs, "other", 3, 9e9, model="else")
    publish(runs, "untimed", 3, 9e9, untimed=1)
    shared = replace(SPEC, options={"tensor_parallel_size": 2})
    two = hours(shared, ASKED, (runs, look))
    expected = [2 * seconds * 11 / 3600 for seconds in (540, 360, 720)]
    assert [two[name] for name in ("hours", "low", "high")] == pytest.approx(expected)
    assert two["runs"] == 2
    assert hours(SPEC, {**ASKED, "people": 5}, (runs, look))["runs"] == 0, "no run has people"

    free = hours(SPEC, {"direct": 80}, (look,))
    assert free["hours"] == pytest.approx(360 * 0.2 * 2 / 3600), "these have no candidates to score"
