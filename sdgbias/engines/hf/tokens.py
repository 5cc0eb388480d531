"""Which tokens can begin an answer: the single-token variants of a candidate ("A", " A",
"\u2581A"), and for a digit every token of a number that begins with it ("8", "87", " 87"); what
their scores say about the candidates, and which of them a forced start may consist of. The same
for every engine that scores tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sdgbias.errors import ModelError, NotAnswerable
from sdgbias.methods.answers import answer_part
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, ScoreBatch

SPACE_MARKS = " \u2581\u0120\n\t"
MINUS = ("-", "\u2581-", "\u0120-")
#: The first tokens of an answer: one, or a lone space token and the one behind it.
Beginning = tuple[int, ...]
#: The tokens allowed at each of the first positions of an answer; the model's likeliest is taken.
Choices = Sequence[tuple[int, ...]]
#: Tokens of an answer, and whether the limit ended it.
Answer = tuple[list[int], bool]
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
    alone -> its text; else empty. minus: ids of the tokens for '-', with a space before it or
    without."""

    ids: Ids
    space: int | None
    needs_space: frozenset[str]
    numbers: Mapping[int, str] = field(default_factory=dict)
    minus: tuple[int, ...] = ()

    def spaced(self, candidates: str) -> bool:
        """Whether one of these may come second, behind a lone space token."""
        return not self.needs_space.isdisjoint(candidates)

    def wanted(self, candidates: str) -> list[int]:
        """Ids of the tokens whose scores `put` needs."""
        space = () if self.space is None else (self.space,)
        return sorted({*self.minus, *space}.union(*(self.ids[c] for c in candidates)))

    def beginnings(self, candidate: str) -> list[Beginning]:
        """All beginnings of answers that are a candidate."""
        direct = [(i,) for i in self.ids[candidate]]
        if self.space is None or candidate not in self.needs_space:
            return list(direct)
        return [*direct, *((self.space, *one) for one in direct)]


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of an answer, without special tokens but for those around its thoughts."""
    whole = str(tokenizer.decode(ids))
    if answer_part(whole) == whole:
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    added = tokenizer.added_tokens_decoder
    special = {i for i in ids if i in added and added[i].special}
    gone = {i for i in special if not _OF_THOUGHTS.search(added[i].content)}
    return str(tokenizer.decode([i for i in ids if i not in gone]))


def find_candidates(
    tokenizer: Any,
    wanted: str = LETTERS + DIGITS,
    optional: str = LETTERS.lower() + OPTION_LETTERS,
) -> CandidateTokens:
    """Scans the vocabulary once. Raises ModelError when a wanted candidate has no single token; an
    ``optional`` one is then left out."""
    special = set(tokenizer.all_special_tokens)
    singles: dict[str, list[int]] = {c: [] for c in wanted + optional}
    numbers: dict[int, str] = {}
    longer: dict[str, list[int]] = {c: [] for c in singles if c in DIGITS}
    spaced: set[str] = set()
    space: int | None = None
    byte_space: int | None = None
    tokens = tokenizer.get_vocab()
    for token, index in sorted(tokens.items(), key=lambda pair: pair[1]):
        if token in special:
            continue
        bare = token.lstrip(SPACE_MARKS)
        if bare[:1] in longer and bare.isascii() and bare.isdecimal():
            numbers[index] = token
        if bare in singles and len(bare) == 1:
            singles[bare].append(index)
            if bare != token:
                spaced.add(bare)
        elif index in numbers:
            longer[bare[0]].append(index)
        elif token == "\u2581":
            space = index
        elif token == "\u0120":
            byte_space = index
    missing = [c for c in wanted if not singles[c]]
    if missing:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ModelError(
            f"{name}: the tokenizer has no single token for {', '.join(map(repr, missing))}, so"
            f" first-token scores over {wanted!r} don't exist; retire the model: sdgbias models"
            " retire NAME --reason TEXT"
        )
    candidates = Ids({c: (*ids, *longer.get(c, ())) for c, ids in singles.items() if ids})
    several = any(longer.values())
    # of several digits some numbers have a token with the space and others none, whatever their
    # first digit
    alone = spaced - set(longer) if several else spaced
    space = byte_space if space is None else space
    needs = frozenset(candidates) - alone if space is not None else frozenset()
    minus = tuple(tokens[token] for token in MINUS if token in tokens)
    space = space if needs else None
    return CandidateTokens(candidates, space, needs, numbers if several else {}, minus)


class FirstTokens(NamedTuple):
    """How B answers begin. scores: beginning -> (B,) logits; total (B,): their logsumexp over the
    whole vocabulary, 0 where they are log-probabilities; top (B,): the likeliest beginnings."""

    scores: Mapping[Beginning, np.ndarray]
    total: np.ndarray
    top: Sequence[Beginning]

    def followed(self, space: int, behind: FirstTokens) -> FirstTokens:
        """With the beginnings that go on behind a lone space token."""
        with np.errstate(invalid="ignore"):  # of a model that overflows
            before = self.scores[space,] - behind.total
            later = {(space, *one): before + z for one, z in behind.scores.items()}
        tops = zip(self.top, behind.top, strict=True)
        top = [(space, *second) if first == (space,) else first for first, second in tops]
        return FirstTokens({**self.scores, **later}, self.total, top)

    def best(self, beginnings: Sequence[Beginning]) -> np.ndarray:
        """(B,) logits of the likeliest of these beginnings."""
        likeliest: np.ndarray = np.max([self.scores[one] for one in beginnings], axis=0)
        return likeliest


def put(
    out: ScoreBatch,
    rows: Sequence[int],
    candidates: str,
    first: FirstTokens,
    tokens: CandidateTokens,
    tokenizer: Any,
) -> None:
    """How the answers to B prompts with these candidates begin -> their rows of `out`: variants of
    a candidate merged, the candidates' share of the vocabulary, the token that greedy decoding
    begins with (behind a lone space the next one)."""

    def merged(beginnings: Sequence[Beginning]) -> np.ndarray:
        together: np.ndarray = np.logaddexp.reduce([first.scores[one] for one in beginnings])
        return together

    with np.errstate(invalid="ignore"):  # of a model that overflows
        table = np.stack([merged(tokens.beginnings(c)) for c in candidates], axis=1)  # (B, K)
        # one token that overflows leaves no distribution to read the others' share from
        table[~np.isfinite(first.total)] = np.nan
        out.logits[rows, : len(candidates)] = table
        out.mass[rows] = np.exp(np.logaddexp.reduce(table, axis=1) - first.total)
        if tokens.minus:
            out.minus_logit[rows] = merged([(i,) for i in tokens.minus])
    for row, top in zip(rows, first.top, strict=True):
        out.top_token[row] = tokenizer.decode(list(top)).strip()


def start_choices(start: str, tokens: CandidateTokens) -> list[tuple[int, ...]]:
    """The tokens that a forced start may consist of, position by position; of several, the model's
    likeliest is taken.

    A tokenizer that writes numbers digit by digit leaves the variants of the first character and
    one token for each other one. One with tokens of several digits writes 87 as one token, so that
    a "8" of its own is a beginning that the model never reads before another digit: there the
    digits of a start are any token that begins with them. ModelError for anything but a number's
    start.
    """
    choices: list[tuple[int, ...]] = []
    for at, character in enumerate(start):
        if character == "-" and tokens.minus and not at:
            choices.append(tokens.minus)
        elif character in DIGITS and character in tokens.ids:
            variants = tokens.ids[character]
            choices.append(variants[:1] if choices or tokens.numbers else variants)
        else:
            raise ModelError(
                f"a forced start may hold digits and a leading '-' only, not {start!r}"
            )
    digits = start.removeprefix("-")
    signed = digits != start
    whole = tuple(
        index
        for index, text in tokens.numbers.items()
        if text.lstrip(SPACE_MARKS).startswith(digits) and not (signed and text[0] in SPACE_MARKS)
    )
    if not digits or not whole:
        return choices
    return [*choices[:signed], whole]


def begins_behind_space(starts: Sequence[str], tokens: CandidateTokens) -> bool:
    """Whether any start may come behind a lone space token."""
    firsts = {start[:1] for start in starts if start}
    return tokens.space is not None and not firsts.isdisjoint(tokens.needs_space)


def choices_of(
    starts: Sequence[str], tokens: CandidateTokens, prompts: int, first: FirstTokens | None
) -> list[list[Choices]]:
    """The choices of each start (S) of each of B prompts. first: how answers begin, where a start
    may come behind a lone space token; there it does where that beginning is the likelier one.
    ModelError for anything but a number's start."""
    plain: list[Choices] = [start_choices(start, tokens) for start in starts]
    choices = [[*plain] for _ in range(prompts)]
    if first is None or tokens.space is None:
        return choices
    for s, (start, direct) in enumerate(zip(starts, plain, strict=True)):
        if start[:1] in tokens.needs_space:  # no minus, no free answer
            at_once = first.best([(i,) for i in direct[0]])
            later = first.best([(tokens.space, i) for i in direct[0]])
            for row in np.flatnonzero(later > at_once):
                choices[row][s] = [(tokens.space,), *direct]
    return choices


def end_ids(configured: int | Sequence[int] | None, tokenizer: Any) -> set[int]:
    """Ids that end an answer: those of the generation config and the tokenizer's own."""
    ids: list[Any] = [*configured] if isinstance(configured, list | tuple) else [configured]
    return {i for i in (*ids, tokenizer.eos_token_id) if i is not None}


def cut_answer(ids: Sequence[int], forced: int, limit: int, ends: Collection[int]) -> Answer:
    """An answer up to the token that ends it, or ``limit`` tokens behind its forced start."""
    whole = list(ids[: forced + limit])
    end = next((at for at in range(forced, len(whole)) if whole[at] in ends), None)
    return (whole, True) if end is None else (whole[:end], False)
