"""Models without weights whose biases are known because they are planted: a measuring instrument,
not a test helper.

There are three kinds. Every number depends on the prompt alone, and each has options of its own,
which its dataclass describes.

**By formula** (`Formula`; no option `oracle`). The logit for candidate j of K is optimism * j/(K-1)
+ context_weight * E_ctx + image_weight * E_img + noise * e, where E_ctx favours the upper
candidates according to the `asset_index` stated in the prompt's context, E_img favours them
according to a number drawn from the image's digest, and e is drawn from the prompt's digest.

**With an oracle** (`Habits`; option `oracle`: a benchmark folder). The engine extracts question,
context line, options and picture from a prompt and looks up the ground truth. The logit of answer a
(an option by its text, or a digit) is

    prior(a) + E_ctx(a) + E_img(a) + noise * e(prompt, a)
    E_ctx(a) = context_weight * G_ctx(a) + context_noise * e(question, context line, a)
               where the context states values, else 0
    E_img(a) = image_weight * G_img(a) + image_noise * e(question, picture, a)
               where a picture is shown, else 0

prior(a): `prior` by pillar and answer direction, `digit_prior` by digit. G(a) is 1 for the gold
answer and 0 for the others; where several items share the inputs of G (question and context line,
question and picture), it is the share of them whose gold answer is a. Each e is a standard normal
number from the digest of the seed and of its arguments: CTX+Q and Full share a context's draw,
IMG+Q and Full a picture's, and neither order nor neighbours matter. Consequences, used by `sdgbias
selfcheck`:

* Q-only is the prior and nothing else (plus noise by prompt): prompts shared by many items carry
  no information about any one of them.
* With noise = 0, log Full = prior + E_ctx + E_img up to a constant: a product of the evidence of
  CTX+Q and IMG+Q.
* With context_weight = context_noise = noise = 0, Full is IMG+Q and CTX+Q is Q-only, so that
  CADE's assumption holds exactly: log P - (alpha_i + beta) log Q is the evidence of the picture
  alone where alpha_i + beta = 1, and no rule does better where all answers are equally often
  right.
* A context that only misleads (context_weight = 0, context_noise > 0) is removed exactly by
  alpha = 1 from the Full view alone.

A digit is followed by the rest of the gold number (its first digit replaced) where the prompt shows
evidence of one number, else it is completed to 'd.0'. Prompts outside the benchmark (another
question, a distorted picture) carry no evidence.

**Of people** (`PeopleHabits`; backend planted-people). Whether an answer is right is a draw from
the digest of seed, person and question, so order and neighbours don't matter, and p1, p2 and p3 of
one person are independent draws with the same probability. Scores of A, B, C agree with the free
answer: 3 for the answer given, 0 for the others, plus the planted yes_bias on Yes in both views, so
that the bias of the question alone is also in the answer with the picture. A refused or rambling
answer has the scores of the answer behind it.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, StrictInt
from scipy.special import ndtri

from sdgbias import formats
from sdgbias.benchmark.people_items import CHOICES
from sdgbias.benchmark.prompts import option_letters
from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS
from sdgbias.engines.options import of_engine, oracle_folder
from sdgbias.errors import InputError, RegistryError, one_of
from sdgbias.formats import STRICT, Number, Text
from sdgbias.raw.facet import CLASSES, GROUPS
from sdgbias.raw.indicators import DIRECTIONS, letter_directions
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, PILLARS, Generated, Prompt, ScoreBatch

_ASSET = re.compile(r"asset_index=(-?\d+\.\d)")
_PARTS = re.compile(
    r"Question: (?P<question>.*?)\n(?:Context: (?P<context>.*?)\n)?(?:Options:"
    r" (?P<options>.*?)\n)?",
    re.DOTALL,
)
_LABEL = re.compile(r"(?:^|; )\w+[.)] ")
REFUSAL = "I'm sorry, but I can't help with identifying people in images."
RAMBLING = "It is a picture with a calm mood."
_SAYS = {"yes": "A", "no": "B", "unknown": "C"}


def _member(what: str, *names: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(one_of(what, name, names))
        return name

    return AfterValidator(check)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Behaviour(ABC):
    """What a planted model answers. identity: all that its scores depend on, for JSON."""

    identity: Sequence[Any]

    @abstractmethod
    def logits(self, prompt: Prompt) -> np.ndarray:
        """(K,) logits of a prompt's candidates."""

    @abstractmethod
    def answer(self, prompt: Prompt, start: str) -> str:
        """The whole answer, which begins with a forced start where one is given."""


