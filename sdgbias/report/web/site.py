"""Shared parts of all pages: the results, the locations of registry and report, templates, and the
two error types."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse

from sdgbias import store
from sdgbias.report import layout
from sdgbias.report.build import Filled, ReportPages
from sdgbias.report.layout import Front, Page
from sdgbias.report.reader import Reader, Results, Stamp

#: The report's pages contain their own scripts and allow nothing else themselves; the sandbox
#: isolates them from these pages.
REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"
#: Pages that the report draws from every run; the web application shows them as they are there.
OF_REPORT = (
    layout.OVERVIEW,
    layout.FAIRNESS,
    layout.METHOD_PAGE,
    layout.PARAMETERS,
    layout.GROUPS,
    layout.HARM,
    layout.TABLES,
    layout.OWN,
)


class Missing(Exception):
    """No such run, model, night or question; ``near``: similar names with their addresses."""

    def __init__(
        self, what: str, name: str, near: Iterable[tuple[str, str]] = (), every: str = "/"
    ) -> None:
        super().__init__(f"There is no {what} {name!r}.")
        self.what, self.near, self.every = what, tuple(near), every


class Refused(Exception):
    """An invalid parameter; the message lists the valid values."""


def near(name: str, known: Iterable[str], prefix: str, suffix: str = "") -> list[tuple[str, str]]:
    """(name, address) of the names most similar to ``name``, nearest first; nothing for ''."""
    from urllib.parse import quote

    found = difflib.get_close_matches(name, list(known), n=6, cutoff=0.4) if name else []
    return [(f, f"{prefix}{quote(f, safe='')}{suffix}") for f in found]


@dataclass(frozen=True)
class Site:
    """results: the file and its cached answers. registry: repository root, None without one.
    report: folder of the HTML report.
    wandb: address of the team's W&B report, '' for none."""

    results: Results
    registry: Path | None = None
    report: Path | None = None
    wandb: str = ""
    _filled: dict[tuple[Page, Stamp], Filled | None] = field(default_factory=dict)
    _report: dict[Stamp, ReportPages] = field(default_factory=dict)
    _filling: threading.Lock = field(default_factory=threading.Lock)

    def filled(self, page: Page) -> Filled | None:
        """Template and context of a page of the report (`ReportPages.page`), kept while the results
        are as they were: it is drawn from every run, which takes seconds."""
        with self._filling:
            stamp = self.results.stamp()
            if stamp not in self._report:
                self._filled.clear()
                self._report.clear()
                self._report[stamp] = ReportPages(self.results.path)
            report = self._report[stamp]
            if (page, stamp) not in self._filled:
                with store.held_open(self.results.path):
                    if page == layout.TABLES and report.latest:
                        from sdgbias.analysis import paper
                        from sdgbias.analysis.paper import results as stored

                        tables = paper.build(stored.load(self.results.path))
                        report = ReportPages(self.results.path, tables=tables)
                    self._filled[page, stamp] = report.page(page)
            return self._filled[page, stamp]

    def html(
        self,
        reader: Reader | None,
        template: str,
        page: Page,
        *,
        title: str = "",
        status: int = 200,
        front: Front = layout.SERVED,
        **context: Any,
    ) -> HTMLResponse:
        """A page. ``page``: its entry in the navigation; ``title``: of the window, by default the
        page's."""
        served = {
            "file": self.results.path.name,
            "at": datetime.now(UTC),
            "report": self.report,
            "wandb": self.wandb,
        }
        text = layout.render(
            template,
            page,
            front,
            title=title or page.title,
            served=served,
            stale=reader.stale if reader else None,
            **context,
        )
        return HTMLResponse(text, status, headers={"Cache-Control": "no-cache"})
