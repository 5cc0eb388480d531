"""Scoring a model on a benchmark: plan, score what is missing, summarise, publish. The only module
that connects engines, suites and the store."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pandas as pd

from sdgbias import __version__, store, suites
from sdgbias.engines import Backend, load, release_memory
from sdgbias.engines.agreement import TOLERANCES, require_agreement
from sdgbias.errors import (
    InfrastructureError,
    ModelError,
    NoScores,
    NotAnswerable,
    OutOfMemory,
    UsageError,
)
from sdgbias.progress import Progress, silent
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.scoring import admission
from sdgbias.scoring.cache import TIMED, ScoreCache
from sdgbias.scoring.plan import Plan, as_prompts, askable, make_plan
from sdgbias.scoring.probes import draw
from sdgbias.scoring.run_id import run_id
from sdgbias.scoring.scorer import DECODING, NOT_FINITE, SCORING, Scorer, not_generated
from sdgbias.scoring.timing import timings
from sdgbias.suites.sdg import read_table
from sdgbias.suites.suite import Abilities, EvalSettings, StoredScores, Suite
from sdgbias.types import NEEDS_PICTURES, VIEW_LABELS, ModelSpec, View

#: Prompts that show how an undecided model's may be scored together.
_PROBES = 12
#: Why an engine that only chooses labels can't score a prompt.
NO_LIST = "not a question that this model can answer: it chooses one of listed labels"


@dataclass(frozen=True)
class Outcome:
    """run_id of the published run, and its cost: naive, the cells of the paper's views; planned,
    distinct prompts, of which ``extra`` belong to extra prompts alone; scored now, found in the
    cache, failed; and unanswerable prompts, which no engine of this kind can answer: they are not
    part of the planned ones and no reason to retry."""

    run_id: str
    naive: int
    planned: int
    scored: int
    cached: int
    failed: int
    unanswerable: int = 0
    extra: int = 0
    published: bool = True  # False: the complete run was there already and nothing was done


@dataclass(frozen=True)
class Scoring:
    """The state of a plan after scoring, which holds no engine: the scores, the prompts that failed
    (key, kind, message), the pictures, the ``seconds`` spent inside the engine, and ``asked``,
    keys of the prompts that were sent for the first time. gives_scores: False where the model is
    measured by its answers alone. times: rows of the table ``timings``."""

    plan: Plan
    scored: StoredScores
    failed: list[tuple[str, str, str]]
    images: ImageReader
    seconds: float
    asked: frozenset[str]
    gives_scores: bool = True
    times: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def empty(self) -> bool:
        return self.scored.scores.empty and self.scored.generations.empty

    @cached_property
    def failures(self) -> dict[str, str]:
        """Key -> kind of every prompt without an answer."""
        return {key: kind for key, kind, _ in self.failed}

    @cached_property
    def lost_view(self) -> str:
        """A view none of whose prompts has a score, with the first reason; '' without one. Prompts
        that no engine of this kind can answer are no loss."""
        lost = {key for key, kind, _ in self.failed if kind != NotAnswerable.kind}
        for view, keys in self.plan.cells.groupby("view", sort=True)["key"]:
            if set(keys) <= lost:
                first = next(f for f in self.failed if f[0] in set(keys))
                return f"{VIEW_LABELS.get(str(view), str(view))} ({first[1]}: {first[2]})"
        return ""

    @cached_property
    def paper(self) -> pd.Series:
        """Which cells are the suite's views; the others belong to extra prompts."""
        return self.plan.cells["view"].isin([view.value for view in View])

    @cached_property
    def extra(self) -> int:
        """Distinct prompts that only extra prompts need, unanswerable ones excluded."""
        beyond = () if self.paper.all() else set(self.plan.distinct["key"]) - self.plan.paper()
        return sum(self.failures.get(key) != NotAnswerable.kind for key in beyond)

    def outcome(self, run_id: str) -> Outcome:
        """Counts of prompts; unanswerable prompts are not among the planned ones."""
        unanswerable = sum(kind == NotAnswerable.kind for kind in self.failures.values())
        planned, failed = self.plan.planned - unanswerable, len(self.failures) - unanswerable
        fresh = len(self.asked - set(self.failures))
        cells, cached = int(self.paper.sum()), planned - fresh - failed
        return Outcome(
            run_id, cells, planned, fresh, cached, failed, unanswerable, extra=self.extra
        )

    def tables(self) -> dict[str, pd.DataFrame]:
        """Rows of the tables ``scores``, ``failures`` and ``timings``."""
        return {
            "scores": self.scored.cells.merge(self.scored.scores, on="key").drop(columns="key"),
            "failures": pd.DataFrame(self.failed, columns=["key", "kind", "message"]),
            "timings": self.times,
        }


