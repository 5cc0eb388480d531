"""Builds the HTML report: the overview and the pages beside it. The content of each page is defined
in its own module."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sdgbias import store, suites
from sdgbias.errors import InputError, StoreError
from sdgbias.report import data
from sdgbias.report import data as studies
from sdgbias.report import leaderboard as boards
from sdgbias.report.charts import Figure
from sdgbias.report.pages import (
    disparities,
    examples,
    overview,
    own_suite,
)
from sdgbias.report.pages import (
    night as night_page,
)
from sdgbias.report.pages import (
    studies as pages,
)
from sdgbias.store.snapshots import Snapshot
from sdgbias.types import FACET, SDG

if TYPE_CHECKING:
    from sdgbias.analysis.paper.cells import Table

#: Pages of a benchmark folder that are published beside the report: the card and the Data Docs.
PUBLISHED = ("data_docs", "README.md")


def write_report(
    results: Path,
    out: Path,
    benchmarks: Sequence[Path] = (),
    *,
    tables: Sequence[Table] | None = None,
    print_figures: bool = False,
    rank_planted: bool = False,
    then: Snapshot | None = None,
) -> Path:
    """Write ``out/index.html`` for the newest finished run of each model in ``results``, and every
    page beside it that has content (`studies.PAGES`, fairness.html, night.html). Pages of an
    earlier report that are not part of this one are removed. Returns the path of the index.

    ``benchmarks``: benchmark folders, one per suite, whose Data Docs and cards are copied beside
    the pages (``Suite.docs_folder``) and linked. ``tables``: the tables that `sdgbias reproduce`
    builds from the same results. ``print_figures``: also write ``out/figures``. ``rank_planted``:
    planted models share the leaderboard's letters with measured ones. ``then``: the state at a
    given moment (`snapshots.snapshot_at`), or only given runs (`snapshots.only`). Pages refer only
    to each other and stay below 6 MB. Same results, same bytes. Raises StoreError when there is
    neither a finished run nor a night, or when ``out`` can't be written.
    """
    results, out = Path(results), Path(out)
    among = None if then is None else then.runs
    faces, asked = disparities.load(results, among), own_suite.load(results, among)
    night = (
        night_page.load(results, then.night if then else "") if then is None or then.night else None
    )
    latest = store.latest_runs(results, among=among)
    last = [
        page
        for page, there in (
            (disparities.PAGE, faces),
            (own_suite.PAGE, asked),
            (night_page.PAGE, night),
        )
        if there is not None
    ]
    checked = {}
    for folder in benchmarks:
        suite = suites.of(folder)
        checked[suite.name] = _publish_docs(folder, out / suite.docs_folder)
    nav: list[pages.Page] = []
    parts: list[tuple[pd.DataFrame, str, list[Figure]]] = []
    texts: dict[str, str | None] = dict.fromkeys(page.file for page in pages.PAGES)
    if latest or not last:
        found = data.load(results, latest)
        runs = list(found.runs["run_id"])
        s = studies.load_studies(results, runs)
        board = boards.compare(results, s.runs, rank_planted=rank_planted)
        drawn = pages.figures(s, board)
        nav = pages.present(drawn, tables)
        shown = examples.examples(results, runs)
        texts |= {
            p.file: pages.render(p, s, board, drawn.get(p.file, []), [*nav, *last], tables)
            for p in nav
        }
        texts[overview.FILE] = overview.render(
            found,
            shown,
            checked.get(SDG, ""),
            [*nav, *last],
            pages.leaderboard(board, pooled=True),
            s.unanalysed,
        )
        parts.append(
            (s.runs, pages.OF_PLACES, [figure for made in drawn.values() for figure in made])
        )
    elif others := [found.runs for found in (faces, asked) if found is not None]:
        on = (("on pictures of people", faces), ("on own questions", asked))
        texts[overview.FILE] = overview.render_without_places(
            pd.concat(others, ignore_index=True),
            last,
            " and ".join(what for what, there in on if there is not None),
        )
    named = [(p.file, p.title) for p in (*nav, *last)]
    beside = [(overview.FILE, overview.TITLE), *named] if overview.FILE in texts else named
    texts[disparities.PAGE.file] = (
        disparities.render(faces, beside, checked.get(FACET, "")) if faces is not None else None
    )
    texts[own_suite.PAGE.file] = (
        own_suite.render(asked, beside, checked) if asked is not None else None
    )
    texts[night_page.PAGE.file] = (
        night_page.render(night, results, beside) if night is not None else None
    )
    for file, text in texts.items():
        pages.write(out / file, text)
    if print_figures and faces is not None:
        parts.append((faces.runs, pages.OF_PEOPLE, disparities.figures(faces)))
    if print_figures and parts:
        pages.export(out / "figures", parts)
    return out / (overview.FILE if overview.FILE in texts else night_page.PAGE.file)


def write_night(results: Path, out: Path) -> Path:
    """Write only the page of the newest night, beside the existing pages in ``out``; returns its
    path."""
    beside = [
        (p.file, p.title) for p in (*pages.PAGES, disparities.PAGE) if (out / p.file).is_file()
    ]
    nav = [(overview.FILE, overview.TITLE), *beside, (night_page.PAGE.file, night_page.PAGE.title)]
    night = night_page.load(results)
    return pages.write(
        out / night_page.PAGE.file,
        night_page.render(night, results, nav) if night is not None else None,
    )


def _publish_docs(benchmark: Path, out: Path) -> str:
    """Copy the card and Data Docs of a benchmark folder; returns the link to its Data Docs ('' if
    it has none). Raises InputError if there is no benchmark."""
    if not (benchmark / "benchmark.json").is_file():
        raise InputError(
            f"{benchmark}: no benchmark here (benchmark.json is missing); name the folder that"
            " `sdgbias build` made"
        )
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            source = benchmark / name
            if source.is_dir():
                shutil.copytree(source, out / name)
            elif source.is_file():
                shutil.copyfile(source, out / name)
    except OSError as error:
        raise StoreError(f"can't write {out}: {error.strerror}; choose another --out") from None
    return (
        f"{out.name}/data_docs/index.html" if (out / "data_docs" / "index.html").is_file() else ""
    )
