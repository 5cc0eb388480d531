"""The benchmark authors' prediction tables (DATA.md-style file contract): read them, run CADE on
them, write the results.

A folder holds `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5) as
.csv or .parquet. Rows are joined by `index`, never by position. Tables or rows that lack a view are
reported and counted; nothing is dropped silently.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.items import authors_split
from sdgbias.errors import DiskFull, InputError, StoreError, UsageError
from sdgbias.methods import metrics, stats
from sdgbias.methods.answers import parse_letter, parse_number, with_first_digit
from sdgbias.methods.cade import Floats, Numerics, Streams, decide, streams
from sdgbias.methods.search import Kind, SearchResult, take, tune
from sdgbias.types import DIGITS, LETTERS, TOLERANCES, CadeParams, ContextTest, Task

_LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class Tables:
    """One task x level of a model: ids (N,), split (N,), gold (N,) as written, present (N, K),
    logits per view (N, K), generated (N,) text, target (N,) and the counts of irregularities."""

    task: Task
    level: ContextTest
    frame: pd.DataFrame
    present: np.ndarray
    views: dict[str, Floats]
    notes: dict[str, int]


def parse_level(text: str) -> ContextTest:
    """'T2', 't2' or '2' -> ContextTest.T2."""
    name = text.strip().upper()
    name = name if name.startswith("T") else f"T{name}"
    if name not in ContextTest.__members__:
        raise UsageError(f"--level {text!r} is not a context test; valid: 1 to 5 or T1 to T5")
    return ContextTest(name)


def _read_table(folder: Path, stem: str, columns: list[str]) -> pd.DataFrame | None:
    """One table indexed by integer `index`; None when neither file exists."""
    paths = [p for p in (folder / f"{stem}.parquet", folder / f"{stem}.csv") if p.exists()]
    if not paths:
        return None
    if len(paths) > 1:
        raise InputError(f"{folder}: both {stem}.csv and {stem}.parquet exist; keep one of them")
    path = paths[0]
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            texts = dict.fromkeys(
                ("index", "prediction", "answer", "split", "pillar", "target", *LETTERS), str
            )
            table = pd.read_csv(
                path,
                dtype=texts,
                keep_default_na=False,
                na_values={c: ["", "nan", "NaN"] for c in columns},
            )
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise InputError(
            f"{path}: can't be read as a table ({str(error).splitlines()[0]})"
        ) from None
    if "index" not in table.columns:
        raise InputError(
            f"{path}: no column 'index' (= item_id); found: {', '.join(map(str, table.columns))}"
        )
    table["index"] = _ids(path, table["index"])
    twice = table["index"].duplicated()
    if twice.any():
        raise InputError(
            f"{path}: index {int(table['index'][twice].iloc[0])} stands in more than one row;"
            " remove duplicates"
        )
    if not any(c in table.columns for c in columns):
        raise InputError(f"{path}: no logit columns; expected {', '.join(columns)}")
    for column in columns:
        values = table[column] if column in table.columns else pd.Series(np.nan, index=table.index)
        numbers = pd.to_numeric(values, errors="coerce").astype(float)
        unread = numbers.isna() & values.notna()
        if unread.any():
            at = int(np.flatnonzero(unread)[0])
            raise InputError(
                f"{path}: index {table['index'].iloc[at]}: {column} {values.iloc[at]!r} is not a"
                " number; leave the cell empty where there is no logit, or write the table again"
            )
        table[column] = numbers
    return table.set_index("index").sort_index()


def _ids(path: Path, given: pd.Series) -> pd.Series:
    """Item ids (N,) as int64, exactly as written. Raises InputError for a value that is no integer,
    doesn't fit, or is a float beyond 2^53, where floats skip integers."""
    if pd.api.types.is_float_dtype(given.dtype):
        values = given.astype("float64")
        whole, fits = values % 1 == 0, values.abs() <= 2**53
    elif pd.api.types.is_integer_dtype(given.dtype):
        whole, fits = given.notna(), (given <= _LARGEST_ID).fillna(False)
    else:
        texts = given.astype("str").str.strip()
        whole = texts.str.fullmatch(r"[+-]?\d{1,40}(\.0*)?") & given.notna()
        given = texts.where(whole, "0").str.split(".").str[0].map(int).astype(object)
        fits = given.map(lambda number: abs(number) <= _LARGEST_ID)
        given = given.where(whole, texts)
    for bad, why in (
        (~whole.astype(bool), "is not an integer item id"),
        (~fits.astype(bool), "is an item id too large to be read exactly; write ids as integers"),
    ):
        if bad.any():
            raise InputError(f"{path}: index {given[bad].iloc[0]!r} {why}")
    return given.astype("int64")


