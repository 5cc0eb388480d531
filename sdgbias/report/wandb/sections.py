"""The sections of the team's W&B Report: text and tables from the results file as plain Markdown,
one section per question a reader has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store
from sdgbias.analysis import night_text
from sdgbias.errors import StoreError
from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, leaderboard
from sdgbias.report.data import DIRECTIONS
from sdgbias.report.wandb import custom_questions
from sdgbias.types import FACET

NIGHTS = 14
MOST_ROWS = 40
HISTORY = "History over nights"


@dataclass(frozen=True)
class Section:
    title: str
    markdown: str


def report_sections(results: Path) -> list[Section]:
    """What was measured, leaderboard, signatures, CADE gain, disparities, history over nights,
    verdicts of the regression check; each only if it has rows. Raises StoreError for a file without
    a finished run."""
    first, second = (
        store.latest_runs(results),
        store.latest_runs(results, FACET, per_benchmark=True),
    )
    own = custom_questions.runs(results)
    if not (first or second or own):
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
    found = data.load(results, first) if first else None
    made = [_measured(results, [*first, *second, *own])]
    if found is not None:
        made += [_leaderboard(results, first), _signatures(found), _gain(found)]
    if second:
        made.append(_disparities(results, second))
    made += [_section(*part) for part in custom_questions.sections(results, own)]
    made += [_history(results), _verdicts(results)]
    return [section for section in made if section is not None]


def table(rows: Sequence[Mapping[Any, object]]) -> str:
    """A Markdown table of rows with the same names; bars, line ends and markup in cells are
    escaped."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    cells = (" | ".join(_cell(value) for value in row.values()) for row in rows)
    return "\n".join([*lines, *(f"| {row} |" for row in cells)])


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text


def _section(title: str, text: str, rows: Sequence[Mapping[Any, object]]) -> Section | None:
    return Section(title, f"{text}\n\n{table(rows)}") if rows else None


def _percent(e: Estimate | None, signed: bool = False) -> str:
    """'61.2 (58.0-64.1)', in per cent or points."""
    if e is None or e.value != e.value:
        return "n/a"
    return f"{labels.number(100 * e.value, signed=signed)} ({labels.interval(e, signed=signed)})"


def _whole(n: float) -> int | str:
    return "" if pd.isna(n) else int(n)


def _measured(results: Path, runs: list[str]) -> Section | None:
    sql = """SELECT model, suite, provenance, benchmark_id AS benchmark,
             left(coalesce(revision, ''), 12) AS revision, n_prompts_planned AS prompts,
             n_failed AS failed, strftime(finished_at, '%Y-%m-%d %H:%M UTC') AS finished,
             run_id AS run FROM runs WHERE list_contains($runs, run_id)
             ORDER BY suite DESC, provenance = 'planted', model, benchmark_id"""
    frame = store.query(results, sql, {"runs": runs})
    planted = frame.loc[frame["provenance"] == "planted", "model"].nunique()
    count = frame["model"].nunique()
    of = f"The newest finished run of {count} model{'s' if count != 1 else ''}"
    again = len(frame) > len(frame[["model", "suite"]].drop_duplicates())
    text = (
        f"{of}{', about people on each benchmark' if again else ''}. Every figure has its n and a"
        " 95 % interval, clustered by place or picture, and by prompt where many places share one."
        " Below five clusters there is no interval."
    )
    if planted:
        text += f" {planted} of them are planted: their bias is known, they are no model's figures."
    return _section("What was measured", text, frame.to_dict("records"))


def _leaderboard(results: Path, runs: list[str]) -> Section | None:
    made = leaderboard.compare(results, data.load_studies(results, runs).runs).places
    ranked = made[made["test"] == data.ALL_TESTS].sort_values(
        ["benchmark_id", "kind", "method", "value"], ascending=[True, True, True, False]
    )
    rows = [
        {
            "benchmark": r["benchmark_id"],
            "kind": r["kind"],
            "answer": r["method"],
            "model": r["model"],
            "accuracy (95 % CI)": _percent(labels.estimate(r)),
            "n": r["n"],
            "letters": r["letters"],
        }
        for r in ranked.to_dict("records")
    ]
    text = (
        "Accuracy in %, multiple choice, test split, all context tests. Models that share a letter"
        " can't be told apart at 5 % (Holm)."
    )
    return _section("Leaderboard", text, rows)


