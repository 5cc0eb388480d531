"""Reading answers out of generated text, and editing the first digit of a number. Pure text.

`reference=True` reproduces the authors' parsers, quirks included (METHODS 3.4): the first optional
'-' and digits are the number, so "under-5 mortality is 30" reads -5. The default parsers don't have
those quirks, and leave the thoughts of a reasoning model out (`answer_part`).
"""

from __future__ import annotations

import re
from functools import lru_cache

_REFERENCE_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NUMBER = re.compile(
    # not inside a word, a longer number, or after a hyphen as in "under-5"
    r"(?<![\w.,])(?<![A-Za-z][-\u2212\u2013])"
    r"[-\u2212\u2013+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
)
#: Characters of a number before its point; a float holds 308 digits.
_LONGEST = 300
_GOAL = re.compile(r"\b(?:SDG|goal|target|indicator)\s*$", re.IGNORECASE)
#: What stands in an answer for the part that an endpoint's content filter removed: a refusal.
FILTERED = "[removed by the endpoint's content filter]"
#: Phrases with which a model declines to answer.
REFUSAL = re.compile(
    r"\b(?:sorry|apologi[sz]e|unable to (?:assist|help|identify)|(?:can(?:no|')t|can not|won't|will"
    r" not|not able to) "
    r"(?:assist|help|comply|identify|answer|provide|engage|make (?:assumptions|judg))|against"
    r" (?:my|our) (?:policy|guidelines)|as an ai\b|removed by the endpoint's content filter)",
    re.IGNORECASE,
)
#: How an answer is recorded that the limit of tokens ended before it could be read.
TRUNCATED = "truncated"
_MINUS = str.maketrans("\u2212\u2013", "--")
#: What begins and ends the thoughts of a reasoning model: <think>, <seed:think>, [THINK], ◁think▷,
#: <|begin_of_thought|>, <|START_THINKING|>; the channels of Gemma and gpt-oss.
_NAME = r"(?:think(?:ing)?|thoughts?|reasoning|analysis)"
_BEGIN = re.compile(
    rf"<(?:\w+:)?{_NAME}>|\[think\]|\u25c1think\u25b7|<\|(?:begin_of|start)_{_NAME}\|>"
    r"|<\|channel>\w*|<\|channel\|>(?!final)\w+(?:<\|message\|>)?",
    re.IGNORECASE,
)
_END = re.compile(
    rf"</(?:\w+:)?{_NAME}>|\[/think\]|\u25c1/think\u25b7|<\|end_(?:of_)?{_NAME}\|>"
    r"|<channel\|>|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)


_FIRST_OF_THOUGHT = re.compile(
    r"^\W{0,3}(think|thinking|thought|reason|reasoning|analysis|channel)\W{0,3}$", re.IGNORECASE
)


def _part(text: str) -> tuple[int, int]:
    """(start, end) of what an answer says outside its thoughts."""
    start = max((match.end() for match in _END.finditer(text)), default=0)
    begun = _BEGIN.search(text, start)
    return start, begun.start() if begun else len(text)


def answer_part(text: str) -> str:
    """What an answer says after its thoughts; '' where it still thinks at its end."""
    return text[slice(*_part(text))]


def thought_begun(text: str) -> str:
    """The mark that ends a prompt whose answer begins inside its thoughts; '' for any other."""
    marks = [match for match in _BEGIN.finditer(text) if not text[match.end() :].strip()]
    return marks[0][0] if marks else ""


def thought_left_open(text: str) -> str:
    """The mark of a thought that a text begins and doesn't end; '' without one."""
    _, end = _part(text)
    begun = _BEGIN.match(text, end)
    return begun[0] if begun else ""


def closing_mark(mark: str) -> str:
    """The mark that ends the thought which ``mark`` begins."""
    if mark.lower().startswith("<|channel|>"):
        return "<|channel|>final<|message|>"
    if mark.lower().startswith("<|channel>"):
        return "<channel|>"
    for begin, end in (("begin_of", "end_of"), ("START", "END"), ("start", "end")):
        if begin in mark:
            return mark.replace(begin, end)
    return f"{mark[0]}/{mark[1:]}"


def begins_thought(token: str) -> bool:
    """Whether the first token of an answer begins a thought: <think>, <|thinking|>, [THINK],
    <|channel|>, <reasoning>, ..."""
    return _FIRST_OF_THOUGHT.match(token.strip()) is not None


def number_span(text: str, reference: bool = False) -> tuple[int, int] | None:
    """(start, end) of the number a generated answer states, or None when there is none: nor is one
    with more digits than a float holds, as a model writes that repeats itself."""
    if reference:
        match = _REFERENCE_NUMBER.search(text)
        return match.span() if match else None
    for match in _NUMBER.finditer(text, *_part(text)):
        if not _GOAL.search(text[: match.start()]):
            return match.span() if len(match[0].split(".")[0]) <= _LONGEST else None
    return None


@lru_cache(maxsize=1 << 16)
def parse_number(text: str, reference: bool = False) -> float | None:
    """The number a generated answer states; thousands separators and the Unicode minus are
    understood."""
    span = number_span(text, reference)
    return None if span is None else float(text[slice(*span)].translate(_MINUS).replace(",", ""))


def with_first_digit(text: str, digit: str, reference: bool = False) -> float:
    """The stated number with its first digit replaced, sign and length kept: ("45.0", "7") -> 75.0,
    ("0.3", "3") -> 3.3.

    A text without a number has no digit to replace: 0.0 whatever the digit, as in the authors'
    code, so that such an answer prefers no digit. The caller counts it as unparsed.
    """
    span = number_span(text, reference)
    if span is None:
        return 0.0
    number = text[slice(*span)].translate(_MINUS).replace(",", "")
    return float(re.sub(r"\d", digit, number, count=1))


def parse_letter(text: str, valid: str, reference: bool = False) -> str | None:
    """The option letter a generated answer states, or None when it states none or several.

    A leading letter counts ("B", "B.", "(B) because ..."). Else the letter after "answer is" or
    "option"; else the only standalone capital, the article "A" before a word aside.
    """
    text = text if reference else answer_part(text)
    cleaned = text.strip().strip("\"'`*([{ ")
    lead = re.match(r"([A-Za-z])(?![A-Za-z])", cleaned)
    if reference:
        standalone = re.search(r"\b([A-Za-z])\b", text)
        match = lead or standalone
        letter = match.group(1).upper() if match else ""
        return letter if letter and letter in valid else None
    if (
        lead
        and lead.group(1) in valid
        and not re.match(r"A\s+[a-z]", cleaned)
        and not cleaned.startswith(f"{lead[1]}'")
    ):
        return lead.group(1)
    stated = re.findall(r"(?:answer|option|choice)(?:\s+is|:)?\s*[\"'(*]*([A-Z])\b", text)
    letters = stated or [
        m.group(1)
        for m in re.finditer(
            r"\b([A-Z])\b(?!')", re.sub(r"\bA(?=\s+(?!or\b|and\b)[a-z])", "", text)
        )
    ]
    distinct = {x for x in letters if x in valid}
    return distinct.pop() if len(distinct) == 1 else None


def read_letter(text: str, valid: str, truncated: bool = False) -> tuple[str, str]:
    """(letter, how) of a generated multiple-choice answer: the letter it states and 'option'; else
    '' and why there is none: 'empty', 'refusal', 'truncated' (the limit of tokens came first) or
    'unparsed'."""
    text = answer_part(text)
    letter = parse_letter(text, valid)
    if letter:
        return letter, "option"
    if REFUSAL.search(text.replace("\u2019", "'")):
        return "", "refusal"
    if truncated:
        return "", TRUNCATED
    return "", "unparsed" if text.strip() else "empty"
