"""Scoring a model on a benchmark: plan, score what is missing, summarise, publish. The only module
that connects engines, suites and the store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from sdgbias import __version__, store, suites
from sdgbias.engines import Backend, load, release_memory
from sdgbias.engines.agreement import NOT_FINITE, TOLERANCES
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
from sdgbias.scoring.parity import require_agreement
from sdgbias.scoring.plan import Plan, as_prompts, askable, make_plan
from sdgbias.scoring.probes import draw
from sdgbias.scoring.run_id import run_id
from sdgbias.scoring.scorer import DECODING, SCORING, Scorer, not_generated
from sdgbias.scoring.timing import timings
from sdgbias.suites.sdg import read_table
from sdgbias.suites.suite import Abilities, EvalSettings, StoredScores
from sdgbias.types import NEEDS_PICTURES, ModelSpec, View
from sdgbias.vocabulary import METHODS

#: Prompts that show how an undecided model's may be scored together.
_PROBES = 12
#: Why an engine that only chooses labels can't score a prompt.
NO_LIST = "not a question that this model can answer: it chooses one of listed labels"
#: Extra prompts that take longer than so many seconds wait until the paper's views are published.
FIRST_LOOK = 120.0
#: Kind and message of the prompts that wait. They count as failed, so that a run which ends there
#: is evaluated again.
WAITING = ("NotAskedYet", "an extra prompt, asked after the paper's views are published")


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
    """A plan and what its prompts got, without the engine: the scores of all cells, or of the
    paper's alone in a first look; the prompts without an answer (key, kind, message); keys of those
    that were ``sent`` for the first time; gives_scores: False where the model is measured by its
    answers alone; times: rows of the table ``timings``; engine: its fingerprint, and what it
    counted, with the seconds spent inside it."""

    plan: Plan
    scored: StoredScores
    failed: list[tuple[str, str, str]]
    sent: frozenset[str]
    gives_scores: bool
    times: pd.DataFrame
    fingerprint: str
    counts: Mapping[str, float]

    @cached_property
    def failures(self) -> dict[str, str]:
        """Key -> kind of every prompt without an answer."""
        return {key: kind for key, kind, _ in self.failed}

    @cached_property
    def lost_view(self) -> str:
        """A view none of whose prompts has a score, with the first reason; '' without one. Prompts
        that no engine of this kind can answer are no loss."""
        lost = {key for key, kind, _ in self.failed if kind != NotAnswerable.kind}
        for view, keys in self.scored.cells.groupby("view", sort=True)["key"]:
            if set(keys) <= lost:
                first = next(f for f in self.failed if f[0] in set(keys))
                return f"{METHODS.get(str(view), str(view))} ({first[1]}: {first[2]})"
        return ""

    def outcome(self, run_id: str) -> Outcome:
        """Counts of prompts; unanswerable prompts are not among the planned ones."""
        extra = set(self.plan.distinct["key"]) - self.plan.paper()
        never = {key for key, kind in self.failures.items() if kind == NotAnswerable.kind}
        planned, failed = self.plan.planned - len(never), len(self.failures) - len(never)
        fresh = len(self.sent - set(self.failures))
        return Outcome(
            run_id,
            naive=int(_of_paper(self.plan.cells).sum()),
            planned=planned,
            scored=fresh,
            cached=planned - fresh - failed,
            failed=failed,
            unanswerable=len(never),
            extra=len(extra - never),
        )


def _of_paper(cells: pd.DataFrame) -> pd.Series:
    """Which cells are the suite's views; the others belong to extra prompts."""
    return cells["view"].isin([view.value for view in View])


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, and where it goes. run_id '' and ``results`` serve the cache alone;
    first_look: publishes the paper's views while extra prompts wait."""

    spec: ModelSpec
    benchmark: Path
    results: Path
    settings: EvalSettings
    run_id: str = ""
    first_look: Callable[[Scoring], object] = lambda scoring: None

    @cached_property
    def suite(self) -> suites.Suite:
        return suites.of(self.benchmark)

    @cached_property
    def card(self) -> Mapping[str, object]:
        return suites.benchmark_card(self.benchmark)


def score_model(engine: Backend, run: Evaluation, progress: Progress = silent) -> Scoring:
    """What needs the model: scores every prompt of the run that is missing from the cache beside
    its results, the paper's views before extra prompts, and commits the rows to it, as paid by that
    run."""
    spec, images = run.spec, ImageReader(run.benchmark)
    cells = run.suite.cells(run.benchmark, run.settings)
    plan = make_plan(askable(cells, spec), engine.fingerprint)
    cache = ScoreCache(run.results.parent, spec.name, engine.fingerprint)
    images.require(plan.distinct["image_id"].unique())
    with cache.exclusive():
        scorer = Scorer(engine, cache, images, spec)
        try:
            return _score(scorer, run, plan, engine.gives_scores, progress)
        except NoScores:
            if not cache.lacks("scores", plan.distinct["key"]).all():
                raise  # the endpoint gave scores before
            return _score(scorer, run, plan, False, progress)


