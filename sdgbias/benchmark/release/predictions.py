"""CADE on the benchmark authors' prediction tables: read them, tune, decide, write the results.

A folder holds `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5) as
.csv or .parquet. IMG+Q and Q-only are those of T5, as in the authors' code. Rows are joined by
`index`, the item id, never by position. Tables and rows that lack a view are counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from sdgbias.benchmark.splits import authors_split
from sdgbias.errors import InputError, UsageError
from sdgbias.files import reading, refuse_other_case, understood, writable, writing
from sdgbias.methods import cade, metrics, stats
from sdgbias.methods.answers import parse_letter, parse_number, with_first_digit
from sdgbias.methods.cade import Bools, Floats, Numerics
from sdgbias.methods.search import Kind, SearchResult, SearchSettings, take, tune
from sdgbias.raw.text_tables import read_text
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, TOLERANCES, CadeParams, ContextTest, Task

_STEMS = {"full": "{task}_{level}", "ctx": "{task}_{level}_text"}
_STEMS |= {"img": "{task}_T5", "q": "{task}_T5_text"}
_TEXTS = ("prediction", "answer", "split", "target", *OPTION_LETTERS)
_AGAIN = "write the table again"
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


@dataclass(frozen=True)
class Questions:
    """One task x level of a model, N questions with up to K candidates.

    texts: split, answer, prediction and target, indexed by item id (N,). values (N, K): what each
    candidate answers, and gold, generated (N,): the right answer and the model's, NaN none; a
    letter is its index, a digit the generated number with that first digit. payoff (N, K): what
    choosing a candidate earns, NaN without a gold answer. notes: counts of irregular rows. absent:
    names of the tables that aren't there.
    """

    task: Task
    level: ContextTest
    candidates: str
    texts: pd.DataFrame
    streams: cade.Streams
    values: Floats
    gold: Floats
    generated: Floats
    payoff: Floats
    notes: dict[str, int]
    absent: tuple[str, ...]

    def tolerances(self, one: float | None) -> Floats:
        """(N,) ``one`` for all rows, else that of each row's target (Table F), NaN without one."""
        given = self.texts["target"].map(TOLERANCES).to_numpy(dtype=np.float64)
        return np.asarray(given if one is None else np.full(len(given), one), dtype=np.float64)


def _read_table(folder: Path, stem: str, columns: list[str]) -> pd.DataFrame | None:
    """One view's table: logits as floats and _TEXTS as text ('' missing), sorted by its index, the
    item id (int64); None when there is no such file."""
    paths = [p for p in (folder / f"{stem}.csv", folder / f"{stem}.parquet") if p.exists()]
    if not paths:
        return None
    if len(paths) > 1:
        raise InputError(f"{folder}: both {stem}.csv and {stem}.parquet exist; keep one of them")
    [path] = paths
    if path.suffix == ".csv":
        table = read_text(path, again=_AGAIN).replace(["", "nan", "NaN"], np.nan)
    else:
        with reading(path, _AGAIN):
            table = pq.read_table(path).to_pandas(ignore_metadata=True)
    refuse_other_case(path, table.columns, ("index", *_TEXTS, *columns))
    if "index" not in table.columns:
        names = ", ".join(map(str, table.columns))
        raise InputError(f"{path}: no column 'index' (= item_id); found: {names}")
    if not table.columns.intersection(columns).size:
        raise InputError(f"{path}: no logit columns; expected {columns[0]}, {columns[1]}, ...")
    ids = pd.Index(_item_ids(path, table["index"]), name="index")
    if (twice := ids.duplicated()).any():
        raise InputError(f"{path}: index {ids[twice][0]} stands in more than one row; keep one")
    given = table.reindex(columns=columns)
    # spreadsheets of many languages export decimal commas
    numbers = given.replace(",", ".", regex=True).apply(pd.to_numeric, errors="coerce")
    numbers = numbers.astype(np.float64)
    for row, at in np.argwhere(((numbers.isna() & given.notna()) | (numbers == np.inf)).to_numpy()):
        raise InputError(
            f"{path}: index {ids[row]}: {columns[at]} {str(given.iat[row, at])!r} is not a number;"
            f" leave the cell empty where there is no logit, or {_AGAIN}"
        )
    texts = table.reindex(columns=list(_TEXTS)).astype(object).fillna("").astype("str")
    texts = texts.apply(lambda column: column.str.strip())
    return pd.concat([numbers, texts], axis=1).set_axis(ids).sort_index()


