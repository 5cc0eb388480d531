"""Study 'perturbation': direction of Q-only answers when options are reversed, shuffled or labelled
differently (Table J).

An answer counts as the option whose text was at the chosen position, so that a lean towards a
position shows as a change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sdgbias.analysis.outcomes import distinct, levels, rows_of
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.analysis.studies.directions import directed, share_of
from sdgbias.methods.cade import argmax_view
from sdgbias.raw.indicators import DIRECTIONS
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
    three, two = directed(cell.items, content), directed(cell.items, content, 2)
    use = cell.test_rows & ~(np.isnan(three) & np.isnan(two))
    items = cell.items.loc[use].reset_index(drop=True)
    prompt = pd.factorize(
        items["question"]
        + "\x1f"
        + items["options"]
        + "\x1f"
        + pd.Series([str(o) for o in shown[use].tolist()])
    )[0].astype(np.int64)
    values = {f"share_{d}": share_of(three[use], d) for d in DIRECTIONS}
    values["share_optimistic_two_option"] = share_of(two[use], "optimistic")
    columns: dict[str, Any] = {
        "test": cell.test.value,
        "method": "q_only",
        "by": "order",
        "level": order,
    }
    made: list[dict[str, object]] = []
    for level in levels(items):
        made += rows_of(STUDY, level, values, [prompt], columns)
        made += distinct(STUDY, level, prompt, columns)
    return made
