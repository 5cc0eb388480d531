"""The team report's part on suites of custom questions: accuracy by view, groups and their
disparity; and the metrics that are plotted over nights, one set of plots for each suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.report import labels
from sdgbias.report.pages import own_suite
from sdgbias.report.wandb import slugs

#: The view of a suite's plots: the one with most evidence that the suite has.
_VIEWS = ("full", "ctx_q", "q_only")
#: Rows of a section's table; the static report has all.
MOST_ROWS = 60


def runs(results: Path) -> list[str]:
    """The newest run of each model in every suite of custom questions."""
    found = store.query(results, "SELECT run_id, suite FROM runs WHERE finished_at IS NOT NULL")
    custom = set(found.loc[[suites.named(str(s)).custom for s in found["suite"]], "run_id"])
    return [run for run in suites.newest_runs(results) if run in custom]


def sections(
    results: Path, run_ids: Sequence[str]
) -> list[tuple[str, str, list[dict[str, object]]]]:
    """(title, text, rows of its table) of each suite, by name: accuracy of all questions, of each
    level of the group columns, and best minus worst level."""
    made = []
    for suite, frame in _by_suite(_metrics(results, run_ids)):
        title = own_suite.facts(str(frame["config"].iloc[0])).get("title") or suite
        rows: list[dict[str, object]] = [
            {
                "model": r["model"],
                "questions": "all" if r["pillar"] == "all" else labels.group(str(r["pillar"])),
                "answer": labels.VIEWS.get(str(r["method"]), r["method"]),
                "accuracy (95 % CI)": _value(r),
                "n": int(r["n"]),
            }
            for r in frame.head(MOST_ROWS).to_dict("records")
        ]
        text = (
            f"Suite {suite}. Share of right answers in %, split test; best minus worst group in"
            " points."
        )
        if len(frame) > MOST_ROWS:
            text += f" {len(frame) - MOST_ROWS} more rows stand in the report's page Own questions."
        made.append((f"Own questions: {title}", text, rows))
    return made


def plots(results: Path) -> dict[str, dict[str, str]]:
    """Suite -> (metric of the history, as `contents.summary` names it -> title of its plot)."""
    made: dict[str, dict[str, str]] = {}
    for suite, frame in _by_suite(_metrics(results, runs(results))):
        methods = set(frame["method"])
        view = next(v for v in (*_VIEWS, *sorted(methods)) if v in methods)
        shown = labels.VIEWS.get(view, view)
        titles = {f"mcq/all/{view}/accuracy": f"{suite}: accuracy, {shown}"}
        if "cade" in methods:
            titles["mcq/all/cade/accuracy_gain"] = f"{suite}: CADE, gain in accuracy"
        names = slugs.distinct_slugs(frame["pillar"])
        for pillar, name in names.items():
            if pillar.endswith(":max-min"):
                titles[f"mcq/all/{view}/{name}/disparity"] = f"{suite}: {labels.group(pillar)}"
        made[suite] = titles
    return made


def _by_suite(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(suite), part) for suite, part in frame.groupby("suite", sort=True)]


def _metrics(results: Path, run_ids: Sequence[str]) -> pd.DataFrame:
    """Accuracy and disparity of these runs over their test split, by suite, model and group."""
    return store.query(
        results,
        """SELECT r.suite, r.model, r.config, m.* EXCLUDE (run_id, model, suite) FROM metric_rows m
           JOIN runs r USING (run_id) WHERE list_contains($runs, run_id) AND m.test = 'all' AND
           m.metric IN ('accuracy', 'disparity')
           ORDER BY r.suite, r.model, m.pillar <> 'all', m.pillar, m.method""",
        {"runs": list(run_ids)},
        runs=run_ids,
    )


def _value(r: dict[Any, Any]) -> str:
    if pd.isna(r["value"]):
        return "too few questions"
    e = labels.estimate(r)
    signed = r["metric"] == "disparity"
    return f"{labels.number(100 * e.value, signed=signed)} ({labels.interval(e, signed=signed)})"
