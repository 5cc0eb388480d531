"""The contents of the W&B run of a stored run: names, config, summary, history, tables, as plain
values without importing W&B; and its inputs and outputs: the benchmark and the model used, the
scores produced.

Artifact files are built from the results file alone, once per benchmark and run, in
``<folder>/artifacts``; runs refer to them there, nothing is copied. The same rows give the same
bytes, so that W&B recognises an existing file by its digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from calendar import isleap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias import __version__, store, suites
from sdgbias.errors import UsageError
from sdgbias.files import replacing
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report.wandb.slugs import distinct_slugs, slug

#: The first 15 characters of a night's id: local wall clock of its start.
NIGHT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{4}")
#: Maximum length of a W&B run id.
LONGEST_ID = 64
#: The metrics of the history (all pillars together): a selection, so that plots over nights have
#: few lines.
HISTORY = (
    "accuracy",
    "accuracy_gain",
    "mae",
    "mae_change",
    "interval_accuracy",
    "candidate_mass",
    "off_candidate_rate",
    "tie_rate",
    "near_tie_rate",
    "unparsed_rate",
    "disparity",
    "recall",
    *(f"share_{d}" for d in DIRECTIONS),
)
NIGHT_YEAR = "night/year"
_CREDENTIAL = re.compile(r"key|token|secret|passw|credential|authori[sz]ation", re.IGNORECASE)
_SECRET = re.compile(r"\b(?:sk-|hf_|ghp_|github_pat_|AIza|xox[a-z]-)[A-Za-z0-9_-]{10,}")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def safe(text: str, longest: int = LONGEST_ID) -> str:
    """``text`` as a valid W&B id or artifact name; a text that had to change ends in its hash."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"
    if plain == text and len(text) <= longest:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{plain[: longest - 13]}-{mark}"


def wandb_id(run_id: str, night: str = "") -> str:
    """The id of a run's W&B run, derived from the night and the run id, hence stable."""
    return safe(f"{night}-{run_id}" if night else run_id)


def night_of(night: str, record: Mapping[Any, Any]) -> datetime:
    """Wall clock of a night; without one, the time when the run finished (UTC). Raises UsageError
    for an invalid night."""
    if night:
        if not NIGHT.match(night):
            raise UsageError(
                f"night {night!r}: a night is written like 2026-11-21T0130; sdgbias wandb log takes"
                " the newest one by itself"
            )
        try:
            return datetime.strptime(night[:15], "%Y-%m-%dT%H%M")
        except ValueError:
            raise UsageError(
                f"night {night!r}: no such date; a night is written like 2026-11-21T0130"
            ) from None
    when = record.get("finished_at")
    return (
        datetime(1970, 1, 1)
        if when is None or pd.isna(when)
        else pd.Timestamp(when).to_pydatetime().replace(tzinfo=None)
    )


