"""Study 'fairness': does debiasing narrow differences of recall between groups of people, and at
what recall (suite 'people')?

This goes beyond both papers: Wu et al. measure disparities without debiasing, and CADE was designed
for questions about places. The structure carries over: a single-choice question (p2, p3; A yes, B
no, C unknown) has first-token scores with the picture (Full) and without it (Q-only). Methods that
need only these two apply. CADE is that of T5, where CTX+Q equals Q-only and IMG+Q equals Full, so
its score is l_img - (alpha + beta) l_q (METHODS 0, item 5) behind the usual gate.

All results cover people of the 13 reported classes; tuning and estimation use val pictures,
reporting uses test pictures. The tuning objective weights right answers to questions about the
annotated class and about a wrong class equally (half of the total each), so that always answering
yes earns one half. Priors are estimated per prompt, whose questions differ only in the class.

``NAME@recall`` is the same method at Full's operating point: its score of Yes is shifted until it
answers as many of the val questions about the annotated class with yes as Full does. Smaller group
gaps at equal recall are a gain; smaller gaps because recall collapses are not. Intervals are
clustered by picture; those of disparities and their changes are resampled. p of a change of
disparity is Holm-corrected over the methods and attributes of its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import store
from sdgbias.analysis.calls import Level, StudyRow, Values
from sdgbias.analysis.outcomes import TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings, not_run
from sdgbias.analysis.run import RunData, list_matrix
from sdgbias.benchmark.people_items import CANDIDATES, CHOICE, CHOICES
from sdgbias.methods import baselines, cade, search, stats, tuning
from sdgbias.methods.baselines import METHODS, Evidence
from sdgbias.methods.bounds import between, fill
from sdgbias.methods.cade import Bools, Floats, Ints
from sdgbias.raw.facet import GROUPS, SELECTED
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import Task

STUDY, FULL, AT_RECALL = "fairness", "full_argmax", "@recall"
#: Baselines that need only Full and Q-only, without duplicates: with Q-only as CTX+Q, other
#: baselines are identical to one of these.
NAMES = (
    "post_hoc_q",
    "post_hoc_identity",
    "vdd_q",
    "vdd_tuned",
    "m3id",
    "pai_logit",
    "cc_q",
    "bc",
    "bc_geometric",
    "bcl",
    "pmi",
    "pmi_tuned",
)
#: Those of them that are fitted on val rows.
FITTED = ("cc_q", "bc", "bc_geometric", "bcl", "vdd_tuned", "pmi_tuned", "cade")
YES = 0
#: Of the val rows that score all draws. Elsewhere it is a fifth: of so few rows, those can hold so
#: many more questions about the annotated class that always yes wins.
ALL_ROWS = 1.0
NO_VAL = "no val questions about both the annotated and a wrong class"


@dataclass(frozen=True)
class ChoiceQuestions:
    """N questions of one prompt, sorted by item_id. items: item_id, image_id, asked, negative,
    gender, skin, age, split. full, q (N, 3): logits of yes, no, unknown, NaN without a score; every
    row has a Full score. gold (N,): 0 yes, 1 no."""

    test: str
    items: pd.DataFrame
    full: Floats
    q: Floats
    gold: Ints

    @property
    def val(self) -> Bools:
        return np.asarray(self.items["split"] == "val")

    @property
    def asked_right(self) -> Bools:
        """(N,) bool: questions about the annotated class."""
        return np.asarray(self.gold == YES)

    @property
    def payoff(self) -> Floats:
        """(N, 3): payoff of right answers of val rows, scaled so that both kinds of question have
        the same total weight; a perfect answerer has mean 1."""
        count = np.bincount(self.gold[self.val], minlength=2)
        weight = count.sum() / (2.0 * np.maximum(count, 1))
        return np.where(
            np.arange(3)[None, :] == self.gold[:, None], weight[self.gold][:, None], 0.0
        )

    @property
    def tunable(self) -> bool:
        return len(set(self.gold[self.val])) == 2


def load(results: Path, run_id: str) -> list[ChoiceQuestions]:
    """The single-choice questions of a run by prompt; empty if it has none (data without
    classes)."""
    stored = store.arrow(
        results,
        """SELECT i.item_id, i.image_id, i.prompt, i.asked, i.negative, i.gender, i.skin, i.age,
           i.split, s."view", s.logits, s.upper
           FROM scores s JOIN runs r USING (run_id) JOIN people i ON i.benchmark_id =
           r.benchmark_id AND i.item_id = s.item_id
           WHERE run_id = $run AND s.task = $task AND list_contains($classes, i.class1) ORDER BY
           i.item_id""",
        {"run": run_id, "task": CHOICE, "classes": list(SELECTED)},
    )
    z, bound = (list_matrix(stored[name], len(CANDIDATES)) for name in ("logits", "upper"))
    scores = fill(between(z, bound))
    cells = stored.drop_columns(["logits", "upper"]).to_pandas()
    questions = []
    for test in CHOICES:
        full, alone = ((cells["prompt"] == test) & (cells["view"] == v) for v in ("full", "q_only"))
        full &= np.isfinite(scores).any(axis=1)
        if not full.any():
            continue
        items = cells[full].drop(columns=["view", "prompt"]).reset_index(drop=True)
        q = pd.DataFrame(scores[alone], cells.loc[alone, "item_id"]).reindex(items["item_id"])
        gold = items["negative"].to_numpy(dtype=np.int64)
        questions.append(ChoiceQuestions(test, items, scores[full], q.to_numpy(dtype=float), gold))
    return questions


# ----------------------------------------------------------------------
# methods


def answers(
    question: ChoiceQuestions, settings: AnalysisSettings
) -> tuple[dict[str, Ints], dict[str, str], dict[str, str]]:
    """(choice (N,) by method, note by method, reason by method that can't run)."""
    is_finite = np.isfinite(question.full)
    log_full = np.where(is_finite, cade.log_softmax(question.full, is_finite), -np.inf)
    choice, notes, absent = {FULL: baselines.predict(log_full)}, {FULL: ""}, dict[str, str]()
    val_right = question.val & question.asked_right
    of, target = int(val_right.sum()), int((choice[FULL][val_right] == YES).sum())
    for name in (*NAMES, "cade"):
        if not question.tunable:
            absent[name + AT_RECALL] = NO_VAL
            if name in FITTED:
                absent[name] = NO_VAL
                continue
        score, note = (_cade if name == "cade" else partial(_baseline, name))(question, settings)
        choice[name], notes[name] = baselines.predict(score), note
        if question.tunable:
            choice[name + AT_RECALL], reached = at_recall(score, val_right, target)
            shifted = f"Yes shifted on val: {reached} of {of} recognised, Full {target}"
            notes[name + AT_RECALL] = f"{note}; {shifted}"
    choice["q_only"] = baselines.predict(np.where(np.isfinite(question.q), question.q, -np.inf))
    return choice, notes | {"q_only": "without the picture"}, absent


def _baseline(
    name: str, question: ChoiceQuestions, settings: AnalysisSettings
) -> tuple[Floats, str]:
    """(score (N, 3), -inf where masked, note) of a method of baselines.py, with Q-only as CTX+Q."""
    nothing, present = np.full(question.full.shape, np.nan), np.ones(question.full.shape, bool)
    one = np.zeros(len(question.gold), dtype=np.int64)
    e = Evidence(question.full, question.q, nothing, question.q, present, one, question.val)
    method, how = METHODS[name], {"draws": settings.draws, "seed": settings.seed}
    title = method.title.removesuffix(", tuned on val")
    if not method.tuned:
        return baselines.scores(name, e), title
    tuned = tuning.tune(name, e, question.payoff, question.val, **how, share=ALL_ROWS)
    assert tuned is not None  # there are val rows
    return baselines.scores(name, e, **tuned.settings), f"{title}; {_listed(tuned.settings)}"


def _cade(question: ChoiceQuestions, settings: AnalysisSettings) -> tuple[Floats, str]:
    """CADE with Q-only as CTX+Q and Full as IMG+Q. A row kept by the gate has Full's
    log-probabilities."""
    s, val = cade.streams(question.full, question.q, question.full, question.q), question.val
    how = search.SearchSettings(settings.draws, settings.seed, share=ALL_ROWS)
    rows = search.take(s, val), question.payoff[val]
    tuned = search.random_search(*rows, Task.MCQ, how).params
    d = cade.decide(s, tuned)
    kept = np.where(s.valid, cade.log_softmax(question.full, s.valid), -np.inf)
    values = {"alpha": tuned.alpha, "lambda": tuned.lambda_kl, "beta": tuned.beta, "tau": tuned.tau}
    return np.where(d.kept[:, None], kept, d.score), f"CADE; {_listed(values)}"


def at_recall(score: Floats, rows: Bools, target: int) -> tuple[Ints, int]:
    """(choice (N,) with Yes shifted by one constant, resulting number of yes answers among
    ``rows``): as close to ``target`` as ties allow; of two equally close, the smaller. Rows not
    answered yes get the better of the other options."""
    others = np.max(score[:, 1:], axis=1)
    with np.errstate(invalid="ignore"):
        lead = score[:, YES] - np.where(np.isnan(others), -np.inf, others)
        margin = np.where(np.isfinite(score[:, YES]), lead, -np.inf)
    ordered = np.sort(margin[rows])
    values = np.unique(ordered[np.isfinite(ordered)])
    # half-way between margins; inf: no row answers yes
    cuts = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, [np.inf]])
    counts = np.array([int((ordered >= cut).sum()) for cut in cuts])
    best = len(cuts) - 1 - int(np.argmin(np.abs(counts - target)[::-1]))
    yes = margin >= cuts[best]
    rest = score.copy()
    rest[:, YES] = -np.inf
    return np.where(yes, YES, baselines.predict(rest)).astype(np.int64), int(counts[best])