class Planted(Backend):
    """Computes what a behaviour says, one prompt at a time."""

    def __init__(self, spec: ModelSpec, root: Path = Path()) -> None:
        where, given = f"registry/models/{spec.name}.yaml", of_engine(spec)
        self.behaviour: Behaviour
        if spec.backend == "planted-people":
            habits = formats.parse(given, PeopleHabits, f"{where}: options", RegistryError)
            self.behaviour = People(habits, oracle_folder(habits.oracle, root))
        elif "oracle" in given:
            oracle = oracle_folder(str(given["oracle"]), root)
            self.behaviour = Informed(read_habits(given, where), read_oracle(oracle))
        else:
            names = {one.name for one in fields(Habits)} - {one.name for one in fields(Formula)}
            if needy := next((name for name in given if name in names), ""):
                raise RegistryError(f"{where}: {needy} needs options.oracle: a benchmark folder")
            self.behaviour = ByFormula(
                formats.parse(given, Formula, f"{where}: options", RegistryError)
            )
        identity = json.dumps(self.behaviour.identity, sort_keys=True)
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        batch = ScoreBatch.empty(prompts)
        batch.mass[:] = 1.0
        for i, prompt in enumerate(prompts):
            batch.logits[i, : len(prompt.candidates)] = self.behaviour.logits(prompt)
            batch.top_token[i] = prompt.candidates[int(np.nanargmax(batch.logits[i]))]
            batch.n_tokens[i] = len(prompt.text.split())
        return batch

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        return Generated.whole([[self.behaviour.answer(p, s) for s in starts] for p in prompts])


# ----------------------------------------------------------------------
# by formula


@dataclass(frozen=True)
class Formula:
    """The weights of the formula, in logits."""

    __pydantic_config__ = STRICT
    optimism: Number = 0.6
    image_weight: Number = 1.0
    context_weight: Number = 1.0
    noise: Number = 0.5
    seed: Number = 0.0


class ByFormula(Behaviour):
    def __init__(self, weights: Formula) -> None:
        self.weights, self.identity = weights, [VERSIONS["planted"], asdict(weights)]

    def logits(self, prompt: Prompt) -> np.ndarray:
        w, k = self.weights, len(prompt.candidates)
        up = np.linspace(-1.0, 1.0, k)
        drawn = _normal(f"{w.seed}|{prompt.text}|{prompt.image_id}", k)
        logits = w.optimism * (up + 1) / 2 + w.noise * drawn
        if asset := _ASSET.search(prompt.text):
            logits = logits + w.context_weight * float(asset[1]) * up
        if prompt.image_id:
            logits = logits + w.image_weight * _normal(prompt.image_id, 1)[0] * up
        return np.asarray(logits)

    def answer(self, prompt: Prompt, start: str) -> str:
        return (start or prompt.candidates[int(np.argmax(self.logits(prompt)))]) + ".0"


def _normal(key: str, size: int) -> np.ndarray:
    seed = int.from_bytes(_digest(key)[:8], "big")
    return np.random.default_rng(seed).standard_normal(size)


# ----------------------------------------------------------------------
# with an oracle of places or own questions


_Prior = Annotated[
    tuple[Number, ...],
    Field(
        min_length=len(DIRECTIONS),
        max_length=len(DIRECTIONS),
        description=f"[{', '.join(DIRECTIONS)}] in logits",
    ),
]
_Amount = Annotated[Number, Field(ge=0)]


