"""The time of a run by view: table ``timings``, from the seconds that the cache keeps per prompt.

A batch holds prompts of several views, about one picture and with common beginnings. Its time is
divided among its prompts in proportion to their tokens (scorer.py), so the seconds of a prompt
include its part of the shared work. One prompt can answer cells of several views (at T5 Full is
IMG+Q): its seconds are divided evenly among these cells; cells of extra prompts take part only
where no view of the paper has the prompt.
"""

from __future__ import annotations

import pandas as pd

from sdgbias.suites.extra_prompts import VIEWS as EXTRA
from sdgbias.types import View

#: Kinds of work: scoring the first token, the free answer, the answers after each forced digit.
SCORE, DECODE, FORCE = "score", "decode", "force"
COLUMNS = [
    *("task", "phase", "view", "pass", "cells", "prompts", "cached", "untimed"),
    *("tokens", "seconds", "seconds_measured", "seconds_alone"),
]


def timings(
    cells: pd.DataFrame,
    scores: pd.DataFrame,
    generations: pd.DataFrame,
    run_id: str,
    passes: tuple[str, ...] = (),
) -> pd.DataFrame:
    """One row per task, phase and view.

    cells: task, view, key. scores, generations: rows of the cache, with seconds and run.
    ``passes``: the run's extra prompts.

    Columns: cells of the view that have an answer; distinct prompts behind them; of these
    ``cached``, paid by another run, and ``untimed``, of a version that measured nothing; prompt
    tokens, image tokens included; seconds spent by this run over all its starts, where a cached
    prompt costs nothing; seconds_measured: cached prompts included, at what they took when they
    were scored; seconds_alone: the same with every prompt of the view in full, which other views
    may share. The first two kinds of seconds add up over the views, the last doesn't.
    """
    lengths = scores.set_index("key")["n_tokens"]
    free = generations["start"] == ""
    work = {SCORE: scores, DECODE: generations[free], FORCE: generations[~free]}
    uses = cells.groupby(["task", "view", "key"], sort=True).size().rename("uses").reset_index()
    paper = uses["view"].isin([view.value for view in View])
    counted = uses["uses"].where(paper | ~uses["key"].isin(set(uses.loc[paper, "key"])), 0)
    uses["part"] = counted / counted.groupby(uses["key"]).transform("sum")
    of_view = {view: name for name in passes for view in EXTRA[name]}
    blocks = []
    for phase, rows in work.items():
        timed = rows[["key", "run"]].assign(
            seconds_alone=rows["seconds"].astype(float), untimed=rows["seconds"].isna()
        )
        cost = timed.groupby("key").agg({"seconds_alone": "sum", "untimed": "any", "run": "first"})
        t = uses.merge(cost, left_on="key", right_index=True)
        t["tokens"] = t["key"].map(lengths).fillna(0)
        t["cached"] = ~t["untimed"] & (t["run"] != run_id)
        t["seconds_measured"] = t["seconds_alone"] * t["part"]
        t["seconds"] = t["seconds_measured"].where(~t["cached"], 0.0)
        sums = ["cached", "untimed", "tokens", "seconds", "seconds_measured", "seconds_alone"]
        one = t.groupby(["task", "view"], sort=True).agg(
            cells=("uses", "sum"), prompts=("key", "size"), **{name: (name, "sum") for name in sums}
        )
        blocks.append(one.reset_index().assign(phase=phase))
    table = pd.concat(blocks, ignore_index=True)
    table["pass"] = table["view"].map(of_view).fillna("")
    whole = ["cells", "prompts", "cached", "untimed", "tokens"]
    return table.astype(dict.fromkeys(whole, "int64"))[COLUMNS]
