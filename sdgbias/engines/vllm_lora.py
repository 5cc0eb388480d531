"""A LoRA adapter on top of a model's weights: option `lora` of a registry entry of the vLLM
engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdgbias.engines.fingerprint import folder_digest
from sdgbias.engines.hub_errors import translate
from sdgbias.errors import ModelError
from sdgbias.registry.entries import adapter
from sdgbias.types import ModelSpec


@dataclass(frozen=True)
class Lora:
    """folder: adapter_config.json and adapter_model.safetensors; identity: of its bytes, or its
    pinned commit; rank: its r."""

    folder: Path
    identity: str
    rank: int

    def settings(self) -> dict[str, Any]:
        """The engine's arguments."""
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": max(8, self.rank)}

    def request(self) -> Any:
        """What every request to the engine carries."""
        from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

        return LoRARequest("adapter", 1, str(self.folder))


def find(spec: ModelSpec, root: Path) -> Lora | None:
    """The adapter of a registry entry; None without one. Raises RegistryError (the option),
    ModelError (no adapter there), InfrastructureError (the hub)."""
    named = adapter(spec)
    if named is None:
        return None
    if named.repo.startswith(("local:", "path:")):
        kind, _, rest = named.repo.partition(":")
        folder = root / rest if kind == "local" else Path(rest)
        identity = folder_digest(folder) if folder.is_dir() else ""
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(named.repo, revision=named.revision))
        except Exception as error:  # of the hub's client, which has no common base
            raise translate(named, None, "can't read the adapter", error) from None
        identity = f"{named.repo}@{named.revision}"
    try:
        told = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank = int(told["r"])
        if not (folder / "adapter_model.safetensors").is_file():
            raise OSError
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(
            f"{spec.name}: {folder} is no LoRA adapter; valid: a folder with adapter_config.json"
            " (r) and adapter_model.safetensors"
        ) from None
    return Lora(folder, identity, rank)


def identity(spec: ModelSpec, root: Path) -> list[str]:
    """What an adapter, quantisation and a pipeline add to the engine's fingerprint; [] without
    any."""
    found = find(spec, root)
    named = [name for name in ("pipeline_parallel_size", "quantization") if name in spec.options]
    parts = [f"{name} {spec.options[name]}" for name in named]
    return parts + ([f"lora {found.identity}"] if found else [])
