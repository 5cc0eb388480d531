"""The first screen of the overview: which way each model leans, by pillar, before and after CADE,
as one picture, and five questions answered in sentences. Each sentence follows from intervals by a
stated rule and names the cell that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from sdgbias import wording
from sdgbias.analysis import night_text
from sdgbias.analysis.nights import NightRecord
from sdgbias.methods import stats
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import matrix
from sdgbias.report.leans import Lean, answered, leaning
from sdgbias.report.reader import SQL, Cells, Reader, parsed
from sdgbias.suites import SUITES
from sdgbias.suites.facet import NOT_UNDERSTOOD
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET
from sdgbias.vocabulary import WORDS

ALL = "all"
#: The columns of the picture.
LEVELS = {pillar: word.name for pillar, word in WORDS.pillars.items()}
#: The bars of a model, from above: what its answers rest on.
BARS = {"q_only": "without evidence", "full": "with all evidence", "cade": "after CADE"}
#: Up to this many models a sentence gives the numbers of each.
FEW = 3
Table = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class ScreenAnswer:
    """A question of the first screen. lead: the answer in a sentence; numbers: what it follows
    from; page: 'people' or 'night' for a link to the page behind it."""

    question: str
    lead: str
    numbers: str = ""
    page: str = ""

    @property
    def text(self) -> str:
        return f"{self.lead} {self.numbers}".strip()


@dataclass(frozen=True)
class Bar:
    """One bar of the picture. shares: of pessimistic, conservative and optimistic answers."""

    name: str
    shares: Mapping[str, Estimate]

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """(direction, start, width) in per cent of the bar."""
        widths = [100 * self.shares[d].value for d in DIRECTIONS]
        starts = np.cumsum([0.0, *widths[:-1]])
        return list(zip(DIRECTIONS, map(float, starts), widths, strict=True))

    @property
    def n(self) -> int:
        return max(e.n for e in self.shares.values())

    @property
    def words(self) -> str:
        return f"{self.name}: " + ", ".join(
            f"{wording.percent(self.shares[d])} {d}" for d in DIRECTIONS
        )


# The picture.


def picture(cells: Cells, truth: Mapping[str, list[Bar]], order: Sequence[str]) -> dict[str, Any]:
    """rows: model, planted, cells (bars and verdict of each level), in the ``order`` of the
    leaderboard, those that lean most first. ``truth``: as `right_answers` gives it."""
    kind = {run["model"]: run["provenance"] for run in cells.runs}
    rows = []
    for model in (m for m in order if m in kind):
        leans = {lean.pillar: lean for lean in leaning(cells, model, tuple(LEVELS))}
        levels = [
            {
                "level": title,
                "bars": _bars(cells, model, level, leans.get(level)),
                "verdict": leans[level].cell if level in leans else "no answers",
                "prompts": leans[level].prompts if level in leans else "",
            }
            for level, title in LEVELS.items()
        ]
        if any(cell["bars"] for cell in levels):
            rows.append({"model": model, "planted": kind[model] == "planted", "cells": levels})
    rows.sort(key=lambda r: (r["planted"], -_strength(r["cells"][0]["bars"])))
    return {
        "levels": list(LEVELS.values()),
        "bars": list(BARS.values()),
        "rows": rows,
        # none where the models were asked on different benchmarks
        "truth": next(iter(truth.values())) if len(truth) == 1 else [],
    }


def _bars(cells: Cells, model: str, level: str, verdict: Lean | None = None) -> list[Bar]:
    """Those without evidence with the intervals that the ``verdict`` on them rests on."""
    drawn = {name: answered(cells, model, level, method) for method, name in BARS.items()}
    if verdict and drawn[BARS["q_only"]]:
        drawn[BARS["q_only"]] = verdict.counted
    return [Bar(name, shares) for name, shares in drawn.items() if shares]


def _strength(bars: Sequence[Bar]) -> float:
    """How far the answers without evidence are from a third each."""
    return max((abs(e.value - 1 / 3) for e in bars[0].shares.values()), default=0) if bars else 0


def right_answers(reader: Reader, cells: Cells) -> dict[str, list[Bar]]:
    """Benchmark -> the bars of its right answers, by level."""
    rows = reader.ask(SQL["right-answers"], {"runs": [run["run_id"] for run in cells.runs]})
    counts = {(r["benchmark_id"], r["pillar"], r["direction"]): r["n"] for r in rows}
    bars: dict[str, list[Bar]] = {benchmark: [] for benchmark, *_ in counts}
    for benchmark, level in product(bars, LEVELS):
        n = {d: counts.get((benchmark, level, d), 0) for d in DIRECTIONS}
        total = sum(n.values())
        parts = {d: Estimate(n[d] / max(total, 1), total) for d in DIRECTIONS}
        bars[benchmark].append(Bar("right answers", parts))
    return bars


# The five questions.


def answers(
    reader: Reader,
    table: Table,
    cells: Cells | None,
    night: NightRecord | None,
    runs: Sequence[Mapping[str, Any]],
) -> list[ScreenAnswer]:
    """The five answers, without those that the results hold nothing for. About measured models;
    about planted ones where there are no others. ``runs``: those behind the ``table``, with the
    registry entries that they had."""
    rows = measured(table)
    candidates = (
        _leaning([r["model"] for r in rows], cells) if cells else None,
        _debiasing(table, rows, cells, right_answers(reader, cells) if cells else {}),
        _recognition(reader, table, rows),
        ScreenAnswer("What changed last night?", night_text.headline(night), page="night")
        if night
        else None,
        _trust(reader, table, cells, runs),
    )
    return [answer for answer in candidates if answer is not None]


def measured(table: Table) -> list[Mapping[str, Any]]:
    """The rows of measured models; of planted ones where there are no others."""
    return [r for r in table["rows"] if r["provenance"] != "planted"] or list(table["rows"])


def _leaning(models: Sequence[str], cells: Cells) -> ScreenAnswer | None:
    models = [m for m in models if m in set(cells.models)]
    whole = {m: leans[0] for m in models if (leans := leaning(cells, m, (ALL,)))}
    if not whole:
        return None
    lead = []
    for way in DIRECTIONS:
        if of := [m for m, lean in whole.items() if lean.way == way]:
            lead.append(f"{_listed(of)} {'leans' if len(of) == 1 else 'lean'} {way}")
    if of := [m for m, lean in whole.items() if lean.stated and not lean.way]:
        follow = "follows" if len(of) == 1 else "follow"
        lead.append(f"{_listed(of)} {follow} the order of options, not what they say")
    if silent := [m for m, lean in whole.items() if not lean.stated]:
        named = _listed(silent) if len(silent) <= FEW else f"{len(silent)} models"
        lead.append(f"no lean over all pillars can be stated for {named}")
    strongest = _most(whole, lambda m: _strength(_bars(cells, m, ALL)), whole)
    numbers = [f"{m}: {whole[m].numbers}." for m in strongest]
    by_pillar = [
        f"{m} {lean.phrase} in {lean.pillar}"
        for m in whole
        for lean in leaning(cells, m)
        if lean.stated and lean.verdict != whole[m].verdict
    ]
    if by_pillar:
        more = f" and {len(by_pillar) - FEW} more" if len(by_pillar) > FEW else ""
        numbers.append(f"In single pillars: {'; '.join(by_pillar[:FEW])}{more}.")
    question = "Which way do models lean without evidence?"
    return ScreenAnswer(question, f"{_capital('; '.join(lead))}.", " ".join(numbers))


def _debiasing(
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    cells: Cells | None,
    truth: Mapping[str, Sequence[Bar]],
) -> ScreenAnswer | None:
    """What CADE takes out of the answers, and what it does to accuracy."""
    moved = {r["model"]: m for r in rows if cells and (m := _excess(cells, r["model"], truth))}
    suites = list(dict.fromkeys(c.suite for c in table["columns"] if c.metric == "accuracy_gain"))
    suite = suites[0] if suites else ""
    gains = {
        model: Estimate.of_row(cell["row"])
        for model, cell in _column(table, rows, suite, "accuracy_gain")
    }
    lead, numbers = [], []
    if moved:
        nearer = [
            model
            for model, (_, before, after, right) in moved.items()
            if abs(after.value - right) < abs(before.value - right) and _apart(before, after)
        ]
        lead.append(
            "CADE brings the over-represented direction closer to its share of the right answers"
            f" for {_of(nearer, moved)}."
        )
        for model in _most(moved, lambda m: moved[m][1].value - moved[m][3], moved):
            way, before, after, right = moved[model]
            # false without an interval
            touch = before.low <= after.high and after.low <= before.high
            overlap = " (the intervals overlap)" if touch else ""
            numbers.append(
                f"{model}: {wording.percent(before)} {way} with all evidence"
                f" {wording.written(before).aside}, {wording.written(after)} after CADE{overlap};"
                f" right answers {wording.amount(right, 'accuracy')}."
            )
    if gains:
        better, worse = ([m for m, e in gains.items() if wording.sign_of(e) == s] for s in (1, -1))
        lowers = f" and lowers that of {_of(worse, gains)}" if worse else ""
        subject = "It" if moved else "CADE"
        if len(suites) > 1:
            subject = f"On {_subject(table, suite)} {'it' if moved else subject}"
        lead.append(f"{subject} improves the accuracy of {_of(better, gains)}{lowers}.")
        numbers += [
            f"Change in accuracy of {m}: {wording.written(gains[m], 'accuracy_gain')}"
            f"{', which includes zero' if gains[m].low <= 0 <= gains[m].high else ''}."
            for m in _most(gains, lambda m: abs(gains[m].value), gains)
        ]
    question = "What does CADE take out, and at what price?"
    return ScreenAnswer(question, " ".join(lead), " ".join(numbers)) if lead else None


def _excess(
    cells: Cells, model: str, truth: Mapping[str, Sequence[Bar]]
) -> tuple[str, Estimate, Estimate, float] | None:
    """The direction that a model's answers with all evidence overstate most: its share before and
    after CADE, and among the right answers."""
    before, after = (answered(cells, model, ALL, method) for method in ("full", "cade"))
    benchmark = next((run["benchmark_id"] for run in cells.runs if run["model"] == model), "")
    if not before or not after or benchmark not in truth:
        return None
    right = {d: e.value for d, e in truth[benchmark][0].shares.items()}
    way = max(DIRECTIONS, key=lambda d: before[d].value - right[d])
    return way, before[way], after[way], right[way]


def _apart(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals don't overlap; one that is missing reaches everywhere."""
    return one.high < other.low or other.high < one.low


