"""Metric rows of the predictions of one task and test, with the sampling unit of each interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdgbias.benchmark.prompts import option_letters
from sdgbias.methods import metrics, stats
from sdgbias.methods.answers import TRUNCATED
from sdgbias.raw.indicators import DIRECTIONS, letter_directions
from sdgbias.suites import sdg_censoring
from sdgbias.suites.rows import METRIC_ROW, RowGroup
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


def _directions(items: pd.DataFrame, present: np.ndarray) -> np.ndarray:
    """(N, K + 1) direction of each letter (pessimistic, conservative, optimistic), '' of those that
    an item lacks; the last is that of no letter."""
    count = present.sum(axis=1)
    # a release may hold indicators without a recorded polarity: their answers have no direction
    table = {
        (p, int(k)): letter_directions(p, int(k)) if p else ("",) * int(k)
        for p in set(items["polarity"])
        for k in set(count)
    }
    found = np.full((len(items), present.shape[1] + 1), "", dtype=object)
    for (polarity, k), directions in table.items():
        found[(items["polarity"] == polarity).to_numpy() & (count == k), :k] = directions
    return found


@dataclass(frozen=True)
class MeanOf:
    """A mean that is wanted: of one value per row of ``part``."""

    part: RowGroup
    values: ArrayLike
    kind: stats.Kind = "share"

    @property
    def units(self) -> tuple[str, ...]:
        """Columns whose values its interval counts. Without a picture many rows share one prompt
        and hence one answer."""
        part = self.part
        alone = len(part) and str(part.columns["method"][part.at[0]]) in IMAGE_FREE
        return ("prompt", "cluster_id") if alone else ("cluster_id",)


def clustered_means(asked: Sequence[MeanOf]) -> list[Judged]:
    """The means, and the units that their intervals count: places, or the wider of the interval
    over places and that over distinct prompts."""
    # metrics of the same rows share one array of their units
    units = {(id(a.part), unit): a.part[unit] for a in asked for unit in a.units}
    each = iter(
        stats.means([(a.values, units[id(a.part), u], a.kind) for a in asked for u in a.units])
    )
    found: list[Judged] = []
    for a in asked:
        ways = [next(each) for _ in a.units]
        chosen = stats.widest(ways) if len(ways) > 1 else ways[0]
        of_prompts = len(ways) > 1 and chosen is ways[0]
        found.append((chosen, "prompts" if of_prompts else "places"))
    return found


def clustered_mean(part: RowGroup, values: ArrayLike, kind: stats.Kind = "share") -> Judged:
    """One of them."""
    return clustered_means([MeanOf(part, values, kind)])[0]


def _cells(rows: pd.DataFrame, task: Task, scored: StoredScores) -> np.ndarray:
    """(R,) the cell whose prompt each of R rows (item_id, test, method) answers, -1 for none."""
    cell = np.full(len(rows), -1)
    groups: Any = rows.groupby(["test", "method"]).indices
    for (test, method), at in groups.items():
        view = task.value, str(test), str(method).removesuffix(GENERATED)
        cell[at] = scored.cells_of(view, rows["item_id"].iloc[at])
    return cell


def _facts(
    answers: pd.DataFrame, items: pd.DataFrame, task: Task, scored: StoredScores
) -> RowGroup:
    """The answers of the test split with what their metrics are made of: numbers and flags. A frame
    with the texts of items and prompts would be ten times as large."""
    item = pd.Index(items["item_id"]).get_indexer(answers["item_id"])
    (test, tests), (method, methods) = (
        pd.factorize(answers[name], sort=True) for name in ("test", "method")
    )
    cell = _cells(answers, task, scored)
    generated = np.char.endswith(np.array(methods, dtype=str), GENERATED)[method]
    score = np.where(generated, -1, scored.score_of[cell])  # a generated answer has no scores
    top = scored.scores["top_token"]
    # a number of several digits that is one token begins with its first digit
    first = top.where(~_numeric(top), top.str[:1])
    off = ~first.isin(list(candidates(items, task))).to_numpy()
    tie, near_tie = metrics.tie_flags(scored.logits, scored.near)
    correct = answers["correct"].to_numpy(dtype=float)
    if task is Task.REGRESSION:  # imported: interval accuracy is unknown without a tolerance
        known = np.isfinite(items["tolerance"].to_numpy(dtype=float))
        correct = np.where(known[item], correct, np.nan)
    how = answers["how"].to_numpy(dtype=object)

    def beside(name: str) -> np.ndarray:
        """(R,) the row with the answer of a method to the same question, -1 for none."""
        question = item * len(tests) + test
        mine = np.flatnonzero(np.asarray(methods == name)[method])
        found = np.full(len(items) * len(tests), -1)
        found[question[mine]] = mine
        return np.asarray(found[question])

    def of(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.where(rows >= 0, values[rows], np.nan)

    full = beside("full")
    facts = {
        # only compared for equality, and integers are faster
        "cluster_id": pd.factorize(items["cluster_id"], sort=True)[0][item],
        "prompt": scored.prompt_of[cell],
        "test": np.asarray(tests, dtype=object)[test],
        "method": np.asarray(methods, dtype=object)[method],
        "pillar": items["pillar"].to_numpy(dtype=object)[item],
        "indicator": items["indicator"].to_numpy(dtype=object)[item],
        "correct": correct,
        "mass": np.append(scored.scores["mass"].to_numpy(dtype=float), np.nan)[score],
        "off_candidate": np.append(off, True)[score],
        "tie": tie[score],
        "near_tie": near_tie[score],
        "correct_generated": of(beside(f"full{GENERATED}"), correct),
        "parsed": how != "",
        "unparsed": (how == "unparsed") | (how == "empty"),
        "truncated": how == TRUNCATED,
        "refused": how == "refusal",
        "compared": full >= 0,
        "kept": answers["kept"].to_numpy(dtype=float),
    }
    if task is Task.MCQ:
        letters = candidates(items, task)
        pred, names = pd.factorize(answers["pred"])
        pred = np.array([letters.index(n) if n else len(letters) for n in names], int)[pred]
        present = present_options(items, task)
        says, count = _directions(items, present)[item, pred], present.sum(axis=1)[item]
        facts |= {direction: says == direction for direction in DIRECTIONS}
        facts |= {
            "three": (count >= 3) & (says != ""),
            "two": (count == 2) & (says != ""),
            "gain": correct - of(full, correct),
            "changed": pred != pred[full],
        }
    else:
        error, value = (answers[name].to_numpy(dtype=float) for name in ("error", "value"))
        facts |= {
            "error": error,
            "gain": error - of(full, error),
            "changed": value != of(full, value),
        }
    return RowGroup(facts, np.arange(len(answers)))


def _cell_metrics(part: RowGroup, task: Task) -> Iterator[tuple[str, MeanOf]]:
    """Metrics of the rows of one method in one group."""
    if task is Task.MCQ:
        yield "accuracy", MeanOf(part, part["correct"])
        three = part.where(part["three"])
        for says in DIRECTIONS if len(three) else ():
            yield f"share_{says}", MeanOf(three, three[says])
        two = part.where(part["two"])
        if len(two):
            yield "share_optimistic_two_option", MeanOf(two, two["optimistic"])
    else:
        yield "mae", MeanOf(part, part["error"], "amount")
        yield "interval_accuracy", MeanOf(part, part["correct"])
    if part["parsed"].any():
        yield "unparsed_rate", MeanOf(part, part["unparsed"])
        yield "truncated_rate", MeanOf(part, part["truncated"])
        if task is Task.MCQ:
            yield "refusal_rate", MeanOf(part, part["refused"])
    if not np.isnan(part["mass"]).all():
        yield "candidate_mass", MeanOf(part, part["mass"], "fraction")
        yield "off_candidate_rate", MeanOf(part, part["off_candidate"])
    decided = part.where(~np.isnan(part["tie"]))
    if len(decided):
        yield "tie_rate", MeanOf(decided, decided["tie"])
        yield "near_tie_rate", MeanOf(decided, decided["near_tie"])


def _paired_metrics(part: RowGroup, task: Task) -> Iterator[tuple[str, MeanOf]]:
    """CADE against the Full view on the same rows."""
    if task is Task.MCQ:
        gain = part["gain"]
        yield "accuracy_gain", MeanOf(part, gain, "difference")
        yield "changed_rate", MeanOf(part, part["changed"])
        yield "fixed_rate", MeanOf(part, gain > 0)
        yield "broken_rate", MeanOf(part, gain < 0)
        yield "kept_rate", MeanOf(part, part["kept"])
    else:
        yield "mae_change", MeanOf(part, part["gain"], "mean")
        yield "changed_rate", MeanOf(part, part["changed"])


def _over_generated(part: RowGroup) -> Iterator[tuple[str, MeanOf]]:
    """A method against the generated answer to the Full prompt, on the same questions: of Full,
    what choosing among the candidates gains; of CADE, its whole gain over standard inference."""
    part = part.where(~np.isnan(part["correct_generated"]))
    if len(part):
        gain = part["correct"] - part["correct_generated"]
        yield "gain_over_generated", MeanOf(part, gain, "difference")


def _parts(table: RowGroup, task: Task) -> Iterator[tuple[tuple[str, str, str, str], RowGroup]]:
    """((test, method, pillar, indicator), rows) of every group. Test 'all' pools T1..T5; a method
    that answers fewer tests than the others (full_generated at T1) has no such row."""
    (test, tests), (method, methods), (pillar, pillars), (indicator, indicators) = (
        pd.factorize(table.columns[name], sort=True)
        for name in ("test", "method", "pillar", "indicator")
    )
    pillar = np.where(table.columns["pillar"] == "", -1, pillar)  # custom questions have none
    answered = [len(np.unique(test[method == m])) for m in range(len(methods))]
    complete = np.array([n == len(tests) for n in answered], dtype=bool)
    names = np.asarray(tests, dtype=object)
    for name, keep in [
        *((t.value, names[test] == t.value) for t in TESTS[task]),
        ("all", complete[method]),
    ]:
        for mine in table.where(keep).split(method):
            of = str(methods[method[mine.at[0]]])
            yield (name, of, "all", "all"), mine
            for part in mine.split(pillar):
                yield (name, of, str(pillars[pillar[part.at[0]]]), "all"), part
            for part in mine.split(pillar, indicator):
                first = part.at[0]
                group = str(pillars[pillar[first]]), str(indicators[indicator[first]])
                yield (name, of, *group), part


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
    the interval counts; note: why there is no interval, 'too few places' or 'too few prompts'
    where they don't suffice for one. `judged`: the uncertainty due to withheld scores, with a
    column test."""
    answers = frame[frame["split"] == "test"]
    rows: list[tuple[object, ...]] = []
    for cell, part in _parts(_facts(answers, items, task, scored), task):
        found = list(_cell_metrics(part, task))
        if cell[1] == "cade":
            found += _paired_metrics(part.where(part["compared"]), task)
        if cell[1] in ("cade", "full"):
            found += _over_generated(part)
        rows += _rows(task, cell, found)
        if cell[1] == "q_only":
            asked = part["prompt"]
            prompts = float(len(np.unique(asked[asked >= 0])))
            count = stats.Estimate(prompts, len(part))
            rows.append((task.value, *cell, "distinct_prompts", *_numbers(count, "prompts")))
    if judged is not None:
        judged = judged.assign(prompt=scored.prompt_of[_cells(judged, task, scored)])
    for cell, part in () if judged is None else _parts(RowGroup.of(judged), task):
        bounded = sdg_censoring.metrics(cell[1], part, task)
        rows += _rows(task, cell, [(m, MeanOf(part, x, kind)) for m, x, kind in bounded])
    return pd.DataFrame(rows, columns=METRIC_ROW)


def _rows(
    task: Task, cell: tuple[str, ...], found: Sequence[tuple[str, MeanOf]]
) -> Iterator[tuple[object, ...]]:
    """The rows of one group: all intervals at once, as there are thousands of groups."""
    means = clustered_means([mean for _, mean in found])
    for (metric, _), judged in zip(found, means, strict=True):
        yield (task.value, *cell, metric, *_numbers(*judged))


def _numbers(e: stats.Estimate, unit: str) -> tuple[object, ...]:
    note = f"too few {unit}" if e.too_few else e.missing_interval(unit.removesuffix("s"))
    return e.value, e.n, e.low, e.high, e.clusters, note
