"""Self-check on planted models: planted effects must be measured, and no effect may appear where
none was planted.

models       the planted models, as data
truth        expected results: closed form, or an independent simulation
pipeline     through the whole pipeline, from a benchmark folder to the metrics view
rules        deterministic rules, beside a second implementation of the same rule
seeds        many data sets as arrays: coverage of intervals, false alarms, tuned CADE against its
             optimum
checks       truth beside measurement; all p-values are one family
faults       the parts under test, and how to break them on purpose
report       the verdict on one page
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdgbias.analysis.selfcheck import pipeline, rules, seeds, truth
from sdgbias.analysis.selfcheck.checks import FALSE_ALARM, Check, failed
from sdgbias.analysis.selfcheck.faults import instrument
from sdgbias.analysis.selfcheck.plants import PLANTS, Plant
from sdgbias.analysis.selfcheck.truth import Population
from sdgbias.errors import GateError, InputError
from sdgbias.progress import Progress, each, silent
from sdgbias.suites import benchmark_card
from sdgbias.types import Task

#: Minimum numbers of test and val questions for a verdict.
FEWEST_TEST, FEWEST_VAL = 60, 12


@dataclass(frozen=True)
class SelfcheckVerdict:
    """checks: all of them. failed: those rejected by Holm's rule. benchmark_id with its counts.
    size: 'small' or 'full'."""

    checks: tuple[Check, ...]
    failed: tuple[Check, ...]
    plants: tuple[Plant, ...]
    size: str
    seed: int
    benchmark_id: str
    synthetic: bool
    n_mcq: int
    n_regression: int
    places: int
    tuned_seeds: int
    plain_seeds: int
    seconds: float
    fault: str = ""

    @property
    def passed(self) -> bool:
        return not self.failed

    def intervals(self) -> tuple[int, int]:
        """(intervals that cover the truth, intervals) of the pipeline, without deterministic checks
        and repeats."""
        known = {
            (c.plant, c.truth, c.measured, c.low, c.high): c.covered
            for c in self.checks
            if c.part == "pipeline" and c.covered is not None and 0 < c.p < 1
        }
        return sum(map(bool, known.values())), len(known)


def run(
    *,
    full: bool = False,
    seed: int = 0,
    benchmark: Path | None = None,
    fault: str = "",
    plants: Sequence[Plant] | None = None,
    size: seeds.Size | None = None,
    progress: Progress = silent,
) -> SelfcheckVerdict:
    """Run the whole self-check. `benchmark`: an existing folder; by default a synthetic one is
    built. `fault`: one of faults.BREAKS, injected to confirm that it is detected. Cleans up after
    itself. Deterministic for given arguments."""
    began = time.monotonic()
    used = instrument(fault)
    chosen = tuple(plants if plants is not None else (p for p in PLANTS if full or p.quick))
    size = size or (seeds.FULL if full else seeds.SMALL)
    found: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="sdgbias-selfcheck-") as name:
        scratch = Path(name)
        if benchmark is None:
            counts = (300, 1500, 400) if full else (60, 240, 60)
            benchmark = pipeline.small_benchmark(scratch, *counts, seed=seed, progress=progress)
        card = benchmark_card(benchmark)
        people = {task: truth.population(benchmark, task) for task in Task}
        _enough(benchmark, people[Task.MCQ])
        for plant in each(progress, "planted models", chosen):
            read = pipeline.run(
                plant,
                benchmark,
                scratch / f"{plant.name}.duckdb",
                used,
                seed=seed,
                draws=size.draws,
            )
            found += pipeline.checks(read, people, copies=size.copies)
        found += rules.checks(benchmark, seed)
    found += seeds.checks(size, used, seed, progress)
    places = len(set(np.concatenate([p.place for p in people.values()])))
    return SelfcheckVerdict(
        tuple(found),
        tuple(failed(found)),
        chosen,
        "full" if full else "small",
        seed,
        str(card["benchmark_id"]),
        bool(card.get("synthetic", False)),
        len(people[Task.MCQ].gold),
        len(people[Task.REGRESSION].gold),
        places,
        size.tuned,
        size.plain,
        time.monotonic() - began,
        fault,
    )


def _enough(benchmark: Path, p: Population) -> None:
    for split, least in (("test", FEWEST_TEST), ("val", FEWEST_VAL)):
        n = int((p.split == split).sum())
        if n < least:
            raise InputError(
                f"{benchmark}: {n} multiple-choice questions in the {split} split, the self-check"
                f" needs {least}; name a larger benchmark, or leave --benchmark out: sdgbias"
                " selfcheck"
            )


def gate(verdict: SelfcheckVerdict) -> None:
    """A GateError that names the worst failed checks."""
    if verdict.passed:
        return
    worst = sorted(verdict.failed, key=lambda c: c.p)[:3]
    told = "; ".join(
        f"{c.plant}: {c.what}: planted {c.truth:.4g}, measured {c.measured:.4g}" for c in worst
    )
    more = (
        f" and {len(verdict.failed) - len(worst)} more" if len(verdict.failed) > len(worst) else ""
    )
    raise GateError(
        f"self-check: {len(verdict.failed)} of {len(verdict.checks)} checks failed: {told}{more};"
        " trust no figure of this installation before they pass; every check: sdgbias selfcheck"
        " --json"
    )


__all__ = ["FALSE_ALARM", "gate", "run"]
