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


def _mine(e: PaperResults, s: Subject, study: str = "") -> pd.DataFrame:
    frame = numbers.of_study(e, study)
    return frame[frame["run_id"] == (s.run.run_id if s.run else "")]


def indicators(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Every indicator with a number, by pillar."""
    frame = _mine(e, s, about.get("at", {}).get("study", ""))
    frame = frame[(frame["indicator"] != "all") & (frame["task"] == "mcq")]
    pairs = sorted(
        set(zip(frame["pillar"], frame["indicator"], strict=True)),
        key=lambda pair: (PILLARS.index(pair[0]) if pair[0] in PILLARS else 9, pair[1]),
    )
    return [((i,), {"pillar": p, "indicator": i, "show": "made"}) for p, i in pairs]


def regression_questions(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Every regression question and every target."""
    frame = _mine(e, s)
    frame = frame[(frame["indicator"] != "all") & (frame["task"] == "regression")]
    pairs = sorted(set(zip(frame["pillar"], frame["indicator"], strict=True)))
    asked: Lines = [
        ((f"task {i}",), {"pillar": p, "indicator": i, "show": "made"}) for p, i in pairs
    ]
    at = {"study": "regression", "lacks": "no {metric} of {indicator}"}
    return asked + [((f"target {name}",), at | {"indicator": name}) for name in TOLERANCES]


def methods(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Full, every debiasing method (also those that could not run), CADE."""
    task = about["at"].get("task", "mcq")
    frame = e.study("methods")
    mine = frame[(frame["run_id"] == (s.run.run_id if s.run else "")) & (frame["task"] == task)]
    [controls] = described(SDG)["tables"]["controls"]["lines"]  # these have a table of their own
    every = sorted(set(mine["method"]) - {key["method"] for key in controls.values()})
    lines: Lines = [((method,), {"method": method}) for method in ["full", *every, "cade"]]
    nothing = {"mcq": "nothing to answer", "regression": "nothing decoded"}[task]
    other = (("every other method",), {"method": "", "lacks": nothing})
    return lines if every else [*lines, other]


def swept_tests(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """The test that the paper's figure shows of the model, else every test with a sweep."""
    drawn = [r["test"] for r in paper.rows("figure_8") if s.model and r["model"] == s.model][:1]
    frame = e.study("sweep").query("metric == 'accuracy'")
    mine = frame.loc[frame["run_id"] == (s.run.run_id if s.run else ""), "test"]
    return [((test,), {"test": test}) for test in drawn or sorted(set(mine)) or ["T1"]]


def _asked(e: PaperResults, s: Subject) -> set[tuple[str, str]]:
    """(prompt, method) pairs that the run has."""
    frame = _mine(e, s)
    return set(zip(frame["test"], frame["method"], strict=True))


def _prompts(e: PaperResults, s: Subject, item: str = "") -> list[tuple[str, str]]:
    """(prompt, task) of each line. A model that was not run has one line for both single-choice
    prompts; prompts that neither the run nor the paper has are left out."""
    rows = paper.rows(item) if s.model else ()
    printed = {r["task"] for r in rows if r["model"] == s.model and r["value"]}
    have = {test for test, _ in _asked(e, s)}
    tasks = TASKS if s.run else {"p1": DIRECT, "p2 or p3": CHOICE}
    return [(test, task) for test, task in tasks.items() if test in have or task in printed]


def read(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Our reading of a model's answers, then the paper's, which the printed numbers stand beside:
    they have no means over classes and no largest difference."""
    asked = _asked(e, s)
    lines: Lines = []
    for test, task in _prompts(e, s, about["paper"]):
        at = {"task": task, "test": test}
        if s.run is not None:
            lines.append(((test, "ours"), at | {"printed": False}))
        for method in [m for m in AS_PRINTED if (test, m) in asked] or ["full:paper"]:
            blank = {"blank": ["macro", "max - min"], "method": method}
            lines.append(((test, AS_PRINTED[method]), at | blank))
    return lines


def prompts_by_group(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    groups = ["all", *(f"{a}={g}" for a in GROUPS for g in GROUPS[a]), *DIFFERENCES]
    lines: Lines = []
    for test, task in _prompts(e, s):
        asked = ["no", "unknown", "false yes", "false yes, no picture"]
        at = {"task": task, "test": test, "blank": [] if task == CHOICE else asked}
        for group in groups:
            metrics = {"recall": "disparity"} if ":" in group else {}
            lines.append(((test, group), at | {"pillar": group, "metrics": metrics}))
    return lines


def readings(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """The same answers read in other ways: the packaged encoder, the paper's two encoders if
    available, and the first token."""
    lines: Lines = []
    for test, task in _prompts(e, s):
        for method, name in READINGS.items():
            if (test, method) in _asked(e, s):
                blank = ["unparsed", "refusal"] if method == "full_argmax" else []
                at = {"task": task, "test": test, "method": method, "blank": blank}
                lines.append(((test, name), at))
    return lines


def debiased(e: PaperResults, s: Subject, about: Mapping[str, Any]) -> Lines:
    """Every method of the study 'fairness', the plain answer first."""
    mine = _mine(e, s, "fairness")
    pairs = set(zip(mine["test"], mine["method"], strict=True))
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
