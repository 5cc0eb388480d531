"""Tokenizers of about one token per character, for random-weight models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

#: The first tokens of every vocabulary: padding is 0, the start 1, the end 2.
BASE = ("<pad>", "<s>", "</s>", "<unk>", "<image>", "<video>")


def make_tokenizer(
    kind: str = "byte", special: Iterable[str] = (), attributes: Mapping[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """'byte': one token per byte. 'metaspace': SentencePiece-like; letters have a variant with the
    space mark, digits don't, so a digit may come after a lone space token. 'no-b': a vocabulary
    that lacks the letter B. ``special``: further tokens; ``attributes``: those that the tokenizer
    names itself, as 'image_token'."""
    named = dict(attributes or {})
    marks = list(dict.fromkeys((*BASE, *named.values(), *special)))
    if kind == "metaspace":
        characters = "\u2581", "\n", *map(chr, range(33, 127)), "\u2581A", "\u2581B", "\u2581C"
        core = model([*marks, *characters], [("\u2581", c) for c in "ABC"])
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        core.decoder = decoders.Metaspace(prepend_scheme="never")
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = model([*marks, *(c for c in alphabet if (kind, c) != ("no-b", "B"))])
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    return finish(core, marks, named)


def model(tokens: Iterable[str], merges: Iterable[tuple[str, str]] = ()) -> Tokenizer:
    """Byte pairs of these tokens, numbered in their order."""
    vocabulary = {token: at for at, token in enumerate(tokens)}
    return Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges), unk_token="<unk>"))


def finish(
    core: Tokenizer, special: Iterable[str], attributes: Mapping[str, str]
) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers has it, with the usual four tokens and these ``special``."""
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=16384,
        extra_special_tokens=dict(attributes),
    )
    tokens.add_tokens(list(special), special_tokens=True)
    return tokens
