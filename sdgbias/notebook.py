"""Five functions for notebooks, offered by `import sdgbias`, which imports them when they are first
used: load, metrics, scores, compare, figure.

Every one reads ``results``: a results file, by default that of SDGBIAS_RESULTS, else of the project
file sdgbias.toml, else results/sdgbias.duckdb; a run is named by its run_id, or by its model for
the newest run of that model. All raise StoreError (no such file, busy, no such run or model) and
UsageError (what doesn't go together, an unknown figure).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sdgbias import settings
from sdgbias.errors import StoreError, UsageError, one_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Drawing:
    """A figure of the report. svg and png (300 dpi): files for print; rows: its numbers, each with
    n and 95 % interval; caption: what it shows. A notebook shows it as a picture."""

    title: str
    caption: str
    rows: pd.DataFrame = field(repr=False)
    svg: str = field(repr=False)
    png: bytes = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


def load(table: str = "runs", results: Path | str | None = None) -> pd.DataFrame:
    """A table of the results, such as runs, items, metrics (`sdgbias results tables` lists them),
    or the rows of a SELECT."""
    from sdgbias import store

    named = table.isidentifier()
    return store.ask(_file(results), f"SELECT * FROM {table}" if named else table)


def metrics(run: str = "", metric: str = "", results: Path | str | None = None) -> pd.DataFrame:
    """The numbers over all pillars and indicators together, of one run or of all: value with n,
    ci_low, ci_high (95 %), or missing_reason. ``metric``: of this one only, e.g. accuracy."""
    from sdgbias import store

    path = _file(results)
    return store.query(
        path,
        f"""SELECT run_id, model, suite, task, test, method, pillar, indicator, metric,
            "value", n, ci_low, ci_high, missing_reason FROM {store.NUMBERS}
            WHERE study IN ('headline', 'methods') AND pillar = 'all' AND indicator = 'all'
            AND ($run = '' OR run_id = $run) AND ($metric = '' OR metric = $metric)
            ORDER BY ALL""",
        {"run": _run(path, run) if run else "", "metric": metric},
    )


def scores(run: str, results: Path | str | None = None) -> pd.DataFrame:
    """The scores of a run, a row for each question, test and view: logits of the candidates (NaN
    beyond them), the share of probability (mass) on them, beside question, options and gold."""
    from sdgbias import store

    path = _file(results)
    chosen = _run(path, run)
    return store.query(
        path,
        """SELECT s.*, i.pillar, i.indicator, i.country, i.question, i.options, i.gold, i.split
           FROM scores s JOIN runs r USING (run_id) LEFT JOIN items i
             ON i.benchmark_id = r.benchmark_id AND i.task = s.task AND i.item_id = s.item_id
           WHERE run_id = $run ORDER BY s.task, s.item_id, s.test, s."view" """,
        {"run": chosen},
        runs=[chosen],
    )


def compare(one: str, other: str, results: Path | str | None = None) -> pd.DataFrame:
    """``one`` minus ``other`` on the questions that both answered (multiple choice, test split), by
    method and test: value with n, paired 95 % interval clustered by place, p, and mde, the smallest
    difference that the test detects with 80 % power. What the report's page of pairs shows, but for
    the adjustment of p over all its pairs. ``one``, ``other``: run ids, or models, of which the
    newest runs on one benchmark are compared. Raises UsageError where there are none."""
    from sdgbias.report import leaderboard
    from sdgbias.report.reader import SQL, Results

    path = _file(results)
    chosen = _pair(path, one, other)
    with Results(path, wait=30.0).reading() as reader:
        runs = reader.frame(SQL["labelled"], {"runs": chosen}).set_index("run_id").loc[chosen]
        runs = runs.reset_index().assign(label=chosen)
        board = leaderboard.compare(reader, runs, rank_planted=True)
    if board.pairs.empty:
        raise UsageError(
            f"{' and '.join(chosen)} have no answers left of the same questions by Full, by CADE or"
            " in words; compare their other views: sdgbias serve, then the page Compare; if their"
            " answers were removed, evaluate both models again"
        )
    return board.pairs.drop(columns=["benchmark_id", "kind"])


def figure(name: str, results: Path | str | None = None, **choice: str) -> Drawing:
    """A figure of the report of the newest runs, by the name it has there, e.g. compare-accuracy.
    ``choice``: what its selects are set to, e.g. model='tiny-llava'."""
    from sdgbias.report.build import ReportPages
    from sdgbias.report.charts import picture

    drawn = ReportPages(_file(results)).drawn
    named = {f.name: f for figures in drawn.values() for f in figures}
    if name not in named:
        raise UsageError(one_of("figure", name, named))
    entry = named[name]
    if unknown := set(choice) - set(entry.filters):
        raise UsageError(one_of(f"select of {name}", min(unknown), entry.filters))
    for column, value in choice.items():
        if value not in entry.options(column):
            raise UsageError(one_of(column, value, entry.options(column)))
    svg, png = picture(entry, choice)
    return Drawing(entry.title, f"{entry.reads} {entry.axes}", entry.chosen(**choice), svg, png)


def _file(results: Path | str | None) -> Path:
    return Path(results or settings.given().get("SDGBIAS_RESULTS") or "results/sdgbias.duckdb")


def _pair(path: Path, one: str, other: str) -> list[str]:
    """The newest runs of two models, or two runs, that were asked the same questions of places."""
    from sdgbias import store

    named = [_run(path, name) for name in (one, other)]
    if named[0] == named[1]:
        raise UsageError(f"{one} and {other} are one run, {named[0]}; name two")
    pairs = store.query(
        path,
        """SELECT a.run_id AS a, b.run_id AS b FROM runs a JOIN runs b USING (benchmark_id)
           WHERE $one IN (a.run_id, a.model) AND $other IN (b.run_id, b.model)
             AND a.run_id <> b.run_id AND a.finished_at IS NOT NULL AND b.finished_at IS NOT NULL
             AND benchmark_id IN (SELECT benchmark_id FROM items WHERE task = 'mcq')
           ORDER BY a.finished_at DESC, b.finished_at DESC, a.run_id DESC, b.run_id DESC""",
        {"one": one, "other": other},
    )
    if pairs.empty:
        raise UsageError(
            f"{one} and {other} were never asked multiple-choice questions of one benchmark of"
            " places; evaluate both on one that has some"
        )
    return [str(pairs["a"][0]), str(pairs["b"][0])]


def _run(path: Path, name: str) -> str:
    from sdgbias import store

    runs = store.query(
        path,
        """SELECT run_id, model FROM runs WHERE finished_at IS NOT NULL
           ORDER BY finished_at DESC, run_id DESC""",
    )
    matches = runs["run_id"][(runs["run_id"] == name) | (runs["model"] == name)]
    if matches.empty:
        raise StoreError(f"{path}: {one_of('run or model', name, set(runs['model']))}")
    return str(matches.iloc[0])
