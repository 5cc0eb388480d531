"""Study 'harm': the damage done by CADE. Answers fixed and broken, answers implausible to the Full
view, and the causes of flips.

CADE has no plausibility limit: a candidate unlikely in every view can win (METHODS 3.1).
``cade_cut`` is CADE with a limit: candidates below a tenth of the Full view's largest probability
are masked. Its parameters are those tuned without the cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sdgbias.analysis import outcomes as answers
from sdgbias.analysis.calls import Call, Level, StudyRow, levels_of, measured, rows_of
from sdgbias.analysis.outcomes import CADE, TaskOutcome
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import RunData, TaskCell
from sdgbias.methods import stats
from sdgbias.methods.cade import (
    Bools,
    Decision,
    Floats,
    Ints,
    Streams,
    decide,
    log_softmax,
    score_terms,
)
from sdgbias.types import CadeParams, Task, View

STUDY, CADE_CUT = "harm", "cade_cut"
CUT = 0.1
#: The terms of Eq. 9 in their order; 'image' is the effect of mixing IMG+Q into the Full view.
TERMS = ("image", "context", "prior")


def _calls(run: RunData, settings: AnalysisSettings) -> Iterator[Call | StudyRow]:
    """Fixed, broken and net by test, pillar and indicator; implausible choices and the cut; flips
    by the term that caused them."""
    for task in Task:
        found, columns = [], []
        for cell, o in zip(answers.reportable(run, task), answers.pools(run, task), strict=False):
            if CADE in o.hit:
                extra, choice = _extra(cell)
                found.append(answers.answered(o, cell, CADE_CUT, choice))
                columns.append(extra)
            else:
                found.append(o)
        if found and len(columns) == len(found):
            columns.append({k: np.concatenate([e[k] for e in columns]) for k in columns[0]})
            found.append(answers.pooled(found))
        for o, extra in zip((o for o in found if CADE in o.hit), columns, strict=True):
            levels = levels_of(o.items)
            yield from _fixed_and_broken(o, levels)
            yield from _implausible(o, levels[:2], extra["implausible"])
            yield from _flips(o, levels[:2], extra)


def implausible(log_full: Floats, choice: Ints, cut: float = CUT) -> Floats:
    """(N, K) Full log-probabilities, (N,) choices -> (N,) 1 where p_full < cut x max p_full, else
    0; NaN without either."""
    top = np.max(log_full, axis=1, initial=-np.inf)
    own = log_full[np.arange(len(choice)), np.maximum(choice, 0)]
    return np.where((choice >= 0) & np.isfinite(top), own < np.log(cut) + top, np.nan)


def choose_with_cut(s: Streams, params: CadeParams, log_full: Floats, cut: float = CUT) -> Ints:
    """(N,) CADE's choice among the candidates with p_full >= cut x max p_full; 0 cuts nothing. Rows
    without Full aren't cut."""
    d = decide(s, params)
    if cut <= 0:
        return d.choice
    top = np.max(log_full, axis=1, keepdims=True, initial=-np.inf)
    keep = (log_full >= np.log(cut) + top) | ~np.isfinite(top)
    best = np.argmax(np.where(keep, d.score, -np.inf), axis=1)
    return np.where(d.kept | (d.choice < 0), d.choice, best).astype(np.int64)


def _why(cell: TaskCell, s: Streams, d: Decision, usable: Bools) -> dict[str, np.ndarray]:
    """Why CADE's answer differs from the Full view's, for all N items, val included.

    full, cade: candidate index, -1 none; kept (gate); flipped. For a flipped row, comparing CADE's
    choice with Full's: image, context, prior are the contributions of the terms to CADE's lead in
    nats; together with ``start``, Full's lead (at most 0), they add up to ``margin``. As the terms
    are additive, these are their Shapley values. ``first``: index in TERMS of the first term in
    the order of Eq. 9 after which the argmax is no longer Full's choice; ``largest``: that of the
    largest contribution. -1 and NaN where not flipped.
    """
    assert cell.params is not None
    choice = np.where(usable, d.choice, -1)
    flipped = (choice >= 0) & (s.base >= 0) & ~d.kept & (choice != s.base)
    img, ctx, prior = score_terms(s, cell.params)
    at, new, old = np.arange(len(choice)), np.maximum(choice, 0), np.maximum(s.base, 0)

    def lead(term: Floats) -> Floats:
        safe = np.where(s.valid, term, 0.0)
        return np.where(flipped, safe[at, new] - safe[at, old], np.nan)

    start = lead(log_softmax(cell.known(View.FULL), s.valid))
    parts = np.stack([lead(img) - start, lead(ctx), lead(prior)], axis=1)
    away = np.stack(
        [_argmax(total, s.valid) != s.base for total in (img, img + ctx, img + ctx + prior)], axis=1
    )
    return {
        "full": s.base,
        "cade": choice,
        "kept": d.kept,
        "flipped": flipped,
        "start": start,
        **{name: parts[:, i] for i, name in enumerate(TERMS)},
        "margin": start + parts.sum(axis=1),
        "first": np.where(flipped, np.argmax(away, axis=1), -1),
        "largest": np.where(flipped, np.argmax(np.nan_to_num(parts, nan=-np.inf), axis=1), -1),
    }


