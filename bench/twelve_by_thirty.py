"""Twelve models over thirty nights on both suites in one results file, for looking at every page at
the size that a team has, and the height of each page of the report in screens.

    python -m bench.twelve_by_thirty [--models 12] [--nights 30] [--every 15] [--questions 120]
    [--people 400] [--out DIR] [--measure]

Planted models are scored through `evaluate`, with another seed each time a model "changes" (every
--every nights, model by model); on the other nights it is unchanged and nothing is published. Two
models of twelve stay planted; the others are recorded as measured, so that pages show both kinds.
One measured model answers the people suite with sentences that can't be understood.
--measure: writes the report and prints each page's height at 1280 px in screens of 800 px, and its
size (needs chromium and chromedriver). Nothing here is a result about a model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.many_nights import Size, fill
from bench.summary import Row, record
from sdgbias.analysis import paper
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.paper import results as stored
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.report.build import write_report
from tests.builders import chromium


def heights(folder: Path) -> dict[str, tuple[float, int]]:
    """Page -> screens of 800 px at 1280 px, and bytes."""
    found = {}
    with tempfile.TemporaryDirectory() as profile:
        driver = chromium.start(Path(profile))
        try:
            chromium.emulate(driver, (1280, 800, False, "light"))
            for page in sorted(folder.glob("*.html")):
                driver.get(page.as_uri())
                time.sleep(0.2)
                tall = driver.execute_script("return document.documentElement.scrollHeight")
                found[page.name] = (tall / 800, page.stat().st_size)
        finally:
            driver.quit()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--every", type=int, default=15, help="A model changes so often.")
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--people", type=int, default=400)
    parser.add_argument("--out", type=Path, help="Folder to fill, or to use if it is filled.")
    parser.add_argument("--measure", action="store_true", help="Heights of the report's pages.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        results = folder / "sdgbias.duckdb"
        if not results.exists():
            began = time.perf_counter()
            size = Size(args.models, args.nights, args.every, args.questions, args.people)
            fill(folder, size)
            print(f"store: {time.perf_counter() - began:.0f} s")
            began = time.perf_counter()
            analyse(results, None, AnalysisSettings(draws=200, bootstrap=100))
            print(f"analyses: {time.perf_counter() - began:.0f} s")
        if args.measure:
            began = time.perf_counter()
            write_report(results, folder / "report", tables=paper.build(stored.load(results)))
            took = time.perf_counter() - began
            print(f"report: {took:.1f} s")
            tall = heights(folder / "report")
            for page, (screens, bytes_) in tall.items():
                print(f"  {page:40} {screens:5.1f} screens {bytes_ / 1e6:6.2f} MB")
            page = max(tall, key=lambda page: tall[page])
            figure = f"{page}: {tall[page][0]:.1f} screens of 800 px"
            what = f"longest page of the report, {args.models} models x {args.nights} nights"
            beside = f"median page: {median(screens for screens, _ in tall.values()):.1f}"
            n = f"{len(tall)} pages of both suites, written in {took:.0f} s"
            if args.models >= 12 and args.nights >= 30:
                record("twelve_by_thirty", [Row(what, n, figure, "8 screens", beside)])


if __name__ == "__main__":
    main()
