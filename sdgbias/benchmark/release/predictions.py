"""CADE on the benchmark authors' prediction tables (prediction_tables.py): prepare them, tune and
apply CADE, write the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from sdgbias.benchmark.release.prediction_tables import PredictionTables, read_tables
from sdgbias.errors import InputError, StoreError, UsageError
from sdgbias.files import understood, writing
from sdgbias.methods import metrics, stats
from sdgbias.methods.answers import parse_letter, parse_number, with_first_digit
from sdgbias.methods.cade import Floats, Form, Numerics, Streams, decide, streams
from sdgbias.methods.search import Kind, SearchResult, SearchSettings, take, tune
from sdgbias.types import DIGITS, TOLERANCES, CadeParams, ContextTest, Task


@dataclass(frozen=True)
class Prepared:
    """Tables as arrays: streams; payoff (N, K) for the search (0 without a gold answer); values (N,
    K) number if a digit is chosen (regression); gold_ok (N,); generated (N,) the model's answer,
    NaN/'' where it can't be parsed."""

    streams: Streams
    payoff: Floats
    values: Floats
    gold_index: np.ndarray
    gold_value: Floats
    gold_ok: np.ndarray
    generated: pd.Series


def prepare(t: PredictionTables, numerics: Numerics) -> Prepared:
    """Streams, gold answers and the payoff of each candidate."""
    full, ctx, img, q = (t.views[view] for view in ("full", "ctx", "img", "q"))
    s = streams(full, ctx, img, q, t.present, Form(numerics))
    reference = numerics == "reference"
    n, k = t.present.shape
    answers, texts = t.frame["answer"], t.frame["prediction"]
    if t.task is Task.MCQ:
        gold = np.array(
            [t.candidates.find(a.upper()) if len(a) == 1 else -1 for a in answers], dtype=np.int64
        )
        ok = (gold >= 0) & t.present[np.arange(n), np.maximum(gold, 0)]
        payoff = ((np.arange(k) == gold[:, None]) & ok[:, None]).astype(float)
        stated: list[Any] = []
        for text, row in zip(texts, t.present, strict=True):
            letters = "".join(
                c for c, is_present in zip(t.candidates, row, strict=True) if is_present
            )
            stated.append(parse_letter(text, letters, reference) or "")
        generated = pd.Series(stated, index=t.frame.index, dtype=object)
        unknown = np.full((n, k), np.nan)
        return Prepared(s, payoff, unknown, gold, unknown[:, 0], ok, generated)
    gold_value = pd.to_numeric(answers, errors="coerce").to_numpy(dtype=float)
    ok = np.isfinite(gold_value)
    values = np.array([[with_first_digit(text, d, reference) for d in DIGITS] for text in texts])
    values = values.reshape(n, k)
    payoff = np.where(ok[:, None], -np.abs(values - gold_value[:, None]), 0.0)
    stated = [parse_number(text, reference) for text in texts]
    generated = pd.Series(stated, index=t.frame.index, dtype=float)
    return Prepared(s, payoff, values, np.full(n, -1), gold_value, ok, generated)


#: What regression is tuned on: the paper's pooled MAE, or the error in units of each target's
#: tolerance.
Objective = Literal["mae", "tolerance"]
_OBJECTIVES = {"mae": "negative MAE", "tolerance": "negative error in tolerances"}


@dataclass(frozen=True)
class Tuning:
    """How hyper-parameters are tuned that aren't given. objective: of regression."""

    kind: Kind = "random"
    draws: int = 10_000
    seed: int = 0
    objective: Objective = "mae"


def limits_of(t: PredictionTables, tolerance: float | None) -> Floats:
    """(N,) tolerance of each row: ``tolerance`` for all, else its target's (Table F), NaN without
    one."""
    if tolerance is not None:
        return np.full(len(t.frame), tolerance, dtype=np.float64)
    return np.asarray(t.frame["target"].map(TOLERANCES), dtype=np.float64)