@dataclass(frozen=True)
class _Work:
    """What a run has to do: the plan; the prompts whose answer is ``needed`` (key, limit, ...);
    those to score (``missing``) and to decode (``wanted``); ``unanswerable``: key -> reason."""

    plan: Plan
    needed: pd.DataFrame
    missing: pd.DataFrame
    wanted: pd.DataFrame
    unanswerable: dict[str, str]
    gives_scores: bool

    @property
    def asked(self) -> frozenset[str]:
        """Keys of the prompts that are sent for the first time."""
        fresh = self.wanted[(self.wanted["candidates"] == "") | (not self.gives_scores)]
        return frozenset(self.missing["key"]) | frozenset(fresh["key"])


def _of_all(todo: _Work, progress: Progress) -> Progress:
    """Progress in all prompts of the run, those that were scored earlier included; reported once
    before the first one."""
    earlier = {
        SCORING: len(todo.plan.distinct) - len(todo.missing),
        DECODING: len(todo.needed) - len(todo.wanted),
    }
    if len(todo.missing):
        progress(SCORING, earlier[SCORING], len(todo.plan.distinct))

    def of_all(what: str, done: int, total: int) -> None:
        progress(what, done + earlier.get(what, 0), total + earlier.get(what, 0))

    return of_all


def score_model(
    engine: Backend,
    spec: ModelSpec,
    benchmark: Path,
    results: Path,
    settings: EvalSettings = EvalSettings(),
    progress: Progress = silent,
    run_id: str = "",
) -> Scoring:
    """What needs the model: scores every prompt of the run that is missing from the cache beside
    ``results`` and commits the rows to it, as paid by that run."""
    suite = suites.of(benchmark)
    whole = make_plan(askable(suite.cells(benchmark, settings), spec), engine.fingerprint)
    cache = ScoreCache(results.parent, spec.name, engine.fingerprint)
    images = ImageReader(benchmark)
    images.require(whole.distinct["image_id"].unique())
    with cache.exclusive():
        # the budget covers all runs on this benchmark, over all starts
        benchmark_id = str(suites.benchmark_card(benchmark)["benchmark_id"])
        engine.use_ledger(cache.folder / "spent.json", benchmark_id)
        scorer = Scorer(engine, cache, images, spec)

        def work(gives_scores: bool) -> _Work:
            abilities = Abilities(gives_scores, engine.forces_starts)
            needed = suite.to_decode(spec, whole.cells, whole.distinct, settings, abilities)
            plan = whole if gives_scores else whole.only(needed["key"])
            wanted = not_generated(needed, cache.decoded())
            missing = plan.distinct[
                cache.lacks("scores", plan.distinct["key"])
                & (plan.distinct["candidates"] != "")
                & gives_scores
            ]
            never = _unanswerable(engine, benchmark, suite, plan, wanted)
            missing, wanted = (
                rows[~rows["key"].isin(list(never))].assign(run=run_id)
                for rows in (missing, wanted)
            )
            if len(wanted):
                wanted = wanted.assign(n_tokens=cache.lengths(wanted["key"]))
            needed = needed[["key", "limit"]]
            return _Work(plan, needed, missing, wanted, never, gives_scores)

        todo = work(engine.gives_scores)
        if len(todo.missing) and admission.undecided(spec):
            rows = draw(todo.missing, _PROBES, 0).to_dict("records")
            decided, line = admission.decide_now(engine, spec, as_prompts(rows, images))
            scorer.size = decided.batch_size
            print(
                f"{spec.name}: no entry says how its prompts may be scored together; {len(rows)} of"
                f" them probed: {line}",
                file=sys.stderr,
                flush=True,
            )
        try:
            scorer.run(todo.missing, todo.wanted, _of_all(todo, progress))
        except NoScores:
            if not cache.lacks("scores", whole.distinct["key"]).all():
                raise  # the endpoint gave scores before
            todo = work(gives_scores=False)
            scorer.run(todo.missing, todo.wanted, _of_all(todo, progress))
        failed = scorer.failures + [
            (key, NotAnswerable.kind, why) for key, why in todo.unanswerable.items()
        ]

        scores, cells = cache.compact("scores"), todo.plan.cells
        generations = cache.compact("generations").merge(todo.needed, on=["key", "limit"])
        times = timings(cells, scores, generations, run_id, settings.passes)
        of_time = [name for name, _ in TIMED]
        scored = StoredScores(
            cells,
            scores.drop(columns=of_time),
            generations.drop(columns=of_time),
            near=TOLERANCES[spec.dtype],
        )
        # the texts are a seventh of a run's memory, and nothing reads them from here on
        plan = replace(todo.plan, distinct=todo.plan.distinct.drop(columns="text"))
        return Scoring(
            plan,
            scored,
            failed,
            images,
            scorer.seconds,
            todo.asked,
            todo.gives_scores,
            times,
        )


