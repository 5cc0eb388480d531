"""Human review (App. B.2): a stratified sample, two reviewers, an adjudicator, and the results.

sheet.py writes the review sheets, verdicts.py reads the CSVs, template_sheets.py has question
templates reviewed. An item is named by its key, '<task>-<item_id>'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import templates
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.draw import md5_numbers
from sdgbias.benchmark.review.verdicts import VERDICTS, csv_text, read_verdicts, written_in
from sdgbias.errors import InputError, UsageError
from sdgbias.files import json_object, reading, write_atomically, write_json
from sdgbias.methods import stats
from sdgbias.types import Task

SHARE = 0.05
KAPPA = (
    "Cohen's kappa, asymptotic variance of Fleiss, Cohen & Everitt (1969); no interval where that"
    " is 0"
)
_STRATA = ["task", "pillar", "indicator"]


def read_items(benchmark: Path, task: Task) -> pd.DataFrame:
    """The items of a task, with their task, by key. Raises InputError."""
    onward = "name a benchmark folder, or make one with 'sdgbias build'"
    with reading(Path(benchmark) / f"items_{task}.parquet", onward) as path:
        items = pd.read_parquet(path).assign(task=task.value)
    return items.set_index((f"{task}-" + items["item_id"].astype(str)).rename("key"))


def draw_sample(benchmark: Path, share: float = SHARE, seed: int = 0) -> pd.DataFrame:
    """About `share` of the items, by key in the order of the sheet: task, item_id, pillar,
    indicator, cname.

    Proportional within task x indicator (hence pillar) x country, at least one item per task and
    indicator. The draw is systematic in the order of a hash keyed by (seed, item): the sample of a
    country or indicator doesn't depend on the others, and a new item changes its stratum by at most
    one item per draw. The order is random, so that the part reviewed so far is a sample too. Raises
    UsageError, InputError.
    """
    if not 0 < share <= 1:
        raise UsageError(
            f"--share is {share:g}; give a share above 0 and at most 1, such as {SHARE:g}"
        )
    columns = [*_STRATA, "item_id", "cname"]
    items = pd.concat([read_items(benchmark, task)[columns] for task in Task])
    if items.empty:
        raise InputError(
            f"{benchmark}: holds no item to review; build it again with 'sdgbias build'"
        )
    key, whole = items.index.to_series(), items["task"] + "|" + items["indicator"].astype("str")
    stratum = whole + "|" + items["cname"].astype("str")
    items = items.assign(
        whole=whole,
        stratum=stratum,
        hash=md5_numbers(f"{seed}|review|" + key, 15),
        order=md5_numbers(f"{seed}|review order|" + key, 15),
        shift=md5_numbers(f"{seed}|review|" + stratum, 15) / 16.0**15,
    ).sort_values(["stratum", "hash", "item_id"])
    groups = items.groupby("stratum")
    items["place"] = (groups.cumcount() + items["shift"]) / groups["hash"].transform("size")
    items = items.sort_values(["whole", "place", "hash", "item_id"])
    chosen = items[(items["place"] < share) | ~items.duplicated("whole")]
    return chosen.sort_values(["order", "task", "item_id"])[columns]


@dataclass(frozen=True)
class Reviews:
    """What import_reviews wrote. `reviews`: task, item_id, verdict, by, reason; `figures`:
    reviews.json."""

    reviews: pd.DataFrame
    figures: dict[str, Any]
    out: Path
    to_adjudicate: Path | None

    def lines(self) -> list[str]:
        """What to print."""
        return templates.lines("reviews", f=self.figures, **vars(self))


def import_reviews(
    first: Path, second: Path, benchmark: Path, out: Path, adjudicator: Path | None = None
) -> Reviews:
    """Merge two reviewers' CSVs and, if given, the adjudicator's into `out` (Parquet), its .json
    and the open disagreements.

    The verdict of an item is the reviewers' common verdict, else the adjudicator's; items without
    one are left out and counted. Raises InputError, UsageError, StoreError.
    """
    if out.suffix != ".parquet":
        raise UsageError(f"--out {out}: give a file that ends in .parquet")
    paths = [path for path in (first, second, adjudicator) if path is not None]
    one, two, judge = names = [*(path.name.removesuffix(".csv") for path in paths), ""][:3]
    if len(set(names)) < 3:
        raise UsageError(
            f"{', '.join(map(str, paths))}: two reviewers with one name; name the files after the"
            " people"
        )
    columns = [*_STRATA, "item_id", "cluster_id"]
    items = pd.concat([read_items(benchmark, task)[columns] for task in Task])
    given = [_of_benchmark(path, items.index, benchmark) for path in paths]
    third = given[2] if adjudicator else given[0].iloc[:0]
    both = given[0].join(given[1], how="outer", lsuffix="_1", rsuffix="_2").join(third)
    both = both.drop(columns=["line_1", "line_2", "line"]).fillna("")
    both = both.join(items).sort_values(["task", "item_id"])
    done = (both[["verdict_1", "verdict_2"]] != "").sum(axis=1)
    agreed = (done == 2) & (both["verdict_1"] == both["verdict_2"])
    disagreed = (done == 2) & ~agreed
    decided, waiting = disagreed & (both["verdict"] != ""), disagreed & (both["verdict"] == "")
    more = both["reason_2"].where(both["reason_1"] != both["reason_2"], "")
    reasons = (both["reason_1"] + "+" + more).str.strip("+")
    both["verdict"] = both["verdict_1"].where(agreed, both["verdict"]).map(VERDICTS)
    both["by"] = np.where(agreed, f"{one}+{two}", judge)
    both["reason"] = reasons.where(agreed, both["reason"])
    final = both[agreed | decided]
    stated = final["verdict"].value_counts()
    rejections = final.loc[final["verdict"] == "rejected", "reason"].replace("", "none given")
    figures: dict[str, Any] = {
        "benchmark_id": benchmark_id(benchmark),
        "reviewers": [one, two],
        "adjudicator": judge,
        "items": len(both),
        "by_both": int((done == 2).sum()),
        "by_one": int((done == 1).sum()),
        "by_none": int((done == 0).sum()),
        "agreed": int(agreed.sum()),
        "disagreed": int(disagreed.sum()),
        "adjudicated": int(decided.sum()),
        "open": int(waiting.sum()),
        **{verdict: int(stated.get(verdict, 0)) for verdict in VERDICTS.values()},
        "reasons": counts(rejections.str.split("+").explode()),  # an item can have two
        "kappa": KAPPA,
        "agreement": _by_stratum(both[done == 2], _agreement),
        "verdicts": _by_stratum(final, _rate),
        "notes": _notes(paths, *given[:2]),
    }
    to_adjudicate = _write_waiting(out, both[waiting], one, two) if waiting.any() else None
    reviews = final[["task", "item_id", "verdict", "by", "reason"]].reset_index(drop=True)
    reviews = reviews.astype(dict.fromkeys(("task", "verdict", "by", "reason"), "str"))
    write_atomically(out, lambda part: reviews.to_parquet(part, index=False, compression="zstd"))
    write_json(out.with_suffix(".json"), figures)
    return Reviews(reviews, figures, out, to_adjudicate)


def _of_benchmark(path: Path, keys: pd.Index, benchmark: Path) -> pd.DataFrame:
    table = read_verdicts(path)
    for key, line in table.loc[~table.index.isin(keys), "line"].items():
        raise InputError(
            f"{path}, line {line}: no item {key} in {benchmark}; give --benchmark the folder that"
            " the sample was drawn from"
        )
    return table


def _notes(paths: list[Path], first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    notes = []
    if paths[0].read_bytes() == paths[1].read_bytes():
        notes.append(
            f"{paths[0].name} and {paths[1].name} are the same to the byte: was one of them copied?"
        )
    if only := len(first.index.symmetric_difference(second.index)):
        notes.append(f"{only:,} items stand in one of the two CSVs only.")
    return notes


def _write_waiting(out: Path, waiting: pd.DataFrame, one: str, two: str) -> Path:
    """Write the open disagreements for the adjudicator, with each reviewer's verdict in column
    `said`; a file that contains verdicts is never replaced."""
    verdicts = [
        " | ".join(
            " ".join(f"{name} {verdict} ({reason}) {comment}".replace(" ()", "").split())
            for name, verdict, reason, comment in ((one, *row[:3]), (two, *row[3:]))
        )
        for row in waiting[
            [f"{name}_{at}" for at in (1, 2) for name in ("verdict", "reason", "comment")]
        ].itertuples(index=False, name=None)
    ]
    rows = pd.DataFrame({"task": waiting["task"], "item_id": waiting.index})
    rows = rows.assign(verdict="", reason="", comment="", said=verdicts)
    number, path = 1, out.with_name(f"{out.stem}-disagreements.csv")
    while written_in(path):
        number += 1
        path = out.with_name(f"{out.stem}-disagreements-{number}.csv")
    write_atomically(path, csv_text(rows))
    return path


def benchmark_id(benchmark: Path) -> str:
    """From the card; '' for a benchmark without one."""
    return str(json_object(Path(benchmark) / "benchmark.json").get("benchmark_id", ""))


def _by_stratum(
    rows: pd.DataFrame, measure: Callable[[pd.DataFrame], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A measure of all rows; per task; per task and pillar; per task, pillar and indicator. Missing
    levels read 'all'."""
    every = dict.fromkeys(_STRATA, "all")
    strata = [{**every, **measure(rows)}] if len(rows) else []
    for depth in (1, 2, 3):
        for names, part in rows.groupby(_STRATA[:depth], sort=True):
            levels = dict(zip(_STRATA, map(str, names), strict=False))
            strata.append({**every, **levels, **measure(part)})
    return strata


