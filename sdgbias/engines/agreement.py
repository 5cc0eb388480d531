"""Compares two ways of scoring the same prompts, and stores the verdict on a model beside its
results.

The verdict, parity/<model>.json, is written by `sdgbias models parity` and read before a run is
published.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias.errors import EnginesDisagree, StoreError
from sdgbias.files import json_file, understood
from sdgbias.methods.cade import log_softmax
from sdgbias.methods.metrics import margin
from sdgbias.types import ScoreBatch

#: Largest difference of a log-probability, or of the candidate mass, that still counts as the same
#: score, by dtype. Two candidates that are no farther apart are a near tie.
TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}
AGREE, DISAGREE, ALONE = "agree", "disagree", "only one backend here"


@dataclass(frozen=True)
class Comparison:
    """Two ways of scoring N probes. n: probes compared; left_out: those without an exact score on
    one side. logp_*: largest and median over probes of a probe's largest difference in
    log-probability among its candidates; mass_*: of the candidate mass. flips: probes with another
    best candidate; near_ties: those flips, not among the former, where on one side the best two lie
    within the tolerance.
    lengths: probes with another number of prompt tokens. worst: row of the probe with the largest
    difference, -1 without one."""

    what: str
    n: int
    left_out: int
    logp_max: float
    logp_median: float
    mass_max: float
    mass_median: float
    flips: int
    near_ties: int
    lengths: int
    worst: int

    def agrees(self, tolerance: float) -> bool:
        return (
            self.n > 0
            and self.logp_max <= tolerance
            and self.mass_max <= tolerance
            and self.flips == 0
        )


def log_shares(logits: np.ndarray) -> np.ndarray:
    """(N, K) log-probabilities among a prompt's candidates; NaN where it has none."""
    known = ~np.isnan(logits)
    return np.where(known, log_softmax(logits.astype(np.float64), known), np.nan)


def compare(what: str, one: ScoreBatch, two: ScoreBatch, tolerance: float) -> Comparison:
    """Compares two score batches over the same N prompts, (N, K) logits each. Probes with a
    censored (-inf) or missing score are left out."""
    p, q = log_shares(one.logits), log_shares(two.logits)
    asked = ~np.isnan(p) | ~np.isnan(q)
    told = asked.any(axis=1) & (np.isfinite(p) & np.isfinite(q) | ~asked).all(axis=1)
    rows = np.flatnonzero(told)
    if not len(rows):
        nan = float("nan")
        return Comparison(
            what, 0, len(p), nan, nan, nan, nan, flips=0, near_ties=0, lengths=0, worst=-1
        )
    apart = np.nanmax(np.abs(p[rows] - q[rows]), axis=1)
    mass = np.abs(one.mass[rows].astype(np.float64) - two.mass[rows])
    flipped = np.nanargmax(p[rows], axis=1) != np.nanargmax(q[rows], axis=1)
    # of a single candidate there is no margin, and no flip either
    tie = np.fmin(margin(p[rows]), margin(q[rows])) <= tolerance
    return Comparison(
        what,
        n=len(rows),
        left_out=len(p) - len(rows),
        logp_max=float(apart.max()),
        logp_median=float(np.median(apart)),
        mass_max=float(mass.max()),
        mass_median=float(np.median(mass)),
        flips=int((flipped & ~tie).sum()),
        near_ties=int((flipped & tie).sum()),
        lengths=int((one.n_tokens[rows] != two.n_tokens[rows]).sum()),
        worst=int(rows[int(apart.argmax())]),
    )


def verdict_path(folder: Path, model: str) -> Path:
    """Path of a model's verdict; `folder` is that of the results file."""
    return folder / "parity" / f"{model}.json"


def read_verdict(folder: Path, model: str) -> dict[str, Any]:
    """The stored verdict; {} without one."""
    path = verdict_path(folder, model)
    if not path.exists():
        return {}
    fault, onward = "can't be read as a verdict", f"remove it, then: sdgbias models parity {model}"
    with understood(path, fault, onward, StoreError):
        told = json_file(path, fault, onward, StoreError)
        for name in ("fingerprint", "verdict", "reasons"):
            told[name]
    return told


def require_agreement(folder: Path, model: str, fingerprint: str) -> None:
    """The check before a run is published: EnginesDisagree when the engines of exactly this model
    were found to disagree. A model that was never checked passes, and so does one whose weights,
    versions or settings have changed since."""
    told = read_verdict(folder, model)
    if told.get("verdict") != DISAGREE or told["fingerprint"] != fingerprint:
        return
    raise EnginesDisagree(
        f"{model}: {told['reasons'][0]}; nothing is published, scores are kept: fix or disable"
        f" that engine, then check again: {told.get('again') or f'sdgbias models parity {model}'}"
    )
