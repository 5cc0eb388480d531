"""Figure 8: where a curve has a plateau."""

from __future__ import annotations

import pytest

from sdgbias.analysis.paper import figures
from sdgbias.methods.stats import Estimate


@pytest.mark.parametrize(
    ("accuracies", "begins"),
    [
        ([0.5, 0.6, 0.6, 0.599], 1),
        ([0.6, 0.6, 0.6, 0.6], 0),
        ([0.5, 0.6, 0.6, 0.5], None),  # falls again
        ([0.4, 0.5, 0.6, 0.7], None),  # its best value is its last point
    ],
)
def test_a_plateau_begins_where_the_curve_stays_and_else_nowhere(
    accuracies: list[float], begins: float | None
) -> None:
    curve = {float(x): Estimate(value, 100) for x, value in enumerate(accuracies)}

    assert figures._plateau(curve) == begins
