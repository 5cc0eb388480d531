"""The planted models of the self-check, as data: the known behaviour of each. All numbers are
logits (`engines.planted.Habits`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sdgbias.engines.planted import Habits
from sdgbias.errors import UsageError, one_of
from sdgbias.types import PILLARS, ModelSpec

#: Lean towards small first digits: logits fall evenly from 1.5 at 0 to 0 at 9.
_SMALL_DIGITS = tuple(1.5 * (1.0 - d / 9.0) for d in range(10))


@dataclass(frozen=True)
class Plant:
    """One planted model. about: its truth as text. quick: part of the small self-check. no_gain: no
    rule that sees the four views beats its Full view when all answers are equally often right, so
    CADE can't either."""

    name: str
    about: str
    habits: Habits
    quick: bool = True
    no_gain: bool = False

    def spec(self, benchmark: Path, seed: int) -> ModelSpec:
        """The registry entry of this planted model for a benchmark folder."""
        options = {**asdict(self.habits), "oracle": str(benchmark.resolve()), "seed": seed}
        return ModelSpec(
            name=f"planted-{self.name}",
            title=f"Planted: {self.about}",
            backend="planted",
            repo="planted",
            revision="oracle-1",
            state="candidate",
            family="planted",
            batch_size=512,
            licence="Apache-2.0",
            reason="instrument of the self-check",
            options=options,
        )


PLANTS = (
    Plant(
        "null",
        "knows nothing, leans nowhere",
        Habits(context_noise=1.0, image_noise=1.0),
        no_gain=True,
    ),
    Plant(
        "signs",
        "pessimist in pillar 1, conservative in 2, optimist in 3",
        Habits(
            prior={
                PILLARS[0]: (1.2, 0.4, 0.0),
                PILLARS[1]: (0.0, 0.9, 0.2),
                PILLARS[2]: (0.0, 0.5, 1.1),
            },
            context_weight=1.0,
            context_noise=0.8,
            image_weight=1.0,
            image_noise=0.8,
        ),
    ),
    Plant(
        "image-blind",
        "reads the context, ignores the picture",
        Habits(context_weight=2.0, context_noise=1.0),
    ),
    Plant(
        "context-blind",
        "looks at the picture, ignores the context",
        Habits(image_weight=2.0, image_noise=1.0),
        quick=False,
    ),
    Plant(
        "prior",
        "a strong prior on top of what the picture shows: CADE's optimum is known",
        Habits(
            prior={"all": (0.0, 1.0, 2.5)},
            digit_prior=_SMALL_DIGITS,
            image_weight=1.5,
            image_noise=1.0,
        ),
    ),
    Plant(
        "even",
        "no prior, both kinds of evidence weighed as they deserve: nothing to gain",
        Habits(context_weight=1.5, context_noise=1.0, image_weight=1.5, image_noise=1.0),
        no_gain=True,
    ),
    Plant(
        "right",
        "always right and sure of it: nothing to gain",
        Habits(context_weight=20.0, image_weight=20.0),
        quick=False,
        no_gain=True,
    ),
    Plant(
        "misled",
        "the context pulls away from what the picture shows",
        Habits(
            prior={"all": (0.0, 0.0, 0.5)}, context_noise=1.5, image_weight=1.5, image_noise=1.0
        ),
        quick=False,
    ),
    Plant(
        "noisy-optimist",
        "optimist whose every prompt has noise of its own",
        Habits(
            prior={"all": (0.0, 1.0, 2.5)},
            context_weight=1.0,
            image_weight=1.5,
            image_noise=0.5,
            noise=0.15,
        ),
        quick=False,
    ),
)


def plant(name: str, among: Iterable[Plant] = PLANTS) -> Plant:
    found = {p.name: p for p in among}
    if name not in found:
        raise UsageError(one_of("planted model", name, found))
    return found[name]
