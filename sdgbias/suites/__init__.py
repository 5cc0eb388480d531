"""Suites: the prompts of a benchmark folder, and the results computed from their scores. A suite
never sees a model.

`SUITES` holds the suites that are written in Python. A suite that is a folder of custom questions
(its benchmark's card has ``kind: own``) has a name chosen by its author: `of` builds its Suite from
a benchmark, `named` builds one for readers from the name stored with a run.

* suite, rows: everything that differs between suites as one value, and rows of results
* sdg, sdg_metrics, sdg_numbers, sdg_tables, sdg_censoring: questions about places
* facet, facet_groups, facet_floor: pictures of people
* own: custom questions
* extra_prompts, paraphrases: prompts beyond the four views
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sdgbias import store
from sdgbias.errors import InputError, argument, one_of
from sdgbias.files import build_command, json_file, understood
from sdgbias.suites import facet, own, sdg, sdg_tables
from sdgbias.suites.suite import EvalSettings, Suite

__all__ = [
    "KINDS",
    "SUITES",
    "EvalSettings",
    "Suite",
    "benchmark_card",
    "in_order",
    "named",
    "newest_runs",
    "of",
    "suite_of",
]

SUITES: dict[str, Suite] = {suite.name: suite for suite in (sdg_tables.SUITE, facet.SUITE)}
#: Field ``kind`` of a card -> constructor of the suite of such a benchmark: (folder, its card).
KINDS: dict[str, Callable[[Path, Mapping[str, object]], Suite]] = {own.KIND: own.suite}


def benchmark_card(benchmark: Path) -> dict[str, object]:
    """benchmark.json of a finished folder. Raises InputError when it is missing, unreadable, or
    names a suite unknown to this version."""
    path = benchmark / "benchmark.json"
    if not path.exists():
        raise InputError(
            f"{path}: no benchmark here; build one first: sdgbias build --raw RAW --indicators DIR"
            f" --out {argument(benchmark)}"
        )
    onward = f"write it again: {build_command(benchmark)}"
    fault = "can't be read as a benchmark's card"
    with understood(path, fault, onward):
        card: dict[str, object] = json_file(path, fault, onward)
        str(card["benchmark_id"])
    if suite_of(card) not in SUITES and str(card.get("kind")) not in KINDS:
        raise InputError(
            f"{path}: {one_of('suite', suite_of(card), SUITES)}; build the benchmark again"
        )
    return card


def suite_of(card: Mapping[str, object]) -> str:
    """The suite's name in a card; folders built before there were two suites belong to the
    first."""
    return str(card.get("suite", sdg.NAME))


def of(benchmark: Path) -> Suite:
    """The suite of a benchmark folder, as its card names it. Raises InputError."""
    card = benchmark_card(benchmark)
    make = KINDS.get(str(card.get("kind")))
    return SUITES[suite_of(card)] if make is None else make(benchmark, card)


def named(name: str, cluster_by: str | None = "") -> Suite:
    """The suite of stored runs. A name that isn't in SUITES is that of a suite of custom questions:
    multiple choice, with errors clustered by the column ``cluster_by``, which its runs keep
    (config.own), else by question."""
    return SUITES.get(name) or own.suite(Path(), {"suite": name, "cluster_by": cluster_by})


def in_order(names: Iterable[str]) -> list[str]:
    """Names of suites in the order of pages and reports: those of SUITES first, others by name."""
    order = list(SUITES)
    return sorted(set(names), key=lambda n: (order.index(n) if n in order else len(order), n))


def newest_runs(
    results: Path, among: Sequence[str] | None = None, *, per_benchmark: bool = False
) -> list[str]:
    """The newest finished runs of each model in every suite of the results, suite by suite: on each
    benchmark where the suite keeps benchmarks apart, or with ``per_benchmark`` in any case.
    ``among``: restrict to these runs."""
    sql = "SELECT DISTINCT suite FROM runs WHERE finished_at IS NOT NULL"
    runs = []
    for name in in_order(store.query(results, sql)["suite"]):
        apart = per_benchmark or named(name).per_benchmark
        runs += store.latest_runs(results, name, per_benchmark=apart, among=among)
    return runs
