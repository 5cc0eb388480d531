"""Writes runs of the results file as offline W&B runs: no network, no login, no files outside their
folder.

A W&B run belongs to one model and one night. Send it later with ``sdgbias wandb sync``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.errors import StoreError, one_of
from sdgbias.report.wandb import contents, slugs, sync
from sdgbias.types import Task

if TYPE_CHECKING:
    from sdgbias.report import data
    from sdgbias.report.charts import paper

#: Default project if WANDB_PROJECT is not set. `wandb sync` can rename a run's project but not that
#: of its artifacts, so it is fixed when the run is written.
PROJECT = "sdgbias"
_VERDICTS = (
    'rule, task, test, method, level, side, metric, verdict, "before", "value", change, ci_low,'
    " ci_high, n, p, mde, allowed, quarantines, required, note"
)


@dataclass(frozen=True)
class StoredRun:
    """The stored data of a run. record: its row of ``runs``; metrics: its rows (of a small run
    those over all indicators);
    params: CADE's; judged: the regression verdicts of the night, empty if the check has not run."""

    record: dict[str, Any]
    metrics: pd.DataFrame
    params: pd.DataFrame
    judged: pd.DataFrame


def read(results: Path, run_ids: Sequence[str], night: str, small: bool) -> dict[str, StoredRun]:
    """run id -> its stored data, for many runs at once; unknown ids are left out. Raises
    StoreError."""
    runs, mine = list(run_ids), "WHERE list_contains($runs, run_id)"
    records = store.query(results, f"FROM runs {mine}", {"runs": runs})
    told = f"{mine} AND (starts_with(indicator, 'all') OR indicator = 'macro')" if small else mine
    metrics = store.query(results, f"FROM metric_rows {told} ORDER BY ALL", {"runs": runs})
    params = store.query(results, f"FROM cade_params {mine} ORDER BY task, test", {"runs": runs})
    judged = store.query(
        results,
        f"SELECT model, suite, {_VERDICTS} FROM verdicts WHERE night = ? ORDER BY ALL",
        [night],
    )
    made = {}
    for row in records.to_dict("records"):
        record = {str(k): v for k, v in row.items()}
        own = judged[(judged["model"] == record["model"]) & (judged["suite"] == record["suite"])]
        made[str(record["run_id"])] = StoredRun(
            record,
            _of(metrics, record["run_id"]),
            _of(params, record["run_id"]),
            own.drop(columns=["model", "suite"]).reset_index(drop=True),
        )
    return made


def _of(rows: pd.DataFrame, run_id: str) -> pd.DataFrame:
    return rows[rows["run_id"] == run_id].reset_index(drop=True)


def log_run(
    results: Path,
    run_id: str,
    out: Path,
    *,
    night: str = "",
    small: bool = False,
    outcome: Mapping[str, Any] | None = None,
) -> Path:
    """``read`` and ``write`` for one run, in its own ``service``."""
    with service(out):
        return write(
            results, read(results, [run_id], night, small), run_id, out, night, small, outcome or {}
        )


