"""Writes runs of the results file as W&B runs: one per model and night, online where
``WANDB_API_KEY`` is in the environment, else offline, to be sent with W&B's own ``wandb sync``.

Only public calls of the client; all runs of a call share its one helper process.

<folder>/wandb/                   one folder per run, as the client lays them out
<folder>/artifacts/<name>         files of benchmarks and scores that waiting runs refer to
<folder>/logged.json              W&B id -> what it holds, so that nothing is logged twice
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from sdgbias import store, suites
from sdgbias.errors import SdgbiasError, StoreError, first_line, one_of
from sdgbias.files import json_object, write_json
from sdgbias.progress import Progress, each, silent
from sdgbias.report.wandb import contents

#: Default project if WANDB_PROJECT is not set. `wandb sync` can rename a run's project but not that
#: of its artifacts, so it is fixed when the run is written.
PROJECT = "sdgbias"
#: Collection of W&B's registry that scores are linked to, e.g. wandb-registry-bias/scores.
REGISTRY = "SDGBIAS_WANDB_REGISTRY"
LOGGED = "logged.json"
#: What to do where the folder of the W&B runs can't be written.
OTHER_DIR = "choose another --dir"
_VERDICTS = (
    'rule, task, test, method, level, side, metric, verdict, "before", "value", change, ci_low,'
    " ci_high, n, p, mde, allowed, quarantines, required, note"
)


@dataclass(frozen=True)
class RunToLog:
    """One W&B run to write. record: its row of ``runs``. small: of a night in which the model did
    not change: config, summary and history only."""

    results: Path
    folder: Path
    night: str
    small: bool
    record: dict[str, Any]

    def _rows(self, sql: str) -> pd.DataFrame:
        given = {k: v for k, v in {**self.record, "night": self.night}.items() if f"${k}" in sql}
        return store.query(self.results, sql, given)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Its numbers; of a small run those over all indicators."""
        pooled = "AND (starts_with(indicator, 'all') OR indicator = 'macro')" if self.small else ""
        return self._rows(f"FROM metric_rows WHERE run_id = $run_id {pooled} ORDER BY ALL")

    @cached_property
    def params(self) -> pd.DataFrame:
        """CADE's parameters."""
        return self._rows("FROM cade_params WHERE run_id = $run_id ORDER BY task, test")

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The regression verdicts of the night, empty if the check has not run."""
        mine = "night = $night AND model = $model AND suite = $suite"
        return self._rows(f"SELECT {_VERDICTS} FROM verdicts WHERE {mine} ORDER BY ALL")


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


def runs_of(
    results: Path, night: str | None, run_ids: Sequence[str] = ()
) -> tuple[str, list[dict[str, Any]]]:
    """(night, rows with run_id, outcome and figures of the night) to log: those of ``night`` (None:
    the newest in which a model has a run), only ``run_ids`` if any are given. For a results file
    without nights: the newest run of every model (about people: on every benchmark), night ''.

    Raises StoreError for an unknown night or run.
    """
    nights = store.query(
        results,
        """SELECT night, bool_or(run_id <> '') AS has_runs FROM
           (SELECT night, '' AS run_id FROM nights UNION SELECT night, run_id FROM night_outcomes)
           GROUP BY night ORDER BY night""",
    )
    known = [str(name) for name in nights["night"]]
    newest = max(nights.loc[nights["has_runs"], "night"], default="")
    chosen = newest if night is None else night
    if chosen and chosen not in known:
        raise StoreError(f"{results}: {one_of('night', chosen, known)}")
    sql = """SELECT run_id, outcome, attempts, seconds, scored, planned, failed FROM night_outcomes
             WHERE night = ? AND run_id <> '' ORDER BY model, suite"""
    rows: list[dict[str, Any]] = (
        store.arrow(results, sql, [chosen]).to_pylist()
        if chosen
        else [{"run_id": run} for run in suites.newest_runs(results)]
    )
    if run_ids:
        of_night = {str(row["run_id"]): row for row in rows}
        rows = [of_night.get(run, _record(results, run, "run_id")) for run in run_ids]
    return chosen, rows


def _record(results: Path, run_id: str, columns: str = "*") -> dict[str, Any]:
    """A run's row of ``runs``. Raises StoreError if there is none."""
    sql = f"SELECT {columns} FROM runs WHERE run_id = ?"
    for found in store.arrow(results, sql, [run_id]).to_pylist():
        return dict(found)
    raise StoreError(f"{results}: {one_of('run', run_id, store.run_ids(results))}")


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
    keep = partial(write_json, folder / LOGGED, known, OTHER_DIR)
    made: list[Logged] = []
    offline = "" if online() else "offline"
    with service(folder):
        for row in each(progress, "W&B", rows):
            run_id = str(row["run_id"])
            name = contents.wandb_id(run_id, chosen)
            try:
                small = _small(row, known)
                job = RunToLog(results, folder, chosen, small, _record(results, run_id))
                published = str(job.record["finished_at"])
                mark = {"run_id": run_id, "published": published, "small": small}
                if not again and known.get(name) == mark:
                    made.append(Logged(run_id))
                    continue
                keep()  # the client would write elsewhere where it can't write here
                written, offline = _write(job, row, offline)
                known[name] = mark
                keep()
                made.append(Logged(run_id, written, offline=offline if online() else ""))
            except SdgbiasError as error:
                made.append(Logged(run_id, failed=str(error)))
            except Exception as error:  # W&B may raise anything; it must only cost this run
                why = f"{type(error).__name__}: {first_line(error)}"
                made.append(Logged(run_id, failed=why))
    return made


