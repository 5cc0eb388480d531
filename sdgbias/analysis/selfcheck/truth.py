"""Expected results of a planted model, computed from its data-generating process alone.

Nothing here goes through the pipeline: no prompts are parsed, and cade.py, search/ and stats/
aren't used. If one view decides alone, the expected value is closed form: with normal draws of
standard deviation sd, answer a wins with probability

    P(a) = integral of phi(z) * product over b != a of Phi(z + (mu_a - mu_b) / sd) dz
    (Gauss-Hermite, 80 nodes)

CADE's decision has no such form; `simulate` draws the process anew (with other seeds than the
model's), and `cade_choice` reimplements Eqs. 2 and 4-10 from the paper. The truth is conditional on
the benchmark's items: only draws are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from sdgbias.engines.planted import Habits, rounded
from sdgbias.types import CadeParams, ContextTest, Task, View

Floats = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
#: Context tests with values; only these carry evidence in a planted model.
STATED = (ContextTest.T1, ContextTest.T2)


@dataclass(frozen=True)
class Population:
    """N items of one task with K candidates, as seen by the data-generating process.

    gold (N,): index of the gold candidate (regression: first digit). says (N, K): 0 pessimistic, 1
    conservative, 2 optimistic, -1 none. present (N, K). image_share (N, K) and context_share[test]
    (N, K): G_img and G_ctx of engines/planted.py. pillar, place, indicator (N,): text. split (N,):
    'val' or 'test'. item_id (N,). Regression only: answer and tolerance (N,), and number (N, K),
    the number that a first digit leads to where one number's evidence is shown.
    """

    gold: NDArray[np.int64]
    says: NDArray[np.int64]
    present: NDArray[np.bool_]
    image_share: Floats
    context_share: Mapping[ContextTest, Floats]
    pillar: NDArray[np.object_]
    place: NDArray[np.object_]
    split: NDArray[np.object_]
    item_id: NDArray[np.int64]
    answer: Floats
    tolerance: Floats
    number: Floats
    alone: Mapping[
        ContextTest, NDArray[np.bool_]
    ]  # whether the context line belongs to one gold number

    @property
    def test(self) -> NDArray[np.bool_]:
        return np.asarray(self.split == "test")


def population(benchmark: Path, task: Task) -> Population:
    """The items of a benchmark folder, sorted by item_id."""
    items = pd.read_parquet(benchmark / f"items_{task.value}.parquet").sort_values(
        "item_id", ignore_index=True
    )
    prompts = pd.read_parquet(
        benchmark / "prompts.parquet", columns=["task", "item_id", "test", "text"]
    )
    n, k = len(items), 3 if task is Task.MCQ else 10
    gold: NDArray[np.int64]
    says, number = np.full((n, k), -1, dtype=np.int64), np.full((n, k), np.nan)
    if task is Task.MCQ:
        present = items[["option_a", "option_b", "option_c"]].to_numpy(dtype=object) != ""
        gold = np.array(["ABC".index(letter) for letter in items["answer"]], dtype=np.int64)
        for i, polarity in enumerate(items["polarity"]):
            if polarity:
                ranks = [0, 1, 2] if present[i].sum() == 3 else [0, 2]
                says[i, : len(ranks)] = ranks if polarity == "higher" else ranks[::-1]
        label, answer, tolerance = gold, np.full(n, np.nan), np.full(n, np.nan)
    else:
        present = np.ones((n, k), dtype=bool)
        answer, tolerance = (items[c].to_numpy(dtype=float) for c in ("answer", "tolerance"))
        spoken = [rounded(a) for a in answer]
        gold = np.array([int(s.lstrip("-")[0]) for s in spoken], dtype=np.int64)
        for i, s in enumerate(spoken):
            sign = -1.0 if s.startswith("-") else 1.0
            number[i] = [sign * float(f"{d}{s.lstrip('-')[1:]}") for d in range(10)]
        label = np.unique(spoken, return_inverse=True)[1]
    onehot = np.asarray(np.eye(k)[gold], dtype=np.float64)
    shares, alone = {}, {}
    for test in STATED:
        of_test = (prompts["task"] == task.value) & (prompts["test"] == test.value)
        lines = prompts[of_test].set_index("item_id")["text"]
        if len(lines) == 0:
            continue
        text = lines.reindex(items["item_id"]).fillna("")
        stated = text.str.contains("Context: Given: ", regex=False).to_numpy()
        group = pd.factorize(text)[0]
        mean = pd.DataFrame(onehot).groupby(group).transform("mean").to_numpy()
        # place without known values: no context line, hence no evidence
        shares[test] = np.where(stated[:, None], mean, np.nan)
        alone[test] = pd.Series(label).groupby(group).transform("nunique").to_numpy() == 1
    names = ("pillar", "cluster_id", "split")
    pillar, place, split = (items[c].to_numpy(dtype=object) for c in names)
    seen = gold, says, present, onehot, shares, pillar, place, split
    item_id = items["item_id"].to_numpy(dtype=np.int64)
    return Population(*seen, item_id, answer, tolerance, number, alone)


def prior(h: Habits, p: Population) -> Floats:
    """(N, K) logits before any evidence."""
    if p.present.shape[1] == 10:
        return np.tile(np.asarray(h.digit_prior, dtype=float), (len(p.gold), 1))
    priors = (h.prior.get(str(p), h.prior.get("all", (0.0, 0.0, 0.0))) for p in p.pillar)
    table = np.array([[*each, 0.0] for each in priors])  # last: no direction
    return np.take_along_axis(table, p.says, axis=1)


def stated(p: Population, test: ContextTest) -> NDArray[np.bool_]:
    """(N,) whether the item's context line states values under this test."""
    if test not in p.context_share:
        return np.zeros(len(p.gold), dtype=bool)
    return ~np.isnan(p.context_share[test][:, 0])


