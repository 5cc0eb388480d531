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
from sdgbias.report.layout import OVERVIEW
from sdgbias.report.pages import own_suite
from sdgbias.report.wandb import log
from sdgbias.report.wandb.contents import NIGHT_YEAR, history, safe
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
    made = [("In short", "\n\n".join(answers))]
    for title, rows in headlines.sections(results):
        heading, note = title.split(": ", 1)
        made.append((heading, f"{_plain(note)}.\n\n{_table(rows)}"))
    if pages.asked is not None:
        context = own_suite.context(pages.asked)
        for suite in context["suites"]:
            rows = [
                (r["model"], r["name"], *r["cells"]) for r in suite["accuracy"] + suite["groups"]
            ]
            note = "Share of right answers in %, test split; best minus worst group in points."
            heads = ("model", "questions", *context["heads"])
            made.append((f"Own questions: {suite['title']}", f"{note}\n\n{_table([heads, *rows])}"))
    if pages.last_night is not None and pages.last_night.breached:
        breaches = [
            f"* {_plain(m.model)}: {_plain(night_text.moved(row))}"
            for m in pages.last_night.breached
            for row in m.breaches
        ]
        made.append((f"Breaches of night {pages.last_night.night}", "\n".join(breaches)))
    runs = [[run[column] or "" for column in _RUN] for run in overview[1]["runs"]]
    return [*made, ("Runs", _table([_RUN, *runs]))]


def plots(results: Path) -> dict[str, dict[str, str]]:
    """Suite -> metric of the history -> title of its plot. Of own questions accuracy with most
    evidence, CADE's gain, and the best minus the worst group."""
    suites = store.query(
        results, "SELECT DISTINCT suite FROM runs WHERE finished_at IS NOT NULL ORDER BY suite DESC"
    )["suite"]
    made = {str(suite): PLOTS[suite] for suite in suites if suite in PLOTS}
    own = own_suite.load(results)
    for suite, runs in () if own is None else own.runs.groupby("suite", sort=True):
        metrics = own.metrics[own.metrics["run_id"].isin(runs["run_id"])]  # type: ignore[union-attr]
        names = history(metrics[metrics["metric"].isin(["accuracy", "accuracy_gain", "disparity"])])
        plain = [n for n in names if n.endswith(("/accuracy", "/accuracy_gain", "/disparity"))]
        view = next(v for v in ("full", "ctx_q", "q_only") if any(f"/{v}/" in n for n in plain))
        wanted = [n for n in plain if f"/{view}/" in n or n.endswith("/cade/accuracy_gain")]
        made[str(suite)] = {n: f"{suite}: {n.removeprefix('mcq/all/')}" for n in wanted}
    return made


def blocks(results: Path, entity: str, project: str) -> list[Any]:
    """The Report's blocks: headings and Markdown of the sections, and a grid of plots for each
    suite, since metrics of two suites may share a name."""
    import wandb_workspaces.reports.v2 as wr

    made: list[Any] = [wr.TableOfContents()]
    for title, text in sections(results):
        made += [wr.H1(text=title), wr.MarkdownBlock(text=text)]
    made.append(wr.H1(text="Night by night"))
    for suite, titles in plots(results).items():
        runs = wr.Runset(
            entity=entity,
            project=project,
            name=f"suite {suite}: every model, every night",
            filters=f"Config('suite') = '{suite}'",
            groupby=["config.model"],
        )
        panels = [
            wr.LinePlot(
                title=title,
                x=NIGHT_YEAR,
                y=[metric],
                groupby=wr.Config(name="model"),
                title_x="night (decimal year)",
                layout=wr.Layout(x=12 * (at % 2), y=8 * (at // 2), w=12, h=8),
            )
            for at, (metric, title) in enumerate(titles.items())
        ]
        made.append(wr.PanelGrid(runsets=[runs], panels=panels))
    return made


def publish(results: Path, entity: str, project: str, folder: Path, *, draft: bool = False) -> str:
    """Save the Report in W&B and return its address; a Report published from ``folder`` before is
    replaced, not duplicated.

    Raises StoreError for results without a run, UsageError for a name that W&B rejects,
    InfrastructureError if there is no login, or the server can't be reached or refuses.
    """
    for option, name in (("--entity", entity), ("--project", project)):
        if not name or safe(name, 128) != name:
            raise UsageError(
                f"{option} {name!r}: letters, digits, '-', '_' and '.' only; it stands in the"
                " project's address"
            )
    made = blocks(results, entity, project)
    server = os.environ.get("WANDB_BASE_URL", "").rstrip("/") or "https://api.wandb.ai"
    ids = json_object(folder / REPORTS)
    place = f"{server} {entity}/{project}{' draft' if draft else ''}"
    with log.service(folder.resolve()):
        report = _save(made, (entity, project), draft, ids.get(place, ""))
    ids |= {place: str(report.id)}
    write_json(folder / REPORTS, ids, f"the Report is at {report.url}; {log.OTHER_DIR}")
    return str(report.url)


def _save(made: Sequence[Any], place: tuple[str, str], draft: bool, before: str) -> Any:
    """The saved Report. ``place``: entity and project. ``before``: id of the one to replace, '' for
    a new one."""
    entity, project = place
    try:
        import wandb_workspaces.reports.v2 as wr

        about = "Written by sdgbias wandb report."
        report = wr.Report(
            entity=entity,
            project=project,
            title=TITLE,
            description=about,
            blocks=list(made),
            width="fluid",
        )
        report.id = before
        report.save(draft=draft)
    except Exception as error:  # the client may raise anything: one line
        if "not found" in str(error):
            raise InfrastructureError(
                f"W&B has no project {entity}/{project}; send runs first: sdgbias wandb log with"
                " WANDB_API_KEY set, or wandb sync"
            ) from None
        if "not logged in" in str(error) or "api_key not configured" in str(error):
            raise InfrastructureError(
                "not logged in to W&B: set WANDB_API_KEY (or run `wandb login`), then again:"
                " sdgbias wandb report"
            ) from None
        line = first_line(error).replace(os.environ.get("WANDB_API_KEY") or "\0", "(key)")
        raise InfrastructureError(
            f"no Report was made: {type(error).__name__}: {line}; nothing is lost, run this again"
        ) from None
    return report


def _table(rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, its first row the heads."""
    heads, *body = (f"| {' | '.join(map(_plain, row))} |" for row in rows)
    return "\n".join([heads, f"|{'---|' * len(rows[0])}", *body])


def _plain(value: object) -> str:
    """Text in Markdown: bars, line ends and markup are escaped."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(str(value).split()))
