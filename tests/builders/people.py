"""A small results file of the second suite: 200 schematic people, two planted models, pictures kept
for the examples."""

from __future__ import annotations

import shutil
from pathlib import Path

from sdgbias.benchmark.people import build_people
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import evaluate
from tests.builders import once


def publish_people(folder: Path, n: int = 200) -> Path:
    """folder/b (benchmark), folder/r.duckdb (results), whose path is returned. The first test of a
    run of pytest makes them, the others copy them."""
    if once.KEPT is None:
        _publish_people(folder, n)
    else:
        made = once.the_only(once.KEPT / f"people-{n}", lambda at: _publish_people(at, n))
        shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder / "r.duckdb"


def _publish_people(folder: Path, n: int) -> None:
    write_people_sample(folder / "raw", n, 3)
    build_people(folder / "raw", folder / "b")
    for name, options in {
        "unfair": {"effects": {"female": -0.3}, "refusals": 0.1},
        "yes-sayer": {"yes_bias": 4.0},
    }.items():
        given = {"oracle": str(folder / "b"), "recall": 0.7, **options}
        spec = ModelSpec(
            name=name,
            title=name,
            backend="planted-people",
            repo="planted:people",
            revision="1",
            state="enabled",
            options=given,
        )
        evaluate.evaluate(spec, folder, folder / "b", folder / "r.duckdb")
