"""The team's W&B Report. Its words, tables and plots are one template
(report/templates/team_report.json.j2), whose blocks are those of wandb-workspaces; here is what it
is given, and how it is saved."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.analysis import night_text, nights
from sdgbias.errors import InfrastructureError, StoreError, UsageError, first_line
from sdgbias.files import json_object, packaged_sql, write_atomically, write_json
from sdgbias.methods.stats import Estimate
from sdgbias.report import data, labels, layout, leaderboard
from sdgbias.report.pages import own_suite
from sdgbias.report.wandb import log
from sdgbias.report.wandb.contents import NIGHT_YEAR, safe, slug
from sdgbias.types import FACET, SDG

TITLE = "sdgbias: models night by night"
MOST_ROWS = 40
#: In the W&B folder: 'SERVER ENTITY/PROJECT[ draft]' -> id of the Report that is there.
REPORTS = "reports.json"
#: The view of the plots of custom questions: the one with most evidence that a suite has.
_VIEWS = ("full", "ctx_q", "q_only")


def write_markdown(results: Path, path: Path) -> Path:
    """Write the Report's text as one Markdown file, without plots. Raises StoreError if it can't be
    written."""
    parts = [f"# {TITLE}", *(f"## {title}\n\n{text}" for title, text in sections(results))]
    write_atomically(path, "\n\n".join(parts) + "\n", "choose another --out")
    return path


def sections(results: Path) -> list[tuple[str, str]]:
    """(title, Markdown) of each section: what was measured, leaderboard, signatures, CADE gain,
    disparities, own questions, history over nights, verdicts of the regression check; each only if
    it has rows. Raises StoreError for a file without a finished run."""
    found = json.loads(blocks(results, "", ""))
    return [(h["text"], m["text"]) for h, m in pairwise(found) if m["is"] == "MarkdownBlock"]


def publish(
    results: Path,
    entity: str,
    project: str,
    folder: Path,
    *,
    draft: bool = False,
) -> str:
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
    ids = folder / REPORTS
    known = json_object(ids)
    place = f"{server} {entity}/{project}{' draft' if draft else ''}"
    with log.service(folder.resolve()):
        url, new = _save(made, entity, project, draft, known.get(place, ""))
    write_json(ids, known | {place: new}, f"the Report is at {url}; {log.OTHER_DIR}")
    return url


def _save(made: str, entity: str, project: str, draft: bool, known: str) -> tuple[str, str]:
    """(address, id) of the saved Report of blocks; ``known``: id of the one to replace, '' for a
    new one."""
    try:
        import wandb_workspaces.reports.v2 as wr

        report = wr.Report(
            entity=entity,
            project=project,
            title=TITLE,
            description="Written by sdgbias wandb report.",
            blocks=json.loads(made, object_hook=lambda b: getattr(wr, b.pop("is"))(**b)),
            width="fluid",
        )
        report.id = known
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
    return str(report.url), str(report.id)


def blocks(results: Path, entity: str, project: str) -> str:
    """W&B's blocks as JSON: headings and Markdown of the sections, and plots over nights that W&B
    draws from the runs of the project."""
    first = store.latest_runs(results)
    second = store.latest_runs(results, FACET, per_benchmark=True)
    own = own_suite.load(results)
    custom = [] if own is None else list(own.runs["run_id"])
    if not (first or second or custom):
        raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
    given = {"runs": [*first, *second, *custom], "people": second}
    tables = {
        name: store.query(results, sql, {k: v for k, v in given.items() if f"${k}" in sql})
        for name, sql in packaged_sql("team_report.sql").items()
    }
    measured, verdicts = tables["measured"], tables["verdicts"]["verdict"]
    plots = {} if own is None else _own_plots(own)
    rows = {name: table.to_dict("records") for name, table in tables.items()}
    rows["judged"] = [r for r in rows["verdicts"] if r["verdict"] != nights.PASS]
    template = layout.environment().get_template("team_report.json.j2")
    return template.render(
        **rows,
        **_of_places(results, first),
        entity=entity,
        project=project,
        x=NIGHT_YEAR,
        most=MOST_ROWS,
        models=measured["model"].nunique(),
        planted=measured.loc[measured["provenance"] == "planted", "model"].nunique(),
        again=measured.duplicated(["model", "suite"]).any(),
        own={"suites": []} if own is None else own_suite.context(own),
        tally=", ".join(f"{n} {v}" for v, n in verdicts.value_counts().sort_index().items()),
        suites=[*([SDG] if first else []), *([FACET] if second else []), *plots],
        own_plots=plots,
        text=night_text,
        cell=_cell,
        percent=_percent,
        estimate=Estimate.of_row,
        number=labels.number,
        interval=labels.interval,
    )


def _of_places(results: Path, runs: list[str]) -> dict[str, list[Any]]:
    """Rows of the sections about questions on places, which the report's pages have as well."""
    if not runs:
        return {name: [] for name in ("leaderboard", "leanings", "signatures", "gains")}
    found = data.load(results, runs)
    board = leaderboard.compare(results, data.load_studies(results, runs).runs).places
    ranked = board[board["test"] == data.ALL_TESTS].sort_values(
        ["benchmark_id", "kind", "method", "value"], ascending=[True, True, True, False]
    )
    signatures, gains = [], []
    for model in found.models:
        for method in ("q_only", "full"):
            where = {"model": model, "task": "mcq", "test": "all", "method": method}
            shares = {d: found.cell(**where, metric=f"share_{d}") for d in data.DIRECTIONS}
            if any(shares.values()):
                signatures.append((model, data.METHODS[method], shares))
        where = {"model": model, "test": "all", "method": "cade"}
        gain = found.cell(**where, task="mcq", metric="accuracy_gain")
        change = found.cell(**where, task="regression", metric="mae_change")
        if gain or change:
            gains.append((model, gain, change, labels.cade_change(found, model)))
    return {
        "leaderboard": ranked.to_dict("records"),
        "leanings": [(m, v) for m in found.models for v in labels.leaning(found, m)],
        "signatures": signatures,
        "gains": gains,
    }


def _own_plots(own: own_suite.Own) -> dict[str, dict[str, str]]:
    """Suite of custom questions -> metric of the history -> title of its plot: accuracy, CADE's
    gain, best minus worst group."""
    made: dict[str, dict[str, str]] = {}
    for suite, runs in own.runs.groupby("suite", sort=True):
        frame = own.metrics[own.metrics["run_id"].isin(runs["run_id"])]
        frame = frame[frame["metric"].isin(["accuracy", "disparity"])]
        if frame.empty:
            continue
        methods = set(frame["method"])
        view = next(v for v in (*_VIEWS, *sorted(methods)) if v in methods)
        titles = {f"mcq/all/{view}/accuracy": f"accuracy, {labels.VIEWS.get(view, view)}"}
        if "cade" in methods:
            titles["mcq/all/cade/accuracy_gain"] = "CADE, gain in accuracy"
        for pillar in sorted(set(frame["pillar"])):
            if pillar.endswith(":max-min"):
                titles[f"mcq/all/{view}/{slug(pillar)}/disparity"] = labels.group(pillar)
        made[str(suite)] = {metric: f"{suite}: {title}" for metric, title in titles.items()}
    return made


def _cell(value: object) -> str:
    """A cell of a Markdown table: bars, line ends and markup are escaped."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(str(value).split()))


def _percent(e: Estimate | None, signed: bool = False) -> str:
    """'61.2 (58.0-64.1)', in per cent or points."""
    if e is None or e.value != e.value:
        return "n/a"
    return f"{labels.number(100 * e.value, signed=signed)} ({labels.interval(e, signed=signed)})"
