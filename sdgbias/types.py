"""The values shared by all packages: views, context tests, prompts, scores, models. No behaviour
beyond names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

#: The suites: SDGBiasBench, and fairness over demographic attributes, whose paper asks about the
#: people of the data set FACET.
SDG, FACET = "sdg", "people"
SUITES = (SDG, FACET)

#: The states of a registered model: under evaluation, scored every night, suspended for a while,
#: no longer scored.
CANDIDATE, ENABLED, QUARANTINED, RETIRED = "candidate", "enabled", "quarantined", "retired"
STATES = (CANDIDATE, ENABLED, QUARANTINED, RETIRED)

#: Which multiple-choice answers are generated.
Generation = Literal["T1", "all", "views", "none"]

LETTERS = "ABC"
#: Letters of a suite of custom questions, which has up to ten options.
OPTION_LETTERS = "ABCDEFGHIJ"
DIGITS = "0123456789"

#: The three pillars, in the paper's order (App. B.3-B.5).
PILLARS = ("Health & Nutrition", "Basic Services & Infrastructure", "Human Capital & Development")

#: Context variables in the order of Table E: DHS label column -> the name that prompts show.
CONTEXT_NAMES = {
    "asset_index": "asset_index",
    "water_index": "water_index",
    "sanitation_index": "sanitation_index",
    "under5_mort": "under_5_mortality_rate",
    "women_edu": "woman_education_years",
    "women_bmi": "woman_bmi",
    "urban": "urban",
}
#: What the picture of a cluster can show, in the order of the panels. Tables hold the shown ones as
#: text: 'photo, tile, nightlights'; '' unknown (an imported release that doesn't state it).
MODALITIES = ("photo", "tile", "nightlights")
#: The reduced subset of Table E (T2, T4).
REDUCED_CONTEXT = ("asset_index", "sanitation_index", "urban")


#: The columns of a table of rows that are left out, all text.
QUARANTINE_COLUMNS = ["table", "key", "rule", "detail"]


class Stage(StrEnum):
    """A stage of a build of places, in order; ``doing``: what is shown while it runs."""

    doing: str

    def __new__(cls, name: str, doing: str) -> Stage:
        stage = str.__new__(cls, name)
        stage._value_, stage.doing = name, doing
        return stage

    CLUSTERS = "clusters", "reading clusters"
    IMAGES = "images", "drawing pictures"
    SERIES = "series", "reading indicator series"
    ITEMS = "items", "drawing questions"
    PROMPTS = "prompts", "writing prompts"
    CARD = "card", "writing the card"
    CHECK = "check", "checking the benchmark"


class Task(StrEnum):
    MCQ = "mcq"
    REGRESSION = "regression"


class View(StrEnum):
    """The four evidence views of Sec. 3.1. The values are the method names of the `metrics`
    view."""

    Q_ONLY = "q_only"
    CTX_Q = "ctx_q"
    IMG_Q = "img_q"
    FULL = "full"

    @property
    def has_context(self) -> bool:
        return self in (View.CTX_Q, View.FULL)

    @property
    def has_image(self) -> bool:
        return self in (View.IMG_Q, View.FULL)


#: Least candidate mass; the default policy quarantines a model below it (rule candidate-mass).
MASS_FLOOR = 0.2
#: All views, and those that a language model without a vision tower can be asked.
VIEWS = tuple(view.value for view in View)
IMAGE_FREE = tuple(view.value for view in View if not view.has_image)
#: Printed instead of a number that a model without views of pictures can't have.
NEEDS_PICTURES = "needs pictures"
#: Printed instead of a number that a model that gives text only can't have.
NEEDS_SCORES = "needs log-probabilities"
#: Suffix of methods that read a generated multiple-choice answer: full_generated.
GENERATED = "_generated"


class ContextTest(StrEnum):
    """The five context conditions of Table E."""

    T1 = "T1"
    T2 = "T2"
    T3 = "T3"
    T4 = "T4"
    T5 = "T5"

    @property
    def has_values(self) -> bool:
        """Whether its context line has values of the place, not names alone."""
        return self in (ContextTest.T1, ContextTest.T2)


#: Context tests of each task (regression: the authors' release has T2 and T5 only).
TESTS: dict[Task, tuple[ContextTest, ...]] = {
    Task.MCQ: tuple(ContextTest),
    Task.REGRESSION: (ContextTest.T2, ContextTest.T5),
}

#: Interval-accuracy tolerances of Table F, by regression target; correct iff |prediction - gold| <=
#: tolerance.
TOLERANCES = {
    "under5_mort": 5.0,
    "women_bmi": 1.0,
    "asset_index": 0.75,
    "sanitation_index": 0.75,
    "water_index": 0.75,
    "women_edu": 1.5,
}


@dataclass(frozen=True)
class Prompt:
    """One distinct prompt: text, its pictures if any, and the candidates of its first token.

    ``images`` holds encoded bytes (PNG or JPEG) of each picture, in the order shown, none for an
    image-free prompt; ``image_id`` is their sha256 hex digest as computed by shards.image_id (''
    without a picture); ``candidates`` is a string of one-character candidates, e.g. 'AB', 'ABC',
    '0123456789'.
    """

    text: str
    candidates: str
    images: tuple[bytes, ...] = ()
    image_id: str = ""


@dataclass(frozen=True)
class ScoreBatch:
    """First-token scores of N prompts; K is the largest number of candidates among them.

    logits (N, K) float32: raw logit of candidate j of each prompt, token variants merged by
    logsumexp, NaN beyond its candidates. mass (N,) float32: share of the whole vocabulary's
    probability that lies on the candidates. minus_logit (N,) float32: logit of '-', a diagnostic
    for regression (NaN without such a token). top_token: decoded argmax over the whole vocabulary,
    i.e. the first token of greedy decoding. n_tokens (N,) int32: prompt length, image tokens
    included.

    upper (N, K) float32, None where all scores are exact: an upper bound of the true logit. A
    *censored* candidate, one whose score was withheld, has -inf in logits and its bound here; a
    partly withheld one (another spelling of it may be missing) has both; NaN where the logit is
    exact and beyond a prompt's candidates.
    """

    logits: np.ndarray
    mass: np.ndarray
    minus_logit: np.ndarray
    top_token: list[str]
    n_tokens: np.ndarray
    upper: np.ndarray | None = None

    @classmethod
    def empty(cls, prompts: Sequence[Prompt]) -> ScoreBatch:
        """A batch of N prompts without any score yet."""
        import numpy as np

        n, width = len(prompts), max((len(p.candidates) for p in prompts), default=0)
        logits, mass, minus = (np.full(s, np.nan, np.float32) for s in ((n, width), n, n))
        return cls(logits, mass, minus, [""] * n, np.zeros(n, dtype=np.int32))


@dataclass(frozen=True)
class Generated:
    """Greedy answers of N prompts, one for each of S forced starts. texts (N, S): each with its
    start. truncated (N, S): whether the limit of new tokens ended the answer, not the model."""

    texts: list[list[str]]
    truncated: list[list[bool]]

    @classmethod
    def whole(cls, texts: list[list[str]]) -> Generated:
        """Answers that no limit can cut off."""
        return cls(texts, [[False] * len(row) for row in texts])


@dataclass(frozen=True)
class CadeParams:
    """CADE's four hyper-parameters (Sec. 4): context penalty, its KL sensitivity, prior penalty,
    confidence gate."""

    alpha: float
    lambda_kl: float
    beta: float
    tau: float


#: Longest answer that is generated, in tokens, by kind of question: a letter with a few words
#: around it, a number, and free words about a picture of people (512 as in the authors' code).
ANSWER_TOKENS = {"mcq": 16, "regression": 8, "people": 512}
