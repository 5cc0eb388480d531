"""The outcome of a night, read from the results file alone: evaluated models, verdicts of the
regression check, flipped answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store
from sdgbias.errors import StoreError, one_of
from sdgbias.files import packaged_sql

BREACH, PASS, INSUFFICIENT, MISSING = "BREACH", "PASS", "INSUFFICIENT_EVIDENCE", "MISSING"
#: A rule on a change, in the first run of a model: nothing is wrong and nothing is lacking.
FIRST = "FIRST_RUN"
#: The rule of the single verdict row of a run that was judged by an earlier night.
UNCHANGED = "unchanged"
NIGHTS_SHOWN = 30
_ORDER = {BREACH: 0, MISSING: 1, INSUFFICIENT: 2, FIRST: 3, PASS: 4}


#: What answers a statement with named parameters: here a results file, in the web application one
#: that keeps answers while the file is as it was.
Query = Callable[[str, Mapping[str, object]], pd.DataFrame]


@dataclass(frozen=True)
class ModelNight:
    """One model and suite in a night.

    outcome: published, unchanged, failed, skipped. verdict: of the regression check, '' if nothing
    was judged. rows: its verdicts; for an unchanged run in breach, those of the night that found
    the breach. flips: examples of flipped answers. accepted: the reason given by the user who
    accepted the breach, '' if not accepted. until: end of the quarantine (ISO date), '' if none.
    found_in: the night whose verdicts these are. scored of planned prompts; log: file beside the
    results, '' for none.
    """

    model: str
    suite: str
    outcome: str
    run_id: str
    kind: str
    message: str
    attempts: int
    seconds: float
    until: str
    verdict: str
    baseline: str
    rows: Sequence[Mapping[str, Any]]
    flips: pd.DataFrame
    accepted: str
    found_in: str
    planted: bool = False
    scored: int = 0
    planned: int = 0
    log: str = ""

    @property
    def label(self) -> str:
        """The model's name, marked '(planted)' for a planted model."""
        return f"{self.model} (planted)" if self.planted else self.model

    @cached_property
    def breaches(self) -> list[Mapping[str, Any]]:
        return [r for r in self.rows if r["verdict"] == BREACH]

    @property
    def breached(self) -> bool:
        """In breach and not accepted by a user."""
        return self.verdict == BREACH and not self.accepted

    @property
    def quarantines(self) -> bool:
        """Whether the regression check quarantined the model."""
        return self.breached and any(r["quarantines"] for r in self.breaches)


@dataclass(frozen=True)
class NightRecord:
    """night: its id. row: of table ``nights``, with its JSON columns as dicts. models: breaches and
    failures first. history: night, model, suite, outcome, verdict of the last nights, oldest
    first."""

    night: str
    row: Mapping[str, Any]
    models: Sequence[ModelNight]
    history: pd.DataFrame

    def of(self, *outcomes: str) -> list[ModelNight]:
        return [m for m in self.models if m.outcome in outcomes]

    @property
    def breached(self) -> list[ModelNight]:
        return [m for m in self.models if m.breached]


def overall(rows: Sequence[Mapping[Any, Any]]) -> str:
    """The verdict on a model: the worst of its rows; MISSING counts only where the rule requires
    the metric. '' without rows."""
    verdicts = {str(r["verdict"]) for r in rows if r["verdict"] != MISSING or r["required"]}
    return next((v for v in _ORDER if v in verdicts), MISSING if rows else "")


def failed_steps(row: Mapping[str, Any]) -> dict[str, str]:
    """Closing step -> why it failed, of a row of ``nights`` with dicts; a breach is no failure."""
    return {
        name: str(row["steps"].get(name, state))
        for name, state in row["step_states"].items()
        if state == "failed"
    }


def _asking(results: Path | Query) -> Query:
    return partial(store.query, results) if isinstance(results, Path) else results


def names(results: Path | Query) -> list[str]:
    """All nights, oldest first."""
    rows = _asking(results)("SELECT night FROM nights ORDER BY started_at, night", {})
    return list(rows["night"])


