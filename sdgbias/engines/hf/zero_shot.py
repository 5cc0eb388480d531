"""The fairness paper's two baselines as engines (CLIP by similarity of picture and label, ViT by
its trained classification head), and its two text encoders (Wu et al., App. A.2), CLIP's text tower
and a sentence T5, as labels.TextEncoder.

Both baselines choose one label from a list; neither reads a question. A direct question lists its
labels between [ and ], the only part of it that these engines use; the chosen label is the free
answer. A single-choice question (p2, p3) has no such list: it is refused prompt by prompt
(``NotAnswerable``), is counted separately, neither as wrong nor as failed, and is not retried. The
paper has N/A there. Text encoders are entries of the registry like any model (backend
`text-encoder`, option `kind`); methods/labels.py describes their use, and why an answer must be
similar enough to count.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    CLIPModel,
    CLIPTextModelWithProjection,
    T5EncoderModel,
    ViTForImageClassification,
)

from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS, fingerprint
from sdgbias.engines.hf.load import Repository, device
from sdgbias.engines.options import TextEncoderOptions, VitOptions, read
from sdgbias.errors import ModelError, NotAnswerable, RegistryError
from sdgbias.files import packaged_yaml
from sdgbias.methods.labels import TextEncoder, plain_form
from sdgbias.raw.facet import normalise
from sdgbias.raw.images.composite import open_picture
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Generated, Prompt, ScoreBatch

_LIST = re.compile(r"\[([^\[\]]+)\]")
_VERSION = VERSIONS["vit-zero-shot"]
#: The authors' phrase for a class in CLIP prompts.
PHRASE = "a photo of a {}"
#: Words of an answer that the authors' code keeps.
WORDS = 50
#: The limit of sentence-transformers for its T5 checkpoints, in tokens.
T5_TOKENS = 256


def labels_of(prompt: Prompt) -> list[str]:
    """The labels that a direct question lists: "... from this list: [astronaut, backpacker]".
    Raises NotAnswerable without a list."""
    listed = _LIST.findall(prompt.text)
    names = [name.strip() for name in listed[-1].split(",")] if listed else []
    if len(names) < 2 or not all(names):
        raise NotAnswerable(
            "not a question that this model can answer, it lists no labels between [ and ]:"
            f" {prompt.text[:60]!r}"
        )
    return names


def picture_of(prompt: Prompt) -> Image.Image:
    """The one picture of a prompt. Raises NotAnswerable for none or several."""
    if len(prompt.images) != 1:
        raise NotAnswerable(
            f"not a question that this model can answer: it shows {len(prompt.images)} pictures,"
            " needed is one"
        )
    return open_picture(prompt.images[0])


class ZeroShot(Backend):
    """An engine that chooses one of the labels that a prompt lists. Prompts that list the same ones
    are scored together."""

    forces_starts, chooses_labels = False, True

    def __init__(self, spec: ModelSpec, root: Path, model: Any) -> None:
        self.files = Repository(spec, root)
        self.model = self.files.model(model.from_pretrained)
        self.images = self.files.part(AutoImageProcessor, backend="pil")
        self.batch_size = spec.batch_size

    @abstractmethod
    def scores(self, pictures: Sequence[Image.Image], names: tuple[str, ...]) -> torch.Tensor:
        """(B, L) score of each picture and label."""

    def pixels(self, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """The model's input for B pictures."""
        rows: torch.Tensor = self.images(images=list(pictures), return_tensors="pt")["pixel_values"]
        return rows.to(self.model.device, self.model.dtype)

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        raise NotAnswerable(
            "not a question that this model can answer: it has no scores of the candidates"
            f" {prompts[0].candidates!r}"
        )

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """(N, S) labels, S starts that must be empty."""
        if any(starts):
            raise ModelError(
                "a forced start needs a model that writes; this one chooses a label:"
                f" {next(s for s in starts if s)!r}"
            )
        lists: dict[tuple[str, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            lists.setdefault(tuple(labels_of(prompt)), []).append(row)
        answers = [""] * len(prompts)
        for names, rows in lists.items():
            for at in range(0, len(rows), self.batch_size):
                some = rows[at : at + self.batch_size]
                scores = self.scores([picture_of(prompts[row]) for row in some], names)
                for row, best in zip(some, scores.argmax(-1).tolist(), strict=True):
                    answers[row] = names[best]
        return Generated.whole([[text] * len(starts) for text in answers])


class ClipZeroShot(ZeroShot):
    """The label whose text lies closest to the picture (cosine). Ties go to the earlier label."""

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        super().__init__(spec, root, CLIPModel)
        self.tokenizer = self.files.part(AutoTokenizer)
        self._texts: dict[tuple[str, ...], torch.Tensor] = {}
        self.fingerprint = fingerprint(spec, root, _VERSION, "clip", device().type)

    @torch.inference_mode()
    def scores(self, pictures: Sequence[Image.Image], names: tuple[str, ...]) -> torch.Tensor:
        """(B, L) cosine of each picture and label."""
        shown = self.model.get_image_features(pixel_values=self.pixels(pictures)).pooler_output
        return functional.normalize(shown.float(), dim=-1) @ self._labels(names).T

    def _labels(self, names: tuple[str, ...]) -> torch.Tensor:
        """(L, D) unit rows; cached, because a run uses few lists."""
        if names not in self._texts:
            texts = [PHRASE.format(plain_form(name)) for name in names]
            limit = int(self.model.config.text_config.max_position_embeddings)
            inputs = _tokens(self.tokenizer, texts, limit, self.model.device)
            features = self.model.get_text_features(**inputs).pooler_output
            self._texts = {names: functional.normalize(features.float(), dim=-1)}
        return self._texts[names]


class VitZeroShot(ZeroShot):
    """The label with the largest share of the head's probability. The mapping from outputs of the
    head to labels comes from the registry entry (option `labels`: label -> names in the
    checkpoint's id2label), else from the packaged map for ImageNet-1k (data/vit_labels.yaml); the
    paper doesn't specify it. ``names``: the labels that it can answer with; people annotated with
    any other label are left out (suites/facet.py)."""

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        given = read(spec, VitOptions).labels
        labels = {
            label: [names] if isinstance(names, str) else names
            for label, names in (given or packaged_labels()).items()
        }
        outputs = Counter(name for names in labels.values() for name in names)
        where = f"registry/models/{spec.name}.yaml:"
        if twice := sorted(name for name, n in outputs.items() if n > 1):
            raise RegistryError(f"{where} options.labels: {twice[0]!r} stands twice")
        if not all(labels.values()):
            raise RegistryError(f"{where} options.labels: a class without outputs")
        super().__init__(spec, root, ViTForImageClassification)
        index_of = {str(name): int(i) for i, name in self.model.config.id2label.items()}
        if lacking := sorted(set(outputs) - set(index_of)):
            packaged = "the packaged map for ImageNet-1k (give your own in options.labels)"
            raise RegistryError(
                f"{where} {'options.labels' if given else packaged} names {lacking[0]!r}, which the"
                " head doesn't have; its names: config.json"
            )
        self.names = frozenset(normalise(label) or label for label in labels)
        self.outputs = {
            plain_form(label): [index_of[name] for name in names] for label, names in labels.items()
        }
        mapping = json.dumps(labels, sort_keys=True)
        self.fingerprint = fingerprint(spec, root, _VERSION, "vit", mapping, device().type)

    @torch.inference_mode()
    def scores(self, pictures: Sequence[Image.Image], names: tuple[str, ...]) -> torch.Tensor:
        """(B, L) log share of the head's probability on each label's outputs; -inf where a label
        has none."""
        if not any(plain_form(name) in self.outputs for name in names):
            raise NotAnswerable(
                f"not a question that this model can answer: no label of {', '.join(names[:3])},"
                " ... is in its map"
            )
        shares = torch.log_softmax(
            self.model(pixel_values=self.pixels(pictures)).logits.double(), dim=-1
        )  # (B, outputs)
        empty = shares.new_full((len(shares),), -torch.inf)
        columns = [
            shares[:, ids].logsumexp(-1) if (ids := self.outputs.get(plain_form(name))) else empty
            for name in names
        ]
        return torch.stack(columns, dim=-1)


def packaged_labels() -> dict[str, list[str]]:
    """Person class -> the outputs of an ImageNet-1k head that count for it, for the classes that
    have any."""
    labels = packaged_yaml("vit_labels.yaml")["labels"]
    return {
        name: [*kinds.get("person", []), *kinds.get("object", [])] for name, kinds in labels.items()
    }


def _tokens(tokenizer: Any, texts: list[str], limit: int, device: Any) -> dict[str, torch.Tensor]:
    """(B, L) ids and mask of texts, at most ``limit`` tokens of each."""
    options = {"padding": True, "truncation": True, "max_length": limit, "return_tensors": "pt"}
    inputs = tokenizer(texts, **options).to(device)
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


# ----------------------------------------------------------------------
# text encoders


def text_encoder(spec: ModelSpec, root: Path) -> TextEncoder:
    """The encoder of a registry entry. Raises RegistryError (no text encoder, unknown kind),
    ModelError, InfrastructureError."""
    if spec.backend != "text-encoder":
        raise RegistryError(
            f"registry/models/{spec.name}.yaml: backend is {spec.backend}; a text encoder has"
            " backend text-encoder"
        )
    return {"clip": ClipText, "t5": SentenceT5}[read(spec, TextEncoderOptions).kind](spec, root)


class Tower(ABC):
    """What both have in common: the checkpoint's parts, and batches of unit rows. limit: the
    longest input in tokens."""

    name: str
    limit: int

    def __init__(self, spec: ModelSpec, root: Path, model: Any, *more: str) -> None:
        self.floor = read(spec, TextEncoderOptions).floor
        files = Repository(spec, root)
        self.model = files.model(model.from_pretrained)
        self.tokenizer = files.part(AutoTokenizer)
        self.batch_size = spec.batch_size
        identity = ["text-encoder-1", self.name, *more, device().type]
        self.fingerprint = fingerprint(spec, root, *identity)

    @abstractmethod
    def encode(self, texts: list[str]) -> torch.Tensor:
        """(B, D) vectors of B texts."""

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, D) float32 unit rows."""
        if not texts:
            return self.embed(["A"])[:0]
        size = self.batch_size
        parts = [self.encode(list(texts[at : at + size])) for at in range(0, len(texts), size)]
        rows: np.ndarray = functional.normalize(torch.cat(parts).float(), dim=-1).cpu().numpy()
        return rows

    def tokens(self, texts: list[str]) -> dict[str, torch.Tensor]:
        return _tokens(self.tokenizer, texts, self.limit, self.model.device)


class ClipText(Tower):
    """CLIP's text tower with its projection. Every text is read as "a photo of a {its first 50
    words}", labels and answers alike, as in the authors' code; a text that already begins so is not
    changed: the limit applies to the answer, not to the words before it."""

    name = "clip"

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        super().__init__(spec, root, CLIPTextModelWithProjection)
        self.limit = int(self.model.config.max_position_embeddings)

    def encode(self, texts: list[str]) -> torch.Tensor:
        answers = (text.removeprefix(PHRASE.format("")).split()[:WORDS] for text in texts)
        inputs = self.tokens([PHRASE.format(" ".join(words)) for words in answers])
        vectors: torch.Tensor = self.model(**inputs).text_embeds
        return vectors


class SentenceT5(Tower):
    """A T5 encoder as a sentence encoder: mean over the real tokens, then the checkpoint's dense
    layer where it has one (sentence-t5-* have: `2_Dense`)."""

    name, limit = "t5", T5_TOKENS

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.dense, digest = _dense(spec, root)
        super().__init__(spec, root, T5EncoderModel, digest)

    def encode(self, texts: list[str]) -> torch.Tensor:
        inputs = self.tokens(texts)
        states = self.model(**inputs).last_hidden_state.float()
        real = inputs["attention_mask"][..., None].to(states.dtype)
        pooled: torch.Tensor = (states * real).sum(1) / real.sum(1).clamp(min=1.0)  # (B, H)
        return pooled if self.dense is None else self.dense(pooled)


def _dense(spec: ModelSpec, root: Path) -> tuple[Any, str]:
    """(linear layer or None, digest of its bytes) of a sentence-transformers checkpoint;
    modules.json names the folder that contains it."""
    files = Repository(spec, root)
    modules = files.file("modules.json")
    listed = json.loads(modules.read_text(encoding="utf-8")) if modules else []
    folders = [m["path"] for m in listed if str(m.get("type", "")).endswith(".Dense")]
    if not folders:
        return None, "no dense layer"
    config, weights = (
        files.file(f"{folders[0]}/{name}") for name in ("config.json", "model.safetensors")
    )
    if config is None or weights is None:
        raise ModelError(
            f"{spec.name}: {folders[0]} has no config.json or no model.safetensors; pickles are"
            " never loaded: convert it"
        )
    dense = json.loads(config.read_text(encoding="utf-8"))
    activation = str(dense.get("activation_function", "Identity"))
    if len(folders) > 1 or not activation.endswith("Identity"):
        raise ModelError(
            f"{spec.name}: modules.json lists {len(folders)} dense layers, the first with"
            f" activation {activation}; known are checkpoints with one, without an activation"
        )
    state = {
        name.removeprefix("linear."): value.float() for name, value in load_file(weights).items()
    }
    layer = torch.nn.Linear(dense["in_features"], dense["out_features"], bias="bias" in state)
    with files.reading():
        layer.load_state_dict(state)
    return layer.eval().to(device()), hashlib.sha256(weights.read_bytes()).hexdigest()
