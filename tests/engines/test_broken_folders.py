"""Real folders with one fault each: one line with the next command, exit code of ModelError."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from sdgbias.engines import load
from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from tests.builders import families


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.write(tmp_path_factory.mktemp("whole") / "m", "qwen2_5_vl", shard="60KB")


def spec(folder: Path) -> ModelSpec:
    return ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")


def cut(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:200])


def lose(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def put(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


def setting(name: str, **values: object) -> Callable[[Path], Any]:
    """Changes values of a JSON file by path (text_config__hidden_size)."""

    def change(folder: Path) -> None:
        whole = json.loads((folder / name).read_text(encoding="utf-8"))
        for path, value in values.items():
            *way, last = path.split("__")
            at = whole
            for step in way:
                at = at[step]
            at[last] = value
        (folder / name).write_text(json.dumps(whole), encoding="utf-8")

    return change


def lack(weight: str) -> Callable[[Path], Any]:
    """A checkpoint that was saved without one of its weights."""

    def change(folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        whole = json.loads(index.read_text(encoding="utf-8"))
        [name] = [name for name in whole["weight_map"] if name.endswith(weight)]
        shard = folder / whole["weight_map"].pop(name)
        kept = {n: w for n, w in load_file(shard).items() if n != name}
        save_file(kept, shard, {"format": "pt"})
        index.write_text(json.dumps(whole), encoding="utf-8")

    return change


SHARD = "model-00001-of-00007.safetensors"
OWN = {"AutoConfig": "configuration_own.Own", "AutoModelForImageTextToText": "modeling_own.Own"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (cut(SHARD), "safetensors are damaged or cut off"),
        (lose(SHARD), f"{SHARD} is missing (1 of 7 shards); copy the folder again"),
        (lack("layers.1.mlp.down_proj.weight"), "lacks 1 of the weights of a Qwen2_5_VLFor"),
        (cut("config.json"), "config.json is no JSON object, cut off or edited; copy the folder"),
        (put("tokenizer.json", '{"a":'), "tokenizer.json is no JSON object"),
        (put("preprocessor_config.json", "[]"), "preprocessor_config.json is no JSON object"),
        (lose("preprocessor_config.json"), "no preprocessor_config.json in it; copy the folder"),
        (
            setting("config.json", text_config__hidden_size=64),
            "its weights have other shapes than config.json says; copy both again",
        ),
        (
            setting("config.json", model_type="qwen9_vl"),
            "doesn't know model type qwen9_vl; a newer one may: pip install --upgrade transformers",
        ),
        (
            setting("config.json", model_type="own_vl", auto_map=OWN),
            "--trust-remote-code --notes WHO_READ_IT --overwrite",
        ),
        (setting("config.json", vision_config__patch_size="x"), "patch_size"),
        (setting("preprocessor_config.json", size="big"), "size"),
        (put("chat_template.jinja", "{% for m in %}"), "repair chat_template.jinja"),
    ],
)
def test_a_folder_that_never_loads_is_told_in_one_line(
    fault: Callable[[Path], Any], words: str, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(whole, folder)
    fault(folder)
    with pytest.raises(ModelError) as told:
        load(spec(folder), tmp_path)
    assert words in str(told.value) and "\n" not in str(told.value)
    assert told.value.exit_code == 5


def test_a_sharded_folder_loads(whole: Path, tmp_path: Path) -> None:
    assert len(list(whole.glob("*.safetensors"))) == 7
    assert load(spec(whole), tmp_path).fingerprint
