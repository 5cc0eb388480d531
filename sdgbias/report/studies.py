"""The rows behind the report's further pages: every study of the newest run of each model, named as a reader reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from sdgbias import store
from sdgbias.report.data import METHODS
from sdgbias.types import PILLARS

NOT_ANALYSED = "not analysed: sdgbias analyse"
ALL_TESTS, ALL_PILLARS = "all tests", "all pillars"
_TEXT = ("study", "task", "test", "method", "pillar", "by", "level", "note")


@dataclass(frozen=True)
class Studies:
    """runs: run_id, model, provenance, benchmark_id, finished_at, label ('x (planted)' for planted ones), measured before planted.
    rows: their study rows, those of single indicators left out, in the order of models, tests and pillars, with label instead of
    run_id and 'all' said in words; metrics: the same of the headline metrics."""

    runs: pd.DataFrame
    rows: pd.DataFrame
    metrics: pd.DataFrame
    _memory: dict[tuple[str, ...], pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def of(self, study: str, *metrics: str, **where: str | Sequence[str]) -> pd.DataFrame:
        """Rows of one study (of these metrics), without those that say what could not be run."""
        frame = self.rows[(self.rows["study"] == study) & (self.rows["metric"] != "not_run")]
        return _where(frame, metrics, where)

    def headline(self, *metrics: str, **where: str | Sequence[str]) -> pd.DataFrame:
        return _where(self.metrics, metrics, where)

    def ordered(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows put together from several tables, in the order of models, tests and pillars."""
        models = {m: i for i, m in enumerate(self.runs["label"])}
        order = pd.DataFrame({"model": frame["model"].map(models), "test": frame["test"].where(frame["test"] != ALL_TESTS, "")})
        order["pillar"] = frame["pillar"].map({ALL_PILLARS: -1, **{p: i for i, p in enumerate(PILLARS)}})
        return frame.loc[order.sort_values(["model", "test", "pillar"], kind="stable").index].reset_index(drop=True)

    @property
    def not_run(self) -> pd.DataFrame:
        return self.rows[self.rows["metric"] == "not_run"]

    @property
    def unanalysed(self) -> list[str]:
        """Models without a single study row."""
        known = set(self.rows["model"])
        return [m for m in self.runs["label"] if m not in known]


def _where(frame: pd.DataFrame, metrics: Sequence[str], where: dict[str, str | Sequence[str]]) -> pd.DataFrame:
    if metrics:
        frame = frame[frame["metric"].isin(metrics)]
    for column, wanted in where.items():
        frame = frame[frame[column].isin([wanted] if isinstance(wanted, str) else list(wanted))]
    return frame


def load(results: Path, run_ids: Sequence[str]) -> Studies:
    """Reads the rows of these runs."""

    def ask(sql: str) -> pd.DataFrame:
        return store.query(results, sql, {"runs": list(run_ids)})

    runs = ask("SELECT run_id, model, provenance, benchmark_id, finished_at FROM runs WHERE list_contains($runs, run_id)")
    runs["label"] = [f"{m} (planted)" if p == "planted" else m for m, p in zip(runs["model"], runs["provenance"], strict=True)]
    runs = runs.assign(last=runs["provenance"] == "planted").sort_values(["last", "model"], ignore_index=True).drop(columns="last")
    mine = "WHERE list_contains($runs, run_id) AND indicator = 'all'"
    return Studies(runs, _named(ask(f"FROM study_rows {mine}"), runs), _named(ask(f"FROM metric_rows {mine}"), runs))


def _named(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """In the order of runs, tests (all first), pillars (all first), then by key."""
    for name in _TEXT:
        if name in frame:
            frame[name] = frame[name].fillna("").astype(str)
    order = {r: i for i, r in enumerate(runs["run_id"])}
    pillars = {"all": 0, **{p: i for i, p in enumerate(PILLARS, 1)}}
    frame["_run"] = frame["run_id"].map(order)
    frame["_test"] = frame["test"].where(frame["test"] != "all", "")
    frame["_pillar"] = frame["pillar"].map(pillars).fillna(99)
    keys = [c for c in ("_run", "study", "task", "_test", "_pillar", "method", "by", "level", "x", "metric") if c in frame]
    frame = frame.sort_values(keys, kind="stable", ignore_index=True)
    frame["model"] = frame["run_id"].map(dict(zip(runs["run_id"], runs["label"], strict=True)))
    frame["test"] = frame["test"].replace("all", ALL_TESTS)
    frame["pillar"] = frame["pillar"].replace("all", ALL_PILLARS)
    return frame.drop(columns=["_run", "_test", "_pillar"])


def method_name(name: str) -> str:
    """The views and CADE as elsewhere in the report; other methods by the name that commands take."""
    return METHODS.get(name, name)


def short_pillar(name: str) -> str:
    """A pillar's first words, for axes with little room."""
    return {
        "Health & Nutrition": "Health",
        "Basic Services & Infrastructure": "Services",
        "Human Capital & Development": "Human capital",
    }.get(name, name)