def chosen(results: Path | Query, night: str = "") -> str:
    """This night, by default the newest; '' if the file has no nights. Raises StoreError for an
    unknown one."""
    every = names(results)
    if night and night not in every:
        earlier = f" and {len(every) - 10} earlier ones" if len(every) > 10 else ""
        raise StoreError(one_of("night", night, every[-10:]) + earlier)
    return night or (every[-1] if every else "")


def load(results: Path | Query, night: str = "") -> NightRecord | None:
    """A night, by default the newest; None if the file has no nights. Raises StoreError for an
    unknown night."""
    if isinstance(results, Path):
        with store.held_open(results):  # ten queries open the file once
            return load(_asking(results), night)
    query, night = results, chosen(results, night)
    if not night:
        return None

    def ask(sql: str, **params: object) -> pd.DataFrame:
        return query(sql, {"night": night, **params})

    row = {str(k): v for k, v in ask("FROM nights WHERE night = $night").iloc[0].to_dict().items()}
    for name in ("steps", "step_states", "config", "benchmarks"):
        row[name] = json.loads(row[name]) if isinstance(row[name], str) else {}
    queries = packaged_sql("nights.sql")
    evaluations = ask(queries["models"]).to_dict("records")
    verdicts = ask(queries["verdicts"], unchanged=UNCHANGED)
    run_ids = "SELECT run_id FROM night_outcomes WHERE night = $night"
    flips = ask(f"FROM flips WHERE run_id IN ({run_ids}) ORDER BY better, rowid")
    judged = [{str(k): v for k, v in r.items()} for r in verdicts.to_dict("records")]
    changed = {str(run): part for run, part in flips.groupby("run_id", sort=False)}
    models = [
        _model(
            {str(k): v for k, v in r.items()},
            [v for v in judged if (v["model"], v["suite"]) == (r["model"], r["suite"])],
            changed.get(r["run_id"], flips[:0]),
        )
        for r in evaluations
    ]

    def rank(m: ModelNight) -> tuple[bool, bool, int, str, str]:
        got = m.outcome not in ("failed", "skipped")
        return not m.breached, got, _ORDER.get(m.verdict, 4), m.model, m.suite

    models.sort(key=rank)
    every = names(query)
    shown = every[: every.index(night) + 1][-NIGHTS_SHOWN:]
    return NightRecord(night, row, models, _history(query, shown))


def _model(
    r: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]], flips: pd.DataFrame
) -> ModelNight:
    """``verdicts``: of the model and suite; ``flips``: of the run; both of any night."""
    found_in = r["night"]
    judgements = [v for v in verdicts if v["night"] == found_in]
    verdict = overall(judgements)
    if verdict == BREACH and {v["rule"] for v in judgements} == {UNCHANGED}:
        first = [v for v in verdicts if v["run_id"] == r["run_id"] and v["rule"] != UNCHANGED]
        if first:
            found_in = max(v["night"] for v in first)
            judgements = [v for v in first if v["night"] == found_in]
    baseline = judgements[0]["baseline"] if judgements else ""
    selection = {"night": found_in, "model": r["model"], "suite": r["suite"], "baseline": baseline}
    for name, value in selection.items():
        flips = flips[flips[name] == value]
    return ModelNight(
        **{name: value for name, value in r.items() if name != "night"},
        verdict=verdict,
        baseline=baseline,
        rows=sorted(judgements, key=lambda v: _ORDER[v["verdict"]]),
        flips=flips.reset_index(drop=True),
        found_in=found_in,
    )


def _history(query: Query, nights: Sequence[str]) -> pd.DataFrame:
    rows = query(packaged_sql("nights.sql")["history"], {"nights": list(nights)})
    rank = {night: i for i, night in enumerate(nights)}
    return rows.assign(at=rows["night"].map(rank)).sort_values(
        ["model", "suite", "at"], ignore_index=True
    )
