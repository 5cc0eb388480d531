"""The planted models of the self-check: the known behaviour of each, from
``data/planted_models.yaml``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from sdgbias.engines.planted import Habits, read_habits
from sdgbias.files import packaged_yaml
from sdgbias.registry.spec import ModelSpec

FILE = "planted_models.yaml"


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


PLANTS = tuple(
    Plant(name, **about | {"habits": read_habits(about["habits"], f"{FILE}: {name}")})
    for name, about in packaged_yaml(FILE).items()
)
