"""The sections of the team's W&B Report: text and tables from the results file as plain Markdown,
one section per question a reader has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdgbias import store
from sdgbias.analysis import night_text
from sdgbias.errors import StoreError
from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, leaderboard
from sdgbias.report import data as studies
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
    made: list[Section | None] = [_measured(results, [*first, *second, *own])]
    if found is not None:
        made += [_leaderboard(results, first), _signatures(found), _gain(found)]
    if second:
        made.append(_disparities(results, second))
    made += [Section(*text) for text in custom_questions.sections(results, own)]
    made += [_history(results), _verdicts(results)]
    return [section for section in made if section is not None]


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; bars, line ends and markup in cells are escaped."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(_cell(c) for c in row) + " |" for row in rows)])


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text


def _estimate(
    r: pd.Series | dict[object, object], low: str = "ci_low", high: str = "ci_high"
) -> Estimate:
    return labels.estimate(dict(r), low, high)


def _percent(e: Estimate | None, signed: bool = False) -> str:
    """'61.2 (58.0-64.1)', in per cent or points."""
    if e is None or e.value != e.value:
        return "n/a"
    return f"{labels.number(100 * e.value, signed=signed)} ({labels.interval(e, signed=signed)})"


def _measured(results: Path, runs: list[str]) -> Section:
    sql = """SELECT model, suite, provenance, benchmark_id, revision, n_prompts_planned AS asked,
             n_failed AS failed, finished_at, run_id
             FROM runs WHERE list_contains($runs, run_id) ORDER BY suite DESC, provenance =
             'planted', model, benchmark_id"""
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
    rows = [
        (
            r["model"],
            r["suite"],
            r["provenance"],
            r["benchmark_id"],
            str(r["revision"] or "")[:12],
            r["asked"],
            r["failed"],
            f"{r['finished_at']:%Y-%m-%d %H:%M} UTC",
            r["run_id"],
        )
        for r in frame.to_dict("records")
    ]
    heads = (
        "model",
        "suite",
        "provenance",
        "benchmark",
        "revision",
        "prompts",
        "failed",
        "finished",
        "run",
    )
    return Section("What was measured", text + "\n\n" + table(heads, rows))


def _leaderboard(results: Path, runs: list[str]) -> Section | None:
    made = leaderboard.compare(results, studies.load_studies(results, runs).runs).places
    own = made[made["test"] == studies.ALL_TESTS]
    if own.empty:
        return None
    rows = [
        (
            r["benchmark_id"],
            r["kind"],
            r["method"],
            r["model"],
            _percent(_estimate(r)),
            r["n"],
            r["letters"],
        )
        for r in own.sort_values(
            ["benchmark_id", "kind", "method", "value"], ascending=[True, True, True, False]
        ).to_dict("records")
    ]
    text = (
        "Accuracy in %, multiple choice, test split, all context tests. Models that share a letter"
        " can't be told apart at 5 % (Holm)."
    )
    return Section(
        "Leaderboard",
        f"{text}\n\n"
        + table(
            ("benchmark", "kind", "answer", "model", "accuracy (95 % CI)", "n", "letters"), rows
        ),
    )


def _signatures(found: data.ReportData) -> Section | None:
    rows = []
    said = []
    for model in found.models:
        for method in ("q_only", "full"):
            cells = [
                found.cell(model=model, task="mcq", test="all", method=method, metric=f"share_{d}")
                for d in DIRECTIONS
            ]
            if any(cells):
                n = max(e.n for e in cells if e is not None)
                rows.append((model, data.METHODS[method], *(_percent(e) for e in cells), n))
        said += [
            f"* {_cell(model)}, {_cell(pillar)}: {verdict} ({text})"
            for pillar, verdict, text in labels.leaning(found, model)
        ]
    if not rows:
        return None
    text = (
        "Share of answers in each direction, in % of answers, all context tests. Without picture"
        " and context (Q-only, T1):\n\n"
    )
    return Section(
        "Signatures",
        text + "\n".join(said) + "\n\n" + table(("model", "view", *DIRECTIONS, "n"), rows),
    )


def _gain(found: data.ReportData) -> Section | None:
    rows = []
    for model in found.models:
        gain = found.cell(
            model=model, task="mcq", test="all", method="cade", metric="accuracy_gain"
        )
        change = found.cell(
            model=model, task="regression", test="all", method="cade", metric="mae_change"
        )
        if gain is None and change is None:
            continue
        mae = (
            "n/a"
            if change is None
            else (
                f"{labels.number(change.value, 2, True)} ({labels.interval(change, 1.0, 2, True)}),"
                f" n {change.n:,}"
            )
        )
        verdict = labels.cade_change(found, model)
        rows.append(
            (
                model,
                _percent(gain, signed=True),
                gain.n if gain else "",
                mae,
                verdict[0] if verdict else "",
            )
        )
    if not rows:
        return None
    heads = (
        "model",
        "accuracy gain, points (95 % CI)",
        "n",
        "change of mean absolute error (95 % CI)",
        "in words",
    )
    return Section(
        "CADE gain",
        "CADE minus the Full view on the same test questions, all context tests.\n\n"
        + table(heads, rows),
    )


def _disparities(results: Path, runs: list[str]) -> Section | None:
    sql = """SELECT r.model, r.benchmark_id, m.test, m.pillar, m.value, m.n, m.ci_low, m.ci_high,
             m.clusters, coalesce(m.note, '') AS note
             FROM metric_rows m JOIN runs r USING (run_id)
             WHERE list_contains($runs, run_id) AND m.metric = 'disparity' AND m.method = 'full'
             AND m.indicator = 'all-52'
             AND NOT ends_with(m.pillar, 'max-min') ORDER BY ALL"""
    frame = store.query(results, sql, {"runs": runs})
    rows = [
        (
            r["model"],
            r["benchmark_id"],
            r["test"],
            r["pillar"],
            r["note"] if r["value"] != r["value"] else _percent(_estimate(r), signed=True),
            r["n"],
        )
        for r in frame.to_dict("records")
    ]
    text = (
        "Difference of recall between perceived groups, points, all classes pooled; generated"
        " answers.\n\n"
    )
    return (
        Section(
            "Disparities",
            text
            + table(("model", "benchmark", "prompt", "groups", "disparity (95 % CI)", "n"), rows),
        )
        if rows
        else None
    )


def _history(results: Path) -> Section | None:
    sql = f"""
        WITH shown AS (SELECT DISTINCT night FROM night_models ORDER BY night DESC LIMIT {NIGHTS})
        SELECT n.night, n.model, n.suite, n.outcome, n.kind, a.value, a.n, a.ci_low,
        a.ci_high, a.clusters, n.quarantined_until
        FROM night_models n JOIN shown USING (night)
        LEFT JOIN metric_rows a ON a.run_id = n.run_id AND a.task = 'mcq' AND a.test = 'all' AND
        a.method = 'full' AND a.pillar = 'all'
        AND a.indicator = 'all' AND a.metric = 'accuracy' ORDER BY n.night DESC, n.model, n.suite"""
    frame = store.query(results, sql)
    if frame.empty:
        return None
    rows = [
        (
            r["night"],
            r["model"],
            r["suite"],
            r["outcome"],
            "" if pd.isna(r["kind"]) else r["kind"],
            "" if pd.isna(r["value"]) else _percent(_estimate(r)),
            "" if pd.isna(r["n"]) else int(r["n"]),
        )
        for r in frame.head(MOST_ROWS).to_dict("records")
    ]
    text = f"The last {frame['night'].nunique()} nights (local wall clock)." + _left(len(frame))
    return Section(
        HISTORY,
        f"{text}\n\n"
        + table(
            ("night", "model", "suite", "outcome", "error", "accuracy of Full, % (95 % CI)", "n"),
            rows,
        ),
    )


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

    def number(value: object) -> str:
        return "" if pd.isna(value) else labels.number(float(value), 4)  # type: ignore[arg-type, call-overload]

    rows = [
        (
            r["model"],
            r["verdict"],
            r["rule"],
            " ".join(
                str(r[k]) for k in ("task", "test", "method", "level", "side", "metric") if r[k]
            ),
            number(r["before"]),
            number(r["value"]),
            f"{number(r['change'])} ({number(r['ci_low'])} to {number(r['ci_high'])})",
            "" if pd.isna(r["n"]) else int(r["n"]),
            number(r["mde"]),
            night_text.note(r),
        )
        for r in frame.head(MOST_ROWS).to_dict("records")
    ]
    heads = (
        "model",
        "verdict",
        "rule",
        "what",
        "before",
        "now",
        "change (95 % CI)",
        "n",
        "detectable",
        "note",
    )
    text = f"Night {night} against the last good run of each model: {tally}." + _left(len(frame))
    return Section("Gate", text + ("\n\n" + table(heads, rows) if rows else " Everything passed."))


def _left(n: int) -> str:
    return (
        f" The first {MOST_ROWS} of {n} rows; the results file has them all."
        if n > MOST_ROWS
        else ""
    )