def expected_logits(
    h: Habits, p: Population, test: ContextTest, view: View
) -> tuple[Floats, Floats]:
    """(mu (N, K), sd (N,)): mean and standard deviation of the logits of one view."""
    mu, variance = prior(h, p), np.full(len(p.gold), h.noise**2)
    shown = stated(p, test)
    if view.has_context and shown.any():
        mu = mu + h.context_weight * np.nan_to_num(p.context_share[test])
        variance = variance + np.where(shown, h.context_noise**2, 0.0)
    if view.has_image:
        mu = mu + h.image_weight * p.image_share
        variance = variance + h.image_noise**2
    return mu, np.sqrt(variance)


def choice_probability(mu: Floats, sd: Floats, present: NDArray[np.bool_]) -> Floats:
    """(N, K) probability that each candidate has the highest logit; with sd = 0 the argmax, ties to
    the lowest index."""
    out = np.zeros(mu.shape)
    masked = np.where(present, mu, -np.inf)
    still = sd == 0
    out[still, np.argmax(masked[still], axis=1)] = 1.0
    rows = np.flatnonzero(~still)
    weights = _WEIGHTS / _WEIGHTS.sum()
    for a in range(mu.shape[1]):
        product = np.ones((rows.size, _NODES.size))
        for b in range(mu.shape[1]):
            if b != a:
                gap = (mu[rows, a] - mu[rows, b]) / sd[rows]
                product *= np.where(present[rows, b][:, None], ndtr(_NODES + gap[:, None]), 1.0)
        out[rows, a] = np.where(present[rows, a], product @ weights, 0.0)
    return out


def shared(p: Population, test: ContextTest, view: View) -> NDArray[np.bool_]:
    """(N,) rows whose prompt, and so whose draw, is shared with other items: text-only views
    without values."""
    if view.has_image:
        return np.zeros(len(p.gold), dtype=bool)
    return ~stated(p, test) | (view is View.Q_ONLY)