def _unanswerable(
    engine: Backend, benchmark: Path, suite: Suite, plan: Plan, wanted: pd.DataFrame
) -> dict[str, str]:
    """Key -> reason of the prompts that this engine can never answer: prompts with candidates where
    it only chooses one of the listed labels, and prompts whose right answer is not among the few
    names it can give."""
    named = {} if engine.names is None else suite.unanswerable(benchmark, wanted, engine.names)
    if not engine.chooses_labels:
        return named
    scored = plan.distinct.loc[plan.distinct["candidates"] != "", "key"]
    return named | dict.fromkeys(scored.tolist(), NO_LIST)


def evaluate(
    spec: ModelSpec,
    root: Path,
    benchmark: Path,
    results: Path,
    settings: EvalSettings = EvalSettings(),
    progress: Progress = silent,
) -> Outcome:
    """Scores one registered model on a benchmark folder and publishes the run into the results
    file.

    Prompts scored before (by this or an interrupted run) are read from the cache beside the results
    file. The same model, benchmark and settings give the same run_id; a complete published run is
    left alone.
    """
    started = datetime.now(UTC)
    read = _files(benchmark)
    card, suite = suites.benchmark_card(benchmark), suites.of(benchmark)
    if suite.needs_pictures and not spec.pictured:
        raise UsageError(
            f"{spec.name}: {NEEDS_PICTURES}: suite {suite.name} ({benchmark}) asks about pictures,"
            f" and this model is asked the views {', '.join(spec.views)} alone; a night skips it"
        )
    with store.connect(results, details=()):
        pass  # an unwritable folder is an error before any prompt is scored
    name = run_id(spec, root, str(card["benchmark_id"]), suite, settings)
    if (done := _published(results, name)) is not None and not done.failed:
        return done
    with closing(load(spec, root)) as engine:
        scoring = score_model(engine, spec, benchmark, results, settings, progress, name)
        done_by_engine = {**engine.counts, "seconds": round(scoring.seconds, 3)}
        fingerprint = engine.fingerprint
    del engine
    release_memory()  # CADE and the metrics take minutes, in which another model may have the GPU
    if scoring.empty:
        raise _nothing_scored(spec, benchmark, suite, scoring.failed)
    if lost := scoring.lost_view:
        raise ModelError(
            f"{spec.name}: every prompt of {lost} failed, so that nothing is published; what is"
            f" scored is kept, and asked again: sdgbias evaluate {spec.name}"
        )
    require_agreement(results.parent, spec.name, fingerprint)
    tables = suite.tables(benchmark, scoring.scored, settings, scoring.images, progress)
    tables |= scoring.tables() | {"quarantine": read_table(benchmark, "quarantine")}
    # prompts were read before the scoring and items after it: both must be of one build
    if (now := _files(benchmark)) != read:
        changed = sorted(name for name in now | read if now.get(name) != read.get(name))
        raise InfrastructureError(
            f"{benchmark}: built again while {spec.name} was being evaluated"
            f" ({', '.join(changed)}); nothing is published, what is scored is kept: sdgbias"
            f" evaluate {spec.name} --benchmark {benchmark}"
        )
    outcome = scoring.outcome(name)
    config = suite.identity(settings) | suite.noted(card) | _circumstances(spec, card, scoring)
    record = {
        "run_id": name,
        "model": spec.name,
        "title": spec.title,
        "backend": spec.backend,
        "revision": spec.revision,
        "fingerprint": fingerprint,
        "provenance": "planted" if spec.backend.startswith("planted") else "measured",
        "suite": suite.name,
        "benchmark_id": str(card["benchmark_id"]),
        "benchmark_path": benchmark.name,
        "licence": str(card.get("licence", "")),
        "started_at": started,
        "finished_at": datetime.now(UTC),
        "seed": settings.seed,
        "numerics": settings.numerics,
        "n_prompts_naive": outcome.naive,
        "n_prompts_planned": outcome.planned,
        "n_scored": outcome.scored,
        "n_cached": outcome.cached,
        "n_failed": outcome.failed,
        "config": json.dumps(config | {"engine": done_by_engine}, sort_keys=True, default=str),
    }
    store.publish(results, record, tables)
    return outcome


