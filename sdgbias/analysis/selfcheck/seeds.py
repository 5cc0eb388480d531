"""Many planted data sets as arrays only: do intervals cover, do tests stay silent where there is no
effect, does tuning find the optimum?

Each seed is one data set: items in places, all answers equally often right, a fifth of the items
for tuning. Under test are cade.streams, cade.decide, search.random_search and the functions of
stats; the truth comes from truth.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import ndtri
from scipy.stats import binomtest

from sdgbias.analysis.selfcheck import truth
from sdgbias.analysis.selfcheck.checks import Check, check
from sdgbias.analysis.selfcheck.faults import Instrument
from sdgbias.analysis.selfcheck.nominal import (
    at_most,
    average,
    bounded,
    near_optimum,
    rate,
    uniform,
)
from sdgbias.analysis.selfcheck.plants import plant
from sdgbias.analysis.selfcheck.truth import Population
from sdgbias.engines.planted import Habits
from sdgbias.methods import cade, lean, metrics, stats
from sdgbias.progress import Progress, each
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.suites.rows import RowGroup
from sdgbias.suites.sdg_metrics import clustered_mean
from sdgbias.types import CadeParams, ContextTest, View

T1, T5 = ContextTest.T1, ContextTest.T5
NOMINAL = 0.05
#: Numbers of places in the interval checks, and of prompts in the lean checks.
FEW, PROMPTS = (5, 8, 12, 30), (4, 6, 9, 12, 36)
#: Numbers of prompts in the checks of answers that are repeated over places.
REPEATED = (6, 12)


@dataclass(frozen=True)
class Size:
    """tuned: seeds with a search. plain: seeds without. items per seed, five per place. draws per
    search. copies: new draws behind an expected value without a closed form, at least ten times the
    items of a seed."""

    tuned: int
    plain: int
    items: int = 2000
    draws: int = 10_000
    copies: int = 200


SMALL = Size(tuned=40, plain=200, draws=2000, copies=60)
FULL = Size(tuned=200, plain=1000)


def draw_items(rng: np.random.Generator, n: int, readable: float = 1.0) -> Population:
    """n items with three answers, each right equally often, five items per place. In a share
    `readable` of the places the picture carries evidence; in the others it carries none, so that
    hits cluster by place."""
    gold = rng.integers(0, 3, n)
    place = np.arange(n) // 5
    rising = rng.random(n) < 0.5
    onehot = np.eye(3)[gold]
    shows = (rng.random(int(place[-1]) + 1) < readable)[place]
    return Population(
        gold=gold,
        says=np.where(rising[:, None], [0, 1, 2], [2, 1, 0]),
        present=np.ones((n, 3), dtype=bool),
        image_share=onehot * shows[:, None],
        context_share={T1: onehot},
        pillar=np.full(n, "all", dtype=object),
        place=place.astype(object),
        split=np.where(rng.random(n) < 0.2, "val", "test").astype(object),
        item_id=np.arange(n),
        answer=np.full(n, np.nan),
        tolerance=np.full(n, np.nan),
        number=np.full((n, 3), np.nan),
        alone={T1: np.ones(n, dtype=bool)},
    )


def census(readable: float = 1.0) -> tuple[Population, np.ndarray]:
    """One item of every kind that `draw_items` can draw, with its probability: (population of 12,
    weights (12,))."""
    kinds = [
        (g, rising, shows) for g in range(3) for rising in (True, False) for shows in (True, False)
    ]
    p = draw_items(np.random.default_rng(0), len(kinds))
    onehot = np.eye(3)[[g for g, _, _ in kinds]]
    shows = np.array([s for _, _, s in kinds])
    p = replace(
        p,
        gold=np.array([g for g, _, _ in kinds]),
        says=np.array([[0, 1, 2] if r else [2, 1, 0] for _, r, _ in kinds]),
        image_share=onehot * shows[:, None],
        context_share={T1: onehot},
    )
    return p, np.where(shows, readable, 1 - readable) / 6


def known(
    h: Habits, view: View, test: ContextTest = T1, readable: float = 1.0
) -> tuple[float, float]:
    """(accuracy, share of optimistic answers) of one view, in closed form."""
    p, weight = census(readable)
    chance = truth.choice_probability(*truth.expected_logits(h, p, test, view), p.present)
    return float(weight @ chance[np.arange(len(p.gold)), p.gold]), float(
        weight @ np.where(p.says == 2, chance, 0.0).sum(axis=1)
    )


def checks(size: Size, used: Instrument, seed: int, progress: Progress) -> Iterator[Check]:
    yield from _coverage(size, used, seed, progress)
    yield from _few_clusters(size, used, seed, progress)
    yield from _leans(size, used, seed, progress)
    yield from _repeated_answers(size, used, seed, progress)
    yield from _false_alarms(size, seed, progress)
    yield from _terms(size, used, seed)
    yield from _tuned(size, used, seed, progress)


def _answers(views: dict[View, np.ndarray], view: View) -> np.ndarray:
    return cade.argmax_view(views[view], np.ones(views[view].shape, dtype=bool))


def _coverage(size: Size, used: Instrument, seed: int, progress: Progress) -> Iterator[Check]:
    """95 % intervals of clustered shares and paired differences cover the truth in 95 % of the
    seeds."""
    prior = {"all": (0.0, 0.5, 1.0)}
    h = Habits(
        prior=prior, context_weight=0.5, context_noise=0.5, image_weight=3.0, image_noise=0.5
    )
    readable = 0.6
    full, optimistic = known(h, View.FULL, readable=readable)
    context, _ = known(h, View.CTX_Q)
    names = ("accuracy of Full", "share of optimistic answers", "Full minus CTX+Q, paired")
    held = np.zeros(3, dtype=int)
    for i in each(progress, "seeds: intervals", range(size.plain)):
        rng = np.random.default_rng([seed, 1, i])
        p = draw_items(rng, size.items, readable)
        views = truth.simulate(h, p, T1, rng)
        answer, before = _answers(views, View.FULL), _answers(views, View.CTX_Q)
        hit, was = metrics.correct(p.gold, answer), metrics.correct(p.gold, before)
        says = p.says[np.arange(len(answer)), answer] == 2
        place = used.clusters(p.place)
        found = (
            (stats.share(hit, place), full),
            (stats.share(says, place), optimistic),
            (stats.mean(hit.astype(float) - was, place), full - context),
        )
        held += [e.low <= t <= e.high for e, t in found]
    for name, hits in zip(names, held, strict=True):
        what = f"95 % intervals that hold the truth: {name}"
        yield rate("patchy", what, int(hits), size.plain, 1 - NOMINAL)


def cluster_sizes(rng: np.random.Generator, clusters: int, *, even: bool) -> np.ndarray:
    """Rows of each cluster: ten each, or log-normal with a mean of about 16."""
    if even:
        return np.full(clusters, 10)
    return np.maximum(1, np.round(10 * np.exp(rng.normal(0, 1, clusters)))).astype(int)


def _few_clusters(size: Size, used: Instrument, seed: int, progress: Progress) -> Iterator[Check]:
    """95 % intervals with few places, of equal and unequal size, cover the truth for a share of 40
    %, a rare share, and a mean. Shares may over-cover; coverage below 93 % is a fault."""
    for clusters in each(progress, "seeds: few places", FEW):
        for even in (True, False):
            held = np.zeros(3, dtype=int)
            for i in range(size.plain):
                rng = np.random.default_rng([seed, 6, clusters, even, i])
                rows = cluster_sizes(rng, clusters, even=even)
                place = np.repeat(np.arange(clusters), rows)
                latent = 0.3**0.5 * np.repeat(rng.normal(size=clusters), rows)
                latent += 0.7**0.5 * rng.normal(size=len(place))
                known_as = used.clusters(place)
                found = (
                    (stats.share(latent < ndtri(0.4), known_as), 0.4),
                    (stats.share(latent < ndtri(0.05), known_as), 0.05),
                    (stats.mean(latent, known_as), 0.0),
                )
                held += [e.low <= t <= e.high for e, t in found]
            kind = "of one size" if even else "of unlike sizes"
            for name, hits in zip(("share", "rare share", "mean"), held, strict=True):
                what = f"95 % intervals that hold the truth: {name}, {clusters} places {kind}"
                yield bounded("arrays", what, int(hits), size.plain, 0.93, least=True)


def _leans(size: Size, used: Instrument, seed: int, progress: Progress) -> Iterator[Check]:
    """A model that draws one random direction per prompt is reported as leaning in at most 5 % of
    pillars, for any number of questions per prompt; a true lean is found over the wordings of three
    indicators."""
    for prompts in each(progress, "seeds: leans", PROMPTS):
        told = 0
        for i in range(size.plain):
            rng = np.random.default_rng([seed, 7, prompts, i])
            says = rng.integers(0, 3, prompts)
            rows = cluster_sizes(rng, prompts, even=bool(i % 2))
            told += _lean(np.repeat(says, rows), np.repeat(np.arange(prompts), rows), used)
        what = f"a random direction per prompt, {prompts} prompts: pillars said to lean"
        limit = NOMINAL if prompts >= lean.FEWEST_PROMPTS else 0.0
        yield bounded("arrays", what, told, size.plain, limit, least=False)
    found = 0
    for i in range(size.plain):
        rng = np.random.default_rng([seed, 8, i])
        says = rng.choice(3, size=27, p=[0.1, 0.1, 0.8])
        found += _lean(says, np.arange(27), used, "leans optimistic")
    what = "80 % optimistic over 27 wordings: pillars said to lean optimistic"
    yield bounded("arrays", what, found, size.plain, 0.8, least=True)


def _repeated_answers(
    size: Size, used: Instrument, seed: int, progress: Progress
) -> Iterator[Check]:
    """A prompt without place or picture is one answer, however many places it is scored on: 95 %
    intervals of its accuracy hold the truth although the right answers are not equally frequent.

    Each prompt draws one answer; 60, 30 and 10 % of the rows have the first, second and third as
    the right one, so the expected accuracy is a third. Over places alone the interval of this
    accuracy holds the truth in 50 to 80 % of the seeds.
    """
    for prompts in each(progress, "seeds: repeated answers", REPEATED):
        for even in (True, False):
            held = 0
            for i in range(size.plain):
                rng = np.random.default_rng([seed, 9, prompts, even, i])
                prompt = np.repeat(np.arange(prompts), cluster_sizes(rng, prompts, even=even))
                place = rng.integers(0, 60, len(prompt))
                answer = rng.integers(0, 3, prompts)[prompt]
                right = rng.choice(3, size=len(prompt), p=[0.6, 0.3, 0.1]) == answer
                units = {"cluster_id": used.clusters(place), "prompt": used.clusters(prompt)}
                rows = pd.DataFrame({**units, "method": View.Q_ONLY.value})
                found, _ = clustered_mean(RowGroup.of(rows), right)
                held += found.low <= 1 / 3 <= found.high
            kind = "of one size" if even else "of unlike sizes"
            what = (
                f"95 % intervals that hold the truth: one answer per prompt, {prompts} prompts"
                f" {kind}"
            )
            yield bounded("arrays", what, held, size.plain, 0.93, least=True)


def _lean(says: np.ndarray, prompt: np.ndarray, used: Instrument, wanted: str = "") -> bool:
    """Whether the verdict names a direction (leans or splits); with `wanted`, whether it is that
    verdict."""
    known_as = used.clusters(prompt)
    verdict = lean.verdict({d: stats.share(says == k, known_as) for k, d in enumerate(DIRECTIONS)})
    return verdict == wanted if wanted else verdict.startswith(("leans", "splits"))


def _false_alarms(size: Size, seed: int, progress: Progress) -> Iterator[Check]:
    """The null model: tests at 5 % find something in 5 % of the seeds, and p-values are uniform."""
    h = plant("null").habits
    names = (
        "optimistic answers differ from a third",
        "urban and rural places differ",
        "Full and CTX+Q differ, paired t test",
    )
    raised, p_values = np.zeros(3, dtype=int), np.empty(size.plain)
    for i in each(progress, "seeds: false alarms", range(size.plain)):
        rng = np.random.default_rng([seed, 2, i])
        p = draw_items(rng, size.items)
        views = truth.simulate(h, p, T1, rng)
        answer, before = _answers(views, View.FULL), _answers(views, View.CTX_Q)
        hit, was = (metrics.correct(p.gold, said).astype(float) for said in (answer, before))
        optimistic = stats.share(p.says[np.arange(len(answer)), answer] == 2, p.place)
        urban = rng.integers(0, 2, int(p.place[-1]) + 1)[p.place.astype(int)]
        means = stats.group_means(hit, urban, p.place, draws=399, seed=i)
        gap = stats.disparity(means, lambda m: m[..., 0] - m[..., 1])
        p_values[i] = stats.paired(hit - was, p.place).p
        raised += [
            not optimistic.low <= 1 / 3 <= optimistic.high,
            gap.p[0] <= NOMINAL,
            p_values[i] <= NOMINAL,
        ]
    for name, hits in zip(names, raised, strict=True):
        yield rate("null", f"false alarms at 5 %: {name}", int(hits), size.plain, NOMINAL)
    yield uniform("null", "p-values are uniform: Full and CTX+Q differ", p_values)


def _streams(
    used: Instrument, views: dict[View, np.ndarray], form: cade.Form = cade.Form()
) -> cade.Streams:
    return used.streams(
        views[View.FULL], views[View.CTX_Q], views[View.IMG_Q], views[View.Q_ONLY], form=form
    )


def _accuracy(s: cade.Streams, p: Population, params: CadeParams) -> np.ndarray:
    """(N,) hits of CADE."""
    return metrics.correct(p.gold, cade.decide(s, params).choice).astype(float)


def _terms(size: Size, used: Instrument, seed: int) -> Iterator[Check]:
    """Each term of Eq. 9 by itself, at a setting with an exactly known effect: only the evidence of
    the picture remains."""
    rng, n = np.random.default_rng([seed, 3]), 20 * size.items
    prior, misled = plant("prior").habits, plant("misled").habits
    bare, crooked = (
        known(replace(h, prior={}, context_noise=0.0), View.IMG_Q)[0] for h in (prior, misled)
    )
    p = draw_items(rng, n)
    with_prior, with_pull = truth.simulate(prior, p, T1, rng), truth.simulate(misled, p, T1, rng)
    off = 2.0  # a gate threshold above every confidence
    alpha, beta = CadeParams(1.0, 0.0, 0.0, off), CadeParams(0.0, 0.0, 1.0, off)
    both, full = cade.Form(), cade.Form(stream="full")
    shown = known(prior, View.FULL)[0]
    leaves = "leaves the picture's evidence"
    gate = "gate at 0 leaves Full as it is"
    pull = "context term alone takes a misleading context out of Full"
    for name, what, views, form, params, expected in (
        ("prior", f"prior term alone (beta = 1) {leaves}", with_prior, both, beta, bare),
        ("prior", f"context term alone (alpha = 1) {leaves}", with_prior, both, alpha, bare),
        ("prior", gate, with_prior, both, CadeParams(1.0, 1.0, 1.0, 0.0), shown),
        ("misled", pull, with_pull, full, alpha, crooked),
    ):
        hit = _accuracy(_streams(used, views, form), p, params)
        e, test = stats.share(hit, p.place), binomtest(int(hit.sum()), n, expected)
        yield check("seeds", name, what, expected, e, float(test.pvalue), headline=True)


def _tuned(size: Size, used: Instrument, seed: int, progress: Progress) -> Iterator[Check]:
    """CADE tuned on val and reported on test, over many seeds."""
    gains: dict[str, list[float]] = {}
    p_values: list[float] = []
    accuracy: dict[str, list[float]] = {}
    plants = [plant(name) for name in ("null", "even", "right", "prior", "misled")]
    for i in each(progress, "seeds: tuning", range(size.tuned)):
        for j, planted in enumerate(plants):
            rng = np.random.default_rng([seed, 4, i, j])
            p = draw_items(rng, size.items)
            payoff = (np.arange(3) == p.gold[:, None]).astype(float)
            tests = (T1, T5) if planted.name == "even" else (T1,)
            for test in tests:
                s = _streams(used, truth.simulate(planted.habits, p, test, rng))
                params = used.tune(s, payoff, ~p.test, size.draws, i)
                hit = _accuracy(s, p, params)[p.test]
                gain = hit - metrics.correct(p.gold, s.base).astype(float)[p.test]
                key = planted.name if test is T1 else f"{planted.name} {test.value}"
                gains.setdefault(key, []).append(float(gain.mean()))
                accuracy.setdefault(key, []).append(float(hit.mean()))
                if planted.name == "null":
                    p_values.append(stats.paired(gain, p.place[p.test]).p)
    found = np.array(p_values)
    alarms = int((found <= NOMINAL).sum())
    yield rate("null", "false alarms at 5 %: CADE gains or loses", alarms, size.tuned, NOMINAL)
    yield uniform("null", "p-values are uniform: CADE's gain", found)
    yield average("null", "CADE's mean gain, tuned on val, on test", 0.0, np.array(gains["null"]))
    yield average(
        "even", "CADE's gain at T5, where nothing contradicts", 0.0, np.array(gains["even T5"])
    )
    yield average("right", "CADE's gain where Full is always right", 0.0, np.array(gains["right"]))
    yield at_most(
        "even", "CADE's mean gain where no rule can gain: at most", 0.0, np.array(gains["even"])
    )
    best = known(replace(plant("prior").habits, prior={}), View.IMG_Q)[0]
    yield from near_optimum("prior", best, 0.0, np.array(accuracy["prior"]))
    best, error = _grid_optimum(plant("misled").habits, size, seed)
    yield from near_optimum("misled", best, error, np.array(accuracy["misled"]))


def _grid_optimum(h: Habits, size: Size, seed: int) -> tuple[float, float]:
    """Best accuracy over a grid of CADE's settings on new draws of ten seeds' items, by the
    equations of truth.cade_choice, scored on ten more, with its standard error. The grid is a
    coarse one within Table G's ranges (gate at 0.9 or 0.99)."""
    rng, n = np.random.default_rng([seed, 5]), 10 * size.items
    halves = []
    for _ in range(2):
        p = draw_items(rng, n)
        halves.append((p.gold, truth.simulate(h, p, T1, rng)))
    settings = [
        CadeParams(a, lam, b, tau)
        for a in (0.5, 0.75, 1.0, 1.5)
        for lam in (0.0, 0.25, 1.0)
        for b in (0.0, 0.5, 1.0)
        for tau in (0.9, 0.99)
    ]
    (gold, views), (other, fresh) = halves
    best = max(
        settings, key=lambda params: float(np.mean(truth.cade_choice(views, params) == gold))
    )
    hit = truth.cade_choice(fresh, best) == other
    return float(hit.mean()), float(hit.std() / n**0.5)
