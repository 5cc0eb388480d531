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
from sdgbias.scoring.cost import Counted, cost, hours
from sdgbias.scoring.plan import make_plan
from sdgbias.scoring.scorer import Scorer
from sdgbias.suites import sdg
from sdgbias.suites.extra_prompts import choose

ROOT = entries.find_root()
MCQ, REGRESSION = 2, 1
MORE = "table_j,paraphrases"  # prompts of other lengths, and shared ones


def printed(*costs: dict[str, Any], rate: float | None = None) -> str:
    """What `sdgbias plan` prints; those without hours have no timed run."""
    untimed = {"hours": None, "low": None, "high": None, "devices": 1, "gib": 0.0, "basis": ""}
    shown = [{"estimate": untimed, **one} for one in costs]
    return cost_text(shown, rate)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costs")
    write_sample(folder / "raw", 6, 5)
    draw = Draw(mcq=MCQ, regression=REGRESSION)
    build(folder / "raw", folder / "raw" / "indicators", folder / "b", draw)
    return folder / "b"


@pytest.mark.parametrize("shared", [True, False])
def test_the_engine_does_what_the_plan_says(benchmark: Path, tmp_path: Path, shared: bool) -> None:
    spec = replace(entries.load(ROOT, "tiny-llava"), options={"share_prefix": shared})
    told = cost(spec, ROOT, benchmark)
    assert told["prompts_naive"] == MCQ * 20 + REGRESSION * 8
    assert told["prompts_full"] == MCQ * 5 + REGRESSION * 2
    assert told["images_naive"] == MCQ * 10 + REGRESSION * 4
    assert (
        set(told["asked"]) == {"mcq", "regression"}
        and told["asked"]["regression"] <= REGRESSION * 8
    )
    engine = load(spec, ROOT)
    distinct = make_plan(sdg.load_prompts(benchmark), "f").distinct
    assert len(distinct) == told["prompts_planned"]
    Scorer(engine, ScoreCache(tmp_path, "m", "f"), ImageReader(benchmark), spec).score(
        distinct, lambda *a: None
    )
    counts = engine.counts  # type: ignore[attr-defined]
    assert counts["tokens_of_prompts"] == told["tokens_distinct"]
    assert counts["tokens_prefilled"] == told["tokens_planned"]
    assert counts["images_encoded"] == told["images_planned"]
    assert (told["tokens_planned"] < told["tokens_distinct"]) == shared


def test_ratios_are_those_of_the_papers_views_whatever_else_is_asked(
    benchmark: Path, tmp_path: Path
) -> None:
    spec = entries.load(ROOT, "tiny-llava")
    bare = cost(spec, ROOT, benchmark, Counted(task="mcq"))
    more = cost(spec, ROOT, benchmark, Counted(task="mcq", passes=choose(MORE)))
    for name in ("prompts", "tokens"):
        for kind in ("naive", "full", "planned"):
            assert more[f"{name}_{kind}"] == bare[f"{name}_{kind}"]
    ratios = [told["ratio_naive"] for told in (bare, more)]
    assert ratios[0] == ratios[1] == round(bare["tokens_naive"] / bare["tokens_planned"], 3)
    assert (bare["prompts_extra"], bare["tokens_extra"], bare["images_extra"]) == (0, 0, 0)
    # what the extra passes add is what the engine then does beyond the paper's views
    engine = load(spec, ROOT)
    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings(passes=choose(MORE)))
    plan = make_plan(cells[cells["task"] == "mcq"], "f")
    assert plan.planned == more["prompts_planned"] + more["prompts_extra"] > more["prompts_planned"]
    Scorer(engine, ScoreCache(tmp_path, "m", "f"), ImageReader(benchmark), spec).score(
        plan.distinct, lambda *a: None
    )
    counts = engine.counts  # type: ignore[attr-defined]
    assert counts["tokens_prefilled"] == more["tokens_planned"] + more["tokens_extra"]
    assert counts["images_encoded"] == more["images_planned"] + more["images_extra"]
    shown = [printed(one) for one in (more, bare)]
    assert "extra passes add" in shown[0] and "all three without extra passes" in shown[0]
    assert "extra passes" not in shown[1]


