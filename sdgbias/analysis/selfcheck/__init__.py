"""Self-check on planted models: planted effects must be measured, and no effect may appear where
none was planted.

plants       the planted models, as data
truth        expected results: closed form, or an independent simulation
pipeline     through the whole pipeline, from a benchmark folder to the metrics view
checks       truth beside measurement; all p-values are one family
report       the verdict on one page
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdgbias.analysis.selfcheck import pipeline, truth
from sdgbias.analysis.selfcheck.checks import FALSE_ALARM, Check, failed
from sdgbias.analysis.selfcheck.plants import PLANTS, Plant
from sdgbias.analysis.selfcheck.truth import Population
from sdgbias.errors import InputError, SelfcheckFailed
from sdgbias.progress import Progress, each, silent
from sdgbias.suites import benchmark_card
from sdgbias.types import Task

#: Minimum numbers of test and val questions for a verdict.
FEWEST_TEST, FEWEST_VAL = 60, 12


@dataclass(frozen=True)
class Size:
    """clusters, mcq, regression: of the synthetic benchmark. draws: of each search. copies: new
    draws behind an expected value without a closed form."""

    clusters: int
    mcq: int
    regression: int
    draws: int
    copies: int


SMALL, FULL = Size(60, 240, 60, 2_000, 60), Size(300, 1_500, 400, 10_000, 200)


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
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failed

    def intervals(self) -> tuple[int, int]:
        """(intervals that cover the truth, intervals), without deterministic checks and repeats."""
        covered = {
            (c.plant, c.truth, c.measured, c.low, c.high): c.covered
            for c in self.checks
            if c.covered is not None and 0 < c.p < 1
        }
        return sum(map(bool, covered.values())), len(covered)


def run(
    *,
    full: bool = False,
    seed: int = 0,
    benchmark: Path | None = None,
    progress: Progress = silent,
) -> SelfcheckVerdict:
    """Run the whole self-check. `full`: every planted model, on more questions. `benchmark`: an
    existing folder; by default a synthetic one is built. Cleans up after itself. Deterministic for
    given arguments."""
    began = time.monotonic()
    size, plants = FULL if full else SMALL, tuple(p for p in PLANTS if full or p.quick)
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="sdgbias-selfcheck-") as name:
        scratch = Path(name)
        if benchmark is None:
            counts = (size.clusters, size.mcq, size.regression)
            benchmark = pipeline.small_benchmark(scratch, *counts, seed=seed, progress=progress)
        card = benchmark_card(benchmark)
        people = {task: truth.population(benchmark, task) for task in Task}
        require_enough(benchmark, people[Task.MCQ])
        for plant in each(progress, "planted models", plants):
            results = scratch / f"{plant.name}.duckdb"
            read = pipeline.run(plant, benchmark, results, seed=seed, draws=size.draws)
            checks += pipeline.checks(read, people, copies=size.copies)
    places = len(set(np.concatenate([p.place for p in people.values()])))
    return SelfcheckVerdict(
        tuple(checks),
        tuple(failed(checks)),
        plants,
        "full" if full else "small",
        seed,
        str(card["benchmark_id"]),
        bool(card.get("synthetic", False)),
        len(people[Task.MCQ].gold),
        len(people[Task.REGRESSION].gold),
        places,
        time.monotonic() - began,
    )


def require_enough(benchmark: Path, p: Population) -> None:
    for split, least in (("test", FEWEST_TEST), ("val", FEWEST_VAL)):
        n = int((p.split == split).sum())
        if n < least:
            raise InputError(
                f"{benchmark}: {n} multiple-choice questions in the {split} split, the self-check"
                f" needs {least}; name a larger benchmark, or leave --benchmark out: sdgbias"
                " selfcheck"
            )


def gate(verdict: SelfcheckVerdict) -> None:
    """A SelfcheckFailed that names the worst failed checks."""
    if verdict.passed:
        return
    worst = sorted(verdict.failed, key=lambda c: c.p)[:3]
    listed = "; ".join(
        f"{c.plant}: {c.what}: planted {c.truth:.4g}, measured {c.measured:.4g}" for c in worst
    )
    more = (
        f" and {len(verdict.failed) - len(worst)} more" if len(verdict.failed) > len(worst) else ""
    )
    raise SelfcheckFailed(
        f"self-check: {len(verdict.failed)} of {len(verdict.checks)} checks failed: {listed}{more};"
        " trust no figure of this installation before they pass; every check: sdgbias selfcheck"
        " --json"
    )


__all__ = ["FALSE_ALARM", "gate", "run"]