def _files(benchmark: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of the card and the tables of questions and prompts. A build replaces
    files, so that an old one that is open stays whole."""
    seen = {}
    for pattern in ("benchmark.json", "items*.parquet", "prompts*.parquet"):
        for path in benchmark.glob(pattern):
            with suppress(FileNotFoundError):
                at = path.stat()
                seen[path.name] = (at.st_ino, at.st_size, at.st_mtime_ns)
    return seen


def _published(results: Path, run_id: str) -> Outcome | None:
    """The outcome of a stored run, as recorded when it was computed; None if there is none."""
    if not store.has_run(results, run_id):
        return None
    sql = """SELECT n_prompts_naive, n_prompts_planned, n_failed, coalesce(CAST(config ->>
             'unanswerable' AS BIGINT), 0), coalesce(CAST(config -> 'extra' ->> 'prompts'
             AS BIGINT), 0)
             FROM runs WHERE run_id = ?"""
    naive, planned, failed, unanswerable, extra = (
        int(n) for n in store.query(results, sql, [run_id]).iloc[0]
    )
    return Outcome(run_id, naive, planned, 0, planned, failed, unanswerable, extra, published=False)


def _nothing_scored(
    spec: ModelSpec, benchmark: Path, suite: Suite, failures: list[tuple[str, str, str]]
) -> ModelError | InfrastructureError:
    """The error of a run without a single answer: a model error if no prompt is answerable by it,
    else the first failure."""
    if failures and all(kind == NotAnswerable.kind for _, kind, _ in failures):
        return ModelError(
            f"{spec.name}: can't answer any question of {benchmark}: {failures[0][2]};"
            f" take suite {suite.name} out of its options.suites in"
            f" registry/models/{spec.name}.yaml"
        )
    if failures and all(kind == NOT_FINITE[0] for _, kind, _ in failures):
        return ModelError(
            f"{spec.name}: {NOT_FINITE[1]} in all {len(failures)} prompts: its weights are damaged,"
            f" or too large for {spec.dtype}; nothing is published; copy them again, or register it"
            " with another --dtype and --overwrite"
        )
    _, kind, message = (
        failures[0] if failures else ("", "NoPrompts", "the benchmark holds no prompts")
    )
    raised = OutOfMemory if kind in (OutOfMemory.__name__, MemoryError.__name__) else None
    return (raised or InfrastructureError)(
        f"{spec.name}: no prompt could be scored, {len(failures)} failed, the first with {kind}:"
        f" {message}; nothing is published; fix the cause, then run again: sdgbias evaluate"
        f" {spec.name}"
    )


def _circumstances(
    spec: ModelSpec, card: Mapping[str, object], scoring: Scoring
) -> dict[str, object]:
    """Parts of a run's config that don't enter its id. extra: cells and distinct prompts beyond the
    suite's views."""
    return {
        "extra": {"cells": int((~scoring.paper).sum()), "prompts": scoring.extra},
        "sdgbias": __version__,
        "unanswerable": scoring.outcome("").unanswerable,
        "gives_scores": scoring.gives_scores,
        "synthetic": bool(card.get("synthetic", False)),
        **{name: card[name] for name in ("hub", "text_view") if name in card},
        "spec": asdict(spec),
    }
