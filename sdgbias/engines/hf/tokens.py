"""Which tokens can begin an answer: the single-token variants of a candidate ("A", " A",
"\u2581A"), and for a digit every token of a number that begins with it ("8", "87", " 87")."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sdgbias.errors import ModelError, NotAnswerable
from sdgbias.methods.answers import answer_part
from sdgbias.types import DIGITS

SPACE_MARKS = " \u2581\u0120\n\t"
#: Special tokens that answers keep, so that their reader can tell thoughts (methods/answers.py).
_OF_THOUGHTS = re.compile("think|thought|channel|message", re.IGNORECASE)


class Ids(dict[str, tuple[int, ...]]):
    """candidate -> its token ids; a prompt with any other candidate can't be answered."""

    def __missing__(self, candidate: str) -> tuple[int, ...]:
        raise NotAnswerable(f"the tokenizer has no single token for {candidate!r}")


@dataclass(frozen=True)
class CandidateTokens:
    """ids: candidate -> its token ids; of a digit those of all numbers that begin with it, single
    digits first. space: id of the lone-space token, None where no candidate needs it. needs_space:
    the candidates that may come second, after that token: those without a variant that includes
    the space (digits of SentencePiece, and of byte-level tokenizers that cut numbers into single
    digits), and all digits where some number has no such variant.
    numbers: where the tokenizer has tokens of several digits, the id of every token of digits
    alone -> its text; else empty."""

    ids: Ids
    space: int | None
    needs_space: frozenset[str]
    numbers: Mapping[int, str] = field(default_factory=dict)


def vocabulary(tokenizer: Any) -> dict[str, int]:
    """Token -> id. Tokens that are bytes (tiktoken, in repositories with code of their own) as
    byte-level tokenizers write them, as far as candidates are concerned."""
    return {
        token.decode("latin-1").replace(" ", "\u0120") if isinstance(token, bytes) else token: at
        for token, at in tokenizer.get_vocab().items()
    }


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of an answer, without special tokens but for those around its thoughts."""
    whole = str(tokenizer.decode(ids))
    if answer_part(whole) == whole:
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    added = tokenizer.added_tokens_decoder
    special = {i for i in ids if i in added and added[i].special}
    gone = {i for i in special if not _OF_THOUGHTS.search(added[i].content)}
    return str(tokenizer.decode([i for i in ids if i not in gone]))


def find_candidates(tokenizer: Any, wanted: str, optional: str = "") -> CandidateTokens:
    """Scans the vocabulary once. Raises ModelError when a wanted candidate has no single token; an
    ``optional`` one is then left out."""
    special = set(tokenizer.all_special_tokens)
    found: dict[str, list[int]] = {c: [] for c in wanted + optional}
    numbers: dict[int, str] = {}
    longer: dict[str, list[int]] = {c: [] for c in found if c in DIGITS}
    spaced: set[str] = set()
    space: int | None = None
    byte_space: int | None = None
    for token, index in sorted(vocabulary(tokenizer).items(), key=lambda pair: pair[1]):
        if token in special:
            continue
        bare = token.lstrip(SPACE_MARKS)
        if bare[:1] in longer and bare.isascii() and bare.isdecimal():
            numbers[index] = token
        if bare in found and len(bare) == 1:
            found[bare].append(index)
            if bare != token:
                spaced.add(bare)
        elif index in numbers:
            longer[bare[0]].append(index)
        elif token == "\u2581":
            space = index
        elif token == "\u0120":
            byte_space = index
    missing = [c for c in wanted if not found[c]]
    if missing:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ModelError(
            f"{name}: the tokenizer has no single token for {', '.join(map(repr, missing))}, so"
            f" first-token scores over {wanted!r} don't exist; retire the model: sdgbias models"
            " retire NAME --reason TEXT"
        )
    known = Ids({c: (*ids, *longer.get(c, ())) for c, ids in found.items() if ids})
    several = any(longer.values())
    # of several digits some numbers have a token with the space and others none, whatever their
    # first digit
    alone = spaced - set(longer) if several else spaced
    space = byte_space if space is None else space
    needs = frozenset(known) - alone if space is not None else frozenset()
    return CandidateTokens(known, space if needs else None, needs, numbers if several else {})
