"""Metric rows of the predictions of one task and test, with the sampling unit of each interval."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdgbias.benchmark.prompts import option_letters
from sdgbias.methods import metrics, stats
from sdgbias.methods.answers import TRUNCATED
from sdgbias.raw.indicators import letter_directions
from sdgbias.suites import sdg_censoring
from sdgbias.suites.suite import StoredScores
from sdgbias.types import DIGITS, GENERATED, TESTS, Task, View

IMAGE_FREE = tuple(
    view + suffix for view in (View.Q_ONLY.value, View.CTX_Q.value) for suffix in ("", GENERATED)
)


#: An estimate and the units its interval counts: 'places' or 'prompts'.
Judged = tuple[stats.Estimate, str]


def present_options(items: pd.DataFrame, task: Task) -> np.ndarray:
    """(N, K) the candidates that each item has."""
    if task is Task.REGRESSION:
        return np.ones((len(items), len(DIGITS)), dtype=bool)
    return np.column_stack(
        [(items[f"option_{c.lower()}"] != "").to_numpy() for c in option_letters(items)]
    )


def candidates(items: pd.DataFrame, task: Task) -> str:
    """The candidates of a task's items: the letters of their option columns, or the digits."""
    return option_letters(items) if task is Task.MCQ else DIGITS