def search(
    t: PredictionTables, p: Prepared, tuning: Tuning, tolerance: float | None = None
) -> SearchResult:
    """Tune CADE on the validation rows that have a gold answer and an image view; `exact`
    cross-validates over ids. Objective `tolerance`: regression rows count by their error over their
    tolerance, those without one not at all."""
    rows = (t.frame["split"] == "val").to_numpy() & p.gold_ok & p.streams.valid.any(axis=1)
    payoff = p.payoff
    if tuning.objective == "tolerance":
        if t.task is not Task.REGRESSION:
            raise UsageError("--objective tolerance is for --task regression")
        limit = limits_of(t, tolerance)
        has_limit = limit > 0
        if not has_limit.any():
            raise InputError(
                f"{t.task.value} {t.level.value}: no row's target has a tolerance (known:"
                f" {', '.join(TOLERANCES)}); give one for all: --tolerance NUMBER"
            )
        rows, payoff = rows & has_limit, payoff / np.where(has_limit, limit, 1.0)[:, None]
    if not rows.any():
        unread = t.frame["answer"][(t.frame["split"] == "val").to_numpy() & ~p.gold_ok]
        valid = f"one of {', '.join(t.candidates)}" if t.task is Task.MCQ else "a number"
        first = ""
        if len(unread):
            first = f" (index {unread.index[0]}: answer {unread.iloc[0]!r} is not {valid})"
        raise InputError(
            f"{t.task.value} {t.level.value}: no validation row with a gold answer and an image"
            f" view among {len(t.frame)} rows{first}; give hyper-parameters instead: sdgbias cade"
            " apply --alpha .. --lambda-kl .. --beta .. --tau .."
        )
    ids = t.frame.index.to_numpy()[rows]
    return tune(
        take(p.streams, rows),
        payoff[rows],
        t.task,
        search=tuning.kind,
        settings=SearchSettings(tuning.draws, tuning.seed),
        clusters=ids,
        folds=5,
    )


def _summary(e: stats.Estimate) -> dict[str, float | int]:
    return {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}


def apply(
    t: PredictionTables, p: Prepared, params: CadeParams, tolerance: float | None
) -> tuple[pd.DataFrame, dict[str, object]]:
    """(cade_predictions rows, metrics by split). Regression answers are the generated number with
    CADE's first digit (`mode=replace`; tables can't be decoded further). A generated text without a
    number counts as 0.0, as in the reference, and is counted as `unparsed`."""
    decision = decide(p.streams, params)
    ids = t.frame.index.to_numpy()
    rows = np.arange(len(ids))
    out: dict[str, object] = {}
    if t.task is Task.MCQ:
        names = np.array([*t.candidates, ""], dtype=object)  # index -1 -> ''
        baseline, chosen = names[p.streams.base], names[decision.choice]
        unparsed = (p.generated == "").to_numpy()
        hits = {
            "baseline": metrics.correct(p.gold_index, p.streams.base),
            "cade": metrics.correct(p.gold_index, decision.choice),
            "generated": p.generated.to_numpy() == t.frame["answer"].str.upper().to_numpy(),
        }
    else:
        unparsed = p.generated.isna().to_numpy()
        baseline = p.generated.fillna(0.0).to_numpy(dtype=np.float64)
        kept = p.values[rows, np.maximum(decision.choice, 0)]
        chosen = np.where(decision.choice >= 0, kept, np.nan)
        limit = limits_of(t, tolerance)
        errors = {
            "baseline": metrics.absolute_error(p.gold_value, baseline),
            "cade": metrics.absolute_error(p.gold_value, chosen),
        }
    for split in ("val", "test"):
        of_split = (t.frame["split"] == split).to_numpy()
        use = of_split & p.gold_ok & p.streams.valid.any(axis=1)
        m: dict[str, object] = {}
        if t.task is Task.MCQ:
            for name, hit in hits.items():
                m[f"{name}_accuracy"] = _summary(stats.share(hit[use], ids[use]))
        else:
            measurable = use & np.isfinite(limit)
            for name, error in errors.items():
                m[f"{name}_mae"] = _summary(stats.amount(error[use], ids[use]))
                if measurable.any():
                    within = metrics.within_tolerance(error, limit)[measurable]
                    m[f"{name}_interval_accuracy"] = _summary(stats.share(within, ids[measurable]))
            m["without_tolerance"] = int((use & ~measurable).sum())
        out[split] = m | {
            "n": int(use.sum()),
            "n_split": int(of_split.sum()),
            "kept_by_gate": int((decision.kept & use).sum()),
            "changed": int(((decision.choice != p.streams.base) & use).sum()),
            "unparsed": int((unparsed & use).sum()),
        }
    out["ties"] = decision.ties
    predictions = pd.DataFrame(
        {
            "index": ids,
            "split": t.frame["split"].to_numpy(),
            "answer": t.frame["answer"].to_numpy(),
            "baseline_pred": baseline,
            "cade_pred": chosen,
            "baseline_conf": p.streams.confidence,
            "kl": p.streams.divergence,
        }
    )
    return predictions, out


