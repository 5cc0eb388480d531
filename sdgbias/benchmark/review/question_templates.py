"""Review of the question templates (App. B.2): one row per indicator and regression task, so that
an expert can accept or reject its question, options, evidence and reasoning target, whatever items
are drawn of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias.benchmark.prompts import option_lines
from sdgbias.benchmark.review import read_items, reviewer_names, write_csv
from sdgbias.benchmark.review.verdicts import interval, kappa, read_sheet, refuse_row
from sdgbias.errors import InputError
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import Task


def template_rows(benchmark: Path) -> pd.DataFrame:
    """The templates that a built benchmark asks, with the options of its questions; verdict and
    comment are empty. Raises InputError."""
    rows = []
    for task, entries in (
        (Task.MCQ, load_indicators()),
        (Task.REGRESSION, load_regression_tasks()),
    ):
        items = read_items(benchmark, task).drop_duplicates("indicator")
        items = items.assign(options=option_lines(items)[0] if task is Task.MCQ else "")
        items = items.set_index("indicator")
        for entry in (entry for entry in entries if entry.slug in items.index):
            item, answer = items.loc[entry.slug], "the option that holds the value"
            if task is Task.REGRESSION:
                answer = f"a number, right within {item['tolerance']:g} {entry.unit}"
            row = {
                **{"template": f"{task}-{entry.slug}", "title": entry.title},
                **{"pillar": entry.pillar, "sdg": entry.sdg, "question": entry.question},
                **{"options": item["options"], "answer": answer},
                "better_value": getattr(entry, "polarity", ""),
                "required_evidence": ", ".join(entry.template.required),
                "used_evidence": ", ".join(entry.template.used),
                "reasoning_target": entry.template.reasoning,
            }
            rows.append({**row, "verdict": "", "comment": ""})
    if not rows:
        raise InputError(
            f"{benchmark}: no question is made from one of our templates (an imported release?);"
            " build one: sdgbias build"
        )
    return pd.DataFrame(rows)


def write_template_sheets(benchmark: Path, out: Path, reviewers: Sequence[str]) -> list[Path]:
    """A CSV per reviewer (``out``/templates-NAME.csv); one that was written in is kept. Raises
    UsageError (names), InputError, StoreError."""
    names = reviewer_names(reviewers, fewest=1)
    rows = template_rows(benchmark)
    paths = [out / f"templates-{name}.csv" for name in names]
    for path in paths:
        if not (path.is_file() and (_read(path) != "").any(axis=None)):
            write_csv(path, rows)
    return paths


def template_agreement(first: Path, second: Path) -> dict[str, Any]:
    """Agreement of two reviewers on the templates that both judged: how many, the share of equal
    verdicts, Cohen's kappa with its interval, and the templates that need an adjudicator or that
    both reject. JSON values. Raises InputError."""
    sheets = {"one": _read(first)["verdict"], "two": _read(second)["verdict"]}
    both = pd.DataFrame(sheets).replace("", None).dropna()
    if both.empty:
        raise InputError(f"{first}, {second}: no template has a verdict in both")
    one, two = ((both[name] == "accept").to_numpy() for name in both)
    return {
        "templates": len(both),
        "equal_verdicts": float((one == two).mean()),
        **interval("kappa", "kappa_", kappa(one, two)),
        "to_adjudicate": sorted(both.index[one != two]),
        "rejected_by_both": sorted(both.index[~one & ~two]),
    }


def _read(path: Path) -> pd.DataFrame:
    """verdict ('accept', 'reject' or '') and comment of a reviewer's CSV by template. Raises
    InputError."""
    sheet = read_sheet(path, ["template", "verdict", "comment"], "template")
    name = sheet["template"]
    refuse_row(path, name, ~name.duplicated(), "is there twice; keep one of the rows")
    return sheet.set_index("template")