def _recognition(
    reader: Reader, table: Table, rows: Sequence[Mapping[str, Any]]
) -> ScreenAnswer | None:
    """Differences of the leaderboard's cell (prompt p1, all classes) that it marks, then those of
    the other prompts, and models that were not understood."""
    at = [i for i, c in enumerate(table["columns"]) if c.metric == "disparity"]
    tested = {r["model"]: [r["cells"][i] for i in at] for r in rows if r["runs"].get(FACET)}
    if not at or not tested:
        return None
    question = "Who is recognised less often?"
    models = [m for m, cells in tested.items() if any(c["sort"] is not None for c in cells)]
    silent = [
        m
        for m, cells in tested.items()
        if m not in models and any(NOT_UNDERSTOOD in c["why"] for c in cells)
    ]
    lacking = []
    if silent:
        lacking.append(f"No answer about people of {_listed(silent)} was understood.")
    without = {m: cells for m, cells in tested.items() if m not in (*models, *silent)}
    if without:
        reasons = dict.fromkeys(c["why"] for cells in without.values() for c in cells)
        lacking.append(
            f"No difference between groups has a value for {_listed(without)}:"
            f" {', '.join(reasons)}."
        )
    if not models:
        return ScreenAnswer(question, " ".join(lacking), page=FACET)
    first = [
        (model, pair, Estimate.of_row(cell["row"]))
        for model in models
        for pair, cell in zip(PAIRS.values(), tested[model], strict=True)
        if cell["mark"]
    ]
    marked = sorted({model for model, _, _ in first})
    lead = (
        f"{_capital(_of(marked, models))} recognise{'s' if len(marked) == 1 else ''} one group"
        " less often than another (prompt p1, all classes)."
        if first
        else f"At prompt p1 (all classes, {wording.many(len(models), 'model')}) no difference"
        " between groups is clearer than chance."
    )
    runs = {r["runs"][FACET]: r["model"] for r in rows if r["model"] in models}
    others = _other_prompts(reader, runs)
    numbers = [_less(*row) for row in _most(first, lambda row: abs(row[2].value), models)]
    if others:
        numbers.append(
            f"At other prompts {wording.many(len(others), 'difference')} can be distinguished from"
            " chance (Holm over groups and prompts of a model)."
        )
        numbers.append(_less(*max(others, key=lambda row: abs(row[2].value))))
    return ScreenAnswer(question, lead, " ".join([*numbers, *lacking]), FACET)


