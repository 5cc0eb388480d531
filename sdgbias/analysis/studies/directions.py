"""Studies of the direction of answers: 'directions' (Fig. 4), with the contribution of picture and
context (Fig. 5); 'perturbation' (Table J), with options reversed, shuffled or labelled differently;
'wordings', over the wordings of each indicator's question.

Options ascend in value; an indicator's polarity defines the good end. Shares cover questions with
three options; those with two have no middle and are reported separately. ``answered_*`` cover the
same questions with a further category, 'invalid', where the model's most likely first token is none
of the question's letters. These four add up to one.

A Q-only prompt contains nothing about the place, so all questions of an indicator with the same
options are one prompt. Its intervals count prompts, not places, as do those of CTX+Q where the
context has no value; the number of distinct prompts is reported beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Call, StudyRow, distinct, levels_of, measured
from sdgbias.analysis.rows import AnalysisSettings, not_run
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods.cade import Floats, Ints, argmax_view
from sdgbias.raw.indicators import DIRECTIONS, POLARITIES, directions
from sdgbias.suites import extra_prompts, paraphrases
from sdgbias.types import OPTION_LETTERS, Task, View

STUDY, PERTURBATION, WORDINGS = "directions", "perturbation", "wordings"
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


def _shares(says: Floats, names: Sequence[str] = DIRECTIONS, suffix: str = "") -> dict[str, Floats]:
    return {f"share_{name}{suffix}": share_of(says, name) for name in names}


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


def _calls(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """Shares per pillar, indicator, view (and CADE) and test; distinct prompts; accuracy of Full
    minus that of a view without the picture (the picture's contribution) or without the context."""
    cells = answers.reportable(run, Task.MCQ)
    for o, mine in zip(answers.pools(run, Task.MCQ), [*([c] for c in cells), cells], strict=False):
        levels = levels_of(o.items)
        for method, choice in o.choice.items():
            columns, unit = o.columns(method), [answers.unit(o, method)]
            three, two = directed(o.items, choice), directed(o.items, choice, 2)
            yield Call(columns, levels, _shares(three) | _shares(two, ENDS, "_two_option"), unit)
            if method != answers.CADE:
                off = np.concatenate([invalid(c, View(method))[c.test_rows] for c in mine])
                off = np.where(np.isnan(three), _NAN, off)
                says = {f"answered_{d}": share_of(three, d) * (1 - off) for d in DIRECTIONS}
                yield Call(columns, levels[:2], says | {"answered_invalid": off}, unit)
        full = View.FULL.value
        for view in (View.CTX_Q.value, View.IMG_Q.value):
            if view in o.hit:
                gap, units = {"accuracy_gain": o.hit[full] - o.hit[view]}, answers.units(o, view)
                columns = o.columns(full, versus=view)
                yield Call(columns, levels, gap, units, "difference", tested=True)
        prompt = answers.prompts(o.items)
        yield from distinct(STUDY, levels, prompt, o.columns(View.Q_ONLY.value))


def _perturbed(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """Shares of Q-only answers per order of options (parameter) and share_optimistic_two_option,
    test split; an answer counts as the option whose text was at the chosen position, so that a lean
    towards a position shows as a change. One row not_run without the extra prompts table_j."""
    cell = run.cells.get((Task.MCQ, extra_prompts.TABLE_J_TEST))
    if cell is None:
        return
    common = {"test": cell.test.value, "method": View.Q_ONLY.value}
    if not any(view in cell.extra for view in ORDERS.values()):
        yield not_run(PERTURBATION, "extra pass table_j was not scored", **common)
        return
    seed = int(run.run.get("seed") or 0)
    for order, view in ORDERS.items():
        if not view or view in cell.extra:
            columns = common | {"parameter": order}
            yield from _of_order(cell, view, seed, columns)


def _of_order(
    cell: TaskCell, view: str, seed: int, columns: Mapping[str, object]
) -> Iterator[Call | StudyRow]:
    shown = extra_prompts.orders(cell.items, view, seed)
    choice = argmax_view(cell.extra[view] if view else cell.logits[View.Q_ONLY], cell.present)
    content = np.where(choice >= 0, shown[np.arange(len(choice)), np.maximum(choice, 0)], -1)
    three, two = directed(cell.items, content), directed(cell.items, content, 2)
    use = cell.test_rows & ~(np.isnan(three) & np.isnan(two))
    items = cell.items.loc[use].reset_index(drop=True)
    order = pd.Series([str(o) for o in shown[use].tolist()])
    texts = items["question"] + "\x1f" + items["options"] + "\x1f" + order
    prompt, levels = pd.factorize(texts)[0].astype(np.int64), levels_of(items)
    values = _shares(three[use]) | _shares(two[use], ENDS[1:], "_two_option")
    yield Call(columns, levels, values, [prompt])
    yield from distinct(PERTURBATION, levels, prompt, columns)


def _worded(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """Shares of Q-only prompts of three options, the eight paraphrases of each indicator's question
    (extra prompts `paraphrases`) beside its own wording: every wording with its options counts
    once. ``share_...`` of a pillar, or of all, has the wider of the interval over indicators and
    that over prompts, so that it holds for other indicators and other wordings; that of one
    indicator, and ``wordings_share_...``, hold for other wordings only. distinct_prompts and
    distinct_indicators; one row not_run without the extra prompts."""
    cell = run.cells.get((Task.MCQ, extra_prompts.TABLE_J_TEST))
    if cell is None:
        return
    common = {"test": cell.test.value, "method": View.Q_ONLY.value}
    if not any(view in cell.extra for view in paraphrases.VIEWS):
        asked = paraphrases.asked(cell.items).any()
        foreign = "no question is worded as in indicators.yaml"
        note = "extra pass paraphrases was not scored" if asked else foreign
        yield not_run(WORDINGS, note, **common)
        return
    prompts = _prompts(cell)
    values = _shares(prompts["says"].to_numpy())
    prompt = np.arange(len(prompts))
    indicator = pd.factorize(prompts["indicator"], sort=True)[0].astype(np.int64)
    levels = levels_of(prompts)
    yield Call(common, levels[:2], values, [indicator, prompt])
    yield Call(common, levels[2:], values, [prompt])
    same = {f"wordings_{metric}": value for metric, value in values.items()}
    yield Call(common, levels[:2], same, [prompt])
    for metric, unit in (("distinct_prompts", prompt), ("distinct_indicators", indicator)):
        yield from distinct(WORDINGS, levels, unit, common, metric)


def _prompts(cell: TaskCell) -> pd.DataFrame:
    """pillar, indicator, says (as `directed`) of every distinct answered prompt with three options
    and a direction: the paraphrases, and the reference wording where a paraphrase was answered."""
    choices = [
        argmax_view(cell.extra[v], cell.present) for v in paraphrases.VIEWS if v in cell.extra
    ]
    other = np.any([choice >= 0 for choice in choices], axis=0)
    own = argmax_view(cell.logits[View.Q_ONLY], cell.present)
    answered = []
    for choice in (*choices, np.where(other, own, -1)):
        says = cell.items[["pillar", "indicator"]].assign(says=directed(cell.items, choice))
        answered.append(says[says["says"].notna()])
    return pd.concat(answered, ignore_index=True)


rows = measured(STUDY, _calls, lambda r: r["metric"] == "accuracy_gain" or None)
perturbation = measured(PERTURBATION, _perturbed)
wordings = measured(WORDINGS, _worded)
