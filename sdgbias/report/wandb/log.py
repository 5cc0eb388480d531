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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

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
#: A run's row of ``runs``, with its ``night`` and ``outcome``, the model's row of that night.
Record = Mapping[str, Any]


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
    records: list[Logged] = []
    offline = "" if online() else "offline"
    with service(folder):
        for outcome in each(progress, "W&B", outcomes):
            run_id = str(outcome["run_id"])
            name = safe(f"{night}-{run_id}" if night else run_id)
            try:
                record = _record(results, run_id) | {"night": night, "outcome": outcome}
                has_tables = any(
                    mark["run_id"] == run_id and not mark["small"]
                    for other, mark in logged.items()
                    if other != name  # this one would be replaced, with what it holds
                )
                small = outcome.get("outcome") == "unchanged" and has_tables
                mark = {"run_id": run_id, "published": str(record["finished_at"]), "small": small}
                if not again and logged.get(name) == mark:
                    records.append(Logged(run_id))
                    continue
                # before W&B's client, which writes elsewhere where it can't write here
                write_json(folder / LOGGED, logged, OTHER_DIR)
                written, offline = _write(results, folder, name, record, small, offline)
                logged[name] = mark
                write_json(folder / LOGGED, logged, OTHER_DIR)
                records.append(Logged(run_id, written, offline=offline if online() else ""))
            except SdgbiasError as error:
                records.append(Logged(run_id, failed=str(error)))
            except Exception as error:  # W&B may raise anything; it must only cost this run
                reason = f"{type(error).__name__}: {first_line(error)}"
                records.append(Logged(run_id, failed=reason))
    return records


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
    begin, end = datetime(when.year, 1, 1), datetime(when.year + 1, 1, 1)
    minutes = (when - datetime(1970, 1, 1)) // timedelta(minutes=1)
    return minutes, round(when.year + (when - begin) / (end - begin), 6)


# ----------------------------------------------------------------------
# one W&B run


def config(record: Record, params: pd.DataFrame) -> dict[str, Any]:
    """The run's record with its night, its settings, the model's entry without secrets, CADE's
    parameters and versions, as plain values."""
    plain = {
        name: f"{v.isoformat()}Z" if isinstance(v, datetime) else None if v != v else v
        for name, v in record.items()
        if name not in ("config", "outcome")
    }
    settings = credentials.cleaned(json.loads(record["config"] or "{}"))
    cade = params.set_index(params["task"] + "/" + params["test"])
    cade = cade[["alpha", "lambda_kl", "beta", "tau"]]
    return plain | {
        "spec": settings.pop("spec", {}),
        "settings": settings,
        "cade": {name: row.dropna().to_dict() for name, row in cade.iterrows()},
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


def _write(
    results: Path, folder: Path, name: str, record: Record, small: bool, offline: str
) -> tuple[Path, str]:
    """(folder of the run, why it is offline or ''). ``offline`` not empty: don't try the server.
    ``small``: config, summary and history only."""
    numbers = _rows(results, record, "numbers")
    params, verdicts = _rows(results, record, "params"), _rows(results, record, "verdicts")
    for old in folder.glob(f"wandb/offline-run-*-{name}"):
        shutil.rmtree(old)
    tags = [record["provenance"], record["suite"], *["unchanged"] * small]
    settings = {
        "id": name,
        "name": f"{record['model']} {record['night']}".strip(),
        "group": str(record["benchmark_id"]),
        "dir": str(folder),
        "config": config(record, params),
        "tags": tags,
    }
    run, offline = _start(settings, offline)
    facts = {
        f"night/{k}": v for k, v in record["outcome"].items() if k != "run_id" and v is not None
    }
    try:
        run.define_metric(NIGHT_YEAR)
        run.define_metric("*", step_metric=NIGHT_YEAR)
        run.summary.update(summary(numbers) | facts | gate_summary(verdicts["verdict"]))
        history: dict[str, Any] = summary(numbers[numbers["over_nights"]])
        history |= {k: v for k, v in facts.items() if not isinstance(v, str)}
        step, history[NIGHT_YEAR] = axis(night_time(record["night"], record))
        if not small:
            metrics = _rows(results, record, "metrics")
            tables = {"metrics": metrics, "cade_params": params, "gate": verdicts}
            history |= {title: _table(rows) for title, rows in tables.items() if len(rows)}
        run.log(history, step=step)
        written = Path(run.dir).parent
        if not small:
            _log_artifacts(run, results, record, written / "artifacts", online=not offline)
    finally:
        run.finish()
    return written, offline


def _rows(results: Path, record: Record, query: str) -> pd.DataFrame:
    """The rows of a query of wandb.sql for this run and night."""
    sql = packaged_sql("wandb.sql")[query]
    return store.query(results, sql, {k: v for k, v in record.items() if f"${k}" in sql})


def _table(rows: pd.DataFrame) -> Any:
    import wandb

    # by row: a table of a data frame takes three times as long
    data = rows.astype(object).where(rows.notna(), None).to_numpy().tolist()
    return wandb.Table(columns=list(rows), data=data)


def _start(settings: Mapping[str, Any], offline: str) -> tuple[Any, str]:
    """The W&B run, and why it is offline or ''."""
    import wandb

    common = {
        **settings,
        "project": os.environ.get("WANDB_PROJECT") or PROJECT,
        "entity": os.environ.get("WANDB_ENTITY") or None,
        "job_type": "evaluate",
        "settings": wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or 30),
        ),
    }
    if not offline:
        try:
            return wandb.init(mode="online", resume="allow", **common), ""
        except wandb.Error as error:  # no answer, or the key is refused: the night goes on offline
            offline = first_line(error)
            wandb.teardown()  # the helper process still holds the run's id
    return wandb.init(mode="offline", **common), offline


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