def _score(
    scorer: Scorer, run: Evaluation, plan: Plan, gives_scores: bool, progress: Progress
) -> Scoring:
    cache, spec = scorer.cache, run.spec
    abilities = Abilities(gives_scores, scorer.engine.forces_starts)
    needed = run.suite.to_decode(spec, plan.cells, plan.distinct, run.settings, abilities)
    plan = plan if gives_scores else plan.only(needed["key"])
    distinct = plan.distinct
    missing = distinct[
        cache.lacks("scores", distinct["key"]) & (distinct["candidates"] != "") & gives_scores
    ]
    wanted = not_generated(needed, cache.decoded())
    never = _unanswerable(scorer.engine, run, plan, wanted)
    missing, wanted = (
        rows[~rows["key"].isin(list(never))].assign(run=run.run_id) for rows in (missing, wanted)
    )
    if len(wanted):
        wanted = wanted.assign(n_tokens=cache.lengths(wanted["key"]))
    free = wanted.loc[(wanted["candidates"] == "") | (not gives_scores), "key"]
    sent = frozenset(missing["key"]) | frozenset(free)
    if len(missing) and admission.undecided(spec):
        _decide_size(scorer, missing)

    def stored(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, StoredScores]:
        """The cache's rows of scores and answers, and what the suite reads of them."""
        scores = cache.compact("scores")
        answers = cache.compact("generations").merge(needed[["key", "limit"]], on=["key", "limit"])
        times = [name for name, _ in TIMED]
        rows = (scores.drop(columns=times), answers.drop(columns=times))
        return scores, answers, StoredScores(cells, *rows, TOLERANCES[spec.dtype])

    def summary(cells: pd.DataFrame, waiting: list[str]) -> Scoring:
        scores, answers, scored = stored(cells)
        failed = [
            *scorer.failures,
            *((key, NotAnswerable.kind, reason) for key, reason in never.items()),
            *((key, *WAITING) for key in waiting),
        ]
        return Scoring(
            # the texts are a seventh of a run's memory, and nothing reads them from here on
            Plan(distinct.drop(columns="text"), plan.cells),
            scored,
            failed,
            sent,
            gives_scores,
            timings(cells, scores, answers, run.run_id, run.settings.passes),
            scorer.engine.fingerprint,
            {**scorer.engine.counts, "seconds": round(scorer.seconds, 3)},
        )

    totals = {SCORING: len(distinct), DECODING: len(needed)}
    left = {SCORING: len(missing), DECODING: len(wanted)}

    def report(what: str, done: int, total: int) -> None:
        """In all prompts of the run, those that were scored earlier included."""
        progress(what, totals[what] - left[what] + done, totals[what])

    if len(missing):
        report(SCORING, 0, 0)

    def force_starts(split: str) -> None:
        """Decodes answers of the paper's views that begin as the suite asks."""
        scored = stored(plan.cells)[2]
        starts = run.suite.starts_needed(run.benchmark, scored, run.settings, split)
        rows = needed[needed["key"].isin(list(starts))].assign(run=run.run_id)
        rows = rows.assign(forced=[",".join(starts[key]) for key in rows["key"]])
        rows = rows.assign(n_tokens=cache.lengths(rows["key"]))
        for kind in (totals, left):
            kind[DECODING] += len(rows)
        scorer.run(missing[:0], rows, report)
        left[DECODING] -= len(rows)

    paper, continues = plan.paper(), run.settings.mode == "continue"
    for of_paper in (True, False):
        to_score, to_decode = (
            rows[rows["key"].isin(paper) == of_paper] for rows in (missing, wanted)
        )
        waiting = set() if of_paper else {*to_score["key"], *to_decode["key"]}
        if paper and len(waiting) * scorer.pace > FIRST_LOOK:
            # the device waits for some minutes of CADE, the results don't wait for hours
            cells = plan.cells[_of_paper(plan.cells)].reset_index(drop=True)
            run.first_look(summary(cells, sorted(waiting)))
        scorer.run(to_score, to_decode, report)
        left[SCORING] -= len(to_score)
        left[DECODING] -= len(to_decode)
        if of_paper and gives_scores and abilities.forces_starts and continues:
            force_starts("val")  # CADE is tuned on these
            force_starts("test")
    scorer.forget_hangs()
    return summary(plan.cells, [])


def _decide_size(scorer: Scorer, missing: pd.DataFrame) -> None:
    """Finds out on a few prompts how those of a model without an admitted entry may be scored
    together, and says so."""
    rows = draw(missing, _PROBES, 0).to_dict("records")
    spec, prompts = scorer.spec, as_prompts(rows, scorer.images)
    decided, line = admission.decide_now(scorer.engine, spec, prompts)
    scorer.size = decided.batch_size
    print(
        f"{spec.name}: no entry says how its prompts may be scored together; {len(rows)} of them"
        f" probed: {line}",
        file=sys.stderr,
        flush=True,
    )


