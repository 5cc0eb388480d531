"""Writes runs of the results file as W&B runs, one per model and night: online where
``WANDB_API_KEY`` is in the environment, else offline, to be sent with W&B's own ``wandb sync``.

<folder>/wandb/<run>/             one folder per run, as the client lays it out
<folder>/wandb/<run>/artifacts/   the Parquet files that a waiting run refers to
<folder>/logged.json              W&B id -> the run in it, so that nothing is logged twice
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from calendar import isleap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow.parquet as pq

from sdgbias import __version__, credentials, store, suites, wording
from sdgbias.errors import SdgbiasError, StoreError, UsageError, first_line, one_of
from sdgbias.files import json_object, packaged_sql, write_json
from sdgbias.progress import Progress, each, silent

#: Default project if WANDB_PROJECT is not set. `wandb sync` can rename a run's project but not that
#: of its artifacts, so it is fixed when the run is written.
PROJECT = "sdgbias"
#: Collection of W&B's registry that scores are linked to, e.g. wandb-registry-bias/scores.
REGISTRY = "SDGBIAS_WANDB_REGISTRY"
LOGGED = "logged.json"
#: What to do where the folder of the W&B runs can't be written.
OTHER_DIR = "choose another --dir"
#: The axis of plots over nights.
NIGHT_YEAR = "night/year"
#: Benchmarks with more questions than this are recorded by digest only.
MOST_ROWS = 250_000
#: Backends whose models have no weights on the hub.
_WEIGHTLESS = ("api", "planted", "planted-people")


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
    mode = os.environ.get("WANDB_MODE", "")
    return mode == "online" if mode else bool(os.environ.get("WANDB_API_KEY"))


def log_night(
    results: Path,
    folder: Path,
    *,
    night: str | None = None,
    run_ids: Sequence[str] = (),
    again: bool = False,
    progress: Progress = silent,
) -> list[Logged]:
    """Log one W&B run per model of a night (None: the newest one), with its files below ``folder``.

    A run that was logged before, and not published anew since, is skipped (unless ``again``). A
    model that did not change that night gets config, summary and history only, once an earlier W&B
    run has its tables and scores. A server that can't be reached makes the rest offline. Errors of
    W&B never raise: each is returned as ``Logged.failed``, one line each. Raises StoreError for a
    night, a run or a results file that can't be read, UsageError for a night that is no date.
    """
    night, outcomes = runs_of(results, night, run_ids)
    night_time(night, {})
    folder = Path(folder).resolve()
    logged: dict[str, Any] = json_object(folder / LOGGED)
    made: list[Logged] = []
    offline = "" if online() else "offline"
    with service(folder):
        for outcome in each(progress, "W&B", outcomes):
            run_id = str(outcome["run_id"])
            name = safe(f"{night}-{run_id}" if night else run_id)
            try:
                record = _record(results, run_id)
                has_tables = any(
                    mark["run_id"] == run_id and not mark["small"]
                    for other, mark in logged.items()
                    if other != name  # this one would be replaced, with what it holds
                )
                small = outcome.get("outcome") == "unchanged" and has_tables
                mark = {"run_id": run_id, "published": str(record["finished_at"]), "small": small}
                if not again and logged.get(name) == mark:
                    made.append(Logged(run_id))
                    continue
                # before W&B's client, which writes elsewhere where it can't write here
                write_json(folder / LOGGED, logged, OTHER_DIR)
                job = _Job(results, folder, night, name, record, outcome, small)
                written, offline = _write(job, offline)
                logged[name] = mark
                write_json(folder / LOGGED, logged, OTHER_DIR)
                made.append(Logged(run_id, written, offline=offline if online() else ""))
            except SdgbiasError as error:
                made.append(Logged(run_id, failed=str(error)))
            except Exception as error:  # W&B may raise anything; it must only cost this run
                reason = f"{type(error).__name__}: {first_line(error)}"
                made.append(Logged(run_id, failed=reason))
    return made


def runs_of(
    results: Path, night: str | None, run_ids: Sequence[str] = ()
) -> tuple[str, list[dict[str, Any]]]:
    """(night, rows with run_id, outcome and figures of the night) to log: those of ``night`` (None:
    the newest in which a model has a run), only ``run_ids`` if any are given. For a results file
    without nights: the newest run of every model (about people: on every benchmark), night ''.

    Raises StoreError for an unknown night or run.
    """
    queries = packaged_sql("wandb.sql")
    nights = store.query(results, queries["nights"])
    if night is None:
        night = str(max(nights.loc[nights["has_runs"], "night"], default=""))
    if night and night not in list(nights["night"]):
        raise StoreError(f"{results}: {one_of('night', night, nights['night'])}")
    rows: list[dict[str, Any]] = (
        store.arrow(results, queries["outcomes"], [night]).to_pylist()
        if night
        else [{"run_id": run} for run in suites.newest_runs(results)]
    )
    if run_ids:
        of_night = {str(row["run_id"]): row for row in rows}
        rows = [of_night.get(run, {"run_id": _record(results, run)["run_id"]}) for run in run_ids]
    return night, rows


def _record(results: Path, run_id: str) -> dict[str, Any]:
    """A run's row of ``runs``. Raises StoreError if there is none."""
    for record in store.arrow(results, "FROM runs WHERE run_id = ?", [run_id]).to_pylist():
        return dict(record)
    raise StoreError(f"{results}: {one_of('run', run_id, store.run_ids(results))}")


