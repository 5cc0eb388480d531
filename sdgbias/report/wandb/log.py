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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from sdgbias import __version__, credentials, store, suites
from sdgbias.analysis.nights import overall
from sdgbias.errors import SdgbiasError, StoreError, first_line, one_of
from sdgbias.files import json_object, packaged_sql, write_json
from sdgbias.progress import Progress, each, silent

#: What W&B's client reads of the environment, where it isn't set. `wandb sync` can rename a run's
#: project but not that of its artifacts, so it is fixed when the run is written.
DEFAULTS = {
    **{"WANDB_PROJECT": "sdgbias", "WANDB_ERROR_REPORTING": "false", "WANDB_INIT_TIMEOUT": "30"},
    **{"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DISABLE_GIT": "true"},
    **{"WANDB_X_DISABLE_STATS": "true", "WANDB_X_DISABLE_META": "true"},
    "WANDB_X_SAVE_REQUIREMENTS": "false",
}
#: Collection of W&B's registry that scores are linked to, e.g. wandb-registry-bias/scores.
REGISTRY = "SDGBIAS_WANDB_REGISTRY"
LOGGED = "logged.json"
#: The variables with the folders in which W&B's client keeps files of artifacts and tables.
STAGES = ("WANDB_DATA_DIR", "WANDB_CACHE_DIR")
#: What to do where the folder of the W&B runs can't be written.
OTHER_DIR = "choose another --dir"
#: The axis of plots over nights.
NIGHT_YEAR = "night/year"
#: Column of a run -> name and type of the artifact of its value, and columns that describe it.
ARTIFACTS = {
    "benchmark_id": ("benchmark", "dataset", ("benchmark_id", "suite", "licence")),
    "model": ("model", "model", ("revision", "fingerprint", "backend", "provenance")),
    "run_id": ("scores", "scores", ("run_id", "fingerprint")),
}
SQL = packaged_sql("wandb.sql")
Row = Mapping[str, Any]


class Logged(NamedTuple):
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
    night, a run or a results file that can't be read.
    """
    night, runs = runs_of(results, night, run_ids)
    folder = Path(folder).resolve()
    logged = {name: m for name, m in json_object(folder / LOGGED).items() if isinstance(m, dict)}
    done: list[Logged] = []
    offline = "" if online() else "offline"
    with service(folder):
        for run_id, facts in each(progress, "W&B", list(runs.items())):
            name = safe(f"{night}-{run_id}" if night else run_id)
            try:
                # a run under this name would be replaced, with what it holds
                others = [mark for other, mark in logged.items() if other != name]
                has_tables = any(m.get("run_id") == run_id and not m.get("small") for m in others)
                small = facts.get("night/outcome") == "unchanged" and has_tables
                record = store.run_of(results, run_id) | {"night": night}
                mark = {"run_id": run_id, "published": str(record["finished_at"]), "small": small}
                if not again and logged.get(name) == mark:
                    done.append(Logged(run_id))
                    continue
                # before W&B's client, which writes elsewhere where it can't write here; this run is
                # left out, so that it is logged again if it is stopped halfway
                logged.pop(name, None)
                write_json(folder / LOGGED, logged, OTHER_DIR)
                with _replacing(folder, name):
                    written, offline = _write(results, folder, name, record, facts, small, offline)
                    write_json(folder / LOGGED, logged | {name: mark}, OTHER_DIR)
                logged[name] = mark
                done.append(Logged(run_id, written, offline=offline if online() else ""))
            except SdgbiasError as error:
                done.append(Logged(run_id, failed=str(error)))
            except Exception as error:  # W&B may raise anything; it must only cost this run
                done.append(Logged(run_id, failed=f"{type(error).__name__}: {first_line(error)}"))
    return done


@contextmanager
def _replacing(folder: Path, name: str) -> Iterator[None]:
    """Around the writing of a W&B run: the one from before is removed, and also what is written
    where an error is raised, since `wandb sync` would send half a run as a whole one."""

    def remove() -> None:
        for waiting in folder.glob(f"wandb/offline-run-*-{name}"):
            shutil.rmtree(waiting)

    remove()
    try:
        yield
    except BaseException:
        remove()
        raise


def runs_of(
    results: Path, night: str | None, run_ids: Sequence[str] = ()
) -> tuple[str, dict[str, dict[str, Any]]]:
    """(night, run id -> facts of the night) to log: the runs of ``night`` (None: the newest in
    which a model has one), or ``run_ids``. For a results file without nights: the newest run of
    every model (about people: on every benchmark), night ''.

    Raises StoreError for an unknown night or run.
    """
    nights = store.query(results, SQL["nights"])
    if night is None:
        night = str(max(nights.loc[nights["has_runs"], "night"], default=""))
    if night and night not in list(nights["night"]):
        raise StoreError(f"{results}: {one_of('night', night, nights['night'])}")
    rows = store.arrow(results, SQL["outcomes"], [night]).to_pylist()
    facts = {row.pop("run_id"): {k: v for k, v in row.items() if v is not None} for row in rows}
    for run_id in run_ids:
        store.run_of(results, run_id)
    chosen = run_ids or (facts if night else suites.newest_runs(results))
    return night, {run_id: facts.get(run_id, {}) for run_id in chosen}


def safe(text: str, longest: int = 64) -> str:
    """``text`` as a valid W&B id (of an artifact: ``longest`` 128); a text that had to change ends
    in its hash."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return text if text == plain[:longest] else f"{plain[: longest - 13]}-{digest}"


