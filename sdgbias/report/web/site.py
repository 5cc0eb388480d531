"""Shared parts of all pages: the results, the locations of registry and report, templates, and the
two error types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from starlette.responses import HTMLResponse

from sdgbias.files import packaged
from sdgbias.report import labels
from sdgbias.report.web.source import Reader, Results

HERE = packaged("report", "web")
NAV = (
    ("/", "Last night"),
    ("/leaderboard", "Leaderboard"),
    ("/models", "Models"),
    ("/questions", "Questions"),
    ("/compare", "Compare"),
    ("/runs", "Runs"),
    ("/nights", "Nights"),
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
    env: jinja2.Environment = field(default_factory=lambda: _environment())

    def html(
        self,
        reader: Reader | None,
        template: str,
        *,
        here: str,
        title: str,
        status: int = 200,
        **context: Any,
    ) -> HTMLResponse:
        """A page. ``here``: address of its entry in the navigation; ``title``: the window title."""
        text = self.env.get_template(template).render(
            here=here,
            title=title,
            nav=NAV,
            site=self,
            stale=reader.stale if reader else None,
            file=self.results.path.name,
            at=datetime.now(UTC),
            **context,
        )
        return HTMLResponse(text, status, headers={"Cache-Control": "no-cache"})


def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    for filter_ in (
        labels.amount,
        labels.count,
        labels.when,
        labels.lasted,
        labels.size,
        labels.title,
    ):
        env.filters[filter_.__name__] = filter_
    env.filters["interval"] = labels.interval_of
    env.globals.update(
        url=labels.url,
        VIEWS=labels.VIEWS,
        TASKS=labels.TASKS,
        SUITES=labels.SUITES,
        VERDICTS=labels.VERDICTS,
        SIGNED=labels.SIGNED,
        PLAIN=labels.PLAIN,
    )
    return env