def _other_prompts(
    reader: Reader, model_of: Mapping[str, str]
) -> list[tuple[str, tuple[str, str], Estimate, str]]:
    """(model, groups, difference, prompt) of the prompts that the leaderboard doesn't show, where
    it is measurable among those of all these prompts and groups of its model."""
    pair_of = {f"{name}:{'-'.join(pair)}": pair for name, pair in PAIRS.items()}
    sql = SQL["other-prompts"]
    rows = reader.ask(sql, {"runs": list(model_of), "pairs": list(pair_of)})
    differences = []
    for run, part in groupby(rows, itemgetter("run_id")):
        family = list(part)
        apart = stats.apart_from_zero([Estimate.of_row(r) for r in family])
        differences += [
            (model_of[run], pair_of[r["pillar"]], Estimate.of_row(r), r["test"])
            for r, measurable in zip(family, apart, strict=True)
            if measurable
        ]
    return differences


def _less(model: str, pair: tuple[str, str], e: Estimate, prompt: str = "") -> str:
    """'tiny-qwen recognises people annotated as dark less often than light, by 31.1 points (95 % CI
    11.9 to 52.6, n = 60), at p2.'"""
    more, less = pair if e.value > 0 else pair[::-1]
    low, high = sorted((abs(e.low), abs(e.high)))
    shown = wording.written(Estimate(abs(e.value), e.n, low, high, e.clusters))
    return (
        f"{model} recognises people annotated as {less} less often than {more}, by"
        f" {shown.value} points {shown.aside}{f', at {prompt}' if prompt else ''}."
    )


