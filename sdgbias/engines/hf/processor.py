"""A model's processor as its repository describes it, with the image processor that gives the same
pixels on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoProcessor

from sdgbias.engines.fingerprint import local_folder
from sdgbias.engines.hub_errors import trouble
from sdgbias.types import ModelSpec


def load_processor(spec: ModelSpec, root: Path) -> Any:
    """Tokenizer, chat template and image processor, without the model. Raises ModelError,
    InfrastructureError.

    The image processor is the one that computes with Pillow, where the family has one: torchvision
    resizes a little differently. It is loaded apart, because AutoProcessor hands the word `backend`
    to every part, and no video processor has a Pillow one.
    """
    folder = local_folder(spec, root)
    source = str(folder or spec.repo)
    where: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    if folder is None:
        where["revision"] = spec.revision
    try:
        processor: Any = AutoProcessor.from_pretrained(source, **where)
        if getattr(processor, "image_processor", None) is not None:
            processor.image_processor = AutoImageProcessor.from_pretrained(
                source, backend="pil", **where
            )
    except (OSError, ValueError, ImportError) as error:
        raise trouble(spec, folder, "can't load the processor of", error) from None
    return processor
