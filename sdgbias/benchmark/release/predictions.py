"""CADE on the benchmark authors' prediction tables: read them, tune, decide, write the results.

A folder holds `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5) as
.csv or .parquet. IMG+Q and Q-only are those of T5, as in the authors' code. Rows are joined by
`index`, the item id, never by position. Tables and rows that lack a view are counted. N: rows of
the Full table; K: candidates, letters or first digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from sdgbias.benchmark.splits import authors_split
from sdgbias.errors import InputError, UsageError
from sdgbias.files import reading, refuse_other_case, understood, writable, write_json, writing
from sdgbias.methods import cade, metrics, stats
from sdgbias.methods.answers import parse_letter, parse_number, with_first_digit
from sdgbias.methods.cade import Bools, Floats, Numerics
from sdgbias.methods.search import Kind, SearchResult, SearchSettings, take, tune
from sdgbias.raw.text_tables import decimal_points, read_text, refuse
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, TOLERANCES, CadeParams, ContextTest, Task

_TEXTS = ("prediction", "answer", "split", "target", *OPTION_LETTERS)
_AGAIN = "write the table again"
#: How hyper-parameters are tuned that aren't given.
Tuning = tuple[Kind, SearchSettings]


@dataclass(frozen=True)
class Tables:
    """The four tables of one task x level. full: the path of the Full one, without its suffix.
    questions: its texts (N,) by item id. views: logits by view, (N, K) each, NaN none. present
    (N, K): the candidates that a question has. notes: counts of irregular rows. absent: names of
    the tables that aren't there."""

    full: Path
    questions: pd.DataFrame
    candidates: str
    views: dict[str, Floats]
    present: Bools
    notes: dict[str, int]
    absent: list[str]


def _read_table(folder: Path, stem: str, columns: list[str]) -> pd.DataFrame:
    """One view's table: logits as floats and _TEXTS as text ('' missing), sorted by its index, the
    item id (int64); without rows when there is no such file."""
    paths = [p for p in (folder / f"{stem}.csv", folder / f"{stem}.parquet") if p.exists()]
    if not paths:
        return pd.DataFrame(columns=[*columns, *_TEXTS], index=pd.Index([], dtype="int64"))
    if len(paths) > 1:
        raise InputError(f"{folder}: both {stem}.csv and {stem}.parquet exist; keep one of them")
    [path] = paths
    if path.suffix == ".csv":
        table = decimal_points(path, read_text(path, again=_AGAIN))
        table = table.replace(["", "nan", "NaN"], np.nan)
    else:
        with reading(path, _AGAIN):
            table = pq.read_table(path).to_pandas(ignore_metadata=True)
    refuse_other_case(path, table.columns, ("index", *_TEXTS, *columns))
    if "index" not in table or not table.columns.intersection(columns).size:
        raise InputError(
            f"{path}: no column 'index' (= item_id), or none of {columns[0]}, {columns[1]}, ...;"
            f" found: {', '.join(map(str, table.columns))}; {_AGAIN}"
        )
    ids = table["index"].astype("str").str.strip()
    # a decimal point with more digits: a float, which skips integers beyond 2^53
    whole = ids.str.fullmatch(r"[+-]?(\d{1,19}|\d{1,15}\.0*)")
    numbers = ids.where(whole, str(2**63)).str.split(".").str[0].map(int)
    refuse(path, ids[numbers.abs() >= 2**63], "an integer that can be read exactly (= item_id)")
    refuse(path, ids[numbers.duplicated()], "each item in one row")
    table = table.set_axis(pd.Index(numbers.astype("int64"), name="index"))
    given = table.reindex(columns=columns)
    logits = given.apply(pd.to_numeric, errors="coerce").astype(np.float64)
    # pandas counts times in nanoseconds, and true as one
    logits[given.select_dtypes(["datetime", "datetimetz", "timedelta", "bool"]).columns] = np.nan
    for column in columns:
        no_number = logits[column].isna() & given[column].notna() | (logits[column] == np.inf)
        for at in table.index[no_number]:
            wrong = given[column][no_number].rename(f"index {at}: {column}")
            refuse(path, wrong, "a number, or nothing where there is no logit")
    texts = table.reindex(columns=list(_TEXTS)).astype(object).fillna("").astype("str")
    texts = texts.apply(lambda column: column.str.strip())
    return pd.concat([logits, texts], axis=1).sort_index()


