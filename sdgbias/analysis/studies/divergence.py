"""Study 'divergence': what CADE gains where the picture changes much, and where it changes little
(App. E.2).

A contrast can correct little where the contrasted views say the same. The test questions of each
test are put into five groups of equal size by D_i, the divergence of the image stream from CTX+Q
(Eq. 7, nats), least first; in each group CADE is compared with the Full view.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sdgbias.analysis.outcomes import CADE, TaskOutcome, decision, pools, reportable
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.methods import stats
from sdgbias.methods.cade import Floats
from sdgbias.types import Task, View

STUDY, GROUPS = "divergence", 5
_FULL = View.FULL.value


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """accuracy_gain and changed_rate by group of divergence (level '1 of 5' to '5 of 5', x its mean
    divergence), and gain_most_minus_least, the difference of the gains of the last and the first
    group."""
    cells = reportable(run, Task.MCQ)
    made: list[dict[str, object]] = []
    for cell, outcome in zip(cells, pools(run, Task.MCQ), strict=False):  # the last is the pool
        tuned = decision(cell)
        if tuned is not None and CADE in outcome.hit:
            made += _by_group(outcome, tuned[0].divergence[cell.test_rows])
    return table(made)


def _by_group(o: TaskOutcome, divergence: Floats) -> Iterator[dict[str, object]]:
    gain = o.hit[CADE] - o.hit[_FULL]
    known = np.flatnonzero(np.isfinite(gain) & np.isfinite(divergence))
    # equal divergences go to one group, so that the order of questions decides nothing
    rank = pd.Series(divergence[known]).rank(method="average").to_numpy()
    group = np.minimum(((rank - 0.5) * GROUPS / max(len(known), 1)).astype(int), GROUPS - 1)
    changed = (o.choice[CADE] != o.choice[_FULL]).astype(float)
    for number in np.unique(group):
        at = known[group == number]
        common = o.columns(
            CADE, by="divergence", level=f"{number + 1} of {GROUPS}", x=divergence[at].mean()
        )
        estimate = stats.mean(gain[at], o.place[at], "difference")
        yield row(STUDY, "accuracy_gain", estimate, **common)
        yield row(STUDY, "changed_rate", stats.share(changed[at], o.place[at]), **common)
    ends = [known[group == number] for number in (0, GROUPS - 1)]
    if all(map(len, ends)):
        least, most = (float(gain[at].mean()) for at in ends)
        common = o.columns(CADE, by="divergence", n=sum(map(len, ends)))
        yield row(STUDY, "gain_most_minus_least", most - least, **common)