def test_longer_pictures(benchmark: Path) -> None:
    spec = entries.load(ROOT, "tiny-llava")
    short, long = (
        cost(spec, ROOT, benchmark, Counted(image_tokens=n, task="mcq")) for n in (36, 576)
    )
    assert long["tokens_naive"] - short["tokens_naive"] == (576 - 36) * MCQ * 10
    assert short == cost(spec, ROOT, benchmark, Counted(task="mcq"))  # 36 is tiny-llava's own
    assert long["ratio_naive"] == round(long["tokens_naive"] / long["tokens_planned"], 3)


def test_an_engine_without_a_tokenizer_is_one_line(benchmark: Path) -> None:
    with pytest.raises(UsageError, match="planted-optimist: backend planted has no tokenizer"):
        cost(entries.load(ROOT, "planted-optimist"), ROOT, benchmark)


SPEC = ModelSpec("m", "m", "vllm", "a/b", "0" * 40, "enabled", params_b=8.0, dtype="bfloat16")
ASKED = {"mcq": 3000, "regression": 600}


def publish(path: Path, run: str, day: int, seconds: float, model: str = "m", **more: Any) -> None:
    """A run of 300 MCQ prompts and 60 regression prompts; the latter take a tenth of the time."""
    rows = [
        {"task": task, "phase": phase, "view": "full", "pass": ""}
        | {"cells": n, "prompts": n, "cached": 0, "untimed": 0, "tokens": 9000}
        | dict.fromkeys(("seconds", "seconds_measured", "seconds_alone"), s)
        | more
        for task, phase, n, s in (
            ("mcq", "score", 300, 0.75 * seconds),
            ("mcq", "decode", 50, 0.25 * seconds),
            ("regression", "score", 60, 0.1 * seconds),
        )
    ]
    record = {"run_id": run, "suite": "sdg", "model": model, "benchmark_id": "b"}
    record |= {"finished_at": datetime(2026, 11, day)}
    store.publish(path, record, {"timings": pd.DataFrame(rows)})


def test_hours_are_those_of_the_models_timed_runs_and_first_looks(tmp_path: Path) -> None:
    runs, look = tmp_path / "r.duckdb", tmp_path / "first-look.duckdb"
    assert hours(SPEC, ASKED, (runs, look))["hours"] is None, "nothing was measured"

    publish(look, "first", 1, 360.0)
    one = hours(SPEC, ASKED, (runs, look), rate=2.0)
    assert one["hours"] == pytest.approx(360 * 11 / 3600), "ten times the prompts of both tasks"
    assert (one["low"], one["high"], one["money"]) == (one["hours"], one["hours"], 2 * one["hours"])
    assert (one["devices"], one["gib"]) == (1, pytest.approx(1.2 * 16e9 / 2**30))

    publish(runs, "second", 2, 720.0)
    publish(runs, "other", 3, 9e9, model="else")
    publish(runs, "untimed", 3, 9e9, untimed=1)
    shared = replace(SPEC, options={"tensor_parallel_size": 2})
    two = hours(shared, ASKED, (runs, look))
    expected = [2 * seconds * 11 / 3600 for seconds in (540, 360, 720)]
    assert [two[name] for name in ("hours", "low", "high")] == pytest.approx(expected)
    assert (two["basis"], two["devices"]) == ("2 measured runs", 2)
    assert hours(SPEC, {**ASKED, "people": 5}, (runs, look))["basis"] == "", "no run has people"


def test_hours_and_money_are_printed_and_summed_up(benchmark: Path) -> None:
    counts = cost(entries.load(ROOT, "tiny-llava"), ROOT, benchmark)
    took = {"hours": 10.0, "low": 5.0, "high": 30.0, "devices": 1, "gib": 19.1, "basis": "a run"}
    timed = {**counts, "estimate": took}
    shown = printed(timed, timed, rate=2.5)
    assert "GPU hours: 10 (5 to 30), by a run" in shown
    assert "memory: about 19.1 GiB on each of 1 GPU(s)" in shown
    assert "money: 25.00 (12.50 to 75.00) at 2.5 a GPU hour" in shown
    assert "2 models: GPU hours: 20 (10 to 60), by the runs above" in shown
    assert shown.endswith("money: 50.00 (25.00 to 150.00) at 2.5 a GPU hour")
    untimed = printed(timed, counts)
    assert "2 models" not in untimed and "money" not in untimed
    assert "not known without a timed run" in untimed
