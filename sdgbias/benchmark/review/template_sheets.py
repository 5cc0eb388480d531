"""Review of the question templates (App. B.2): one row per indicator and regression task, so that
an expert can accept or reject its question, options, evidence and reasoning target, whatever items
are drawn of it.

A CSV per reviewer is written and read again; agreement is by template.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias.benchmark.review import kappa
from sdgbias.benchmark.review.verdicts import VERDICTS
from sdgbias.errors import InputError, UsageError, one_of
from sdgbias.files import reading, write_atomically
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.raw.text_tables import read_text
from sdgbias.types import LETTERS, Task

COLUMNS = (
    *("template", "title", "pillar", "sdg", "question", "options", "answer", "better_value"),
    *("required_evidence", "used_evidence", "reasoning_target", "verdict", "comment"),
)


def template_rows(benchmark: Path) -> pd.DataFrame:
    """COLUMNS of every template that a built benchmark asks, with the options of its questions;
    verdict and comment are empty. Raises InputError."""
    rows = []
    for task, entries in (
        (Task.MCQ, load_indicators()),
        (Task.REGRESSION, load_regression_tasks()),
    ):
        path = benchmark / f"items_{task}.parquet"
        with reading(path, f"build the benchmark: sdgbias build --out {benchmark}"):
            items = pd.read_parquet(path).drop_duplicates("indicator").set_index("indicator")
        for entry in (e for e in entries if e.slug in items.index):
            item = items.loc[entry.slug]
            if task is Task.MCQ:
                texts = {c: str(item[f"option_{c.lower()}"]) for c in LETTERS}
                options = "; ".join(f"{c}. {text}" for c, text in texts.items() if text)
                answer = "the option that holds the value"
            else:
                options, answer = "", f"a number, right within {item['tolerance']:g} {entry.unit}"
            about = (entry.title, entry.pillar, entry.sdg, entry.question, options, answer)
            template = entry.template
            evidence = (", ".join(template.required), ", ".join(template.used), template.reasoning)
            better = getattr(entry, "polarity", "")
            rows.append((f"{task}-{entry.slug}", *about, better, *evidence, "", ""))
    if not rows:
        raise InputError(
            f"{benchmark}: no question is made from one of our templates (an imported release?);"
            " build one: sdgbias build"
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write_template_sheets(benchmark: Path, out: Path, reviewers: Sequence[str]) -> list[Path]:
    """A CSV per reviewer (``out``/templates-NAME.csv); one that holds verdicts is kept."""
    if not reviewers:
        raise UsageError("--reviewers: name at least one reviewer")
    rows, paths = template_rows(benchmark), []
    for name in reviewers:
        path = out / f"templates-{name}.csv"
        if not (path.is_file() and (_read(path)["verdict"] != "").any()):
            write_atomically(path, "\ufeff" + rows.to_csv(index=False, lineterminator="\r\n"))
        paths.append(path)
    return paths


def template_agreement(first: Path, second: Path) -> dict[str, Any]:
    """Agreement of two reviewers on the templates that both judged: how many, the share of equal
    verdicts, Cohen's kappa with its interval, and the templates that need an adjudicator or that
    both reject. JSON values. Raises InputError."""
    both = _read(first).merge(_read(second), on="template", suffixes=("_first", "_second"))
    both = both[(both["verdict_first"] != "") & (both["verdict_second"] != "")]
    if both.empty:
        raise InputError(f"{first}, {second}: no template has a verdict in both")
    one, two = (both[f"verdict_{who}"].to_numpy() == "accept" for who in ("first", "second"))
    estimate = kappa(one, two)
    numbers = {"kappa": estimate.value, "kappa_low": estimate.low, "kappa_high": estimate.high}
    return {
        "templates": len(both),
        "equal_verdicts": float(np.mean(one == two)),
        **{name: None if np.isnan(value) else float(value) for name, value in numbers.items()},
        "to_adjudicate": sorted(both["template"][one != two]),
        "rejected_by_both": sorted(both["template"][~one & ~two]),
    }


def _read(path: Path) -> pd.DataFrame:
    """template, verdict ('accept', 'reject' or '') of a reviewer's CSV."""
    if not path.is_file():
        raise InputError(f"{path}: not there; name a CSV of sdgbias review templates")
    table = read_text(path, ("template", "verdict"), "write it again: sdgbias review templates")
    table["verdict"] = table["verdict"].str.lower()
    for line, verdict in enumerate(table["verdict"], 2):
        if verdict not in ("", *VERDICTS):
            raise InputError(f"{path}, line {line}: {one_of('verdict', verdict, VERDICTS)}")
    return table
