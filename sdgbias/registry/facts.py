"""What a hub repository or a folder of weights says about its model: config.json, the processor's
configuration, the headers or sizes of its safetensors; never weights, pickles or code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdgbias.errors import HubUnreachable, RegistryError
from sdgbias.files import json_file
from sdgbias.registry import hub
from sdgbias.registry.entries import COMMIT
from sdgbias.registry.hub import ModelFacts
from sdgbias.registry.weights import folder_digest

_SAVED = "give a folder saved with save_pretrained()"


def classifies(architecture: str) -> str:
    """Why a model of this class can't be scored: it puts out classes (ShieldGemma 2: yes or no), no
    text; '' for any other."""
    if not re.search(r"For\w*Classification$", architecture):
        return ""
    return f"a classifier ({architecture}): puts out classes, no text; choose a model that answers"


def code_elsewhere(repo: str, *configs: Mapping[str, Any]) -> str:
    """Why code of a repository that was read may still not run: its auto_map ('OWNER/NAME--file.X')
    takes it from another repository, at whatever commit is the newest there; '' where none does."""
    for config in configs:
        named = config.get("auto_map") or {}
        for given in named.values() if isinstance(named, dict) else ():
            for reference in given if isinstance(given, list | tuple) else (given,):
                other, mark, _ = str(reference or "").partition("--")
                if mark and other != repo:
                    return (
                        f"auto_map takes code from another repository ({other}), at a commit that"
                        " nothing pins; copy that code beside config.json and take"
                        f" '{other}--' out of auto_map"
                    )
    return ""


def adapters(names: Iterable[str]) -> str:
    """Why a model beside which its files hold adapters (Phi-4-multimodal's vision-lora) can't be
    scored: they would be left out under its name, or added where peft is installed; '' without."""
    configs = sorted(name for name in names if name.rsplit("/", 1)[-1] == "adapter_config.json")
    if not configs:
        return ""
    return (
        f"{configs[0]} is an adapter beside the model's own weights, which would be left out; merge"
        " the two (peft: merge_and_unload), or take the adapter out of a copy of the folder"
    )


def look(repo: str, revision: str, root: Path) -> ModelFacts:
    """The facts of a repository or folder; ``commit`` is the revision to register."""
    if repo.startswith(("local:", "path:")):
        folder = root / repo[6:] if repo.startswith("local:") else Path(repo[5:])
        facts = _look_at_folder(repo, folder)
        return replace(facts, commit=revision or folder_digest(folder)[:40])
    try:
        facts = hub.look(repo, revision or None)
    except HubUnreachable as error:
        if not COMMIT.fullmatch(revision):
            raise
        why = str(error).removeprefix(f"{repo}: ").split(";")[0]
        onward = "when it answers, the same command again with --overwrite"
        return ModelFacts(repo, revision, unread=f"registered unread ({why}); {onward}")
    if not any(name.endswith(".safetensors") for name in facts.files):
        raise RegistryError(
            f"{repo}: safetensors only, none in revision {facts.commit}; choose a revision that has"
            " them"
        )
    if why := adapters(facts.files):
        raise RegistryError(f"{repo}: {why}")
    return facts


def _look_at_folder(repo: str, folder: Path) -> ModelFacts:
    if folder.is_dir() and not (folder / "config.json").exists():
        raise RegistryError(f"{folder}: {hub.no_config([p.name for p in folder.iterdir()])}")
    config = _read_json(folder / "config.json")
    processor: dict[str, Any] = {}
    for name in hub.PROCESSOR:
        processor |= _read_json(folder / name) if (folder / name).is_file() else {}
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        kinds = (".bin", ".pt", ".pth", ".ckpt")
        others = sorted(path.name for path in folder.iterdir() if path.suffix in kinds)
        has = f" (found {', '.join(others[:3])})" if others else ""
        raise RegistryError(
            f"{folder}: safetensors only, none here{has}; convert: model.save_pretrained(FOLDER)"
        )
    if why := missing_shards(folder):
        raise RegistryError(f"{folder}: {why}; copy the folder again")
    if why := adapters(p.relative_to(folder).as_posix() for p in folder.rglob("adapter_*.json")):
        raise RegistryError(f"{folder}: {why}")
    return ModelFacts(
        repo,
        params=sum(map(_count_parameters, shards)),
        config=config,
        processor=processor,
        weight_bytes=sum(path.stat().st_size for path in shards),
    )


def _read_json(path: Path) -> dict[str, Any]:
    return json_file(path, "not a JSON object", _SAVED, RegistryError)


def missing_shards(folder: Path) -> str:
    """Which shards the index of a folder's safetensors names and the folder lacks; '' where none
    are missing, or there is no index."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ""
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{index.name} is no index of safetensors"
    lost = sorted(str(name) for name in named if not (folder / str(name)).is_file())
    return f"{lost[0]} is missing ({len(lost)} of {len(named)} shards)" if lost else ""


def _count_parameters(path: Path) -> int:
    """Sum of the tensor sizes in a safetensors header."""
    from huggingface_hub import parse_local_safetensors_file_metadata
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        return sum(parse_local_safetensors_file_metadata(path).parameter_count.values())
    except (OSError, ValueError, SafetensorsParsingError) as error:
        raise RegistryError(
            f"{path}: not a safetensors file ({type(error).__name__}); copy the folder again"
        ) from None
