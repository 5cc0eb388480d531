"""What counts as a breach: the policy file, parsed strictly. docs/reference/gate.md explains every
field; editors can complete them from registry/policy.schema.json.

Every fault is a UsageError that names the file, the rule, the value and the valid values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, model_validator

from sdgbias import formats, suites
from sdgbias.benchmark.people_items import CHOICE, DIRECT
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


_BOTH, _OF_PEOPLE = tuple(task.value for task in Task), (DIRECT, CHOICE)
METHODS_OF_PEOPLE = ("full", "full_argmax", "q_only")
METHODS = (*View, CADE, *(f"{view}{GENERATED}" for view in View))
#: Metric -> the tasks that have it beside those that measure it of each answer; of a whole run
#: none.
METRICS: Mapping[str, tuple[str, ...]] = {
    "candidate_mass": (CHOICE,),
    "cade_gain": _BOTH,
    "signature": (Task.MCQ,),
    **dict.fromkeys(("disparity", "parse_failures"), (*_BOTH, *_OF_PEOPLE)),
    **dict.fromkeys(("recall", "refusals"), _OF_PEOPLE),
    "failed_share": (),
}


def tasks_by_metric() -> dict[str, tuple[str, ...]]:
    """Metric -> the tasks that have it."""
    tasks = dict(METRICS)
    for task, measured in sdg_metrics.METRICS.items():
        for metric in measured:
            tasks[metric.name] = (*tasks.get(metric.name, ()), task.value)
    return tasks


def _default_method(metric: str) -> str:
    """CADE for a metric that compares it with another method."""
    measured = chain.from_iterable(sdg_metrics.METRICS.values())
    compares = {"cade_gain", *(m.name for m in measured if m.versus)}
    return CADE if metric in compares else View.FULL.value


def _variable(name: str) -> str:
    if not re.fullmatch("[A-Z_][A-Z0-9_]*", name):
        raise ValueError(
            "no name of an environment variable; valid: a NAME such as SDGBIAS_WEBHOOK,"
            " never the address"
        )
    return name


#: A single name is a list of one; a repeated one counts once.
_Names = Annotated[
    tuple[Text, ...],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=Text | list[Text],
    ),
    AfterValidator(lambda names: tuple(dict.fromkeys(names))),
]


@dataclass(frozen=True)
class Rule:
    """One metric that must not get worse."""

    __pydantic_config__ = STRICT
    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]*$")]
    """Lower-case letters, digits, - and _."""
    metric: Annotated[str, Field(json_schema_extra={"enum": sorted(tasks_by_metric())})]
    suite: Annotated[str, Field(pattern=f"^{SUITE_NAME.pattern}$")] = SDG
    task: str = ""
    """Default: the first for which the metric is defined."""
    methods: _Names = ()
    """Views, cade, or of suite people full, full_argmax, q_only."""
    tests: _Names = (ALL,)
    """all (pooled), each, or names such as T1; of suite people, prompts."""
    by: _Names = ()
    """disparity only: country, urban, wealth; of suite people gender, skin, age; of your own
    questions a group column."""
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

    @model_validator(mode="after")
    def _completed(self) -> Rule:
        """The rule with what it leaves out. Raises ValueError: what doesn't fit its suite and
        metric."""
        if fault := suite_fault(self.suite):
            raise ValueError(fault)
        suite, metric = suites.named(self.suite), self.metric
        tasks = {
            name: [task for task in tasks if task in suite.tests]
            for name, tasks in tasks_by_metric().items()
            if not tasks or set(tasks) & set(suite.tests)
        }
        if metric not in tasks:
            raise ValueError(one_of(f"metric of suite {self.suite}", metric, tasks))
        rule = self
        if tasks[metric]:
            methods = self.methods or (_default_method(metric),)
            rule = replace(self, task=self.task or tasks[metric][0], methods=methods)
        groups = metric == "disparity"
        people = rule.task in _OF_PEOPLE
        for field, given, valid in (
            ("task", filter(None, [rule.task]), tasks[metric]),
            ("methods", rule.methods, METHODS_OF_PEOPLE if people else METHODS),
            # which group columns a table has is known when its runs are judged
            ("by", rule.by, (suite.attributes or rule.by) if groups else ()),
            ("tests", rule.tests, (ALL, EACH, *suite.tests.get(rule.task, ()))),
        ):
            for value in given:
                if not valid:
                    raise ValueError(
                        f"{field} is {value!r}; {metric} knows no {field}: leave it out"
                    )
                if value not in valid:
                    raise ValueError(one_of(field, value, valid))
        if groups and not rule.by:
            listed = ", ".join(suite.attributes) or "a group column of its suite.yaml"
            raise ValueError(f"{metric} compares groups; add by: {listed}")
        if rule.within and (rule.by or not rule.task):
            no = f"{metric} has no answers of one group alone: leave it out"
            raise ValueError(f"within is {rule.within!r}; {no}")
        if rule.allowed is None and rule.at_least is None and rule.at_most is None:
            raise ValueError(
                "nothing to judge by; add allowed (change against the last good run), at_least or"
                " at_most"
            )
        if metric == "failed_share" and rule.allowed is not None:
            raise ValueError(
                "failed_share has no questions to pair; use at_most instead of allowed"
            )
        return rule


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


def parse(data: object, where: Path | str) -> Policy:
    """Parse a mapping read from YAML. ``where`` names the file in errors. Raises UsageError."""
    return formats.parse(data, Policy, where, UsageError)


def least_mass(root: Path) -> float:
    """The least candidate mass that the policy allows a model; 0 where no rule names one."""
    rules = load(find(root)).rules
    return max((r.at_least or 0.0 for r in rules if r.metric == "candidate_mass"), default=0.0)
