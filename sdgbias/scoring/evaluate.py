"""Scoring a model on a benchmark: plan, score what is missing, summarise, publish. The only module
that connects engines, suites and the store."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pandas as pd

from sdgbias import __version__, store
from sdgbias.engines import load, release_memory
from sdgbias.engines.agreement import NOT_FINITE
from sdgbias.errors import (
    EndpointUnavailable,
    InfrastructureError,
    KeyRefused,
    ModelError,
    NotAnswerable,
    OutOfMemory,
    SdgbiasError,
    UsageError,
)
from sdgbias.progress import Progress, silent
from sdgbias.raw.images.shards import ImageReader
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.parity import require_agreement
from sdgbias.scoring.run_id import run_id
from sdgbias.scoring.session import WAITING, Evaluation, Outcome, Scoring, of_paper, score_model
from sdgbias.suites.sdg import read_table
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import NEEDS_PICTURES

#: Kinds of failed prompts whose error is also that of their run: a night treats it by its class.
_ERRORS: dict[str, type[SdgbiasError]] = {
    "MemoryError": OutOfMemory,
    "PromptRefused": ModelError,
    **{kind.__name__: kind for kind in (EndpointUnavailable, KeyRefused, OutOfMemory)},
}


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
    with store.connect(results):
        pass  # an unwritable folder is an error before any prompt is scored
    name = run_id(spec, root, str(card["benchmark_id"]), suite, settings)
    if (done := _published(results, name)) is not None and not done.failed:
        return done
    if spec.pictured:  # before a model is loaded for minutes
        images = ImageReader(benchmark)
        images.require(images)
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
    ModelError where a view has no score (that of its prompts in _ERRORS), DisagreementError where
    another engine disagrees, InfrastructureError where the benchmark's files are others than those
    of the start."""
    spec, benchmark, results, settings = run.spec, run.benchmark, run.results, run.settings
    if scoring.scored.scores.empty and scoring.scored.generations.empty:
        raise nothing_scored(run, scoring.failed)
    if scoring.lost_view:
        view, kind, message = scoring.lost_view
        raise _ERRORS.get(kind, ModelError)(
            f"{spec.name}: every prompt of {view} ({kind}: {message}) failed, so that nothing is"
            f" published; what is scored is kept; mend the cause, then run the same command again"
        )
    require_agreement(results.parent, spec.name, scoring.fingerprint)
    outcome = scoring.outcome(run.run_id)
    waits = WAITING[0] in scoring.failures.values()
    applied = replace(settings, passes=()) if waits else settings
    tables = run.suite.tables(benchmark, scoring.scored, applied, ImageReader(benchmark), progress)
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
            f" ({', '.join(changed)}); nothing is published, what is scored is kept: run the"
            " same command again"
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
            "cells": int((~of_paper(scoring.plan.cells)).sum()),
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


def nothing_scored(run: Evaluation, failures: list[tuple[str, str, str]]) -> SdgbiasError:
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
    return _ERRORS.get(kind, InfrastructureError)(
        f"{spec.name}: no prompt could be scored, {len(failures)} failed, the first with {kind}:"
        f" {message}; nothing is published; mend the cause, then run the same"
        " command again"
    )