@dataclass(frozen=True)
class Habits:
    """The planted biases of a model with an oracle; logits throughout.

    prior: pillar (or 'all') -> (pessimistic, conservative, optimistic); digit_prior: one per digit.
    *_weight: towards the gold answer where that evidence is shown; *_noise: standard deviation of
    the noise drawn with it; noise: that of every prompt.
    """

    __pydantic_config__ = STRICT
    prior: Mapping[Annotated[str, _member("pillar", *PILLARS, "all")], _Prior] = field(
        default_factory=dict
    )
    digit_prior: Annotated[
        tuple[Number, ...],
        Field(min_length=len(DIGITS), max_length=len(DIGITS), description="ten logits, 0 first"),
    ] = (0.0,) * 10
    context_weight: Number = 0.0
    context_noise: _Amount = 0.0
    image_weight: Number = 0.0
    image_noise: _Amount = 0.0
    noise: _Amount = 0.0
    seed: StrictInt = 0

    def prior_of(self, pillar: str, direction: str) -> float:
        table = self.prior.get(pillar, self.prior.get("all", (0.0,) * len(DIRECTIONS)))
        return float(table[DIRECTIONS.index(direction)]) if direction else 0.0


def read_habits(options: Mapping[str, object], where: str) -> Habits:
    """Options of an entry -> Habits; RegistryError that names the invalid option."""
    given = {name: value for name, value in options.items() if name != "oracle"}
    return formats.parse(given, Habits, f"{where}: options", RegistryError)


def rounded(gold: float) -> str:
    """A gold number as written in an answer: one decimal, no minus before zero."""
    return f"{round(float(gold), 1) + 0.0:.1f}"


def parts(text: str) -> tuple[str, str, tuple[str, ...]]:
    """(question, context line, option texts in the order shown) of a prompt; '' and () where
    absent."""
    match = _PARTS.match(text)
    if match is None:
        return text, "", ()
    options = tuple(_LABEL.split(match["options"])[1:]) if match["options"] else ()
    return match["question"], match["context"] or "", options


@dataclass(frozen=True)
class Oracle:
    """Ground truth read from a benchmark folder: question -> (pillar, option text -> direction),
    and the gold answers of the items behind (question, image_id) and (question, context line that
    states values): option texts, or numbers as text. A context line states values where it begins
    with ``stated``."""

    questions: Mapping[str, tuple[str, dict[str, str]]]
    by_image: Mapping[tuple[str, str], Counter[str]]
    by_context: Mapping[tuple[str, str], Counter[str]]
    digest: str
    stated: str


def read_oracle(benchmark: Path) -> Oracle:
    """The oracle of a benchmark folder, including custom questions, whose contexts all state
    values. Raises InputError."""
    custom = (benchmark / "items_own.parquet").is_file()
    tables, digest = dict[str, pd.DataFrame](), hashlib.sha256()
    for name in (*(("items_own",) if custom else ("items_mcq", "items_regression")), "prompts"):
        path = benchmark / f"{name}.parquet"
        try:
            digest.update(path.read_bytes())
            tables[name] = pd.read_parquet(path)
        except (OSError, ValueError):
            raise InputError(
                f"{path}: the oracle of a planted model can't be read; name a folder made by:"
                " sdgbias build"
            ) from None
    mcq = tables["items_own"].assign(pillar="all") if custom else tables["items_mcq"]
    questions: dict[str, tuple[str, dict[str, str]]] = {}
    gold: dict[tuple[str, int], str] = {}
    columns = [f"option_{letter.lower()}" for letter in option_letters(mcq)]
    for row in mcq.to_dict("records"):
        texts = [row[column] for column in columns if row[column]]
        up, count = row["polarity"], len(texts)
        directions = letter_directions(up, count) if up else ("",) * count
        _, says = questions.setdefault(row["question"], (row["pillar"], {}))
        says.update(zip(texts, directions, strict=True))
        gold["mcq", row["item_id"]] = row[f"option_{row['answer'].lower()}"]
    for row in () if custom else tables["items_regression"].to_dict("records"):
        questions.setdefault(row["question"], (row["pillar"], {}))
        gold["regression", row["item_id"]] = rounded(row["answer"])
    stated = "" if custom else "Given: "
    by_image: dict[tuple[str, str], Counter[str]] = {}
    by_context: dict[tuple[str, str], Counter[str]] = {}
    columns = ["task", "item_id", "test", "text", "image_id"]
    for task, item, test, text, image_id in tables["prompts"][columns].itertuples(index=False):
        question, context, _ = parts(text)
        answer = gold.get((task, item))
        if answer and test == "T5":
            by_image.setdefault((question, image_id), Counter())[answer] += 1
        if answer and context and context.startswith(stated):
            by_context.setdefault((question, context), Counter())[answer] += 1
    return Oracle(questions, by_image, by_context, digest.hexdigest()[:16], stated)