def _require_agreement(full: pd.DataFrame, other: pd.DataFrame, names: str) -> None:
    """Raises InputError where two tables (``names``) state different answers (numbers: to six
    digits) or splits of one question: their rows don't belong together."""
    for column in ("answer", "split"):
        one, two = full[column].str.upper().align(other[column].str.upper(), join="inner")
        x, y = (pd.to_numeric(texts, errors="coerce") for texts in (one, two))
        differs = (one != two) & (one != "") & (two != "") & ~np.isclose(x, y, 1e-6, 0)
        for at in differs.index[differs]:
            raise InputError(
                f"{names}: {column} of index {at} is {one[at]!r} in one and {two[at]!r} in the"
                " other; write both tables of the same questions"
            )


def read_tables(folder: Path, task: Task, level: ContextTest) -> Tables:
    """The four views of one task x level, joined to the rows of Full. Raises InputError."""
    candidates = OPTION_LETTERS if task is Task.MCQ else DIGITS
    columns = [f"logit_{candidate}" for candidate in candidates]
    stems = {"full": f"{task}_{level}", "ctx": f"{task}_{level}_text"}
    stems |= {"img": f"{task}_T5", "q": f"{task}_T5_text"}
    tables = {view: _read_table(folder, stem, columns) for view, stem in stems.items()}
    full = tables["full"]
    if full.empty:
        names = ", ".join(sorted(p.name for p in folder.glob("*_T*"))) or "nothing"
        raise InputError(
            f"{folder}: no rows of {stems['full']}.csv or .parquet (the Full view); found:"
            f" {names if folder.is_dir() else 'no such folder'}"
        )
    if task is Task.REGRESSION and (full["prediction"] == "").all():
        raise InputError(
            f"{folder / stems['full']}: no text in column 'prediction', whose first digit CADE"
            f" exchanges; {_AGAIN} with it"
        )
    notes = {"rows": len(full)}
    views: dict[str, Floats] = {}
    for view, table in tables.items():
        _require_agreement(full, table, f"{folder}: {stems['full']} and {stems[view]}")
        views[view] = table[columns].reindex(full.index).to_numpy(dtype=np.float64)
        notes[f"rows_without_{view}"] = int((~np.isfinite(views[view])).all(axis=1).sum())
        if view != "full":
            notes[f"{view}_rows_not_in_full"] = int((~table.index.isin(full.index)).sum())
    present: Any = np.ones((len(full), len(candidates)), dtype=bool)
    options: Any = np.ones(len(candidates), dtype=bool)  # every table needs a column of each
    if task is Task.MCQ:  # A to C, and further letters up to the last one with a logit
        present = ~np.isnan([*views.values()]).all(axis=0)
        last = int(np.flatnonzero(present.any(axis=0)).max(initial=0))
        candidates = candidates[: max(len(LETTERS), last + 1)]
        present, options = present[:, : len(candidates)], options[: len(candidates)]
        named = (full[list(candidates)] != "").to_numpy()
        if named[:, : 2 if candidates == LETTERS else None].any(axis=0).all():
            present, options = named, named.any(axis=0)
    for view, logits in views.items():
        views[view] = logits[:, : len(candidates)]
        lost = np.isnan(views[view]).all(axis=0)
        for at in np.flatnonzero(lost & options & ~lost.all()):  # all: a view that wasn't asked
            raise InputError(
                f"{folder / stems[view]}: no logit in column {columns[at]}; write the table again"
                " with it, or name the options that there are in the columns A, B, ... of the Full"
                " table"
            )
    finite = np.isfinite([*views.values()])
    masked = (present & ~finite).any(axis=2) & (present & finite).any(axis=2)
    notes["rows_with_masked_candidates"] = int(masked.any(axis=0).sum())
    split = full["split"].str.lower()
    refuse(folder / stems["full"], split[~split.isin(["", "val", "test"])], "val, test or nothing")
    notes["rows_split_by_rule"] = int((split == "").sum())
    by_rule = authors_split(task.value, full.index.to_numpy())
    questions = full[[*_TEXTS]].assign(split=split.where(split != "", by_rule))
    absent = [stems[view] for view, table in tables.items() if table.empty]
    return Tables(folder / stems["full"], questions, candidates, views, present, notes, absent)


