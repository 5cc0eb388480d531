"""One run of the results file as an offline W&B run: no network, no login, nothing outside its folder.

Send it later, from a machine that has a network: ``wandb sync <folder>``.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from sdgbias import store
from sdgbias.errors import StoreError, one_of
from sdgbias.report import data, figures
from sdgbias.types import Task

PROJECT = "sdgbias"


def log_run(results: Path, run_id: str, out: Path) -> Path:
    """Writes run ``run_id`` below ``out`` and returns its folder; an earlier copy of the same run there is replaced.

    Config: the run's record and settings. Summary: ``task/test/method[/pillar]/metric`` = value, with ``.../n``,
    ``.../ci_low``, ``.../ci_high`` beside it. History: one step with the table ``metrics`` and the report's figures.
    Raises StoreError for an unknown run or a folder that can't be written.
    """
    known = store.run_ids(results)
    if run_id not in known:
        raise StoreError(f"{results}: {one_of('run', run_id, known)}")
    found = data.load(results, [run_id])
    folder = Path(out).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"wandb/offline-run-*-{run_id}"):
            shutil.rmtree(old)
    except OSError as error:
        raise StoreError(f"can't write {folder}: {error.strerror}; choose another --out") from None
    with _closed_in(folder):
        import wandb

        record = found.runs.iloc[0].to_dict()
        settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
        run = wandb.init(
            project=PROJECT, id=run_id, name=str(record["model"]), group=str(record["benchmark_id"]), job_type="evaluate",
            dir=str(folder), mode="offline", config=_config(record), tags=[str(record["provenance"])], settings=settings,
        )  # fmt: skip
        try:
            run.summary.update(summary(found.metrics))
            logged: dict[str, Any] = {"metrics": wandb.Table(dataframe=found.metrics.astype(object).where(found.metrics.notna(), None))}
            for name, panels in _figures(found).items():
                for p in panels:
                    logged[f"{name}/{_slug(p.title)}"] = wandb.Image(Image.open(io.BytesIO(figures.png(p))), caption=p.title)
            run.log(logged)
            written = Path(run.dir).parent
        finally:
            run.finish()
            wandb.teardown()  # ends W&B's helper process, which outlives a run
    return written


def summary(metrics: pd.DataFrame) -> dict[str, float | int]:
    """Flat names for every cell that covers all indicators; NaN is left out."""
    flat: dict[str, float | int] = {}
    columns = ["task", "test", "method", "pillar", "metric", "value", "n", "ci_low", "ci_high"]
    rows = metrics.loc[metrics["indicator"] == "all", columns]
    for task, test, method, pillar, metric, *numbers in rows.itertuples(index=False, name=None):
        place = [] if pillar == "all" else [_slug(str(pillar))]
        name = "/".join([str(task), str(test), str(method), *place, str(metric)])
        for key, value in zip((name, f"{name}/n", f"{name}/ci_low", f"{name}/ci_high"), numbers, strict=True):
            if pd.notna(value):
                flat[key] = int(value) if key.endswith("/n") else float(value)
    return flat


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _figures(found: data.ReportData) -> dict[str, list[figures.Panel]]:
    drawn = {
        "figure3_views": figures.figure3(found),
        "figure4_directions": figures.figure4(found),
        "figure5_image_use": figures.figure5(found),
        "figure7_cade": figures.figure7(found),
        "figure7_cade_regression": figures.figure7(found, Task.REGRESSION),
    }
    return {name: panels for name, panels in drawn.items() if panels}


def _config(record: dict[Any, Any]) -> dict[str, Any]:
    """The record as plain values; its JSON config is laid out under 'settings'."""
    plain = {k: v for k, v in record.items() if k != "config"}
    for k, v in plain.items():
        if isinstance(v, pd.Timestamp):
            plain[k] = None if pd.isna(v) else v.isoformat() + "Z"
        elif hasattr(v, "item"):
            plain[k] = v.item()
    return plain | {"settings": json.loads(record["config"] or "{}")}


@contextmanager
def _closed_in(folder: Path) -> Iterator[None]:
    """W&B's environment for an offline run inside ``folder``, restored afterwards."""
    ours = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
    }
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
