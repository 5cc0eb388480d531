"""Models without weights whose biases are known because they are planted: a measuring instrument,
not a test helper.

There are two kinds. Every number depends on the prompt alone.

**By formula** (no option `oracle`). The logit for candidate j of K is optimism * j/(K-1) +
context_weight * E_ctx + image_weight * E_img + noise * e, where E_ctx favours the upper candidates
according to the `asset_index` stated in the prompt's context, E_img favours them according to a
number drawn from the image's digest, and e is drawn from the prompt's digest.

**With an oracle** (option `oracle`: a benchmark folder; `Habits` holds the other options). The
engine extracts question, context line, options and picture from a prompt and looks up the ground
truth. The logit of answer a (an option by its text, or a digit) is

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
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, StrictInt
from scipy.special import ndtri

from sdgbias import formats
from sdgbias.benchmark.prompts import option_letters
from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS
from sdgbias.engines.options import of_engine, oracle_folder
from sdgbias.errors import InputError, RegistryError, one_of
from sdgbias.formats import STRICT, Number
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
_VERSION, _ORACLE_VERSION = VERSIONS["planted"], "planted-oracle-1"


def _normal(key: str, size: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(size)


_Prior = Annotated[
    tuple[Number, ...],
    Field(
        min_length=len(DIRECTIONS),
        max_length=len(DIRECTIONS),
        description=f"[{', '.join(DIRECTIONS)}] in logits",
    ),
]


def _pillar(name: str) -> str:
    if name not in (*PILLARS, "all"):
        raise ValueError(one_of("pillar", name, (*PILLARS, "all")))
    return name


@dataclass(frozen=True)
class Habits:
    """The planted biases of a model with an oracle; logits throughout.

    prior: pillar (or 'all') -> (pessimistic, conservative, optimistic); digit_prior: one per digit.
    *_weight: towards the gold answer where that evidence is shown; *_noise: standard deviation of
    the noise drawn with it; noise: that of every prompt.
    """

    __pydantic_config__ = STRICT
    prior: Mapping[Annotated[str, AfterValidator(_pillar)], _Prior] = field(default_factory=dict)
    digit_prior: Annotated[
        tuple[Number, ...],
        Field(min_length=len(DIGITS), max_length=len(DIGITS), description="ten logits, 0 first"),
    ] = (0.0,) * 10
    context_weight: Number = 0.0
    context_noise: Annotated[Number, Field(ge=0)] = 0.0
    image_weight: Number = 0.0
    image_noise: Annotated[Number, Field(ge=0)] = 0.0
    noise: Annotated[Number, Field(ge=0)] = 0.0
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


@dataclass(frozen=True)
class Oracle:
    """Ground truth read from a benchmark folder: question -> (pillar, option text -> direction),
    and the gold answers of the items behind (question, image_id) and (question, context line that
    states values): option texts, or numbers as text. A context line states values where it begins
    with ``stated``."""

    questions: Mapping[str, tuple[str, Mapping[str, str]]]
    by_image: Mapping[tuple[str, str], Counter[str]]
    by_context: Mapping[tuple[str, str], Counter[str]]
    digest: str
    stated: str = "Given: "


def parts(text: str) -> tuple[str, str, tuple[str, ...]]:
    """(question, context line, option texts in the order shown) of a prompt; '' and () where
    absent."""
    match = _PARTS.match(text)
    if match is None:
        return text, "", ()
    options = tuple(_LABEL.split(match["options"])[1:]) if match["options"] else ()
    return match["question"], match["context"] or "", options


def read_oracle(benchmark: Path) -> Oracle:
    """The oracle of a benchmark folder, including custom questions. Raises InputError."""
    custom = (benchmark / "items_own.parquet").is_file()
    tables, digest = {}, hashlib.sha256()
    for name in (
        ("items_own", "prompts") if custom else ("items_mcq", "items_regression", "prompts")
    ):
        path = benchmark / f"{name}.parquet"
        try:
            digest.update(path.read_bytes())
            tables[name] = pd.read_parquet(path)
        except (OSError, ValueError):
            raise InputError(
                f"{path}: the oracle of a planted model can't be read; name a folder made by:"
                " sdgbias build"
            ) from None
    if custom:  # one pillar, every context states values, and there are no numbers
        tables["items_mcq"] = tables["items_own"].assign(pillar="all")
        tables["items_regression"] = pd.DataFrame()
    stated = "" if custom else "Given: "
    mcq, regression = tables["items_mcq"], tables["items_regression"]
    questions: dict[str, tuple[str, dict[str, str]]] = {}
    gold: dict[tuple[str, int], str] = {}
    columns = [f"option_{c.lower()}" for c in option_letters(mcq)]
    for row in mcq.to_dict("records"):
        texts = [row[c] for c in columns if row[c]]
        up, count = row["polarity"], len(texts)
        directions = letter_directions(up, count) if up else ("",) * count
        questions.setdefault(row["question"], (row["pillar"], {}))[1].update(
            zip(texts, directions, strict=True)
        )
        gold["mcq", row["item_id"]] = row[f"option_{row['answer'].lower()}"]
    for row in regression.to_dict("records"):
        questions.setdefault(row["question"], (row["pillar"], {}))
        gold["regression", row["item_id"]] = rounded(row["answer"])
    by_image: dict[tuple[str, str], Counter[str]] = {}
    by_context: dict[tuple[str, str], Counter[str]] = {}
    prompts = tables["prompts"]
    for task, item, test, text, image_id in zip(
        *(prompts[c] for c in ("task", "item_id", "test", "text", "image_id")), strict=True
    ):
        question, context, _ = parts(text)
        answer = gold.get((task, item))
        if answer is None:
            continue
        if test == "T5":
            by_image.setdefault((question, image_id), Counter())[answer] += 1
        if context and context.startswith(stated):
            by_context.setdefault((question, context), Counter())[answer] += 1
    return Oracle(questions, by_image, by_context, digest.hexdigest()[:16], stated)


class PlantedEngine(Backend):
    """An engine whose scores are computed, one prompt at a time."""

    @abstractmethod
    def logits(self, prompt: Prompt) -> np.ndarray:
        """(K,) logits of a prompt's candidates."""

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        batch = ScoreBatch.empty(prompts)
        batch.mass[:] = 1.0
        for i, prompt in enumerate(prompts):
            batch.logits[i, : len(prompt.candidates)] = self.logits(prompt)
            batch.top_token[i] = prompt.candidates[int(np.nanargmax(batch.logits[i]))]
            batch.n_tokens[i] = len(prompt.text.split())
        return batch


