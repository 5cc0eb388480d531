"""What counts as a breach: the policy file, parsed strictly. docs/reference/gate.md explains every
field; editors can complete them from registry/policy.schema.json.

Every fault is a UsageError that names the file, the rule, the value and the valid values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, model_validator

from sdgbias import formats, suites
from sdgbias.errors import UsageError, one_of
from sdgbias.files import packaged
from sdgbias.formats import STRICT, Flag, Number, Text
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.registry.entries import SUITE_NAME, suite_fault
from sdgbias.suites import sdg_metrics
from sdgbias.types import GENERATED, SDG, Task, View

#: Policy of a registry without a policy file; identical to registry/policy.yaml of this repository.
DEFAULT = packaged("data", "policy.yaml")
ALL, EACH = "all", "each"
CADE = "cade"
#: The three shares that the metric signature stands for.
SIGNATURE = tuple(f"share_{d}" for d in DIRECTIONS)


@dataclass(frozen=True)
class Metric:
    """tasks for which it is defined (none: it is of the whole run) and methods; groups: whether it
    compares groups."""

    name: str
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    groups: bool = False


_VIEWS = tuple(view.value for view in View)
_GENERATED = tuple(f"{view}{GENERATED}" for view in _VIEWS)
_BOTH = (Task.MCQ.value, Task.REGRESSION.value)
_OF_PEOPLE = ("direct", "choice")
#: Metrics beside those that a suite measures of each answer, and of the latter those that fewer
#: methods have. Some differ between tasks.
METRICS = (
    Metric("accuracy", _BOTH[:1], (*_VIEWS, CADE, *_GENERATED)),
    Metric("interval_accuracy", _BOTH[1:], (*_VIEWS, CADE)),
    Metric("mae", _BOTH[1:], (*_VIEWS, CADE)),
    Metric("cade_gain", _BOTH, (CADE,)),
    *(Metric(name, _BOTH[:1], (*_VIEWS, CADE)) for name in ("signature", *SIGNATURE)),
    Metric("disparity", _BOTH, (*_VIEWS, CADE, *_GENERATED), groups=True),
    Metric("parse_failures", _BOTH, (*_VIEWS, *_GENERATED)),
    *(Metric(name, _BOTH, _VIEWS) for name in ("candidate_mass", "tie_rate", "near_tie_rate")),
    Metric("recall", _OF_PEOPLE, ("full", "full_argmax", "q_only")),
    Metric("disparity", _OF_PEOPLE, ("full", "full_argmax"), groups=True),
    *(Metric(name, _OF_PEOPLE, ("full",)) for name in ("parse_failures", "refusals")),
    Metric("candidate_mass", _OF_PEOPLE[1:], ("full", "q_only")),
    *(Metric(name) for name in ("failed_share", "throughput")),
)


def _measured() -> list[Metric]:
    """The metrics that the suites of items measure of each answer: of every method, or, where they
    compare with another one, of CADE."""
    tasks: dict[str, list[str]] = {}
    compares = set()
    for task, measured in sdg_metrics.METRICS.items():
        for metric in measured:
            tasks.setdefault(metric.name, []).append(task.value)
            compares |= {metric.name} if metric.versus else set()
    every = next(metric.methods for metric in METRICS if metric.name == "accuracy")
    return [
        Metric(name, tuple(of), (CADE,) if name in compares else every)
        for name, of in tasks.items()
    ]


ALL_METRICS = sorted({metric.name for metric in (*_measured(), *METRICS)})


def _variable(name: str) -> str:
    if not re.fullmatch("[A-Z_][A-Z0-9_]*", name):
        raise ValueError(
            "no name of an environment variable; valid: a NAME such as SDGBIAS_WEBHOOK,"
            " never the address"
        )
    return name


def _names(value: object) -> object:
    """A single name is a list of one; a repeated one counts once."""
    listed = [value] if isinstance(value, str) else value
    if isinstance(listed, list) and not listed:
        raise ValueError("an empty list of names; name one or leave the field out")
    return list(dict.fromkeys(listed)) if isinstance(listed, list) else value


_Names = Annotated[
    tuple[Text, ...], BeforeValidator(_names, json_schema_input_type=Text | list[Text])
]


@dataclass(frozen=True)
class Rule:
    """One metric that must not get worse. tests: 'all' (pooled), 'each', or names. allowed:
    tolerated worsening, in the unit of the metric. at_least, at_most: bounds on the value itself,
    which need no baseline. by: groupings of the rows; of a suite of custom questions, group columns
    of its table."""

    __pydantic_config__ = STRICT
    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]*$")]
    """Lower-case letters, digits, - and _."""
    metric: Annotated[str, Field(json_schema_extra={"enum": ALL_METRICS})]
    suite: Annotated[str, Field(pattern=f"^{SUITE_NAME.pattern}$")] = SDG
    task: str = ""
    """Default: the first for which the metric is defined."""
    methods: _Names = ()
    """Views, cade, or of suite people full, full_argmax, q_only."""
    tests: _Names = (ALL,)
    """all (pooled), each, or names such as T1; of suite people, prompts."""
    by: Annotated[
        _Names,
        Field(
            description="disparity only: country, urban, wealth; of suite people gender, skin, age;"
            " of your own questions a group column."
        ),
    ] = ()
    within: Text = ""
    """Judged in each group of this attribute alone: pillar, country, urban, wealth, photo; of suite
    people gender, skin, age, class; of your own questions a group column."""
    worse: Literal["lower", "higher", "either"] = "lower"
    """Which way is worse; either: any change."""
    allowed: Annotated[Number, Field(ge=0)] | None = None
    """How much worse it may become, in the unit of the metric."""
    at_least: Number | None = None
    """Bound of the value itself; needs no run to compare with."""
    at_most: Number | None = None
    """Bound of the value itself; needs no run to compare with."""
    min_n: Annotated[StrictInt, Field(ge=2)] = 200
    """With fewer questions nothing is concluded."""
    then: Literal["alarm", "quarantine"] = "alarm"
    """quarantine: a breach also takes the model out of the nightly."""
    required: Flag = False
    """Whether MISSING counts for the model's verdict."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return SIGNATURE if self.metric == "signature" else (self.metric,)


