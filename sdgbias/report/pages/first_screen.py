"""The first screen of the overview: which way each model leans, by pillar, before and after CADE,
as one picture, and five questions answered in sentences. Each sentence follows from intervals by a
stated rule and names the cell that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from sdgbias import wording
from sdgbias.analysis import night_text
from sdgbias.analysis.nights import NightRecord
from sdgbias.methods import stats
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import matrix
from sdgbias.report.leans import Lean, leaning
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


def picture(cells: Cells, truth: Sequence[Bar], order: Sequence[str]) -> dict[str, Any]:
    """rows: model, planted, cells (bars and verdict of each level), in the ``order`` of the
    leaderboard, those that lean most first. ``truth``: as `right_answers` gives it."""
    kind = {run["model"]: run["provenance"] for run in cells.runs}
    rows = []
    for model in (m for m in order if m in kind):
        leans = {lean.pillar: lean for lean in leaning(cells, model, tuple(LEVELS))}
        levels = [
            {
                "level": title,
                "bars": _bars(cells, model, level),
                "verdict": _verdict(leans[level]) if level in leans else "not asked",
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
        "truth": truth,
    }


def shares(cells: Cells, model: str, level: str, method: str) -> dict[str, Estimate]:
    """Direction -> share of a model's answers on a level ('all' or a pillar): without evidence over
    the wordings of the questions where they were scored; else over all context tests. {} where one
    is missing."""
    if method == "q_only" and (worded := cells.wordings(model, level)):
        return worded
    test = "T1" if method == "q_only" else ALL
    where = {"model": model, "task": "mcq", "test": test, "pillar": level}
    methods = (method, "full_generated") if method == "full" else (method,)
    for name in methods:
        values = {d: cells.estimate(**where, method=name, metric=f"share_{d}") for d in DIRECTIONS}
        defined = {d: e for d, e in values.items() if e is not None}
        if len(defined) == len(DIRECTIONS):
            return defined
    return {}


def _verdict(lean: Lean) -> str:
    """The verdict as a cell of the picture has it. Answers that are all alike must not read as if
    they pointed nowhere: 'all optimistic (5 prompts), too few to say'."""
    if lean.alike and not lean.verdict.startswith("leans "):
        reason = "too few to say" if "too few" in lean.verdict else "could be chance"
        return f"all {lean.alike} ({lean.prompts.replace('distinct ', '')}): {reason}"
    return lean.short


def _bars(cells: Cells, model: str, level: str) -> list[Bar]:
    drawn = {name: shares(cells, model, level, method) for method, name in BARS.items()}
    return [Bar(name, estimates) for name, estimates in drawn.items() if estimates]


def _strength(bars: Sequence[Bar]) -> float:
    """How far the answers without evidence are from a third each."""
    return max((abs(e.value - 1 / 3) for e in bars[0].shares.values()), default=0) if bars else 0


def right_answers(reader: Reader, cells: Cells) -> list[Bar]:
    """The bars of the right answers, by level; none where the models were asked on different
    benchmarks."""
    rows = reader.ask(SQL["right-answers"], {"runs": [run["run_id"] for run in cells.runs]})
    if len({r["benchmark_id"] for r in rows}) != 1:
        return []
    bars = []
    for level in LEVELS:
        counts = {r["direction"]: r["n"] for r in rows if r["pillar"] == level}
        total = sum(counts.values())
        parts = {d: Estimate(counts.get(d, 0) / max(total, 1), total) for d in DIRECTIONS}
        bars.append(Bar("right answers", parts))
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
    rows = [r for r in table["rows"] if r["provenance"] != "planted"] or list(table["rows"])
    candidates = [
        _leaning(rows, cells),
        _debiasing(table, rows, cells, right_answers(reader, cells) if cells else []),
        _recognition(reader, table, rows),
        _last_night(night),
        _trust(reader, table, cells, runs),
    ]
    return [answer for answer in candidates if answer is not None]


def _leaning(rows: Sequence[Mapping[str, Any]], cells: Cells | None) -> ScreenAnswer | None:
    if cells is None:
        return None
    models = [m for m in (r["model"] for r in rows) if m in set(cells.models)]
    whole = {m: leans[0] for m in models if (leans := leaning(cells, m, (ALL,)))}
    if not whole:
        return None
    ways = {w: [m for m, v in whole.items() if v.verdict == f"leans {w}"] for w in DIRECTIONS}
    silent = [m for m, v in whole.items() if not v.verdict.startswith("leans ")]
    lead = [
        f"{_listed(of)} {'leans' if len(of) == 1 else 'lean'} {way}"
        for way, of in ways.items()
        if of
    ]
    if silent:
        named = _listed(silent) if len(silent) <= FEW else f"{len(silent)} models"
        lead.append(f"no lean over all pillars can be stated for {named}")
    order = sorted(whole, key=lambda m: -_strength(_bars(cells, m, ALL)))
    strongest = order[: _told(whole)]
    numbers = [f"{m}: {whole[m].shares}; {whole[m].prompts}." for m in strongest]
    by_pillar = [
        f"{m} leans {lean.short} in {lean.pillar}"
        for m in whole
        for lean in leaning(cells, m)
        if lean.verdict.startswith("leans ") and lean.verdict != whole[m].verdict
    ]
    if by_pillar:
        more = f" and {len(by_pillar) - FEW} more" if len(by_pillar) > FEW else ""
        numbers.append(f"In single pillars: {'; '.join(by_pillar[:FEW])}{more}.")
    question = "Which way do models lean without evidence?"
    return ScreenAnswer(question, f"{_capital('; '.join(lead))}.", " ".join(numbers))


def _debiasing(
    table: Table, rows: Sequence[Mapping[str, Any]], cells: Cells | None, truth: Sequence[Bar]
) -> ScreenAnswer | None:
    """What CADE takes out of the answers, and what it does to accuracy."""
    moved = {r["model"]: m for r in rows if cells and (m := _excess(cells, r["model"], truth))}
    gains = {
        model: Estimate.of_row(cell["row"])
        for suite in [c.suite for c in table["columns"] if c.metric == "accuracy_gain"][:1]
        for model, cell in _column(table, rows, suite, "accuracy_gain")
    }
    lead, numbers = [], []
    if moved:
        nearer = [
            model
            for model, (_, before, after, truth) in moved.items()
            if abs(after.value - truth) < abs(before.value - truth)
        ]
        lead.append(
            "For " + _of(nearer, moved) + " CADE moves the direction given too often nearer to its"
            " share of the right answers."
        )
        largest = sorted(moved, key=lambda m: moved[m][3] - moved[m][1].value)[: _told(moved)]
        numbers += [
            f"{model}: {wording.percent(before)} {way} with all evidence"
            f" {wording.written(before).aside}, {wording.written(after)} after CADE; right answers"
            f" {wording.amount(truth, 'accuracy')}."
            for model in largest
            for way, before, after, truth in (moved[model],)
        ]
    if gains:
        of = {s: [m for m, e in gains.items() if wording.sign_of(e) == s] for s in (1, -1)}
        verbs = [f"improves the accuracy of {_of(of[1], gains)}"]
        verbs += [f"lowers that of {_of(of[-1], gains)}"] if of[-1] else []
        lead.append(f"It {' and '.join(verbs)}." if moved else f"CADE {' and '.join(verbs)}.")
        named = sorted(gains, key=lambda m: -abs(gains[m].value))[: _told(gains)]
        numbers += [
            f"Change in accuracy of {m}: {wording.written(gains[m], 'accuracy_gain')}"
            f"{'' if wording.sign_of(gains[m]) else ', which includes zero'}."
            for m in named
        ]
    question = "What does CADE take out, and at what price?"
    return ScreenAnswer(question, " ".join(lead), " ".join(numbers)) if lead else None


def _excess(
    cells: Cells, model: str, truth: Sequence[Bar]
) -> tuple[str, Estimate, Estimate, float] | None:
    """The direction that a model's answers with all evidence overstate most: its share before and
    after CADE, and among the right answers."""
    before, after = (shares(cells, model, ALL, method) for method in ("full", "cade"))
    if not before or not after or not truth:
        return None
    right = {d: e.value for d, e in truth[0].shares.items()}
    way = max(DIRECTIONS, key=lambda d: before[d].value - right[d])
    return way, before[way], after[way], right[way]


def _recognition(
    reader: Reader, table: Table, rows: Sequence[Mapping[str, Any]]
) -> ScreenAnswer | None:
    """Differences of the leaderboard's cell (prompt p1, all classes) that it marks, then those of
    the other prompts, and models that were not understood."""
    columns = [(i, c) for i, c in enumerate(table["columns"]) if c.metric == "disparity"]
    tested = [r for r in rows if r["runs"].get(FACET)]
    if not columns or not tested:
        return None
    question = "Who is recognised less often?"
    measured = [r for r in tested if any(r["cells"][i]["sort"] is not None for i, _ in columns)]
    if not measured:
        silent = _listed([r["model"] for r in tested])
        return ScreenAnswer(
            question, f"No answer about people of {silent} was understood.", "", FACET
        )
    first = [
        (r["model"], pair, Estimate.of_row(r["cells"][i]["row"]))
        for r in measured
        for pair, (i, _) in zip(PAIRS.values(), columns, strict=True)
        if r["cells"][i]["mark"]
    ]
    models = [r["model"] for r in measured]
    marked = sorted({model for model, _, _ in first})
    lead = (
        f"{_capital(_of(marked, measured))} recognise{'s' if len(marked) == 1 else ''} one group"
        " less often than another (prompt p1, all classes)."
        if first
        else f"At prompt p1 (all classes, {wording.many(len(measured), 'model')}) no difference"
        " between groups is clearer than chance."
    )
    others = _other_prompts(reader, {r["runs"][FACET]: r["model"] for r in measured})
    numbers = [_less(*row) for row in _largest(first, _told(measured))]
    if others:
        numbers.append(
            f"At other prompts {wording.many(len(others), 'difference')} can be distinguished from"
            " chance (Holm over groups and prompts of a model)."
        )
        numbers += [_less(m, pair, e, at) for at, m, pair, e in _largest(others, 1)]
    silent_models = [
        r["model"]
        for r in tested
        if r["model"] not in models
        and any(NOT_UNDERSTOOD in r["cells"][i]["why"] for i, _ in columns)
    ]
    if silent_models:
        numbers.append(f"No answer of {_listed(silent_models)} was understood.")
    return ScreenAnswer(question, lead, " ".join(numbers), FACET)


def _other_prompts(
    reader: Reader, model_of: Mapping[str, str]
) -> list[tuple[str, str, tuple[str, str], Estimate]]:
    """(prompt, model, groups, difference) of the prompts that the leaderboard doesn't show, where
    it is measurable among those of all these prompts and groups of its model."""
    pair_of = {f"{name}:{'-'.join(pair)}": pair for name, pair in PAIRS.items()}
    sql = SQL["other-prompts"]
    rows = reader.ask(sql, {"runs": list(model_of), "pairs": list(pair_of)})
    differences = []
    for run, part in groupby(rows, itemgetter("run_id")):
        family = list(part)
        apart = stats.apart_from_zero([Estimate.of_row(r) for r in family])
        differences += [
            (r["test"], model_of[run], pair_of[r["pillar"]], Estimate.of_row(r))
            for r, measurable in zip(family, apart, strict=True)
            if measurable
        ]
    return differences


def _largest(rows: Sequence[Any], most: int) -> list[Any]:
    return sorted(rows, key=lambda row: -abs(row[-1].value))[:most]


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


def _last_night(night: NightRecord | None) -> ScreenAnswer | None:
    if night is None:
        return None
    return ScreenAnswer("What changed last night?", night_text.headline(night), "", "night")


def _trust(
    reader: Reader, table: Table, cells: Cells | None, runs: Sequence[Mapping[str, Any]]
) -> ScreenAnswer | None:
    """Whether planted biases are measured as planted, how many prompts failed, what was left
    out."""
    checks = [
        check
        for r in table["rows"]
        if r["provenance"] == "planted"
        for check in planted_checks(table, r, cells, runs)
    ]
    planned, failed = (sum(int(r[k] or 0) for r in runs) for k in ("n_prompts_planned", "n_failed"))
    lead, numbers = [], []
    if checks:
        right = sum(ok for ok, _ in checks)
        lead.append(f"{right} of {len(checks)} planted biases are measured as planted")
        if wrong := [text for ok, text in checks if not ok]:
            numbers.append(f"Not as planted: {_listed(wrong)}.")
    if planned:
        lead.append(f"{failed:,} of {planned:,} prompts failed")
        numbers.append("A failed prompt is never scored as wrong.")
    given = {"runs": [run["run_id"] for run in cells.runs] if cells else []}
    if left := sum(r["n"] for r in reader.ask(SQL["quarantine"], given)):
        numbers.append(f"The quality gate left {left:,} faulty rows out of the benchmark.")
    question = "Can these numbers be trusted?"
    return ScreenAnswer(question, f"{'; '.join(lead)}.", " ".join(numbers)) if lead else None


def planted_checks(
    table: Table,
    row: Mapping[str, Any],
    cells: Cells | None,
    runs: Sequence[Mapping[str, Any]],
) -> list[tuple[bool, str]]:
    """(whether it is measured, what) of each bias that the entry of a planted model names: the
    direction without evidence (most answers have it), and differences of recall between groups
    (inside their intervals)."""
    model, checks = row["model"], []
    options: dict[str, Any] = {}
    for run in (r for r in runs if r["model"] == model):
        spec = parsed(run["config"]).get("spec") or {}
        options |= spec.get("options") or {}
    way = _planted_way(options)
    if way and cells is not None and (estimates := shares(cells, model, ALL, "q_only")):
        checks.append((max(estimates, key=lambda d: estimates[d].value) == way, f"{model}, {way}"))
    effects = options.get("effects") or {}
    for (one, other), (i, c) in zip(
        PAIRS.values(),
        [(i, c) for i, c in enumerate(table["columns"]) if c.metric == "disparity"],
        strict=False,
    ):
        if effects and row["cells"][i]["sort"] is not None:
            truth, e = effects.get(one, 0) - effects.get(other, 0), row["cells"][i]["row"]
            if e["ci_low"] is not None and e["ci_low"] == e["ci_low"]:
                checks.append((e["ci_low"] <= truth <= e["ci_high"], f"{model}, {c.title}"))
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
    at = next(
        (i for i, c in enumerate(table["columns"]) if (c.suite, c.metric) == (suite, metric)), None
    )
    if at is None:
        return []
    cells = [(r["model"], r["cells"][at]) for r in rows]
    return [(m, c) for m, c in cells if c["sort"] is not None and not c["other"]]


def best(table: Table) -> list[str]:
    """A sentence for each suite on the model that is best in its headline number; measured models
    only, planted ones where there are no others."""
    rows = [r for r in table["rows"] if r["provenance"] != "planted"] or list(table["rows"])
    sentences = []
    for suite, title in zip(table["benchmarks"], dict(table["groups"]), strict=True):
        what = title[:1].lower() + title[1:] if suite in SUITES else title
        metrics = [c.metric for c in table["columns"] if c.suite == suite]
        recognises = "recall" in metrics
        does = "recognises most on" if recognises else "is the most accurate on"
        ranked = _column(table, rows, suite, "recall" if recognises else metrics[0])
        if ranked:
            name, top = max(ranked, key=lambda k: k[1]["sort"])
            others = matrix.reach(top, [cell for _, cell in ranked])
            if len(ranked) == 1:
                text = f"{name} is the only model measured on {what}: {top['said']}."
            elif others == 0:
                text = f"Of {len(ranked)} models, {name} {does} {what}: {top['said']}."
            else:
                text = (
                    f"No model is the best on {what} beyond its interval: {name} comes first"
                    f" ({top['said']}), and {others} of the {len(ranked) - 1} others don’t differ"
                    " from it measurably."
                )
            sentences.append(text)
    return sentences


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


def _told(models: Sized) -> int:
    """Of how many models a sentence gives the numbers: all of a few, else the most extreme."""
    return FEW if len(models) <= FEW else 1


def _capital(text: str) -> str:
    """A sentence with a capital, but for the name of a model."""
    return text[:1].upper() + text[1:] if text.startswith("no") else text
