"""Example questions of the report: which ones, and that each shows its prompt, scores and terms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdgbias.report.build import ReportPages
from sdgbias.report.pages import examples, question
from sdgbias.report.pages import questions as questions_page
from sdgbias.suites import sdg, sdg_tables
from sdgbias.types import PILLARS, Task, View
from tests.builders.results import MODELS, altered


@pytest.fixture(scope="module")
def shown(fake: Path) -> dict[str, Any]:
    return ReportPages(fake).shown


def questions(shown: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for part in shown["groups"].values() for f in part]


def test_examples_cover_models_pillars_and_outcomes(shown: dict[str, Any]) -> None:
    found = questions(shown)
    assert 0 < len(found) == shown["total"] <= examples.LIMIT
    assert {f["run"]["model"] for f in found} == set(MODELS)
    assert {f["q"]["item"]["pillar"] for f in found} == set(PILLARS)
    assert {"Fixed by CADE", "Broken by CADE", "Unchanged"} <= set(shown["groups"])
    assert all(f["q"]["item"]["image_id"] in shown["pictures"] for f in found)


def test_terms_explain_the_answer(shown: dict[str, Any]) -> None:
    """The score is the sum of the three terms, its best option is CADE's answer unless the gate
    kept the Full one."""
    kept = 0
    for f in questions(shown):
        q, decision = f["q"], f["q"]["cade"]
        answer, full, gold = decision["answer"], q["said"]["full"], q["item"]["gold"]
        *terms, score = decision["terms"]
        assert score == pytest.approx(np.sum(terms, axis=0))
        views = {v["name"]: [p for _, p, _ in v["scores"]] for v in q["views"]}
        assert answer["confidence"] == pytest.approx(max(views["full"]), abs=1e-3)
        kept += answer["kept"]
        if answer["kept"]:
            assert answer["pred"] == full["pred"] and "keeps the answer" in decision["why"]
        else:
            assert "ABC"[int(np.argmax(score))] == answer["pred"]
        assert (f["outcome"] == "fixed") == (answer["pred"] == gold != full["pred"])
        assert (f["outcome"] == "broken") == (full["pred"] == gold != answer["pred"])
    assert kept > 0


def test_pictures_keep_to_their_budget_and_an_unreadable_one_is_left_out(
    fake: Path, shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = questions(shown)[0]["q"]["item"]["image_id"]
    sql = "UPDATE previews SET png = 'no png'::BLOB WHERE image_id = ?"
    monkeypatch.setattr(examples, "PICTURE_BYTES", 60_000)
    found = ReportPages(altered(fake, tmp_path, (sql, [image]))).shown
    assert image in {f["q"]["item"]["image_id"] for f in questions(found)}
    assert image not in found["pictures"]
    assert 0 < sum(map(len, found["pictures"].values())) < 60_000


@pytest.mark.parametrize("task", Task)
def test_the_prompt_shown_is_the_benchmarks(small_benchmark: Path, task: Task) -> None:
    """Rebuilt from the row that a run stores of a question, letter by letter what was asked."""
    items = sdg.load_items(small_benchmark)[task].head(4)
    cells = sdg.load_prompts(small_benchmark)
    seen = 0
    for item in sdg_tables.item_cards(task, items).to_dict("records"):
        mine = cells[(cells["task"] == task.value) & (cells["item_id"] == item["item_id"])]
        for test, asked in mine.groupby("test"):
            context = str(json.loads(item["context"])[test] or "")
            options, views = questions_page.option_rows(item), [view.value for view in View]
            made = question.prompts(item, task.value, options, context, views)
            text = {view: words for names, words in made for view in names}
            assert text == dict(zip(asked["view"], asked["text"], strict=True))
            seen += 1
    assert seen == 4 * len(mine["test"].unique())
