"""The words of pages, commands, messages, W&B and cards, each at one place: names, descriptions,
units, directions and formats of what results hold (``data/vocabulary.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from sdgbias.files import packaged_yaml


class Word(BaseModel):
    """name: as a title and in tables. short: in a sentence; by default the name. description: one
    sentence. Of a metric: unit ('%' of a share, 'points' of a difference of shares, else what
    follows the number), direction (its better end) and format (as Python's ``format`` has it, '+'
    of a difference)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    short: str = ""
    description: str = ""
    unit: str = "%"
    direction: Literal["higher", "lower", ""] = ""
    format: str = ".1f"

    @property
    def in_sentence(self) -> str:
        return self.short or self.name[:1].lower() + self.name[1:]

    @property
    def scale(self) -> float:
        """From the stored number to the one that is shown."""
        return 100.0 if self.unit in ("%", "points") else 1.0

    @property
    def better(self) -> int:
        """1: higher is better; -1: lower; 0: neither."""
        return {"higher": 1, "lower": -1}.get(self.direction, 0)


Words = Mapping[str, Word]


class Vocabulary(BaseModel):
    """Each section: key of the results -> word."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metrics: Words
    methods: Words
    baselines: Words
    tests: Words
    terms: Words
    tasks: Words
    verdicts: Words
    outcomes: Words
    floors: Words
    flags: Words
    readings: Words
    classes: Words
    parsed: Words
    pillars: Words
    missing_reasons: Words
    groups: Words
    columns: Words

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """An entry that is only a text is a name; one without a name has that of its key."""
        return {
            section: {
                key: {"name": word} if isinstance(word, str) else {"name": key, **word}
                for key, word in words.items()
            }
            for section, words in sections.items()
        }

    @property
    def explained(self) -> dict[str, str]:
        """Term -> one sentence, in the order of a legend."""
        sections = (self.tests, self.methods, self.terms, self.baselines)
        return {word.name: word.description for words in sections for word in words.values()}


WORDS = Vocabulary(**packaged_yaml("vocabulary.yaml"))
#: View or method -> its name in tables, figures and messages.
METHODS = {key: word.name for key, word in WORDS.methods.items()}


def name_in(words: Words, key: str) -> str:
    """The name of a key; the key itself, where the vocabulary has no word for it."""
    return words[key].name if key in words else key


def metric_word(metric: str) -> Word:
    """The word of a metric; of one that has none a share named after it: 'share_A' is 'Share A'."""
    text = metric.replace("_", " ")
    return WORDS.metrics.get(metric) or Word(name=text[:1].upper() + text[1:], short=metric)


def shown_as(metric: str, group: str) -> str:
    """The metric whose unit, direction and format a number has: 'disparity' of the difference
    between two groups, whatever it is of. group: as a pillar or group is named in the results, e.g.
    'gender=male' or the difference 'gender:male-female'."""
    return "disparity" if ":" in group and "=" not in group else metric