def _parse(t: Tables, reference: bool) -> tuple[Floats, Floats, Floats]:
    """values (N, K): what each candidate answers; gold, generated (N,): the right answer and the
    model's, NaN none. A letter is its index, a digit the generated number with that first digit.
    ``reference``: by the authors' parsers."""
    answers, predicted = t.questions["answer"], t.questions["prediction"]
    if t.candidates == DIGITS:
        edited = [[with_first_digit(text, d, reference) for d in DIGITS] for text in predicted]
        generated = np.array([parse_number(text, reference) for text in predicted], dtype=float)
        gold = pd.to_numeric(answers, errors="coerce").replace([np.inf, -np.inf], np.nan)
        return np.array(edited).reshape(t.present.shape), gold.to_numpy(float), generated
    letters = np.array([*t.candidates])

    def index_of(stated: Any) -> Floats:
        """(N,) index of each letter among the options that its question has, else NaN."""
        is_stated = t.present & (np.array(stated, dtype=object)[:, None] == letters)
        return np.where(is_stated.any(axis=1), is_stated.argmax(axis=1), np.nan)

    options = ["".join(letters[row]) for row in t.present]
    read = [parse_letter(*of, reference) for of in zip(predicted, options, strict=True)]
    values = np.broadcast_to(np.arange(len(letters), dtype=float), t.present.shape)
    return values, index_of(answers.str.upper()), index_of(read)


def _search(
    t: Tables, rows: pd.DataFrame, s: cade.Streams, payoff: Floats, task: Task, tuning: Tuning
) -> SearchResult:
    """Tune CADE on the usable validation rows; `exact` cross-validates over ids. Raises
    InputError."""
    is_val = rows["split"] == "val"
    use = (is_val & rows["usable"]).to_numpy()
    if not use.any():
        unread = rows["answer"][is_val & rows["gold"].isna()].items()
        valid = f"one of {', '.join(t.candidates)}" if task is Task.MCQ else "a number"
        first = next((f" (index {at}: answer {a!r} is not {valid})" for at, a in unread), "")
        raise InputError(
            f"{t.full}: no validation row with a gold answer and an image view among {len(rows)}"
            f" rows{first}; give hyper-parameters instead: sdgbias cade apply --alpha .."
            " --lambda-kl .. --beta .. --tau .."
        )
    search, settings = tuning
    of_search: dict[str, Any] = {"search": search, "settings": settings, "folds": 5}
    return tune(take(s, use), payoff[use], task, clusters=rows.index.to_numpy()[use], **of_search)


def _measure(rows: pd.DataFrame, task: Task) -> dict[str, Any]:
    """The metrics of each split over its usable rows. rows (N,): gold; baseline, cade, generated:
    the answers; limit: tolerances; flags that are counted."""
    flags = ["kept_by_gate", "changed", "unparsed"]
    values: dict[str, tuple[Any, Any]] = {}  # metric -> kind of its mean, (N,)
    if task is Task.MCQ:
        generated = ["generated"] if (rows["prediction"] != "").any() else []
        for name in ("baseline", "cade", *generated):
            values[f"{name}_accuracy"] = stats.share, rows[name] == rows["gold"]
    else:
        flags.append("without_tolerance")
        for name in ("baseline", "cade"):
            error = metrics.absolute_error(rows["gold"].to_numpy(), rows[name].to_numpy())
            within = metrics.within_tolerance(error, rows["limit"].to_numpy()).astype(float)
            within[rows["without_tolerance"]] = np.nan
            values[f"{name}_mae"] = stats.amount, error
            values[f"{name}_interval_accuracy"] = stats.share, within
    report: dict[str, Any] = {}
    for split in ("val", "test"):
        of_split = rows["split"] == split
        use = of_split & rows["usable"]
        report[split] = {flag: int((use & rows[flag]).sum()) for flag in flags}
        report[split] |= {"n": int(use.sum()), "n_split": int(of_split.sum())}
        for name, (mean, of_rows) in values.items():
            e = mean(np.where(use, of_rows, np.nan), rows.index)
            report[split][name] = {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}
    return report


