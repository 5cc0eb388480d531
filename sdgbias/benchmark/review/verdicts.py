"""Reviewers' CSVs, as people and spreadsheets return them, and what follows from two of them: the
verdict of each item, agreement (Cohen's kappa) and rates of rejection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sdgbias.benchmark.review import COLUMNS, REASONS, STRATA, VERDICTS, read_items, write_csv
from sdgbias.errors import InputError, UsageError
from sdgbias.files import json_object, packaged_sql, write_atomically, write_json
from sdgbias.methods import stats
from sdgbias.raw.text_tables import read_text
from sdgbias.types import Task

KAPPA = (
    "Cohen's kappa, asymptotic variance of Fleiss, Cohen & Everitt (1969); no interval where that"
    " is 0"
)


def read_sheet(path: Path, columns: Sequence[str], key: str) -> pd.DataFrame:
    """The columns of a reviewer's CSV by row, as a spreadsheet counts them, in small letters; only
    ``key`` and the verdict must be there. Blank rows are left out. Raises InputError."""
    table = read_text(path, again="save it as CSV, cells with commas in quotes")
    table.columns = table.columns.str.lower()
    if missing := [name for name in (key, "verdict") if name not in table]:
        wanted = f"the first row must read {','.join(columns)}"
        raise InputError(f"{path}: missing column(s) {', '.join(missing)}; {wanted}")
    if twice := sorted({*table.columns[table.columns.duplicated()]}):
        raise InputError(f"{path}: column(s) {', '.join(twice)} more than once; keep one of each")
    table = table.reindex(columns=list(columns), fill_value="")
    table = table[(table != "").any(axis=1)]
    cased = table.drop(columns="comment", errors="ignore").columns
    table[cased] = table[cased].apply(lambda column: column.str.lower())
    is_verdict = table["verdict"].isin(["", *VERDICTS])
    refuse_row(path, table["verdict"], is_verdict, "write accept, reject, or nothing")
    return table


def refuse_row(path: Path, cells: pd.Series, good: pd.Series, advice: str) -> None:
    """InputError for the first of the cells that is not ``good``; nothing without any."""
    for row, cell in cells[~good].head(1).items():
        raise InputError(f"{path}, row {row}: {cells.name} {cell!r}: {advice}")


def read_verdicts(path: Path) -> pd.DataFrame:
    """verdict ('' none given), reason and comment by item, '<task>-<item_id>'. Raises InputError
    with file and row."""
    table = read_sheet(path, COLUMNS, "item_id")
    item, reason = table["item_id"], table["reason"]
    keys = item.where(~item.str.fullmatch(r"-?\d+"), table["task"] + "-" + item)
    is_key = keys.str.fullmatch(rf"({'|'.join(Task)})--?\d{{1,19}}")
    hint = "ids read like mcq-123456789; a spreadsheet shortens long ones: use the sheet's page"
    refuse_row(path, keys, is_key, hint)
    refuse_row(path, keys, ~keys.duplicated(), "is there twice; keep one of the rows")
    refuse_row(path, reason, reason.isin(["", *REASONS]), f"valid: {', '.join(REASONS)}")
    is_free = (table["verdict"] != "accept") | (reason == "")
    refuse_row(path, reason, is_free, "the item is accepted; clear the reason, or reject it")
    return table.set_index(keys)[["verdict", "reason", "comment"]]


def written_in(path: Path) -> bool:
    """Whether this CSV contains verdicts; an unreadable file counts as if it did."""
    try:
        return bool((read_verdicts(path) != "").any(axis=None))
    except InputError:
        return path.exists()


def import_reviews(
    first: Path, second: Path, benchmark: Path, out: Path, adjudicator: Path | None = None
) -> dict[str, Any]:
    """Merge two reviewers' CSVs and, if given, the adjudicator's into `out` (Parquet), its .json
    and a CSV of the open disagreements. Returns the content of the .json, and `to_adjudicate`: the
    path of that CSV, None without any.

    The verdict of an item is the reviewers' common verdict, else the adjudicator's; items without
    one are left out and counted. Raises InputError, UsageError, StoreError.
    """
    if out.suffix != ".parquet":
        raise UsageError(f"--out {out}: give a file that ends in .parquet")
    paths = [path for path in (first, second, adjudicator) if path is not None]
    one, two, judge = names = [*(path.name.removesuffix(".csv") for path in paths), ""][:3]
    if len(set(names)) < 3:
        people = "two reviewers with one name; name the files after the people"
        raise UsageError(f"{', '.join(map(str, paths))}: {people}")
    columns = [*STRATA, "item_id", "cluster_id"]
    items = pd.concat([read_items(benchmark, task)[columns] for task in Task])
    sheets = [read_verdicts(path) for path in paths]
    for path, sheet in zip(paths, sheets, strict=True):
        for key in sheet.index.difference(items.index)[:1]:
            drawn = "give --benchmark the folder that the sample was drawn from"
            raise InputError(f"{path}: no item {key} in {benchmark}; {drawn}")
    sql = packaged_sql("review.sql")
    with duckdb.connect() as con:
        tables = (items, *sheets, sheets[0][:0])  # without an adjudicator, the third is empty
        for name, table in zip(("items", "first", "second", "third"), tables, strict=False):
            con.register(name, table.reset_index(names="key"))
        con.execute(sql["judge"], {"one": one, "two": two, "judge": judge})
        [numbers] = con.execute(sql["counts"]).df().to_dict("records")
        reasons = dict(con.execute(sql["reasons"]).fetchall())
        judged, waiting = con.table("judged").df(), con.execute(sql["open"]).df()
    notes = []
    if first.read_bytes() == second.read_bytes():
        same = f"{first.name} and {second.name} are the same to the byte"
        notes.append(f"{same}: was one of them copied?")
    if only := len(sheets[0].index.symmetric_difference(sheets[1].index)):
        notes.append(f"{only:,} items stand in one of the two CSVs only.")
    final = judged[judged["verdict"].notna()]
    figures: dict[str, Any] = {
        "benchmark_id": json_object(benchmark / "benchmark.json").get("benchmark_id", ""),
        **{"reviewers": [one, two], "adjudicator": judge, "reasons": reasons, "notes": notes},
        **numbers,
        "kappa": KAPPA,
        "agreement": _by_stratum(judged[judged["done"] == 2], _agreement),
        "verdicts": _by_stratum(final, _rate),
    }
    to_adjudicate, number = None, 1
    if len(waiting):  # a file that contains verdicts is never replaced
        to_adjudicate = out.with_name(f"{out.stem}-disagreements.csv")
        while written_in(to_adjudicate):
            number += 1
            to_adjudicate = out.with_name(f"{out.stem}-disagreements-{number}.csv")
        write_csv(to_adjudicate, waiting)
    reviews = final[["task", "item_id", "verdict", "by", "reason"]].reset_index(drop=True)
    reviews = reviews.astype(dict.fromkeys(("task", "verdict", "by", "reason"), "str"))
    write_atomically(out, lambda part: reviews.to_parquet(part, index=False, compression="zstd"))
    write_json(out.with_suffix(".json"), figures)
    return {**figures, "to_adjudicate": to_adjudicate}


def _by_stratum(
    rows: pd.DataFrame, measure: Callable[[pd.DataFrame], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A measure of all rows; per task; per task and pillar; per task, pillar and indicator. Missing
    levels read 'all'."""
    every = dict.fromkeys(STRATA, "all")
    strata = [{**every, **measure(rows)}] if len(rows) else []
    for depth in (1, 2, 3):
        for names, part in rows.groupby(STRATA[:depth], sort=True):
            strata.append({**every, **dict(zip(STRATA, names, strict=False)), **measure(part)})
    return strata


