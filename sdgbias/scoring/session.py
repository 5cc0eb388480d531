"""What an evaluation asks of an engine: the plan of a run, the prompts of it that the cache lacks,
the paper's views before extra prompts, and what became of them all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from sdgbias import suites
from sdgbias.engines import Backend
from sdgbias.engines.agreement import TOLERANCES
from sdgbias.errors import NoScores, NotAnswerable, first_line
from sdgbias.progress import Progress, silent
from sdgbias.raw.images.shards import ImageReader
from sdgbias.registry.entries import find_root
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import admission
from sdgbias.scoring.cache import TIMED, ScoreCache
from sdgbias.scoring.plan import Plan, as_prompts, askable, make_plan
from sdgbias.scoring.probes import draw
from sdgbias.scoring.scorer import DECODING, SCORING, Scorer, not_generated
from sdgbias.scoring.timing import timings
from sdgbias.suites.suite import Abilities, EvalSettings, StoredScores
from sdgbias.types import View
from sdgbias.vocabulary import METHODS

#: Prompts that show how an undecided model's may be scored together.
_PROBES = 12
#: Why an engine that only chooses labels can't score a prompt.
NO_LIST = "not a question that this model can answer: it chooses one of listed labels"
#: Extra prompts that take longer than so many seconds wait until the paper's views are published.
FIRST_LOOK = 120.0
#: Kind and message of the prompts that wait. They count as failed, so that a run which ends there
#: is evaluated again.
WAITING = ("NotAskedYet", "an extra prompt, asked after the paper's views are published")


@dataclass(frozen=True)
class Outcome:
    """run_id of the published run, and its cost: naive, the cells of the paper's views; planned,
    distinct prompts, of which ``extra`` belong to extra prompts alone; scored now, found in the
    cache, failed; and unanswerable prompts, which no engine of this kind can answer: they are not
    part of the planned ones and no reason to retry."""

    run_id: str
    naive: int
    planned: int
    scored: int
    cached: int
    failed: int
    unanswerable: int = 0
    extra: int = 0
    published: bool = True  # False: the complete run was there already and nothing was done


@dataclass(frozen=True)
class Scoring:
    """A plan and what its prompts got, without the engine: the scores of all cells, or of the
    paper's alone in a first look; the prompts without an answer (key, kind, message); keys of those
    that were ``sent`` for the first time; gives_scores: False where the model is measured by its
    answers alone; times: rows of the table ``timings``; engine: its fingerprint, and what it
    counted, with the seconds spent inside it."""

    plan: Plan
    scored: StoredScores
    failed: list[tuple[str, str, str]]
    sent: frozenset[str]
    gives_scores: bool
    times: pd.DataFrame
    fingerprint: str
    counts: Mapping[str, float]

    @cached_property
    def failures(self) -> dict[str, str]:
        """Key -> kind of every prompt without an answer."""
        return {key: kind for key, kind, _ in self.failed}

    @cached_property
    def lost_view(self) -> tuple[str, str, str] | None:
        """A view none of whose prompts has a score, with kind and message of its first failure;
        None without one. Prompts that no engine of this kind can answer are no loss."""
        lost = {key for key, kind, _ in self.failed if kind != NotAnswerable.kind}
        for view, keys in self.scored.cells.groupby("view", sort=True)["key"]:
            if set(keys) <= lost:
                _, kind, message = next(f for f in self.failed if f[0] in set(keys))
                return METHODS.get(str(view), str(view)), kind, message
        return None

    def outcome(self, run_id: str) -> Outcome:
        """Counts of prompts; unanswerable prompts are not among the planned ones."""
        extra = set(self.plan.distinct["key"]) - self.plan.paper()
        never = {key for key, kind in self.failures.items() if kind == NotAnswerable.kind}
        planned, failed = self.plan.planned - len(never), len(self.failures) - len(never)
        fresh = len(self.sent - set(self.failures))
        return Outcome(
            run_id,
            naive=int(of_paper(self.plan.cells).sum()),
            planned=planned,
            scored=fresh,
            cached=planned - fresh - failed,
            failed=failed,
            unanswerable=len(never),
            extra=len(extra - never),
        )


def of_paper(cells: pd.DataFrame) -> pd.Series:
    """Which cells are the suite's views; the others belong to extra prompts."""
    return cells["view"].isin([view.value for view in View])


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, and where it goes. run_id '' and ``results`` serve the cache alone;
    first_look: publishes the paper's views while extra prompts wait."""

    spec: ModelSpec
    benchmark: Path
    results: Path
    settings: EvalSettings
    run_id: str = ""
    first_look: Callable[[Scoring], object] = lambda scoring: None

    @cached_property
    def suite(self) -> suites.Suite:
        return suites.of(self.benchmark)

    @cached_property
    def card(self) -> Mapping[str, object]:
        return suites.benchmark_card(self.benchmark)


