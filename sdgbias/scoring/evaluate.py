"""Scoring a model on a benchmark: plan, score what is missing, summarise, publish. The one place
that ties the rooms together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from sdgbias import __version__, store
from sdgbias.benchmark import quality
from sdgbias.engines import Backend, load
from sdgbias.engines.agreement import require_agreement
from sdgbias.errors import (
    GateError,
    InfrastructureError,
    ModelError,
    NotAnswerable,
    OutOfMemory,
    UsageError,
)
from sdgbias.methods.cade import Numerics
from sdgbias.methods.labels import LetterGrams
from sdgbias.methods.search import Kind
from sdgbias.raw.images.build import ImageReader
from sdgbias.raw.images.variants import Pictures
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.plan import Plan, make_plan
from sdgbias.scoring.scorer import (
    Elsewhere,
    Progress,
    Run,
    not_generated,
    scorer_for,
)
from sdgbias.suites import benchmark_card, cells, facet, sdg, sdg_tables, suite_of
from sdgbias.types import ModelSpec, Task, View

#: Bumped when the analysis changes, so that a stored run is not mistaken for one made by newer
#: code.
ANALYSIS = "2"
#: Why some engines can't be asked a prompt.
BEYOND = "the right answer is none that this model can say"
NO_LIST = "not a question that this model can answer: it chooses one of listed labels"


def _silent(what: str, done: int, total: int) -> None:
    return None


@dataclass(frozen=True)
class Outcome:
    """run_id of the published run, and what it took: naive, the cells of the paper's views; planned,
    distinct prompts, of which ``extra`` are asked by extra passes alone; scored now, found in the
    cache, failed; and those that its model can't be asked on principle, which are none of the
    planned ones and no reason to start again."""

    run_id: str
    naive: int
    planned: int
    scored: int
    cached: int
    failed: int
    unanswerable: int = 0
    extra: int = 0
    published: bool = True  # False: the run was there, whole, and nothing was done


def run_id(
    spec: ModelSpec, benchmark_id: str, fingerprint: str, settings: dict[str, object]
) -> str:
    """The same model, benchmark, settings and analysis always make the same run."""
    identity = json.dumps([fingerprint, benchmark_id, settings, ANALYSIS], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


@contextmanager
def engine(
    spec: ModelSpec, root: Path, benchmark: Path, results: Path, workers: int | None, ray: str
) -> Iterator[Backend | Elsewhere]:
    """The engine of a run: one in this process, or several that bring a scorer of their own:
    ``workers`` processes of this machine, or actors of the Ray cluster at address ``ray``
    (``workers`` of them at most). Raises UsageError for an endpoint: its budget has one ledger, and
    one engine asks it many things at once."""
    if spec.backend == "api" and (ray or (workers or 1) > 1):
        raise UsageError(
            f"{spec.name}: an endpoint is asked by one engine; leave out --workers and --ray, and"
            " set options.concurrency instead"
        )
    if ray:
        from sdgbias.scoring.ray import Cluster

        with Cluster(spec, root, benchmark, ray, workers) as cluster:
            yield cluster
    elif (workers or 1) > 1:
        from sdgbias.scoring.workers import Crew

        with Crew(spec, root, benchmark, results.parent, workers or 1) as crew:
            yield crew
    else:
        backend = load(spec, root)
        try:
            yield backend
        finally:
            close = getattr(
                backend, "close", None
            )  # an engine in another environment is a process of its own
            if close is not None:
                close()


def score_model(
    backend: Backend | Elsewhere,
    spec: ModelSpec,
    benchmark: Path,
    results: Path,
    progress: Progress = _silent,
    passes: tuple[str, ...] = (),
    seed: int = 0,
) -> tuple[Plan, sdg.Scored, Run, frozenset[str]]:
    """Everything of a run that needs the model: (plan, what is scored, the scorer with its
    failures, keys of the prompts that were asked for the first time)."""
    suite = suite_of(benchmark_card(benchmark))
    plan = make_plan(cells(benchmark, suite, passes, seed), backend.fingerprint)
    cache = ScoreCache(results.parent, spec.name, backend.fingerprint)
    images = Pictures(ImageReader(benchmark))
    images.require(plan.distinct["image_id"])
    with cache.exclusive():
        use_ledger = getattr(backend, "use_ledger", None)
        if (
            use_ledger is not None
            # an endpoint that costs money: its budget is that of this benchmark's runs, over all
            # starts
        ):
            use_ledger(cache.folder / "spent.json", str(benchmark_card(benchmark)["benchmark_id"]))
        scorer = scorer_for(backend, cache, images, spec)
        missing = plan.distinct[
            cache.lacks("scores", plan.distinct["key"]) & (plan.distinct["candidates"] != "")
        ]
        spoken = cache.keys("generations")
        needed = facet.generations_needed if suite == facet.NAME else sdg.generations_needed
        wanted = not_generated(needed(plan.cells, plan.distinct, scorer.forces_starts), spoken)
        beyond = _beyond(backend, benchmark, suite, plan, wanted)
        missing, wanted = (rows[~rows["key"].isin(list(beyond))] for rows in (missing, wanted))
        asked = frozenset(missing["key"]) | frozenset(wanted.loc[wanted["candidates"] == "", "key"])
        scorer.run(missing, wanted, progress)
        scorer.failures += [(key, NotAnswerable.kind, why) for key, why in beyond.items()]
        for kind in ("scores", "generations"):
            cache.compact(kind)
        return (
            plan,
            sdg.Scored(plan.cells, cache.read("scores"), cache.read("generations")),
            scorer,
            asked,
        )


def _beyond(
    backend: Backend | Elsewhere, benchmark: Path, suite: str, plan: Plan, wanted: pd.DataFrame
) -> dict[str, str]:
    """Key -> why of the prompts that an engine says of itself it can't be asked: what has
    candidates where it only chooses one of listed labels (``chooses_labels``), and what has a right
    answer that is none of the few it can say (``names``)."""
    chooses, names = getattr(backend, "chooses_labels", False), getattr(backend, "names", None)
    found = dict.fromkeys(
        facet.beyond(benchmark, wanted, names) if suite == facet.NAME and names is not None else [],
        BEYOND,
    )
    scored: list[str] = (
        plan.distinct.loc[plan.distinct["candidates"] != "", "key"].tolist() if chooses else []
    )
    return found | dict.fromkeys(scored, NO_LIST)


def _of_paper(plan: Plan) -> pd.Series:
    """Which cells are the paper's views; the others belong to extra passes, for which no number is
    decoded."""
    return plan.cells["view"].isin([view.value for view in View])


def evaluate(
    spec: ModelSpec,
    root: Path,
    benchmark: Path,
    results: Path,
    *,
    draws: int = 10_000,
    seed: int = 0,
    numerics: Numerics = "exact",
    mode: str = "continue",
    progress: Progress = _silent,
    workers: int | None = None,
    ray: str = "",
    passes: tuple[str, ...] = (),
    search: Kind = "random",
) -> Outcome:
    """Scores one registered model on a benchmark folder and publishes the run into the results
    file.

    Prompts scored before (by this or an interrupted run) are read from the cache beside the results
    file. The same model, benchmark and settings give the same run_id; a run that is published
    already is left alone. ``workers`` and ``ray`` say where engines run (see ``engine``); they
    never change a result. ``passes``: what is asked beyond the paper's views (passes.py).
    """
    started = datetime.now(UTC)
    card = benchmark_card(benchmark)
    benchmark_id, suite = str(card["benchmark_id"]), suite_of(card)
    with store.connect(
        results, details=()
    ):  # a folder that can't be written is told before any prompt is scored
        pass
    settings: dict[str, object] = {"seed": seed}
    if suite == sdg.NAME:
        settings |= {"draws": draws, "numerics": numerics, "mode": mode, "passes": list(passes)}
        if search != "random":  # the default is not named, so that runs of before keep their id
            settings["search"] = search
    else:
        settings |= {
            "analysis": facet.ANALYSIS,
            "encoder": f"{LetterGrams.name}, floor {LetterGrams.floor:g}",
        }
    with engine(spec, root, benchmark, results, workers, ray) as backend:
        identity = run_id(spec, benchmark_id, backend.fingerprint, settings)
        if store.has_run(results, identity):
            sql = """SELECT n_prompts_naive, n_prompts_planned, n_failed, coalesce(CAST(config ->>
                     'unanswerable' AS BIGINT), 0), coalesce(CAST(config -> 'extra' ->> 'prompts'
                     AS BIGINT), 0)
                     FROM runs WHERE run_id = ?"""
            naive, planned, failed, unanswerable, extra = (
                int(n) for n in store.query(results, sql, [identity]).iloc[0]
            )
            if failed == 0:
                return Outcome(
                    identity, naive, planned, 0, planned, 0, unanswerable, extra, published=False
                )
        plan, scored, scorer, asked = score_model(
            backend, spec, benchmark, results, progress, passes, seed
        )
    if scored.scores.empty and scored.generations.empty:
        if scorer.failures and all(kind == NotAnswerable.kind for _, kind, _ in scorer.failures):
            raise ModelError(
                f"{spec.name}: can't be asked a single question of {benchmark}:"
                f" {scorer.failures[0][2]}; take suite {suite} out of its options.suites in"
                f" registry/models/{spec.name}.yaml"
            )
        _, kind, message = (
            scorer.failures[0]
            if scorer.failures
            else ("", "NoPrompts", "the benchmark holds no prompts")
        )
        raise (OutOfMemory if kind in ("OutOfMemory", "MemoryError") else InfrastructureError)(
            f"{spec.name}: no prompt could be scored, {len(scorer.failures)} failed, the first with"
            f" {kind}: {message}; nothing is published; mend it, then again: sdgbias evaluate"
            f" {spec.name}"
        )
    require_agreement(results.parent, spec.name, backend.fingerprint)
    unscored = {key: kind for key, kind, _ in scorer.failures}
    unanswerable = sum(kind == NotAnswerable.kind for kind in unscored.values())
    fresh, failed, planned = (
        len(asked - set(unscored)),
        len(unscored) - unanswerable,
        plan.planned - unanswerable,
    )
    known = planned - fresh - failed
    paper = _of_paper(plan)
    naive = int(paper.sum())
    beyond = set(plan.distinct["key"]) - plan.paper()
    extra = sum(unscored.get(key) != NotAnswerable.kind for key in beyond)
    if suite == facet.NAME:
        made = facet.tables(benchmark, scored, seed=seed, images=scorer.images)
    else:
        made = sdg_tables.tables(
            benchmark,
            scored,
            scorer.images,
            progress,
            draws=draws,
            seed=seed,
            numerics=numerics,
            mode=mode,
            search=search,
        )
        _check_predictions(made["predictions"], sdg.load_items(benchmark))
    record = {
        "run_id": identity,
        "suite": suite,
        "model": spec.name,
        "title": spec.title,
        "backend": spec.backend,
        "revision": spec.revision,
        "fingerprint": backend.fingerprint,
        "benchmark_id": benchmark_id,
        "benchmark_path": benchmark.name,
        "licence": str(card.get("licence", "")),
        "started_at": started,
        "finished_at": datetime.now(UTC),
        "seed": seed,
        "numerics": numerics,
        "n_prompts_naive": naive,
        "n_prompts_planned": planned,
        "n_scored": fresh,
        "n_cached": known,
        "n_failed": failed,
        "config": json.dumps(
            {
                **settings,
                "engine": _engine(backend, scorer),
                "extra": {"cells": len(plan.cells) - naive, "prompts": extra},
                "sdgbias": __version__,
                "unanswerable": unanswerable,
                "synthetic": bool(card.get("synthetic", False)),
                **(
                    {"unknown_because": card.get("unknown_because", {})}
                    if suite == facet.NAME
                    else {}
                ),
                "spec": asdict(spec),
            },
            sort_keys=True,
            default=str,
        ),
        "provenance": "planted" if spec.backend.startswith("planted") else "measured",
    }
    made["scores"] = scored.cells.merge(scored.scores, on="key").drop(columns="key")
    made["failures"] = pd.DataFrame(scorer.failures, columns=["key", "kind", "message"])
    made["quarantine"] = sdg.read_table(benchmark, "quarantine")
    store.publish(results, record, made)
    return Outcome(identity, naive, planned, fresh, known, failed, unanswerable, extra)


def _engine(backend: Backend | Elsewhere, scorer: Run) -> dict[str, float]:
    """What the engines say they did, and the seconds that it took inside them: what `sdgbias plan`
    judges the next run's time by."""
    return {
        **dict(getattr(backend, "counts", {})),
        "seconds": round(scorer.seconds, 3),
        "engines": getattr(backend, "size", 1),
    }


def _check_predictions(predictions: pd.DataFrame, items: dict[Task, pd.DataFrame]) -> None:
    """The last gate before anything is published: expectations/predictions.json. Raises GateError;
    the scores are kept."""
    verdict = quality.check(
        "predictions", predictions, tables={f"items_{task}": table for task, table in items.items()}
    )
    for finding in (*verdict.of("gate"), *verdict.of("quarantine")):
        raise GateError(
            f"predictions: rule {finding.rule} broken {finding.count} time(s): {finding.message};"
            " nothing is published, scores are kept: build the benchmark again, then evaluate"
        )
