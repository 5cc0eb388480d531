"""Families drawn at random in files as other authors write them: each is proposed, loads and scores
as the bare model does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from sdgbias.engines import load
from sdgbias.registry.propose import propose
from sdgbias.scoring import admission
from tests.builders import families
from tests.builders.bare_model import Bare, four_views, largest_difference

Style = Callable[[Path], None]


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def one_processor_file(folder: Path) -> None:
    """As transformers 5 saves: processor_config.json alone."""
    whole = _read(folder / "processor_config.json")
    for part in ("image", "video"):
        path = folder / f"{'' if part == 'image' else 'video_'}preprocessor_config.json"
        if path.is_file():
            whole[f"{part}_processor"] = _read(path)
            path.unlink()
    _write(folder / "processor_config.json", whole)


def version_four(folder: Path) -> None:
    """As repositories of 2024: preprocessor_config.json alone, the template in
    tokenizer_config.json, `torch_dtype` in config.json."""
    (folder / "processor_config.json").unlink()
    (folder / "video_preprocessor_config.json").unlink(missing_ok=True)
    template_in_tokenizer(folder)
    config = _read(folder / "config.json")
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["transformers_version"] = "4.41.2"
    _write(folder / "config.json", config)


def template_in(folder: Path, name: str) -> None:
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    _write(folder / name, {**_read(folder / name), "chat_template": text})
    template.unlink()


def template_in_tokenizer(folder: Path) -> None:
    template_in(folder, "tokenizer_config.json")


def template_in_json(folder: Path) -> None:
    """As transformers 4.4x saved those of processors."""
    template_in(folder, "chat_template.json")


def no_padding(folder: Path) -> None:
    """No padding token, and padding on the right."""
    config = _read(folder / "tokenizer_config.json")
    config.pop("pad_token", None)
    _write(folder / "tokenizer_config.json", {**config, "padding_side": "right"})
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


def chatty_generation(folder: Path) -> None:
    """Settings of sampling and several ends, as chat models state them."""
    path = folder / "generation_config.json"
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    ends = {"eos_token_id": [2, 1], "repetition_penalty": 1.05}
    _write(path, {**_read(path), **sampling, **ends})


def half_in_shards(folder: Path) -> None:
    """bfloat16 in two shards with an index, in files that the index names otherwise than
    transformers would."""
    [file] = folder.glob("*.safetensors")
    weights = {
        name: w.bfloat16() if w.is_floating_point() else w for name, w in load_file(file).items()
    }
    file.unlink()
    names = sorted(weights)
    halves = {"part-a.safetensors": names[::2], "part-b.safetensors": names[1::2]}
    for shard, own in halves.items():
        save_file({n: weights[n].contiguous() for n in own}, folder / shard, {"format": "pt"})
    index = {n: shard for shard, own in halves.items() for n in own}
    _write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})


def snapshot(folder: Path) -> None:
    """Links into a folder of blobs, as the hub's cache holds a revision; and files that are none of
    the model's."""
    (folder / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("[", encoding="utf-8")
    (folder / "model.onnx").write_bytes(b"\0")
    blobs = folder.parent / f"blobs-of-{folder.name}"
    blobs.mkdir()
    for at, path in enumerate(sorted(p for p in folder.iterdir() if p.is_file())):
        shutil.move(path, blobs / f"{at:040x}")
        path.symlink_to(Path("..") / blobs.name / f"{at:040x}")


#: The cheapest of docs/reference/models.md; between them they have every style.
CASES: dict[str, tuple[Style, ...]] = {
    "qwen2_vl": (version_four, no_padding, snapshot),
    "blip-2": (one_processor_file, half_in_shards),
    "cohere_compass": (template_in_json, chatty_generation),
    "glm_ocr": (template_in_tokenizer, half_in_shards),
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
