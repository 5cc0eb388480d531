"""The paper's two text encoders (Wu et al., App. A.2) as labels.TextEncoder: CLIP's text tower and
a sentence T5.

They are entries of the registry like any model (backend `text-encoder`, option `kind`), loaded only
on demand. methods/labels.py describes their use, and why an answer must be similar enough to count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, CLIPTextModelWithProjection, T5EncoderModel

from sdgbias.engines.fingerprint import fingerprint
from sdgbias.engines.hf import loading
from sdgbias.engines.options import TextEncoderOptions, read
from sdgbias.errors import ModelError, RegistryError
from sdgbias.methods.labels import TextEncoder
from sdgbias.registry.spec import ModelSpec

BACKEND = "text-encoder"
#: Prefix that the authors' code puts before labels and answers alike, and the number of words of an
#: answer that it keeps.
PHOTO, WORDS = "a photo of a ", 50
#: The limit of sentence-transformers for its T5 checkpoints, in tokens.
T5_TOKENS = 256
_VERSION = "text-encoder-1"


def load(spec: ModelSpec, root: Path) -> TextEncoder:
    """The encoder of a registry entry. Raises RegistryError (no text encoder, unknown kind),
    ModelError, InfrastructureError."""
    if spec.backend != BACKEND:
        raise RegistryError(
            f"registry/models/{spec.name}.yaml: backend is {spec.backend}; a text encoder has"
            f" backend {BACKEND}"
        )
    kinds = {"clip": ClipText, "t5": SentenceT5}
    return kinds[read(spec, TextEncoderOptions).kind](spec, root)


class _Tower:
    """What both have in common: the checkpoint's parts, and batches of unit rows."""

    name: str
    width: int

    def __init__(self, spec: ModelSpec, root: Path, model: Any, *more: str) -> None:
        self.floor = read(spec, TextEncoderOptions).floor
        self.model = loading.model(spec, root, model.from_pretrained)
        self.tokenizer = loading.part(spec, root, AutoTokenizer)
        self.batch_size = spec.batch_size
        kind = loading.device().type
        self.fingerprint = fingerprint(spec, root, _VERSION, self.name, *more, kind)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, D) float32 unit rows."""
        inputs = [self.phrase(text) for text in texts]
        parts = (inputs[at : at + self.batch_size] for at in range(0, len(inputs), self.batch_size))
        blocks = [
            torch.nn.functional.normalize(self._encode(part).float(), dim=-1).cpu().numpy()
            for part in parts
        ]
        return np.concatenate([np.zeros((0, self.width), np.float32), *blocks])

    @staticmethod
    def phrase(text: str) -> str:
        """The tower's input."""
        return text

    def _encode(self, texts: list[str]) -> torch.Tensor:
        raise NotImplementedError


class ClipText(_Tower):
    """CLIP's text tower with its projection. Every text is read as "a photo of a {its first 50
    words}", labels and answers alike, as in the authors' code; a text that already begins so is not
    changed."""

    name = "clip"

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        super().__init__(spec, root, CLIPTextModelWithProjection)
        self.width = int(self.model.config.projection_dim)

    @staticmethod
    def phrase(text: str) -> str:
        """The tower's input. The limit of 50 words applies to the answer, not to the words before
        it."""
        return PHOTO + " ".join(text.removeprefix(PHOTO).split()[:WORDS])

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> torch.Tensor:
        limit = int(self.model.config.max_position_embeddings)
        inputs = self.tokenizer(
            texts, padding=True, truncation=True, max_length=limit, return_tensors="pt"
        ).to(self.model.device)
        vectors: torch.Tensor = self.model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        ).text_embeds
        return vectors


class SentenceT5(_Tower):
    """A T5 encoder as a sentence encoder: mean over the real tokens, then the checkpoint's dense
    layer where it has one (sentence-t5-* have: `2_Dense`), each row normalised to length one."""

    name = "t5"

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.dense, digest = _dense(spec, root)
        super().__init__(spec, root, T5EncoderModel, digest)
        self.width = int(
            self.model.config.d_model if self.dense is None else self.dense.out_features
        )

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> torch.Tensor:
        inputs = self.tokenizer(
            texts, padding=True, truncation=True, max_length=T5_TOKENS, return_tensors="pt"
        ).to(self.model.device)
        mask = inputs["attention_mask"]
        states = self.model(
            input_ids=inputs["input_ids"], attention_mask=mask
        ).last_hidden_state.float()  # (B, L, H)
        real = mask[..., None].to(states.dtype)
        pooled: torch.Tensor = (states * real).sum(1) / real.sum(1).clamp(min=1.0)  # (B, H)
        return pooled if self.dense is None else self.dense(pooled)


def _dense(spec: ModelSpec, root: Path) -> tuple[Any, str]:
    """(linear layer or None, digest of its bytes) of a sentence-transformers checkpoint;
    modules.json names the folder that contains it."""
    modules = loading.file(spec, root, "modules.json")
    listed = json.loads(modules.read_text(encoding="utf-8")) if modules else []
    folders = [m["path"] for m in listed if str(m.get("type", "")).endswith(".Dense")]
    if not folders:
        return None, "no dense layer"
    if len(folders) > 1:
        raise ModelError(
            f"{spec.name}: modules.json lists {len(folders)} dense layers; known are checkpoints"
            " with one"
        )
    settings, weights = (
        loading.file(spec, root, f"{folders[0]}/{name}")
        for name in ("config.json", "model.safetensors")
    )
    if settings is None or weights is None:
        raise ModelError(
            f"{spec.name}: {folders[0]} has no config.json or no model.safetensors; pickles are"
            " never loaded: convert it"
        )
    dense = json.loads(settings.read_text(encoding="utf-8"))
    if not str(dense.get("activation_function", "Identity")).endswith("Identity"):
        raise ModelError(
            f"{spec.name}: {folders[0]}: activation {dense['activation_function']}; known: Identity"
        )
    state = {
        name.removeprefix("linear."): value.float() for name, value in load_file(weights).items()
    }
    layer = torch.nn.Linear(
        int(dense["in_features"]), int(dense["out_features"]), bias="bias" in state
    )
    try:
        layer.load_state_dict(state)
    except RuntimeError:
        raise ModelError(
            f"{weights}: its tensors don't fit {settings.name} beside it; fetch the checkpoint"
            " again"
        ) from None
    return layer.eval().to(loading.device()), hashlib.sha256(weights.read_bytes()).hexdigest()
