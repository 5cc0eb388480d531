"""Which class loads a model: a repository's own code under any name of auto_map, models for several
senses, and what is known by name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdgbias.engines import load
from sdgbias.engines.hf.loading import load_model
from sdgbias.errors import ModelError, RegistryError
from sdgbias.registry.propose import Request, propose
from sdgbias.registry.spec import ModelSpec
from tests.builders import own_code
from tests.builders.bare_model import four_views
from tests.builders.hub_repositories import SMALL, saved


def entry(folder: Path) -> ModelSpec:
    return ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", notes="read by A")


@pytest.fixture(scope="module")
def newvl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_code.write(tmp_path_factory.mktemp("newvl"))


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForCausalLM", "AutoModelForVision2Seq"])
def test_code_that_was_read_runs_under_any_name_of_auto_map(
    name: str, newvl: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    plain, own = newvl
    own_code.list_model(own, name)
    prompts = [four_views()[at] for at in (0, 3)]
    expected = load(entry(plain), tmp_path).candidate_scores(prompts)
    trusted = load(replace(entry(own), trust_remote_code=True), tmp_path)
    assert type(trusted.model).__name__ == "NewForAnswers"  # type: ignore[attr-defined]
    made = trusted.candidate_scores(prompts)
    assert np.allclose(made.logits, expected.logits, atol=1e-5, equal_nan=True)
    with pytest.raises(ModelError, match="needs the repository's own code; read it"):
        load(entry(own), tmp_path)


def test_a_classifier_is_refused_as_one(tmp_path: Path) -> None:
    """ShieldGemma 2 is listed among the models that answer; its repository says what it is."""
    config = {"model_type": "shieldgemma2", "vision_config": {}}
    folder = saved(
        tmp_path / "m", {**config, "architectures": ["ShieldGemma2ForImageClassification"]}
    )
    with pytest.raises(ModelError, match="a classifier .ShieldGemma2ForImage.*no text; choose"):
        load_model(entry(folder), tmp_path)
    (tmp_path / "registry" / "models").mkdir(parents=True)
    with pytest.raises(RegistryError, match="a classifier .ShieldGemma2ForImage"):
        propose(f"path:{folder}", tmp_path, SMALL)


def test_code_of_another_repository_is_refused_though_this_one_was_read(
    newvl: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its commit isn't the entry's: tomorrow it may be other code."""
    folder, words = tmp_path / "m", "code from another repository .other/code., at a commit"
    shutil.copytree(newvl[1], folder)
    maps = {"AutoProcessor": "other/code--code_of_newvl.NewProcessor"}
    own_code.change(folder / "processor_config.json", auto_map=maps)
    with pytest.raises(ModelError, match=f"m: processor_config.json: auto_map takes {words}"):
        load(replace(entry(folder), trust_remote_code=True), tmp_path)
    (tmp_path / "registry" / "models").mkdir(parents=True)
    trusted = Request(trust_remote_code=True, notes="read by A")
    with pytest.raises(RegistryError, match=words):
        propose(f"path:{folder}", tmp_path, SMALL, trusted)
