"""Human review (App. B.2): a stratified sample, two reviewers, an adjudicator, and the results.

sheet.py writes the review sheets, verdicts.py reads the CSVs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from sdgbias import templates
from sdgbias.benchmark.card.figures import counts
from sdgbias.benchmark.draw import md5_numbers
from sdgbias.benchmark.review.verdicts import (
    VERDICTS,
    csv_text,
    keys,
    read_verdicts,
    written_in,
)
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import json_object, reading, write_atomically, write_json
from sdgbias.methods import stats
from sdgbias.types import Task

SHARE = 0.05
KAPPA = (
    "Cohen's kappa, asymptotic variance of Fleiss, Cohen & Everitt (1969); no interval where no two"
    " verdicts differ"
)
_KEY = ["task", "item_id"]
_STRATA = ["task", "pillar", "indicator"]


def draw_sample(benchmark: Path, share: float = SHARE, seed: int = 0) -> pd.DataFrame:
    """About `share` of the items: task, item_id, pillar, indicator, cname, no (1..n, the order of
    the sheet).

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
    items = _strata(benchmark)
    key = items["task"] + "-" + items["item_id"].astype(str)
    whole = items["task"] + "|" + items["indicator"]
    stratum = whole + "|" + items["cname"]
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
    chosen = chosen.sort_values(["order", *_KEY], ignore_index=True)
    return chosen[[*_KEY, "pillar", "indicator", "cname"]].assign(no=chosen.index + 1)


def _strata(benchmark: Path) -> pd.DataFrame:
    """task, item_id, pillar, indicator, cname, cluster_id of every item."""
    frames = []
    for task in Task:
        path = Path(benchmark) / f"items_{task}.parquet"
        columns = ["item_id", "pillar", "indicator", "cname", "cluster_id"]
        frames.append(read_table(path, columns).assign(task=task.value))
    texts = dict.fromkeys((*_STRATA, "cname", "cluster_id"), "str")
    items = pd.concat(frames, ignore_index=True).astype(texts)
    if items.empty:
        raise InputError(
            f"{benchmark}: holds no item to review; build it again with 'sdgbias build'"
        )
    return items


