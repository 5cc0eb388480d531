"""What counts as a breach: the policy file, parsed strictly. docs/reference/gate.md explains every
field; editors can complete them from registry/policy.schema.json.

Every fault is a UsageError that names the file, the rule, the value and the valid values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from sdgbias import files, suites
from sdgbias.benchmark.people_items import ATTRIBUTES, CHOICE, CHOICES, DIRECT
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import packaged
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.registry.entries import SUITE_NAME, suite_fault
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import GENERATED, SDG, TESTS, Task, View

#: Policy of a registry without a policy file; identical to registry/policy.yaml of this repository.
DEFAULT = packaged("data", "policy.yaml")
ALL, EACH = "all", "each"
WORSE, THEN = ("lower", "higher", "either"), ("alarm", "quarantine")
_VIEWS = tuple(v.value for v in View)
_CADE = "cade"
_GENERATED = tuple(v + GENERATED for v in _VIEWS)
_ENV = re.compile(r"[A-Z_][A-Z0-9_]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
#: The three shares that the metric signature stands for.
SIGNATURE = tuple(f"share_{d}" for d in DIRECTIONS)
#: Metrics of a whole run, without a value per question.
WHOLE = ("failed_share", "throughput")
_NUMBERS = (Task.REGRESSION.value,)
_BOTH = (Task.MCQ.value, *_NUMBERS)


@dataclass(frozen=True)
class Metric:
    """tasks for which it is defined (none: it is of the whole run) and methods; ``by``: groupings
    of the rows, if it compares groups; test: whether two runs are compared by a test."""

    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    by: tuple[str, ...] = ()


#: Metrics by table of a suite's questions.
METRICS: Mapping[str, Mapping[str, Metric]] = {
    "items": {
        "accuracy": Metric((Task.MCQ.value,), (*_VIEWS, _CADE, *_GENERATED)),
        "interval_accuracy": Metric(_NUMBERS, (*_VIEWS, _CADE)),
        "mae": Metric(_NUMBERS, (*_VIEWS, _CADE)),
        "cade_gain": Metric(_BOTH, (_CADE,)),
        "signature": Metric((Task.MCQ.value,), (*_VIEWS, _CADE)),
        **{share: Metric((Task.MCQ.value,), (*_VIEWS, _CADE)) for share in SIGNATURE},
        "disparity": Metric(_BOTH, (*_VIEWS, _CADE, *_GENERATED), ("country", "urban", "wealth")),
        "parse_failures": Metric(_BOTH, (*_VIEWS, *_GENERATED)),
        "candidate_mass": Metric(_BOTH, _VIEWS),
        "tie_rate": Metric(_BOTH, _VIEWS),
        "near_tie_rate": Metric(_BOTH, _VIEWS),
        "failed_share": Metric(),
        "throughput": Metric(),
    },
    "people": {
        "recall": Metric((DIRECT, CHOICE), ("full", "full_argmax", "q_only")),
        "disparity": Metric((DIRECT, CHOICE), ("full", "full_argmax"), tuple(PAIRS)),
        "parse_failures": Metric((DIRECT, CHOICE), ("full",)),
        "refusals": Metric((DIRECT, CHOICE), ("full",)),
        "candidate_mass": Metric((CHOICE,), ("full", "q_only")),
        "failed_share": Metric(),
        "throughput": Metric(),
    },
}
#: Tests of a suite of custom questions: with a context, or without.
_CUSTOM_TESTS = ("T1", "T5")
#: Valid tests of a task (in suite people: prompts).
ASKED: Mapping[str, tuple[str, ...]] = {
    **{task.value: tuple(t.value for t in tests) for task, tests in TESTS.items()},
    DIRECT: ("p1", *ATTRIBUTES),
    CHOICE: tuple(CHOICES),
}


@dataclass(frozen=True)
class Rule:
    """One metric that must not get worse. tests: 'all' (pooled), 'each', or names. allowed:
    tolerated worsening, in the unit of the metric. at_least, at_most: bounds on the value itself,
    which need no baseline. by: groupings of the rows; of a suite of custom questions, group columns
    of its table."""

    name: str
    metric: str
    suite: str = SDG
    task: str = ""
    methods: tuple[str, ...] = ()
    tests: tuple[str, ...] = (ALL,)
    by: tuple[str, ...] = ()
    worse: str = "lower"
    allowed: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    min_n: int = 200
    then: str = "alarm"
    required: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        return SIGNATURE if self.metric == "signature" else (self.metric,)


@dataclass(frozen=True)
class Policy:
    """alpha: probability of any BREACH of a model in a night without a real change. power: of the
    minimum detectable effects. webhook: NAME of the environment variable that holds the address.
    examples: flipped questions stored per model and suite."""

    rules: tuple[Rule, ...]
    alpha: float = 0.05
    power: float = 0.8
    correction: str = "holm"
    baseline: str = "last-good"
    webhook: str = "SDGBIAS_WEBHOOK"
    examples: int = 40


_LISTS = ("methods", "tests", "by")


def find(root: Path) -> Path:
    """registry/policy.yaml below ``root`` if it exists, else the packaged default."""
    own = root / "registry" / "policy.yaml"
    return own if own.is_file() else DEFAULT


def load(path: Path) -> Policy:
    """Read a policy file. Raises UsageError."""
    try:
        data = files.load_yaml(files.read_small(path))
    except InputError as error:
        raise UsageError(f"{error}; copy one from registry/policy.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: can't be read ({type(error).__name__}); copy one from registry/policy.yaml"
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # also a field given twice
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(
            f"{path}:{where} is not readable YAML: {str(problem).splitlines()[0]}; see"
            " docs/reference/gate.md"
        ) from None
    return parse(data, path)


def least_mass(root: Path) -> float:
    """The least candidate mass that the policy allows a model; 0 where no rule names one."""
    rules = load(find(root)).rules
    return max((r.at_least or 0.0 for r in rules if r.metric == "candidate_mass"), default=0.0)


def parse(data: object, where: Path | str) -> Policy:
    """Parse a mapping read from YAML. ``where`` names the file in errors. Raises UsageError."""
    given = _known(data, [f.name for f in fields(Policy)], str(where))
    listed = given.get("rules")
    if not isinstance(listed, list) or not listed:
        raise UsageError(
            f"{where}: rules is {listed!r}; valid: a list of rules, see docs/reference/gate.md"
        )
    rules = tuple(_rule(r, f"{where}: rule {i + 1}") for i, r in enumerate(listed))
    names = [r.name for r in rules]
    if len(set(names)) < len(names):
        raise UsageError(
            f"{where}: two rules are named {next(n for n in names if names.count(n) > 1)!r}; give"
            " each a name of its own"
        )
    policy = Policy(**{**given, "rules": rules})
    for name in ("alpha", "power"):
        if not (_number(value := getattr(policy, name)) and 0 < value < 1):
            raise UsageError(f"{where}: {name} is {value!r}; valid: a number above 0 and below 1")
    for name, valid in {"correction": ("holm",), "baseline": ("last-good",)}.items():
        if getattr(policy, name) not in valid:
            raise UsageError(f"{where}: {one_of(name, getattr(policy, name), valid)}")
    if not (isinstance(policy.webhook, str) and _ENV.fullmatch(policy.webhook)):
        raise UsageError(
            f"{where}: webhook is no name of an environment variable; valid: a NAME such as"
            " SDGBIAS_WEBHOOK, never the address"
        )
    if not (type(policy.examples) is int and 0 <= policy.examples <= 1000):
        raise UsageError(
            f"{where}: examples is {policy.examples!r}; valid: a whole number from 0 to 1000"
        )
    return policy


def _known(data: object, valid: list[str], where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(f"{where}: not a mapping of fields; valid fields: {', '.join(valid)}")
    for key in data:
        if key not in valid:
            raise UsageError(f"{where}: {one_of('field', key, valid)}")
    return dict(data)


def _number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _rule(data: object, where: str) -> Rule:
    given = _known(data, [f.name for f in fields(Rule)], where)
    name = given.get("name")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise UsageError(
            f"{where}: name is {name!r}; valid: lower-case letters, digits, '-' and '_'"
        )
    where = f"{where} ({name})"
    for key in _LISTS:
        if key in given:
            value = [given[key]] if isinstance(given[key], str) else given[key]
            if not (isinstance(value, list) and value and all(isinstance(v, str) for v in value)):
                raise UsageError(
                    f"{where}: {key} is {given[key]!r}; valid: a name or a list of names"
                )
            given[key] = tuple(dict.fromkeys(value))
    suite = given.get("suite", SDG)
    if fault := suite_fault(suite):
        raise UsageError(f"{where}: {fault}")
    metrics = metrics_of(suites.named(suite))
    if given.get("metric") not in metrics:
        raise UsageError(
            f"{where}: {one_of(f'metric of suite {suite}', given.get('metric'), metrics)}"
        )
    metric = metrics[given["metric"]]
    given = {
        "task": metric.tasks[0] if metric.tasks else "",
        "methods": metric.methods[-1:] if "full" not in metric.methods else ("full",),
        **given,
    }
    for key, known in {"task": metric.tasks or ("",), "worse": WORSE, "then": THEN}.items():
        if key in given and given[key] not in known:
            raise UsageError(f"{where}: {one_of(key, given[key], known)}")
    custom = suites.named(suite).custom
    asked = _CUSTOM_TESTS if custom else ASKED.get(given["task"], ())
    for key, known in {
        "methods": metric.methods,
        # which columns a table has is known when its runs are judged
        "by": given.get("by", ()) if custom and metric.by else metric.by,
        "tests": (ALL, EACH, *asked),
    }.items():
        for value in given.get(key, ()):
            if not known:
                raise UsageError(
                    f"{where}: {key} is {value!r}; {given['metric']} knows no {key}: leave it out"
                )
            if value not in known:
                raise UsageError(f"{where}: {one_of(key, value, known)}")
    rule = Rule(**given)
    _check(rule, metric, where, custom)
    return rule


def metrics_of(suite: suites.Suite) -> Mapping[str, Metric]:
    """Metrics by which runs of a suite can be judged; custom questions are multiple choice only."""
    known = METRICS[suite.items_table]
    if not suite.custom:
        return known
    choice = Task.MCQ.value
    return {
        name: replace(metric, tasks=(choice,) if metric.tasks else ())
        for name, metric in known.items()
        if choice in metric.tasks or not metric.tasks
    }


def _check(rule: Rule, metric: Metric, where: str, custom: bool) -> None:
    if metric.by and not rule.by:
        listed = "a group column of its suite.yaml" if custom else ", ".join(metric.by)
        raise UsageError(f"{where}: {rule.metric} compares groups; add by: {listed}")
    for key in ("allowed", "at_least", "at_most"):
        value = getattr(rule, key)
        if value is not None and not _number(value):
            raise UsageError(f"{where}: {key} is {value!r}; valid: a number")
    if rule.allowed is not None and rule.allowed < 0:
        raise UsageError(
            f"{where}: allowed is {rule.allowed!r}; valid: 0 or more, in the unit of {rule.metric}"
        )
    if rule.allowed is None and rule.at_least is None and rule.at_most is None:
        raise UsageError(
            f"{where}: nothing to judge by; add allowed (change against the last good run),"
            " at_least or at_most"
        )
    if rule.metric == "failed_share" and rule.allowed is not None:
        raise UsageError(
            f"{where}: failed_share has no questions to pair; use at_most instead of allowed"
        )
    if rule.metric == "throughput" and (rule.allowed is None or rule.worse != "lower"):
        raise UsageError(
            f"{where}: throughput is judged by its ratio to the last good run; give allowed (0.5:"
            " half as fast), worse: lower"
        )
    if type(rule.min_n) is not int or rule.min_n < 2:
        raise UsageError(f"{where}: min_n is {rule.min_n!r}; valid: a whole number of at least 2")
    if type(rule.required) is not bool:
        raise UsageError(f"{where}: required is {rule.required!r}; valid: true or false")


def schema() -> dict[str, Any]:
    """JSON Schema of a policy file, as published in registry/policy.schema.json."""
    names = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    several = {
        key: {"anyOf": [{"type": "string"}, names], "description": about}
        for key, about in _ABOUT_LISTS.items()
    }
    metrics = sorted({m for known in METRICS.values() for m in known})
    rule: dict[str, Any] = {
        "name": {
            "type": "string",
            "pattern": f"^{_NAME.pattern}$",
            "description": "What tables and messages call the rule.",
        },
        "metric": {"enum": metrics},
        "suite": {"type": "string", "pattern": f"^{SUITE_NAME.pattern}$", "default": SDG},
        "task": {
            "enum": list(ASKED),
            "description": "Default: the first that the metric is defined for.",
        },
        **several,
        "worse": {
            "enum": list(WORSE),
            "default": "lower",
            "description": "Which way is worse; either: any change.",
        },
        "allowed": {
            "type": "number",
            "minimum": 0,
            "description": "How much worse it may become, in the unit of the metric.",
        },
        "at_least": {
            "type": "number",
            "description": "Bound of the value itself; needs no run to compare with.",
        },
        "at_most": {
            "type": "number",
            "description": "Bound of the value itself; needs no run to compare with.",
        },
        "min_n": {
            "type": "integer",
            "minimum": 2,
            "default": 200,
            "description": "With fewer questions nothing is concluded.",
        },
        "then": {
            "enum": list(THEN),
            "default": "alarm",
            "description": "quarantine: a breach also takes the model out of the nightly.",
        },
        "required": {
            "type": "boolean",
            "default": False,
            "description": "Whether MISSING counts for the model's verdict.",
        },
    }
    top: dict[str, Any] = {
        "alpha": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.05},
        "power": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.8},
        "correction": {"enum": ["holm"]},
        "baseline": {"enum": ["last-good"]},
        "webhook": {
            "type": "string",
            "pattern": f"^{_ENV.pattern}$",
            "description": "NAME of the environment variable with the address.",
        },
        "examples": {
            "type": "integer",
            "minimum": 0,
            "maximum": 1000,
            "default": 40,
            "description": "Flipped questions kept per model and suite.",
        },
        "rules": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "metric"],
                "properties": rule,
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "sdgbias/policy.schema.json",
        "title": "What counts as a breach (registry/policy.yaml)",
        "type": "object",
        "additionalProperties": False,
        "required": ["rules"],
        "properties": top,
    }


_ABOUT_LISTS = {
    "methods": "Views, cade, or of suite people full, full_argmax, q_only.",
    "tests": "all (pooled), each, or names such as T1; of suite people names of prompts.",
    "by": "disparity only: country, urban, wealth; of suite people gender, skin, age; of your own"
    " questions a group column.",
}