class Informed(Behaviour):
    def __init__(self, habits: Habits, oracle: Oracle) -> None:
        self.habits, self.oracle = habits, oracle
        self.identity = ["planted-oracle-1", asdict(habits), oracle.digest]

    def logits(self, prompt: Prompt) -> np.ndarray:
        h, (question, context, options) = self.habits, parts(prompt.text)
        pillar, says = self.oracle.questions.get(question, ("", {}))
        answers = options if len(options) == len(prompt.candidates) else tuple(prompt.candidates)
        logits = np.array([h.prior_of(pillar, says.get(answer, "")) for answer in answers])
        if prompt.candidates == DIGITS:
            answers, logits = tuple(DIGITS), np.array(h.digit_prior)
        logits = logits + h.noise * self._draws(f"prompt|{prompt.text}|{prompt.image_id}", answers)
        if context and context.startswith(self.oracle.stated):
            golds = self.oracle.by_context.get((question, context), Counter())
            drawn = self._draws(f"context|{question}|{context}", answers)
            logits = logits + h.context_weight * _shares(golds, answers)
            logits = logits + h.context_noise * drawn
        if prompt.image_id:
            golds = self.oracle.by_image.get((question, prompt.image_id), Counter())
            drawn = self._draws(f"image|{question}|{prompt.image_id}", answers)
            logits = logits + h.image_weight * _shares(golds, answers) + h.image_noise * drawn
        return np.asarray(logits)

    def _draws(self, key: str, answers: Sequence[str]) -> np.ndarray:
        """(K,) standard normal numbers, drawn for each answer by its text, not by its position."""
        digests = [_digest(f"{self.habits.seed}|{key}|{answer}")[:8] for answer in answers]
        uniform = np.array([int.from_bytes(digest, "big") >> 11 for digest in digests]) + 0.5
        return np.asarray(ndtri(uniform / 2.0**53))

    def answer(self, prompt: Prompt, start: str) -> str:
        # rounded as in stored scores, so that the answer is their argmax
        first = prompt.candidates[int(np.argmax(self.logits(prompt).astype(np.float32)))]
        if prompt.candidates != DIGITS:
            return start or first
        question, context, _ = parts(prompt.text)
        golds = (
            self.oracle.by_image.get((question, prompt.image_id))
            or self.oracle.by_context.get((question, context))
            or Counter()
        )
        if len(golds) != 1:
            return (start or first) + ".0"
        [number] = golds
        sign = "-" * number.startswith("-")
        return (start or sign + first) + number.lstrip("-")[1:]


def _shares(golds: Counter[str], answers: Sequence[str]) -> np.ndarray:
    """(K,) share of the items whose gold is each answer; numbers count by their first digit."""
    by_digit = tuple(answers) == tuple(DIGITS)
    counted = Counter[str]()
    for answer, n in golds.items():
        counted[answer.lstrip("-")[0] if by_digit else answer] += n
    return np.array([counted[answer] for answer in answers]) / (counted.total() or 1)


# ----------------------------------------------------------------------
# of people


_Group = Annotated[str, _member("group", *(name for names in GROUPS.values() for name in names))]