def _argmax(score: Floats, valid: Bools) -> Ints:
    return np.argmax(np.where(valid, score, -np.inf), axis=1).astype(np.int64)


def _extra(cell: TaskCell) -> tuple[dict[str, np.ndarray], Ints]:
    """Columns (n,) of the test rows that an Outcome lacks, and the (N,) choices with the cut."""
    found = answers.decision(cell)
    assert found is not None and cell.params is not None
    s, d, usable = found
    log_full = log_softmax(cell.known(View.FULL), s.valid)
    why = _why(cell, *found)
    columns = {
        "implausible": implausible(log_full, np.where(usable, d.choice, -1)),
        "first": why["first"],
        "largest": why["largest"],
    }
    cut = np.where(usable, choose_with_cut(s, cell.params, log_full), -1)
    return {name: column[cell.test_rows] for name, column in columns.items()}, cut


def _fixed_and_broken(o: TaskOutcome, levels: Sequence[Level]) -> Iterator[Call | StudyRow]:
    change, columns = o.hit[CADE] - o.hit["full"], o.columns(CADE)
    known = ~np.isnan(change)
    fixed, broken = np.where(known, change > 0, np.nan), np.where(known, change < 0, np.nan)
    yield Call(columns, levels, {"fixed": fixed, "broken": broken}, [o.place])
    for level in levels:
        net = Call(columns, [level], {"net": change}, [o.place], "difference", tested=True)
        groups = (level.code == i for i in range(len(level.columns)))
        some = (mine for mine in groups if known[mine].any())
        for r, mine in zip(rows_of(STUDY, net), some, strict=True):
            r["note"] = f"{np.nansum(fixed[mine]):.0f} fixed, {np.nansum(broken[mine]):.0f} broken"
            votes = stats.net_signs(change[mine], o.place[mine])
            yield r
            yield {**r, "metric": "mcnemar", "p": stats.sign_test(*votes)}


def _implausible(o: TaskOutcome, levels: Sequence[Level], chosen: Floats) -> Iterator[Call]:
    """CADE's implausible choices, and CADE with the limit beside CADE without."""
    accuracy, place = "accuracy" if o.task is Task.MCQ else "interval_accuracy", [o.place]
    cut = o.columns(CADE_CUT, note="parameters tuned without the cut")
    yield Call(o.columns(CADE), levels, {"implausible": chosen}, place)
    yield Call(cut, levels, {accuracy: o.hit[CADE_CUT]}, place)
    over = {f"{accuracy}_gain": o.hit[CADE_CUT] - o.hit[CADE]}
    yield Call(cut | {"versus": CADE}, levels, over, place, "difference")
    if o.task is Task.REGRESSION:
        tolerance = o.items["tolerance"].to_numpy(dtype=float)
        own, before = (o.error[m] / tolerance for m in (CADE_CUT, CADE))
        yield Call(cut, levels, {"error_in_tolerances": own}, place, "mean")
        errors = {"error_in_tolerances_change": own - before}
        yield Call(cut | {"versus": CADE}, levels, errors, place, "mean")


def _flips(
    o: TaskOutcome, levels: Sequence[Level], terms: Mapping[str, np.ndarray]
) -> Iterator[Call]:
    """For flipped answers: the share caused by each term, and the net result of those flips (fixed
    minus broken)."""
    change, flipped = o.hit[CADE] - o.hit["full"], terms["first"] >= 0
    yield Call(o.columns(CADE), levels, {"flipped": flipped.astype(float)}, [o.place])
    for by in ("first", "largest"):
        for i, term in enumerate(TERMS):
            mine = terms[by] == i
            columns = o.columns(CADE, parameter=term)
            share = {f"share_of_flips_by_{by}_term": np.where(flipped, mine, np.nan)}
            yield Call(columns, levels, share, [o.place])
            net = {f"net_of_flips_by_{by}_term": np.where(mine, change, np.nan)}
            yield Call(columns, levels, net, [o.place], "difference")


rows = measured(STUDY, _calls, lambda r: r["metric"] if r["metric"] in ("net", "mcnemar") else None)