def _log_artifacts(run: Any, results: Path, record: Record, folder: Path, online: bool) -> None:
    """Benchmark and model as inputs, scores as output. Offline the client doesn't know inputs: they
    are logged, and the run's config names them. Rows about people don't leave, weights neither."""
    ids = store.query(
        results,
        "SELECT item_id FROM questions WHERE benchmark_id = ? ORDER BY task, item_id",
        [record["benchmark_id"]],
    )["item_id"].astype(str)
    about = _chosen(record, "benchmark_id", "suite", "licence") | {
        "rows": len(ids),
        "sha256_of_item_ids": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
    }
    leaves = [] if suites.named(str(record["suite"])).private else ["questions"]
    questions = _tables(results, record, "benchmark_id", leaves, folder)
    benchmark = _artifact(f"benchmark-{record['benchmark_id']}", "dataset", about, questions)
    for artifact in (benchmark, _model(record)):
        _ = run.use_artifact(artifact) if online else run.log_artifact(artifact)
    details = ["scores", "decoded", "spoken", "predictions"]
    if files := _tables(results, record, "run_id", details, folder):  # none after `store keep`
        about = _chosen(record, "run_id", "fingerprint")
        scores = _artifact(f"scores-{record['run_id']}", "scores", about, files)
        aliases = [record["night"]] if record["night"] else []
        logged = run.log_artifact(scores, aliases=aliases)
        if online:
            logged.wait()
            if target := os.environ.get(REGISTRY):
                run.link_artifact(logged, target, aliases=aliases)
    if online:
        shutil.rmtree(folder, ignore_errors=True)


def _chosen(values: Record, *names: str) -> dict[str, Any]:
    return {name: values.get(name) or "" for name in names}


def _tables(
    results: Path, record: Record, key: str, tables: Sequence[str], folder: Path
) -> dict[Path, int]:
    """Parquet file of each table that has rows -> their number. The same rows give the same bytes:
    W&B recognises an artifact that it has by its digest."""
    files = {}
    for table in tables:
        sql = f"SELECT * EXCLUDE ({key}) FROM {table} WHERE {key} = ? ORDER BY ALL"
        content = store.arrow(results, sql, [record[key]])
        if content.num_rows:
            folder.mkdir(exist_ok=True)
            path = folder / f"{table}.parquet"
            pq.write_table(content, path, compression="zstd")
            files[path] = content.num_rows
    return files


def _artifact(name: str, kind: str, about: Record, files: Mapping[Path, int]) -> Any:
    import wandb

    rows = {path.stem: n for path, n in files.items()}
    artifact = wandb.Artifact(safe(name, 128), kind, metadata={**about, "files": rows})
    for path in files:
        artifact.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
    return artifact


def _model(record: Record) -> Any:
    """The repository at its revision, by address."""
    import wandb

    spec = credentials.cleaned(json.loads(record["config"] or "{}").get("spec", {}))
    repo, revision = str(spec.get("repo", "")), str(record["revision"] or "")
    on_hub = repo.count("/") == 1 and ":" not in repo and record["backend"] != "api"
    address = f"sdgbias://{safe(repo or str(record['model']))}@{safe(revision)}"
    if on_hub:
        address = f"https://huggingface.co/{repo}/tree/{revision}"
    about = _chosen(record, "revision", "fingerprint", "backend", "provenance")
    about |= _chosen(spec, "repo", "dtype", "licence")
    artifact = wandb.Artifact(safe(f"model-{record['model']}", 128), "model", metadata=about)
    artifact.add_reference(address, name="weights", checksum=False)
    return artifact