def step(when: datetime) -> int:
    """The history's step: whole minutes since 1970-01-01T0000 on the night's wall clock."""
    return int((when - datetime(1970, 1, 1)).total_seconds() // 60)


def year(when: datetime) -> float:
    """The night as a decimal year, e.g. 2026.8877: the axis of plots over nights."""
    days = (when - datetime(when.year, 1, 1)).total_seconds() / 86_400
    return round(when.year + days / (366 if isleap(when.year) else 365), 6)


def config(record: Mapping[Any, Any], night: str, params: pd.DataFrame) -> dict[str, Any]:
    """The run's record, its settings, the model's entry without secrets, CADE's parameters, night
    and versions, as plain values."""
    plain = {str(k): v for k, v in record.items() if k != "config"}
    for k, v in plain.items():
        if isinstance(v, pd.Timestamp) or v is pd.NaT:
            plain[k] = None if pd.isna(v) else v.isoformat() + "Z"
        elif hasattr(v, "item"):
            v = v.item()
            plain[k] = None if isinstance(v, float) and v != v else v
    settings = json.loads(record["config"] or "{}")
    spec = settings.pop("spec", {})
    tuned: dict[str, dict[str, float]] = {}
    for r in params.to_dict("records"):
        tuned[f"{r['task']}/{r['test']}"] = {
            k: float(r[k]) for k in ("alpha", "lambda_kl", "beta", "tau") if pd.notna(r[k])
        }
    return plain | {
        "night": night,
        "settings": without_secrets(settings),
        "spec": without_secrets(spec),
        "cade": tuned,
        "sdgbias_version": settings.get("sdgbias", ""),
        "logged_by": __version__,
    }


def without_secrets(value: Any, name: str = "") -> Any:
    """``value`` without anything that resembles a credential: options with such names (names of
    variables and counts stay), user:password in addresses, known forms of keys. Local paths are
    reduced to the last folder."""
    if isinstance(value, Mapping):
        return {str(k): without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(v, name) for v in value]
    if not isinstance(value, str):
        return value
    if _CREDENTIAL.search(name) and not name.endswith("_env"):
        return "(left out)"
    if value.startswith("path:"):
        value = f"path:.../{Path(value).name}"
    return _SECRET.sub("(left out)", _USERINFO.sub("(left out)@", value))


def summary(metrics: pd.DataFrame) -> dict[str, float | int]:
    """Flat names for every cell that covers all indicators:
    ``task/test/method[/pillar][/indicator]/metric`` = value, with ``.../n``, ``.../ci_low``,
    ``.../ci_high``; NaN is left out. The indicator is named if it isn't 'all' (all-52, macro). A
    suite's author names its groups: where two share a slug, their names end in a hash."""
    flat: dict[str, float | int] = {}
    columns = [
        "task",
        "test",
        "method",
        "pillar",
        "indicator",
        "metric",
        "value",
        "n",
        "ci_low",
        "ci_high",
    ]
    rows = metrics.loc[
        metrics["indicator"].str.startswith("all") | (metrics["indicator"] == "macro"), columns
    ]
    slugs = distinct_slugs(rows["pillar"])
    for task, test, method, pillar, indicator, metric, *numbers in rows.itertuples(
        index=False, name=None
    ):
        place = [slugs[pillar]] if pillar != "all" else []
        place += [slug(str(indicator))] if indicator != "all" else []
        name = "/".join([str(task), str(test), str(method), *place, str(metric)])
        for key, value in zip(
            (name, f"{name}/n", f"{name}/ci_low", f"{name}/ci_high"), numbers, strict=True
        ):
            if pd.notna(value):
                flat[key] = int(value) if key.endswith("/n") else float(value)
    return flat


def history(metrics: pd.DataFrame) -> dict[str, float | int]:
    """Values plotted over nights: ``HISTORY`` of all pillars (suite people: of every pair of
    groups), with the names of ``summary``."""
    own = metrics[
        metrics["metric"].isin(HISTORY)
        & ((metrics["pillar"] == "all") | (metrics["metric"] == "disparity"))
    ]
    return summary(own)


# ----------------------------------------------------------------------
# tables


def tables(
    metrics: pd.DataFrame, params: pd.DataFrame, verdicts: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """name -> rows, non-empty tables only: ``metrics`` (everything), ``views_by_test`` (multiple
    choice: accuracy; regression: mean absolute error), ``signatures`` (shares by direction),
    ``disparities``, ``cade_params``, ``gate``."""
    found = {
        "metrics": metrics,
        "views_by_test": _wide(
            metrics, {"mcq": ("accuracy",), "regression": ("mae",), "*": ("recall",)}
        ),
        "signatures": _wide(metrics, {"mcq": tuple(f"share_{d}" for d in DIRECTIONS)}),
        "disparities": metrics[
            (metrics["metric"] == "disparity") & metrics["indicator"].str.startswith("all")
        ],
        "cade_params": params.drop(columns=[c for c in ("model", "run_id") if c in params]),
        "gate": verdicts,
    }
    return {name: frame for name, frame in found.items() if len(frame)}


def _wide(metrics: pd.DataFrame, wanted: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """One row per task, view and metric (all pillars, all indicators); per test four columns:
    value, n, ci_low, ci_high."""
    from sdgbias.report.data import METHODS, TESTS

    own = metrics[(metrics["pillar"] == "all") & metrics["indicator"].str.startswith("all")]
    rows: list[dict[str, object]] = []
    tests = [
        *[t for t in TESTS if (own["test"] == t).any()],
        *sorted(set(own["test"]) - set(TESTS)),
    ]
    order = {name: i for i, name in enumerate(METHODS)}
    for (task, method, indicator, metric), part in own.groupby(
        ["task", "method", "indicator", "metric"], sort=True
    ):
        if metric not in wanted.get(str(task), wanted.get("*", ())):
            continue
        row: dict[str, object] = {
            "task": task,
            "view": METHODS.get(str(method), method),
            "indicator": indicator,
            "metric": metric,
        }
        by_test = {r["test"]: r for r in part.to_dict("records")}
        for test in tests:
            r = by_test.get(test, {})
            row |= {
                test if column == "value" else f"{test} {column}": r.get(column)
                for column in ("value", "n", "ci_low", "ci_high")
            }
        rows.append(row | {"_at": order.get(str(method), len(order))})
    frame = pd.DataFrame(rows)
    return (
        frame.sort_values(["task", "metric", "_at", "view"], kind="stable", ignore_index=True).drop(
            columns="_at"
        )
        if rows
        else frame
    )


def gate_summary(found: pd.DataFrame) -> dict[str, float | int | str]:
    """``gate/verdict`` (the worst one) and the number of rows per verdict; empty if the regression
    check has not run."""
    if found.empty:
        return {}
    counts = found["verdict"].value_counts()
    worst = next(
        v
        for v in (
            "BREACH",
            "MISSING",
            "INSUFFICIENT_EVIDENCE",
            "FIRST_RUN",
            "PASS",
            str(found["verdict"].iloc[0]),
        )
        if v in counts
    )
    return {
        "gate/verdict": worst,
        **{f"gate/{slug(str(v))}": int(n) for v, n in sorted(counts.items())},
    }


#: Benchmarks with more questions than this are recorded by digest only.
MOST_ROWS = 250_000
#: Maximum length of a W&B artifact name.
LONGEST_NAME = 128
#: Stored beside the score files of a run: the number of rows of each.
_ROWS = "rows.json"
_SCORES = {
    "scores": 'task, item_id, test, "view"',
    "decoded": 'item_id, test, "view"',
    "spoken": 'task, item_id, test, "view"',
    "predictions": "task, item_id, test, method",
}


@dataclass(frozen=True)
class ArtifactSpec:
    """One artifact: its name and type in W&B, files (paths below the W&B folder), references (name
    -> address), metadata."""

    name: str
    type: str
    metadata: Mapping[str, Any]
    files: tuple[Path, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)


def names(record: Mapping[Any, Any]) -> dict[str, str]:
    """kind -> name of the artifacts of a run: benchmark, model, scores."""
    given = {
        "benchmark": record["benchmark_id"],
        "model": record["model"],
        "scores": record["run_id"],
    }
    return {kind: safe(f"{kind}-{value}", LONGEST_NAME) for kind, value in given.items()}


def pieces(results: Path, record: Mapping[Any, Any], folder: Path) -> dict[str, ArtifactSpec]:
    """benchmark, model and (if there are any) scores of one run; existing files are reused.

    ``record``: the run's row of ``runs``. Raises OSError if a file can't be written and StoreError
    if rows can't be read.
    """
    scores = _scores(results, record, folder)
    return {
        "benchmark": _benchmark(results, record, folder),
        "model": _model(record),
        **({"scores": scores} if scores else {}),
    }


def declare(run: Any, piece: ArtifactSpec, *, used: bool, aliases: tuple[str, ...] = ()) -> str:
    """Declare an artifact that the run used (input) or produced (output) to W&B; returns its
    digest."""
    import wandb

    artifact = wandb.Artifact(piece.name, piece.type, metadata=dict(piece.metadata))
    for path in piece.files:
        artifact.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
    for name, address in piece.references.items():
        artifact.add_reference(address, name=name, checksum=False)
    if used:
        # `run.use_artifact` refuses while offline; this is its internal call for an artifact that
        # is not on the server yet
        run._log_artifact(
            artifact, aliases=list(aliases), is_user_created=True, use_after_commit=True
        )
    else:
        run.log_artifact(artifact, aliases=list(aliases))
    return str(artifact.digest)


def _benchmark(results: Path, record: Mapping[Any, Any], folder: Path) -> ArtifactSpec:
    """The questions as Parquet; rows about people and very large benchmarks by count and digest
    only."""
    suite = suites.named(str(record["suite"]))
    table, order = suite.items_table, ", ".join(suite.question_keys)
    name, benchmark = names(record)["benchmark"], str(record["benchmark_id"])
    metadata = {
        "benchmark_id": benchmark,
        "suite": record["suite"],
        "licence": str(record["licence"] or ""),
    }
    questions, card = (
        folder / "artifacts" / name / file for file in ("items.parquet", "card.json")
    )
    if questions.is_file():
        return ArtifactSpec(
            name, "dataset", metadata | {"rows": pq.read_metadata(questions).num_rows}, (questions,)
        )
    if card.is_file():
        return ArtifactSpec(
            name,
            "dataset",
            metadata | {"rows": json.loads(card.read_text(encoding="utf-8"))["rows"]},
            (card,),
        )
    [count] = store.query(
        results, f"SELECT count(*) AS n FROM {table} WHERE benchmark_id = ?", [benchmark]
    )["n"]
    metadata["rows"] = int(count)
    if not suite.private and count <= MOST_ROWS:
        rows = store.arrow(
            results,
            f"SELECT * EXCLUDE (benchmark_id) FROM {table} WHERE benchmark_id = ? ORDER BY {order}",
            [benchmark],
        )
        _write(questions, rows)
        return ArtifactSpec(name, "dataset", metadata, (questions,))
    ids = store.arrow(
        results, f"SELECT item_id FROM {table} WHERE benchmark_id = ? ORDER BY {order}", [benchmark]
    )
    digest = hashlib.sha256("\n".join(map(str, ids["item_id"].to_pylist())).encode()).hexdigest()
    why = "rows about people don't leave" if suite.private else f"more than {MOST_ROWS:,} questions"
    _write_text(
        card,
        json.dumps(
            {**metadata, "sha256_of_item_ids": digest, "rows_left_out_because": why},
            indent=1,
            sort_keys=True,
        ),
    )
    return ArtifactSpec(name, "dataset", metadata, (card,))


def _model(record: Mapping[Any, Any]) -> ArtifactSpec:
    """The repository at its revision, by address; weights are never uploaded."""
    spec = without_secrets(json.loads(record["config"] or "{}").get("spec", {}))
    repo, revision = str(spec.get("repo", "")), str(record["revision"] or "")
    hub = (
        repo.count("/") == 1
        and ":" not in repo
        and record["backend"] not in ("api", "planted", "planted-people")
    )
    address = (
        f"https://huggingface.co/{repo}/tree/{revision}"
        if hub
        else f"sdgbias://{safe(repo or str(record['model']))}@{safe(revision)}"
    )
    metadata = {
        "repo": repo,
        "revision": revision,
        "fingerprint": str(record["fingerprint"] or ""),
        "backend": str(record["backend"] or ""),
        "dtype": spec.get("dtype", ""),
        "licence": spec.get("licence", ""),
        "provenance": str(record["provenance"] or ""),
    }
    return ArtifactSpec(names(record)["model"], "model", metadata, references={"weights": address})


def _scores(results: Path, record: Mapping[Any, Any], folder: Path) -> ArtifactSpec | None:
    """Scores, decoded numbers, answers and predictions of the run, one Parquet file per non-empty
    table; None if all are empty (details removed by retention).

    A republished run (after its failed prompts were retried) has other rows, hence a separate
    folder: an earlier W&B run that is still pending keeps its files.
    """
    name, run_id = names(record)["scores"], str(record["run_id"])
    edition = hashlib.sha256(str(record["finished_at"]).encode()).hexdigest()[:8]
    here = folder / "artifacts" / f"{name}.{edition}"
    counts = _counted(here)
    if counts is None:
        counts = {}
        for table, order in _SCORES.items():
            rows = store.arrow(
                results,
                f"SELECT * EXCLUDE (run_id) FROM {table} WHERE run_id = ? ORDER BY {order}",
                [run_id],
            )
            if rows.num_rows:
                _write(here / f"{table}.parquet", rows)
                counts[table] = rows.num_rows
        if not counts:
            return None
        _write_text(here / _ROWS, json.dumps(counts))
    made = tuple(here / f"{table}.parquet" for table in counts)
    return ArtifactSpec(
        name,
        "scores",
        {"run_id": run_id, "fingerprint": str(record["fingerprint"] or ""), "rows": counts},
        made,
    )


def _counted(here: Path) -> dict[str, int] | None:
    """Table -> rows of the files of a run, written after the last of them; None if the set is
    incomplete."""
    try:
        counts: dict[str, int] = json.loads((here / _ROWS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return counts if all((here / f"{table}.parquet").is_file() for table in counts) else None


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        pq.write_table(rows, draft, compression="zstd")


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