def read_params(path: Path) -> CadeParams:
    """Hyper-parameters from a JSON file: a cade_config.json or {"alpha": .., "lambda_kl": ..,
    "beta": .., "tau": ..}. Raises InputError."""
    with understood(path, "no CADE parameters", "expected JSON with alpha, lambda_kl, beta, tau"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data.get("params", data)
        params = CadeParams(**{name: float(data[name]) for name in CadeParams.__annotations__})
        if fault := fault_of(asdict(params)):
            raise ValueError(fault)
    return params


def fault_of(numbers: Mapping[str, float | None]) -> str:
    """Which option's number can't be used; '' when all can."""
    for name, value in numbers.items():
        if value is not None and not 0 <= value < np.inf:
            return f"{name.replace('_', '-')} is {value:g}; it must be a finite number, 0 or more"
    return ""


def run(
    folder: Path,
    task: Task,
    level: ContextTest,
    out: Path,
    *,
    params: CadeParams | Tuning,
    numerics: Numerics = "exact",
    tolerance: float | None = None,
) -> dict[str, Any]:
    """`sdgbias cade search|apply`: read, tune on val unless `params` are given, decide, write
    cade_predictions.csv and cade_config.json (both or neither); returns the content of the latter.

    Of numbers the baseline is the generated one, and CADE's has its first digit replaced, as in the
    authors' code, where a text without a number is 0.0. Raises UsageError, InputError (tables),
    DiskFull, StoreError.
    """
    given = asdict(params) if isinstance(params, CadeParams) else {}
    if fault := fault_of({**given, "tolerance": tolerance}):
        raise UsageError(f"--{fault}")
    t = read_tables(folder, task, level)
    with writable(out):  # before a search that takes minutes
        out.mkdir(parents=True, exist_ok=True)
    s = cade.streams(**t.views, present=t.present, form=cade.Form(numerics))
    values, gold, generated = _parse(t, numerics == "reference")
    t.notes["gold_missing_or_not_an_option"] = int(np.isnan(gold).sum())
    right = gold[:, None]
    payoff = values == right if task is Task.MCQ else -np.abs(values - right)
    payoff = np.where(np.isnan(right), np.nan, payoff)
    rows = t.questions.assign(gold=gold, generated=generated, unparsed=np.isnan(generated))
    rows["usable"] = cade.usable(s.valid, payoff)
    how: dict[str, Any] | None = None
    if not isinstance(params, CadeParams):
        result = _search(t, rows, s, payoff, task, params)
        how = {"kind": params[0], **asdict(result)}
        if task is Task.REGRESSION:
            how["objective"] = "negative MAE"
        del how["params"]
        params = result.params
    decision = cade.decide(s, params)
    for name, choice in (("baseline", s.base), ("cade", decision.choice)):
        rows[name] = np.where(choice >= 0, values[np.arange(len(rows)), choice], np.nan)
    if task is Task.REGRESSION:
        rows["baseline"] = rows["generated"].fillna(0.0)
    rows["kept_by_gate"], rows["changed"] = decision.kept, decision.choice != s.base
    rows["limit"] = rows["target"].map(TOLERANCES) if tolerance is None else tolerance
    rows["without_tolerance"] = rows["limit"].isna()
    config = {
        "task": task.value,
        "level": level.value,
        "numerics": numerics,
        "mode": "replace" if task is Task.REGRESSION else None,
        "params": asdict(params),
        "search": how,
        "metrics": {"ties": decision.ties, **_measure(rows, task)},
        "n": len(rows),
        "absent_tables": t.absent,
        "notes": t.notes,
    }
    config = json.loads(json.dumps(config), parse_constant=lambda _: None)  # NaN and infinity: null
    for name in ("baseline", "cade"):
        letters = rows[name].map(dict(enumerate(t.candidates))).fillna("")
        rows[f"{name}_pred"] = letters if task is Task.MCQ else rows[name]
    rows["baseline_conf"], rows["kl"] = s.confidence, s.divergence
    columns = ["split", "answer", "baseline_pred", "cade_pred", "baseline_conf", "kl"]
    onward = "nothing was changed there; make room or name another folder with --out"
    with writing(out / "cade_predictions.csv", onward) as table:
        rows.to_csv(table, columns=columns, lineterminator="\n")
        write_json(out / "cade_config.json", config, onward)
    return config
