"""Two ways of scoring the same prompts, compared: what counts as the same score, for the parity
check, for admission and for the ways in which the engine hf may score a model's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sdgbias.engines import Backend
from sdgbias.errors import (
    InfrastructureError,
    InputError,
    ModelError,
    OutOfMemory,
    RegistryError,
    StoreError,
    first_line,
)
from sdgbias.methods.cade import log_softmax
from sdgbias.methods.metrics import margin
from sdgbias.types import Prompt, ScoreBatch

#: Largest difference of a log-probability, or of the candidate mass, that still counts as the same
#: score, by dtype. Two candidates that are no farther apart are a near tie.
TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}
#: The same as a multiple of a model's own rounding, which grows with its depth and its logits. At
#: the shape of LLaVA-1.5-7B in bfloat16 on a GPU, scores of a prompt alone, in a batch and behind a
#: shared beginning differ by up to 0.18, from those in float32 each by up to 0.23, and alone by
#: 0.27 between two kernels of attention (docs/reference/benchmarks.md).
ROUNDINGS = 2.0
#: Kernels that are farther apart don't compute the same model: PaliGemma's masks differ by kernel.
NOT_ROUNDING = {"float32": 5e-3, "bfloat16": 0.8, "float16": 0.1}
#: The tolerance where an engine can't show its rounding: what was measured at that shape.
ASSUMED = TOLERANCES | {"bfloat16": 0.25}
#: Kind and message of a prompt's failure where a candidate has neither a score nor a bound of one.
NOT_FINITE = ("NonFiniteLogits", "a candidate logit is NaN or infinite")


def scored(batch: ScoreBatch, widths: np.ndarray) -> np.ndarray:
    """(N,) whether each prompt has a score or a bound of it for all its candidates, of which there
    are ``widths`` (N,). A model that overflows gives NaN or infinity."""
    inside = np.arange(batch.logits.shape[1]) < widths[:, None]
    has_score = np.isfinite(batch.logits)
    if batch.upper is not None:  # a censored candidate has -inf and a finite bound
        has_score |= np.isneginf(batch.logits) & np.isfinite(batch.upper)
    complete: np.ndarray = (has_score | ~inside).all(axis=1)
    return complete


class Probed(NamedTuple):
    """What N prompts got in one way of scoring. scores: NaN for a prompt that fails alone;
    failures: one line of each of those; refused: why a batch failed whose prompts don't all fail
    alone, None where none did."""

    scores: ScoreBatch
    failures: list[str]
    refused: Exception | None


def score(engine: Backend, prompts: Sequence[Prompt], order: Sequence[int], size: int) -> Probed:
    """The scores of the prompts when they are sent in this order, ``size`` at a time. Where all
    fail, the first error is raised, as a ModelError where it is not the package's own."""
    scores = ScoreBatch.empty(prompts)
    failures: list[Exception] = []
    refused: Exception | None = None

    def ask(rows: Sequence[int]) -> None:
        nonlocal refused
        try:
            batch = engine.candidate_scores([prompts[row] for row in rows])
        except (InputError, RegistryError, StoreError):
            raise
        except Exception as error:
            if isinstance(error, InfrastructureError) and not isinstance(error, OutOfMemory):
                raise
            if len(rows) == 1:
                failures.append(error)
                return
            before, half = len(failures), len(rows) // 2
            ask(rows[:half])
            ask(rows[half:])
            if len(failures) == before:
                refused = error
            return
        widths = np.array([len(prompts[row].candidates) for row in rows])
        failures.extend(ModelError(": ".join(NOT_FINITE)) for ok in scored(batch, widths) if not ok)
        for at, row in enumerate(rows):
            scores.logits[row, : batch.logits.shape[1]] = batch.logits[at]
            scores.mass[row], scores.n_tokens[row] = batch.mass[at], batch.n_tokens[at]
            scores.top_token[row] = batch.top_token[at]

    for start in range(0, len(order), size):
        ask(order[start : start + size])
    lines = [f"{getattr(e, 'kind', type(e).__name__)}: {first_line(e)[:200]}" for e in failures]
    if len(failures) == len(prompts):
        if isinstance(failures[0], ModelError | InfrastructureError):
            raise failures[0]
        raise ModelError(f"each of {len(prompts)} probes fails, the first: {lines[0]}")
    return Probed(scores, lines, refused)


class Itself(NamedTuple):
    """N prompts scored three times by one engine: each alone, in batches, and in batches of another
    order."""

    alone: Probed
    batched: Probed
    shuffled: Probed

    def rows(self, backend: str, prompts: Sequence[Prompt], limit: float) -> list[dict[str, Any]]:
        """The verdicts on the two differences that there may be."""
        other = self.batched.scores
        return [
            compare(f"{backend}: {what}", prompts, one.scores, other, limit)
            for what, one in (
                ("alone / in batches", self.alone),
                ("shuffled / in order", self.shuffled),
            )
        ]


