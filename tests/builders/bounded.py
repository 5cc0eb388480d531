"""Views whose scores are all known, as bounds."""

from __future__ import annotations

import numpy as np

from sdgbias.methods.bounds import Bounds


def exactly(logits: np.ndarray) -> Bounds:
    """(N, K) known scores."""
    return Bounds(logits, logits)
