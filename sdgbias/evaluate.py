"""Scoring a model on a benchmark: plan, score what is missing, summarise, publish. The one place that ties the rooms together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import __version__, quality, store
from sdgbias.backends.base import Backend, load
from sdgbias.cade import Numerics
from sdgbias.errors import GateError, InfrastructureError, InputError
from sdgbias.images.imagery import side_by_side
from sdgbias.images.store import ImageReader
from sdgbias.plan import Plan, make_plan
from sdgbias.scores import ScoreCache
from sdgbias.scoring import Progress, Scorer, numbers_wanted
from sdgbias.suites import sdg
from sdgbias.types import TESTS, ModelSpec, Task

#: Bumped when the analysis changes, so that a stored run is not mistaken for one made by newer code.
ANALYSIS = "1"
PREVIEWS = 120


def _silent(what: str, done: int, total: int) -> None:
    return None


@dataclass(frozen=True)
class Outcome:
    """run_id of the published run, and what it took: prompts naive, planned, scored now, found in the cache, failed."""

    run_id: str
    naive: int
    planned: int
    scored: int
    cached: int
    failed: int


def benchmark_card(benchmark: Path) -> dict[str, object]:
    path = benchmark / "benchmark.json"
    try:
        card: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        str(card["benchmark_id"])
    except (OSError, ValueError, KeyError):
        raise InputError(
            f"{path}: no benchmark here; build one first: sdgbias build --raw RAW --indicators DIR --out {benchmark}"
        ) from None
    return card


def run_id(spec: ModelSpec, benchmark_id: str, fingerprint: str, settings: dict[str, object]) -> str:
    """The same model, benchmark, settings and analysis always make the same run."""
    identity = json.dumps([fingerprint, benchmark_id, settings, ANALYSIS], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def score_model(
    backend: Backend, spec: ModelSpec, benchmark: Path, results: Path, progress: Progress = _silent
) -> tuple[Plan, sdg.Scored, Scorer, int]:
    """Everything of a run that needs the model: (plan, what is scored, the scorer with its failures, prompts scored now)."""
    prompts = sdg.load_prompts(benchmark)
    plan = make_plan(prompts, backend.fingerprint)
    cache = ScoreCache(results.parent, spec.name, backend.fingerprint)
    images = ImageReader(benchmark)
    images.require(plan.distinct["image_id"])
    with cache.exclusive():
        scorer = Scorer(backend, cache, images, spec)
        missing = plan.distinct[~plan.distinct["key"].isin(cache.read("scores")["key"])]
        scorer.score(missing, progress)
        wanted = numbers_wanted(plan, cache.read("generations"), scorer.forces_starts)
        scorer.generate(wanted[~wanted["key"].isin([key for key, _, _ in scorer.failures])], progress)
        for kind in ("scores", "generations"):
            cache.compact(kind)
        return plan, sdg.Scored(plan.cells, cache.read("scores"), cache.read("generations")), scorer, len(missing)


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
) -> Outcome:
    """Scores one registered model on a benchmark folder and publishes the run into the results file.

    Prompts scored before (by this or an interrupted run) are read from the cache beside the results file. The same model,
    benchmark and settings give the same run_id; a run that is published already is left alone.
    """
    started = datetime.now(UTC)
    card = benchmark_card(benchmark)
    benchmark_id = str(card["benchmark_id"])
    with store.connect(results):  # a folder that can't be written is told before any prompt is scored
        pass
    backend = load(spec, root)
    settings: dict[str, object] = {"draws": draws, "seed": seed, "numerics": numerics, "mode": mode}
    identity = run_id(spec, benchmark_id, backend.fingerprint, settings)
    if store.has_run(results, identity):
        known = store.query(results, "SELECT n_prompts_naive, n_prompts_planned, n_failed FROM runs WHERE run_id = ?", [identity]).iloc[0]
        if int(known["n_failed"]) == 0:
            planned = int(known["n_prompts_planned"])
            return Outcome(identity, int(known["n_prompts_naive"]), planned, 0, planned, 0)
    plan, scored, scorer, tried = score_model(backend, spec, benchmark, results, progress)
    if scored.scores.empty:
        _, kind, message = scorer.failures[0] if scorer.failures else ("", "NoPrompts", "the benchmark holds no prompts")
        raise InfrastructureError(
            f"{spec.name}: no prompt could be scored, {len(scorer.failures)} failed, the first with {kind}: {message}; "
            f"nothing is published; mend it, then again: sdgbias evaluate {spec.name}"
        )
    items = sdg.load_items(benchmark)
    progress("tuning CADE", 0, 1)
    summary = sdg.summarise(items, scored, draws=draws, seed=seed, numerics=numerics, mode=mode)
    progress("tuning CADE", 1, 1)
    _check_predictions(summary.predictions, items)
    record = {
        "run_id": identity,
        "suite": sdg.NAME,
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
        "n_prompts_naive": plan.naive,
        "n_prompts_planned": plan.planned,
        "n_scored": tried - len(scorer.failures),
        "n_cached": plan.planned - tried,
        "n_failed": len(scorer.failures),
        "config": json.dumps(
            {
                **settings,
                "engine": _engine(backend, scorer),
                "sdgbias": __version__,
                "synthetic": bool(card.get("synthetic", False)),
                "spec": asdict(spec),
            },
            sort_keys=True,
            default=str,
        ),
        "provenance": "planted" if spec.backend == "planted" else "measured",
    }
    store.publish(results, record, _tables(record, items, scored, summary, scorer, benchmark))
    return Outcome(identity, plan.naive, plan.planned, tried - len(scorer.failures), plan.planned - tried, len(scorer.failures))


def _engine(backend: Backend, scorer: Scorer) -> dict[str, float]:
    """What the engine says it did, and the seconds that it took: what `sdgbias plan` judges the next run's time by."""
    return {**dict(getattr(backend, "counts", {})), "seconds": round(scorer.seconds, 3)}


