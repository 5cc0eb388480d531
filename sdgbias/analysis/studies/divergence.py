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

from sdgbias.analysis.calls import Call, Level, StudyRow, measured
from sdgbias.analysis.outcomes import CADE, decision, pools, reportable
from sdgbias.analysis.rows import AnalysisSettings, row
from sdgbias.analysis.run import RunData
from sdgbias.methods.cade import Floats
from sdgbias.types import Task, View

STUDY, GROUPS = "divergence", 5
_FULL = View.FULL.value


def _calls(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """accuracy_gain and changed_rate by group of divergence (1 to 5, x its mean divergence), and
    the difference of the gains of the last and the first group."""
    cells = reportable(run, Task.MCQ)
    for cell, o in zip(cells, pools(run, Task.MCQ), strict=False):  # the last is the pool
        tuned = decision(cell)
        if tuned is None or CADE not in o.hit:
            continue
        gain = o.hit[CADE] - o.hit[_FULL]
        changed = (o.choice[CADE] != o.choice[_FULL]).astype(float)
        level = _groups(gain, tuned[0].divergence[cell.test_rows])
        columns = o.columns(CADE, versus=_FULL, attribute="divergence")
        yield Call(columns, [level], {"accuracy_gain": gain}, [o.place], "difference")
        yield Call(columns, [level], {"changed_rate": changed}, [o.place])
        ends = [gain[level.code == at] for at in (0, GROUPS - 1)]
        if all(map(len, ends)):
            least, most = (float(end.mean()) for end in ends)
            n = sum(map(len, ends))
            columns |= {"group": str(GROUPS), "other": "1"}
            yield row(STUDY, "accuracy_gain", most - least, **columns, n=n)


def _groups(gain: Floats, divergence: Floats) -> Level:
    """Groups of equal size by divergence; equal divergences go to one group, so that the order of
    questions decides nothing."""
    known = np.flatnonzero(np.isfinite(gain) & np.isfinite(divergence))
    rank = pd.Series(divergence[known]).rank(method="average").to_numpy()
    code = np.full(len(gain), -1, dtype=np.int64)
    code[known] = np.minimum(((rank - 0.5) * GROUPS / max(len(known), 1)).astype(int), GROUPS - 1)
    columns = tuple(
        {
            "group": str(group + 1),
            "x": divergence[code == group].mean() if (code == group).any() else np.nan,
        }
        for group in range(GROUPS)
    )
    return Level(code, columns)


rows = measured(STUDY, _calls)
