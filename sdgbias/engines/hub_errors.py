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
    ExpiredToken,
    Gated,
    HubUnreachable,
    InfrastructureError,
    ModelError,
    SdgbiasError,
)
from sdgbias.types import ModelSpec

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
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    told = f"{spec.name}: {what} {folder or spec.repo}: {line}"
    never = _never(spec, folder, error) or _damaged(folder, error)
    if never:
        return ModelError(f"{spec.name}: {what} {folder or spec.repo}: {never}")
    if folder is not None or isinstance(error, BROKEN):
        return ModelError(told)
    kinds = {type(cause).__name__ for cause in _causes(error)}
    status = next((code for cause in _causes(error) if (code := _status(cause))), 0)
    at = f"{spec.name}: {spec.repo}"
    if "GatedRepoError" in kinds and status == 401:
        return Gated(
            f"{at} is gated and no token was sent (401); accept its conditions on the hub, then: hf"
            " auth login, or set HF_TOKEN"
        )
    if "GatedRepoError" in kinds or status == 403:
        return Gated(
            f"{at} is gated and this account has no access ({status or 403}); accept its conditions"
            " on the hub, then run this again"
        )
    if "RevisionNotFoundError" in kinds:
        return ModelError(
            f"{at} has no revision {spec.revision} (any more); pin another: sdgbias register-model"
            f" {spec.repo} --overwrite"
        )
    if "RepositoryNotFoundError" in kinds:
        return ModelError(
            f"{at} is not on the hub, or private to others ({status}); check repo in"
            f" registry/models/{spec.name}.yaml"
        )
    if status == 401:
        return ExpiredToken(
            f"{at}: the hub refuses the token (401), expired or revoked; make a new one: hf auth"
            " login, or set HF_TOKEN"
        )
    if (
        kinds & {"LocalEntryNotFoundError", "IncompleteSnapshotError", "OfflineModeIsEnabled"}
        or status >= 429
        or any("Connect" in k or "Timeout" in k for k in kinds)
    ):
        why = f"answers {status}" if status else "can't be reached, or HF_HUB_OFFLINE forbids it"
        return HubUnreachable(
            f"{at}: the hub {why}, and the local cache lacks files of revision {spec.revision};"
            f" fetch them: sdgbias models fetch {spec.name}"
        )
    if "EntryNotFoundError" in kinds or "RemoteEntryNotFoundError" in kinds:
        return ModelError(told)
    if "Can't load image processor" in line or "Can't load tokenizer" in line:
        return ModelError(
            f"{at} has no {'tokenizer' if 'tokenizer' in line else 'preprocessor_config.json'} at"
            f" revision {spec.revision}; choose a repository that holds the whole model"
        )
    # transformers' own errors about files that exist: retrying would not read them differently
    if isinstance(error, _OF_FILES):
        return ModelError(told)
    return InfrastructureError(told)


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
    package = (wanted or missing or [""] * 2)[1]
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
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()
        lost = sorted({str(name) for name in shards if not (folder / str(name)).is_file()})
        if lost:
            return f"{lost[0]} is missing ({len(lost)} of {len(set(shards))} shards); {again}"
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
