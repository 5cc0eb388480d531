"""Figure 8: where a curve has a plateau."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis.paper.numbers import plateau


@pytest.mark.parametrize(
    ("accuracies", "begins"),
    [
        ([0.5, 0.6, 0.6, 0.599], 1),
        ([0.6, 0.6, 0.6, 0.6], 0),
        ([0.5, 0.6, 0.6, 0.5], np.nan),  # falls again
        ([0.4, 0.5, 0.6, 0.7], np.nan),  # its best value is its last point
    ],
)
def test_a_plateau_begins_where_the_curve_stays_and_else_nowhere(
    accuracies: list[float], begins: float
) -> None:
    curve = pd.Series(accuracies, index=np.arange(4.0))

    assert plateau(curve) == pytest.approx(begins, nan_ok=True)