def score_model(engine: Backend, run: Evaluation, progress: Progress = silent) -> Scoring:
    """What needs the model: scores every prompt of the run that is missing from the cache beside
    its results, the paper's views before extra prompts, and commits the rows to it, as paid by that
    run."""
    spec, images = run.spec, ImageReader(run.benchmark)
    cells = run.suite.cells(run.benchmark, run.settings)
    plan = make_plan(askable(cells, spec), engine.fingerprint)
    cache = ScoreCache(run.results.parent, spec.name, engine.fingerprint)
    images.require(plan.distinct["image_id"].unique())
    with cache.exclusive():
        scorer = Scorer(engine, cache, images, spec)
        try:
            return _score(scorer, run, plan, engine.gives_scores, progress)
        except NoScores:
            if not cache.lacks("scores", plan.distinct["key"]).all():
                raise  # the endpoint gave scores before
            return _score(scorer, run, plan, False, progress)


def _score(
    scorer: Scorer, run: Evaluation, plan: Plan, gives_scores: bool, progress: Progress
) -> Scoring:
    """Asks what the cache lacks: the paper's views, then the answers that begin as the suite asks,
    and extra prompts last. Where these take long, the paper's views are published before."""
    engine, cache, settings = scorer.engine, scorer.cache, run.settings
    abilities = Abilities(gives_scores, engine.forces_starts)
    needed = run.suite.to_decode(run.spec, plan.cells, plan.distinct, settings, abilities)
    plan = plan if gives_scores else plan.only(needed["key"])
    distinct, paper = plan.distinct, plan.paper()
    lacking = cache.lacks("scores", distinct["key"]) & (distinct["candidates"] != "")
    wanted = not_generated(needed, cache.decoded())
    never = _unanswerable(engine, run, plan, wanted)
    missing, wanted = (
        rows[~rows["key"].isin(list(never))].assign(run=run.run_id)
        for rows in (distinct[lacking & gives_scores], wanted)
    )
    free = wanted.loc[(wanted["candidates"] == "") | (not gives_scores), "key"]
    sent = frozenset(missing["key"]) | frozenset(free)
    # prompts of the run, and those of them that are done
    totals = {SCORING: len(distinct), DECODING: len(needed)}
    done = {SCORING: len(distinct) - len(missing), DECODING: len(needed) - len(wanted)}

    def ask(to_score: pd.DataFrame, to_decode: pd.DataFrame) -> None:
        scorer.run(
            to_score,
            to_decode,
            lambda what, now, _: progress(what, done[what] + now, totals[what]),
        )
        done[SCORING] += len(to_score)
        done[DECODING] += len(to_decode)

    def stored(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, StoredScores]:
        """The cache's rows of scores and answers, and what the suite reads of them."""
        scores, answers = cache.compact("scores"), cache.compact("generations")
        answers = answers.merge(needed[["key", "limit"]], on=["key", "limit"])
        times = [name for name, _ in TIMED]
        rows = (scores.drop(columns=times), answers.drop(columns=times))
        return scores, answers, StoredScores(cells, *rows, TOLERANCES[run.spec.dtype])

    def summarise(cells: pd.DataFrame, waiting: Collection[str]) -> Scoring:
        scores, answers, scored = stored(cells)
        failed = [*scorer.failures, *((key, NotAnswerable.kind, why) for key, why in never.items())]
        return Scoring(
            # the texts are a seventh of a run's memory, and nothing reads them from here on
            Plan(distinct.drop(columns="text"), plan.cells),
            scored,
            [*failed, *((key, *WAITING) for key in sorted(waiting))],
            sent,
            gives_scores,
            timings(cells, scores, answers, run.run_id, settings.passes),
            engine.fingerprint,
            {**engine.counts, "seconds": round(scorer.seconds, 3)},
        )

    if len(missing):
        if admission.undecided(run.spec):
            _decide_size(scorer, missing)
        progress(SCORING, done[SCORING], totals[SCORING])
    of_views = [rows["key"].isin(paper) for rows in (missing, wanted)]
    ask(missing[of_views[0]], wanted[of_views[1]])
    # those of 'val', on which CADE is tuned, before those of 'test'
    continues = gives_scores and abilities.forces_starts and settings.mode == "continue"
    for split in ("val", "test") if continues else ():
        starts = run.suite.starts_needed(run.benchmark, stored(plan.cells)[2], settings, split)
        rows = needed[needed["key"].isin(list(starts))].assign(run=run.run_id)
        rows = rows.assign(forced=[",".join(starts[key]) for key in rows["key"]])
        totals[DECODING] += len(rows)
        ask(missing[:0], rows)
    extra = missing[~of_views[0]], wanted[~of_views[1]]
    waiting = {key for rows in extra for key in rows["key"]}
    if paper and len(waiting) * scorer.pace > FIRST_LOOK:
        # the device waits for some minutes of CADE, the results don't wait for hours
        cells = plan.cells[of_paper(plan.cells)].reset_index(drop=True)
        run.first_look(summarise(cells, waiting))
    ask(*extra)
    scorer.forget_hangs()
    return summarise(plan.cells, ())


