"""One run of the results file as an offline W&B run: no network, no login, nothing outside its folder.

A W&B run belongs to one model and one night. Send it later: ``sdgbias wandb sync``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from sdgbias import store
from sdgbias.errors import StoreError, one_of
from sdgbias.report import chart, charts_fairness, data, figures, wandb_artifacts, wandb_state, wandb_words
from sdgbias.types import FACET, Task

#: Where WANDB_PROJECT names no other. `wandb sync` can rename a run's project but not that of its artifacts, so it is settled here.
PROJECT = "sdgbias"


def log_run(
    results: Path, run_id: str, out: Path, *, night: str = "", small: bool = False, outcome: Mapping[str, Any] | None = None
) -> Path:
    """Writes run ``run_id`` of ``night`` below ``out`` and returns its folder; an earlier copy of the same W&B run there is replaced.

    Config: the run's record, settings, the model's entry without secrets, CADE's parameters, night, versions. Summary:
    ``task/test/method[/pillar]/metric`` = value, with ``.../n``, ``.../ci_low``, ``.../ci_high`` beside it, and ``gate/...`` where the gate
    has judged the night. History: one step per run (minutes of the night's wall clock) with ``night/year``. Then tables, figures and
    artifacts. ``small``: a night in which the model did not change: config, summary and history, and the artifacts as inputs.
    ``outcome``: what came of the model that night (outcome, attempts, seconds, scored, planned, failed), told under ``night/...``.
    Raises StoreError for an unknown run or a folder that can't be written, UsageError for a text that is no night.
    """
    known = store.run_ids(results)
    if run_id not in known:
        raise StoreError(f"{results}: {one_of('run', run_id, known)}")
    found = data.load(results, [run_id])
    record = found.runs.iloc[0].to_dict()
    when = wandb_words.night_of(night, record)
    judged = wandb_words.verdicts(results, night, str(record["model"]), str(record["suite"]))
    name = wandb_words.wandb_id(run_id, night)
    folder = Path(out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with wandb_state.writing(folder):
            for old in folder.glob(f"wandb/offline-run-*-{name}"):
                shutil.rmtree(old)
            pieces = wandb_artifacts.pieces(results, record, folder)
            return _write(results, found, folder, name, night, when, judged, pieces, small, dict(outcome or {}))
    except OSError as error:
        raise StoreError(f"can't write {folder}: {error.strerror or type(error).__name__}; choose another --dir") from None


def _write(
    results: Path, found: data.ReportData, folder: Path, name: str, night: str, when: datetime, judged: pd.DataFrame,
    pieces: dict[str, wandb_artifacts.Piece], small: bool, outcome: dict[str, Any],
) -> Path:  # fmt: skip
    record = found.runs.iloc[0].to_dict()
    facts = {f"night/{k}": v for k, v in outcome.items() if v is not None and v == v}
    rows = wandb_words.history(found.metrics) | {k: v for k, v in facts.items() if not isinstance(v, str)}
    with closed_in(folder):
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
            init_timeout=30,
        )
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT, entity=os.environ.get("WANDB_ENTITY") or None, id=name,
            name=" ".join(p for p in (str(record["model"]), night) if p), group=str(record["benchmark_id"]),
            job_type="evaluate", dir=str(folder), mode="offline", config=wandb_words.config(record, night, found.params),
            tags=[str(record["provenance"]), str(record["suite"]), *(["unchanged"] if small else [])], settings=settings,
        )  # fmt: skip
        try:
            run.define_metric(wandb_words.NIGHT_YEAR)
            run.define_metric("*", step_metric=wandb_words.NIGHT_YEAR)
            run.summary.update(wandb_words.summary(found.metrics) | facts | wandb_words.gate_summary(judged))
            logged: dict[str, Any] = {**rows, wandb_words.NIGHT_YEAR: wandb_words.year(when)}
            if not small:
                for title, frame in wandb_words.tables(found.metrics, found.params, judged).items():
                    logged[title] = wandb.Table(dataframe=frame.astype(object).where(frame.notna(), None))
                for title, png in _pictures(results, found).items():
                    logged[title] = wandb.Image(Image.open(io.BytesIO(png)), caption=title)
            run.log(logged, step=wandb_words.step(when))
            digests = {
                piece.name: wandb_artifacts.declare(
                    run, piece, used=small or kind != "scores", aliases=(night,) if night and kind == "scores" and not small else ()
                )
                for kind, piece in pieces.items()
            }
            written = Path(run.dir).parent
        finally:
            run.finish()
            wandb.teardown()  # ends W&B's helper process, which outlives a run
    label = {"id": name, "run_id": str(record["run_id"]), "night": night, "model": str(record["model"]), "small": small, "artifacts": digests,
             "needs": sorted({path.parent.name for piece in pieces.values() for path in piece.files})}  # fmt: skip
    (written / wandb_state.LABEL).write_text(json.dumps(label, indent=1, sort_keys=True), encoding="utf-8")
    return written


def _pictures(results: Path, found: data.ReportData) -> dict[str, bytes]:
    """The figures of the report as PNG, by ``figure/panel``: the paper's for the first suite, disparities for the second."""
    if found.runs["suite"].iloc[0] != FACET:
        return {f"{name}/{wandb_words.slug(p.title)}": figures.png(p) for name, panels in _figures(found).items() for p in panels}
    metrics = found.metrics.assign(model=found.models[0], data="")
    sql = "FROM study_rows WHERE run_id = ? AND study = 'fairness' ORDER BY test, method, pillar, metric"
    studies = store.query(results, sql, [str(found.runs["run_id"].iloc[0])]).assign(model=found.models[0], data="")
    return {f.name: chart.picture(f, {})[1] for f in charts_fairness.figures(metrics, studies)}


def _figures(found: data.ReportData) -> dict[str, list[figures.Panel]]:
    drawn = {
        "figure3_views": figures.figure3(found),
        "figure4_directions": figures.figure4(found),
        "figure5_image_use": figures.figure5(found),
        "figure7_cade": figures.figure7(found),
        "figure7_cade_regression": figures.figure7(found, Task.REGRESSION),
    }
    return {name: panels for name, panels in drawn.items() if panels}


@contextmanager
def closed_in(folder: Path) -> Iterator[None]:
    """W&B's environment for an offline run inside ``folder``, restored afterwards."""
    ours = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", **wandb_state.folders(folder)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