def _agreement(rows: pd.DataFrame) -> dict[str, Any]:
    """n, share of equal verdicts and kappa with intervals."""
    one, two = (rows[f"verdict_{at}"].to_numpy() == "reject" for at in (1, 2))
    same, k = stats.share(one == two, rows["cluster_id"]), kappa(one, two)
    return {"n": k.n, **_interval("agree", "agree_", same), **_interval("kappa", "kappa_", k)}


def _rate(rows: pd.DataFrame) -> dict[str, Any]:
    """n, rejected, share of rejected items with its Wilson interval (clustered by place)."""
    no = (rows["verdict"] == "rejected").to_numpy()
    e = stats.share(no, rows["cluster_id"])
    return {"n": e.n, "rejected": int(no.sum()), **_interval("share", "", e)}


def _interval(name: str, prefix: str, e: stats.Estimate) -> dict[str, float | None]:
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
    value, n = float(k.kappa), len(one)
    if not k.var_kappa > 1e-12:
        return stats.Estimate(value, n)
    return stats.Estimate(value, n, max(-1.0, float(k.kappa_low)), min(1.0, float(k.kappa_upp)))


def load_verdicts(path: Path) -> pd.DataFrame:
    """task, item_id, verdict ('accepted' | 'rejected') of a file written by import_reviews. Raises
    InputError."""
    again = "make it with 'sdgbias review import'"
    with reading(path, again):
        table = pd.read_parquet(path, columns=["task", "item_id", "verdict"])
    valid = table["verdict"].isin(VERDICTS.values()) & table["task"].isin(list(Task))
    if not valid.all() or table.duplicated(["task", "item_id"]).any():
        raise InputError(
            f"{path}: not one verdict (accepted, rejected) per item of {', '.join(Task)}; {again}"
        )
    return table.sort_values(["task", "item_id"], ignore_index=True)
