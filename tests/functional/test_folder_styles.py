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

#: Ten of the families of docs/reference/models.md (random.seed(15)) and one that cuts pictures into
#: tiles.
CASES: dict[str, tuple[Style, ...]] = {
    "llava_next": (folder_styles.one_processor_file, folder_styles.chatty_generation),
    "qwen2_vl": (folder_styles.version_four, folder_styles.no_padding),
    "qwen3_vl": (folder_styles.one_processor_file, folder_styles.half_in_shards),
    "glm4v_moe": (folder_styles.template_in_json, folder_styles.no_padding),
    "aya_vision": (folder_styles.snapshot,),
    "minicpmv4_7": (folder_styles.chatty_generation, folder_styles.snapshot),
    "cohere2_vision": (folder_styles.half_in_shards, folder_styles.snapshot),
    "git": (folder_styles.one_processor_file, folder_styles.no_padding),
    "glm_ocr": (folder_styles.template_in_tokenizer, folder_styles.half_in_shards),
    "blip-2": (folder_styles.one_processor_file, folder_styles.no_padding),
    "cohere_compass": (folder_styles.template_in_json, folder_styles.chatty_generation),
}
#: The cheapest two of them hold seven of the styles.
QUICK = ("qwen2_vl",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in CASES],
)
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
