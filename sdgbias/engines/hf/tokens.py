"""Which tokens can begin an answer: the single-token variants of a candidate ("A", " A",
"\u2581A")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdgbias.errors import ModelError, NotAnswerable

SPACE_MARKS = " \u2581\u0120\n\t"


class Ids(dict[str, tuple[int, ...]]):
    """candidate -> its token ids; a prompt with any other candidate can't be answered."""

    def __missing__(self, candidate: str) -> tuple[int, ...]:
        raise NotAnswerable(f"the tokenizer has no single token for {candidate!r}")


@dataclass(frozen=True)
class CandidateTokens:
    """ids: candidate -> its token ids; space: id of the lone-space token when some candidate has no
    variant that includes the space (SentencePiece digits), so that the model may emit the space
    first and the digit second."""

    ids: Ids
    space: int | None
    needs_space: frozenset[str]


def find_candidates(tokenizer: Any, wanted: str, optional: str = "") -> CandidateTokens:
    """Scans the vocabulary once. Raises ModelError when a wanted candidate has no single token; an
    ``optional`` one is then left out."""
    special = set(tokenizer.all_special_tokens)
    found: dict[str, list[int]] = {c: [] for c in wanted + optional}
    spaced: set[str] = set()
    space: int | None = None
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
        if token in special:
            continue
        bare = token.lstrip(SPACE_MARKS)
        if bare in found and len(bare) == 1:
            found[bare].append(index)
            if bare != token:
                spaced.add(bare)
        elif token == "\u2581":
            space = index
    missing = [c for c in wanted if not found[c]]
    if missing:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ModelError(
            f"{name}: the tokenizer has no single token for {', '.join(map(repr, missing))}, so"
            f" first-token scores over {wanted!r} don't exist; retire the model: sdgbias models"
            " retire NAME --reason TEXT"
        )
    known = Ids({c: tuple(ids) for c, ids in found.items() if ids})
    needs = frozenset(known) - spaced if space is not None else frozenset()
    return CandidateTokens(known, space, needs)