def _listed(values: Mapping[str, float]) -> str:
    return "tuned on val, " + ", ".join(f"{name}={value:.4g}" for name, value in values.items())


# ----------------------------------------------------------------------
# what the calls of table.py measure


def questions(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    """The test rows of each single-choice prompt with the answers of every method (hit: yes); a row
    not_run of each method that can't run."""
    for question in load(run.results, run.run_id) if run.results else ():
        yield from outcome(question, settings)


def outcome(
    question: ChoiceQuestions, settings: AnalysisSettings
) -> Iterator[TaskOutcome | StudyRow]:
    """One prompt's answers, as `questions`."""
    choice, notes, absent = answers(question, settings)
    for name, why in absent.items():
        yield not_run(STUDY, why, task=CHOICE, test=question.test, method=name)
    test = ~question.val
    pictures, prompts = (
        stats.codes(question.items[name].to_numpy(dtype=str))[0] for name in ("image_id", "asked")
    )
    hits = {name: np.where(c < 0, np.nan, (c == YES).astype(float)) for name, c in choice.items()}
    yield TaskOutcome(
        CHOICE,
        question.test,
        question.items[test].reset_index(drop=True),
        pictures[test],
        {name: c[test] for name, c in choice.items()},
        {name: yes[test] for name, yes in hits.items()},
        {},
        notes=notes,
        more={"prompt": prompts[test], "gold": question.gold[test]},
    )


def others(o: TaskOutcome) -> list[str]:
    return [name for name in o.choice if name != FULL]


def recall(o: TaskOutcome, method: str) -> Values:
    """Yes to questions about the annotated class."""
    return {"recall": np.where(o.more["gold"] == YES, o.hit[method], np.nan)}


def false_yes(o: TaskOutcome, method: str) -> Values:
    """Yes to questions about a wrong class."""
    return {"false_yes_rate": np.where(o.more["gold"] != YES, o.hit[method], np.nan)}


def balanced(o: TaskOutcome, method: str) -> Values:
    """Right answers, where there are both kinds of question."""
    correct = (o.choice[method] == o.more["gold"]).astype(float)
    return {"accuracy_balanced": np.where(np.isnan(o.hit[method]), np.nan, correct)}


def _both_kinds(o: TaskOutcome) -> bool:
    return len(set(o.more["gold"])) == 2


def kinds_of_question(o: TaskOutcome) -> Iterator[Level]:
    """About the annotated class, about a wrong one; none where there is only one kind."""
    if _both_kinds(o):
        yield Level(o.more["gold"], ({}, {}))


def by_group(o: TaskOutcome) -> Iterator[Level]:
    """By each attribute the questions about the annotated class of each group."""
    for attribute, groups in GROUPS.items():
        yield _people(o, attribute, groups)


def by_pair(o: TaskOutcome) -> Iterator[Level]:
    """By each attribute the two groups that the paper compares."""
    for attribute, pair in PAIRS.items():
        yield replace(_people(o, attribute, pair), pair=pair)


def _people(o: TaskOutcome, attribute: str, groups: Sequence[str]) -> Level:
    of, code = o.items[attribute].to_numpy(dtype=str), np.full(len(o.items), -1, dtype=np.int64)
    for i, group in enumerate(groups):
        code[(of == group) & (o.more["gold"] == YES)] = i
    columns = [{"attribute": attribute, "group": group} for group in groups]
    return Level(code, columns, stats.SMALLEST, declared=True)
