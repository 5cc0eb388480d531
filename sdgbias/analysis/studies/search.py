"""Study 'search': gains from a better search for CADE's hyper-parameters, on val (tuning) and on
test (reporting)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.analysis.tuning import (
    PARAMETERS,
    Problem,
    as_vector,
    difference_of,
    estimate,
    format_setting,
    metric_of,
    payoffs,
    problems,
)
from sdgbias.methods import stats
from sdgbias.methods.search import (
    ExactResult,
    SearchSettings,
    exact_search,
    held_out,
    random_search,
)

STUDY = "search"
#: Folds of the cross-validation over places.
FOLDS = 5


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """Per task and test, methods random (the paper's protocol), exact and exact_centred: accuracy
    or mae on test, the same on val (val_...), the four parameters, and on test the gain over
    random (versus), paired by item. For exact_centred also held_out_... (cross-validation over
    places) and optimism (val minus held out)."""
    return table(r for p in problems(run) for r in _rows(p, settings))


def _rows(p: Problem, settings: AnalysisSettings) -> list[dict[str, object]]:
    s, payoff = p.tunable()
    draws, seed = settings.draws, settings.seed
    val, test = p.rows(p.val), p.rows(p.test)
    paper = random_search(s, payoff, p.task, draws=draws, seed=seed)
    best = exact_search(s, payoff, p.task, SearchSettings(draws, seed))
    by_search = {
        "random": (
            as_vector(paper.params),
            f"{draws:,} draws on {paper.n_search:,} val rows, the best 100 on all {paper.n_val:,}",
        ),
        "exact": (as_vector(best.peak), "exact line searches, not centred"),
        "exact_centred": (as_vector(best.params), "exact line searches, centre of the plateau"),
    }
    metric, records = metric_of(p.task), list[dict[str, object]]()
    before = payoffs(test, by_search["random"][0])
    for method, (setting, note) in by_search.items():
        columns = {**p.columns, "method": method, "note": f"{note}; {format_setting(setting)}"}
        after = payoffs(test, setting)
        records.append(row(STUDY, metric, estimate(p.task, after, p.place[p.test]), **columns))
        tuned_on = estimate(p.task, payoffs(val, setting), p.place[p.val])
        records.append(row(STUDY, f"val_{metric}", tuned_on, **columns))
        if method != "random":
            compared = stats.paired(after - before, p.place[p.test], difference_of(p.task))
            columns["versus"] = "random"
            records.append(row(STUDY, "gain", compared.estimate, p=compared.p, **columns))
            columns["versus"] = ""
        records += [
            row(STUDY, name, float(x), n=len(p.val), **columns)
            for name, x in zip(PARAMETERS, setting, strict=True)
        ]
    return records + _cross_validated(p, best, settings)


def _cross_validated(
    p: Problem, exact: ExactResult, settings: AnalysisSettings
) -> list[dict[str, object]]:
    """What the centred exact optimum earns on places that were held out of its tuning; no rows with
    fewer than two places."""
    s, payoff = p.tunable()
    place = p.place[p.val]
    how = SearchSettings(settings.draws, settings.seed)
    held = held_out(s, payoff, p.task, place, how, folds=FOLDS)
    if not np.isfinite(held).all():
        return []
    columns = {**p.columns, "method": "exact_centred"}
    folds = f"{FOLDS} folds over places"
    gained = payoffs(p.rows(p.val), as_vector(exact.params)) - held
    gap = stats.mean(gained, place, difference_of(p.task))
    note = f"payoff tuned on all val rows minus held out; {folds}"
    return [
        row(
            STUDY,
            f"held_out_{metric_of(p.task)}",
            estimate(p.task, held, place),
            **columns,
            note=folds,
        ),
        row(STUDY, "optimism", gap, **columns, note=note),
    ]
