"""The team's W&B Report: the first screen of the report's overview, its leaderboard and the last
night as Markdown, and plots over nights that W&B draws from the runs that were sent."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.analysis import night_text
from sdgbias.errors import InfrastructureError, StoreError, UsageError, first_line
from sdgbias.files import json_object, write_atomically, write_json
from sdgbias.report import headlines
from sdgbias.report.build import ReportPages
from sdgbias.report.layout import OVERVIEW, OWN
from sdgbias.report.pages import own_suite
from sdgbias.report.wandb import log
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET, SDG

TITLE = "sdgbias: models night by night"
#: In the W&B folder: 'SERVER ENTITY/PROJECT[ draft]' -> id of the Report that is there.
REPORTS = "reports.json"
#: Suite -> metric of the history -> title of its plot.
PLOTS = {
    SDG: {
        "mcq/all/full/accuracy": "Accuracy of the Full view",
        "mcq/all/cade/accuracy_gain": "CADE: gain in accuracy",
        "mcq/all/q_only/share_optimistic": "Optimistic answers without evidence",
        "mcq/all/q_only/share_pessimistic": "Pessimistic answers without evidence",
        "regression/all/full/mae": "Mean absolute error of the Full view",
    },
    FACET: {
        f"{task}/{prompt}/full/{name}-{one}-{other}/all-52/disparity": (
            f"Recall of {one} minus {other}, prompt {prompt}"
        )
        for task, prompt in (("direct", "p1"), ("choice", "p2"))
        for name, (one, other) in PAIRS.items()
    },
}
#: Of suites of own questions.
OWN_PLOTS = {
    "mcq/all/full/accuracy": "Accuracy of the Full view",
    "mcq/all/cade/accuracy_gain": "CADE: gain in accuracy",
}
_RUN = ("model", "suite", "provenance", "benchmark_id", "n_scored", "n_failed", "run_id")


def write_markdown(results: Path, path: Path) -> Path:
    """Write the Report's text as one Markdown file, without plots. Raises StoreError if it can't be
    written."""
    parts = [f"# {TITLE}", *(f"## {title}\n\n{text}" for title, text in sections(results))]
    write_atomically(path, "\n\n".join(parts) + "\n", "choose another --out")
    return path


def sections(results: Path) -> list[tuple[str, str]]:
    """(title, Markdown) of each section that has content: the five questions of the overview, the
    leaderboard of each suite, own questions, breaches, the runs. Raises StoreError for a file
    without a finished run."""
    pages = ReportPages(results)
    overview = pages.page(OVERVIEW)
    if overview is None:
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
    answers = [f"**{a.question}** {_plain(a.text)}" for a in overview[1]["answers"]]
    parts = [("In short", "\n\n".join(answers))]
    for title, rows in headlines.sections(results):
        heading, note = title.split(": ", 1)
        parts.append((heading, f"{_plain(note)}.\n\n{_table(rows)}"))
    own_page = pages.page(OWN)
    for suite in own_page[1]["suites"] if own_page else ():
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
    behind = [["" if run[c] is None else run[c] for c in _RUN] for run in overview[1]["runs"]]
    return [*parts, ("Runs", _table([_RUN, *behind]))]


def plots(results: Path) -> dict[str, dict[str, str]]:
    """Suite with a run -> metric of the history -> title of its plot."""
    sql = "SELECT DISTINCT suite FROM latest_run ORDER BY suite DESC"
    return {suite: PLOTS.get(suite, OWN_PLOTS) for suite in store.query(results, sql)["suite"]}


def blocks(results: Path, entity: str, project: str) -> list[Any]:
    """The Report's blocks: headings and Markdown of the sections, and a grid of plots for each
    suite, since metrics of two suites may share a name."""
    import wandb_workspaces.reports.v2 as wr

    parts: list[Any] = [wr.TableOfContents()]
    for title, text in sections(results):
        parts += [wr.H1(text=title), wr.MarkdownBlock(text=text)]
    parts.append(wr.H1(text="Night by night"))
    for suite, titles in plots(results).items():
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
            for at, (metric, title) in enumerate(titles.items())
        ]
        parts.append(wr.PanelGrid(runsets=[runset], panels=panels))
    return parts


def publish(results: Path, entity: str, project: str, folder: Path, *, draft: bool = False) -> str:
    """Save the Report in W&B and return its address; a Report published from ``folder`` before is
    replaced, not duplicated.

    Raises StoreError for results without a run, UsageError for a name that W&B rejects,
    InfrastructureError if there is no login, or the server can't be reached or refuses.
    """
    import wandb_workspaces.reports.v2 as wr

    for option, name in (("--entity", entity), ("--project", project)):
        if not name or log.safe(name, 128) != name:
            raise UsageError(
                f"{option} {name!r}: letters, digits, '-', '_' and '.' only; it stands in the"
                " project's address"
            )
    content = blocks(results, entity, project)
    server = os.environ.get("WANDB_BASE_URL", "").rstrip("/") or "https://api.wandb.ai"
    place = f"{entity}/{project}"
    key, ids = f"{server} {place}{' draft' if draft else ''}", json_object(folder / REPORTS)
    # the client tries 20 times, for minutes, and doesn't end before
    os.environ.setdefault("WANDB_X_GRAPHQL_RETRY_MAX", "2")
    try:
        with log.service(folder.resolve()):
            report = wr.Report(
                entity=entity,
                project=project,
                title=TITLE,
                description="Written by sdgbias wandb report.",
                blocks=content,
                width="fluid",
            )
            report.id = ids.get(key, "")
            report.save(draft=draft)
    except Exception as error:  # the client may raise anything: one line
        line = first_line(error).replace(os.environ.get("WANDB_API_KEY") or "\0", "(key)")
        raise InfrastructureError(
            f"no Report was made: {type(error).__name__}: {line}; it needs WANDB_API_KEY and the"
            f" runs in {place} (sdgbias wandb log, or wandb sync), then again: sdgbias wandb report"
        ) from None
    again = f"the Report is at {report.url}; {log.OTHER_DIR}"
    write_json(folder / REPORTS, ids | {key: str(report.id)}, again)
    return str(report.url)


def _table(rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, its first row the heads."""
    heads, *body = (f"| {' | '.join(map(_plain, row))} |" for row in rows)
    return "\n".join([heads, f"|{'---|' * len(rows[0])}", *body])


def _plain(value: object) -> str:
    """Text in Markdown: bars, line ends and markup are escaped."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(str(value).split()))
