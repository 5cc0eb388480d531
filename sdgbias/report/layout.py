"""What every page shares, in the static report and in the web application: the list of pages, the
template environment, and how one page links to another."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape
from pydantic.dataclasses import dataclass as validated

from sdgbias import suites, wording
from sdgbias.files import packaged, packaged_yaml
from sdgbias.vocabulary import METHODS, WORDS

TEMPLATES = packaged("report", "templates")
STATIC = packaged("report", "static")
TITLE = "SDG bias in vision–language models"
SUITES = {name: suite.title for name, suite in suites.SUITES.items()}
TASKS = {task: word.name for task, word in WORDS.tasks.items()}
VERDICTS = {verdict: word.name for verdict, word in WORDS.verdicts.items()}
#: The words of the pages: term -> one sentence.
TERMS: Mapping[str, str] = WORDS.explained


@validated(frozen=True)
class Page:
    """One entry of the navigation. file: its name in the folder of a static report, '' if only the
    web application has it; template: of that file, which the web application shows too, unless it
    has an ``interactive`` page of its own; address: in the web application. about: one sentence.
    studies: the studies that it draws on. figures: as `charts.draw.draw` takes them. further: it
    stands in the navigation's second line."""

    title: str
    file: str = ""
    template: str = ""
    interactive: bool = False
    about: str = ""
    studies: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    address: str = ""
    further: bool = False


_PAGES = {name: Page(**about) for name, about in packaged_yaml("pages.yaml").items()}
OVERVIEW = _PAGES["OVERVIEW"]
NIGHT = _PAGES["NIGHT"]
NUMBER = _PAGES["NUMBER"]
MODELS = _PAGES["MODELS"]
COMPARE = _PAGES["COMPARE"]
QUESTIONS = _PAGES["QUESTIONS"]
NIGHTS = _PAGES["NIGHTS"]
RUNS = _PAGES["RUNS"]
FAIRNESS = _PAGES["FAIRNESS"]
TABLES = _PAGES["TABLES"]
OWN = _PAGES["OWN"]
#: What could not be shown; in no navigation.
ERROR = Page("Error")
#: Every page, in the order of the navigation.
PAGES = tuple(_PAGES.values())


def page_at(address: str) -> Page | None:
    """The page of the report that the web application shows at an address as it is."""
    shown = (p for p in PAGES if p.template and not p.interactive)
    return next((page for page in shown if page.address == address), None)


@dataclass(frozen=True)
class Front:
    """Where pages are shown. files: the pages of a static report; None in the web application.
    inline: style and scripts stand in the page itself."""

    files: Collection[str] | None = None
    inline: bool = False

    def address(self, page: Page) -> str:
        """The link to a page; '' where it is not shown."""
        if self.files is None:
            return page.address
        return page.file if page.file in self.files else ""

    def nav(self) -> list[tuple[Page, str]]:
        """Every page that is shown, with its link."""
        return [(page, at) for page in PAGES if (at := self.address(page))]

    def link(self, kind: str, *names: object, **query: object) -> str:
        """The address of a model, run, night, question or picture; '' in a static report, which
        has pages of models alone."""
        if self.files is not None:
            file = model_file(str(names[0])) if kind == "models" and names else ""
            return file if file in self.files else ""
        path = "/".join(quote(str(name), safe="") for name in names)
        return url(f"/{kind}/{path}" if path else f"/{kind}", **query)


SERVED = Front()


def url(path: str, **params: object) -> str:
    """A path with its parameters; empty ones are left out."""
    kept = {k: v for k, v in params.items() if v not in ("", None, False)}
    return f"{path}?{urlencode(kept)}" if kept else path


def model_file(name: str) -> str:
    """File of a model's page in a static report."""
    return f"model-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.html"


@cache
def environment() -> jinja2.Environment:
    """The one template environment: autoescape, strict, with the filters of `wording`."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    for shown in (
        wording.amount,
        wording.count,
        wording.number,
        wording.when,
        wording.lasted,
        wording.size,
        wording.title,
        explained,
    ):
        env.filters[shown.__name__] = shown
    env.filters["interval"] = wording.interval_of
    env.globals.update(
        url=url,
        VIEWS=METHODS,
        TASKS=TASKS,
        SUITES=SUITES,
        VERDICTS=VERDICTS,
        wording=wording,
        TERMS=TERMS,
        QUESTIONS=QUESTIONS,
        FAIRNESS=FAIRNESS,
        NIGHT=NIGHT,
        COMPARE=COMPARE,
        style=(STATIC / "style.css").read_text(encoding="utf-8"),
        served=None,  # only the web application says what it reads
    )
    return env


def render(template: str, page: Page, front: Front, **context: Any) -> str:
    """A page as HTML. ``page``: its entry in the navigation; ``title`` in ``context`` names the
    window if it differs."""
    return (
        environment()
        .get_template(template)
        .render(**({"title": page.title} | context), page=page, front=front)
    )


@cache
def _known() -> re.Pattern[str]:
    """Any term of the glossary as a whole word, the longest first."""
    names = sorted(TERMS, key=lambda name: (-len(name), name))
    return re.compile(rf"(?<![\w+-])(?:{'|'.join(map(re.escape, names))})(?![\w+])")


def explained(text: object) -> Markup:
    """Text with every term of the glossary as <abbr>, explained on hover and to screen readers."""

    def term(match: re.Match[str]) -> str:
        return str(Markup('<abbr title="{}">{}</abbr>').format(TERMS[match[0]], match[0]))

    # terms hold no character that is escaped, so they are found in escaped text as well
    return Markup(_known().sub(term, str(escape(text))))


def terms_in(*texts: object) -> Mapping[str, str]:
    """The terms of the glossary that occur in the texts, for a legend, in the glossary's order."""
    names = {name for text in texts for name in _known().findall(str(text))}
    return {name: meaning for name, meaning in TERMS.items() if name in names}
