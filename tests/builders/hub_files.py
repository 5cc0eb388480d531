"""Writes a model as hub repositories hold it: one file for each part of the processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Part of a processor -> the file that a hub repository keeps it in. save_pretrained of
#: transformers 5 puts both into processor_config.json instead; repositories made with version 4,
#: hence nearly all, have them apart.
PARTS = {
    "image_processor": "preprocessor_config.json",
    "video_processor": "video_preprocessor_config.json",
}


def write_processor(folder: Path, processor: Any) -> None:
    """preprocessor_config.json, video_preprocessor_config.json where there is a video processor,
    processor_config.json, tokenizer files and chat_template.jinja."""
    processor.save_pretrained(folder)
    path = folder / "processor_config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for part, name in PARTS.items():
        if part in whole:
            own = {**whole.pop(part), "processor_class": whole["processor_class"]}
            _write(folder / name, own)
    _write(path, whole)


def write_hub_files(folder: Path, model: Any, processor: Any, shard: str = "5GB") -> Path:
    """The whole repository; weights as safetensors in shards of at most ``shard``."""
    model.save_pretrained(folder, max_shard_size=shard)
    write_processor(folder, processor)
    return folder


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
