"""The studies of answers, as calls: each line is which value of whose answers, in which groups,
against what, and in which family of tests. A new number of stored answers is a line here.

* directions (Fig. 4, Fig. 5): directions of answers by view; what picture and context contribute
* perturbation (Table J): the same with options reversed, shuffled or labelled differently
* wordings: over the paraphrases of each indicator's question. ``share_...`` of a pillar, or of all,
  has the wider of the interval over indicators and that over prompts, so that it holds for other
  indicators and other wordings; that of one indicator, and ``wordings_share_...``, hold for other
  wordings only
* methods (Table 1): every debiasing baseline and every control beside the Full view
* paired: CADE against each view on the same questions, with the minimum detectable gain, clustered
  by place. McNemar's counts are tested with one vote per place, and shown in addition
* divergence (App. E.2): what CADE gains where the picture changes much, and where it changes little
* harm: answers fixed and broken by CADE, implausible ones, and the terms that caused flips
* groups: accuracy for different places, their disparities, and whether CADE narrows these
* regression: errors of numbers by target, over all answers (micro), as the mean of targets (macro)
* fairness: recall of groups of people, and whether debiasing narrows their difference
* calibration, selective: what the confidence of an answer is worth
* search: the test rows under the paper's search for CADE's parameters and under better ones
* ablation (Table 2), streams (Table 3), sweep (Fig. 8): what each part of CADE contributes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from sdgbias.analysis.calls import (
    Call,
    Study,
    StudyRow,
    Values,
    depths,
    disparity,
    distinct,
    indicators,
    last_minus_first,
    macro,
    mcnemar,
    mde,
    pillars,
)
from sdgbias.analysis.outcomes import CADE, TaskOutcome, pools, unit
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData
from sdgbias.analysis.studies import (
    baselines,
    calibration,
    directions,
    fairness,
    groups,
    harm,
    parameters,
    tolerances,
)
from sdgbias.analysis.studies.harm import TERMS
from sdgbias.analysis.studies.tolerances import CADE_TOLERANCE
from sdgbias.types import Task, View

FULL, CTX_Q, IMG_Q, Q_ONLY = (v.value for v in (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY))
VIEWS = (FULL, CTX_Q, IMG_Q, Q_ONLY)
Answers = Iterable[TaskOutcome | StudyRow]


# ----------------------------------------------------------------------
# selections and values


def choices(run: RunData, settings: AnalysisSettings) -> Answers:
    return pools(run, Task.MCQ)


def all_answers(run: RunData, settings: AnalysisSettings) -> Iterator[TaskOutcome | StudyRow]:
    for task in Task:
        yield from pools(run, task)


def hit(o: TaskOutcome, method: str) -> Values:
    return {"accuracy" if o.task == Task.MCQ else "interval_accuracy": o.hit[method]}


def accuracy(o: TaskOutcome, method: str) -> Values:
    return hit(o, method) if o.task == Task.MCQ else {}


def gain_of_letters(o: TaskOutcome, method: str) -> Values:
    return parameters.gain(o, method) if o.task == Task.MCQ else {}


def gain_of_numbers(o: TaskOutcome, method: str) -> Values:
    return {} if o.task == Task.MCQ else parameters.gain(o, method)


def net(o: TaskOutcome, method: str) -> Values:
    return {"net": o.hit[method] - o.hit[FULL]}


def implausible(o: TaskOutcome, method: str) -> Values:
    return {"implausible": o.more["implausible"]}


def flipped(o: TaskOutcome, method: str) -> Values:
    return {"flipped": (o.more["first"] >= 0).astype(float)}


def changed(o: TaskOutcome, method: str) -> Values:
    return {"changed_rate": (o.choice[method] != o.choice[FULL]).astype(float)}


def prompts(o: TaskOutcome, method: str) -> Values:
    return {"distinct_prompts": o.prompt.astype(float)}


def worded_indicators(o: TaskOutcome, method: str) -> Values:
    return {"distinct_indicators": o.more["indicator"]}


def same_wordings(o: TaskOutcome, method: str) -> Values:
    shares = directions.of_three(o, method)
    return {f"wordings_{name}": values for name, values in shares.items()}


def indicators_and_wordings(o: TaskOutcome, method: str, versus: str) -> tuple[str, ...]:
    return ("indicator", "prompt")


def places(o: TaskOutcome, method: str, versus: str) -> tuple[str, ...]:
    return ("place",)


def gains(methods: Sequence[str], other: str, **columns: str) -> tuple[Call, Call]:
    """What methods earn more than another one."""
    of = partial(Call, methods=methods, versus=(other,), tested=True, columns=columns)
    return of(gain_of_letters), of(gain_of_numbers, kind="mean")


# ----------------------------------------------------------------------
# the table

_CLUSTER = {"parameter": "cluster"}
_MIXED = {"note": "mixes units"}
_NOTED = baselines.noted
_beside_views = partial(Call, hit, methods=(CADE,), versus=VIEWS)
_of_numbers = partial(
    Call, methods=(CADE, CADE_TOLERANCE), versus=(FULL,), suffix="_change", family="change"
)
_earned = (Call(accuracy), Call(tolerances.error, kind="amount"))
_of_people = partial(Call, methods=fairness.others, versus=(fairness.FULL,), clusters=unit)

ALL = (
    Study(
        "methods",
        baselines.debiased,
        (
            Call(hit, depths, methods=_NOTED),
            Call(accuracy, depths, "share", _NOTED, (FULL,), "_gain"),
            Call(tolerances.error, depths, "amount", _NOTED),
            Call(tolerances.error, depths, "mean", _NOTED, (FULL,), "_change"),
            Call(baselines.expected, depths, "fraction", _NOTED),
        ),
    ),
    Study(
        "perturbation",
        directions.orders,
        (
            Call(directions.of_orders, depths, clusters=unit),
            Call(prompts, depths, statistic=distinct),
        ),
    ),
    Study(
        "wordings",
        directions.wordings,
        (
            Call(directions.of_three, pillars, clusters=indicators_and_wordings),
            Call(directions.of_three, indicators, clusters=unit),
            Call(same_wordings, pillars, clusters=unit),
            Call(prompts, depths, statistic=distinct),
            Call(worded_indicators, depths, statistic=distinct),
        ),
    ),
    Study(
        "directions",
        choices,
        (
            Call(directions.of_both, depths, clusters=unit),
            Call(directions.answered, pillars, methods=VIEWS, clusters=unit),
            Call(hit, depths, "share", (FULL,), (CTX_Q, IMG_Q), "_gain", family="gain"),
            Call(prompts, depths, methods=(Q_ONLY,), statistic=distinct),
        ),
    ),
    Study(
        "paired",
        all_answers,
        (
            _beside_views(suffix="_gain", family="gain", columns=_CLUSTER),
            _beside_views(statistic=mde, tested=True, columns=_CLUSTER),
            _beside_views(statistic=mcnemar, family="sign", columns=_CLUSTER),
        ),
    ),
    Study(
        "divergence",
        groups.divergent,
        (
            Call(hit, groups.fifths, "share", (CADE,), (FULL,), "_gain"),
            Call(hit, groups.fifths, "share", (CADE,), (FULL,), "_gain", last_minus_first),
            Call(changed, groups.fifths, methods=(CADE,), columns={"versus": FULL}),
        ),
    ),
    Study(
        "harm",
        harm.diagnosed,
        (
            Call(harm.fixed_and_broken, depths, methods=(CADE,)),
            Call(net, depths, "difference", (CADE,), family="net"),
            Call(net, depths, "difference", (CADE,), statistic=mcnemar, family="sign"),
            Call(implausible, pillars, methods=(CADE,)),
            Call(flipped, pillars, methods=(CADE,)),
            *(
                Call(harm.flips(term), pillars, "share", (CADE,), columns={"parameter": term})
                for term in TERMS
            ),
            *(
                Call(
                    harm.net_of_flips(term),
                    pillars,
                    "difference",
                    (CADE,),
                    columns={"parameter": term},
                )
                for term in TERMS
            ),
        ),
    ),
    Study(
        "groups",
        groups.about_places,
        (
            Call(hit, groups.shown, methods=groups.methods, clusters=groups.sampled),
            Call(directions.of_ends, groups.shown, methods=groups.methods, clusters=unit),
            Call(tolerances.error, groups.shown, "amount", groups.methods),
            Call(
                hit,
                groups.attributes,
                methods=groups.compared,
                versus=("", FULL),
                statistic=disparity,
                clusters=places,
                family="{metric}",
            ),
        ),
    ),
    Study(
        "regression",
        tolerances.estimates,
        (
            Call(tolerances.errors, groups.targets, "amount"),
            Call(hit, groups.targets),
            Call(tolerances.error, groups.all_targets, "amount", suffix="_micro", columns=_MIXED),
            Call(tolerances.scaled, groups.all_targets, "amount", suffix="_micro"),
            Call(hit, groups.all_targets, suffix="_micro"),
            Call(
                tolerances.error,
                groups.targets,
                "amount",
                suffix="_macro",
                statistic=macro,
                columns=_MIXED,
            ),
            Call(tolerances.scaled, groups.targets, "amount", suffix="_macro", statistic=macro),
            Call(hit, groups.targets, suffix="_macro", statistic=macro),
            # of the error in mixed units by target only
            _of_numbers(tolerances.error, groups.targets, "amount"),
            _of_numbers(tolerances.scaled, groups.targets_and_all, "amount"),
            _of_numbers(hit, groups.targets_and_all),
        ),
    ),
    Study(
        "fairness",
        fairness.questions,
        (
            Call(fairness.recall, clusters=unit),
            Call(fairness.recall, fairness.by_group, clusters=unit),
            Call(fairness.false_yes, clusters=unit),
            Call(fairness.balanced, fairness.kinds_of_question, statistic=macro, clusters=unit),
            _of_people(fairness.recall, suffix="_change", tested=True),
            Call(fairness.recall, fairness.by_pair, statistic=disparity, clusters=unit),
            _of_people(fairness.recall, fairness.by_pair, statistic=disparity, family="{test}"),
        ),
    ),
    Study(
        "calibration",
        calibration.judged,
        (
            Call(calibration.losses, kind="amount"),
            Call(calibration.confidence, kind="fraction"),
            Call(hit),
            Call(calibration.confidence, statistic=calibration.reliability),
        ),
    ),
    Study(
        "selective",
        calibration.judged,
        (Call(calibration.confidence, statistic=calibration.selective),),
    ),
    Study(
        "search",
        parameters.searches,
        (*_earned, *gains(parameters.SEARCHES[1:], parameters.SEARCHES[0])),
    ),
    Study(
        "ablation",
        parameters.steps,
        (
            *_earned,
            *(
                call
                for before, after in pairwise(parameters.STEPS)
                for call in gains((after,), before)
            ),
        ),
    ),
    Study(
        "streams",
        parameters.streams,
        (
            Call(accuracy, methods=parameters.STREAMS),
            Call(tolerances.error, kind="amount", methods=parameters.STREAMS),
            *gains(parameters.STREAMS, parameters.BASELINE, versus=FULL),
        ),
    ),
    Study("sweep", parameters.sweep, ()),
)
#: Studies by name, in execution order.
STUDIES = {study.name: study for study in ALL}
