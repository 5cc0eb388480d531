"""The words of pages, commands, messages, W&B and cards, each at one place: names, units and better
ends of what results hold (``data/vocabulary.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sdgbias.files import packaged_yaml


class _Word(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JudgedUnit(_Word):
    """How a verdict of the regression check shows a metric: value times ``scale``."""

    scale: float
    digits: int
    unit: str


class MetricWord(_Word):
    """name: as a title. short: in a sentence; by default the name. unit: '%' of a share, 'points'
    of a difference of shares, 'own' and 'change' of a number, and of a difference, in a unit of its
    own, shown with so many ``digits``."""

    name: str
    short: str = ""
    better: Literal["higher", "lower", ""] = ""
    unit: Literal["%", "points", "own", "change"] = "%"
    digits: int = 2
    judged: JudgedUnit | None = None

    @property
    def in_sentence(self) -> str:
        return self.short or self.name[:1].lower() + self.name[1:]


class MethodWord(_Word):
    """A view, CADE, or another reading of the Full view. about: one sentence."""

    name: str
    about: str


class TaskWord(_Word):
    name: str
    short: str


class VerdictWord(_Word):
    """severity: the verdict with the highest one stands for a group."""

    name: str
    severity: int


class Vocabulary(_Word):
    """baselines, tests, terms: name -> one sentence; the others are said in the file."""

    metrics: Mapping[str, MetricWord]
    methods: Mapping[str, MethodWord]
    baselines: Mapping[str, str]
    tests: Mapping[str, str]
    terms: Mapping[str, str]
    tasks: Mapping[str, TaskWord]
    verdicts: Mapping[str, VerdictWord]
    outcomes: tuple[str, ...]
    floors: Mapping[str, str]
    flags: Mapping[str, str]
    attributes: Mapping[str, str]
    readings: Mapping[str, str]
    classes: Mapping[str, str]
    parsed: Mapping[str, str]
    groupings: Mapping[str, str]
    columns: Mapping[str, str]

    @property
    def explained(self) -> dict[str, str]:
        """Term -> one sentence, in the order of a legend."""
        methods = {word.name: word.about for word in self.methods.values()}
        return {**self.tests, **methods, **self.terms, **self.baselines}


WORDS = Vocabulary(**packaged_yaml("vocabulary.yaml"))
#: View or method -> its name in tables, figures and messages.
METHODS = {key: word.name for key, word in WORDS.methods.items()}


def metric_in_sentence(metric: str) -> str:
    """'share_optimistic' -> 'optimistic answers'; a metric without a word is named as it is."""
    return WORDS.metrics[metric].in_sentence if metric in WORDS.metrics else metric