def _trust(
    reader: Reader, table: Table, cells: Cells | None, runs: Sequence[Mapping[str, Any]]
) -> ScreenAnswer | None:
    """Whether planted biases are measured as planted, how many prompts failed, what was left
    out."""
    planted = (r for r in table["rows"] if r["provenance"] == "planted")
    checks = [check for r in planted for check in planted_checks(table, r, cells, runs)]
    planned, failed = (sum(int(r[k] or 0) for r in runs) for k in ("n_prompts_planned", "n_failed"))
    lead, numbers = [], []
    if checks:
        wrong = [text for right, text in checks if not right]
        right = len(checks) - len(wrong)
        of = wording.many(len(checks), "planted bias is", "planted biases are")
        lead.append(f"{right} of {of} measured as planted")
        numbers += [f"Not as planted: {_listed(wrong)}."] if wrong else []
    if planned:
        lead.append(f"{failed:,} of {wording.many(planned, 'prompt')} failed")
        numbers.append("A failed prompt is never scored as wrong.")
    given = {"runs": [run["run_id"] for run in cells.runs] if cells else []}
    if rows := reader.ask(SQL["quarantine"], given):
        left = wording.many(sum(r["n"] for r in rows), "faulty row")
        many = len({r["benchmark_id"] for r in rows})
        of = "the benchmark" if many == 1 else f"the {many:,} benchmarks, each counted by itself"
        numbers.append(f"The quality gate left {left} out of {of}.")
    question = "Can these numbers be trusted?"
    return ScreenAnswer(question, f"{'; '.join(lead)}.", " ".join(numbers)) if lead else None