def _agreement(rows: pd.DataFrame) -> dict[str, Any]:
    """n, share of equal verdicts and kappa with intervals."""
    one, two = ((rows[name] == "reject").to_numpy() for name in ("one", "two"))
    same, k = stats.share(one == two, rows["cluster_id"]), kappa(one, two)
    return {"n": k.n, **interval("agree", "agree_", same), **interval("kappa", "kappa_", k)}


def _rate(rows: pd.DataFrame) -> dict[str, Any]:
    """n, rejected, share of rejected items with its Wilson interval (clustered by place)."""
    no = (rows["verdict"] == "rejected").to_numpy()
    e = stats.share(no, rows["cluster_id"])
    return {"n": e.n, "rejected": int(no.sum()), **interval("share", "", e)}


def interval(name: str, prefix: str, e: stats.Estimate) -> dict[str, float | None]:
    """JSON values of an estimate and its bounds, to six digits; None where there is none."""
    numbers = {name: e.value, f"{prefix}low": e.low, f"{prefix}high": e.high}
    return {k: round(float(v), 6) if np.isfinite(v) else None for k, v in numbers.items()}


def kappa(one: np.ndarray, two: np.ndarray) -> stats.Estimate:
    """Cohen's kappa of two (N,) boolean verdicts with a 95 % interval (Fleiss, Cohen & Everitt
    1969, large samples), by statsmodels.

    NaN when chance agreement is 1 (both give the same single verdict throughout). NaN bounds where
    the estimated variance is 0, which would suggest false certainty: all verdicts agree or none
    does, or one reviewer gives a single verdict throughout.
    """
    from statsmodels.stats.inter_rater import cohens_kappa

    if len({*one, *two}) < 2:
        return stats.nothing(len(one))
    with np.errstate(invalid="ignore", divide="ignore"):  # of its test statistic, not used here
        k = cohens_kappa(np.bincount(2 * one + two, minlength=4).reshape(2, 2))
    has_variance = k.var_kappa > 1e-12
    bounds = (max(-1.0, float(k.kappa_low)), min(1.0, float(k.kappa_upp))) if has_variance else ()
    return stats.Estimate(float(k.kappa), len(one), *bounds)