class Planted(PlantedEngine):
    def __init__(self, spec: ModelSpec, root: Path = Path()) -> None:
        self.habits: Habits | None = None
        if "oracle" in spec.options:
            where = f"registry/models/{spec.name}.yaml"
            self.habits = read_habits(of_engine(spec), where)
            self.oracle = read_oracle(oracle_folder(str(spec.options["oracle"]), root))
            identity = json.dumps(
                [_ORACLE_VERSION, asdict(self.habits), self.oracle.digest], sort_keys=True
            )
        else:
            for name in ("prior", "digit_prior", "context_noise", "image_noise"):
                if name in spec.options:
                    raise RegistryError(
                        f"registry/models/{spec.name}.yaml: {name} needs options.oracle: a"
                        " benchmark folder"
                    )
            weights = {
                "optimism": 0.6,
                "image_weight": 1.0,
                "context_weight": 1.0,
                "noise": 0.5,
                "seed": 0,
            }
            self.weights = {
                name: float(str(spec.options.get(name, default)))
                for name, default in weights.items()
            }
            identity = json.dumps([_VERSION, self.weights], sort_keys=True)
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]

    def logits(self, prompt: Prompt) -> np.ndarray:
        if self.habits is not None:
            return self._informed(self.habits, prompt)
        w, k = self.weights, len(prompt.candidates)
        up = np.linspace(-1.0, 1.0, k)
        logits = w["optimism"] * (up + 1) / 2 + w["noise"] * _normal(
            f"{w['seed']}|{prompt.text}|{prompt.image_id}", k
        )
        asset = _ASSET.search(prompt.text)
        if asset:
            logits = logits + w["context_weight"] * float(asset[1]) * up
        if prompt.image_id:
            logits = logits + w["image_weight"] * _normal(prompt.image_id, 1)[0] * up
        return np.asarray(logits)

    def _informed(self, h: Habits, prompt: Prompt) -> np.ndarray:
        """(K,) logits of the model with an oracle."""
        question, context, options = parts(prompt.text)
        pillar, says = self.oracle.questions.get(question, ("", {}))
        if prompt.candidates == DIGITS:
            answers, logits = tuple(DIGITS), np.array(h.digit_prior)
        else:
            answers = (
                options if len(options) == len(prompt.candidates) else tuple(prompt.candidates)
            )
            logits = np.array([h.prior_of(pillar, says.get(a, "")) for a in answers])
        logits = logits + h.noise * self._draws(f"prompt|{prompt.text}|{prompt.image_id}", answers)
        if context and context.startswith(self.oracle.stated):
            golds = self.oracle.by_context.get((question, context), Counter())
            logits = logits + h.context_weight * _shares(golds, answers)
            logits = logits + h.context_noise * self._draws(
                f"context|{question}|{context}", answers
            )
        if prompt.image_id:
            golds = self.oracle.by_image.get((question, prompt.image_id), Counter())
            logits = logits + h.image_weight * _shares(golds, answers)
            logits = logits + h.image_noise * self._draws(
                f"image|{question}|{prompt.image_id}", answers
            )
        return np.asarray(logits)

    def _draws(self, key: str, answers: Sequence[str]) -> np.ndarray:
        """(K,) standard normal numbers, drawn for each answer by its text, not by its position."""
        assert self.habits is not None
        digests = [
            hashlib.sha256(f"{self.habits.seed}|{key}|{a}".encode()).digest()[:8] for a in answers
        ]
        return np.asarray(
            ndtri((np.array([int.from_bytes(d, "big") >> 11 for d in digests]) + 0.5) / 2.0**53)
        )

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        answers = []
        for prompt in prompts:
            logits = self.logits(prompt)
            scored = (
                logits if self.habits is None else logits.astype(np.float32)
            )  # with an oracle: the same as in candidate_scores
            first = prompt.candidates[int(np.argmax(scored))]
            sign, rest = self._number(prompt)
            answers.append([(start or sign + first) + rest for start in starts])
        return Generated.whole(answers)

    def _number(self, prompt: Prompt) -> tuple[str, str]:
        """(sign, text after the first digit) of the number that a prompt is about."""
        if self.habits is None:
            return "", ".0"
        if prompt.candidates != DIGITS:
            return "", ""
        question, context, _ = parts(prompt.text)
        golds = (
            self.oracle.by_image.get((question, prompt.image_id))
            or self.oracle.by_context.get((question, context))
            or Counter()
        )
        if len(golds) != 1:
            return "", ".0"
        number = next(iter(golds))
        return "-" * number.startswith("-"), number.lstrip("-")[1:]


def _shares(golds: Counter[str], answers: Sequence[str]) -> np.ndarray:
    """(K,) share of the items whose gold is each answer; numbers count by their first digit."""
    by_digit = tuple(answers) == tuple(DIGITS)
    counted = Counter[str]()
    for answer, n in golds.items():
        counted[answer.lstrip("-")[0] if by_digit else answer] += n
    total = sum(counted.values())
    return np.array([counted[a] / total if total else 0.0 for a in answers])