def _item_ids(path: Path, given: pd.Series) -> pd.Series:
    """Item ids (N,) as int64, exactly as written. Raises InputError for a value that is no integer
    of 64 bits, or has a decimal point beyond 2^53, where floats skip integers."""
    texts = given.astype("str").str.strip()
    parts = texts.str.extract(r"^([+-]?\d{1,19})(\.0*)?$")
    numbers = parts[0].fillna(2**63).map(int)
    bad = numbers.abs() > np.where(parts[1].isna(), 2**63 - 1, 2**53)
    if bad.any():
        raise InputError(
            f"{path}: index {texts[bad].iloc[0]!r} is not an integer item id that can be read"
            " exactly; write ids as integers"
        )
    return numbers.astype(np.int64)


def _require_agreement(folder: Path, stems: Mapping[str, str], tables: Mapping[str, Any]) -> None:
    """Raises InputError where two tables state different answers (numbers: to six digits) or splits
    of one question: their rows don't belong together."""
    full = tables["full"]
    for view, table in tables.items():
        both = full.index.intersection(table.index if table is not None else [])
        for name in ("answer", "split") if len(both) else ():
            one, two = (t.loc[both, name].str.upper() for t in (full, table))
            x, y = (pd.to_numeric(texts, errors="coerce") for texts in (one, two))
            differs = (one != two) & (one != "") & (two != "") & ~np.isclose(x, y, 1e-6, 0)
            if differs.any():
                at = both[differs.to_numpy()][0]
                raise InputError(
                    f"{folder}: index {at}: {name} is {one.loc[at]!r} in {stems['full']} and"
                    f" {two.loc[at]!r} in {stems[view]}; write both tables of the same questions"
                )


def _require_logits(table: Path, logits: Floats, needed: Bools, columns: list[str]) -> None:
    """Raises InputError when a column of ``logits`` (N, K) is empty though questions have that
    option: it could never be chosen. A view without any logit is one that was not asked."""
    empty = np.isnan(logits).all(axis=0)
    for at in np.flatnonzero(empty & needed.any(axis=0) & ~empty.all()):
        raise InputError(
            f"{table}: no logit in column {columns[at]}, which {needed[:, at].sum():,} of"
            f" {len(needed):,} rows need; write the table again with {', '.join(columns)}, or name"
            " the options that there are in the columns A, B, ... of the Full table"
        )


def read_questions(
    folder: Path, task: Task, level: ContextTest, numerics: Numerics = "exact"
) -> Questions:
    """The four views of one task x level, joined to the rows of Full. Raises InputError."""
    candidates = OPTION_LETTERS if task is Task.MCQ else DIGITS
    stems = {view: name.format(task=task, level=level) for view, name in _STEMS.items()}
    logit_columns = [f"logit_{c}" for c in candidates]
    tables = {view: _read_table(folder, stem, logit_columns) for view, stem in stems.items()}
    full = tables["full"]
    if full is None:
        names = ", ".join(sorted(p.name for p in folder.glob("*_T*"))) or "nothing"
        raise InputError(
            f"{folder}: no table {stems['full']}.csv or .parquet (the Full view); found:"
            f" {names if folder.is_dir() else 'no such folder'}"
        )
    _require_agreement(folder, stems, tables)
    notes = {"rows": len(full)}
    views: dict[str, Floats] = {}
    for view, table in tables.items():
        rows = full.iloc[:0] if table is None else table
        views[view] = rows[logit_columns].reindex(full.index).to_numpy(dtype=np.float64)
        notes[f"rows_without_{view}"] = int((~np.isfinite(views[view])).all(axis=1).sum())
        if table is not None and view != "full":
            notes[f"{view}_rows_not_in_full"] = int((~table.index.isin(full.index)).sum())
    needed = present = np.ones((len(full), len(candidates)), dtype=bool)
    if task is Task.MCQ:  # A to C, and further letters up to the last one with a logit
        some = np.any([np.isfinite(z).any(axis=0) for z in views.values()], axis=0)
        candidates = candidates[: max(len(LETTERS), int(np.flatnonzero(some).max(initial=0)) + 1)]
        views = {view: z[:, : len(candidates)] for view, z in views.items()}
        named = (full[list(candidates)] != "").to_numpy()
        has_names = named[:, : 2 if candidates == LETTERS else None].any(axis=0).all()
        present = named if has_names else np.any([~np.isnan(z) for z in views.values()], axis=0)
        needed = named if has_names else np.ones_like(present)
    for view, z in views.items():
        _require_logits(folder / stems[view], z, needed, logit_columns[: len(candidates)])
    finite = np.isfinite([*views.values()])
    masked = (present & ~finite).any(axis=2) & (present & finite).any(axis=2)
    notes["rows_with_masked_candidates"] = int(masked.any(axis=0).sum())
    split = full["split"].str.lower()
    by_rule = split == ""
    if not (by_rule | split.isin(["val", "test"])).all():
        wrong = split[~by_rule & ~split.isin(["val", "test"])].iloc[0]
        raise InputError(f"{folder / stems['full']}: split {wrong!r}; valid: val, test")
    notes["rows_split_by_rule"] = int(by_rule.sum())
    by_id = authors_split(task.value, full.index.to_numpy())
    texts = full[["answer", "prediction", "target"]].assign(split=np.where(by_rule, by_id, split))
    absent = tuple(stems[view] for view, table in tables.items() if table is None)
    s = cade.streams(**views, present=present, form=cade.Form(numerics))
    values, gold, generated = _answers(texts, candidates, present, numerics == "reference")
    right = gold[:, None]
    payoff = values == right if task is Task.MCQ else -np.abs(values - right)
    payoff = np.where(np.isnan(right), np.nan, payoff)
    notes["gold_missing_or_not_an_option"] = int(np.isnan(gold).sum())
    read = (texts, s, values, gold, generated, payoff)
    return Questions(task, level, candidates, *read, notes, absent)