def _require_logits(
    folder: Path, stem: str, table: pd.DataFrame, asked: np.ndarray | None, columns: list[str]
) -> None:
    """Raise InputError when a column has no logit at all though questions have that option: the
    option could then never be chosen. asked (N, K): which options have a text, in the order of the
    table's rows; None without texts, when every column is needed."""
    missing = [column for column in columns if table[column].isna().all()]
    nameless = asked is None and len(columns) == len(LETTERS)
    for at, column in enumerate(columns):
        needed = len(table) if asked is None else int(asked[:, at].sum())
        if column in missing and needed and len(missing) < len(columns):
            raise InputError(
                f"{folder / stem}: no logit in column {column}, which {needed:,} of"
                f" {len(table):,} rows need; write the table again with {', '.join(columns)}"
                f"{', or name the options in columns A, B, C' if nameless else ''}"
            )


def _text_column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns:
        return pd.Series("", index=table.index, dtype=object)
    column = table[name].astype(object)
    return column.where(column.notna(), "").map(
        lambda v: v.strip() if isinstance(v, str) else str(v)
    )


def read_tables(folder: Path, task: Task, level: ContextTest) -> Tables:
    """The four views of one task x level (reference: IMG+Q and Q-only always come from T5 and
    T5_text)."""
    candidates = LETTERS if task is Task.MCQ else DIGITS
    columns = [f"logit_{c}" for c in candidates]
    stems = {
        "full": f"{task.value}_{level.value}",
        "ctx": f"{task.value}_{level.value}_text",
        "img": f"{task.value}_T5",
        "q": f"{task.value}_T5_text",
    }
    found = {view: _read_table(folder, stem, columns) for view, stem in stems.items()}
    full = found["full"]
    if full is None:
        there = (
            ", ".join(sorted(p.name for p in folder.glob("*_T*")))
            if folder.is_dir()
            else "no such folder"
        )
        raise InputError(
            f"{folder}: no table {stems['full']}.csv or .parquet (the Full view); found:"
            f" {there or 'nothing'}"
        )
    texts = None
    if task is Task.MCQ and all(c in full.columns for c in "AB"):
        texts = np.column_stack([(_text_column(full, c) != "").to_numpy() for c in LETTERS])
    notes = {"rows": len(full)}
    views: dict[str, Floats] = {}
    for view, table in found.items():
        if table is None:
            views[view] = np.full((len(full), len(candidates)), np.nan)
        else:
            own = table.reindex(full.index)
            _require_logits(folder, stems[view], own, texts, columns)
            views[view] = own[columns].to_numpy(dtype=float)
        notes[f"rows_without_{view}"] = int((~np.isfinite(views[view]).any(axis=1)).sum())
        if table is not None and view != "full":
            notes[f"{view}_rows_not_in_full"] = int((~table.index.isin(full.index)).sum())
    if texts is not None:
        present = texts
    elif task is Task.MCQ:
        present = np.logical_or.reduce([~np.isnan(v) for v in views.values()])
    else:
        present = np.ones((len(full), len(candidates)), dtype=bool)
    partial = np.zeros(len(full), dtype=bool)
    for values in views.values():
        finite = np.isfinite(values)
        partial |= (present & ~finite).any(axis=1) & (present & finite).any(axis=1)
    notes["rows_with_masked_candidates"] = int(partial.sum())
    split = _text_column(full, "split").str.lower()
    given = split.isin(["val", "test"])
    if not (given | (split == "")).all():
        raise InputError(
            f"{folder}/{stems['full']}: split {split[~given & (split != '')].iloc[0]!r}; valid:"
            " val, test"
        )
    notes["rows_split_by_rule"] = int((~given).sum())
    by_rule = pd.Series(
        authors_split(task.value, full.index.to_numpy()), index=full.index, dtype=object
    )
    frame = pd.DataFrame(
        {
            "split": split.where(given, by_rule),
            "answer": _text_column(full, "answer"),
            "prediction": _text_column(full, "prediction"),
            "target": _text_column(full, "target"),
        }
    )
    return Tables(task, level, frame, present, views, notes)


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


