"""Study 'wordings': direction of the answers to an indicator's question over its wordings.

Q-only has one prompt per indicator; the extra prompts `paraphrases` add eight more. A row of this
study is a share of prompts, not of questions: every wording of an indicator with its options counts
once. There are two levels: indicators, and wordings within them. A share over a pillar, or over
all, has the wider of the interval over indicators and that over prompts, so that it holds for other
indicators and other wordings; that of one indicator holds for other wordings of its question.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.analysis.outcomes import distinct, levels, rows_of
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.analysis.studies.directions import directed, share_of
from sdgbias.methods.cade import argmax_view
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.suites import extra_prompts, paraphrases
from sdgbias.types import Task, View

STUDY = "wordings"


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """Shares of pessimistic, conservative and optimistic prompts of three options (`share_...` over
    other indicators and wordings, `wordings_share_...` of other wordings only), distinct_prompts
    and distinct_indicators, over all, by pillar and by indicator. One row not_run without the extra
    prompts paraphrases."""
    cell = run.cells.get((Task.MCQ, extra_prompts.TABLE_J_TEST))
    if cell is None:
        return table([])
    common = {"test": cell.test.value, "method": View.Q_ONLY.value}
    if not any(view in cell.extra for view in paraphrases.VIEWS):
        note = "extra pass paraphrases was not scored"
        if not paraphrases.asked(cell.items).any():
            note = "no question is worded as in indicators.yaml"
        return table([row(STUDY, "not_run", float("nan"), **common, note=note)])
    prompts = _prompts(cell)
    values = {f"share_{d}": share_of(prompts["says"].to_numpy(), d) for d in DIRECTIONS}
    prompt = np.arange(len(prompts))
    indicator = pd.factorize(prompts["indicator"], sort=True)[0].astype(np.int64)
    made: list[dict[str, object]] = []
    for level in levels(prompts):
        single = level.columns[0]["indicator"] != "all"
        clusters = [prompt] if single else [indicator, prompt]
        made += rows_of(STUDY, level, values, clusters, common)
        if not single:
            same = {f"wordings_{metric}": value for metric, value in values.items()}
            made += rows_of(STUDY, level, same, [prompt], common)
        for metric, unit in (("distinct_prompts", prompt), ("distinct_indicators", indicator)):
            made += distinct(STUDY, level, unit, common, metric)
    return table(made)


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
        said = cell.items[["pillar", "indicator"]].assign(says=directed(cell.items, choice))
        answered.append(said[said["says"].notna()])
    return pd.concat(answered, ignore_index=True)
