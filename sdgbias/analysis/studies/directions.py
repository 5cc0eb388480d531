"""The direction of answers (Fig. 4), also with options reversed, shuffled or labelled differently
(Table J), and over the wordings of each indicator's question.

Options ascend in value; an indicator's polarity defines the good end. Shares cover questions with
three options; those with two have no middle and are reported separately. ``answered_*`` cover the
same questions with a further category, 'invalid', where the model's most likely first token is none
of the question's letters. These four add up to one.

A Q-only prompt contains nothing about the place, so all questions of an indicator with the same
options are one prompt. Its intervals count prompts, not places; those of CTX+Q are the wider of
that over places and that over prompts. The number of distinct prompts is reported beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from sdgbias.analysis.calls import StudyRow, Values
from sdgbias.analysis.outcomes import TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, not_run
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods.cade import Floats, Ints, argmax_view
from sdgbias.raw.indicators import DIRECTIONS, POLARITIES, directions
from sdgbias.suites import extra_prompts, paraphrases
from sdgbias.types import OPTION_LETTERS, Task, View

PERTURBATION, WORDINGS = "perturbation", "wordings"
#: Questions with two options have no middle.
ENDS = (DIRECTIONS[0], DIRECTIONS[2])
#: Parameter of the rows of 'perturbation' -> kind of extra prompt ('' = the Q-only view).
ORDERS = {
    "original": "",
    "reversed": "q_reversed",
    "random": "q_random",
    "abc": "q_abc",
    "123": "q_123",
}
_NAN = float("nan")


def directed(items: pd.DataFrame, choice: Ints, options: int = 3) -> Floats:
    """(N,) options chosen (-1: none) -> 0 pessimistic, 1 conservative, 2 optimistic; NaN without an
    answer, a polarity, or that number of options."""
    values = np.full(len(items), _NAN)
    ranked = (items["n_options"].to_numpy() == options) & (choice >= 0)
    for polarity in POLARITIES:
        rows = ranked & (items["polarity"] == polarity).to_numpy()
        ranks = [DIRECTIONS.index(d) for d in directions(polarity, options)]
        values[rows] = np.array(ranks, dtype=float)[choice[rows]]
    return values


def share_of(says: Floats, direction: str) -> Floats:
    """(N,) 1 where an answer has this direction, 0 where another, NaN where none."""
    return np.where(np.isnan(says), _NAN, says == DIRECTIONS.index(direction))


def _shares(says: Floats, names: Sequence[str] = DIRECTIONS, suffix: str = "") -> dict[str, Floats]:
    return {f"share_{name}{suffix}": share_of(says, name) for name in names}


def invalid(cell: TaskCell, view: View) -> Floats:
    """(N,) 1 if the view's most likely first token is none of the question's letters, else 0; NaN
    if unknown."""
    code, tokens = pd.factorize(pd.Series(cell.top_token[view], dtype=object))
    texts = [str(token) for token in tokens]
    letters = [OPTION_LETTERS.find(t.strip()) if len(t.strip()) == 1 else -1 for t in texts]
    letter = np.array([*letters, -1])[code]  # the last: of no token
    unknown = np.array([*(text == "" for text in texts), True])[code]
    off = (letter < 0) | (letter >= cell.items["n_options"].to_numpy())
    return np.where(unknown, _NAN, off.astype(float))


def of_three(o: TaskOutcome, method: str) -> Values:
    """Shares of directions among questions with three options."""
    return _shares(directed(o.items, o.choice[method]))


def of_both(o: TaskOutcome, method: str) -> Values:
    """Shares of directions among questions with three options, and among those with two."""
    two = directed(o.items, o.choice[method], 2)
    return of_three(o, method) | _shares(two, ENDS, "_two_option")


def of_orders(o: TaskOutcome, method: str) -> Values:
    """As `of_both`; of questions with two options one share says all."""
    shares = of_both(o, method)
    return {
        name: values for name, values in shares.items() if name != "share_pessimistic_two_option"
    }


def of_ends(o: TaskOutcome, method: str) -> Values:
    """Shares of the two ends; nothing of numbers."""
    return {} if method in o.error else _shares(directed(o.items, o.choice[method]), ENDS)


def answered(o: TaskOutcome, method: str) -> Values:
    """Shares of directions and of answers whose first token is no letter of the question."""
    says = directed(o.items, o.choice[method])
    off = np.concatenate([invalid(cell, View(method))[cell.test_rows] for cell in o.cells])
    off = np.where(np.isnan(says), _NAN, off)
    shares = {f"answered_{d}": share_of(says, d) * (1 - off) for d in DIRECTIONS}
    return shares | {"answered_invalid": off}


def orders(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    """Q-only answers of the test split per order of options (parameter); an answer counts as the
    option whose text was at the chosen position, so that a lean towards a position shows as a
    change. One row not_run without the extra prompts table_j."""
    cell = run.cells.get((Task.MCQ, extra_prompts.TABLE_J_TEST))
    if cell is None:
        return
    if not any(view in cell.extra for view in ORDERS.values()):
        yield _lacking(PERTURBATION, cell, "extra pass table_j was not scored")
        return
    seed = int(run.run.get("seed") or 0)
    for order, view in ORDERS.items():
        if view and view not in cell.extra:
            continue
        shown = extra_prompts.orders(cell.items, view, seed)
        choice = argmax_view(cell.extra[view] if view else cell.logits[View.Q_ONLY], cell.present)
        content = np.where(choice >= 0, shown[np.arange(len(choice)), np.maximum(choice, 0)], -1)
        use = cell.test_rows & np.any(
            [~np.isnan(directed(cell.items, content, many)) for many in (2, 3)], axis=0
        )
        items = cell.items.loc[use].reset_index(drop=True)
        texts = items["question"] + "\x1f" + items["options"] + "\x1f"
        texts += pd.Series([str(o) for o in shown[use].tolist()])
        yield _of_prompts(cell, items, content[use], pd.factorize(texts)[0], {"parameter": order})


def wordings(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    """Q-only answers to the eight paraphrases of each indicator's question (extra prompts
    `paraphrases`) and to its own wording, where a paraphrase was answered: every wording with its
    options counts once. One row not_run without the extra prompts."""
    cell = run.cells.get((Task.MCQ, extra_prompts.TABLE_J_TEST))
    if cell is None:
        return
    views = [view for view in paraphrases.VIEWS if view in cell.extra]
    if not views:
        has_wordings = paraphrases.has_wordings(cell.items).any()
        foreign = "no question is worded as in indicators.yaml"
        why = "extra pass paraphrases was not scored" if has_wordings else foreign
        yield _lacking(WORDINGS, cell, why)
        return
    choices = [argmax_view(cell.extra[view], cell.present) for view in views]
    other = np.any([choice >= 0 for choice in choices], axis=0)
    q_choice = argmax_view(cell.logits[View.Q_ONLY], cell.present)
    choices.append(np.where(other, q_choice, -1))
    says = [~np.isnan(directed(cell.items, choice)) for choice in choices]
    items = pd.concat([cell.items[rows] for rows in says], ignore_index=True)
    choice = np.concatenate([c[rows] for c, rows in zip(choices, says, strict=True)])
    yield _of_prompts(cell, items, choice, np.arange(len(items)), {})


def _of_prompts(
    cell: TaskCell, items: pd.DataFrame, choice: Ints, prompt: Ints, at: dict[str, object]
) -> TaskOutcome:
    indicator = pd.factorize(items["indicator"], sort=True)[0].astype(np.int64)
    more = {"prompt": prompt.astype(np.int64), "indicator": indicator}
    by_method = {View.Q_ONLY.value: choice}
    return TaskOutcome(
        cell.task, cell.test.value, items, prompt, by_method, {}, {}, [cell], at=at, more=more
    )


def _lacking(study: str, cell: TaskCell, why: str) -> StudyRow:
    return not_run(study, why, test=cell.test.value, method=View.Q_ONLY.value)
