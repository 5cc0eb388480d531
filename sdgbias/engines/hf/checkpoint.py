"""Loads models and other parts of a repository: pinned, safetensors only, every failure reported in
one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import cached_file

from sdgbias.engines.fingerprint import local_folder, pinned
from sdgbias.engines.hub_errors import translate
from sdgbias.errors import ModelError, OutOfMemory, SdgbiasError
from sdgbias.registry.spec import ModelSpec

#: Text of the plain RuntimeError that torch raises when main memory is full.
NO_MEMORY = "can't allocate memory"


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def memory_errors(where: str = "out of memory") -> Iterator[None]:
    """OutOfMemory in place of what torch raises when the device's or the machine's is full."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise OutOfMemory(f"{where}: {str(error).splitlines()[0]}") from None
        raise


@contextmanager
def reading(spec: ModelSpec, folder: Path | None, what: str = "can't load") -> Iterator[None]:
    """ModelError (of a folder's files), InfrastructureError (the hub) or OutOfMemory in place of
    whatever transformers raises while it reads an entry's files; ``what`` can't be done with
    them."""
    try:
        with memory_errors(f"{spec.name}: out of memory while loading"):
            yield
    except SdgbiasError:
        raise
    except Exception as error:  # faulty files raise nearly anything inside transformers
        raise translate(spec, folder, what, error) from None


def part(spec: ModelSpec, root: Path, loader: Any, **options: Any) -> Any:
    """``loader.from_pretrained`` on a registry entry's repository at its revision. Raises as
    `reading` does."""
    folder, source, where = pinned(spec, root)
    with reading(spec, folder):
        return loader.from_pretrained(source, **where, **options)


def model(spec: ModelSpec, root: Path, from_pretrained: Callable[..., Any], **options: Any) -> Any:
    """A model in its entry's dtype, ready for inference, on the accelerator where there is one and
    no option device_map splits it. Raises as `reading` does, and ModelError where the checkpoint
    lacks some of its weights, which transformers would initialise at random: a tower without its
    projection, a classifier without its head."""
    folder, source, where = pinned(spec, root)
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with reading(spec, folder):
            made, told = from_pretrained(
                source,
                dtype=getattr(torch, spec.dtype),
                use_safetensors=True,
                output_loading_info=True,
                **where,
                **options,
            )
    finally:
        logging.set_verbosity(verbosity)  # type: ignore[no-untyped-call]
    refuse_lacking(spec, made, told)
    with memory_errors(f"{spec.name}: out of memory while loading"):
        return made.eval() if "device_map" in options else made.eval().to(device())


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
    with reading(spec, None, f"can't read {name} of"):
        found = cached_file(
            spec.repo, name, revision=spec.revision, _raise_exceptions_for_missing_entries=False
        )
    return Path(found) if found else None
