"""What a folder is told to be that is no model in transformers' format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.errors import ModelError, RegistryError
from sdgbias.registry.facts import look
from sdgbias.registry.propose import propose
from sdgbias.registry.spec import ModelSpec
from tests.builders.hub_repositories import SMALL, VLM, saved


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adapter_config.json", "an adapter .*without its model; merge the two"),
        ("model_index.json", "a diffusers pipeline .*no text; choose a model that answers"),
        ("params.json", "maker's own format .*transformers' format, or convert"),
        ("snapshots", "hub's cache; give the folder of a commit in its snapshots"),
        ("notes.txt", "no config.json; choose a model in transformers' format"),
    ],
)
def test_a_folder_without_config_json_is_told_as_what_it_is(
    name: str, words: str, root: Path
) -> None:
    folder = root / "m"
    folder.mkdir()
    (folder / name).write_text("{}", encoding="utf-8")
    with pytest.raises(RegistryError, match=words):
        propose(f"path:{folder}", root, SMALL)


def with_adapter(folder: Path, place: str) -> Path:
    saved(folder, {"model_type": "llava", "vision_config": {}})
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("{}", encoding="utf-8")
    return folder


BESIDE = "is an adapter beside the model's own weights"


@pytest.mark.parametrize(
    "place",
    ["adapter_config.json", "vision-lora/adapter_config.json", "adapter_model.safetensors"],
)
def test_an_adapter_beside_the_model_is_refused(place: str, root: Path) -> None:
    """Without peft it would be left out under the model's name; with it, added."""
    with pytest.raises(RegistryError, match=f"{place} {BESIDE}"):
        propose(f"path:{with_adapter(root / 'm', place)}", root, SMALL)


@pytest.mark.slow  # torch
def test_an_adapter_that_came_later_is_refused_when_the_model_is_loaded(root: Path) -> None:
    from sdgbias.engines.hf.load import load_model

    folder = with_adapter(root / "m", "adapter_config.json")
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "candidate")
    with pytest.raises(ModelError, match=f"m: .*adapter_config.json {BESIDE}"):
        load_model(spec, root)


def test_an_index_beside_all_weights_in_one_file_is_not_read(root: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    (saved(root / "m", VLM) / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    assert look("local:m", "", root).params == 2_000_000


def test_a_language_model_may_have_a_vision_config_of_null(root: Path) -> None:
    saved(root / "m", {"model_type": "llama", "vision_config": None})
    host = replace(SMALL, language=lambda: frozenset({"llama"}))
    assert not propose("local:m", root, host).spec.pictured


def test_quantised_weights_are_named(root: Path) -> None:
    config = {"model_type": "llava", "vision_config": {}}
    plain = saved(root / "m", config)
    quantised = saved(root / "q", config | {"quantization_config": {"quant_method": "fp8"}})
    lines = [propose(f"path:{f}", root, SMALL).verdicts[0] for f in (plain, quantised)]
    assert "quantised" not in lines[0] and "weights quantised (fp8)" in lines[1]


@pytest.mark.parametrize("whole", ["model.safetensors", "model-00001-of-00001.safetensors"])
def test_weights_that_lie_there_a_second_time_are_counted_once(whole: str, root: Path) -> None:
    """Mistral's repositories hold consolidated.safetensors beside the shards of transformers."""
    folder = saved(root / "m", VLM, (whole, "consolidated.safetensors"))
    facts = look(f"path:{folder}", "", root)
    assert facts.params == 2_000_000
    assert facts.weight_bytes == (folder / whole).stat().st_size


def test_a_snapshot_of_the_hubs_cache_is_named_as_its_repository(root: Path) -> None:
    """The name of its folder is a commit, which looks like a key."""
    folder = saved(root / "hub/models--open--Llava-7B/snapshots" / ("a1" * 20), VLM)
    spec = propose(f"path:{folder}", root, SMALL).spec
    assert (spec.name, spec.title) == ("llava-7b", "Llava-7B")