def _decide_size(scorer: Scorer, missing: pd.DataFrame) -> None:
    """Finds out on a few prompts how those of a model without an admitted entry may be scored
    together, and says so, and whether admission would refuse the model."""
    rows = draw(missing, _PROBES, 0).to_dict("records")
    ways = None
    try:
        ways = admission.decide(scorer.engine, as_prompts(rows, scorer.images))
        scorer.size, line = (ways.batch_size, ways.line) if ways else (scorer.size, "")
    except Exception as error:  # a prompt that fails alone is recorded when its turn comes
        line = f"they can't be scored ({type(error).__name__}: {first_line(error)})"
    print(
        f"{scorer.spec.name}: no entry says how its prompts may be scored together; {len(rows)}"
        f" of them probed: {line}",
        file=sys.stderr,
        flush=True,
    )
    unnamed = [""] * len(rows)
    seen = admission.summary(ways.itself.alone.scores, unnamed, unnamed) if ways else None
    why = admission.refusal(seen, scorer.spec, find_root()) if seen else ""
    why, _, _ = why.partition("; in registry/")
    if why:
        print(
            f"{scorer.spec.name}: its scores are hardly those of answers: {why}; what would change"
            " that: sdgbias register-model (of a registered model, models enable)",
            file=sys.stderr,
            flush=True,
        )


def _unanswerable(
    engine: Backend, run: Evaluation, plan: Plan, wanted: pd.DataFrame
) -> dict[str, str]:
    """Key -> reason of the prompts that this engine can never answer: prompts with candidates where
    it only chooses one of the listed labels, and prompts whose right answer is not among the few
    names it can give."""
    named = {}
    if engine.names is not None:
        named = run.suite.unanswerable(run.benchmark, wanted, engine.names)
    if not engine.chooses_labels:
        return named
    scored = plan.distinct.loc[plan.distinct["candidates"] != "", "key"]
    return named | dict.fromkeys(scored.tolist(), NO_LIST)
