"""The team's W&B Report (wandb-workspaces): the sections of the results file, and plots over nights
that W&B draws from the runs.

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
from contextlib import suppress
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.errors import InfrastructureError, StoreError, UsageError
from sdgbias.report.wandb import custom_questions, sync
from sdgbias.report.wandb.contents import NIGHT_YEAR, safe
from sdgbias.report.wandb.sections import HISTORY, report_sections
from sdgbias.types import FACET, SDG

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
        + "\n\n".join(f"## {s.title}\n\n{s.markdown}" for s in report_sections(results))
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
    made = [(s.title, s.markdown) for s in report_sections(results)]
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