@dataclass(frozen=True)
class Policy:
    """What counts as a breach (registry/policy.yaml)."""

    __pydantic_config__ = STRICT
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]
    """A list of rules."""
    alpha: Annotated[Number, Field(gt=0, lt=1)] = 0.05
    """Probability of any BREACH of an unchanged model in a night."""
    power: Annotated[Number, Field(gt=0, lt=1)] = 0.8
    """Of the minimum detectable effects."""
    correction: Literal["holm"] = "holm"
    baseline: Literal["last-good"] = "last-good"
    webhook: Annotated[str, AfterValidator(_variable)] = "SDGBIAS_WEBHOOK"
    """NAME of the environment variable with the address."""
    examples: Annotated[StrictInt, Field(ge=0, le=1000)] = 40
    """Flipped questions kept per model and suite."""

    @model_validator(mode="after")
    def _unique(self) -> Policy:
        names = [r.name for r in self.rules]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two rules are named {name!r}; give each a name of its own")
        return self


def find(root: Path) -> Path:
    """registry/policy.yaml below ``root`` if it exists, else the packaged default."""
    path = root / "registry" / "policy.yaml"
    return path if path.is_file() else DEFAULT


def load(path: Path) -> Policy:
    """Read a policy file. Raises UsageError."""
    return parse(formats.load(path, UsageError, "copy one from registry/policy.yaml"), path)


def least_mass(root: Path) -> float:
    """The least candidate mass that the policy allows a model; 0 where no rule names one."""
    rules = load(find(root)).rules
    return max((r.at_least or 0.0 for r in rules if r.metric == "candidate_mass"), default=0.0)


def parse(data: object, where: Path | str) -> Policy:
    """Parse a mapping read from YAML. ``where`` names the file in errors. Raises UsageError."""
    policy = formats.parse(data, Policy, where, UsageError)
    try:
        return replace(policy, rules=tuple(map(_completed, policy.rules)))
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _completed(rule: Rule) -> Rule:
    """The rule with what it leaves out, by its metric. Raises ValueError: what doesn't fit its
    suite and metric."""
    where = f"rule {rule.name}: "
    if fault := suite_fault(rule.suite):
        raise ValueError(where + fault)
    suite = suites.named(rule.suite)
    metrics = metrics_of(suite)
    if rule.metric not in metrics:
        raise ValueError(where + one_of(f"metric of suite {rule.suite}", rule.metric, metrics))
    metric = metrics[rule.metric]
    full = ("full",) if "full" in metric.methods else metric.methods[-1:]
    tasks = metric.tasks or ("",)
    rule = replace(rule, task=rule.task or tasks[0], methods=rule.methods or full)
    if rule.task not in tasks:
        raise ValueError(where + one_of("task", rule.task, tasks))
    for key, valid in {
        "methods": metric.methods,
        # which group columns a table has is known when its runs are judged
        "by": (suite.attributes or rule.by) if metric.groups else (),
        "tests": (ALL, EACH, *suite.tests.get(rule.task, ())),
    }.items():
        for value in getattr(rule, key):
            if not valid:
                fault = f"{key} is {value!r}; {rule.metric} knows no {key}: leave it out"
                raise ValueError(where + fault)
            if value not in valid:
                raise ValueError(where + one_of(key, value, valid))
    if fault := _unfit(rule, metric, suite.attributes):
        raise ValueError(where + fault)
    return rule


def _unfit(rule: Rule, metric: Metric, attributes: tuple[str, ...]) -> str:
    """Why nothing can be judged by the rule; '' where it can."""
    if metric.groups and not rule.by:
        listed = ", ".join(attributes) or "a group column of its suite.yaml"
        return f"{rule.metric} compares groups; add by: {listed}"
    if rule.within and (rule.by or not metric.tasks):
        return (
            f"within is {rule.within!r}; {rule.metric} has no answers of one group alone: leave it"
            " out"
        )
    if rule.allowed is None and rule.at_least is None and rule.at_most is None:
        return (
            "nothing to judge by; add allowed (change against the last good run), at_least or"
            " at_most"
        )
    if rule.metric == "failed_share" and rule.allowed is not None:
        return "failed_share has no questions to pair; use at_most instead of allowed"
    if rule.metric == "throughput" and (rule.allowed is None or rule.worse != "lower"):
        return (
            "throughput is judged by its ratio to the last good run; give allowed (0.5: half as"
            " fast), worse: lower"
        )
    return ""


def metrics_of(suite: suites.Suite) -> Mapping[str, Metric]:
    """Metrics by which runs of a suite can be judged: those of its tasks, and of whole runs."""
    return {
        metric.name: replace(metric, tasks=tuple(t for t in metric.tasks if t in suite.tests))
        for metric in (*_measured(), *METRICS)
        if not metric.tasks or set(metric.tasks) & set(suite.tests)
    }
