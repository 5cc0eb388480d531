"""Parsing generated answers; the reference's quirks are reproduced only when asked for."""

from __future__ import annotations

import pytest

from sdgbias.methods.answers import (
    answer_part,
    closing_mark,
    parse_letter,
    parse_number,
    read_letter,
    thought_begun,
    thought_left_open,
    with_first_digit,
)


@pytest.mark.parametrize(
    ("text", "ours", "reference"),
    [
        ("27.1", 27.1, 27.1),
        ("under-5 mortality is 30", 30.0, -5.0),
        ("1,234", 1234.0, 1.0),
        (".5", 0.5, 5.0),
        ("SDG 3.2: 27.1", 27.1, 3.2),
        ("\u22121.5", -1.5, 1.5),
        ("-0.3", -0.3, -0.3),
        ("about \u201312.5 degrees", -12.5, 12.5),
        ("about 40%.", 40.0, 40.0),
        ("none", None, None),
        ("", None, None),
        ("0." + "3" * 400, 1 / 3, 1 / 3),
    ],
)
def test_numbers(text: str, ours: float | None, reference: float | None) -> None:
    assert parse_number(text) == ours
    assert parse_number(text, reference=True) == reference


def test_more_digits_than_a_float_holds_are_no_number() -> None:
    assert parse_number("9" * 400) is None and with_first_digit("9" * 400, "3") == 0.0
    assert parse_number("9" * 400, reference=True) == float("inf")  # the authors' parser


@pytest.mark.parametrize(
    ("text", "digit", "value"),
    [
        ("45.0", "7", 75.0),
        ("0.3", "3", 3.3),
        ("-1.2", "4", -4.2),
        ("\u221245", "7", -75.0),
        ("\u201345", "7", -75.0),
        ("no idea", "6", 0.0),
        ("", "6", 0.0),
        ("The rate is 112.4", "9", 912.4),
    ],
)
def test_replace_first_digit(text: str, digit: str, value: float) -> None:
    assert with_first_digit(text, digit) == value
    if text.isascii():
        assert with_first_digit(text, digit, reference=True) == value


@pytest.mark.parametrize(
    ("text", "ours", "reference"),
    [
        ("B", "B", "B"),
        (" (B) because", "B", "B"),
        ("B. 20 %", "B", "B"),
        ("I think B", "B", None),
        ("It's B", "B", None),
        ("A tall building, so C", "C", "A"),
        ("The answer is A.", "A", "A"),
        ("A or B", None, "A"),
        ("D", None, None),
        ("", None, None),
    ],
)
def test_letters(text: str, ours: str | None, reference: str | None) -> None:
    assert parse_letter(text, "ABC") == ours
    if reference is not None or text in ("I think B", "D", ""):
        assert parse_letter(text, "ABC", reference=True) == reference


def test_an_option_the_item_lacks_is_no_answer() -> None:
    assert parse_letter("C", "AB") is None


MARKS = [
    ("<think>", "</think>"),
    ("<seed:think>\n", "\n</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]


@pytest.mark.parametrize(("begin", "end"), MARKS)
def test_thoughts_are_no_answer(begin: str, end: str) -> None:
    thought = f"{begin}B or 30? I can't help thinking 30.{end}"
    assert parse_number(f"{thought}-12.5") == -12.5
    assert with_first_digit(f"{thought}-12.5", "7") == -72.5
    assert read_letter(f"{thought}\n\nC", "ABC") == ("C", "option")
    # the template may have begun the thought, so that the answer holds its end alone
    assert parse_number(f"30{end}7") == 7.0
    # the limit of tokens came first
    open_thought = f"{begin}B or 30"
    assert parse_number(open_thought) is None and with_first_digit(open_thought, "7") == 0.0
    assert read_letter(open_thought, "ABC", truncated=True) == ("", "truncated")
    assert read_letter(thought, "ABC") == ("", "empty")
    assert parse_number(thought + "4", reference=True) == 30.0  # the authors' parser
    assert thought_begun(f"Q? {begin}") and not thought_begun(f"Q? {begin}{end}")


def test_what_looks_like_a_thought_is_part_of_the_answer() -> None:
    assert parse_number("I think it is 5 <b>") == 5.0
    assert parse_number("[analysis] x < thought > 5") == 5.0
    assert parse_letter("B <reason> low", "ABC") == "B"


@pytest.mark.parametrize(("begin", "end"), MARKS)
def test_a_thought_is_closed_by_its_own_mark(begin: str, end: str) -> None:
    mark, closing = begin.strip(), end.strip().removeprefix("<|end|><|start|>assistant")
    assert closing_mark(mark) == closing
    assert thought_left_open(f"User: high?\nAssistant: {mark}\nHm. Answer: ") == mark
    assert thought_left_open(f"User: high?\nAssistant: {mark}\n{closing}\n") == ""


def test_what_stands_between_two_thoughts_is_no_answer() -> None:
    text = "<think>one</think> maybe A <think>two</think> The answer is B."

    assert answer_part(text).strip() == "The answer is B."
    assert read_letter(text, "ABC") == ("B", "option")
    assert answer_part("<think>one</think> B <think>two") == " B "


def test_a_typographic_apostrophe_refuses_as_a_straight_one() -> None:
    for apostrophe in ("'", "\u2019"):
        assert read_letter(f"I can{apostrophe}t help with this.", "ABC") == ("", "refusal")
