"""The processor of a repository, loaded as a user's machine loads it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from transformers import PreTrainedConfig

from sdgbias.engines.hf.processor import fill_from_config, load_processor
from sdgbias.registry.spec import ModelSpec
from tests.builders.families import SMALL, write_small

ROOT = Path(__file__).resolve().parents[2]
#: Loaders of transformers that run on a user's machine and nowhere may be replaced.
LOADERS = ("AutoProcessor", "AutoModelForImageTextToText")


@pytest.mark.parametrize("family", SMALL)
def test_every_family_loads_with_pillow_pixels_and_its_own_video_processor(
    family: str, tmp_path: Path
) -> None:
    folder = write_small(tmp_path / family, family)
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")
    processor = load_processor(spec, Path())
    assert type(processor.image_processor).__name__.endswith("Pil")
    has_video = (folder / "video_preprocessor_config.json").is_file()
    assert has_video == (getattr(processor, "video_processor", None) is not None)
    assert has_video == (family in ("llava_onevision", "qwen2_5_vl", "internvl"))
    made = processor.image_processor([Image.new("RGB", (56, 56))], return_tensors="pt")
    assert made["pixel_values"].numel() > 0


def test_what_counts_picture_tokens_is_taken_from_config_json(tmp_path: Path) -> None:
    """Without it each prompt with a picture failed: LLaVA as the hub had it in 2023 and 2024."""
    folder = write_small(tmp_path / "m", "llava")
    path = folder / "processor_config.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")
    whole = load_processor(spec, Path())
    for name in ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"):
        told.pop(name, None)
    path.write_text(json.dumps(told), encoding="utf-8")
    shown = {"images": [[Image.new("RGB", (56, 56))]], "text": ["<image> Q"]}
    filled = load_processor(spec, Path())
    assert filled(**shown)["input_ids"] == whole(**shown)["input_ids"]
    filled.patch_size = None
    with pytest.raises(ValueError, match=r"neither .* patch_size nor config.json vision_config\."):
        fill_from_config(filled, PreTrainedConfig)


def test_torchvision_is_imported_beside_this_torch() -> None:
    """In a new process, in the order of the package: engines first, then transformers."""
    code = (
        "import sdgbias.engines, torchvision, torch;"
        " from transformers import Qwen2VLVideoProcessor;"
        " assert hasattr(torch.ops.torchvision, 'nms'); Qwen2VLVideoProcessor()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


_NAMES = "|".join(LOADERS)
#: One of them, or its from_pretrained, assigned to or named in a call that patches it.
_REPLACED = re.compile(
    rf"""\b(?:{_NAMES}|from_pretrained) = |\b(?:setattr|patch|object)\([^()]*"""
    rf"""['"](?:[\w.]*\b(?:{_NAMES})(?:\.from_pretrained)?|from_pretrained)['"]"""
)


def test_no_test_and_no_bench_replaces_a_loader() -> None:
    """What runs here must be what runs on a user's machine."""
    own = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}: {where}"
        for folder in ("tests", "bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != own
        for where in _REPLACED.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "patched.setattr(hf.AutoProcessor, 'from_pretrained', lambda *_, **__: processor)",
        "patch.object(engine.AutoProcessor, 'from_pretrained', processor)",
        "patch('transformers.AutoProcessor.from_pretrained', processor)",
        "AutoProcessor.from_pretrained = processor",
        "monkeypatch.setattr(hf, 'AutoProcessor', Mine)",
        "hf.AutoProcessor = Mine",
    ],
)
def test_a_replaced_loader_is_found(code: str) -> None:
    assert _REPLACED.search(code)


def test_a_loader_that_is_called_is_not_replaced() -> None:
    assert not _REPLACED.search("p = AutoProcessor.from_pretrained(folder, use_fast=False)")
