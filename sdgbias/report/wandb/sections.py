"""What the team's W&B Report says (team_report.md.j2): tables from the results file as plain
Markdown, those of the report's pages where they have them, a section per question a reader has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store
from sdgbias.analysis import night_text, nights
from sdgbias.errors import StoreError
from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, layout, leaderboard
from sdgbias.report.data import DIRECTIONS
from sdgbias.report.pages import own_suite
from sdgbias.types import FACET

TITLE = "sdgbias: models night by night"
NIGHTS = 14
MOST_ROWS = 40
HISTORY = "History over nights"
Rows = list[dict[str, object]]


def text(results: Path) -> str:
    """The Report as Markdown: what was measured, leaderboard, signatures, CADE gain, disparities,
    own questions, history over nights, verdicts of the regression check; each only if it has rows.
    Raises StoreError for a file without a finished run."""
    made = layout.environment().get_template("team_report.md.j2").render(_context(results))
    return re.sub(r"\n{3,}", "\n\n", made).strip() + "\n"


def sections(markdown: str) -> list[tuple[str, str]]:
    """(title, text) of each section of `text`."""
    parts = markdown.split("\n## ")[1:]
    return [(title, body.strip()) for title, _, body in (part.partition("\n") for part in parts)]


def _context(results: Path) -> dict[str, Any]:
    first = store.latest_runs(results)
    second = store.latest_runs(results, FACET, per_benchmark=True)
    own = own_suite.load(results)
    if not (first or second or own):
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
    found = data.load(results, first) if first else None
    custom = [] if own is None else list(own.runs["run_id"])
    measured = _measured(results, [*first, *second, *custom])
    models = found.models if found else []
    return {
        "title": TITLE,
        "cell": _cell,
        "most": MOST_ROWS,
        "models": measured["model"].nunique(),
        "planted": measured.loc[measured["provenance"] == "planted", "model"].nunique(),
        "again": measured.duplicated(["model", "suite"]).any(),
        "measured": measured.to_dict("records"),
        "leaderboard": _leaderboard(results, first) if first else [],
        "signatures": _signatures(found) if found else [],
        "leanings": [(m, *said) for m in models for said in labels.leaning(found, m)]
        if found
        else [],
        "gain": _gain(found) if found else [],
        "disparities": _disparities(results, second),
        "own": {"suites": []} if own is None else own_suite.context(own),
        **_history(results),
        **_verdicts(results),
    }


def _cell(value: object) -> str:
    """A cell of a Markdown table: bars, line ends and markup are escaped."""
    line = " ".join(str(value).split())
    for sign in "\\`*_[]<>|":
        line = line.replace(sign, f"\\{sign}")
    return line


def _percent(e: Estimate | None, signed: bool = False) -> str:
    """'61.2 (58.0-64.1)', in per cent or points."""
    if e is None or e.value != e.value:
        return "n/a"
    return f"{labels.number(100 * e.value, signed=signed)} ({labels.interval(e, signed=signed)})"


def _measured(results: Path, runs: Sequence[str]) -> pd.DataFrame:
    sql = """SELECT model, suite, provenance, benchmark_id AS benchmark,
             left(coalesce(revision, ''), 12) AS revision, n_prompts_planned AS prompts,
             n_failed AS failed, strftime(finished_at, '%Y-%m-%d %H:%M UTC') AS finished,
             run_id AS run FROM runs WHERE list_contains($runs, run_id)
             ORDER BY suite DESC, provenance = 'planted', model, benchmark_id"""
    return store.query(results, sql, {"runs": list(runs)})


def _leaderboard(results: Path, runs: list[str]) -> Rows:
    made = leaderboard.compare(results, data.load_studies(results, runs).runs).places
    ranked = made[made["test"] == data.ALL_TESTS].sort_values(
        ["benchmark_id", "kind", "method", "value"], ascending=[True, True, True, False]
    )
    return [
        {
            "benchmark": r["benchmark_id"],
            "kind": r["kind"],
            "answer": r["method"],
            "model": r["model"],
            "accuracy (95 % CI)": _percent(Estimate.of_row(r)),
            "n": r["n"],
            "letters": r["letters"],
        }
        for r in ranked.to_dict("records")
    ]


def _signatures(found: data.ReportData) -> Rows:
    rows: Rows = []
    for model in found.models:
        for method in ("q_only", "full"):
            where = {"model": model, "task": "mcq", "test": "all", "method": method}
            cells = {d: found.cell(**where, metric=f"share_{d}") for d in DIRECTIONS}
            if any(cells.values()):
                shares = {d: _percent(e) for d, e in cells.items()}
                n = max(e.n for e in cells.values() if e is not None)
                rows.append({"model": model, "view": data.METHODS[method], **shares, "n": n})
    return rows


def _gain(found: data.ReportData) -> Rows:
    rows: Rows = []
    for model in found.models:
        where = {"model": model, "test": "all", "method": "cade"}
        gain = found.cell(**where, task="mcq", metric="accuracy_gain")
        change = found.cell(**where, task="regression", metric="mae_change")
        if gain is None and change is None:
            continue
        mae = "n/a"
        if change is not None:
            interval = labels.interval(change, 1.0, 2, True)
            mae = f"{labels.number(change.value, 2, True)} ({interval}), n {change.n:,}"
        verdict = labels.cade_change(found, model)
        rows.append(
            {
                "model": model,
                "accuracy gain, points (95 % CI)": _percent(gain, signed=True),
                "n": gain.n if gain else "",
                "change of mean absolute error (95 % CI)": mae,
                "in words": verdict[0] if verdict else "",
            }
        )
    return rows


def _disparities(results: Path, runs: list[str]) -> Rows:
    sql = """SELECT r.model, r.benchmark_id, m.test, m.pillar, m.value, m.n, m.ci_low, m.ci_high,
             m.clusters, coalesce(m.note, '') AS note
             FROM metric_rows m JOIN runs r USING (run_id)
             WHERE list_contains($runs, run_id) AND m.metric = 'disparity' AND m.method = 'full'
             AND m.indicator = 'all-52'
             AND NOT ends_with(m.pillar, 'max-min') ORDER BY ALL"""
    return [
        {
            "model": r["model"],
            "benchmark": r["benchmark_id"],
            "prompt": r["test"],
            "groups": r["pillar"],
            "disparity (95 % CI)": r["note"]
            if r["value"] != r["value"]
            else _percent(Estimate.of_row(r), signed=True),
            "n": r["n"],
        }
        for r in store.query(results, sql, {"runs": runs}).to_dict("records")
    ]


def _history(results: Path) -> dict[str, Any]:
    sql = f"""
        WITH shown AS (SELECT DISTINCT night FROM night_models ORDER BY night DESC LIMIT {NIGHTS})
        SELECT n.night, n.model, n.suite, n.outcome, coalesce(n.kind, '') AS kind, a.value, a.n,
        a.ci_low, a.ci_high, a.clusters
        FROM night_models n JOIN shown USING (night)
        LEFT JOIN metric_rows a ON a.run_id = n.run_id AND a.task = 'mcq' AND a.test = 'all' AND
        a.method = 'full' AND a.pillar = 'all'
        AND a.indicator = 'all' AND a.metric = 'accuracy' ORDER BY n.night DESC, n.model, n.suite"""
    frame = store.query(results, sql)
    rows = [
        {
            **{k: r[k] for k in ("night", "model", "suite", "outcome")},
            "error": r["kind"],
            "accuracy of Full, % (95 % CI)": ""
            if pd.isna(r["value"])
            else _percent(Estimate.of_row(r)),
            "n": "" if pd.isna(r["n"]) else int(r["n"]),
        }
        for r in frame.head(MOST_ROWS).to_dict("records")
    ]
    return {"nights": frame["night"].nunique(), "evaluations": len(frame), "history": rows}


def _verdicts(results: Path) -> dict[str, Any]:
    """night: the newest that was judged, '' for none; tally of its verdicts; judged: what did not
    pass, breaches first, as the page of the night words it."""
    sql = """SELECT * REPLACE (coalesce(quarantines, false) AS quarantines,
             coalesce(required, false) AS required, coalesce(side, '') AS side) FROM verdicts
             WHERE night = (SELECT max(night) FROM verdicts) ORDER BY verdict <> 'BREACH',
             model, rule, task, test, method, level, side, metric"""
    rows = store.query(results, sql).to_dict("records")
    count = pd.Series([r["verdict"] for r in rows], dtype=str).value_counts().sort_index()
    return {
        "night": rows[0]["night"] if rows else "",
        "tally": ", ".join(f"{n} {verdict}" for verdict, n in count.items()),
        "judged": [_judged(r) for r in rows if r["verdict"] != nights.PASS],
    }


def _judged(r: Mapping[Any, Any]) -> dict[str, object]:
    c = night_text.cells(r)
    return {
        **{k: r[k] for k in ("model", "verdict", "rule")},
        "what": night_text.what(r),
        "before": c["before"],
        "now": c["value"],
        "change (95 % CI)": f"{c['change']} ({c['ci']})" if c["ci"] else c["change"],
        "n": c["n"],
        "detectable": c["mde"],
        "note": night_text.note(r),
    }