def axis(night: str, finished: datetime) -> tuple[int, float]:
    """(step of the history: whole minutes since 1970 on the night's wall clock, decimal year);
    without a night, of the time when the run finished (UTC)."""
    when = datetime.strptime(night[:15], "%Y-%m-%dT%H%M") if night else finished
    begin, end = datetime(when.year, 1, 1), datetime(when.year + 1, 1, 1)
    year = when.year + (when - begin) / (end - begin)
    return (when - datetime(1970, 1, 1)) // timedelta(minutes=1), round(year, 6)


def config(record: Row, params: Sequence[Row]) -> dict[str, Any]:
    """The run's record with its night, its settings, the model's entry without secrets, CADE's
    parameters (rows of query ``cade_params``) and versions, as plain values."""
    settings = credentials.cleaned(json.loads(record["config"] or "{}"))
    names = ("alpha", "lambda_kl", "beta", "tau")
    cade = {
        f"{row['task']}/{row['test']}": {k: row[k] for k in names if row[k] is not None}
        for row in params
    }
    plain = {k: f"{v.isoformat()}Z" if isinstance(v, datetime) else v for k, v in record.items()}
    plain |= {"spec": settings.pop("spec", {}), "settings": settings, "cade": cade}
    versions = {"sdgbias_version": settings.get("sdgbias", ""), "logged_by": __version__}
    return {k: v for k, v in plain.items() if k != "config"} | versions


def _write(
    results: Path, folder: Path, name: str, record: Row, facts: Row, small: bool, offline: str
) -> tuple[Path, str]:
    """(folder of the run, why it is offline or ''). ``offline`` not empty: don't try the server.
    ``small``: config, summary and history only."""
    import wandb

    numbers = _rows(results, record, "numbers")
    tables = {title: _rows(results, record, title) for title in ("metrics", "cade_params", "gate")}
    counts = Counter(row["verdict"] for row in tables["gate"])
    gate = {f"gate/{verdict.lower().replace('_', '-')}": n for verdict, n in counts.items()}
    worst = {"gate/verdict": overall(tables["gate"])} if counts else {}
    step, year = axis(record["night"], record["finished_at"])
    history: dict[str, Any] = {n["name"]: n["figure"] for n in numbers if n["over_nights"]}
    history |= {k: v for k, v in facts.items() if not isinstance(v, str)} | {NIGHT_YEAR: year}
    settings = {
        "id": name,
        "name": f"{record['model']} {record['night']}".strip(),
        "group": record["benchmark_id"],
        "job_type": "evaluate",
        "dir": folder,
        "config": config(record, tables["cade_params"]),
        "tags": [record["provenance"], record["suite"], *["unchanged"] * small],
    }
    run, offline = _start(settings, offline)
    written = Path(run.dir).parent
    # below the home folder what a waiting run refers to would stay for ever, or can't be written
    ours = [name for name in STAGES if not os.environ.get(name)]
    os.environ.update(dict.fromkeys(ours, str(written)))
    try:
        run.define_metric(NIGHT_YEAR)
        run.define_metric("*", step_metric=NIGHT_YEAR)
        figures = {n["name"]: n["figure"] for n in numbers}
        run.summary.update({**figures, **facts, **gate, **worst})
        if not small:
            history |= {
                # by row: a table of a data frame takes three times as long
                title: wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
                for title, rows in tables.items()
                if rows
            }
        run.log(history, step=step)
        if not small:
            _log_artifacts(run, results, record, written / "artifacts", online=not offline)
    finally:
        run.finish()
        for name in ours:
            del os.environ[name]
    return written, offline