def prepare(t: Tables, numerics: Numerics) -> Prepared:
    """Streams, gold answers and the payoff of each candidate."""
    s = streams(
        t.views["full"], t.views["ctx"], t.views["img"], t.views["q"], t.present, numerics=numerics
    )
    reference = numerics == "reference"
    n, k = t.present.shape
    answers = t.frame["answer"]
    if t.task is Task.MCQ:
        gold = np.array(
            [LETTERS.find(a.upper()) if len(a) == 1 else -1 for a in answers], dtype=np.int64
        )
        ok = (gold >= 0) & t.present[np.arange(n), np.maximum(gold, 0)]
        payoff = ((np.arange(k) == gold[:, None]) & ok[:, None]).astype(float)
        letters = ["".join(c for c, p in zip(LETTERS, row, strict=True) if p) for row in t.present]
        said = [
            parse_letter(text, c, reference) or ""
            for text, c in zip(t.frame["prediction"], letters, strict=True)
        ]
        nothing = np.full((n, k), np.nan)
        return Prepared(
            s,
            payoff,
            nothing,
            gold,
            np.full(n, np.nan),
            ok,
            pd.Series(said, index=t.frame.index, dtype=object),
        )
    gold_value = pd.to_numeric(answers, errors="coerce").to_numpy(dtype=float)
    ok = np.isfinite(gold_value)
    values = np.array(
        [[with_first_digit(text, d, reference) for d in DIGITS] for text in t.frame["prediction"]]
    )
    values = values.reshape(n, k)
    payoff = np.where(ok[:, None], -np.abs(values - gold_value[:, None]), 0.0)
    numbers = [parse_number(text, reference) for text in t.frame["prediction"]]
    said_number = pd.Series(
        [np.nan if x is None else x for x in numbers], index=t.frame.index, dtype=float
    )
    return Prepared(s, payoff, values, np.full(n, -1), gold_value, ok, said_number)


def search(t: Tables, p: Prepared, *, draws: int, seed: int, kind: Kind = "random") -> SearchResult:
    """Tune CADE on the validation rows that have a gold answer and an image view; `exact`
    cross-validates over ids."""
    rows = (t.frame["split"] == "val").to_numpy() & p.gold_ok & p.streams.valid.any(axis=1)
    if not rows.any():
        raise InputError(
            f"{t.task.value} {t.level.value}: no validation row with a gold answer and an image"
            f" view among {len(t.frame)} rows; give hyper-parameters instead: sdgbias cade apply"
            " --alpha .. --lambda-kl .. --beta .. --tau .."
        )
    ids = t.frame.index.to_numpy()[rows]
    return tune(
        take(p.streams, rows),
        p.payoff[rows],
        t.task,
        search=kind,
        draws=draws,
        seed=seed,
        clusters=ids,
        folds=5,
    )


def _summary(hits: np.ndarray, ids: np.ndarray) -> dict[str, float | int]:
    e = stats.share(hits, ids)
    return {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}


def _mean_summary(values: np.ndarray, ids: np.ndarray) -> dict[str, float | int]:
    e = stats.amount(values, ids)
    return {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}


def apply(
    t: Tables, p: Prepared, params: CadeParams, tolerance: float | None
) -> tuple[pd.DataFrame, dict[str, object]]:
    """(cade_predictions rows, metrics by split). Regression answers are the generated number with
    CADE's first digit (`mode=replace`; tables can't be decoded further). A generated text without a
    number counts as 0.0, as in the reference, and is counted as `unparsed`."""
    decision = decide(p.streams, params)
    ids = t.frame.index.to_numpy()
    rows = np.arange(len(ids))
    out: dict[str, object] = {}
    if t.task is Task.MCQ:
        names = np.array([*LETTERS, ""], dtype=object)  # index -1 -> ''
        baseline, chosen = names[p.streams.base], names[decision.choice]
        base_hit = metrics.correct(p.gold_index, p.streams.base)
        cade_hit = metrics.correct(p.gold_index, decision.choice)
        said_hit = p.generated.to_numpy() == t.frame["answer"].str.upper().to_numpy()
    else:
        baseline = p.generated.fillna(0.0).to_numpy()
        chosen = np.where(
            decision.choice >= 0, p.values[rows, np.maximum(decision.choice, 0)], np.nan
        )
        limits = t.frame["target"].map(TOLERANCES).to_numpy(dtype=np.float64)
        limit = np.asarray(
            limits if tolerance is None else np.full(len(ids), tolerance), dtype=np.float64
        )
    for split in ("val", "test"):
        use = (t.frame["split"] == split).to_numpy() & p.gold_ok & p.streams.valid.any(axis=1)
        if t.task is Task.MCQ:
            m: dict[str, object] = {
                "baseline_accuracy": _summary(base_hit[use], ids[use]),
                "cade_accuracy": _summary(cade_hit[use], ids[use]),
                "generated_accuracy": _summary(said_hit[use], ids[use]),
            }
            unparsed = (p.generated == "").to_numpy()
        else:
            base_error = metrics.absolute_error(
                p.gold_value, np.asarray(baseline, dtype=np.float64)
            )
            cade_error = metrics.absolute_error(p.gold_value, np.asarray(chosen, dtype=np.float64))
            m = {
                "baseline_mae": _mean_summary(base_error[use], ids[use]),
                "cade_mae": _mean_summary(cade_error[use], ids[use]),
            }
            known = use & np.isfinite(limit)
            if known.any():
                m["baseline_interval_accuracy"] = _summary(
                    metrics.within_tolerance(base_error, limit)[known], ids[known]
                )
                m["cade_interval_accuracy"] = _summary(
                    metrics.within_tolerance(cade_error, limit)[known], ids[known]
                )
            m["without_tolerance"] = int((use & ~known).sum())
            unparsed = p.generated.isna().to_numpy()
        m["n"] = int(use.sum())
        m["n_split"] = int((t.frame["split"] == split).sum())
        m["kept_by_gate"] = int((decision.kept & use).sum())
        m["changed"] = int(((decision.choice != p.streams.base) & use).sum())
        m["unparsed"] = int((unparsed & use).sum())
        out[split] = m
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
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data.get("params", data)
        params = CadeParams(
            **{name: float(data[name]) for name in ("alpha", "lambda_kl", "beta", "tau")}
        )
        if why := not_usable(params):
            raise ValueError(why)
        return params
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: no CADE parameters ({error}); expected JSON with alpha, lambda_kl, beta, tau"
        ) from None


