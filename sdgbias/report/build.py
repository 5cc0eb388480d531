"""The pages of the report: what each of them holds, and the folder that they are written to. The
web application shows the same pages (`ReportPages.page`)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis import nights
from sdgbias.errors import InputError, StoreError
from sdgbias.files import write_atomically
from sdgbias.progress import each, update
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import layout, matrix
from sdgbias.report import leaderboard as boards
from sdgbias.report.charts import Figure, draw, pairs
from sdgbias.report.layout import (
    COMPARE,
    FAIRNESS,
    NIGHT,
    OVERVIEW,
    OWN,
    QUESTIONS,
    TABLES,
    Front,
    Page,
)
from sdgbias.report.pages import examples, fairness, models, overview, own_suite, studies
from sdgbias.report.pages import night as night_page
from sdgbias.report.reader import SQL, Cells, Reader, Results, Row
from sdgbias.types import FACET, SDG

if TYPE_CHECKING:
    from sdgbias.analysis.paper.tables import Table

#: Pages of a benchmark folder that are published beside the report: the card and its quality.
PUBLISHED = ("quality.html", "README.md")
#: What to do where the folder of the report can't be written.
OTHER_OUT = "choose another --out"
Context = dict[str, Any]
Filled = tuple[str, Context]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ReportPages:
    """The newest finished run of each model in ``results``, or of the runs ``among`` them. checked:
    suite -> link to its quality page. tables: those of `sdgbias reproduce`. rank_planted: planted
    models share the leaderboard's letters with measured ones. night: by default the newest, None
    for no page of a night. Every part is read when a page first needs it."""

    results: Path
    among: Sequence[str] | None = None
    checked: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Table] | None = None
    rank_planted: bool = False
    night: str | None = ""

    @cached_property
    def _source(self) -> Results:
        return Results(self.results, wait=30.0)

    def ask(self, load: Callable[Concatenate[Reader, P], T], *given: P.args, **by: P.kwargs) -> T:
        """What one of the pages' functions reads from the results."""
        with self._source.reading() as reader:
            return load(reader, *given, **by)

    @cached_property
    def people(self) -> list[Row]:
        return self.ask(fairness.runs_of, self.among)

    @cached_property
    def own_runs(self) -> list[Row]:
        return self.ask(own_suite.runs_of, self.among)

    @cached_property
    def last_night(self) -> nights.NightRecord | None:
        return None if self.night is None else nights.load(self.results, self.night)

    @cached_property
    def latest(self) -> list[str]:
        return store.latest_runs(self.results, among=self.among)

    @cached_property
    def cells(self) -> Cells | None:
        return self.ask(Cells, self.latest) if self.latest else None

    @cached_property
    def runs(self) -> list[Row]:
        """The newest runs on places, planted ones last."""
        return self.ask(Reader.ask, SQL["labelled"], {"runs": self.latest})

    @cached_property
    def board(self) -> boards.Board:
        runs = pd.DataFrame(self.runs, columns=["run_id", "label", "provenance", "benchmark_id"])
        return self.ask(boards.compare, runs, rank_planted=self.rank_planted)

    @cached_property
    def drawn(self) -> dict[str, list[Figure]]:
        """File of a page -> its figures that have rows."""
        if not self.latest:
            return {}
        ids = [run["run_id"] for run in self.runs]
        names = {p.file: p.figures for p in layout.PAGES if p.figures}
        drawn = self.ask(draw.draw, ids, list(chain.from_iterable(names.values())))
        of = {file: [drawn[n] for n in each if n in drawn] for file, each in names.items()}
        return of | {COMPARE.file: pairs.figures(self.board)}

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The example questions."""
        return self.ask(examples.context, sorted(self.latest))

    def has(self, page: Page) -> bool:
        """Whether the results hold something for a page."""
        return bool(_OF_PAGE.get(page, _OF_STUDIES)[0](self, page))

    def page(self, page: Page) -> Filled | None:
        """Template and context of a page; None if the results hold nothing for it."""
        return (
            (page.template, _OF_PAGE.get(page, _OF_STUDIES)[1](self, page))
            if self.has(page)
            else None
        )

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The leaderboard and the answers of the overview's first screen."""
        return self.ask(overview.shared, self.among, self.cells, self.last_night)

    @cached_property
    def models(self) -> list[str]:
        """The models that have a page of their own."""
        newest = self.ask(matrix.newest, self.among)
        return list(dict.fromkeys(run["model"] for run in newest))

    def model(self, name: str) -> Filled:
        """Template and context of the page of one of `models`."""
        m = self.ask(models.page, name, None, self.among)
        return "model.html.j2", {"m": m, "directions": DIRECTIONS, "title": name}

    def files(self, pages: Sequence[Page]) -> dict[str, str]:
        """File -> HTML of these pages and of the page of every model, linked to each other."""
        of_models = {layout.model_file(name): name for name in self.models}
        front = Front([*(page.file for page in pages), *of_models], inline=True)
        texts: dict[str, str] = {}
        for file, name in each(update, "pages of models", of_models.items()):
            template, context = self.model(name)
            texts[file] = layout.render(template, layout.MODELS, front, **context)
        for page in each(update, "pages of studies", pages):
            filled = self.page(page)
            assert filled is not None, f"{self.results} holds nothing for {page.file}"
            texts[page.file] = layout.render(filled[0], page, front, **filled[1])
        return texts


