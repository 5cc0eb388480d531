"""A few schematic people and the model that answers about them: an evaluation of 138 prompts."""

from __future__ import annotations

from pathlib import Path

from sdgbias.benchmark.people import build_people
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec


def planted(folder: Path) -> ModelSpec:
    """A benchmark of a few people in ``folder``, and the model that answers it."""
    write_people_sample(folder.parent / "raw", 20, 3)
    build_people(folder.parent / "raw", folder)
    return ModelSpec(
        name="planted",
        title="planted",
        backend="planted-people",
        repo="planted:people",
        revision="1",
        state="enabled",
        options={"oracle": str(folder), "recall": 0.7},
    )
