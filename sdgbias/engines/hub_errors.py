"""Classifies an error raised while a model's files were read: caused by the folder, the hub, the
token or the network.

transformers wraps every error of the hub's client into an OSError; the original is in the chain of
causes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from sdgbias.engines.fingerprint import installed
from sdgbias.errors import (
    HubUnreachable,
    InfrastructureError,
    ModelError,
    RegistryError,
    SdgbiasError,
    first_line,
)
from sdgbias.registry import hub
from sdgbias.registry.facts import missing_shards
from sdgbias.registry.spec import ModelSpec

#: Errors raised inside transformers where a repository's files lack or misstate a setting; retrying
#: does not help.
BROKEN = (TypeError, LookupError, AttributeError)
#: Errors that transformers raises about files that it could read.
_OF_FILES = (ValueError, ImportError, TypeError, KeyError, AttributeError, RuntimeError)


def translate(
    spec: ModelSpec, folder: Path | None, what: str, error: BaseException
) -> SdgbiasError:
    """The error to raise instead of ``error``, which occurred during ``what`` ('can't load the
    processor of')."""
    line = first_line(error)
    message = f"{spec.name}: {what} {folder or spec.repo}: {line}"
    never = _never(spec, folder, error) or _damaged(folder, error)
    if never:
        return ModelError(f"{spec.name}: {what} {folder or spec.repo}: {never}")
    if folder is not None or isinstance(error, BROKEN):
        return ModelError(message)
    at = f"{spec.name}: {spec.repo}"
    kinds = {type(cause).__name__ for cause in _causes(error)}
    answered = next(
        (c for c in _causes(error) if _status(c) and "EntryNotFound" not in type(c).__name__), None
    )
    if answered is not None and _status(answered) < 429:
        translated = hub.plain(spec.repo, spec.revision, answered)
        kind = ModelError if isinstance(translated, RegistryError) else type(translated)
        return kind(f"{spec.name}: {translated}")
    if (
        kinds & {"LocalEntryNotFoundError", "IncompleteSnapshotError", "OfflineModeIsEnabled"}
        or answered is not None
        or any("Connect" in k or "Timeout" in k for k in kinds)
    ):
        why = "can't be reached, or HF_HUB_OFFLINE forbids it"
        why = why if answered is None else f"answers {_status(answered)}"
        return HubUnreachable(
            f"{at}: the hub {why}, and the local cache lacks files of revision {spec.revision};"
            f" fetch them: sdgbias models fetch {spec.name}"
        )
    if kinds & {"EntryNotFoundError", "RemoteEntryNotFoundError"}:
        return ModelError(message)
    if "Can't load image processor" in line or "Can't load tokenizer" in line:
        return ModelError(
            f"{at} has no {'tokenizer' if 'tokenizer' in line else 'preprocessor_config.json'} at"
            f" revision {spec.revision}; choose a repository that holds the whole model"
        )
    # transformers' own errors about files that exist: retrying would not read them differently
    if isinstance(error, _OF_FILES):
        return ModelError(message)
    return InfrastructureError(message)


def _never(spec: ModelSpec, folder: Path | None, error: BaseException) -> str:
    """Why these files can't be loaded here on any attempt, with the next command; '' where the
    error is of another kind."""
    texts = [str(cause) for cause in _causes(error) if isinstance(cause, _OF_FILES)]
    text = " ".join(" ".join(texts).split())
    again = f"sdgbias register-model {folder or spec.repo}"
    if "trust_remote_code" in text:
        return (
            "it needs the repository's own code; read it, then:"
            f" {again} --trust-remote-code --notes WHO_READ_IT --overwrite"
        )
    if "does not recognize this architecture" in text or "Unrecognized model in" in text:
        kind = re.search(r"model type `([^`]+)`", text)
        named = f"model type {kind[1]}" if kind else "this model type"
        return (
            f"transformers {installed('transformers')} doesn't know {named}; a newer one may:"
            " pip install --upgrade transformers"
        )
    if re.search(r"instantiate the backend tokenizer|`tiktoken` is required", text):
        if folder is None or (folder / "tokenizer.model").is_file():
            return "it has no tokenizer.json; to read tokenizer.model: pip install sentencepiece"
        return "no tokenizer.json in it; save the tokenizer too: tokenizer.save_pretrained(FOLDER)"
    wanted = re.search(
        r"(?:requires(?: the)?|Package) `?([\w-]+?)`? (?:library|is required|to be installed)", text
    )
    missing = re.search(r"No module named '([\w.]+)'", text)
    package = (wanted or missing or [""] * 2)[1].partition(".")[0]
    if package.lower() == "torchvision":
        return (
            "its processor needs torchvision, which is not installed here:"
            " pip install --constraint constraints.txt --no-deps torchvision"
        )
    if "requires `accelerate`" in text:
        return (
            "device_map needs the package accelerate, of the extra large:"
            ' pip install --constraint constraints.txt ".[large]"'
        )
    if package in ("num2words", "timm"):
        return (
            f"it needs the package {package}, of the extra families:"
            ' pip install --constraint constraints.txt ".[families]"'
        )
    if package and isinstance(error, ImportError):
        return f"it needs the package {package}: pip install {package}"
    return ""


def _damaged(folder: Path | None, error: BaseException) -> str:
    """What is wrong with the files of a folder, with the next command; '' where they look whole."""
    if folder is None:
        return ""
    again = "copy the folder again"
    for path in sorted(folder.glob("*.json")):
        try:
            whole = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
        except (OSError, ValueError):
            whole = False
        if not whole:
            return f"{path.name} is no JSON object, cut off or edited; {again}"
    if why := missing_shards(folder):
        return f"{why}; {again}"
    text = " ".join(str(cause) for cause in _causes(error))
    if "SafetensorError" in {type(cause).__name__ for cause in _causes(error)}:
        return f"its safetensors are damaged or cut off ({str(error).splitlines()[0]}); {again}"
    if "no file named" in text:
        return "no model.safetensors in it; convert: model.save_pretrained(FOLDER)"
    if "ignore_mismatched_sizes" in text or "size mismatch" in text:
        return (
            "its weights have other shapes than config.json says; copy both again, of one revision"
        )
    if "image processor" in text and not (folder / "preprocessor_config.json").is_file():
        return f"no preprocessor_config.json in it; {again}"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
