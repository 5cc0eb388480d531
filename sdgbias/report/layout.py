"""What every page shares, in the static report and in the web application: the list of pages, the
template environment, and how one page links to another."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from sdgbias.files import packaged, packaged_yaml
from sdgbias.report import labels

TEMPLATES = packaged("report", "templates")
STATIC = packaged("report", "static")
TITLE = "SDG bias in vision–language models"
#: The words of the pages: term -> one sentence.
TERMS: Mapping[str, str] = packaged_yaml("glossary.yaml")


@dataclass(frozen=True)
class Page:
    """One entry of the navigation. file: its name in the folder of a static report, '' if only the
    web application has it; address: in the web application. about: one sentence. studies: the
    studies that it draws on. further: it stands in the navigation's second line."""

    file: str
    title: str
    about: str = ""
    studies: tuple[str, ...] = ()
    address: str = ""
    further: bool = False


OVERVIEW = Page("index.html", "Overview", address="/overview")
NIGHT = Page(
    "night.html",
    "Last night",
    "What the newest night came to: what was published, what got worse, and what was not judged.",
    address="/",
)
NUMBER = Page("", "One number", address="/numbers")
MODELS = Page("", "Models", address="/models")
COMPARE = Page(
    "compare.html",
    "Models compared",
    "Models on the same questions: accuracy, paired differences, and what could have been seen.",
    address="/compare",
)
QUESTIONS = Page(
    "questions.html",
    "Questions",
    "Single questions: the literal prompt, what the model was shown, and what it answered.",
    address="/questions",
)
NIGHTS = Page("", "Nights", address="/nights")
RUNS = Page("", "Runs", address="/runs")
FAIRNESS = Page(
    "fairness.html",
    "Fairness",
    "How well models recognise what people do, and how far that depends on who is in the picture.",
    ("fairness",),
    "/fairness",
    True,
)
OWN = Page(
    "own.html",
    "Own questions",
    "Suites of your own questions: accuracy, groups, and which letters models prefer.",
    (),
    "/own",
    True,
)
METHODS = Page(
    "methods.html",
    "Methods",
    "Every debiasing method on the same questions, what reordered options change, and which way"
    " answers lean.",
    ("methods", "perturbation", "wordings", "directions"),
    "/methods",
    True,
)
PARAMETERS = Page(
    "parameters.html",
    "Parameters",
    "What each part of CADE is worth, how its parameters are found, and whether they carry over.",
    ("ablation", "streams", "sweep", "search", "transfer", "few_shot"),
    "/parameters",
    True,
)
GROUPS = Page(
    "groups.html",
    "Groups",
    "How well models answer for different places, and whether CADE narrows the differences.",
    ("groups",),
    "/groups",
    True,
)
HARM = Page(
    "harm.html",
    "Harm and calibration",
    "What CADE breaks and why, and whether a model’s confidence means accuracy.",
    ("harm", "calibration", "selective"),
    "/harm",
    True,
)
TABLES = Page(
    "tables.html",
    "Paper’s tables",
    "The paper’s tables and figures in numbers, ours beside the printed value where the same model"
    " was scored.",
    (),
    "/tables",
    True,
)
#: What could not be shown; in no navigation.
ERROR = Page("", "Error")
#: Every page, in the order of the navigation.
PAGES = (
    OVERVIEW,
    NIGHT,
    NUMBER,
    MODELS,
    COMPARE,
    QUESTIONS,
    NIGHTS,
    RUNS,
    FAIRNESS,
    METHODS,
    PARAMETERS,
    GROUPS,
    HARM,
    TABLES,
    OWN,
)


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
        return labels.url(f"/{kind}/{path}" if path else f"/{kind}", **query)


SERVED = Front()


def model_file(name: str) -> str:
    """File of a model's page in a static report."""
    return f"model-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.html"


@cache
def environment() -> jinja2.Environment:
    """The one template environment: autoescape, strict, with the filters of `labels`."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    for shown in (
        labels.amount,
        labels.count,
        labels.when,
        labels.lasted,
        labels.size,
        labels.title,
        explained,
    ):
        env.filters[shown.__name__] = shown
    env.filters["interval"] = labels.interval_of
    env.globals.update(
        url=labels.url,
        VIEWS=labels.VIEWS,
        TASKS=labels.TASKS,
        SUITES=labels.SUITES,
        VERDICTS=labels.VERDICTS,
        SIGNED=labels.SIGNED,
        PLAIN=labels.PLAIN,
        TERMS=TERMS,
        QUESTIONS=QUESTIONS,
        COMPARE=COMPARE,
        style=(STATIC / "style.css").read_text(encoding="utf-8"),
        # only the web application says when it read the results
        stale=None,
        served=None,
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

    def term(found: re.Match[str]) -> str:
        return str(Markup('<abbr title="{}">{}</abbr>').format(TERMS[found[0]], found[0]))

    # terms hold no character that is escaped, so they are found in escaped text as well
    return Markup(_known().sub(term, str(escape(text))))


def terms_in(*texts: object) -> Mapping[str, str]:
    """The terms of the glossary that occur in the texts, for a legend, in the glossary's order."""
    found = {name for text in texts for name in _known().findall(str(text))}
    return {name: said for name, said in TERMS.items() if name in found}
