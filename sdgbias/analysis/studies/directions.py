"""Study 'directions': the direction of the answers (Fig. 4), and the contribution of picture and
context (Fig. 5).

Options ascend in value; an indicator's polarity defines the good end. Shares cover questions with
three options; those with two have no middle and are reported separately. ``answered_*`` cover the
same questions with a further category, 'invalid', where the model's most likely first token is none
of the question's letters. These four add up to one.

A Q-only prompt contains nothing about the place, so all questions of an indicator with the same
options are one prompt. Its intervals count prompts, not places, as do those of CTX+Q where the
context has no value; the number of distinct prompts is reported beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.outcomes import Level, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, table
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods.cade import Floats, Ints
from sdgbias.raw.indicators import DIRECTIONS, POLARITIES, directions
from sdgbias.types import OPTION_LETTERS, Task, View

STUDY = "directions"
#: Questions with two options have no middle.
ENDS = (DIRECTIONS[0], DIRECTIONS[2])
_NAN = float("nan")


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """Shares per pillar, indicator, view (and CADE) and test; distinct prompts; gaps between views
    with paired intervals."""
    made: list[dict[str, object]] = []
    cells = answers.reportable(run, Task.MCQ)
    for o, mine in zip(answers.pools(run, Task.MCQ), [*([c] for c in cells), cells], strict=False):
        prompt, levels = answers.prompts(o.items), answers.levels(o.items)
        made += _shares(o, mine, levels) + _gaps(o, levels)
        for level in levels:
            made += answers.distinct(STUDY, level, prompt, o.columns(View.Q_ONLY.value))
    answers.adjust([r for r in made if str(r["metric"]).startswith("full_minus_")])
    return table(made)


def directed(items: pd.DataFrame, choice: Ints, options: int = 3) -> Floats:
    """(N,) options chosen (-1: none) -> 0 pessimistic, 1 conservative, 2 optimistic; NaN without an
    answer, a polarity, or that number of options."""
    found = np.full(len(items), _NAN)
    mine = (items["n_options"].to_numpy() == options) & (choice >= 0)
    for polarity in POLARITIES:
        rows = mine & (items["polarity"] == polarity).to_numpy()
        ranks = [DIRECTIONS.index(d) for d in directions(polarity, options)]
        found[rows] = np.array(ranks, dtype=float)[choice[rows]]
    return found


def share_of(says: Floats, direction: str) -> Floats:
    """(N,) 1 where an answer has this direction, 0 where another, NaN where none."""
    return np.where(np.isnan(says), _NAN, says == DIRECTIONS.index(direction))


def invalid(cell: TaskCell, view: View) -> Floats:
    """(N,) 1 if the view's most likely first token is none of the question's letters, else 0; NaN
    if unknown."""
    code, tokens = pd.factorize(pd.Series(cell.top_token[view], dtype=object))
    place = np.array(
        [OPTION_LETTERS.find(str(t).strip()) if len(str(t).strip()) == 1 else -1 for t in tokens]
        or [-1]
    )
    silent = np.array([str(t) == "" for t in tokens] or [True])
    where = place[np.maximum(code, 0)]
    wrong = (where < 0) | (where >= cell.items["n_options"].to_numpy())
    return np.where((code < 0) | silent[np.maximum(code, 0)], _NAN, wrong.astype(float))


def _shares(
    o: TaskOutcome, cells: Sequence[TaskCell], levels: Sequence[Level]
) -> list[dict[str, object]]:
    made = []
    for method, choice in o.choice.items():
        three, two = directed(o.items, choice), directed(o.items, choice, 2)
        columns = {f"share_{d}": share_of(three, d) for d in DIRECTIONS}
        columns |= {f"share_{d}_two_option": share_of(two, d) for d in ENDS}
        answered: dict[str, Floats] = {}
        if method != answers.CADE:
            off = np.concatenate([invalid(cell, View(method))[cell.test_rows] for cell in cells])
            counted = np.where(np.isnan(three), _NAN, off)
            answered = {f"answered_{d}": share_of(three, d) * (1 - counted) for d in DIRECTIONS}
            answered["answered_invalid"] = counted
        unit = answers.unit(o, method)
        for level in levels:
            alone = level.columns[0]["indicator"] != "all"
            values = columns | ({} if alone else answered)
            made += answers.rows_of(STUDY, level, values, [unit], o.columns(method))
    return made


def _gaps(o: TaskOutcome, levels: Sequence[Level]) -> list[dict[str, object]]:
    """Accuracy of Full minus that of a view without the picture (the picture's contribution) or
    without the context."""
    full, common = o.hit[View.FULL.value], o.columns(View.FULL.value)
    made = []
    for view in (View.CTX_Q.value, View.IMG_Q.value):
        if view not in o.hit:
            continue
        gap, units = {f"full_minus_{view}": full - o.hit[view]}, answers.units(o, view)
        for level in levels:
            made += answers.rows_of(
                STUDY, level, gap, units, common, kind="difference", tested=True
            )
    return made