def _answers(
    texts: pd.DataFrame, candidates: str, present: Bools, reference: bool
) -> tuple[Floats, Floats, Floats]:
    """values, gold and generated of Questions. ``reference``: the authors' parsers."""
    answers, predicted = texts["answer"], texts["prediction"]
    if candidates == DIGITS:
        numbers = [[with_first_digit(text, d, reference) for d in DIGITS] for text in predicted]
        stated = np.array([parse_number(text, reference) for text in predicted], dtype=np.float64)
        right = pd.to_numeric(answers, errors="coerce").replace([np.inf, -np.inf], np.nan)
        return np.array(numbers).reshape(present.shape), right.to_numpy(np.float64), stated
    index = {letter: at for at, letter in enumerate(candidates)}
    options = ["".join(np.array([*candidates])[row]) for row in present]
    letters = [parse_letter(*of, reference) for of in zip(predicted, options, strict=True)]
    golds = [a if a in of else "" for a, of in zip(answers.str.upper(), options, strict=True)]
    gold, stated = (
        np.array([index.get(str(letter), np.nan) for letter in of]) for of in (golds, letters)
    )
    return np.broadcast_to(np.arange(len(index), dtype=np.float64), present.shape), gold, stated


def search(q: Questions, tuning: Tuning, tolerance: float | None = None) -> SearchResult:
    """Tune CADE on the validation rows that have a gold answer and an image view; `exact`
    cross-validates over ids. Objective `tolerance`: regression rows count by their error over their
    tolerance, those without one not at all. Raises UsageError, InputError."""
    name, payoff = f"{q.task} {q.level}", q.payoff
    if tuning.objective == "tolerance":
        if q.task is not Task.REGRESSION:
            raise UsageError("--objective tolerance is for --task regression")
        limit = q.tolerances(tolerance)
        if not (limit > 0).any():
            raise InputError(
                f"{name}: no row's target has a tolerance (known: {', '.join(TOLERANCES)}); give"
                " one for all: --tolerance NUMBER"
            )
        payoff = payoff / np.where(limit > 0, limit, np.nan)[:, None]
    is_val = (q.texts["split"] == "val").to_numpy()
    rows = is_val & cade.usable(q.streams.valid, payoff)
    if not rows.any():
        unread = q.texts["answer"][is_val & np.isnan(q.gold)].items()
        valid = f"one of {', '.join(q.candidates)}" if q.task is Task.MCQ else "a number"
        first = next((f" (index {at}: answer {a!r} is not {valid})" for at, a in unread), "")
        raise InputError(
            f"{name}: no validation row with a gold answer and an image view among"
            f" {len(q.texts)} rows{first}; give hyper-parameters instead: sdgbias cade apply"
            " --alpha .. --lambda-kl .. --beta .. --tau .."
        )
    settings = SearchSettings(tuning.draws, tuning.seed)
    of_search: dict[str, Any] = {"search": tuning.kind, "settings": settings, "folds": 5}
    ids = q.texts.index.to_numpy()[rows]
    return tune(take(q.streams, rows), payoff[rows], q.task, clusters=ids, **of_search)


def _decided(q: Questions, decision: cade.Decision) -> dict[str, Floats]:
    """(N,) what the Full view, CADE and, of letters, the generated text answer, as in
    Questions.values. Of numbers Full's answer is the generated one, and CADE's has its first digit
    replaced, as in the authors' code, where a text without a number is 0.0."""
    rows = np.arange(len(q.gold))
    baseline, chosen = (
        np.where(choice >= 0, q.values[rows, choice], np.nan)
        for choice in (q.streams.base, decision.choice)
    )
    if q.task is Task.MCQ:
        return {"baseline": baseline, "cade": chosen, "generated": q.generated}
    return {"baseline": np.nan_to_num(q.generated), "cade": chosen}