def read_params(path: Path) -> CadeParams:
    """Hyper-parameters from a JSON file: a cade_config.json or {"alpha": .., "lambda_kl": ..,
    "beta": .., "tau": ..}."""
    with understood(path, "no CADE parameters", "expected JSON with alpha, lambda_kl, beta, tau"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data.get("params", data)
        params = CadeParams(
            **{name: float(data[name]) for name in ("alpha", "lambda_kl", "beta", "tau")}
        )
        if why := not_usable(params):
            raise ValueError(why)
    return params


def not_usable(params: CadeParams) -> str:
    """Why these hyper-parameters can't be applied; '' when they can."""
    for name, value in asdict(params).items():
        if not (np.isfinite(value) and value >= 0):
            return f"{name.replace('_', '-')} is {value:g}; it must be a finite number, 0 or more"
    return ""


def check_out(out: Path) -> None:
    """Raise UsageError when results can't be written to `out` because it, or a folder above it, is
    a file."""
    existing = next(place for place in (out, *out.parents) if place.exists())
    if not existing.is_dir():
        raise UsageError(f"--out {out}: {existing} is a file; name a folder")


def write_results(out: Path, predictions: pd.DataFrame, config: Mapping[str, object]) -> None:
    """cade_predictions.csv and cade_config.json (finite numbers or null): both are written to
    temporary files before either is renamed. Raises DiskFull, StoreError; then nothing has
    changed."""
    text = json.dumps(_finite(config), indent=2, sort_keys=True, allow_nan=False) + "\n"
    onward = "nothing was changed there; make room or name another folder with --out"
    is_new = not out.exists()
    try:
        with (
            writing(out / "cade_predictions.csv", onward) as table,
            writing(out / "cade_config.json", onward) as settings,
        ):
            predictions.to_csv(table, index=False, lineterminator="\n")
            settings.write_text(text, encoding="utf-8")
    except StoreError:
        if is_new:
            with suppress(OSError):
                out.rmdir()
        raise


_RESERVATIONS = {
    "gold_missing_or_not_an_option": "have no gold answer among their options: in no metric",
    "rows_with_masked_candidates": "lack the logit of an option in some view: it can't be chosen",
    "rows_without_full": "have no Full view",
    "rows_without_ctx": "have no CTX+Q view",
    "rows_without_img": "have no IMG+Q view",
    "rows_without_q": "have no Q-only view",
}


def reservations(config: Mapping[str, Any]) -> list[str]:
    """Caveats about the rows behind the metrics, one line each."""
    notes = config["notes"]
    absent = (
        f"no table {s}.csv or .parquet: that view is left out" for s in config["absent_tables"]
    )
    counted = (
        f"{notes[name]:,} of {notes['rows']:,} rows {what}"
        for name, what in _RESERVATIONS.items()
        if notes[name]
    )
    return [*absent, *counted]


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def run(
    folder: Path,
    task: Task,
    level: ContextTest,
    out: Path,
    *,
    params: CadeParams | Tuning,
    numerics: Numerics = "exact",
    tolerance: float | None = None,
) -> dict[str, object]:
    """`sdgbias cade search|apply`: read, tune on val unless `params` are given, decide, write both
    files; returns the config."""
    check_out(out)
    if tolerance is not None and not (np.isfinite(tolerance) and tolerance >= 0):
        raise UsageError(f"--tolerance is {tolerance:g}; it must be a finite number, 0 or more")
    tables = read_tables(folder, task, level)
    prepared = prepare(tables, numerics)
    how: dict[str, object] | None = None
    if isinstance(params, Tuning):
        tuned = search(tables, prepared, params, tolerance)
        how = {"kind": params.kind, **asdict(tuned)}
        if task is Task.REGRESSION:
            how["objective"] = _OBJECTIVES[params.objective]
        del how["params"]
        params = tuned.params
    predictions, measured = apply(tables, prepared, params, tolerance)
    config: dict[str, object] = {
        "task": task.value,
        "level": level.value,
        "numerics": numerics,
        "mode": "replace" if task is Task.REGRESSION else None,
        "params": asdict(params),
        "search": how,
        "metrics": measured,
        "n": tables.notes["rows"],
        "absent_tables": list(tables.absent),
        "notes": {**tables.notes, "gold_missing_or_not_an_option": int((~prepared.gold_ok).sum())},
    }
    write_results(out, predictions, config)
    return config
