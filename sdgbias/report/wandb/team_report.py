"""The team's W&B Report: the first screen of the report's overview, its leaderboard and the last
night as Markdown, and plots over nights that W&B draws from the runs that were sent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.analysis import night_text
from sdgbias.errors import InfrastructureError, StoreError, first_line
from sdgbias.files import json_object, write_json
from sdgbias.report import headlines
from sdgbias.report.build import ReportPages
from sdgbias.report.pages import own_suite
from sdgbias.report.wandb import log
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET, SDG

TITLE = "sdgbias: models night by night"
#: In the W&B folder: 'SERVER ENTITY/PROJECT[ draft]' -> id of the Report that is there.
REPORTS = "reports.json"
#: Of suites of own questions: metric of the history that is drawn over nights -> title.
OWN_PLOTS = {
    "mcq/all/full/accuracy": "Accuracy of the Full view",
    "mcq/all/cade/accuracy_gain": "CADE: gain in accuracy",
}
#: The same of the packaged suites.
PLOTS = {
    SDG: OWN_PLOTS
    | {
        "mcq/all/q_only/share_optimistic": "Optimistic answers without evidence",
        "mcq/all/q_only/share_pessimistic": "Pessimistic answers without evidence",
        "regression/all/full/mae": "Mean absolute error of the Full view",
    },
    FACET: {
        f"{prompt}/full/{attribute}-{one}-{other}/all-52/disparity": (
            f"Recall of {one} minus {other}, prompt {prompt[-2:]}"
        )
        for prompt in ("direct/p1", "choice/p2")
        for attribute, (one, other) in PAIRS.items()
    },
}
_RUN = ("model", "suite", "provenance", "benchmark_id", "n_scored", "n_failed", "run_id")


def sections(results: Path) -> list[tuple[str, str]]:
    """(title, Markdown) of each section that has content: the five questions of the overview, the
    leaderboard of each suite, own questions, breaches, the runs. Raises StoreError for a file
    without a finished run."""
    pages = ReportPages(results)
    if not pages.models:
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
    answers = (f"**{a.question}** {_plain(a.text)}" for a in pages.shared["answers"])
    parts = [("In short", "\n\n".join(answers))]
    for title, rows in headlines.sections(results):
        heading, note = title.split(": ", 1)
        parts.append((heading, f"{_plain(note)}.\n\n{_table(rows)}"))
    for suite in pages.ask(own_suite.context, pages.own_runs)["suites"]:
        heads = ("model", "questions", *own_suite.HEADS)
        rows = [(r["model"], r["name"], *r["cells"]) for r in suite["accuracy"] + suite["groups"]]
        note = "Share of correct answers in %, test split; best minus worst group in points."
        parts.append((f"Own questions: {suite['title']}", f"{note}\n\n{_table([heads, *rows])}"))
    if pages.last_night is not None and pages.last_night.breached:
        breaches = [
            f"* {_plain(model.model)}: {_plain(night_text.moved(row))}"
            for model in pages.last_night.breached
            for row in model.breaches
        ]
        parts.append((f"Breaches of night {pages.last_night.night}", "\n".join(breaches)))
    runs = [["" if run[c] is None else run[c] for c in _RUN] for run in pages.shared["runs"]]
    return [*parts, ("Runs", _table([_RUN, *runs]))]


def markdown(results: Path) -> str:
    """The Report's text, without plots. Raises StoreError as `sections`."""
    parts = [f"# {TITLE}", *(f"## {_plain(title)}\n\n{text}" for title, text in sections(results))]
    return "\n\n".join(parts) + "\n"


def blocks(results: Path, entity: str, project: str) -> list[Any]:
    """The Report's blocks: headings and Markdown of the sections, and a grid of plots for each
    suite, since metrics of two suites may share a name."""
    import wandb_workspaces.reports.v2 as wr

    parts: list[Any] = [wr.TableOfContents()]
    for title, text in sections(results):
        parts += [wr.H1(text=title), wr.MarkdownBlock(text=text)]
    parts.append(wr.H1(text="Night by night"))
    sql = "SELECT DISTINCT suite FROM latest_run ORDER BY suite DESC"
    for suite in store.query(results, sql)["suite"]:
        runset = wr.Runset(
            entity=entity,
            project=project,
            name=f"suite {suite}: every model, every night",
            filters=f"Config('suite') = '{suite}'",
            groupby=["config.model"],
        )
        panels = [
            wr.LinePlot(
                title=title,
                x=log.NIGHT_YEAR,
                y=[metric],
                groupby=wr.Config(name="model"),
                title_x="night (decimal year)",
                layout=wr.Layout(x=12 * (at % 2), y=8 * (at // 2), w=12, h=8),
            )
            for at, (metric, title) in enumerate(PLOTS.get(suite, OWN_PLOTS).items())
        ]
        parts.append(wr.PanelGrid(runsets=[runset], panels=panels))
    return parts


def publish(results: Path, entity: str, project: str, folder: Path, *, draft: bool = False) -> str:
    """Save the Report in W&B and return its address; a Report published from ``folder`` before is
    replaced, not duplicated.

    Raises StoreError for results without a run, InfrastructureError if there is no login, or the
    server can't be reached or refuses (a name that W&B doesn't know, for one).
    """
    import wandb_workspaces.reports.v2 as wr

    place = f"{entity}/{project}"
    content = blocks(results, entity, project)
    server = os.environ.get("WANDB_BASE_URL", "").rstrip("/") or "https://api.wandb.ai"
    key, ids = f"{server} {place}{' draft' if draft else ''}", json_object(folder / REPORTS)
    # the client tries 20 times, for minutes, and doesn't end before
    os.environ.setdefault("WANDB_X_GRAPHQL_RETRY_MAX", "2")
    try:
        with log.service(folder.resolve()):
            report = wr.Report(
                entity=entity, project=project, title=TITLE, blocks=content, width="fluid"
            )
            report.id = ids.get(key, "")
            report.save(draft=draft)
    except Exception as error:  # the client may raise anything: one line
        line = first_line(error).replace(os.environ.get("WANDB_API_KEY") or "\0", "(key)")
        raise InfrastructureError(
            f"no Report was made: {type(error).__name__}: {line}; it needs WANDB_API_KEY and the"
            f" runs in {place} (sdgbias wandb log, or wandb sync), then again: sdgbias wandb report"
        ) from None
    onward = f"the Report is at {report.url}; {log.OTHER_DIR}"
    write_json(folder / REPORTS, ids | {key: str(report.id)}, onward)
    return str(report.url)


def _table(rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table, its first row the heads."""
    heads, *body = (f"| {' | '.join(map(_plain, row))} |" for row in rows)
    return "\n".join([heads, re.sub(r"[^|]+", "---", heads), *body])


def _plain(value: object) -> str:
    """Text in Markdown: bars, line ends and markup are escaped."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(str(value).split()))
