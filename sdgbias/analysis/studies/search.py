"""Study 'search': gains from a better search for CADE's hyper-parameters, on val (tuning) and on
test (reporting)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData
from sdgbias.analysis.tuning import (
    PARAMETERS,
    Problem,
    as_vector,
    display_value,
    draws_of,
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
    mean_payoff,
    random_search,
    search_spread,
)

STUDY = "search"
#: Draws of many_draws as a multiple of the paper's search; folds; maximum number of resamples.
MANY, FOLDS, RESAMPLES = 10, 5, 200


def rows(run: RunData, settings: AnalysisSettings) -> pd.DataFrame:
    """Per task and test, methods random (the paper's protocol), many_draws (all val rows, ten times
    the draws), exact and exact_centred: accuracy or mae on test, the same on val (val_...), the
    four parameters, and on test the gain over random, paired by item. For exact_centred also
    held_out_... (cross-validation over places), optimism (val minus held out), the width of each
    plateau and 95 % intervals of the parameters over resampled places."""
    return table(r for p in problems(run) for r in _rows(p, settings))


def _rows(p: Problem, settings: AnalysisSettings) -> list[dict[str, object]]:
    s, payoff = p.tunable()
    draws, seed = settings.draws, settings.seed
    val, test = p.rows(p.val), p.rows(p.test)
    paper = random_search(s, payoff, p.task, draws=draws, seed=seed)
    many = draws_of(p.task, MANY * draws, seed)
    best = exact_search(s, payoff, p.task, SearchSettings(draws, seed))
    found = {
        "random": (
            as_vector(paper.params),
            f"{draws:,} draws on {paper.n_search:,} val rows, the best 100 on all {paper.n_val:,}",
        ),
        "many_draws": (
            many[int(np.argmax(mean_payoff(val, many)))],
            f"{MANY * draws:,} draws on all val rows",
        ),
        "exact": (as_vector(best.peak), "exact line searches, not centred"),
        "exact_centred": (as_vector(best.params), "exact line searches, centre of the plateau"),
    }
    metric, made = metric_of(p.task), list[dict[str, object]]()
    before = payoffs(test, found["random"][0])
    for method, (setting, note) in found.items():
        columns = {**p.columns, "method": method, "note": f"{note}; {format_setting(setting)}"}
        after = payoffs(test, setting)
        made.append(row(STUDY, metric, estimate(p.task, after, p.place[p.test]), **columns))
        tuned_on = estimate(p.task, payoffs(val, setting), p.place[p.val])
        made.append(row(STUDY, f"val_{metric}", tuned_on, **columns))
        if method != "random":
            compared = stats.paired(after - before, p.place[p.test])
            made.append(row(STUDY, "gain_over_random", compared.estimate, p=compared.p, **columns))
        if method != "exact_centred":
            made += [
                row(STUDY, name, float(x), n=len(p.val), **columns)
                for name, x in zip(PARAMETERS, setting, strict=True)
            ]
    return made + _trust(p, best, settings)


def _trust(p: Problem, found: ExactResult, settings: AnalysisSettings) -> list[dict[str, object]]:
    """Reliability of the centred exact optimum: held-out places, plateaus, resampled places."""
    s, payoff = p.tunable()
    place = p.place[p.val]
    columns = {**p.columns, "method": "exact_centred"}
    metric, made = metric_of(p.task), list[dict[str, object]]()
    how = SearchSettings(settings.draws, settings.seed)
    held = held_out(s, payoff, p.task, place, how, folds=FOLDS)
    if np.isfinite(held).all():
        note = f"{FOLDS} folds over places"
        value = estimate(p.task, held, place)
        made.append(row(STUDY, f"held_out_{metric}", value, **columns, note=note))
        gap = stats.mean(payoffs(p.rows(p.val), as_vector(found.params)) - held, place)
        note = f"payoff tuned on all val rows minus held out; {note}"
        made.append(row(STUDY, "optimism", gap, **columns, note=note))
    many = min(RESAMPLES, settings.bootstrap)
    spread = search_spread(s, payoff, p.task, found.params, place, how, resamples=many)
    enough = spread.clusters >= stats.FEWEST
    note = f"interval: optimum among {spread.n_candidates} settings in {many} resamples of places"
    for i, (name, x) in enumerate(zip(PARAMETERS, as_vector(found.params), strict=True)):
        low, high = map(float, spread.params[i] if enough else (math.nan, math.nan))
        value = stats.Estimate(float(x), len(p.val), low, high, spread.clusters)
        made.append(row(STUDY, name, value, **columns, note=note))
        start, end = found.plateau[i]
        at = {"by": "parameter", "level": name, "note": f"{start:.6g} to {end:.6g}"}
        made.append(row(STUDY, "plateau_width", end - start, n=len(p.val), **columns, **at))
    low, high = sorted(display_value(p.task, x) if enough else math.nan for x in spread.value)
    value = stats.Estimate(
        display_value(p.task, found.value), len(p.val), low, high, spread.clusters
    )
    made.append(row(STUDY, f"optimum_val_{metric}", value, **columns, note=note))
    return made
