"""Numbers of several digits in one token, and numbers behind a lone space: first digits and forced
starts against exhaustive generation by the bare model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.tokens import find_candidates
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, Prompt
from tests.builders import families
from tests.builders.character_tokenizer import BASE, finish
from tests.builders.pictures import noise

#: How Llama 3 and tekken, and how Qwen cut numbers; and a SentencePiece-like cut at spaces alone.
PATTERNS = {"three": r"\p{N}{1,3}|\p{L}+|[^\s\p{L}\p{N}]|\s", "one": r"\p{N}|\p{L}+|\S|\s"}
KINDS = (*PATTERNS, "metaspace")
PROMPTS = [
    Prompt("How many years?", DIGITS),
    Prompt("How many years of schooling?", DIGITS, (noise(1),), "one"),
    Prompt("How many of 871?", DIGITS),
]
STARTS = ["", *DIGITS, "-7", "-"]


def trained(kind: str) -> PreTrainedTokenizerFast:
    """A BPE tokenizer trained on numbers; three, one: byte-level; metaspace: SentencePiece-like."""
    core = Tokenizer(models.BPE(unk_token="<unk>" if kind == "metaspace" else None))
    if kind == "metaspace":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        core.decoder = decoders.Metaspace(prepend_scheme="never")
        alphabet = ["\u2581", "\n", *(chr(c) for c in range(33, 127))]
    else:
        cut = pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    numbers = [str(n) for n in range(0, 1000, 3)]
    texts = [*numbers, " ".join(numbers), "A B C A. low; B. mid; USER: ASSISTANT: -7 - -1"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(BASE) + len(alphabet) + 120,
        special_tokens=[*BASE],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return finish(core, (), {"image_token": "<image>"})


class ByHand:
    """Plain forward passes without padding, cache or sharing."""

    def __init__(self, engine: HuggingFace) -> None:
        self.engine, tokenizer = engine, engine.tokenizer
        self.texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
        vocabulary = tokenizer.get_vocab()
        self.space = next(vocabulary[s] for s in ("\u2581", "\u0120") if s in vocabulary)
        self.numbers = {
            i: t.strip() for i, t in self.texts.items() if t.isascii() and t.strip().isdecimal()
        }
        self.several = max(map(len, self.numbers.values())) > 1

    @torch.inference_mode()
    def log_p(self, prompt: Prompt, tokens: list[int]) -> torch.Tensor:
        """(V,) log-probabilities of what follows the prompt and these tokens."""
        inputs = self.engine.inputs([prompt])
        ids = torch.cat([inputs["input_ids"], torch.tensor([tokens], dtype=torch.long)], dim=1)
        pixels = {k: v for k, v in inputs.items() if k == "pixel_values"}
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pixels}
        return torch.log_softmax(self.engine.model(**given).logits[0, -1].double(), -1)

    def first_digits(self, prompt: Prompt) -> np.ndarray:
        """(10,) probabilities of all answers that begin with each digit, after at most one lone
        space: every first token is tried, and after the space every second one."""
        first, second = self.log_p(prompt, []), self.log_p(prompt, [self.space])
        sums = dict.fromkeys(DIGITS, 0.0)
        for index, number in self.numbers.items():
            sums[number[0]] += float(first[index].exp())
            sums[number[0]] += float((first[self.space] + second[index]).exp())
        return np.array([sums[digit] for digit in DIGITS])

    def answer(self, prompt: Prompt, start: str, length: int) -> str:
        """Greedy tokens behind the likeliest beginning of a start: a minus, a number that begins
        with its digits, or a lone space and such a number."""
        digits, tokens = start.removeprefix("-"), list[int]()
        several = self.several
        numbers = [
            i for i, t in self.numbers.items() if t == digits or (several and t.startswith(digits))
        ]
        first = self.log_p(prompt, [])
        if digits != start:
            signs = [i for i, t in self.texts.items() if t.strip() == "-"]
            tokens.append(max(signs, key=lambda i: float(first[i])))
            behind = self.log_p(prompt, tokens)
            plain = [i for i in numbers if not self.texts[i].startswith(" ")]
            tokens += [max(plain, key=lambda i: float(behind[i]))] if digits else []
        elif digits:
            second = self.log_p(prompt, [self.space])
            ways = {(i,): float(first[i]) for i in numbers}
            ways |= {(self.space, i): float(first[self.space] + second[i]) for i in numbers}
            tokens += max(ways, key=lambda way: ways[way])
        for _ in range(length):
            token = int(self.log_p(prompt, tokens).argmax())
            if token == self.engine.tokenizer.eos_token_id:
                break
            tokens.append(token)
        return str(self.engine.tokenizer.decode(tokens, skip_special_tokens=True)).strip()


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(str(request.param))
    families.write_small(folder, "llava", trained(str(request.param)))
    return HuggingFace(ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled"), Path())


@contextmanager
def turned(engine: HuggingFace, spaced: bool) -> Iterator[None]:
    """The head turned so that the model begins its answer to the first prompt with a number, or
    with a lone space token, which a number follows."""
    head, hand = engine.model.get_output_embeddings(), ByHand(engine)
    before = head.weight.detach().clone()
    ids = engine.inputs(PROMPTS[:1])["input_ids"]
    longer = torch.cat([ids, torch.tensor([[hand.space]])], 1)
    with torch.inference_mode():
        first, second = (
            engine.model(input_ids=i, output_hidden_states=True).hidden_states[-1][0, -1]
            for i in (ids, longer)
        )
        first, second = first / first.norm(), second / second.norm()
        common = float(first @ second)
        if spaced:
            head.weight[hand.space] += 3 * (first - common * second)
            first = second - common * first
        head.weight[[*hand.numbers]] += 2 * first
        try:
            yield
        finally:
            head.weight.copy_(before)


def check(engine: HuggingFace, prompts: list[Prompt], starts: list[str]) -> list[list[str]]:
    """Scores are those of all answers that begin with a digit, and forced starts stay on the
    numbers that the model writes, from one prefill for all starts and a generation for each."""
    hand, scores = ByHand(engine), engine.candidate_scores(prompts)
    for logits, mass, prompt in zip(scores.logits, scores.mass, prompts, strict=True):
        expected = hand.first_digits(prompt)
        shares = np.exp(logits - np.logaddexp.reduce(logits))
        assert shares == pytest.approx(expected / expected.sum(), abs=1e-3)
        assert mass == pytest.approx(expected.sum(), abs=1e-3)
    answers = [[hand.answer(prompt, start, 3) for start in starts] for prompt in prompts]
    for engine.share_prefix in (True, False):
        assert engine.generate(prompts, starts, 3).texts == answers
    return answers


def test_scores_and_forced_starts_are_those_of_all_numbers(engine: HuggingFace) -> None:
    rows = check(engine, PROMPTS[:2], STARTS)
    for row in rows:
        assert all(text.startswith(start) for start, text in zip(STARTS, row, strict=True))
    longest = max(map(len, ByHand(engine).numbers.values()))
    several = [text for row in rows for text in row[1:11] if text[1:2].isdecimal()]
    assert longest == 1 or several, "no start went on within its own token"


@pytest.mark.parametrize("spaced", [False, True])
def test_a_model_that_begins_with_a_number_or_a_lone_space_is_read_behind_it(
    engine: HuggingFace, spaced: bool
) -> None:
    with turned(engine, spaced):
        hand = ByHand(engine)
        first, second = (hand.log_p(PROMPTS[0], tokens) for tokens in ([], [hand.space]))
        [[free, *_], _] = check(engine, PROMPTS[::2], ["", "7", "-7"])
        assert (float(first[hand.space].exp()) > 0.5) == spaced
        likeliest = int((second if spaced else first).argmax())
        scores = engine.candidate_scores(PROMPTS[:1])
        assert scores.top_token[0] == hand.texts[likeliest].strip() and scores.mass[0] > 0.2
        assert free[0] in DIGITS
        [[forced]] = engine.generate(PROMPTS[:1], [free[0]], 3).texts
        assert forced.startswith(free), "the digit of the free answer gives the free answer"


def test_a_number_of_several_digits_is_no_candidate_of_letters() -> None:
    found = find_candidates(trained("three"), LETTERS, "")
    assert found.numbers == {} and set(found.ids) == set(LETTERS)