def _unanswerable(
    engine: Backend, run: Evaluation, plan: Plan, wanted: pd.DataFrame
) -> dict[str, str]:
    """Key -> reason of the prompts that this engine can never answer: prompts with candidates where
    it only chooses one of the listed labels, and prompts whose right answer is not among the few
    names it can give."""
    named = {}
    if engine.names is not None:
        named = run.suite.unanswerable(run.benchmark, wanted, engine.names)
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
    file: the paper's views first where extra prompts take long, then the whole run.

    Prompts scored before (by this or an interrupted run) are read from the cache beside the results
    file. The same model, benchmark and settings give the same run_id; a complete published run is
    left alone.
    """
    started, files = datetime.now(UTC), _files(benchmark)
    run = Evaluation(spec, benchmark, results, settings)
    suite, card = run.suite, run.card
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
    run = replace(run, run_id=name)
    publish = partial(_publish, run, started, files, progress)
    with closing(load(spec, root)) as engine:
        scoring = score_model(engine, replace(run, first_look=publish), progress)
    del engine
    release_memory()  # CADE and the metrics take minutes, in which another model may have the GPU
    return publish(scoring)


def _publish(
    run: Evaluation,
    started: datetime,
    files: dict[str, tuple[int, int, int]],
    progress: Progress,
    scoring: Scoring,
) -> Outcome:
    """Computes CADE and the metrics of a run and stores it, in place of its first look. Raises
    ModelError where a view has no score, DisagreementError where another engine disagrees,
    InfrastructureError where the benchmark's files are others than those of the start."""
    spec, benchmark, results, settings = run.spec, run.benchmark, run.results, run.settings
    if scoring.scored.scores.empty and scoring.scored.generations.empty:
        raise _nothing_scored(run, scoring.failed)
    if lost := scoring.lost_view:
        raise ModelError(
            f"{spec.name}: every prompt of {lost} failed, so that nothing is published; what is"
            f" scored is kept, and asked again: sdgbias evaluate {spec.name}"
        )
    require_agreement(results.parent, spec.name, scoring.fingerprint)
    outcome = scoring.outcome(run.run_id)
    waits = WAITING[0] in scoring.failures.values()
    asked = replace(settings, passes=()) if waits else settings
    tables = run.suite.tables(benchmark, scoring.scored, asked, ImageReader(benchmark), progress)
    tables |= {
        "scores": scoring.scored.cells.merge(scoring.scored.scores, on="key").drop(columns="key"),
        "failures": pd.DataFrame(scoring.failed, columns=["key", "kind", "message"]),
        "timings": scoring.times,
        "quarantine": read_table(benchmark, "quarantine"),
    }
    # prompts were read before the scoring and items after it: both must be of one build
    if (now := _files(benchmark)) != files:
        changed = sorted(name for name in now | files if now.get(name) != files.get(name))
        raise InfrastructureError(
            f"{benchmark}: built again while {spec.name} was being evaluated"
            f" ({', '.join(changed)}); nothing is published, what is scored is kept: sdgbias"
            f" evaluate {spec.name} --benchmark {benchmark}"
        )
    store.publish(results, _record(run, scoring, outcome, started), tables)
    return outcome


def _record(
    run: Evaluation, scoring: Scoring, outcome: Outcome, started: datetime
) -> dict[str, object]:
    """The row of table ``runs``. Its config holds what the id depends on, and what it doesn't:
    extra, cells and distinct prompts beyond the suite's views."""
    spec, card, suite, settings = run.spec, run.card, run.suite, run.settings
    config = {
        **suite.identity(settings),
        **suite.noted(card),
        "extra": {
            "cells": int((~_of_paper(scoring.plan.cells)).sum()),
            "prompts": outcome.extra,
        },
        "sdgbias": __version__,
        "unanswerable": outcome.unanswerable,
        "gives_scores": scoring.gives_scores,
        "synthetic": bool(card.get("synthetic", False)),
        **{name: card[name] for name in ("hub", "text_view") if name in card},
        "spec": asdict(spec),
        "engine": scoring.counts,
    }
    return {
        "run_id": outcome.run_id,
        "model": spec.name,
        "title": spec.title,
        "backend": spec.backend,
        "revision": spec.revision,
        "fingerprint": scoring.fingerprint,
        "provenance": "planted" if spec.backend.startswith("planted") else "measured",
        "suite": suite.name,
        "benchmark_id": str(card["benchmark_id"]),
        "benchmark_path": run.benchmark.name,
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
        "config": json.dumps(config, sort_keys=True, default=str),
    }


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
    run: Evaluation, failures: list[tuple[str, str, str]]
) -> ModelError | InfrastructureError:
    """The error of a run without a single answer: a model error if no prompt is answerable by it,
    else the first failure."""
    spec = run.spec
    if failures and all(kind == NotAnswerable.kind for _, kind, _ in failures):
        return ModelError(
            f"{spec.name}: can't answer any question of {run.benchmark}: {failures[0][2]};"
            f" take suite {run.suite.name} out of its options.suites in"
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