def _check_predictions(predictions: pd.DataFrame, items: dict[Task, pd.DataFrame]) -> None:
    """The last gate before anything is published: expectations/predictions.json. Raises GateError; the scores are kept."""
    verdict = quality.check("predictions", predictions, tables={f"items_{task}": table for task, table in items.items()})
    for finding in (*verdict.of("gate"), *verdict.of("quarantine")):
        raise GateError(
            f"predictions: rule {finding.rule} broken {finding.count} time(s): {finding.message}; nothing is published, scores are kept: "
            "build the benchmark again, then evaluate"
        )


def _tables(
    record: dict[str, object], items: dict[Task, pd.DataFrame], scored: sdg.Scored, summary: sdg.Summary, scorer: Scorer, benchmark: Path
) -> dict[str, pd.DataFrame]:
    """The rows of every store table for one run."""
    identity, benchmark_id = str(record["run_id"]), str(record["benchmark_id"])
    metric_rows = summary.metrics.assign(run_id=identity, model=str(record["model"]), suite=str(record["suite"]))
    failures = pd.DataFrame(scorer.failures, columns=["key", "kind", "message"]).assign(run_id=identity)
    cards = pd.concat([item_cards(task, table) for task, table in items.items()], ignore_index=True)
    cards["benchmark_id"] = benchmark_id
    quarantine = sdg.read_table(benchmark, "quarantine").assign(benchmark_id=benchmark_id)
    shown = preview_images(items, summary.predictions)
    previews = pd.DataFrame({"benchmark_id": benchmark_id, "image_id": shown, "png": [side_by_side(scorer.images[i]) for i in shown]})
    return {
        "items": cards,
        "scores": scored.cells.merge(scored.scores, on="key").drop(columns="key").assign(run_id=identity),
        "predictions": summary.predictions.assign(run_id=identity),
        "cade_params": summary.params.assign(run_id=identity),
        "metric_rows": metric_rows,
        "failures": failures,
        "quarantine": quarantine,
        "previews": previews,
    }


def item_cards(task: Task, items: pd.DataFrame) -> pd.DataFrame:
    """What the report shows of an item: question, options, context, gold."""
    from sdgbias.views import context_lines

    cards = items[
        [
            "item_id",
            "cluster_id",
            "country",
            "year",
            "urban",
            "pillar",
            "indicator",
            "indicator_title",
            "unit",
            "question",
            "split",
            "image_id",
        ]
    ].copy()
    cards["task"] = task.value
    if task is Task.MCQ:
        options = items[["option_a", "option_b", "option_c"]].to_numpy(dtype=object)
        cards["options"] = [json.dumps([text for text in row if text], ensure_ascii=False) for row in options]
        cards["gold"], cards["gold_value"] = items["answer"].astype(str), items["value"].astype(float)
        cards["polarity"] = items["polarity"]
        lines = {t.value: context_lines(items, t) for t in TESTS[task]}
    else:
        cards["options"] = "{}"
        cards["gold"], cards["gold_value"] = items["answer"].map("{:.1f}".format), items["answer"].astype(float)
        cards["polarity"] = ""
        lines = {}
        for t in TESTS[task]:
            parts = [context_lines(group, t, str(target)) for target, group in items.groupby("target")]
            lines[t.value] = pd.concat(parts).reindex(items.index) if parts else pd.Series("", index=items.index)
    contexts = zip(*(lines[t] for t in lines), strict=True)
    cards["context"] = [json.dumps(dict(zip(lines, row, strict=True))) for row in contexts]
    return cards


def preview_images(items: dict[Task, pd.DataFrame], predictions: pd.DataFrame) -> list[str]:
    """Images kept for the report's question browser: test items that CADE fixed, broke or left, spread over pillars."""
    table = items[Task.MCQ]
    wide = predictions[(predictions["task"] == Task.MCQ.value) & (predictions["split"] == "test")]
    wide = wide.pivot_table(index=["item_id", "test"], columns="method", values="correct", aggfunc="first").reset_index()
    if not {"full", "cade"} <= set(wide.columns):
        return sorted(set(table["image_id"]))[:PREVIEWS]
    kind = np.select([wide["cade"] & ~wide["full"].astype(bool), wide["full"] & ~wide["cade"].astype(bool)], ["fixed", "broken"], "same")
    wide = wide.assign(kind=kind).merge(table[["item_id", "pillar", "image_id"]], on="item_id").sort_values(["item_id", "test"])
    picked = wide.groupby(["pillar", "kind"], sort=True).head(max(1, PREVIEWS // 9))
    return sorted(set(picked["image_id"]))[:PREVIEWS]