def numbers(p: Population, test: ContextTest, view: View) -> Floats:
    """(N, 10) the number that each first digit leads to under a view."""
    bare = np.tile(np.arange(10.0), (len(p.gold), 1))
    if view.has_image:
        return p.number
    is_stated = np.zeros(len(p.gold), dtype=bool)
    if view.has_context and test in p.alone:
        is_stated = stated(p, test) & p.alone[test]
    return np.where(is_stated[:, None], p.number, bare)


def simulate(
    h: Habits, p: Population, test: ContextTest, rng: np.random.Generator
) -> dict[View, Floats]:
    """One new draw of the process: (N, K) logits per view. Context draws are shared by CTX+Q and
    Full, picture draws by IMG+Q and Full, prompt noise by views with the same prompt (T5: Full and
    IMG+Q, CTX+Q and Q-only)."""
    size, base = p.present.shape, prior(h, p)
    shown = stated(p, test)[:, None]
    share = np.nan_to_num(p.context_share[test]) if test in p.context_share else np.zeros(size)
    context = np.where(
        shown, h.context_weight * share + h.context_noise * rng.standard_normal(size), 0.0
    )
    image = h.image_weight * p.image_share + h.image_noise * rng.standard_normal(size)
    noise = {
        view: h.noise * rng.standard_normal(size) if h.noise else np.zeros(size) for view in View
    }
    if test is ContextTest.T5:
        noise[View.FULL], noise[View.CTX_Q] = noise[View.IMG_Q], noise[View.Q_ONLY]
    out = {}
    for view in View:
        z = base + context * view.has_context + image * view.has_image + noise[view]
        out[view] = np.where(p.present, z, np.nan)
    return out


def cade_choice(views: Mapping[View, Floats], params: CadeParams) -> NDArray[np.int64]:
    """Eqs. 2 and 4-10 for (N, K) logits with NaN where a candidate is missing -> (N,) index.
    Deliberately independent of cade.py."""
    q = {}
    for view, z in views.items():
        top = np.nanmax(z, axis=1, keepdims=True)
        e = np.nan_to_num(np.exp(z - top))
        q[view] = e / e.sum(axis=1, keepdims=True)
    mixed = (q[View.FULL] + q[View.IMG_Q]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, log_c, log_b = np.log(mixed), np.log(q[View.CTX_Q]), np.log(q[View.Q_ONLY])
        divergence = np.nansum(mixed * (log_p - log_c), axis=1)
        alpha = params.alpha * (1 + params.lambda_kl * divergence)
        score = log_p - alpha[:, None] * log_c - params.beta * log_b
    score = np.where(np.isnan(views[View.FULL]), -np.inf, score)
    sure = q[View.FULL].max(axis=1) >= params.tau
    return np.where(sure, q[View.FULL].argmax(axis=1), score.argmax(axis=1))


def payoff(p: Population, task: Task, choice: NDArray[np.int64]) -> Floats:
    """(N,) 1 or 0 for a letter; minus the absolute error of the Full view's number for a digit."""
    if task is Task.MCQ:
        return np.asarray(choice == p.gold, dtype=float)
    return -np.abs(p.number[np.arange(len(choice)), choice] - p.answer)


@dataclass(frozen=True)
class Expected:
    """An expected value, its standard error (0: closed form), and the standard deviation of a
    single run around it."""

    value: float
    error: float
    spread: float


def expected_gain(
    h: Habits,
    p: Population,
    task: Task,
    test: ContextTest,
    params: CadeParams,
    copies: int,
    seed: int,
) -> Expected:
    """CADE's mean payoff minus the Full view's on the test rows, for given parameters: `copies` new
    draws of the whole benchmark."""
    rng = np.random.default_rng([seed, 77])
    gains = np.empty(copies)
    for i in range(copies):
        views = simulate(h, p, test, rng)
        full = np.where(p.present, views[View.FULL], -np.inf).argmax(axis=1)
        gain = payoff(p, task, cade_choice(views, params)) - payoff(p, task, full)
        gains[i] = gain[p.test].mean()
    spread = float(gains.std(ddof=1))
    return Expected(float(gains.mean()), spread / copies**0.5, spread)
