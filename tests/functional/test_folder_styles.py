"""Families drawn at random in files as other authors write them: each is proposed, loads and scores
as the bare model does."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.engines import load
from sdgbias.registry.propose import propose
from sdgbias.scoring import admission
from tests.builders import families, folder_styles
from tests.builders.bare_model import Bare, four_views, largest_difference
from tests.builders.folder_styles import Style

#: The cheapest of docs/reference/models.md; between them they have every style.
CASES: dict[str, tuple[Style, ...]] = {
    "qwen2_vl": (folder_styles.version_four, folder_styles.no_padding, folder_styles.snapshot),
    "blip-2": (folder_styles.one_processor_file, folder_styles.half_in_shards),
    "cohere_compass": (folder_styles.template_in_json, folder_styles.chatty_generation),
    "glm_ocr": (folder_styles.template_in_tokenizer, folder_styles.half_in_shards),
}


@pytest.mark.parametrize("name", CASES)
def test_other_files_of_the_same_model_give_its_scores(name: str, tmp_path: Path) -> None:
    folder = families.write(tmp_path / name, name)
    for rewrite in CASES[name]:
        rewrite(folder)
    (tmp_path / "registry" / "models").mkdir(parents=True)
    found = propose(f"path:{folder}", tmp_path, admission.here(tmp_path))
    assert found.obstacle == ""
    engine = load(found.spec, tmp_path)
    bare, prompts = Bare(folder), four_views()
    assert largest_difference(bare, engine, prompts) <= 1e-4
    numbers = [prompts[-2]] if bare.refuses_text else prompts[-2:]
    ours = [answers[0] for answers in engine.generate(numbers, [""], 3).texts]
    assert ours == [bare.answer(prompt, 3) for prompt in numbers]
