"""Shared parts of all pages: the results, the locations of registry and report, templates, and the
two error types."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse

from sdgbias import store
from sdgbias.errors import Busy, StoreError
from sdgbias.report import layout
from sdgbias.report.build import Filled, ReportPages
from sdgbias.report.layout import Front, Page
from sdgbias.report.reader import Results, Stamp

#: The report's pages contain their own scripts and allow nothing else themselves; the sandbox
#: isolates them from these pages.
REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"


class Missing(Exception):
    """No such run, model, night or question; ``every``: the page that lists them."""

    def __init__(self, what: str, name: str, every: str = "/") -> None:
        super().__init__(f"There is no {what} {name!r}.")
        self.what, self.every = what, every


class Refused(Exception):
    """An invalid parameter; the message lists the valid values."""


@dataclass(frozen=True)
class Site:
    """results: the file. registry: repository root, None without one.
    report: folder of the HTML report.
    wandb: address of the team's W&B report, '' for none."""

    results: Results
    registry: Path | None = None
    report: Path | None = None
    wandb: str = ""
    _pages: dict[Stamp, ReportPages] = field(default_factory=dict)
    _filling: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, error: StoreError) -> tuple[str, str]:
        """What an error says of the results ('missing', 'busy' or 'broken'), and its message."""
        missing, busy = not self.results.path.exists(), isinstance(error, Busy)
        state = "missing" if missing else "busy" if busy else "broken"
        return state, str(error).replace(str(self.results.path), self.results.path.name)

    def filled(self, page: Page) -> Filled | None:
        """Template and context of a page of the report (`ReportPages.page`), whose parts are kept
        while the results are as they were: they are drawn from every run, which takes seconds."""
        with self._filling, store.held_open(self.results.path):
            stamp = self.results.stamp()
            if stamp not in self._pages:
                self._pages.clear()
                self._pages[stamp] = ReportPages(self.results.path)
            report = self._pages[stamp]
            if page == layout.TABLES and report.latest:
                from sdgbias.analysis import paper
                from sdgbias.analysis.paper import results as stored

                tables = paper.build(stored.load(self.results.path))
                report = ReportPages(self.results.path, tables=tables)
            return report.page(page)

    def html(
        self,
        template: str,
        page: Page,
        *,
        title: str = "",
        status: int = 200,
        front: Front = layout.SERVED,
        **context: Any,
    ) -> HTMLResponse:
        """A page; one of a running night is never kept. ``page``: its entry in the navigation;
        ``title``: of the window, by default the page's."""
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
            **context,
        )
        lasting = "no-store" if context.get("running") else "no-cache"
        return HTMLResponse(text, status, headers={"Cache-Control": lasting})
