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
from sdgbias.engines.hf.tokens import SPACE_MARKS, find_candidates, start_choices
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, Prompt
from tests.builders import families
from tests.builders.character_tokenizer import BASE, finish
from tests.builders.pictures import noise

#: How Llama 3 and tekken, and how Qwen cut numbers; and a SentencePiece-like cut at spaces alone.
PATTERNS = {"three": r"\p{N}{1,3}|\p{L}+|[^\s\p{L}\p{N}]|\s", "one": r"\p{N}|\p{L}+|\S|\s"}
PROMPTS = [
    Prompt("How many years?", DIGITS),
    Prompt("How many years of schooling?", DIGITS, (noise(1),), "one"),
    Prompt("How many of 871?", DIGITS),
]


def trained(kind: str) -> PreTrainedTokenizerFast:
    """A BPE tokenizer trained on numbers; three, one: byte-level; metaspace: SentencePiece-like."""
    core = Tokenizer(models.BPE(unk_token="<unk>" if kind == "metaspace" else None))
    numbers = [str(n) for n in range(0, 1000, 3)]
    texts = [*numbers, " ".join(numbers), "A B C A. low; B. mid; USER: ASSISTANT: -7 - -1"]
    if kind == "metaspace":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        core.decoder = decoders.Metaspace(prepend_scheme="never")
        alphabet = ["\u2581", "\n", *(chr(c) for c in range(33, 127))]
    else:
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=len(BASE) + len(alphabet) + 120,
            special_tokens=[*BASE],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return finish(core, (), {"image_token": "<image>"})