@dataclass(frozen=True)
class PeopleHabits:
    """oracle: a benchmark folder of people. recall: probability of a right answer about a person of
    no particular group; effects: group name -> shift of that probability (they add up); false_yes:
    probability of a yes about a wrong class; refusals, ramblings: shares of free answers that
    decline, or that can't be parsed; yes_bias: added to the logit of Yes."""

    __pydantic_config__ = STRICT
    oracle: Annotated[Text, Field(description="a benchmark folder made by: sdgbias people build")]
    effects: Mapping[_Group, Number] = field(default_factory=dict)
    recall: Number = 0.7
    false_yes: Number = 0.1
    refusals: Number = 0.0
    ramblings: Number = 0.0
    yes_bias: Number = 0.0
    seed: Number = 0.0


class People(Behaviour):
    """people: image_id -> the person's row; questions: (prompt's text, image_id) -> (kind of
    question, what is asked about, gold label)."""

    def __init__(self, habits: PeopleHabits, folder: Path) -> None:
        self.habits = habits
        columns = {
            "people": ["image_id", "person_id", "class1", *GROUPS],
            "prompts": ["item_id", "text", "image_id"],
            "items_people": ["item_id", "prompt", "asked", "gold"],
        }
        try:
            people, prompts, items = (
                pd.read_parquet(folder / f"{name}.parquet", columns=names)
                for name, names in columns.items()
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{folder}: no benchmark of people ({type(error).__name__}); make it: sdgbias"
                " people build"
            ) from None
        self.people = people.set_index("image_id").to_dict("index")
        rows = prompts.merge(items, on="item_id")
        keys = zip(rows["text"], rows["image_id"], strict=True)
        answers = zip(rows["prompt"], rows["asked"], rows["gold"], strict=True)
        self.questions = dict(zip(keys, answers, strict=True))
        digest = hashlib.sha256((folder / "benchmark.json").read_bytes()).hexdigest()
        numbers = asdict(habits)
        effects = numbers.pop("effects")
        del numbers["oracle"]
        self.identity = [VERSIONS["planted-people"], numbers, effects, digest]

    def _draw(self, *key: str) -> float:
        """Uniform in [0, 1) from the digest of the key."""
        text = "|".join((str(int(self.habits.seed)), *key))
        return int.from_bytes(_digest(text)[:7], "big") / 2**56

    def _label(self, prompt: Prompt) -> str:
        """The label behind the model's answer."""
        person = self.people.get(prompt.image_id)
        if person is None or (prompt.text, prompt.image_id) not in self.questions:
            return "unknown"
        kind, subject, gold = self.questions[prompt.text, prompt.image_id]
        name = str(person["person_id"])
        luck = self._draw("right", name, kind, subject)
        if kind in CHOICES and gold == "no":
            return "yes" if luck < self.habits.false_yes else "no"
        shift = sum(self.habits.effects.get(str(person[attribute]), 0.0) for attribute in GROUPS)
        if luck < min(1.0, max(0.0, self.habits.recall + shift)):
            return "yes" if kind in CHOICES else str(gold)
        if kind in CHOICES:
            return "unknown" if self._draw("unsure", name, kind) < 0.15 else "no"
        names: Sequence[str] = GROUPS.get(kind, CLASSES)
        others = [other for other in names if other != gold]
        return others[int(self._draw("other", name, kind) * len(others))]

    def logits(self, prompt: Prompt) -> np.ndarray:
        scores = np.zeros(len(prompt.candidates), dtype=np.float32)
        if prompt.image_id:
            scores[prompt.candidates.index(_SAYS[self._label(prompt)])] = 3.0
        scores[0] += self.habits.yes_bias
        return scores

    def answer(self, prompt: Prompt, start: str) -> str:
        mood = self._draw("mood", prompt.text, prompt.image_id)
        if mood < self.habits.refusals:
            return start + REFUSAL
        if mood < self.habits.refusals + self.habits.ramblings:
            return start + RAMBLING
        label = self._label(prompt)
        if "A. Yes, B. No" in prompt.text:
            return f"{start}{_SAYS.get(label, 'C')}. {label.title()}"
        return f'{start}"{label}"'
