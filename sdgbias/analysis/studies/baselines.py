"""Study 'methods': every debiasing baseline of methods/baselines.py and every control, on the test
split, beside the Full view.

Estimation and tuning use val rows only. Numbers are those that the chosen first digit leads to
(Cell.by_digit).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from sdgbias.analysis.calls import StudyRow, Values
from sdgbias.analysis.outcomes import TaskOutcome, answered, outcomes, pooled
from sdgbias.analysis.rows import AnalysisSettings, not_run
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods import baselines, tuning
from sdgbias.methods.answers import parse_letter
from sdgbias.methods.baselines import METHODS, Evidence
from sdgbias.methods.cade import Bools, Floats, Ints, argmax_view
from sdgbias.types import Task, View

STUDY = "methods"
#: Choice of an answer that names no candidate: it counts as given and wrong.
NO_CANDIDATE = 99


class MethodAnswer(NamedTuple):
    """choice (N,): candidate index, -1 without an answer. note: the method's settings. expected
    (N,): probability of a right answer, for methods that draw at random."""

    choice: Ints
    note: str
    expected: Floats | None = None


def debiased(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    """The answers of each test with those of every method and control, and pooled. A method that
    can't run has one row not_run, whose note gives the reason."""
    for task in Task:
        cells = run.of(task)
        if not any(cell.test_rows.any() for cell in cells):
            continue
        absent = {name: why for name in METHODS if (why := _why_not(name, cells))}
        for name, why in absent.items():
            yield not_run(STUDY, why, task=task.value, method=name)
        methods = [name for name in METHODS if name not in absent]
        done = []
        for cell, o in zip(cells, outcomes(cells), strict=True):
            e, chances, notes = evidence(cell), dict[str, Floats](), dict[str, str]()
            by_method = {name: _debiased(name, cell, e, settings) for name in methods}
            for name, a in (by_method | _controls(cell, settings)).items():
                o, notes[name] = answered(o, cell, name, a.choice), a.note
                if a.expected is not None:
                    chances[name] = a.expected[cell.test_rows]
            done.append(replace(o, notes=notes, more=chances))
        yield from done
        whole = pooled(done)
        notes = {m: note for m, note in done[0].notes.items() if m in whole.hit}
        for m in notes:
            if m in METHODS and METHODS[m].tuned:
                notes[m] = f"{METHODS[m].title}; {_tuned(settings)}, each test by itself"
        yield replace(whole, notes=notes)


def noted(o: TaskOutcome) -> Iterable[str]:
    """The methods and controls, without the views."""
    return o.notes


def expected(o: TaskOutcome, method: str) -> Values:
    """The probability of a right answer, of methods that draw at random."""
    return {"expected_accuracy": o.more[method]} if method in o.more else {}


def evidence(cell: TaskCell) -> Evidence:
    """The inputs of the methods from a cell, without labels."""
    items = cell.items
    keys = (
        items["target"]
        if cell.task is Task.REGRESSION
        else items["indicator"] + "\t" + items["n_options"].astype(str)
    )
    full, ctx, img, q = (cell.filled(v) for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY))
    group = pd.factorize(keys, sort=True)[0].astype(np.int64)
    return Evidence(full, ctx, img, q, cell.present, group, cell.val)


def _debiased(name: str, cell: TaskCell, e: Evidence, settings: AnalysisSettings) -> MethodAnswer:
    """The answers of a method to all N items of a cell."""
    method, note = METHODS[name], ""
    values = dict(method.settings)
    if method.tuned:
        how = {"draws": settings.draws, "seed": settings.seed}
        tuned = tuning.tune(name, e, cell.payoff, cell.val, **how)
        assert tuned is not None  # _why_not
        values, note = {**values, **tuned.settings}, f"{_tuned(settings)}; "
    note = f"{method.title}; {note}{_listed(values)}".removesuffix("; ")
    return MethodAnswer(baselines.predict(baselines.scores(name, e, **values)), note)


def _why_not(name: str, cells: Sequence[TaskCell]) -> str:
    """Why a method can't run on these cells, '' if it can."""
    method = METHODS[name]
    for cell in cells:
        if not np.isfinite(cell.filled(View.FULL)).any():
            return "needs scores of the Full view, which no question has"
        if method.tuned and not (cell.val & np.isfinite(cell.payoff).all(axis=1)).any():
            return "no val rows to tune on"
    return ""


# ----------------------------------------------------------------------
# controls


def _controls(cell: TaskCell, settings: AnalysisSettings) -> dict[str, MethodAnswer]:
    """Answers that use no input, or only the Full view (METHODS 1.12)."""
    if cell.task is Task.REGRESSION:
        choice = argmax_view(cell.filled(View.FULL), cell.present)
        return {"full_candidate": MethodAnswer(choice, "number of the likeliest first digit")}
    pillar = pd.factorize(cell.items["pillar"], sort=True)[0].astype(np.int64)
    rules = {
        f"always_{c.lower()}": MethodAnswer(np.full(len(cell.items), j), f"always {c}")
        for j, c in enumerate(cell.letters)
    }
    if cell.val.any():
        shares = letter_shares(cell.gold, cell.present, pillar, cell.val)
        best = np.argmax(np.where(cell.present, shares, -1.0), axis=1).astype(np.int64)
        rules["best_letter"] = MethodAnswer(best, "most frequent gold letter of the pillar on val")
        drawn = np.random.default_rng(settings.seed).random(len(shares))[:, None]
        drawn = drawn * shares.sum(axis=1, keepdims=True)
        choice = np.argmax(drawn < np.cumsum(shares, axis=1), axis=1).astype(np.int64)
        note = f"drawn by the pillar's gold letters on val, seed {settings.seed}"
        expected = shares[np.arange(len(shares)), cell.gold]
        rules["prior_sampling"] = MethodAnswer(choice, note, expected)
    note = "first token of greedy decoding; none of the letters is wrong"
    rules["full_first_token"] = MethodAnswer(_first_token(cell), note)
    return rules


def letter_shares(gold: Ints, present: Bools, group: Ints, fit: Bools) -> Floats:
    """(N, K) share of each letter of the item among the gold letters of its group's fit rows;
    uniform where none are known."""
    width, size = present.shape[1], int(group.max(initial=-1)) + 1
    counts = np.bincount(group[fit] * width + gold[fit], minlength=size * width).reshape(
        size, width
    )
    shares = np.where(present, counts[group], 0.0)
    shares = np.where(shares.sum(axis=1, keepdims=True) > 0, shares, present.astype(float))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _first_token(cell: TaskCell) -> Ints:
    """(N,) first letter of greedy decoding, NO_CANDIDATE for anything else, -1 without a score."""
    scored = np.isfinite(cell.logits[View.FULL]).any(axis=1)
    tokens = pd.Series(cell.top_token[View.FULL], dtype=object)
    choice = np.full(len(tokens), NO_CANDIDATE, dtype=np.int64)
    for token in tokens[scored].unique():
        letter = parse_letter(str(token), cell.letters)
        if letter is not None:
            choice[(tokens == token).to_numpy()] = cell.letters.index(letter)
    return np.where(scored, choice, -1)


def _tuned(settings: AnalysisSettings) -> str:
    return f"tuned on val, {settings.draws:,} draws"


def _listed(settings: Mapping[str, object]) -> str:
    def text_of(value: object) -> str:
        if isinstance(value, tuple):
            return "+".join(map(str, value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name}={text_of(value)}" for name, value in settings.items())