@pytest.fixture(scope="module", params=["three", "one", "metaspace"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(str(request.param))
    families.write_small(folder, "llava", trained(str(request.param)))
    spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")
    return HuggingFace(spec, Path())


def log_p(engine: HuggingFace, prompt: Prompt, tokens: list[list[int]]) -> torch.Tensor:
    """(B, V) log-probabilities of what follows the prompt and each list of tokens, by plain forward
    passes without padding, cache or sharing."""
    found = []
    for own in tokens:
        inputs = engine.inputs([prompt])
        ids = torch.cat([inputs["input_ids"], torch.tensor([own], dtype=torch.long)], dim=1)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "pixel_values" in inputs:
            given["pixel_values"] = inputs["pixel_values"]
        with torch.inference_mode():
            logits = engine.model(**given).logits[0, -1].double()
        found.append(torch.log_softmax(logits, -1))
    return torch.stack(found)


def texts_of(engine: HuggingFace) -> dict[int, str]:
    return {i: engine.tokenizer.decode([i]) for i in range(len(engine.tokenizer))}


def test_the_tokenizers_are_what_they_stand_for() -> None:
    longest = {}
    for kind in ("three", "one", "metaspace"):
        tokenizer = trained(kind)
        pieces = [tokenizer.convert_ids_to_tokens(i) for i in tokenizer("A 871")["input_ids"]]
        longest[kind] = max(
            len(t.lstrip(SPACE_MARKS))
            for t in tokenizer.get_vocab()
            if t.strip(SPACE_MARKS).isdigit()
        )
        assert "".join(pieces).replace("\u2581", "\u0120").endswith("\u0120871")
    assert longest["three"] >= 2 and longest["one"] == 1 and longest["metaspace"] >= 2


def lone_space(engine: HuggingFace) -> int:
    vocabulary = engine.tokenizer.get_vocab()
    return int(next(vocabulary[s] for s in ("\u2581", "\u0120") if s in vocabulary))


def first_digits(engine: HuggingFace, prompt: Prompt) -> dict[str, float]:
    """Digit -> probability of all answers that begin with it, after at most one lone space: every
    first token is tried, and after the space every second one."""
    texts, space = texts_of(engine), lone_space(engine)
    assert len(texts) > 200
    first = log_p(engine, prompt, [[]])[0]
    second = log_p(engine, prompt, [[space]])[0]
    want = dict.fromkeys(DIGITS, 0.0)
    for index, text in texts.items():
        number = text.strip()
        if index == space or not (number.isascii() and number.isdecimal()):
            continue
        want[number[0]] += float(first[index].exp())
        want[number[0]] += float((first[space] + second[index]).exp())
    return want


def test_first_digits_equal_those_of_all_answers_that_begin_with_them(engine: HuggingFace) -> None:
    scores = engine.candidate_scores(PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        want = first_digits(engine, prompt)
        mass = sum(want.values())
        shares = np.exp(scores.logits[row] - np.logaddexp.reduce(scores.logits[row]))
        assert shares == pytest.approx([want[d] / mass for d in DIGITS], abs=1e-3)
        assert scores.mass[row] == pytest.approx(mass, abs=1e-3)


def by_hand(engine: HuggingFace, prompt: Prompt, start: str, length: int) -> str:
    """Greedy tokens of plain forward passes behind the likeliest beginning of a start: a minus, a
    number that begins with its digits, or a lone space and such a number."""
    texts, space = texts_of(engine), lone_space(engine)
    digits = start.removeprefix("-")
    signs = [i for i, t in texts.items() if t.strip() == "-"]
    found = {i: t.strip() for i, t in texts.items() if t.isascii() and t.strip().isdecimal()}
    several = bool(engine.candidates.numbers)
    numbers = [i for i, t in found.items() if t == digits or (several and t.startswith(digits))]
    first = log_p(engine, prompt, [[]])[0]
    tokens: list[int] = []
    if digits != start:
        tokens.append(max(signs, key=lambda i: float(first[i])))
        behind = log_p(engine, prompt, [tokens])[0]
        if digits:
            plain = [i for i in numbers if not texts[i].startswith(" ")]
            tokens.append(max(plain, key=lambda i: float(behind[i])))
    elif digits:
        second = log_p(engine, prompt, [[space]])[0]
        ways = {(i,): float(first[i]) for i in numbers}
        ways |= {(space, i): float(first[space] + second[i]) for i in numbers}
        tokens += max(ways, key=lambda way: ways[way])
    for _ in range(length):
        token = int(log_p(engine, prompt, [tokens])[0].argmax())
        if token == engine.tokenizer.eos_token_id:
            break
        tokens.append(token)
    return str(engine.tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def both_ways(engine: HuggingFace, prompts: list[Prompt], starts: list[str]) -> list[Any]:
    """Answers of one prefill for all starts, and of a generation for each."""
    found = []
    for engine.share_prefix in (True, False):
        found.append(engine.generate(prompts, starts, 3).texts)
    return found


def test_forced_starts_stay_on_the_numbers_that_the_model_writes(engine: HuggingFace) -> None:
    if not engine.candidates.numbers:
        assert start_choices("-87", engine.candidates)[1:] == [
            (engine.candidates.ids[c][0],) for c in "87"
        ]
    starts = ["", *DIGITS, "-7", "-"]
    prompts = PROMPTS[:2]
    answers = engine.generate(prompts, starts, 3).texts
    for prompt, row in zip(prompts, answers, strict=True):
        assert row == [by_hand(engine, prompt, start, 3) for start in starts]
        assert all(text.startswith(start) for start, text in zip(starts, row, strict=True))
    several = not engine.candidates.numbers or [
        text for row in answers for text in row[1:11] if text[1:2].isdecimal()
    ]
    assert several, "no start went on within its own token"
    assert both_ways(engine, prompts, starts) == [answers, answers]


@contextmanager
def begins_with_space(engine: HuggingFace, prompt: Prompt) -> Iterator[None]:
    """The head turned so that the model begins its answer with a lone space token, which a number
    follows."""
    head = engine.model.get_output_embeddings()
    before = head.weight.detach().clone()
    inputs = engine.inputs([prompt])
    ids = sorted({i for d in DIGITS for i in engine.candidates.ids[d]})
    behind = torch.tensor([[lone_space(engine)]])
    longer = torch.cat([inputs["input_ids"], behind], 1)
    with torch.inference_mode():
        first = engine.model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
        second = engine.model(
            input_ids=longer, attention_mask=torch.ones_like(longer), output_hidden_states=True
        ).hidden_states[-1][0, -1]
        first, second = first / first.norm(), second / second.norm()
        common = float(first @ second)
        head.weight[lone_space(engine)] += 3 * (first - common * second)
        head.weight[ids] += 2 * (second - common * first)
        try:
            yield
        finally:
            head.weight.copy_(before)


def test_a_model_that_begins_with_a_lone_space_is_read_behind_it(engine: HuggingFace) -> None:
    prompt, starts = PROMPTS[0], ["", *DIGITS, "-7"]
    with begins_with_space(engine, prompt):
        space = lone_space(engine)
        first = log_p(engine, prompt, [[]])[0]
        assert float(first[space].exp()) > 0.5
        want = first_digits(engine, prompt)
        mass = sum(want.values())
        direct = sum(float(first[i].exp()) for d in DIGITS for i in engine.candidates.ids[d])
        assert mass > 0.2 > 2 * direct  # without the space most of it would be lost
        for batch in ([prompt], PROMPTS[::2]):  # alone, and beside another
            scores = engine.candidate_scores(batch)
            assert np.exp(scores.logits[0] - np.logaddexp.reduce(scores.logits[0])) == (
                pytest.approx([want[d] / mass for d in DIGITS], abs=1e-3)
            )
            assert scores.mass[0] == pytest.approx(mass, abs=1e-3)
            second = log_p(engine, prompt, [[space]])[0]
            assert scores.top_token[0] == texts_of(engine)[int(second.argmax())].strip()
        answers = engine.generate([prompt], starts, 3).texts
        assert answers == [[by_hand(engine, prompt, start, 3) for start in starts]]
        assert both_ways(engine, [prompt], starts) == [answers, answers]


def test_the_digit_of_the_free_answer_gives_the_free_answer(engine: HuggingFace) -> None:
    """With the head turned so that numbers are what the model writes first."""
    head = engine.model.get_output_embeddings()
    before = head.weight.detach().clone()
    ids = sorted({i for d in DIGITS for i in engine.candidates.ids[d]})
    inputs = engine.inputs([PROMPTS[0]])
    with torch.inference_mode():
        last = engine.model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
        head.weight[ids] += 2 * last / last.norm()
        try:
            free = engine.generate([PROMPTS[0]], [""], 3).texts[0][0]
            assert free[0] in DIGITS
            assert engine.generate([PROMPTS[0]], [free[0]], 3).texts[0][0].startswith(free)
        finally:
            head.weight.copy_(before)


def test_a_number_of_several_digits_is_no_candidate_of_letters() -> None:
    found = find_candidates(trained("three"), LETTERS)
    assert found.numbers == {} and set(found.ids) == set(LETTERS)


class Tiktoken:
    """As far as candidates are sought: tokens are bytes, as in Qwen's and ChatGLM's own code."""

    all_special_tokens = ("<|endoftext|>",)

    def get_vocab(self) -> dict[bytes | str, int]:
        tokens = [*(bytes([i]) for i in range(256)), b" A", b" -", b"87", b" 87", "<|endoftext|>"]
        return {token: at for at, token in enumerate(tokens)}


def test_tokens_that_are_bytes() -> None:
    found = find_candidates(Tiktoken(), LETTERS + DIGITS)
    assert found.ids["A"] == (65, 256) and found.ids["8"] == (56, 258, 259)
    assert found.space == 32 and found.minus == (45, 257)
