"""The contents of the W&B run of a stored run: names, config, summary, history, tables, as plain
values without importing W&B."""

from __future__ import annotations

import hashlib
import json
import re
from calendar import isleap
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import __version__
from sdgbias.errors import UsageError
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import labels

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
_NUMBERS = ("value", "n", "ci_low", "ci_high")
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


def slug(text: str) -> str:
    """``text`` in lower case, anything but letters, digits and dots as a hyphen."""
    return re.sub(r"[^\w.]+|_+", "-", text.lower()).strip("-")


def wandb_id(run_id: str, night: str = "") -> str:
    """The id of a run's W&B run, derived from the night and the run id, hence stable."""
    return safe(f"{night}-{run_id}" if night else run_id)


def night_of(night: str, record: Mapping[Any, Any]) -> datetime:
    """Wall clock of a night; without one, the time when the run finished (UTC). Raises UsageError
    for an invalid night."""
    if night:
        try:
            return datetime.strptime(night[:15], "%Y-%m-%dT%H%M")
        except ValueError:
            raise UsageError(
                f"night {night!r}: no such date; a night is written like 2026-11-21T0130; sdgbias"
                " wandb log takes the newest one by itself"
            ) from None
    return record.get("finished_at") or datetime(1970, 1, 1)


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
    plain = {
        k: f"{v.isoformat()}Z" if isinstance(v, datetime) else None if v != v else v
        for k, v in record.items()
        if k != "config"
    }
    settings = json.loads(record["config"] or "{}")
    spec = settings.pop("spec", {})
    tuned = {
        f"{r['task']}/{r['test']}": {
            k: float(r[k]) for k in ("alpha", "lambda_kl", "beta", "tau") if pd.notna(r[k])
        }
        for r in params.to_dict("records")
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
    ``.../ci_high``; NaN is left out. The indicator is named if it isn't 'all' (all-52, macro)."""
    flat: dict[str, float | int] = {}
    columns = ["task", "test", "method", "pillar", "indicator", "metric", *_NUMBERS]
    whole = metrics["indicator"].str.startswith("all") | (metrics["indicator"] == "macro")
    rows = metrics.loc[whole, columns]
    for task, test, method, pillar, indicator, metric, *numbers in rows.itertuples(
        index=False, name=None
    ):
        place = [slug(str(pillar))] if pillar != "all" else []
        place += [slug(str(indicator))] if indicator != "all" else []
        name = "/".join([str(task), str(test), str(method), *place, str(metric)])
        for column, value in zip(_NUMBERS, numbers, strict=True):
            if pd.notna(value):
                key = name if column == "value" else f"{name}/{column}"
                flat[key] = int(value) if column == "n" else float(value)
    return flat


def history(metrics: pd.DataFrame) -> dict[str, float | int]:
    """Values plotted over nights: ``HISTORY`` of all pillars (suite people: of every pair of
    groups), with the names of ``summary``."""
    own = metrics[
        metrics["metric"].isin(HISTORY)
        & ((metrics["pillar"] == "all") | (metrics["metric"] == "disparity"))
    ]
    return summary(own)


def tables(
    metrics: pd.DataFrame, params: pd.DataFrame, verdicts: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Name -> rows, non-empty tables only: every number of the run, CADE's parameters and the
    verdicts of the regression check."""
    chosen = params.drop(columns=[c for c in ("model", "run_id") if c in params])
    named = {"metrics": metrics, "cade_params": chosen, "gate": verdicts}
    return {name: frame for name, frame in named.items() if len(frame)}


def gate_summary(found: pd.DataFrame) -> dict[str, float | int | str]:
    """``gate/verdict`` (the worst one) and the number of rows per verdict; empty if the regression
    check has not run."""
    if found.empty:
        return {}
    counts = {str(verdict): int(n) for verdict, n in found["verdict"].value_counts().items()}
    return {
        "gate/verdict": labels.worst(counts) or str(found["verdict"].iloc[0]),
        **{f"gate/{slug(verdict)}": n for verdict, n in sorted(counts.items())},
    }