def _groups(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    yield "all", "all", frame
    frame = frame[frame["pillar"] != ""]  # custom questions have no pillars
    for pillar, part in frame.groupby("pillar", sort=True):
        yield str(pillar), "all", part
    for (within, indicator), part in frame.groupby(["pillar", "indicator"], sort=True):
        yield str(within), str(indicator), part


def _direction(items: pd.DataFrame) -> pd.DataFrame:
    """item_id -> direction of each letter (pessimistic, conservative, optimistic) and the number of
    options."""
    count = present_options(items, Task.MCQ).sum(axis=1)
    # a release may hold indicators without a recorded polarity: their answers have no direction
    table = {
        (p, int(k)): letter_directions(p, int(k)) if p else ("",) * int(k)
        for p in set(items["polarity"])
        for k in set(count)
    }
    rows = [table[(p, int(k))] for p, k in zip(items["polarity"], count, strict=True)]
    letters = option_letters(items)
    wide = [[*row, *[""] * (len(letters) - len(row))] for row in rows]
    frame = pd.DataFrame(wide, columns=[f"says_{c}" for c in letters], index=items.index)
    return frame.assign(item_id=items["item_id"], n_options=count)


def judged(part: pd.DataFrame, values: ArrayLike, kind: stats.Kind = "share") -> Judged:
    """Mean of one value per row of ``part``, and the units its interval counts. Without a picture
    many rows share one prompt and hence one answer: there the interval is the wider of that over
    places and that over distinct prompts."""
    by_place = stats.mean(values, part["cluster_id"], kind)
    if part.empty or str(part["method"].iloc[0]) not in IMAGE_FREE:
        return by_place, "places"
    by_prompt = stats.mean(values, part["prompt"], kind)
    chosen = stats.widest([by_prompt, by_place])
    return chosen, "prompts" if chosen is by_prompt else "places"


def _cell_metrics(part: pd.DataFrame, task: Task) -> Iterator[tuple[str, Judged]]:
    """Metrics of the rows of one method in one group."""
    if task is Task.MCQ:
        yield "accuracy", judged(part, part["correct"])
        three = part[(part["n_options"] >= 3) & (part["says"] != "")]
        for says in ("pessimistic", "conservative", "optimistic") if len(three) else ():
            yield f"share_{says}", judged(three, three["says"] == says)
        two = part[(part["n_options"] == 2) & (part["says"] != "")]
        if len(two):
            yield "share_optimistic_two_option", judged(two, two["says"] == "optimistic")
    else:
        yield "mae", judged(part, part["error"], "amount")
        yield "interval_accuracy", judged(part, part["correct"])
    if (part["how"] != "").any():
        yield "unparsed_rate", judged(part, part["how"].isin(["unparsed", "empty"]))
        yield "truncated_rate", judged(part, part["how"] == TRUNCATED)
        if task is Task.MCQ:
            yield "refusal_rate", judged(part, part["how"] == "refusal")
    if part["mass"].notna().any():
        yield "candidate_mass", judged(part, part["mass"], "fraction")
        yield "off_candidate_rate", judged(part, part["off_candidate"])
    decided = part[part["tie"].notna()]
    if len(decided):
        yield "tie_rate", judged(decided, decided["tie"])
        yield "near_tie_rate", judged(decided, decided["near_tie"])


def _paired_metrics(part: pd.DataFrame, task: Task) -> Iterator[tuple[str, Judged]]:
    """CADE against the Full view on the same rows (columns *_full)."""
    if task is Task.MCQ:
        now, before = part["correct"].astype(float), part["correct_full"].astype(float)
        yield "accuracy_gain", judged(part, now - before, "mean")
        yield "changed_rate", judged(part, part["pred"] != part["pred_full"])
        yield "fixed_rate", judged(part, now > before)
        yield "broken_rate", judged(part, now < before)
        yield "kept_rate", judged(part, part["kept"])
    else:
        yield "mae_change", judged(part, part["error"] - part["error_full"], "mean")
        yield "changed_rate", judged(part, part["value"] != part["value_full"])


def _over_generated(part: pd.DataFrame) -> Iterator[tuple[str, Judged]]:
    """A method against the generated answer to the Full prompt, on the same questions: of Full,
    what choosing among the candidates gains; of CADE, its whole gain over standard inference."""
    if len(part):
        gain = part["correct"].astype(float) - part["correct_generated"].astype(float)
        yield "gain_over_generated", judged(part, gain, "mean")


def _parts(
    table: pd.DataFrame, task: Task
) -> Iterator[tuple[tuple[str, str, str, str], pd.DataFrame]]:
    """((test, method, pillar, indicator), rows) of every group. Test 'all' pools T1..T5; a method
    that answers fewer tests than the others (full_generated at T1) has no such row."""
    tests = table.groupby("method")["test"].nunique()
    complete = table[table["method"].isin(tests.index[tests == table["test"].nunique()])]
    for test, pool in [
        *((t.value, table[table["test"] == t.value]) for t in TESTS[task]),
        ("all", complete),
    ]:
        for method, mine in pool.groupby("method", sort=True):
            for pillar, indicator, part in _groups(mine):
                yield (test, str(method), pillar, indicator), part


def _with_ties(scores: pd.DataFrame, near: float) -> pd.DataFrame:
    """key, mass, top_token, tie, near_tie (metrics.tie_flags) of every score."""
    width = max((len(z) for z in scores["logits"]), default=0)
    logits = np.full((len(scores), width), np.nan)
    for row, z in enumerate(scores["logits"]):
        logits[row, : len(z)] = z
    tie, near_tie = metrics.tie_flags(logits, near)
    return scores[["key", "mass", "top_token"]].assign(tie=tie, near_tie=near_tie)


def _numeric(tokens: pd.Series) -> pd.Series:
    """Whether each token is a number of several ASCII digits."""
    return tokens.str.fullmatch(r"[0-9]{2,}").fillna(False).astype(bool)


def metric_rows(
    items: pd.DataFrame,
    task: Task,
    frame: pd.DataFrame,
    scored: StoredScores,
    judged: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Rows task, test, method, pillar, indicator, metric, value, n, ci_low, ci_high, clusters, note
    of the test split. Test 'all' pools T1..T5. clusters: number of places or distinct prompts that
    the interval counts; note: 'too few places' or 'too few prompts' where they don't suffice for an
    interval. `judged`: the uncertainty due to withheld scores, with a column test."""
    scores = _with_ties(scored.scores, scored.near)
    known = scored.cells.merge(scores, on="key", how="left")
    known = known[["task", "item_id", "test", "view", *scores.columns]]
    test = frame[frame["split"] == "test"].merge(
        items[["item_id", "cluster_id", "pillar", "indicator"]], on="item_id"
    )
    test["view"] = test["method"].str.removesuffix(GENERATED)
    test = test.merge(known, on=["task", "item_id", "test", "view"], how="left")
    generated = test["view"] != test["method"]  # such an answer has no scores
    test.loc[generated, ["mass", "tie", "near_tie"]] = np.nan
    test["cluster_id"] = pd.factorize(test["cluster_id"], sort=True)[
        0
    ]  # only compared for equality from here on, and integers are faster
    test["prompt"] = pd.factorize(test["key"], sort=True)[0]
    names = candidates(items, task)
    # a number of several digits that is one token begins with its first digit
    first = test["top_token"].where(~_numeric(test["top_token"]), test["top_token"].str[:1])
    test["off_candidate"] = ~first.isin(list(names))
    if task is Task.MCQ:
        test = test.merge(_direction(items), on="item_id")
        letters = test[[f"says_{c}" for c in names]].assign(none="").to_numpy(dtype=object)
        index = {letter: i for i, letter in enumerate(names)} | {"": len(names)}
        test["says"] = letters[np.arange(len(test)), test["pred"].map(index).to_numpy(dtype=int)]
    full = test.loc[
        test["method"] == "full", ["item_id", "test", "pred", "correct", "error", "value"]
    ]
    test = test.merge(full, on=["item_id", "test"], how="left", suffixes=("", "_full"))
    said = test.loc[test["method"] == f"full{GENERATED}", ["item_id", "test", "correct"]]
    said = said.rename(columns={"correct": "correct_generated"})
    test = test.merge(said, on=["item_id", "test"], how="left")
    rows: list[tuple[object, ...]] = []
    for cell, part in _parts(test, task):
        found = list(_cell_metrics(part, task))
        if cell[1] == "cade":
            found += _paired_metrics(part[part["pred_full"].notna()], task)
            found += _over_generated(part[part["correct_generated"].notna()])
        if cell[1] == "full":
            found += _over_generated(part[part["correct_generated"].notna()])
        if cell[1] == "q_only":
            prompts = float(part["key"].nunique())
            count = stats.Estimate(prompts, len(part), float("nan"), float("nan"))
            found.append(("distinct_prompts", (count, "prompts")))
        rows += [(task.value, *cell, m, *_numbers(e, unit)) for m, (e, unit) in found]
    if judged is not None:
        keys = known[known["task"] == task.value].rename(columns={"view": "method"})
        keys = keys[["item_id", "test", "method", "key"]]
        judged = judged.merge(keys, on=["item_id", "test", "method"], how="left")
        judged["prompt"] = pd.factorize(judged["key"], sort=True)[0]
    for cell, part in () if judged is None else _parts(judged, task):
        for m, values, kind in sdg_censoring.metrics(part, task):
            rows.append((task.value, *cell, m, *_numbers(*judged(part, values, kind))))
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
        "clusters",
        "note",
    ]
    return pd.DataFrame(rows, columns=columns)


def _numbers(e: stats.Estimate, unit: str) -> tuple[object, ...]:
    return e.value, e.n, e.low, e.high, e.clusters, f"too few {unit}" if e.too_few else ""
