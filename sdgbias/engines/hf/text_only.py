"""Language models without a vision tower, scored like the others on the views that show no picture.

Their tokenizer stands behind the interface of a processor, so that the engines need no second path:
the same chat template, the same rule for BOS, the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from sdgbias.errors import ModelError
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import IMAGE_FREE, NEEDS_PICTURES


class TextProcessor:
    """A tokenizer as a processor of text alone. Chat templates of language models expect the
    content of a message as one text, not as a list of parts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.image_processor: Any = None

    @property
    def chat_template(self) -> Any:
        return self.tokenizer.chat_template

    @property
    def model_input_names(self) -> list[str]:
        return list(self.tokenizer.model_input_names)

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The rendered text. Parts that stand for a picture are left out: the hash of rendered
        probes has one, and a prompt with a picture is refused before it gets here."""
        plain = [
            {**m, "content": "".join(p["text"] for p in m["content"] if p["type"] == "text")}
            for m in messages
        ]
        text = str(self.tokenizer.apply_chat_template(plain, **options))
        if all(str(m["content"]).strip() in text for m in plain):
            return text
        # a template that reads lists of parts alone leaves out what isn't one
        parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in plain]
        return str(self.tokenizer.apply_chat_template(parts, **options))

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        """The tokenizer's output. ModelError for a prompt with a picture."""
        if images is not None:
            raise ModelError(f"{NEEDS_PICTURES}: a language model was asked about a picture")
        return self.tokenizer(text, **options)


def processor_of(spec: ModelSpec, loaded: Any) -> Any:
    """What AutoProcessor gave, as a processor: of a repository without one it returns the bare
    tokenizer. ModelError where the entry asks such a model about pictures."""
    if not isinstance(loaded, PreTrainedTokenizerBase):
        return loaded
    if spec.pictured:
        raise ModelError(
            f"{spec.name}: {spec.repo} has a tokenizer and no processor for pictures; a language"
            f" model has views: [{', '.join(IMAGE_FREE)}] in registry/models/{spec.name}.yaml:"
            f" sdgbias register-model {spec.repo} --name {spec.name} --overwrite"
        )
    return TextProcessor(loaded)
