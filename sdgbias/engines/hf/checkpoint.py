"""Loads one part of a checkpoint from disk or the hub: pinned, safetensors only, every failure
reported in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import cached_file

from sdgbias.engines.fingerprint import local_folder, pinned
from sdgbias.engines.hub_errors import BROKEN, translate
from sdgbias.errors import ModelError, OutOfMemory
from sdgbias.registry.spec import ModelSpec


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def part(spec: ModelSpec, root: Path, loader: Any, **options: Any) -> Any:
    """``loader.from_pretrained`` on a registry entry's repository at its revision. Raises
    ModelError (a folder), InfrastructureError (the hub, memory)."""
    folder, source, where = pinned(spec, root)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return loader.from_pretrained(source, **where, **options)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"{spec.name}: out of memory while loading; {str(error).splitlines()[0]}"
        ) from None
    except RuntimeError as error:  # tensors whose shape differs from the configuration
        raise ModelError(f"{spec.name}: {source}: {str(error).strip().splitlines()[0]}") from None
    except (*BROKEN, OSError, ValueError, ImportError, SafetensorError) as error:
        raise translate(spec, folder, "can't load", error) from None


def model(spec: ModelSpec, root: Path, loader: Any) -> Any:
    """A model in its entry's dtype, on the accelerator where there is one, ready for inference.
    Raises ModelError where the checkpoint lacks some of its weights, which transformers would
    initialise at random: a tower without its projection, a classifier without its head."""
    said = transformers.utils.logging.get_verbosity()  # type: ignore[no-untyped-call]
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        made, told = part(
            spec,
            root,
            loader,
            dtype=getattr(torch, spec.dtype),
            use_safetensors=True,
            output_loading_info=True,
        )
    finally:
        transformers.utils.logging.set_verbosity(said)  # type: ignore[no-untyped-call]
    refuse_lacking(spec, made, told)
    return made.eval().to(device())


def refuse_lacking(spec: ModelSpec, made: Any, told: dict[str, Any]) -> None:
    """Raises ModelError where a checkpoint lacks some of its model's weights, or has them in other
    shapes: transformers then initialises them at random. told: its loading info. Buffers that the
    model computes itself may be absent."""
    computed = {name for name, _ in made.named_buffers()}
    lacking = sorted({*map(str, told["missing_keys"])} - computed)
    lacking += sorted(map(str, told["mismatched_keys"]))
    if lacking:
        raise ModelError(
            f"{spec.name}: {spec.repo} lacks {len(lacking)} of the weights of a"
            f" {type(made).__name__}, the first {lacking[0]}; copy or download it again, whole"
        )


def file(spec: ModelSpec, root: Path, name: str) -> Path | None:
    """A single file of the repository; None where it has none of this name. Raises
    InfrastructureError when the hub can't be reached."""
    folder = local_folder(spec, root)
    if folder:
        return folder / name if (folder / name).is_file() else None
    try:
        found = cached_file(
            spec.repo, name, revision=spec.revision, _raise_exceptions_for_missing_entries=False
        )
    except OSError as error:
        raise translate(spec, None, f"can't read {name} of", error) from None
    return Path(found) if found else None