def read_table(path: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Columns of a Parquet table. Raises InputError when it is missing or not Parquet."""
    onward = "name a benchmark folder, or make one with 'sdgbias build'"
    with reading(path, onward):
        return pd.read_parquet(path, columns=list(columns) if columns else None)


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
    one are left out and counted. The CSV for the adjudicator, `<out>-disagreements.csv`, lists only
    open disagreements and never replaces a file that contains verdicts. Raises InputError,
    UsageError, StoreError.
    """
    if out.suffix != ".parquet":
        raise UsageError(f"--out {out}: give a file that ends in .parquet")
    paths = [Path(p) for p in (first, second, adjudicator) if p is not None]
    names = [p.name.removesuffix(".csv") for p in paths]
    if len(set(names)) < len(names):
        raise UsageError(
            f"{', '.join(map(str, paths))}: two reviewers with one name; name the files after the"
            " people"
        )
    items = _strata(benchmark)
    given = [_of_benchmark(path, items, benchmark) for path in paths]
    one, two = (frame.drop(columns="row") for frame in given[:2])
    both = one.merge(two, on=_KEY, how="outer", suffixes=("_1", "_2")).fillna("")
    third = given[2].drop(columns="row") if adjudicator else one.iloc[:0]
    both = both.merge(third, on=_KEY, how="left").fillna("").merge(items, on=_KEY)
    both = both.sort_values(_KEY, ignore_index=True)
    done = (both[["verdict_1", "verdict_2"]] != "").sum(axis=1)
    agreed = (done == 2) & (both["verdict_1"] == both["verdict_2"])
    disagreed = (done == 2) & ~agreed
    decided = disagreed & (both["verdict"] != "")
    final = _final(both, agreed, decided, names)
    waiting = both[disagreed & ~decided]
    stated = final["verdict"].value_counts()
    figures: dict[str, Any] = {
        "benchmark_id": benchmark_id(benchmark),
        "reviewers": names[:2],
        "adjudicator": names[2] if adjudicator else "",
        "items": len(both),
        "by_both": int((done == 2).sum()),
        "by_one": int((done == 1).sum()),
        "by_none": int((done == 0).sum()),
        "agreed": int(agreed.sum()),
        "disagreed": int(disagreed.sum()),
        "adjudicated": int(decided.sum()),
        "open": len(waiting),
        **{verdict: int(stated.get(verdict, 0)) for verdict in VERDICTS.values()},
        "reasons": _reasons(final),
        "kappa": KAPPA,
        "agreement": _by_stratum(both[done == 2], _agreement),
        "verdicts": _by_stratum(final.merge(items, on=_KEY), _rate),
        "notes": _notes(paths, given, both[disagreed]),
    }
    to_adjudicate = _write_waiting(out, waiting, names) if len(waiting) else None
    write_atomically(out, lambda part: final.to_parquet(part, index=False, compression="zstd"))
    write_json(out.with_suffix(".json"), figures)
    return Reviews(final, figures, out, to_adjudicate)


def _of_benchmark(path: Path, items: pd.DataFrame, benchmark: Path) -> pd.DataFrame:
    frame = read_verdicts(path)
    strange = frame[~keys(frame).isin(keys(items))]
    if len(strange):
        row = strange.iloc[0]
        raise InputError(
            f"{path}, line {row['row']}: no item {row['task']}-{row['item_id']} in {benchmark}"
            f" ({len(strange)} such rows); give --benchmark the folder that the sample was drawn"
            " from"
        )
    return frame


def _final(
    both: pd.DataFrame, agreed: pd.Series, decided: pd.Series, names: Sequence[str]
) -> pd.DataFrame:
    """task, item_id, verdict, by, reason of the items that have a verdict, sorted."""
    one, two = both["reason_1"], both["reason_2"]
    joined = (one + "+" + two.where(one != two, "")).str.strip("+")
    final = pd.DataFrame(
        {
            **{name: both[name] for name in _KEY},
            "verdict": both["verdict_1"].where(agreed, both["verdict"]).map(VERDICTS),
            "by": np.where(agreed, "+".join(names[:2]), names[-1]),
            "reason": joined.where(agreed, both["reason"]),
        }
    )[agreed | decided]
    kinds = {**dict.fromkeys(final.columns, "str"), "item_id": "int64"}
    return final.astype(kinds).reset_index(drop=True)


def _reasons(final: pd.DataFrame) -> dict[str, int]:
    """Number of rejected items per reason ('none given' included); an item can have two reasons."""
    named = final.loc[final["verdict"] == "rejected", "reason"].replace("", "none given")
    return counts(named.str.split("+").explode())


def _notes(
    paths: Sequence[Path], given: Sequence[pd.DataFrame], disagreed: pd.DataFrame
) -> list[str]:
    notes = []
    for path, frame in zip(paths, given, strict=True):
        is_filled = (frame["reason"] != "") | (frame["comment"] != "")
        if half := int(((frame["verdict"] == "") & is_filled).sum()):
            notes.append(
                f"{path.name}: {half:,} rows have a reason or a comment and no verdict; they count"
                " as not reviewed."
            )
    if paths[0].read_bytes() == paths[1].read_bytes():
        notes.append(
            f"{paths[0].name} and {paths[1].name} are the same to the byte: was one of them copied?"
        )
    if only := len({*keys(given[0])} ^ {*keys(given[1])}):
        notes.append(f"{only:,} items stand in one of the two CSVs only.")
    judged = [{*keys(frame[frame["verdict"] != ""])} for frame in given[2:]]
    if spare := len(set().union(*judged) - {*keys(disagreed)}):
        notes.append(
            f"{paths[2].name}: {spare:,} verdicts on items without a disagreement; they are not"
            " used."
        )
    return notes


def _write_waiting(out: Path, waiting: pd.DataFrame, names: Sequence[str]) -> Path:
    """Write the open disagreements as a CSV for the adjudicator; column `said` has each reviewer's
    verdict."""
    verdicts = []
    for at, name in enumerate(names[:2], start=1):
        verdict, reason, comment = (waiting[f"{n}_{at}"] for n in ("verdict", "reason", "comment"))
        comment = comment.str.replace(r"\s+", " ", regex=True)
        reason = (" (" + reason + ")").where(reason != "", "")
        verdicts.append(name + " " + verdict + reason + (": " + comment).where(comment != "", ""))
    rows = waiting[_KEY].assign(
        verdict="", reason="", comment="", said=verdicts[0] + " | " + verdicts[1]
    )
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
    1969, large samples).

    NaN when chance agreement is 1 (both give the same single verdict throughout). NaN bounds when
    all verdicts agree: the estimated variance is 0 there, which would suggest false certainty.
    """
    n = len(one)
    if not n:
        return stats.nothing()
    sides = (False, True)  # (2, 2): p[i, j]
    p = np.array([[np.mean((one == i) & (two == j)) for j in sides] for i in sides])
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    observed, chance = float(np.trace(p)), float(rows @ columns)
    if np.isclose(chance, 1.0):
        return stats.nothing(n)
    k = (observed - chance) / (1 - chance)
    if np.isclose(observed, 1.0):
        return stats.Estimate(k, n)
    same = sum(p[i, i] * (1 - (rows[i] + columns[i]) * (1 - k)) ** 2 for i in (0, 1))
    apart = (1 - k) ** 2 * sum(p[i, 1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1))
    variance = (same + apart - (k - chance * (1 - k)) ** 2) / (n * (1 - chance) ** 2)
    half = float(ndtri(0.5 + stats.LEVEL / 2)) * max(0.0, float(variance)) ** 0.5
    return stats.Estimate(float(k), n, max(-1.0, k - half), min(1.0, k + half))


def load_verdicts(path: Path) -> pd.DataFrame:
    """task, item_id, verdict ('accepted' | 'rejected') of a file written by import_reviews. Raises
    InputError."""
    if not path.is_file():
        raise InputError(f"{path}: not there; make it with 'sdgbias review import'")
    frame = read_table(path)
    again = "make it again with 'sdgbias review import'"
    if missing := [name for name in (*_KEY, "verdict") if name not in frame.columns]:
        raise InputError(f"{path}: missing column(s) {', '.join(missing)}; {again}")
    frame = frame[[*_KEY, "verdict"]]
    for column, valid in (("verdict", list(VERDICTS.values())), ("task", list(Task))):
        if len(strange := frame[~frame[column].isin(valid)]):
            raise InputError(f"{path}: {one_of(column, strange[column].iloc[0], valid)}; {again}")
    if frame.duplicated(_KEY).any():
        raise InputError(
            f"{path}: {keys(frame)[frame.duplicated(_KEY)].iloc[0]} has two verdicts; {again}"
        )
    return frame.sort_values(_KEY, ignore_index=True).astype({"item_id": "int64"})
