"""Numbers read out of decoded answers: what each first digit leads to, and what states no
number."""

from __future__ import annotations

import numpy as np
import pytest

from sdgbias.suites.sdg_numbers import digit_values
from sdgbias.types import DIGITS

SPOKEN = {
    "": {"stated": "45.0", "minus": "-1.2", "silent": "no idea"},
    **{f"-{d}": {"minus": f"-{d}.5"} for d in DIGITS},
    **{d: {"stated": f"{d}7", "silent": "I can't say"} for d in DIGITS[1:]},
    "0": {"stated": "07", "silent": "0.4"},
}
KEYS = np.array(["stated", "minus", "silent", "unscored"], dtype=object)


@pytest.mark.parametrize(
    ("mode", "stated", "minus"),
    [
        ("replace", [10.0 * d + 5 for d in range(10)], [-(d + 0.2) for d in range(10)]),
        ("continue", [10.0 * d + 7 for d in range(10)], [-(d + 0.5) for d in range(10)]),
    ],
)
def test_numbers_by_first_digit(mode: str, stated: list[float], minus: list[float]) -> None:
    values, unparsed = digit_values(KEYS, SPOKEN, mode)
    np.testing.assert_allclose(values[0], stated)
    np.testing.assert_allclose(values[1], minus)
    assert np.isnan(values[3]).all() and not unparsed[[0, 1, 3]].any()


def test_without_a_number_every_digit_says_the_same_and_is_unparsed() -> None:
    values, unparsed = digit_values(KEYS, SPOKEN, "replace")
    assert (values[2] == 0.0).all() and unparsed[2].all()
    values, unparsed = digit_values(KEYS, SPOKEN, "continue")
    assert values[2].tolist() == [0.4] + [0.0] * 9  # only the digit 0 was decoded into a number
    assert unparsed[2].tolist() == [False] + [True] * 9