def _overview(report: ReportPages, page: Page) -> Context:
    content = report.ask(overview.context, report.among, report.shared, report.cells, report.board)
    unanalysed = [run["label"] for run in report.runs if not run["analysed"]]
    studied = [p for p in layout.PAGES if p.figures] if unanalysed else []
    return content | {
        "checks": report.checked.get(SDG, ""),
        "absent": [p.title for p in studied if not report.has(p)],
        "unanalysed": unanalysed,
    }


def _studied(report: ReportPages, page: Page) -> Context:
    """A page of figures and tables."""
    lacking = report.board.lacking if page == COMPARE else None
    tables = report.tables if page == TABLES else None
    figures = report.drawn.get(page.file, [])
    return report.ask(studies.context, page, report.runs, figures, lacking, tables)


Part = Callable[[ReportPages, Page], Any]
#: Of a page whether there is something to show, and what its template is given.
_OF_PAGE: Mapping[Page, tuple[Part, Part]] = {
    OVERVIEW: (lambda r, _: r.latest or r.people or r.own_runs, _overview),
    NIGHT: (lambda r, _: r.last_night, lambda r, _: _night(r.results, r.last_night)),
    QUESTIONS: (lambda r, _: r.latest and r.shown["total"], lambda r, _: r.shown),
    FAIRNESS: (
        lambda r, _: r.people,
        lambda r, _: r.ask(fairness.context, r.people, r.checked.get(FACET, "")),
    ),
    TABLES: (lambda r, _: r.latest and r.tables, _studied),
    OWN: (lambda r, _: r.own_runs, lambda r, _: r.ask(own_suite.context, r.own_runs, r.checked)),
}
#: The same of every other page, which is one of figures.
_OF_STUDIES: tuple[Part, Part] = (lambda report, page: report.drawn.get(page.file), _studied)


def write_report(
    results: Path,
    out: Path,
    benchmarks: Sequence[Path] = (),
    *,
    tables: Sequence[Table] | None = None,
    rank_planted: bool = False,
    among: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda finding: None,
) -> Path:
    """Write every page that has content (`ReportPages.present`) to ``out``; pages of an earlier
    report that are not part of this one are removed. Returns the path of the first page.
    ``tell`` gets each answer of the overview's first screen, in a sentence.

    ``benchmarks``: benchmark folders, one per suite, whose quality pages and cards are copied
    beside the pages (``Suite.docs_folder``) and linked. ``tables``: the tables that `sdgbias
    reproduce` builds from the same results. ``among``: of these runs, without the page of a night.
    Pages refer
    only to each other and stay below 6 MB. Same results, same bytes. Raises StoreError when there
    is neither a finished run nor a night, or when ``out`` can't be written.
    """
    results, out, checked = Path(results), Path(out), {}
    for folder in benchmarks:
        suite = suites.of(folder)
        checked[suite.name] = _publish_docs(folder, out / suite.docs_folder)
    with store.held_open(results):
        night = "" if among is None else None
        report = ReportPages(results, among, checked, tables, rank_planted, night)
        shown = [page for page in layout.PAGES if report.has(page)]
        if not shown:
            raise StoreError(f"{results} holds no finished run; run `sdgbias evaluate NAME` first")
        texts = report.files(shown)
        for answer in report.shared["answers"] if OVERVIEW in shown else ():
            tell(answer.lead)
    last = shown[0].file  # the first page, whose links lead to the others
    for file in sorted(texts, key=lambda file: file == last):
        write_atomically(out / file, texts[file], OTHER_OUT)
    earlier = {*out.glob("model-*.html"), *(out / page.file for page in layout.PAGES if page.file)}
    for path in earlier - {out / file for file in texts}:
        path.unlink(missing_ok=True)
    return out / last


def write_night(results: Path, out: Path) -> Path:
    """Write only the page of the newest night, beside the existing pages in ``out``; returns its
    path."""
    files = [page.file for page in layout.PAGES if page.file and (out / page.file).is_file()]
    files += [path.name for path in out.glob("model-*.html")]
    path, night = out / NIGHT.file, nights.load(results)
    if night is None:
        path.unlink(missing_ok=True)
    else:
        front = Front([*files, NIGHT.file], inline=True)
        text = layout.render("night.html.j2", NIGHT, front, **_night(results, night))
        write_atomically(path, text, OTHER_OUT)
    return path


def _night(results: Path, night: nights.NightRecord | None) -> Context:
    assert night is not None
    query = partial(store.query, results)
    return night_page.context(night, query, partial(examples.pictures, query))


def _publish_docs(benchmark: Path, out: Path) -> str:
    """Copy the card and the quality page of a benchmark folder; returns the link to that page (''
    if it has none). Raises InputError if there is no benchmark."""
    if not (benchmark / "benchmark.json").is_file():
        raise InputError(
            f"{benchmark}: no benchmark here (benchmark.json is missing); name the folder that"
            " `sdgbias build` made"
        )
    if (out / "benchmark.json").is_file():
        raise StoreError(f"{out} is a benchmark, which the report must not write to; {OTHER_OUT}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            if (benchmark / name).is_file():
                shutil.copyfile(benchmark / name, out / name)
            else:
                (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"can't write {out}: {error.strerror}; {OTHER_OUT}") from None
    return f"{out.name}/{PUBLISHED[0]}" if (out / PUBLISHED[0]).is_file() else ""
