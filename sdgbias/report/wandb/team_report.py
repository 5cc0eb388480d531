"""The team's W&B Report (wandb-workspaces): the sections of the results file, and plots over nights
that W&B draws from the runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.errors import InfrastructureError, StoreError, UsageError
from sdgbias.files import json_object, replacing, write_atomically
from sdgbias.report import labels
from sdgbias.report.pages import own_suite
from sdgbias.report.wandb import log, sections
from sdgbias.report.wandb.contents import NIGHT_YEAR, safe
from sdgbias.report.wandb.slugs import distinct_slugs
from sdgbias.types import FACET, SDG

#: In the W&B folder: 'SERVER ENTITY/PROJECT[ draft]' -> id of the Report that is there.
REPORTS = "reports.json"
#: The view of the plots of custom questions: the one with most evidence that a suite has.
_VIEWS = ("full", "ctx_q", "q_only")
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
    write_atomically(path, sections.text(results), "choose another --out")
    return path


def publish(
    results: Path,
    entity: str,
    project: str,
    folder: Path,
    *,
    draft: bool = False,
    timeout: float = 120.0,
) -> str:
    """Save the Report in W&B and return its address; a Report published from ``folder`` before is
    replaced, not duplicated.

    Raises StoreError for results without a run, UsageError for a name that W&B rejects,
    InfrastructureError if there is no login, or the server doesn't answer within ``timeout``
    seconds or refuses.
    """
    for option, name in (("--entity", entity), ("--project", project)):
        if not name or safe(name, 128) != name:
            raise UsageError(
                f"{option} {name!r}: letters, digits, '-', '_' and '.' only; it stands in the"
                " project's address"
            )
    text, plots_of = sections.text(results), plots(results)
    server = os.environ.get("WANDB_BASE_URL", "").rstrip("/") or "https://api.wandb.ai"
    ids = folder / REPORTS
    known = json_object(ids)
    place = f"{server} {entity}/{project}{' draft' if draft else ''}"
    with log.service(folder.resolve()), _time_limit(timeout, server):
        url, made = _save((text, plots_of), entity, project, draft, known.get(place, ""))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(ids) as path:
            path.write_text(json.dumps(known | {place: made}, indent=1, sort_keys=True), "utf-8")
    except OSError as error:
        raise StoreError(
            f"the Report is at {url}, but can't write {folder}: {error.strerror}; choose another"
            " --dir"
        ) from None
    return url


def _save(
    shown: tuple[str, dict[str, dict[str, str]]],
    entity: str,
    project: str,
    draft: bool,
    known: str,
) -> tuple[str, str]:
    """(address, id) of the saved Report of text and plots; ``known``: id of the one to replace, ''
    for a new one."""
    try:
        import wandb_workspaces.reports.v2 as wr

        report = wr.Report(
            entity=entity,
            project=project,
            title=sections.TITLE,
            description="Written by sdgbias wandb report.",
            blocks=blocks(*shown, entity, project),
            width="fluid",
        )
        report.id = known
        report.save(draft=draft)
    except InfrastructureError:
        raise
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
        line = (str(error).strip().splitlines() or ["no message"])[0]
        line = line.replace(os.environ.get("WANDB_API_KEY") or "\0", "(key)")
        raise InfrastructureError(
            f"no Report was made: {type(error).__name__}: {line}; nothing is lost, run this again"
        ) from None
    return str(report.url), str(report.id)


@contextmanager
def _time_limit(seconds: float, server: str) -> Iterator[None]:
    """End the block after ``seconds``: the client itself waits for a silent server without end."""

    def stop(*_: object) -> None:
        raise InfrastructureError(
            f"{server} took longer than {seconds:g} s; no Report was made, run this again later"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def plots(results: Path) -> dict[str, dict[str, str]]:
    """Suite in the results -> (metric of the history -> title of its plot)."""
    shipped = {
        suite: titles
        for suite, titles in ((SDG, PLOTS), (FACET, PLOTS_FACET))
        if store.latest_runs(results, suite)
    }
    return shipped | _own_plots(results)


def _own_plots(results: Path) -> dict[str, dict[str, str]]:
    """The plots of suites of custom questions: accuracy, CADE's gain, best minus worst group."""
    own = own_suite.load(results)
    made: dict[str, dict[str, str]] = {}
    if own is None:
        return made
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
        for pillar, name in distinct_slugs(frame["pillar"]).items():
            if pillar.endswith(":max-min"):
                titles[f"mcq/all/{view}/{name}/disparity"] = labels.group(pillar)
        made[str(suite)] = {metric: f"{suite}: {title}" for metric, title in titles.items()}
    return made


def blocks(text: str, plots_of: dict[str, dict[str, str]], entity: str, project: str) -> list[Any]:
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
    parts = sections.sections(text)
    for title, markdown in parts:
        made += [wr.H1(title), wr.MarkdownBlock(markdown)]
        if title == sections.HISTORY:
            made += grids
    if sections.HISTORY not in dict(parts):
        made += [wr.H1(sections.HISTORY), *grids]
    return made
