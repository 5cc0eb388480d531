"""Classifies an error raised while a model's files were read: caused by the folder, the hub, the
token or the network.

transformers wraps every error of the hub's client into an OSError; the original is in the chain of
causes. What it says about files is passed on in its own first line, but for four cases in which
another command helps: code that nobody read, an unknown family, a missing package, damaged files.
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
    argument,
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
_PACKAGE = re.compile(
    r"(?:requires(?: the)?|Package) `?([\w-]+?)`? (?:library|is required|to be installed)"
    r"|No module named '(\w+)|requires `(accelerate)`"
)


def translate(
    spec: ModelSpec, folder: Path | None, what: str, error: BaseException
) -> SdgbiasError:
    """The error to raise instead of ``error``, which occurred during ``what`` ('can't load the
    processor of')."""
    about = f"{spec.name}: {what} {folder or spec.repo}: "
    why = _never(spec, folder, error) or _damaged(folder, error)
    if why or folder is not None or isinstance(error, BROKEN):
        return ModelError(about + (why or first_line(error)))
    causes = list(_causes(error))
    kinds = {type(cause).__name__ for cause in causes}
    refusal = next((c for c in causes if _status(c) and "EntryNot" not in type(c).__name__), None)
    if refusal is not None and _status(refusal) < 429:
        translated = hub.plain(spec.repo, spec.revision, refusal)
        kind = ModelError if isinstance(translated, RegistryError) else type(translated)
        return kind(f"{spec.name}: {translated}")
    offline = {"LocalEntryNotFoundError", "IncompleteSnapshotError", "OfflineModeIsEnabled"}
    if refusal is not None or kinds & offline or re.search("Connect|Timeout", " ".join(kinds)):
        why = "can't be reached, or HF_HUB_OFFLINE forbids it"
        why = f"answers {_status(refusal)}" if refusal else why
        return HubUnreachable(
            f"{spec.name}: {spec.repo}: the hub {why}, and the local cache lacks files of revision"
            f" {spec.revision}; fetch them: sdgbias models fetch {spec.name}"
        )
    lacking = kinds & {"EntryNotFoundError", "RemoteEntryNotFoundError"} or "Can't load" in str(
        error
    )
    if lacking or isinstance(error, _OF_FILES):
        return ModelError(about + first_line(error))
    return InfrastructureError(about + first_line(error))


def _never(spec: ModelSpec, folder: Path | None, error: BaseException) -> str:
    """Why these files can't be loaded here on any attempt, with the next command; '' where the
    error is of another kind."""
    texts = [str(cause) for cause in _causes(error) if isinstance(cause, _OF_FILES)]
    text = " ".join(" ".join(texts).split())
    if "trust_remote_code" in text:
        return (
            "it needs the repository's own code; read it, then: sdgbias register-model"
            f" {argument(folder or spec.repo)} --trust-remote-code --notes WHO_READ_IT --overwrite"
        )
    if "does not recognize this architecture" in text or "Unrecognized model in" in text:
        kind = re.search(r"model type `([^`]+)`", text)
        return (
            f"transformers {installed('transformers')} doesn't know"
            f" {f'model type {kind[1]}' if kind else 'this model type'}; a newer one may:"
            " pip install --upgrade transformers"
        )
    if re.search(r"instantiate the backend tokenizer|`tiktoken` is required", text):
        if folder is None or (folder / "tokenizer.model").is_file():
            return "it has no tokenizer.json; to read tokenizer.model: pip install sentencepiece"
        return "no tokenizer.json in it; save the tokenizer too: tokenizer.save_pretrained(FOLDER)"
    package = _PACKAGE.search(text)
    if package:
        name = next(filter(None, package.groups())).lower()
        # what torchvision asks for would replace a torch for CPUs by that for CUDA
        wanted = "--no-deps torchvision" if name == "torchvision" else name
        return (
            f"it needs the package {name}, which is not installed here:"
            f" pip install --constraint constraints.txt {wanted}"
        )
    return ""


def _damaged(folder: Path | None, error: BaseException) -> str:
    """What is wrong with the files of a folder, with the next command; '' where they look whole."""
    if folder is None:
        return ""
    for path in sorted(folder.glob("*.json")):
        try:
            whole = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
        except (OSError, ValueError, RecursionError):
            whole = False
        if not whole:
            return f"{path.name} is no JSON object, cut off or edited; copy the folder again"
    if why := missing_shards(folder):
        return f"{why}; copy the folder again"
    if "SafetensorError" in {type(cause).__name__ for cause in _causes(error)}:
        return (
            f"its safetensors are damaged or cut off ({first_line(error)}); copy the folder again"
        )
    text = " ".join(str(cause) for cause in _causes(error))
    if "no file named" in text:
        return "no model.safetensors in it; convert: model.save_pretrained(FOLDER)"
    if "ignore_mismatched_sizes" in text or "size mismatch" in text:
        return (
            "its weights have other shapes than config.json says; copy both again, of one revision"
        )
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
