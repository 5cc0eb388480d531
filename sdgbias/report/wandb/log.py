"""Writes runs of the results file as W&B runs: one per model and night, online where
``WANDB_API_KEY`` is in the environment, else offline, to be sent with W&B's own ``wandb sync``.

Only public calls of the client; all runs of a call share its one helper process.

<folder>/wandb/                   one folder per run, as the client lays them out
<folder>/artifacts/<name>         files of benchmarks and scores that waiting runs refer to
<folder>/logged.json              W&B id -> what it holds, so that nothing is logged twice
<folder>/data, cache, config      the client's own
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from sdgbias import store, suites
from sdgbias.errors import SdgbiasError, StoreError, one_of
from sdgbias.files import json_object, replacing
from sdgbias.progress import Progress, each, silent
from sdgbias.report.wandb import contents, slugs
from sdgbias.types import Task

if TYPE_CHECKING:
    from sdgbias.report import data
    from sdgbias.report.charts import paper

#: Default project if WANDB_PROJECT is not set. `wandb sync` can rename a run's project but not that
#: of its artifacts, so it is fixed when the run is written.
PROJECT = "sdgbias"
#: Collection of W&B's registry that scores are linked to, e.g. wandb-registry-bias/scores.
REGISTRY = "SDGBIAS_WANDB_REGISTRY"
LOGGED = "logged.json"
_VERDICTS = (
    'rule, task, test, method, level, side, metric, verdict, "before", "value", change, ci_low,'
    " ci_high, n, p, mde, allowed, quarantines, required, note"
)


@dataclass(frozen=True)
class RunToLog:
    """One W&B run to write. record: its row of ``runs``; metrics: its rows (of a small run those
    over all indicators); params: CADE's; judged: the regression verdicts of the night, empty if the
    check has not run. small: a night in which the model did not change: config, summary and history
    only."""

    results: Path
    folder: Path
    night: str
    small: bool
    record: dict[str, Any]
    metrics: pd.DataFrame
    params: pd.DataFrame
    judged: pd.DataFrame


@dataclass(frozen=True)
class Logged:
    """The result for one run: its folder, or the reason for its absence (``failed``), or neither if
    it was logged before. offline: why a run that should have been sent waits in its folder."""

    run_id: str
    folder: Path | None = None
    failed: str = ""
    offline: str = ""


def online() -> bool:
    """Whether runs are sent at once: WANDB_MODE, else whether WANDB_API_KEY is set. A login kept in
    .netrc sends nothing by itself: it may belong to other work."""
    given = os.environ.get("WANDB_MODE", "")
    return given == "online" if given else bool(os.environ.get("WANDB_API_KEY"))


def newest_night(results: Path) -> str:
    """The newest night in which a model has a run; '' if there is none yet."""
    sql = "SELECT max(night) AS night FROM night_models WHERE run_id <> ''"
    found = store.query(results, sql)["night"]
    return "" if found.isna().all() else str(found.iloc[0])


def runs_of(
    results: Path, night: str | None, run_ids: Sequence[str] = ()
) -> tuple[str, list[dict[str, Any]]]:
    """(night, rows with run_id, outcome and figures of the night) to log: those of ``night`` (None:
    the newest), only ``run_ids`` if any are given. For a results file without nights: the newest
    run of every model (about people: on every benchmark), night ''.

    Raises StoreError for an unknown night or run.
    """
    chosen = newest_night(results) if night is None else night
    rows: list[dict[str, Any]] = [{"run_id": run} for run in suites.newest_runs(results)]
    if chosen:
        sql = (
            "SELECT run_id, outcome, attempts, seconds, scored, planned, failed FROM night_models"
            " WHERE night = ? AND run_id <> '' ORDER BY model, suite"
        )
        rows = store.arrow(results, sql, [chosen]).to_pylist()
        nights = "SELECT night FROM nights UNION SELECT night FROM night_models"
        known = {str(n) for n in store.query(results, nights)["night"]}
        if chosen not in known:
            raise StoreError(f"{results}: {one_of('night', chosen, known)}")
    if run_ids:
        of_night = {str(r["run_id"]): r for r in rows}
        known = set(store.run_ids(results))
        if unknown := [run for run in run_ids if run not in known]:
            raise StoreError(f"{results}: {one_of('run', unknown[0], known)}")
        rows = [of_night.get(run, {"run_id": run}) for run in run_ids]
    return chosen, rows


def log_night(
    results: Path,
    folder: Path,
    *,
    night: str | None = None,
    run_ids: Sequence[str] = (),
    again: bool = False,
    progress: Progress = silent,
) -> list[Logged]:
    """Log one W&B run per model of a night, with its files below ``folder``.

    A run that was logged before, and not published anew since, is skipped (unless ``again``). A
    model that did not change that night gets a small run once an earlier run holds its tables and
    scores. A server that can't be reached makes the rest offline. Errors of W&B never raise: each
    is returned as ``Logged.failed``, one line each. Raises StoreError for a night, a run or a
    results file that can't be read.
    """
    chosen, rows = runs_of(results, night, run_ids)
    contents.night_of(chosen, {})
    folder = Path(folder).resolve()
    known: dict[str, Any] = json_object(folder / LOGGED)
    made: list[Logged] = []
    offline = "" if online() else "offline"
    with service(folder):
        small = [str(r["run_id"]) for r in rows if _small(r, known)]
        found = read(results, folder, small, chosen, True)
        for row in each(progress, "W&B", rows):
            run_id = str(row["run_id"])
            name = contents.wandb_id(run_id, chosen)
            try:
                if run_id not in found:
                    found |= read(results, folder, [run_id], chosen, False)
                if run_id not in found:
                    raise StoreError(f"{results}: {one_of('run', run_id, store.run_ids(results))}")
                mark = {
                    "run_id": run_id,
                    "published": str(found[run_id].record["finished_at"]),
                    "small": run_id in small,
                }
                if not again and known.get(name) == mark:
                    made.append(Logged(run_id))
                    continue
                _keep(folder, known)  # the client would write elsewhere where it can't write here
                written, offline = _write(found[run_id], row, offline)
                known[name] = mark
                _keep(folder, known)
                made.append(Logged(run_id, written, offline=offline if online() else ""))
            except OSError as error:
                why = error.strerror or type(error).__name__
                made.append(
                    Logged(run_id, failed=f"can't write {folder}: {why}; choose another --dir")
                )
            except SdgbiasError as error:
                made.append(Logged(run_id, failed=str(error)))
            except Exception as error:  # W&B may raise anything; it must only cost this run
                made.append(Logged(run_id, failed=f"{type(error).__name__}: {_first(error)}"))
    return made


def _small(row: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    full = {mark["run_id"] for mark in known.values() if not mark["small"]}
    return row.get("outcome") == "unchanged" and row["run_id"] in full


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _keep(folder: Path, known: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / LOGGED) as draft:
        draft.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")


def read(
    results: Path, folder: Path, run_ids: Sequence[str], night: str, small: bool
) -> dict[str, RunToLog]:
    """run id -> what is to be written of it, for many runs at once; unknown ids are left out.
    Raises StoreError."""
    if not run_ids:
        return {}
    given = {"runs": list(run_ids)}
    mine = "WHERE list_contains($runs, run_id)"
    pooled = f"{mine} AND (starts_with(indicator, 'all') OR indicator = 'macro')" if small else mine
    records = store.arrow(results, f"FROM runs {mine}", given).to_pylist()
    metrics = store.query(results, f"FROM metric_rows {pooled} ORDER BY ALL", given)
    params = store.query(results, f"FROM cade_params {mine} ORDER BY task, test", given)
    sql = (
        f"SELECT runs.run_id, {_VERDICTS} FROM verdicts JOIN runs USING (model, suite)"
        " WHERE night = $night AND list_contains($runs, runs.run_id) ORDER BY ALL"
    )
    judged = store.query(results, sql, given | {"night": night})

    def own(frame: pd.DataFrame, run_id: str) -> pd.DataFrame:
        return frame[frame["run_id"] == run_id].reset_index(drop=True)

    return {
        run: RunToLog(
            results,
            folder,
            night,
            small,
            record,
            own(metrics, run),
            own(params, run),
            own(judged, run).drop(columns="run_id"),
        )
        for run, record in ((str(record["run_id"]), record) for record in records)
    }


def _write(job: RunToLog, outcome: Mapping[str, Any], offline: str) -> tuple[Path, str]:
    """(folder of the run, why it is offline or ''). ``outcome``: the model's row of the night;
    ``offline`` not empty: don't try the server.

    Config: the run's record, settings, the model's entry without secrets, CADE's parameters, night,
    versions. Summary: ``task/test/method[/pillar]/metric`` = value, with ``.../n``, ``.../ci_low``,
    ``.../ci_high``, and ``gate/...`` if the regression check has judged the night. History: one
    step per run (minutes of the night's wall clock) with ``night/year``. Then tables, figures and
    artifacts.
    """
    record, night = job.record, job.night
    name = contents.wandb_id(str(record["run_id"]), night)
    for old in job.folder.glob(f"wandb/offline-run-*-{name}"):
        shutil.rmtree(old)
    run, offline = _init(job, name, offline)
    facts = {f"night/{k}": v for k, v in outcome.items() if k != "run_id" and v is not None}
    try:
        run.define_metric(contents.NIGHT_YEAR)
        run.define_metric("*", step_metric=contents.NIGHT_YEAR)
        when, judged = contents.night_of(night, record), contents.gate_summary(job.judged)
        run.summary.update(contents.summary(job.metrics) | facts | judged)
        row: dict[str, Any] = contents.history(job.metrics)
        row |= {k: v for k, v in facts.items() if not isinstance(v, str)}
        row[contents.NIGHT_YEAR] = contents.year(when)
        media = {} if job.small else _media(job)
        run.log(row | media, step=contents.step(when))
        if not job.small:
            _artifacts(run, job, online=not offline)
        written = Path(run.dir).parent
    finally:
        run.finish()
    return written, offline


def _init(job: RunToLog, name: str, offline: str) -> tuple[Any, str]:
    import wandb

    record = job.record

    def start(mode: Literal["online", "offline"]) -> Any:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=os.environ.get("WANDB_ENTITY") or None,
            id=name,
            resume="allow" if mode == "online" else None,
            name=" ".join(p for p in (str(record["model"]), job.night) if p),
            group=str(record["benchmark_id"]),
            job_type="evaluate",
            dir=str(job.folder),
            mode=mode,
            config=contents.config(record, job.night, job.params),
            tags=[
                str(record["provenance"]),
                str(record["suite"]),
                *(["unchanged"] if job.small else []),
            ],
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_save_requirements=False,
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or 30),
            ),
        )

    if not offline:
        try:
            return start("online"), ""
        except wandb.Error as error:  # no answer, or the key is refused: the night goes on offline
            offline = _first(error)
            wandb.teardown()  # the helper process still holds the run's id
    return start("offline"), offline


def _media(job: RunToLog) -> dict[str, Any]:
    """Tables and the figures of the report, by name."""
    import wandb
    from PIL import Image

    made: dict[str, Any] = {}
    for title, frame in contents.tables(job.metrics, job.params, job.judged).items():
        # by row: a table of a data frame takes three times as long
        rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        made[title] = wandb.Table(columns=list(frame), data=rows)
    drawn = _PICTURES[suites.named(str(job.record["suite"])).items_table]
    for title, png in drawn(job.results, str(job.record["run_id"])).items():
        made[title] = wandb.Image(Image.open(io.BytesIO(png)), caption=title)
    return made


def _artifacts(run: Any, job: RunToLog, online: bool) -> None:
    """Benchmark and model as inputs, scores as output. Offline the client knows no inputs: they are
    logged, and the run's config names them."""
    from sdgbias.report.wandb import artifacts

    record = job.record
    with tempfile.TemporaryDirectory() as own:  # sent before the block ends, or kept until sync
        folder = Path(own) if online else job.folder
        given = (artifacts.benchmark(job.results, record, folder), artifacts.model(record))
        for artifact in given:
            _ = run.use_artifact(artifact) if online else run.log_artifact(artifact)
        scores = artifacts.scores(job.results, record, folder)
        if scores is None:
            return
        aliases = [job.night] if job.night else []
        logged = run.log_artifact(scores, aliases=aliases)
        if online:
            logged.wait()
            if target := os.environ.get(REGISTRY):
                run.link_artifact(logged, target, aliases=aliases)


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
    """One W&B service process for all runs written in the block, with its environment inside
    ``folder``; then what was sent is removed. Process and environment are restored afterwards."""
    ours = {
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_ERROR_REPORTING": "false",
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove the runs that `wandb sync` has marked as sent, and what they referred to once none
    waits."""
    for sent in folder.glob("wandb/offline-run-*/*.wandb.synced"):
        shutil.rmtree(sent.parent, ignore_errors=True)
    if not any(folder.glob("wandb/offline-run-*")):
        for name in ("artifacts", "data", "cache"):
            shutil.rmtree(folder / name, ignore_errors=True)


#: Table of a suite's questions -> the figures of a run.
_PICTURES = {"items": _of_places, "people": _of_people}