def shuffled(n: int, seed: int) -> list[int]:
    """Another order of N prompts."""
    order: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return order


def score_three_times(engine: Backend, prompts: Sequence[Prompt], size: int, seed: int) -> Itself:
    """The scores of the prompts alone, in batches of ``size`` and shuffled. Raises as `score`."""
    order = range(len(prompts))
    ways = [(order, 1), (order, size), (shuffled(len(prompts), seed), size)]
    return Itself(*(score(engine, prompts, *way) for way in ways))


def rounding(
    engine: Backend, prompts: Sequence[Prompt], alone: ScoreBatch | None = None
) -> float | None:
    """Largest difference in log-probability between the scores of N prompts, each ``alone`` (scored
    here if None), and those by other kernels of attention. They differ by the order of their sums
    and nothing else: no padding, neighbour or cache is in them. None where the engine has no other
    kernels, or the model can't run on them."""
    order = range(len(prompts))
    with engine.other_attention() as differs:
        if not differs:
            return None
        try:  # plain attention keeps whole matrices, which may not fit
            other = score(engine, prompts, order, 1).scores
        except (ModelError, OutOfMemory):
            return None
    alone = alone or score(engine, prompts, order, 1).scores
    return float(np.nan_to_num(compare("", prompts, alone, other, 0.0)["logp_max"]))


def same_score(dtype: str, *roundings: float | None) -> float:
    """The largest difference that counts as the same score by engines that round so."""
    shown = [rounding for rounding in roundings if rounding is not None]
    if not shown:
        return ASSUMED[dtype]
    largest = max((r for r in shown if r <= NOT_ROUNDING[dtype]), default=0.0)
    return max(TOLERANCES[dtype], ROUNDINGS * largest)


def log_shares(logits: np.ndarray) -> np.ndarray:
    """(N, K) log-probabilities among a prompt's candidates; NaN where it has none."""
    is_candidate = ~np.isnan(logits)
    return np.where(is_candidate, log_softmax(logits.astype(np.float64), is_candidate), np.nan)


def compare(
    what: str, prompts: Sequence[Prompt], one: ScoreBatch, two: ScoreBatch, tolerance: float
) -> dict[str, Any]:
    """The verdict on two score batches over the same N prompts, (N, K) logits each.

    what: the two ways. n: prompts compared; left_out: those with a censored (-inf) or missing score
    on one side. logp_*: largest and median over prompts of a prompt's largest difference in
    log-probability among its candidates; mass_*: of the candidate mass. flips: prompts with another
    best candidate; near_ties: those flips, not among the former, where on one side the best two lie
    within the tolerance. lengths: prompts with another number of tokens. agrees: whether all
    differences are within the ``tolerance`` and nothing flips. worst: the prompt that differs most,
    None without one.
    """
    p, q = log_shares(one.logits), log_shares(two.logits)
    is_candidate = ~np.isnan(p) | ~np.isnan(q)
    exact = is_candidate.any(axis=1) & (np.isfinite(p) & np.isfinite(q) | ~is_candidate).all(axis=1)
    rows = np.flatnonzero(exact)
    row: dict[str, Any] = {"what": what, "n": len(rows), "left_out": len(p) - len(rows)}
    row |= dict.fromkeys(("logp_max", "logp_median", "mass_max", "mass_median"), float("nan"))
    row |= {"flips": 0, "near_ties": 0, "lengths": 0, "tolerance": tolerance, "agrees": False}
    row["worst"] = None
    if not len(rows):
        return row
    apart = np.nanmax(np.abs(p[rows] - q[rows]), axis=1)
    mass = np.abs(one.mass[rows].astype(np.float64) - two.mass[rows])
    flipped = np.nanargmax(p[rows], axis=1) != np.nanargmax(q[rows], axis=1)
    # of a single candidate there is no margin, and no flip either
    tie = np.fmin(margin(p[rows]), margin(q[rows])) <= tolerance
    row |= {"logp_max": float(apart.max()), "logp_median": float(np.median(apart))}
    row |= {"mass_max": float(mass.max()), "mass_median": float(np.median(mass))}
    row |= {"flips": int((flipped & ~tie).sum()), "near_ties": int((flipped & tie).sum())}
    row["lengths"] = int((one.n_tokens[rows] != two.n_tokens[rows]).sum())
    largest = max(row["logp_max"], row["mass_max"])
    row["agrees"] = largest <= tolerance and row["flips"] == 0
    worst = int(rows[int(apart.argmax())])
    prompt = prompts[worst]
    row["worst"] = {
        "probe": worst,
        "text": prompt.text,
        "candidates": prompt.candidates,
        "image_id": prompt.image_id,
        "one": np.round(p[worst, : len(prompt.candidates)], 6).tolist(),
        "two": np.round(q[worst, : len(prompt.candidates)], 6).tolist(),
    }
    return row
