"""Shared parts of all pages: the results, the locations of registry and report, templates, and the
two error types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse

from sdgbias.report import layout
from sdgbias.report.layout import Page
from sdgbias.report.web.source import Reader, Results


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

    def html(
        self,
        reader: Reader | None,
        template: str,
        page: Page,
        *,
        title: str = "",
        status: int = 200,
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
            layout.SERVED,
            title=title or page.title,
            served=served,
            stale=reader.stale if reader else None,
            **context,
        )
        return HTMLResponse(text, status, headers={"Cache-Control": "no-cache"})
