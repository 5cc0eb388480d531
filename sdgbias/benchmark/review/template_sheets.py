"""Review of the question templates (App. B.2): one row per indicator and regression task, so that
an expert can accept or reject its question, options, evidence and reasoning target, whatever items
are drawn of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.review import kappa, read_items
from sdgbias.benchmark.review.verdicts import VERDICTS, csv_rows, csv_text
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import write_atomically
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import LETTERS, Task


def template_rows(benchmark: Path) -> pd.DataFrame:
    """The templates that a built benchmark asks, with the options of its questions; verdict and
    comment are empty. Raises InputError."""
    entries = {Task.MCQ: load_indicators(), Task.REGRESSION: load_regression_tasks()}
    rows = []
    for task in Task:
        items = read_items(benchmark, task).drop_duplicates("indicator").set_index("indicator")
        for entry in (e for e in entries[task] if e.slug in items.index):
            item = items.loc[entry.slug]
            options, answer = "", "the option that holds the value"
            if task is Task.MCQ:
                texts = {c: str(item[f"option_{c.lower()}"]) for c in LETTERS}
                options = "; ".join(f"{c}. {text}" for c, text in texts.items() if text)
            else:
                answer = f"a number, right within {item['tolerance']:g} {entry.unit}"
            row = {
                **{"template": f"{task}-{entry.slug}", "title": entry.title},
                **{"pillar": entry.pillar, "sdg": entry.sdg, "question": entry.question},
                **{"options": options, "answer": answer},
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
    """A CSV per reviewer (``out``/templates-NAME.csv); one that holds verdicts is kept."""
    if not reviewers:
        raise UsageError("--reviewers: name at least one reviewer")
    text = csv_text(template_rows(benchmark))
    paths = [out / f"templates-{name}.csv" for name in reviewers]
    for path in paths:
        if not (path.is_file() and any(_read(path).values())):
            write_atomically(path, text)
    return paths


def template_agreement(first: Path, second: Path) -> dict[str, Any]:
    """Agreement of two reviewers on the templates that both judged: how many, the share of equal
    verdicts, Cohen's kappa with its interval, and the templates that need an adjudicator or that
    both reject. JSON values. Raises InputError."""
    both = pd.DataFrame({"one": _read(first), "two": _read(second)}).replace("", None).dropna()
    if both.empty:
        raise InputError(f"{first}, {second}: no template has a verdict in both")
    one, two = ((both[name] == "accept").to_numpy() for name in both)
    k = kappa(one, two)
    numbers = {"kappa": k.value, "kappa_low": k.low, "kappa_high": k.high}
    return {
        "templates": len(both),
        "equal_verdicts": float(np.mean(one == two)),
        **{name: None if np.isnan(value) else float(value) for name, value in numbers.items()},
        "to_adjudicate": sorted(both.index[one != two]),
        "rejected_by_both": sorted(both.index[~one & ~two]),
    }


def _read(path: Path) -> dict[str, str]:
    """Template -> verdict ('accept', 'reject' or '') of a reviewer's CSV."""
    verdicts = {}
    for line, row in csv_rows(path, ("template", "verdict")):
        verdict = verdicts[row["template"]] = row["verdict"].lower()
        if verdict not in ("", *VERDICTS):
            raise InputError(f"{path}, line {line}: {one_of('verdict', verdict, VERDICTS)}")
    return verdicts
