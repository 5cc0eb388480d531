"""The team's W&B Report (wandb-workspaces): text and tables from the results file as plain
Markdown, one section per question a reader has, and plots over nights that W&B draws from the runs.

All communication with W&B runs in a separate process with a time limit, after a check that the
server answers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store
from sdgbias.analysis import night_text
from sdgbias.errors import InfrastructureError, StoreError, UsageError
from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, leaderboard
from sdgbias.report import data as studies
from sdgbias.report.data import DIRECTIONS
from sdgbias.report.wandb import custom_questions, sync
from sdgbias.report.wandb.contents import NIGHT_YEAR, safe
from sdgbias.types import FACET, SDG

NIGHTS = 14
MOST_ROWS = 40
HISTORY = "History over nights"


@dataclass(frozen=True)
class Section:
    title: str
    markdown: str


def sections(results: Path) -> list[Section]:
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
    n = r["n"]
    return Estimate(float(r["value"]), 0 if pd.isna(n) else int(n), float(r[low]), float(r[high]))  # type: ignore[arg-type, call-overload]


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
        " 95 % interval, clustered by place or picture."
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
    sql = """SELECT r.model, r.benchmark_id, m.test, m.pillar, m.value, m.n, m.ci_low, m.ci_high
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
            _percent(_estimate(r), signed=True),
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
        SELECT n.night, n.model, n.suite, n.outcome, n.kind, a.value, a.n, a.ci_low, a.ci_high,
        n.quarantined_until
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


TITLE = "sdgbias: models night by night"
#: Metric of the history -> title of its plot. The names are those of `contents.summary`.
PLOTS = {
    "mcq/all/full/accuracy": "Accuracy of the Full view",
    "mcq/all/cade/accuracy_gain": "CADE: gain in accuracy",
    "mcq/all/q_only/share_optimistic": "Optimistic answers without evidence",
    "mcq/all/q_only/share_pessimistic": "Pessimistic answers without evidence",
    "regression/all/full/mae": "Mean absolute error of the Full view",
}
PLOTS_FACET = {
    f"{task}/{test}/full/{pair}/all-52/disparity": f"Disparity {pair}, prompt {test}"
    for task, test in (("direct", "p1"), ("choice", "p2"))
    for pair in ("gender-male-female", "skin-light-dark", "age-young-old")
}


def write_markdown(results: Path, path: Path) -> Path:
    """Write the Report's text as one Markdown file, without plots. Raises StoreError if it can't be
    written."""
    text = (
        f"# {TITLE}\n\n"
        + "\n\n".join(f"## {s.title}\n\n{s.markdown}" for s in sections(results))
        + "\n"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}; choose another --out") from None
    return path


def publish(
    results: Path,
    entity: str,
    project: str,
    folder: Path,
    *,
    draft: bool = False,
    timeout: float = 120.0,
    patience: float = sync.PATIENCE,
) -> str:
    """Save the Report in W&B and return its address; a Report published from ``folder`` before is
    replaced, not duplicated.

    Raises StoreError for results without a run, UsageError for a name that W&B rejects,
    InfrastructureError if there is no login, or the server doesn't answer in time or refuses.
    """
    for option, name in (("--entity", entity), ("--project", project)):
        if not name or safe(name, 128) != name:
            raise UsageError(
                f"{option} {name!r}: letters, digits, '-', '_' and '.' only; it stands in the"
                " project's address"
            )
    made = [(s.title, s.markdown) for s in sections(results)]
    address = sync.host()
    key = sync.logged_in(address)
    sync.reach(address, key, patience)
    known, place = sync.reports(folder), f"{address} {entity}/{project}{' draft' if draft else ''}"
    job = {
        "id": known.get(place, ""),
        "sections": made,
        "entity": entity,
        "project": project,
        "draft": draft,
        "plots": plots(results),
    }
    with tempfile.TemporaryDirectory() as own:
        environment = {
            k: v for k, v in os.environ.items() if k not in ("WANDB_MODE", "WANDB_DISABLED")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "sdgbias.report.wandb.team_report"],
            env=environment | sync.folders(Path(own)) | {"WANDB_SILENT": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(json.dumps(job), timeout=timeout)
        except subprocess.TimeoutExpired:
            raise InfrastructureError(
                f"{address} took longer than {timeout:g} s; no Report was made, run this again"
                " later"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    answer: dict[str, str] = (
        json.loads(said)
        if said.strip()
        else {"error": f"W&B's process ended with exit code {process.returncode}"}
    )
    if "url" not in answer:
        raise InfrastructureError(f"no Report was made: {answer['error'].replace(key, '(key)')}")
    sync.keep_reports(folder, known | {place: answer["id"]})
    return answer["url"]


def plots(results: Path) -> dict[str, dict[str, str]]:
    """Suite in the results -> (metric of the history -> title of its plot)."""
    shipped = {
        suite: titles
        for suite, titles in ((SDG, PLOTS), (FACET, PLOTS_FACET))
        if store.latest_runs(results, suite)
    }
    return shipped | custom_questions.plots(results)


def blocks(
    sections: list[tuple[str, str]],
    plots_of: dict[str, dict[str, str]],
    entity: str,
    project: str,
) -> list[Any]:
    """W&B's blocks: a heading and Markdown per section; the plots over nights follow the history,
    one line per model. Each suite has a grid of its own: metrics of two suites may share a name."""
    import wandb_workspaces.reports.v2 as wr

    grids = [
        wr.PanelGrid(
            runsets=[
                wr.Runset(
                    entity=entity,
                    project=project,
                    name=f"suite {suite}: every model, every night",
                    filters=f"Config('suite') = '{suite}'",
                    groupby=["config.model"],
                )
            ],
            panels=[
                wr.LinePlot(
                    title=title,
                    x=NIGHT_YEAR,
                    y=[metric],
                    groupby=wr.Config("model"),
                    title_x="night (decimal year)",
                    layout=wr.Layout(x=12 * (i % 2), y=8 * (i // 2), w=12, h=8),
                )
                for i, (metric, title) in enumerate(titles.items())
            ],
        )
        for suite, titles in plots_of.items()
    ]
    made: list[Any] = [wr.TableOfContents()]
    for title, markdown in sections:
        made += [wr.H1(title), wr.MarkdownBlock(markdown)]
        if title == HISTORY:
            made += grids
    if not any(title == HISTORY for title, _ in sections):
        made += [wr.H1(HISTORY), *grids]
    return made


def main() -> None:
    """The process that communicates with W&B: a job as JSON on standard input, {url} or {error} on
    standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.read())
    try:
        import wandb_workspaces.reports.v2 as wr

        made = blocks(job["sections"], job["plots"], job["entity"], job["project"])
        report = wr.Report(
            entity=job["entity"],
            project=job["project"],
            title=TITLE,
            description="Written by sdgbias wandb report.",
            blocks=made,
            width="fluid",
        )
        report.id = job["id"]
        report.save(draft=job["draft"])
        said = {"url": report.url, "id": report.id}
    except ValueError as error:
        missing = (
            f"W&B has no project {job['entity']}/{job['project']}; send runs first: sdgbias wandb"
            " sync"
        )
        said = {
            "error": (
                missing if "not found" in str(error) else f"{type(error).__name__}: {_first(error)}"
            )
        }
    except Exception as error:  # the client may raise anything; the parent reports it in one line
        said = {"error": f"{type(error).__name__}: {_first(error)}"}
    print(json.dumps(said), file=out, flush=True)
    os._exit(0)  # the parent ends W&B's helper; a regular shutdown may wait for a server


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


if __name__ == "__main__":
    main()
