"""A model without weights for the second suite, with planted recall by group: a measuring
instrument, not a test helper.

Options of its registry entry: ``oracle`` (a benchmark folder of people), ``recall`` (probability of
a right answer about a person of no particular group), ``effects`` (group name -> shift of that
probability, e.g. {"female": -0.1, "dark": -0.15}; they add up), ``false_yes`` (probability of a yes
about a wrong class), ``refusals`` and ``ramblings`` (shares of free answers that decline, or that
cannot be parsed), ``yes_bias`` (added to the logit of Yes), ``seed``. Whether an answer is right is
a draw from the digest of seed, person and question, so order and neighbours don't matter, and p1,
p2 and p3 of one person are independent draws with the same probability.

Scores of A, B, C agree with the free answer: 3 for the answer given, 0 for the others, plus the
planted yes_bias on Yes in both views, so that the bias of the question alone is also in the answer
with the picture. A refused or rambling answer has the scores of the answer behind it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field

from sdgbias import formats
from sdgbias.benchmark.people_items import CHOICES
from sdgbias.engines.fingerprint import VERSIONS
from sdgbias.engines.options import of_engine, oracle_folder
from sdgbias.engines.planted import PlantedEngine
from sdgbias.errors import InputError, RegistryError, one_of
from sdgbias.formats import STRICT, Number, Text
from sdgbias.raw.facet import CLASSES, GROUPS
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Generated, Prompt

_VERSION = VERSIONS["planted-people"]
_SAYS = {"yes": "A", "no": "B", "unknown": "C"}
REFUSAL = "I'm sorry, but I can't help with identifying people in images."
RAMBLING = "It is a picture with a calm mood."


def _group(name: str) -> str:
    names = {group for groups in GROUPS.values() for group in groups}
    if name not in names:
        raise ValueError(one_of("group", name, names))
    return name


@dataclass(frozen=True)
class PeopleHabits:
    """The options of a planted model of people, as described above."""

    __pydantic_config__ = STRICT
    oracle: Annotated[Text, Field(description="a benchmark folder made by: sdgbias people build")]
    effects: Mapping[Annotated[str, AfterValidator(_group)], Number] = field(default_factory=dict)
    recall: Number = 0.7
    false_yes: Number = 0.1
    refusals: Number = 0.0
    ramblings: Number = 0.0
    yes_bias: Number = 0.0
    seed: Number = 0.0


class PlantedPeople(PlantedEngine):
    def __init__(self, spec: ModelSpec, root: Path) -> None:
        where = f"registry/models/{spec.name}.yaml"
        self.habits = formats.parse(
            of_engine(spec), PeopleHabits, f"{where}: options", RegistryError
        )
        folder = oracle_folder(self.habits.oracle, root)
        try:
            table = pd.read_parquet(folder / "people.parquet")
            prompts = pd.read_parquet(
                folder / "prompts.parquet", columns=["item_id", "text", "image_id"]
            )
            items = pd.read_parquet(
                folder / "items_people.parquet", columns=["item_id", "prompt", "asked", "gold"]
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{folder}: no benchmark of people ({type(error).__name__}); make it: sdgbias"
                " people build"
            ) from None
        self.people = table.set_index("image_id")[["person_id", "class1", *GROUPS]].to_dict("index")
        merged = prompts.merge(items, on="item_id")
        keys = zip(merged["text"], merged["image_id"], strict=True)
        answers = zip(merged["prompt"], merged["asked"], merged["gold"], strict=True)
        self.questions = dict(zip(keys, answers, strict=True))
        digest = hashlib.sha256((folder / "benchmark.json").read_bytes()).hexdigest()
        numbers = asdict(self.habits)
        effects = numbers.pop("effects")
        del numbers["oracle"]
        identity = json.dumps([_VERSION, numbers, effects, digest], sort_keys=True)
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]

    def _draw(self, *key: str) -> float:
        """Uniform in [0, 1) from the digest of the key."""
        text = "|".join((str(int(self.habits.seed)), *key))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56

    def chance(self, image_id: str) -> float:
        """Planted probability of a right answer about the person in that picture."""
        person = self.people[image_id]
        shift = sum(self.habits.effects.get(str(person[attribute]), 0.0) for attribute in GROUPS)
        return float(min(1.0, max(0.0, self.habits.recall + shift)))

    def _answer(self, prompt: Prompt) -> str:
        """The label behind the model's answer."""
        entry = self.questions.get((prompt.text, prompt.image_id))
        if entry is None or prompt.image_id not in self.people:
            return "unknown"
        kind, subject, gold = entry
        person = str(self.people[prompt.image_id]["person_id"])
        luck = self._draw("right", person, kind, subject)
        if kind in CHOICES:
            if gold == "no":
                return "yes" if luck < self.habits.false_yes else "no"
            if luck < self.chance(prompt.image_id):
                return "yes"
            return "unknown" if self._draw("unsure", person, kind) < 0.15 else "no"
        if luck < self.chance(prompt.image_id):
            return str(gold)
        names: Sequence[str] = GROUPS.get(kind, CLASSES)
        others = [name for name in names if name != gold]
        return others[int(self._draw("other", person, kind) * len(others))]

    def logits(self, prompt: Prompt) -> np.ndarray:
        scores = np.zeros(len(prompt.candidates), dtype=np.float32)
        if prompt.image_id:
            scores[prompt.candidates.index(_SAYS[self._answer(prompt)])] = 3.0
        scores[0] += self.habits.yes_bias
        return scores

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        return Generated.whole(
            [[start + self._say(prompt) for start in starts] for prompt in prompts]
        )

    def _say(self, prompt: Prompt) -> str:
        label = self._answer(prompt)
        mood = self._draw("mood", prompt.text, prompt.image_id)
        if mood < self.habits.refusals:
            return REFUSAL
        if mood < self.habits.refusals + self.habits.ramblings:
            return RAMBLING
        if re.search(r"A\. Yes, B\. No", prompt.text):
            return f"{_SAYS.get(label, 'C')}. {label.title()}"
        return f'"{label}"'
