"""Analysis of stored scores; needs no model. Every study is a function from a run to rows of
``study_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.asked import gives_scores
from sdgbias.analysis.rows import AnalysisSettings, row, table
from sdgbias.analysis.run import RunData, load, row_of
from sdgbias.analysis.studies import (
    ablation,
    baselines,
    calibration,
    directions,
    groups,
    harm,
    paired,
    perturbation,
    regression,
    search,
    transfer,
    wordings,
)
from sdgbias.progress import Progress, each, silent

#: name -> module of studies/ with a function rows(run, settings), in execution order.
STUDIES = {
    "methods": baselines,
    "perturbation": perturbation,
    "wordings": wordings,
    "directions": directions,
    "paired": paired,
    "harm": harm,
    "groups": groups,
    "regression": regression,
    "calibration": calibration,
    "search_study": search,
    "ablation": ablation,
    "transfer": transfer,
}


def study(
    run: RunData,
    settings: AnalysisSettings,
    progress: Progress = silent,
) -> pd.DataFrame:
    """All study rows of one run, sorted by key. Deterministic for a given run and settings."""
    modules = each(progress, f"analysing {run.model}", STUDIES.values())
    parts = [*(module.rows(run, settings) for module in modules), _settings_rows(settings)]
    rows = (record for part in parts for record in part.to_dict("records"))
    custom = suites.named(str(run.run["suite"])).custom
    return table(
        record
        for record in rows
        # custom questions have no pillars, and a country only where it is a group column
        if record["pillar"]
        and (not custom or record["by"] != "country" or record["study"] == groups.STUDY)
    )


def people_study(
    results: Path,
    run_id: str,
    settings: AnalysisSettings,
    progress: Progress = silent,
) -> pd.DataFrame:
    """The study rows of a run of the second suite (studies/fairness.py)."""
    from sdgbias.analysis.studies import fairness

    progress("analysing answers about people", 0, 1)
    found = fairness.rows(results, run_id, settings)
    progress("analysing answers about people", 1, 1)
    return table(
        record for part in (found, _settings_rows(settings)) for record in part.to_dict("records")
    )


def analyse(
    results: Path,
    run_ids: Sequence[str] | None = None,
    settings: AnalysisSettings = AnalysisSettings(),
    *,
    again: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Run every study of the given runs and publish the rows; returns run_id -> number of rows.
    Default: the newest run of each model; in the people suite, of each model and benchmark.

    A run already analysed with these settings is skipped unless ``again``, and 0 rows are reported
    for it.
    """
    made: dict[str, int] = {}
    comparable: dict[str, list[str]] = {}
    for run_id in run_ids if run_ids is not None else suites.newest_runs(results):
        run, made[run_id] = row_of(results, run_id), 0
        suite = suites.named(str(run["suite"]))
        if again or not _analysed(results, run_id, settings):
            rows = _STUDIES[suite.items_table](results, run_id, settings, progress)
            store.replace(results, run_id, {"study_rows": rows})
            made[run_id] = len(rows)
        # comparisons concern CADE, which needs scores and a split to tune on
        if suite.held_out and gives_scores(run["config"]):
            comparable.setdefault(suite.name, []).append(run_id)
    for run_ids in comparable.values():
        compare(results, run_ids, settings, progress)
    return made


def compare(
    results: Path,
    run_ids: Sequence[str],
    settings: AnalysisSettings,
    progress: Progress = silent,
) -> dict[str, int]:
    """Apply the parameters tuned on each model to the others. The rows replace earlier ones of each
    run; returns run_id -> number of rows. Does nothing if the same runs and settings were already
    compared."""
    from sdgbias.analysis.studies import transfer

    mark = f"{'; '.join(sorted(run_ids))}; {vars(settings)}"
    if not run_ids or all(_compared(results, run_id) == mark for run_id in run_ids):
        return {}
    progress("comparing models", 0, 1)
    runs = [load(results, run_id) for run_id in sorted(run_ids)]
    several = len({run.model for run in runs}) == len(runs) > 1
    made = transfer.between(runs, settings) if several else {}
    for run_id in run_ids:
        kept = store.query(
            results,
            """SELECT * EXCLUDE (run_id) FROM study_rows WHERE run_id = ? AND study <> 'compared'
               AND NOT (study = 'transfer' AND "by" = 'model')""",
            [run_id],
        )
        own = made[run_id].to_dict("records") if several else []
        set_of = row("compared", "set", len(runs), note=mark)
        rows = table([*kept.to_dict("records"), *own, set_of])
        store.replace(results, run_id, {"study_rows": rows})
    progress("comparing models", 1, 1)
    return {run_id: len(rows) for run_id, rows in made.items()}


def _places_study(
    results: Path,
    run_id: str,
    settings: AnalysisSettings,
    progress: Progress = silent,
) -> pd.DataFrame:
    if not gives_scores(row_of(results, run_id)["config"]):  # every study rests on scores
        return table(_settings_rows(settings).to_dict("records"))
    return study(load(results, run_id), settings, progress)


#: Table of a suite's questions -> function that runs its studies.
_STUDIES = {"items": _places_study, "people": people_study}


def _compared(results: Path, run_id: str) -> str:
    found = store.query(
        results, "SELECT note FROM study_rows WHERE study = 'compared' AND run_id = ?", [run_id]
    )["note"]
    return str(found[0]) if len(found) else ""


def _settings_rows(settings: AnalysisSettings) -> pd.DataFrame:
    return table(
        row("settings", name, float(value)) for name, value in sorted(vars(settings).items())
    )


def _analysed(results: Path, run_id: str, settings: AnalysisSettings) -> bool:
    found = store.query(
        results,
        "SELECT metric, value FROM study_rows WHERE study = 'settings' AND run_id = ?",
        [run_id],
    )
    return dict(zip(found["metric"], found["value"], strict=True)) == {
        k: float(v) for k, v in vars(settings).items()
    }