def not_usable(params: CadeParams) -> str:
    """Why these hyper-parameters can't be applied; '' when they can."""
    for name, value in asdict(params).items():
        if not (np.isfinite(value) and value >= 0):
            return f"{name.replace('_', '-')} is {value:g}; it must be a finite number, 0 or more"
    return ""


def check_out(out: Path) -> None:
    """Raise UsageError when results can't be written to `out` because it, or a folder above it, is
    a file."""
    for place in (out, *out.parents):
        if place.exists():
            if not place.is_dir():
                raise UsageError(f"--out {out}: {place} is a file; name a folder")
            return


def write_results(out: Path, predictions: pd.DataFrame, config: Mapping[str, object]) -> None:
    """cade_predictions.csv and cade_config.json (finite numbers or null): both are written to
    temporary files before either is renamed. Raises DiskFull, StoreError; then nothing has
    changed."""
    texts = {
        "cade_predictions.csv": predictions.to_csv(index=False, lineterminator="\n"),
        "cade_config.json": (
            json.dumps(_finite(config), indent=2, sort_keys=True, allow_nan=False) + "\n"
        ),
    }
    parts = {name: out / f".{name}.part" for name in texts}
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            parts[name].write_text(text, encoding="utf-8")
        for name, part in parts.items():
            part.replace(out / name)
    except OSError as error:
        with suppress(OSError):
            for part in parts.values():
                part.unlink(missing_ok=True)
            if made:
                out.rmdir()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise (DiskFull if full else StoreError)(
            f"{out}: can't be written ({error.strerror or error}); nothing was changed there;"
            f" {'make room, then the same command again' if full else 'name a folder with --out'}"
        ) from None


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
    return [
        f"{notes[name]:,} of {notes['rows']:,} rows {what}"
        for name, what in _RESERVATIONS.items()
        if notes[name]
    ]


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
    params: CadeParams | None,
    numerics: Numerics = "exact",
    draws: int = 10_000,
    seed: int = 0,
    tolerance: float | None = None,
    kind: Kind = "random",
) -> dict[str, object]:
    """`sdgbias cade search|apply`: read, tune on val unless `params` are given, decide, write both
    files; returns the config."""
    check_out(out)
    if tolerance is not None and not (np.isfinite(tolerance) and tolerance >= 0):
        raise UsageError(f"--tolerance is {tolerance:g}; it must be a finite number, 0 or more")
    tables = read_tables(folder, task, level)
    prepared = prepare(tables, numerics)
    found = None
    if params is None:
        found = search(tables, prepared, draws=draws, seed=seed, kind=kind)
        params = found.params
    predictions, measured = apply(tables, prepared, params, tolerance)
    config: dict[str, object] = {
        "task": task.value,
        "level": level.value,
        "numerics": numerics,
        "mode": "replace" if task is Task.REGRESSION else None,
        "params": asdict(params),
        "search": (
            None
            if found is None
            else {"kind": kind, **{k: v for k, v in asdict(found).items() if k != "params"}}
        ),
        "metrics": measured,
        "n": tables.notes["rows"],
        "notes": {**tables.notes, "gold_missing_or_not_an_option": int((~prepared.gold_ok).sum())},
    }
    write_results(out, predictions, config)
    return config