def _measure(
    q: Questions, decision: cade.Decision, answers: Mapping[str, Floats], limit: Floats
) -> dict[str, Any]:
    """The metrics of each split, over the rows with a gold answer and a view of the picture."""
    values: dict[str, tuple[Any, np.ndarray]] = {}  # metric -> kind of its mean, (N,)
    counted = {"kept_by_gate": decision.kept, "changed": decision.choice != q.streams.base}
    counted["unparsed"] = np.isnan(q.generated)
    for name, answer in answers.items():
        if q.task is Task.MCQ:
            values[f"{name}_accuracy"] = stats.share, answer == q.gold
        else:
            counted["without_tolerance"] = np.isnan(limit)
            error = metrics.absolute_error(q.gold, answer)
            within = np.where(np.isnan(limit), np.nan, metrics.within_tolerance(error, limit))
            values[f"{name}_mae"] = stats.amount, error
            values[f"{name}_interval_accuracy"] = stats.share, within
    report: dict[str, Any] = {"ties": decision.ties}
    for split in ("val", "test"):
        of_split = (q.texts["split"] == split).to_numpy()
        use = of_split & cade.usable(q.streams.valid, q.payoff)
        report[split] = {name: int((use & rows).sum()) for name, rows in counted.items()}
        report[split] |= {"n": int(use.sum()), "n_split": int(of_split.sum())}
        for name, (mean, of_rows) in values.items():
            e = mean(np.where(use, of_rows, np.nan), q.texts.index)
            report[split][name] = {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}
    return report


def read_params(path: Path) -> CadeParams:
    """Hyper-parameters from a JSON file: a cade_config.json or {"alpha": .., "lambda_kl": ..,
    "beta": .., "tau": ..}."""
    with understood(path, "no CADE parameters", "expected JSON with alpha, lambda_kl, beta, tau"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data.get("params", data)
        names = ("alpha", "lambda_kl", "beta", "tau")
        params = CadeParams(**{name: float(data[name]) for name in names})
        if why := fault_of(asdict(params)):
            raise ValueError(why)
    return params


def fault_of(numbers: Mapping[str, float | None]) -> str:
    """Which option's number can't be used; '' when all can."""
    for name, value in numbers.items():
        if value is not None and not (np.isfinite(value) and value >= 0):
            return f"{name.replace('_', '-')} is {value:g}; it must be a finite number, 0 or more"
    return ""


#: Key of `notes` -> what is said of these rows.
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
    absent, notes = config["absent_tables"], config["notes"]
    lines = [f"no table {stem}.csv or .parquet: that view is left out" for stem in absent]
    counted = [(notes[name], text) for name, text in _RESERVATIONS.items() if notes[name]]
    return lines + [f"{n:,} of {notes['rows']:,} rows {text}" for n, text in counted]


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

    Raises UsageError, InputError (tables), DiskFull, StoreError.
    """
    given = {} if isinstance(params, Tuning) else asdict(params)
    if why := fault_of({**given, "tolerance": tolerance}):
        raise UsageError(f"--{why}")
    q = read_questions(folder, task, level, numerics)
    with writable(out):  # before a search that takes minutes
        out.mkdir(parents=True, exist_ok=True)
    how: dict[str, object] | None = None
    if isinstance(params, Tuning):
        result = search(q, params, tolerance)
        how = {"kind": params.kind, **asdict(result)}
        if task is Task.REGRESSION:
            how["objective"] = _OBJECTIVES[params.objective]
        del how["params"]
        params = result.params
    decision = cade.decide(q.streams, params)
    answers = _decided(q, decision)
    table = q.texts[["split", "answer"]].reset_index()
    for name in ("baseline", "cade"):
        letters = pd.Series(answers[name]).map(dict(enumerate(q.candidates))).fillna("")
        table[f"{name}_pred"] = letters if task is Task.MCQ else answers[name]
    table["baseline_conf"], table["kl"] = q.streams.confidence, q.streams.divergence
    config = {
        "task": task.value,
        "level": level.value,
        "numerics": numerics,
        "mode": "replace" if task is Task.REGRESSION else None,
        "params": asdict(params),
        "search": how,
        "metrics": _measure(q, decision, answers, q.tolerances(tolerance)),
        "n": q.notes["rows"],
        "absent_tables": list(q.absent),
        "notes": q.notes,
    }
    config = json.loads(json.dumps(config), parse_constant=lambda _: None)  # NaN and infinity: null
    onward = "nothing was changed there; make room or name another folder with --out"
    with (
        writing(out / "cade_predictions.csv", onward) as rows,
        writing(out / "cade_config.json", onward) as settings,
    ):
        table.to_csv(rows, index=False, lineterminator="\n")
        settings.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return config
