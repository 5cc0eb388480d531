"""What `sdgbias plan` promises is what the engine then does, to the token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias import suites
from sdgbias.benchmark.build import Draw, build
from sdgbias.engines import load
from sdgbias.errors import UsageError
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.synthetic import write_sample
from sdgbias.registry import entries
from sdgbias.scoring import cost
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.plan import make_plan
from sdgbias.scoring.scorer import Scorer
from sdgbias.suites import sdg
from sdgbias.suites.extra_prompts import choose

ROOT = entries.find_root()
MCQ, REGRESSION = 2, 1
MORE = "table_j,content_free"  # prompts of other lengths, and shared ones


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
    told = cost.cost(spec, ROOT, benchmark)
    assert told.prompts_naive == MCQ * 20 + REGRESSION * 8
    assert told.prompts_full == MCQ * 5 + REGRESSION * 2
    assert told.images_naive == MCQ * 10 + REGRESSION * 4
    assert set(told.asked) == {"mcq", "regression"} and told.asked["regression"] <= REGRESSION * 8
    # letters of the Full view at T1; one number a prompt
    numbers = told.answer_tokens - 16 * MCQ
    assert 0 < numbers <= 8 * REGRESSION * 8 and numbers % 8 == 0
    engine = load(spec, ROOT)
    engine.proven = {True, False}  # type: ignore[attr-defined]  # the first group is otherwise scored both ways, which costs once
    distinct = make_plan(sdg.load_prompts(benchmark), "f").distinct
    assert len(distinct) == told.prompts_planned
    Scorer(engine, ScoreCache(tmp_path, "m", "f"), ImageReader(benchmark), spec).score(
        distinct, lambda *a: None
    )
    counts = engine.counts  # type: ignore[attr-defined]
    assert counts["tokens_of_prompts"] == told.tokens_distinct
    assert counts["tokens_prefilled"] == told.tokens_planned
    assert counts["images_encoded"] == told.images_planned
    assert (told.tokens_planned < told.tokens_distinct) == shared


def test_ratios_are_those_of_the_papers_views_whatever_else_is_asked(
    benchmark: Path, tmp_path: Path
) -> None:
    spec = entries.load(ROOT, "tiny-llava")
    bare = cost.cost(spec, ROOT, benchmark, cost.Counted(task="mcq"))
    more = cost.cost(spec, ROOT, benchmark, cost.Counted(task="mcq", passes=choose(MORE)))
    for name in ("prompts", "tokens"):
        for kind in ("naive", "full", "planned"):
            assert getattr(more, f"{name}_{kind}") == getattr(bare, f"{name}_{kind}")
    ratios = [json.loads(told.json())["ratio_naive"] for told in (bare, more)]
    assert ratios[0] == ratios[1] == round(bare.tokens_naive / bare.tokens_planned, 3)
    assert (bare.prompts_extra, bare.tokens_extra, bare.images_extra) == (0, 0, 0)
    # what the extra passes add is what the engine then does beyond the paper's views
    engine = load(spec, ROOT)
    engine.proven = {True, False}  # type: ignore[attr-defined]
    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings(passes=choose(MORE)))
    plan = make_plan(cells[cells["task"] == "mcq"], "f")
    assert plan.planned == more.prompts_planned + more.prompts_extra > more.prompts_planned
    Scorer(engine, ScoreCache(tmp_path, "m", "f"), ImageReader(benchmark), spec).score(
        plan.distinct, lambda *a: None
    )
    counts = engine.counts  # type: ignore[attr-defined]
    assert counts["tokens_prefilled"] == more.tokens_planned + more.tokens_extra
    assert counts["images_encoded"] == more.images_planned + more.images_extra
    lines = more.lines()
    assert any(line.startswith("extra passes add") for line in lines)
    assert any("all three without extra passes" in line for line in lines)
    assert not any("extra passes" in line for line in bare.lines())


def test_longer_pictures_and_json(benchmark: Path) -> None:
    spec = entries.load(ROOT, "tiny-llava")
    short, long = (
        cost.cost(spec, ROOT, benchmark, cost.Counted(image_tokens=n, task="mcq"))
        for n in (36, 576)
    )
    assert long.tokens_naive - short.tokens_naive == (576 - 36) * MCQ * 10
    assert short == cost.cost(
        spec, ROOT, benchmark, cost.Counted(task="mcq")
    )  # 36 is tiny-llava's own
    told = json.loads(long.json())
    assert told["ratio_naive"] == round(long.tokens_naive / long.tokens_planned, 3)
    assert {"prompts_naive", "prompts_planned", "tokens_naive", "tokens_planned"} <= set(told)


def test_an_engine_without_a_tokenizer_is_one_line(benchmark: Path) -> None:
    with pytest.raises(UsageError, match="planted-optimist: backend planted has no tokenizer"):
        cost.cost(entries.load(ROOT, "planted-optimist"), ROOT, benchmark)