def _small(row: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    full = {mark["run_id"] for mark in known.values() if not mark["small"]}
    return row.get("outcome") == "unchanged" and row["run_id"] in full


def _write(job: RunToLog, outcome: Mapping[str, Any], offline: str) -> tuple[Path, str]:
    """(folder of the run, why it is offline or ''). ``outcome``: the model's row of the night;
    ``offline`` not empty: don't try the server.

    Config: the run's record, settings, the model's entry without secrets, CADE's parameters, night,
    versions. Summary: ``task/test/method[/pillar]/metric`` = value, with ``.../n``, ``.../ci_low``,
    ``.../ci_high``, and ``gate/...`` if the regression check has judged the night. History: one
    step per run (minutes of the night's wall clock) with ``night/year``. Then tables and artifacts.
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
        tables = {} if job.small else _tables(job)
        run.log(row | tables, step=contents.step(when))
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
            offline = first_line(error)
            wandb.teardown()  # the helper process still holds the run's id
    return start("offline"), offline


def _tables(job: RunToLog) -> dict[str, Any]:
    import wandb

    made: dict[str, Any] = {}
    for title, frame in contents.tables(job.metrics, job.params, job.judged).items():
        # by row: a table of a data frame takes three times as long
        rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        made[title] = wandb.Table(columns=list(frame), data=rows)
    return made


def _artifacts(run: Any, job: RunToLog, online: bool) -> None:
    """Benchmark and model as inputs, scores as output. Offline the client doesn't know inputs: they
    are logged, and the run's config names them."""
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


@contextmanager
def service(folder: Path) -> Iterator[None]:
    """One W&B service process for all runs written in the block; then what was sent is removed.
    The client keeps its own files where W&B's variables say (WANDB_CACHE_DIR, WANDB_DATA_DIR)."""
    # a night on a closed machine must not report the client's own errors to the outside
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        yield
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove the runs that `wandb sync` has marked as sent, and what they referred to once none
    waits."""
    for sent in folder.glob("wandb/offline-run-*/*.wandb.synced"):
        shutil.rmtree(sent.parent, ignore_errors=True)
    if not any(folder.glob("wandb/offline-run-*")):
        shutil.rmtree(folder / "artifacts", ignore_errors=True)