def safe(text: str, longest: int = 64) -> str:
    """``text`` as a valid W&B id (of an artifact: ``longest`` 128); a text that had to change ends
    in its hash."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"
    if plain == text and len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{plain[: longest - 13]}-{digest}"


def night_time(night: str, record: Mapping[Any, Any]) -> datetime:
    """Wall clock of a night; without one, the time when the run finished (UTC). Raises UsageError
    for an invalid night."""
    if not night:
        return record.get("finished_at") or datetime(1970, 1, 1)
    try:
        return datetime.strptime(night[:15], "%Y-%m-%dT%H%M")
    except ValueError:
        raise UsageError(
            f"night {night!r}: no such date; a night is written like 2026-11-21T0130; sdgbias"
            " wandb log takes the newest one by itself"
        ) from None


def axis(when: datetime) -> tuple[int, float]:
    """(step of the history: whole minutes since 1970 on the night's wall clock, decimal year)."""
    minutes = int((when - datetime(1970, 1, 1)).total_seconds() // 60)
    days = (when - datetime(when.year, 1, 1)).total_seconds() / 86_400
    return minutes, round(when.year + days / (366 if isleap(when.year) else 365), 6)


# ----------------------------------------------------------------------
# one W&B run


@dataclass(frozen=True)
class _Job:
    """``record``: the run's row of ``runs``. ``outcome``: the model's row of the night. ``small``:
    config, summary and history only."""

    results: Path
    folder: Path
    night: str
    name: str
    record: Mapping[str, Any]
    outcome: Mapping[str, Any]
    small: bool

    def rows(self, query: str) -> pd.DataFrame:
        """The rows of a query of wandb.sql for this run and night."""
        sql = packaged_sql("wandb.sql")[query]
        values = {**self.record, "night": self.night}
        return store.query(self.results, sql, {k: v for k, v in values.items() if f"${k}" in sql})


def config(record: Mapping[Any, Any], night: str, params: pd.DataFrame) -> dict[str, Any]:
    """The run's record, its settings, the model's entry without secrets, CADE's parameters, night
    and versions, as plain values."""
    plain = {
        k: f"{v.isoformat()}Z" if isinstance(v, datetime) else None if v != v else v
        for k, v in record.items()
        if k != "config"
    }
    settings = credentials.cleaned(json.loads(record["config"] or "{}"))
    parameters = params.set_index(params["task"] + "/" + params["test"])
    return plain | {
        "night": night,
        "spec": settings.pop("spec", {}),
        "settings": settings,
        "cade": {
            name: row.dropna().to_dict()
            for name, row in parameters[["alpha", "lambda_kl", "beta", "tau"]].iterrows()
        },
        "sdgbias_version": settings.get("sdgbias", ""),
        "logged_by": __version__,
    }


def summary(numbers: pd.DataFrame) -> dict[str, float | int]:
    """name -> value, and ``name/n``, ``name/ci_low``, ``name/ci_high``, where there is a number.
    ``numbers``: as query ``numbers`` of wandb.sql has them."""
    flat: dict[str, float | int] = {}
    for row in numbers.to_dict("records"):
        for column, suffix in (("value", ""), ("ci_low", "/ci_low"), ("ci_high", "/ci_high")):
            if pd.notna(row[column]):
                flat[row["name"] + suffix] = float(row[column])
        if pd.notna(row["n"]):
            flat[f"{row['name']}/n"] = int(row["n"])
    return flat


def gate_summary(verdicts: pd.Series) -> dict[str, float | int | str]:
    """``gate/verdict`` (the worst one) and the number of rows per verdict; empty if the regression
    check has not run."""
    if verdicts.empty:
        return {}
    counts = {str(verdict): int(n) for verdict, n in verdicts.value_counts().items()}
    by_name = {f"gate/{verdict.lower().replace('_', '-')}": n for verdict, n in counts.items()}
    return {"gate/verdict": wording.worst(counts) or str(verdicts.iloc[0]), **by_name}


def _write(job: _Job, offline: str) -> tuple[Path, str]:
    """(folder of the run, why it is offline or ''). ``offline`` not empty: don't try the server."""
    numbers, verdicts, params = job.rows("numbers"), job.rows("verdicts"), job.rows("params")
    for old in job.folder.glob(f"wandb/offline-run-*-{job.name}"):
        shutil.rmtree(old)
    run, offline = _init(job, params, offline)
    facts = {f"night/{k}": v for k, v in job.outcome.items() if k != "run_id" and v is not None}
    try:
        run.define_metric(NIGHT_YEAR)
        run.define_metric("*", step_metric=NIGHT_YEAR)
        run.summary.update(summary(numbers) | facts | gate_summary(verdicts["verdict"]))
        history: dict[str, Any] = summary(numbers[numbers["over_nights"]])
        history |= {k: v for k, v in facts.items() if not isinstance(v, str)}
        step, history[NIGHT_YEAR] = axis(night_time(job.night, job.record))
        if not job.small:
            tables = {"metrics": job.rows("metrics"), "cade_params": params, "gate": verdicts}
            history |= {title: _table(rows) for title, rows in tables.items() if len(rows)}
        run.log(history, step=step)
        written = Path(run.dir).parent
        if not job.small:
            _log_artifacts(run, job, written / "artifacts", online=not offline)
    finally:
        run.finish()
    return written, offline


def _table(rows: pd.DataFrame) -> Any:
    import wandb

    # by row: a table of a data frame takes three times as long
    data = rows.astype(object).where(rows.notna(), None).to_numpy().tolist()
    return wandb.Table(columns=list(rows), data=data)


def _init(job: _Job, params: pd.DataFrame, offline: str) -> tuple[Any, str]:
    import wandb

    record = job.record

    def start(mode: Literal["online", "offline"]) -> Any:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=os.environ.get("WANDB_ENTITY") or None,
            id=job.name,
            resume="allow" if mode == "online" else None,
            name=f"{record['model']} {job.night}".strip(),
            group=str(record["benchmark_id"]),
            job_type="evaluate",
            dir=str(job.folder),
            mode=mode,
            config=config(record, job.night, params),
            tags=[record["provenance"], record["suite"], *["unchanged"] * job.small],
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


@contextmanager
def service(folder: Path) -> Iterator[None]:
    """One W&B service process for all runs written in the block; then the runs that `wandb sync`
    has marked as sent are removed.
    The client keeps its own files where W&B's variables say (WANDB_CACHE_DIR, WANDB_DATA_DIR)."""
    # a night on a closed machine must not report the client's own errors to the outside
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        yield
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()
        for sent in folder.glob("wandb/offline-run-*/*.wandb.synced"):
            shutil.rmtree(sent.parent, ignore_errors=True)


# ----------------------------------------------------------------------
# artifacts


def _log_artifacts(run: Any, job: _Job, folder: Path, online: bool) -> None:
    """Benchmark and model as inputs, scores as output. Offline the client doesn't know inputs: they
    are logged, and the run's config names them. Rows about people don't leave, weights neither."""
    suite = suites.named(str(job.record["suite"]))
    sql = "SELECT item_id FROM questions WHERE benchmark_id = ? ORDER BY task, item_id"
    ids = store.query(job.results, sql, [job.record["benchmark_id"]])["item_id"].astype(str)
    about = {k: job.record[k] or "" for k in ("benchmark_id", "suite", "licence")}
    about |= {
        "rows": len(ids),
        "sha256_of_item_ids": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
    }
    leaves = not suite.private and len(ids) <= MOST_ROWS
    benchmark = _artifact(job, folder, "dataset", about, ["questions"] if leaves else [])
    for artifact in (benchmark, _model(job.record)):
        _ = run.use_artifact(artifact) if online else run.log_artifact(artifact)
    about = {k: job.record[k] or "" for k in ("run_id", "fingerprint")}
    details = ["scores", "decoded", "spoken", "predictions"]
    scores = _artifact(job, folder, "scores", about, details)
    if scores.metadata["files"]:  # none where retention has removed the details
        aliases = [job.night] if job.night else []
        logged = run.log_artifact(scores, aliases=aliases)
        if online:
            logged.wait()
            if target := os.environ.get(REGISTRY):
                run.link_artifact(logged, target, aliases=aliases)
    if online:
        shutil.rmtree(folder, ignore_errors=True)


def _artifact(
    job: _Job, folder: Path, kind: str, metadata: Mapping[str, Any], tables: Sequence[str]
) -> Any:
    """An artifact with a Parquet file of each table that has rows. The same rows give the same
    bytes: W&B recognises an artifact that it has by its digest."""
    import wandb

    name, key = ("benchmark", "benchmark_id") if kind == "dataset" else (kind, "run_id")
    paths, rows = [], {}
    for table in tables:
        sql = f"SELECT * EXCLUDE ({key}) FROM {table} WHERE {key} = ? ORDER BY ALL"
        content = store.arrow(job.results, sql, [job.record[key]])
        if content.num_rows:
            folder.mkdir(exist_ok=True)
            paths.append(folder / f"{table}.parquet")
            pq.write_table(content, paths[-1], compression="zstd")
            rows[table] = content.num_rows
    artifact = wandb.Artifact(
        safe(f"{name}-{job.record[key]}", 128), kind, metadata={**metadata, "files": rows}
    )
    for path in paths:
        artifact.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
    return artifact


def _model(record: Mapping[str, Any]) -> Any:
    """The repository at its revision, by address."""
    import wandb

    spec = credentials.cleaned(json.loads(record["config"] or "{}").get("spec", {}))
    repo, revision = str(spec.get("repo", "")), str(record["revision"] or "")
    on_hub = repo.count("/") == 1 and ":" not in repo and record["backend"] not in _WEIGHTLESS
    address = (
        f"https://huggingface.co/{repo}/tree/{revision}"
        if on_hub
        else f"sdgbias://{safe(repo or str(record['model']))}@{safe(revision)}"
    )
    about = {k: record[k] or "" for k in ("revision", "fingerprint", "backend", "provenance")}
    about |= {k: spec.get(k, "") for k in ("repo", "dtype", "licence")}
    artifact = wandb.Artifact(safe(f"model-{record['model']}", 128), "model", metadata=about)
    artifact.add_reference(address, name="weights", checksum=False)
    return artifact
