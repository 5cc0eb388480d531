"""Which cells a language model is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sdgbias import suites
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.plan import askable
from sdgbias.suites.extra_prompts import choose
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import IMAGE_FREE

SPEC = ModelSpec("m", "M", "planted", "planted", "1", "enabled", views=IMAGE_FREE)


def test_no_picture_and_no_prompt_that_only_serves_pictures(small_benchmark: Path) -> None:
    passes = tuple(choose("all"))
    cells = suites.of(small_benchmark).cells(small_benchmark, EvalSettings(passes=passes))
    kept = askable(cells, SPEC)
    assert (kept["image_id"] == "").all()
    names = {view.split(":")[0] for view in kept["view"]}
    orders = {"q_reversed", "q_random", "q_abc", "q_123"}
    assert names == {*IMAGE_FREE, *orders, "wording"}
    views = cells[cells["view"].isin(IMAGE_FREE)]
    assert kept["view"].isin(IMAGE_FREE).sum() == len(views)
    assert askable(cells, replace(SPEC, views=ModelSpec("", "", "", "", "", "").views)) is cells
