"""What a hub repository or a folder of weights says about its model: config.json, the processor's
configuration, the headers or sizes of its safetensors; never weights, pickles or code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sdgbias.errors import HubUnreachable, RegistryError
from sdgbias.files import json_file
from sdgbias.registry import hub
from sdgbias.registry.entries import COMMIT
from sdgbias.registry.hub import ModelFacts
from sdgbias.registry.weights import folder_digest

_SAVED = "give a folder saved with save_pretrained()"
#: Where a processor's settings are; what the later file says counts.
_PROCESSOR = ("preprocessor_config.json", "processor_config.json")
#: What an adapter's folder holds.
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
#: A file or folder of what has no config.json -> what it is, and what to give instead.
_OTHERS = {
    "adapter_config.json": "an adapter (adapter_config.json) without its model; merge the two"
    " (PeftModel.merge_and_unload) and save the whole with its processor",
    "model_index.json": "a diffusers pipeline (model_index.json), which makes pictures, no text;"
    " choose a model that answers",
    "params.json": "weights in their maker's own format (params.json); choose the repository in"
    " transformers' format, or convert them",
    "snapshots": "a repository of the hub's cache; give the folder of a commit in its snapshots",
}


def answers_not(architecture: str, encodes: bool = False) -> str:
    """Why a model of this class can't be scored: it puts out classes (ShieldGemma 2: yes or no), or
    fills gaps (BERT); '' for any other. ``encodes``: it would be loaded as a language model,
    without the encoder that reads its prompts (BART)."""
    if re.search(r"For\w*Classification$", architecture):
        why = f"a classifier ({architecture}): puts out classes, no text"
    elif architecture.endswith("ForMaskedLM"):
        why = f"a model that fills gaps ({architecture}): it sees both sides of a word, writes none"
    elif encodes:
        why = f"an encoder-decoder ({architecture}), of which only the decoder would be loaded"
    else:
        return ""
    return f"{why}; choose a model that answers"


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
    files = sorted(name for name in names if name.rsplit("/", 1)[-1] in ADAPTERS)
    if not files:
        return ""
    return (
        f"{files[0]} is an adapter beside the model's own weights, which would be left out; merge"
        " the two (peft: merge_and_unload), or take the adapter out of a copy of the folder"
    )


def look(repo: str, revision: str, root: Path) -> ModelFacts:
    """The facts of a repository or folder; ``commit`` is the revision to register. Raises
    RegistryError (not there, no such revision, no model in transformers' format), Gated,
    ExpiredToken, HubUnreachable (and no commit given)."""
    if repo.startswith(("local:", "path:")):
        folder = root / repo[6:] if repo.startswith("local:") else Path(repo[5:])
        facts = _look_at_folder(repo, folder)
        return replace(facts, commit=revision or folder_digest(folder)[:40])
    try:
        facts = hub.commit(repo, revision or None)
        where = f"{repo}, revision {facts.commit}"
        facts = _configured(facts, where, partial(hub.read_json, repo, facts.commit))
        return replace(facts, params=facts.params or hub.count_parameters(repo, facts.commit))
    except HubUnreachable as error:
        if not COMMIT.fullmatch(revision):
            raise
        why = str(error).removeprefix(f"{repo}: ").split(";")[0]
        onward = "when it answers, the same command again with --overwrite"
        return ModelFacts(repo, revision, unread=f"registered unread ({why}); {onward}")


def _look_at_folder(repo: str, folder: Path) -> ModelFacts:
    def read(name: str) -> dict[str, Any]:
        return json_file(folder / name, "not a JSON object", _SAVED, RegistryError)

    if not folder.is_dir():
        read("config.json")  # which says so
    paths = list(folder.iterdir())
    if folder / "config.json" in paths:
        paths += folder.rglob("adapter_*")
    files = {path.relative_to(folder).as_posix(): "" for path in paths}
    facts = _configured(ModelFacts(repo, files=files), str(folder), read)
    if why := missing_shards(folder):
        raise RegistryError(f"{folder}: {why}; copy the folder again")
    shards = [folder / name for name in sorted(hub.weight_files(files))]
    return replace(
        facts,
        params=sum(map(_count_parameters, shards)),
        weight_bytes=sum(path.stat().st_size for path in shards),
    )


def _configured(facts: ModelFacts, where: str, read: Callable[[str], dict[str, Any]]) -> ModelFacts:
    """The facts with the configurations that ``read`` gives of a repository or folder of the files
    ``facts.files``. RegistryError where these are no model in transformers' format."""
    names = facts.files
    if "config.json" not in names:
        other = next((what for name, what in _OTHERS.items() if name in names), "")
        lacking = "no config.json; choose a model in transformers' format (save_pretrained)"
        raise RegistryError(f"{where}: {other or lacking}")
    if not any(name.endswith(".safetensors") for name in names):
        others = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
        has = f" (found {', '.join(others[:3])})" if others else ""
        raise RegistryError(
            f"{where}: safetensors only, none here{has}; choose a revision that has them, or"
            " convert: model.save_pretrained(FOLDER)"
        )
    if why := adapters(names):
        raise RegistryError(f"{where}: {why}")
    processor: dict[str, Any] = {}
    for name in _PROCESSOR:
        processor |= read(name) if name in names else {}
    return replace(facts, config=read("config.json"), processor=processor)


def missing_shards(folder: Path) -> str:
    """Which shards the index of a folder's safetensors names and the folder lacks; '' where none
    are missing, or no index is read: none there, or beside all weights in one file."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file() or (folder / "model.safetensors").is_file():
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