def write(
    results: Path,
    known: Mapping[str, StoredRun],
    run_id: str,
    out: Path,
    night: str,
    small: bool,
    outcome: Mapping[str, Any],
) -> Path:
    """Write run ``run_id`` of ``night``, one of ``known``, below ``out`` and return its folder; an
    earlier copy of the same W&B run there is replaced. Call within ``service``.

    Config: the run's record, settings, the model's entry without secrets, CADE's parameters, night,
    versions. Summary: ``task/test/method[/pillar]/metric`` = value, with ``.../n``, ``.../ci_low``,
    ``.../ci_high``, and ``gate/...`` if the regression check has judged the night. History: one
    step per run (minutes of the night's wall clock) with ``night/year``. Then tables, figures and
    artifacts. ``small``: a night in which the model did not change: config, summary and history,
    and the artifacts as inputs. ``outcome``: the outcome of the model that night (outcome,
    attempts, seconds, scored, planned, failed), logged under ``night/...``. Raises StoreError for
    an unknown run or a folder that can't be written, UsageError for an invalid night.
    """
    if run_id not in known:
        raise StoreError(f"{results}: {one_of('run', run_id, store.run_ids(results))}")
    found = known[run_id]
    contents.night_of(night, found.record)
    name = contents.wandb_id(run_id, night)
    folder = Path(out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with sync.writing(folder):
            for old in folder.glob(f"wandb/offline-run-*-{name}"):
                shutil.rmtree(old)
            pieces = contents.pieces(results, found.record, folder)
            return _write(results, found, folder, night, pieces, small, outcome)
    except OSError as error:
        raise StoreError(
            f"can't write {folder}: {error.strerror or type(error).__name__}; choose another --dir"
        ) from None


def _write(
    results: Path,
    found: StoredRun,
    folder: Path,
    night: str,
    pieces: dict[str, contents.ArtifactSpec],
    small: bool,
    outcome: Mapping[str, Any],
) -> Path:
    import wandb

    record, when = found.record, contents.night_of(night, found.record)
    name = contents.wandb_id(str(record["run_id"]), night)
    facts = {f"night/{k}": v for k, v in outcome.items() if v is not None and v == v}
    rows = contents.history(found.metrics) | {
        k: v for k, v in facts.items() if not isinstance(v, str)
    }
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
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        entity=os.environ.get("WANDB_ENTITY") or None,
        id=name,
        name=" ".join(p for p in (str(record["model"]), night) if p),
        group=str(record["benchmark_id"]),
        job_type="evaluate",
        dir=str(folder),
        mode="offline",
        config=contents.config(record, night, found.params),
        tags=[str(record["provenance"]), str(record["suite"]), *(["unchanged"] if small else [])],
        settings=settings,
    )
    try:
        run.define_metric(contents.NIGHT_YEAR)
        run.define_metric("*", step_metric=contents.NIGHT_YEAR)
        run.summary.update(
            contents.summary(found.metrics) | facts | contents.gate_summary(found.judged)
        )
        logged: dict[str, Any] = {**rows, contents.NIGHT_YEAR: contents.year(when)}
        if not small:
            from PIL import Image

            for title, frame in contents.tables(found.metrics, found.params, found.judged).items():
                logged[title] = wandb.Table(
                    dataframe=frame.astype(object).where(frame.notna(), None)
                )
            for title, png in _pictures(
                results, str(record["run_id"]), str(record["suite"])
            ).items():
                logged[title] = wandb.Image(Image.open(io.BytesIO(png)), caption=title)
        run.log(logged, step=contents.step(when))
        digests = {
            piece.name: contents.declare(
                run,
                piece,
                used=small or kind != "scores",
                aliases=(night,) if night and kind == "scores" and not small else (),
            )
            for kind, piece in pieces.items()
        }
        written = Path(run.dir).parent
    finally:
        run.finish()
    label = {
        "id": name,
        "run_id": str(record["run_id"]),
        "night": night,
        "model": str(record["model"]),
        "small": small,
        "artifacts": digests,
        "needs": sorted({path.parent.name for piece in pieces.values() for path in piece.files}),
    }
    (written / sync.LABEL).write_text(json.dumps(label, indent=1, sort_keys=True), encoding="utf-8")
    return written


def _pictures(results: Path, run_id: str, suite: str) -> dict[str, bytes]:
    """The figures of the report as PNG, by ``figure/panel``: the paper's for the first suite,
    disparities for the second."""
    return _PICTURES[suites.named(suite).items_table](results, run_id)


def _of_places(results: Path, run_id: str) -> dict[str, bytes]:
    from sdgbias.report import data
    from sdgbias.report.charts import paper

    return {
        f"{name}/{slugs.slug(p.title)}": paper.png(p)
        for name, panels in _figures(data.load(results, [run_id])).items()
        for p in panels
    }


def _of_people(results: Path, run_id: str) -> dict[str, bytes]:
    from sdgbias.report import charts, data
    from sdgbias.report.charts import disparities

    found = data.load(results, [run_id])
    metrics = found.metrics.assign(model=found.models[0], data="")
    sql = (
        "FROM study_rows WHERE run_id = ? AND study = 'fairness' ORDER BY test, method, pillar,"
        " metric"
    )
    studies = store.query(results, sql, [run_id]).assign(model=found.models[0], data="")
    return {f.name: charts.picture(f, {})[1] for f in disparities.figures(metrics, studies)}


def _figures(found: data.ReportData) -> dict[str, list[paper.Panel]]:
    from sdgbias.report.charts import paper

    drawn = {
        "figure3_views": paper.figure3(found),
        "figure4_directions": paper.figure4(found),
        "figure5_image_use": paper.figure5(found),
        "figure7_cade": paper.figure7(found),
        "figure7_cade_regression": paper.figure7(found, Task.REGRESSION),
    }
    return {name: panels for name, panels in drawn.items() if panels}


@contextmanager
def service(folder: Path) -> Iterator[None]:
    """One W&B service process for all runs written in the block, offline, with its environment
    inside ``folder``. Process and environment are restored afterwards."""
    folder = Path(folder).resolve()
    ours = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", **sync.folders(folder)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        if "wandb" in sys.modules:
            import wandb

            wandb.teardown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


#: Table of a suite's questions -> the figures of a run.
_PICTURES = {"items": _of_places, "people": _of_people}