def _rows(results: Path, record: Row, query: str) -> list[dict[str, Any]]:
    """The rows of a query of wandb.sql for this run and night; no value is NaN."""
    sql = SQL[query]
    rows = store.arrow(results, sql, {k: v for k, v in record.items() if f"${k}" in sql})
    return [{k: v if v == v else None for k, v in row.items()} for row in rows.to_pylist()]


def _start(settings: dict[str, Any], offline: str) -> tuple[Any, str]:
    """The W&B run, and why it is offline or ''."""
    import wandb

    if not offline:
        try:
            return wandb.init(mode="online", resume="allow", **settings), ""
        except wandb.Error as error:  # no answer, or the key is refused: the night goes on offline
            offline = first_line(error)
            wandb.teardown()  # the helper process still holds the run's id
    return wandb.init(mode="offline", **settings), offline


@contextmanager
def service(folder: Path) -> Iterator[None]:
    """One W&B service process for all runs written in the block; then the runs that `wandb sync`
    has marked as sent are removed.
    The client keeps its own files where W&B's variables say (WANDB_CACHE_DIR, WANDB_DATA_DIR)."""
    for name, value in DEFAULTS.items():
        os.environ[name] = os.environ.get(name) or value
    try:
        yield
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown()
        for sent in folder.glob("wandb/offline-run-*/*.wandb.synced"):
            shutil.rmtree(sent.parent, ignore_errors=True)


def _log_artifacts(run: Any, results: Path, record: Row, folder: Path, online: bool) -> None:
    """Benchmark and model as inputs, scores as output. Offline the client doesn't know inputs: they
    are logged, and the run's config names them. Rows about people don't leave, weights neither."""
    folder.mkdir(exist_ok=True)
    [ids] = _rows(results, record, "ids")
    shared = [] if suites.named(record["suite"]).private else ["questions"]
    benchmark = _artifact(results, record, folder, "benchmark_id", ids, shared)
    spec = credentials.cleaned(json.loads(record["config"] or "{}").get("spec", {}))
    about = {name: spec.get(name) or "" for name in ("repo", "dtype", "licence")}
    model = _artifact(results, record, folder, "model", about)
    repo, revision = about["repo"], record["revision"] or ""
    if repo.count("/") == 1 and ":" not in repo and record["backend"] != "api":
        address = f"https://huggingface.co/{repo}/tree/{revision}"
    else:
        address = f"sdgbias://{safe(repo or record['model'])}@{safe(revision)}"
    model.add_reference(address, name="weights", checksum=False)
    for artifact in (benchmark, model):
        _ = run.use_artifact(artifact) if online else run.log_artifact(artifact)
    details = ("scores", "decoded", "spoken", "predictions")
    scores = _artifact(results, record, folder, "run_id", {}, details)
    if scores.manifest.entries:  # none after `store keep`
        aliases = [record["night"]] if record["night"] else []
        logged = run.log_artifact(scores, aliases=aliases)
        if online:
            logged.wait()
            if target := os.environ.get(REGISTRY):
                run.link_artifact(logged, target, aliases=aliases)
    if online:
        shutil.rmtree(folder, ignore_errors=True)


def _artifact(
    results: Path, record: Row, folder: Path, key: str, about: Row, tables: Sequence[str] = ()
) -> Any:
    """One of ARTIFACTS: a Parquet file, written to ``folder``, for each table that has rows. The
    same rows give the same bytes: W&B recognises an artifact that it has by its digest."""
    import wandb

    name, kind, columns = ARTIFACTS[key]
    metadata = {column: record[column] or "" for column in columns} | dict(about) | {"files": {}}
    artifact = wandb.Artifact(safe(f"{name}-{record[key]}", 128), kind, metadata=metadata)
    for table in tables:
        sql = f"SELECT * EXCLUDE ({key}) FROM {table} WHERE {key} = ? ORDER BY ALL"
        if rows := store.arrow(results, sql, [record[key]]):
            path = folder / f"{table}.parquet"
            pq.write_table(rows, path, compression="zstd")
            artifact.add_file(str(path), policy="immutable", skip_cache=True)
            artifact.metadata["files"][table] = len(rows)
    return artifact
