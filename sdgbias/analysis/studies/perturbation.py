"""Study 'perturbation': direction of Q-only answers when options are reversed, shuffled or labelled
differently (Table J).

An answer counts as the option whose text was at the chosen position, so that a lean towards a
position shows as a change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sdgbias.analysis.outcomes import distinct, levels, rows_of, spread
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods.cade import argmax_view
from sdgbias.raw.indicators import directions
from sdgbias.suites import extra_prompts
from sdgbias.types import Task, View

STUDY = "perturbation"
#: Level of the rows -> kind of extra prompt ('' = the Q-only view).
ORDERS = {
    "original": "",
    "reversed": "q_reversed",
    "random": "q_random",
    "abc": "q_abc",
    "123": "q_123",
}


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """Shares of optimistic, conservative and pessimistic Q-only answers per order of options (by
    'order'), for questions with three options, and share_optimistic_two_option. distinct_prompts is
    reported beside them: intervals count distinct prompts, because many items share a Q-only
    prompt. One row not_run without the extra prompts table_j. Test split."""
    cell = run.cells.get((Task.MCQ, extra_prompts.TABLE_J_TEST))
    if cell is None:
        return table([])
    if not any(view in cell.extra for view in ORDERS.values()):
        note = "extra pass table_j was not scored"
        return table(
            [row(STUDY, "not_run", float("nan"), test=cell.test.value, method="q_only", note=note)]
        )
    seed = int(run.run.get("seed") or 0)
    made: list[dict[str, object]] = []
    for level, view in ORDERS.items():
        if not view or view in cell.extra:
            made += _rows(cell, level, view, seed)
    return table(made)


def _rows(cell: TaskCell, order: str, view: str, seed: int) -> list[dict[str, object]]:
    shown = extra_prompts.orders(cell.items, view, seed)
    choice = argmax_view(cell.extra[view] if view else cell.logits[View.Q_ONLY], cell.present)
    content = np.where(choice >= 0, shown[np.arange(len(choice)), np.maximum(choice, 0)], -1)
    says = answer_directions(cell.items, content)
    use = cell.test_rows & (says != "")
    three = cell.items["n_options"].to_numpy()[use] == 3
    items = cell.items.loc[use].reset_index(drop=True)
    prompt = pd.factorize(
        items["question"]
        + "\x1f"
        + items["options"]
        + "\x1f"
        + pd.Series([str(o) for o in shown[use].tolist()])
    )[0].astype(np.int64)
    values = {
        f"share_{name}": np.where(three, says[use] == name, np.nan)
        for name in ("optimistic", "conservative", "pessimistic")
    } | {"share_optimistic_two_option": np.where(three, np.nan, says[use] == "optimistic")}
    columns: dict[str, Any] = {
        "test": cell.test.value,
        "method": "q_only",
        "by": "order",
        "level": order,
    }
    made: list[dict[str, object]] = []
    for level in levels(items):
        made += rows_of(STUDY, level, spread(level, values, prompt), **columns)
        made += distinct(STUDY, level, prompt, **columns)
    return made


def answer_directions(items: pd.DataFrame, content: np.ndarray) -> np.ndarray:
    """(N,) direction of choosing an option's content: 'pessimistic', 'conservative', 'optimistic';
    '' without answer or polarity."""
    says = np.full(len(items), "", dtype=object)
    polarity, count = items["polarity"].to_numpy(dtype=object), items["n_options"].to_numpy()
    for pole in sorted(set(polarity) - {""}):
        for k in sorted(set(count) & {2, 3}):
            mine = (polarity == pole) & (count == k) & (content >= 0)
            says[mine] = np.array(directions(pole, int(k)), dtype=object)[content[mine]]
    return says