def _signatures(found: data.ReportData) -> Section | None:
    rows, said = [], []
    for model in found.models:
        for method in ("q_only", "full"):
            where = {"model": model, "task": "mcq", "test": "all", "method": method}
            cells = {d: found.cell(**where, metric=f"share_{d}") for d in DIRECTIONS}
            if any(cells.values()):
                shares = {d: _percent(e) for d, e in cells.items()}
                n = max(e.n for e in cells.values() if e is not None)
                rows.append({"model": model, "view": data.METHODS[method], **shares, "n": n})
        said += [
            f"* {_cell(model)}, {_cell(pillar)}: {verdict} ({text})"
            for pillar, verdict, text in labels.leaning(found, model)
        ]
    text = (
        "Share of answers in each direction, in % of answers, all context tests. Without picture"
        " and context (Q-only, T1):\n\n"
    )
    return _section("Signatures", text + "\n".join(said), rows)


def _gain(found: data.ReportData) -> Section | None:
    rows = []
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
    text = "CADE minus the Full view on the same test questions, all context tests."
    return _section("CADE gain", text, rows)


def _disparities(results: Path, runs: list[str]) -> Section | None:
    sql = """SELECT r.model, r.benchmark_id, m.test, m.pillar, m.value, m.n, m.ci_low, m.ci_high,
             m.clusters, coalesce(m.note, '') AS note
             FROM metric_rows m JOIN runs r USING (run_id)
             WHERE list_contains($runs, run_id) AND m.metric = 'disparity' AND m.method = 'full'
             AND m.indicator = 'all-52'
             AND NOT ends_with(m.pillar, 'max-min') ORDER BY ALL"""
    rows = [
        {
            "model": r["model"],
            "benchmark": r["benchmark_id"],
            "prompt": r["test"],
            "groups": r["pillar"],
            "disparity (95 % CI)": r["note"]
            if r["value"] != r["value"]
            else _percent(labels.estimate(r), signed=True),
            "n": r["n"],
        }
        for r in store.query(results, sql, {"runs": runs}).to_dict("records")
    ]
    text = (
        "Difference of recall between perceived groups, points, all classes pooled; generated"
        " answers."
    )
    return _section("Disparities", text, rows)


def _history(results: Path) -> Section | None:
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
            else _percent(labels.estimate(r)),
            "n": _whole(r["n"]),
        }
        for r in frame.head(MOST_ROWS).to_dict("records")
    ]
    text = f"The last {frame['night'].nunique()} nights (local wall clock)." + _left(len(frame))
    return _section(HISTORY, text, rows)


def _verdicts(results: Path) -> Section | None:
    counts = store.query(
        results,
        "SELECT night, verdict, count(*) AS n FROM verdicts GROUP BY ALL ORDER BY night DESC,"
        " verdict",
    )
    if counts.empty:
        return None
    night = str(counts["night"].iloc[0])
    tally = ", ".join(
        f"{r['n']} {r['verdict']}" for r in counts[counts["night"] == night].to_dict("records")
    )
    sql = """SELECT model, suite, rule, task, test, method, level, side, metric, verdict,
             "before", "value", change, ci_low, ci_high, n, p, mde, note,
             coalesce(quarantines, false) AS quarantines, coalesce(required, false) AS required
             FROM verdicts WHERE night = ? AND verdict <> 'PASS' ORDER BY verdict = 'BREACH' DESC,
             model, rule, task, test, method, level, side, metric"""
    frame = store.query(results, sql, [night])
    what = ("task", "test", "method", "level", "side", "metric")
    rows = []
    for r in frame.head(MOST_ROWS).to_dict("records"):
        n = {
            k: "" if pd.isna(r[k]) else labels.number(float(r[k]), 4)
            for k in ("before", "value", "change", "ci_low", "ci_high", "mde")
        }
        rows.append(
            {
                **{k: r[k] for k in ("model", "verdict", "rule")},
                "what": " ".join(str(r[k]) for k in what if r[k]),
                "before": n["before"],
                "now": n["value"],
                "change (95 % CI)": f"{n['change']} ({n['ci_low']} to {n['ci_high']})",
                "n": _whole(r["n"]),
                "detectable": n["mde"],
                "note": night_text.note(r),
            }
        )
    text = f"Night {night} against the last good run of each model: {tally}." + _left(len(frame))
    return _section("Gate", text, rows) or Section("Gate", f"{text} Everything passed.")


def _left(n: int) -> str:
    return (
        f" The first {MOST_ROWS} of {n} rows; the results file has them all."
        if n > MOST_ROWS
        else ""
    )
