"""The lines of tables that depend on the results: the labels after the model's, and their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from sdgbias.analysis.paper import numbers
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.printed import described
from sdgbias.analysis.paper.results import PaperResults, Subject
from sdgbias.benchmark.people_items import CHOICE, DIRECT
from sdgbias.raw.facet import GROUPS
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import PILLARS, SDG, TOLERANCES

Lines = list[tuple[tuple[str, ...], Mapping[str, Any]]]
TASKS = {"p1": DIRECT, "p2": CHOICE, "p3": CHOICE}
PEOPLE = ["all", *(f"{attribute}={group}" for attribute in GROUPS for group in GROUPS[attribute])]
DIFFERENCES = [f"{attribute}:{one}-{other}" for attribute, (one, other) in PAIRS.items()]
#: Methods that read the answers of people as the paper did, and how a table names the reading.
AS_PRINTED = {
    "full:paper": "paper",
    "full:clip:paper": "paper, CLIP",
    "full:t5:paper": "paper, T5",
}
READINGS = {
    "full": "free answer, packaged encoder",
    "full:clip": "free answer, CLIP text encoder",
    "full:t5": "free answer, T5",
    "full_argmax": "first token",
}


def _pairs(s: Subject, frame: pd.DataFrame, *columns: str, **where: str) -> set[Any]:
    """What the run's rows hold in these columns."""
    mine = frame["run_id"] == (s.run.run_id if s.run else "")
    for name, value in where.items():
        mine &= frame[name] == value
    return set(frame.loc[mine, [*columns]].itertuples(index=False, name=None))


def indicators(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Every indicator with a number, by pillar."""
    frame = numbers.of_study(e, about.get("at", {}).get("study", ""))
    pairs = _pairs(s, frame, "pillar", "indicator", task="mcq")
    order = {pillar: at for at, pillar in enumerate(PILLARS)}
    return [
        ((i,), {"pillar": p, "indicator": i, "show": "made"})
        for p, i in sorted(pairs, key=lambda pair: (order.get(pair[0], 9), pair[1]))
        if i != "all"
    ]


def regression_questions(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Every regression question and every target."""
    pairs = _pairs(s, numbers.of_study(e, ""), "pillar", "indicator", task="regression")
    at = {"study": "regression", "lacks": "no {metric} of {indicator}"}
    return [
        *(
            ((f"task {i}",), {"pillar": p, "indicator": i, "show": "made"})
            for p, i in sorted(pairs)
            if i != "all"
        ),
        *(((f"target {name}",), at | {"indicator": name}) for name in TOLERANCES),
    ]


def methods(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Full, every debiasing method (also those that could not run), CADE."""
    task = about["at"].get("task", "mcq")
    [controls] = described(SDG)["tables"]["controls"]["lines"]  # these have a table of their own
    shown = {key["method"] for key in controls.values()}
    studied = {method for (method,) in _pairs(s, e.study("methods"), "method", task=task)}
    every = sorted(studied - shown)
    lines: Lines = [((method,), {"method": method}) for method in ["full", *every, "cade"]]
    nothing = {"mcq": "nothing to answer", "regression": "nothing decoded"}[task]
    other = (("every other method",), {"method": "", "lacks": nothing})
    return lines if every else [*lines, other]


def swept_tests(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """The test that the paper's figure shows of the model, else every test with a sweep."""
    drawn = [r["test"] for r in paper.rows("figure_8") if s.model and r["model"] == s.model][:1]
    swept = sorted(test for (test,) in _pairs(s, e.study("sweep"), "test", metric="accuracy"))
    return [((test,), {"test": test}) for test in drawn or swept or ["T1"]]


def _prompts(e: PaperResults, s: Subject, item: str = "") -> list[tuple[str, str, set[str]]]:
    """(prompt, task, methods that the run has) of each line. A model that was not run has one line
    for both single-choice prompts; prompts that neither the run nor the paper has are left out."""
    rows = paper.rows(item) if s.model else ()
    printed = {r["task"] for r in rows if r["model"] == s.model and r["value"]}
    asked = _pairs(s, numbers.of_study(e, ""), "test", "method")
    each = (
        (test, task, {method for at, method in asked if at == test})
        for test, task in (TASKS if s.run else {"p1": DIRECT, "p2 or p3": CHOICE}).items()
    )
    return [(test, task, have) for test, task, have in each if have or task in printed]


def read(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Our reading of a model's answers, then the paper's, which the printed numbers stand beside:
    they have no means over classes and no largest difference."""
    lines: Lines = []
    for test, task, have in _prompts(e, s, about["paper"]):
        at = {"task": task, "test": test}
        if s.run is not None:
            lines.append(((test, "ours"), at | {"printed": False}))
        for method in [m for m in AS_PRINTED if m in have] or ["full:paper"]:
            blank = {"blank": ["macro", "max - min"], "method": method}
            lines.append(((test, AS_PRINTED[method]), at | blank))
    return lines


def prompts_by_group(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    asked = ["no", "unknown", "false yes", "false yes, no picture"]
    lines: Lines = []
    for test, task, _ in _prompts(e, s):
        at = {"task": task, "test": test, "blank": [] if task == CHOICE else asked}
        lines += [((test, group), at | {"pillar": group}) for group in PEOPLE]
        differences = at | {"metrics": {"recall": "disparity"}}
        lines += [((test, pair), differences | {"pillar": pair}) for pair in DIFFERENCES]
    return lines


def readings(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """The same answers read in other ways: the packaged encoder, the paper's two encoders if
    available, and the first token."""
    return [
        ((test, READINGS[method]), {"task": task, "test": test, "method": method, "blank": blank})
        for test, task, have in _prompts(e, s)
        for method in READINGS
        for blank in [["unparsed", "refusal"] if method == "full_argmax" else []]
        if method in have
    ]


def debiased(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Every method of the study 'fairness', the plain answer first."""
    pairs = _pairs(s, numbers.of_study(e, "fairness"), "test", "method")
    lines: Lines = []
    for test, method in sorted(pairs, key=lambda k: (k[0], k[1] != "full_argmax", k[1])):
        blank = ["change", "its change"] if method == "full_argmax" else []
        lines.append(((test, method), {"test": test, "method": method, "blank": blank}))
    lacks = {"lacks": "the run has no single-choice questions"}
    return lines or [(("", ""), {"test": "", "method": ""} | lacks)]


LINES: Mapping[str, Callable[[PaperResults, Subject, Mapping[str, Any]], Lines]] = {
    line.__name__: line
    for line in (
        *(indicators, regression_questions, methods, swept_tests),
        *(read, prompts_by_group, readings, debiased),
    )
}