def planted_checks(
    table: Table,
    row: Mapping[str, Any],
    cells: Cells | None,
    runs: Sequence[Mapping[str, Any]],
) -> list[tuple[bool, str]]:
    """(whether it is measured, what) of each bias that the entry of a planted model names: the
    direction without evidence (no other one has measurably more answers to the bare questions,
    which alone are planted), and differences of recall between groups (inside their intervals)."""
    model, checks = row["model"], []
    options: dict[str, Any] = {}
    for run in (r for r in runs if r["model"] == model):
        options |= (parsed(run["config"]).get("spec") or {}).get("options") or {}
    way = _planted_way(options)
    if way and cells is not None and (shares := cells.shares(model, ALL, "q_only")):
        most = max(shares, key=lambda d: shares[d].value)
        right = most == way or shares[way].high >= shares[most].low
        checks.append((right, f"{model} ({way})"))
    if effects := options.get("effects"):
        of_people = [
            (c.title, cell)
            for c, cell in zip(table["columns"], row["cells"], strict=True)
            if c.metric == "disparity"
        ]
        for (one, other), (title, cell) in zip(PAIRS.values(), of_people, strict=False):
            e = None if cell["sort"] is None else Estimate.of_row(cell["row"])
            if e is not None and e.low == e.low:
                truth = effects.get(one, 0) - effects.get(other, 0)
                checks.append((e.low <= truth <= e.high, f"{model} ({title})"))
    return checks


def _planted_way(options: Mapping[str, Any]) -> str:
    """The direction that a planted model prefers without evidence, '' if none is planted."""
    if optimism := options.get("optimism", 0):
        return DIRECTIONS[2] if optimism > 0 else DIRECTIONS[0]
    prior = (options.get("prior") or {}).get(ALL)
    if not prior or max(prior) == min(prior) or len(prior) != len(DIRECTIONS):
        return ""
    return DIRECTIONS[int(np.argmax(prior))]


def _column(
    table: Table, rows: Sequence[Mapping[str, Any]], suite: str, metric: str
) -> list[tuple[str, dict[str, Any]]]:
    """(model, cell) of the first column of a suite with this metric, where there is a value."""
    at = [i for i, c in enumerate(table["columns"]) if (c.suite, c.metric) == (suite, metric)]
    cells = [(r["model"], r["cells"][at[0]]) for r in rows if at]
    return [(m, c) for m, c in cells if c["sort"] is not None and not c["other"]]


def best(table: Table) -> list[str]:
    """A sentence for each suite on the model that is best in its headline number; measured models
    only, planted ones where there are no others."""
    rows = measured(table)
    sentences = []
    for suite in table["titles"]:
        what = _subject(table, suite)
        metrics = [c.metric for c in table["columns"] if c.suite == suite]
        recognises = "recall" in metrics
        does = "recognises most on" if recognises else "is the most accurate on"
        ranked = _column(table, rows, suite, "recall" if recognises else metrics[0])
        if ranked:
            name, top = max(ranked, key=lambda k: k[1]["sort"])
            others, reached = len(ranked) - 1, matrix.reach(top, [cell for _, cell in ranked])
            if not others:
                text = f"{name} is the only model measured on {what}: {top['said']}."
            elif not reached:
                text = f"Of {len(ranked)} models, {name} {does} {what}: {top['said']}."
            else:
                some = f"{reached} of the {others} others" if others > 1 else "the other model"
                text = (
                    f"No model is clearly ahead on {what}: {name} ranks first ({top['said']}), but"
                    f" {some} {'is' if reached == 1 else 'are'} not measurably behind."
                )
            sentences.append(text)
    return sentences


def _subject(table: Table, suite: str) -> str:
    """The title of a suite inside a sentence: 'questions about places'."""
    title = str(table["titles"][suite])
    return title[:1].lower() + title[1:] if suite in SUITES else title


def _listed(names: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _of(some: Sequence[str], all_: Sized) -> str:
    """'1 of 2 models (tiny-llava)', 'none of 3 models', '7 of 12 models'; of a single model its
    name, or 'no model'."""
    n, total = len(some), len(all_)
    if total == 1:
        return some[0] if some else "no model"
    if not n:
        return f"none of {total} models"
    return f"{n} of {total} models" + (f" ({_listed(some)})" if n <= FEW else "")


def _most(items: Iterable[T], size: Callable[[T], float], models: Sized) -> list[T]:
    """What a sentence gives the numbers of, the largest first: FEW of a few models, else one."""
    return sorted(items, key=size, reverse=True)[: FEW if len(models) <= FEW else 1]


def _capital(text: str) -> str:
    """A sentence with a capital, but for the name of a model."""
    return text[:1].upper() + text[1:] if text.startswith("no") else text
