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
import json
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import pandas as pd

from bench import measure
from bench.summary import Row, record
from sdgbias import store
from sdgbias.analysis import paper
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.paper import results as stored
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.benchmark.build import Draw, build
from sdgbias.benchmark.people import build_people
from sdgbias.raw.synthetic import write_sample
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec
from sdgbias.report.build import write_report
from sdgbias.scoring import evaluate
from sdgbias.suites.suite import EvalSettings
from tests.builders import chromium

#: name, title, billions of parameters: names as long as real ones are.
MODELS = (
    ("aurora-vl-7b", "Aurora-VL 7B", 7.1),
    ("aurora-vl-34b", "Aurora-VL 34B", 34.4),
    ("basalt2.5-vl-3b-instruct", "Basalt2.5-VL 3B Instruct", 3.1),
    ("basalt2.5-vl-7b-instruct", "Basalt2.5-VL 7B Instruct", 7.6),
    ("cedar-ov-0.5b", "Cedar-OneVision 0.5B", 0.9),
    ("cedar-ov-7b", "Cedar-OneVision 7B", 8.0),
    ("delta3-vision", "Delta-3 Vision", 4.2),
    ("ember-vl2-8b", "EmberVL2 8B", 8.1),
    ("fjord-1.5-13b", "Fjord 1.5 13B", 13.4),
    ("granite-scout-2b", "Granite Scout 2B", 2.2),
    ("planted-optimist", "Planted optimist", None),
    ("planted-pessimist", "Planted pessimist", None),
)
FIRST = datetime(2026, 10, 1, 1, 0)
SUITES = ("sdg", "people")
#: The model whose sentences about people can't be understood.
RAMBLES = 4


def places_options(model: int, version: int, oracle: Path) -> dict[str, object]:
    """Habits of the n-th model on questions about places; a version changes seed and strength."""
    lean = (-1.2, -0.3, 0.0, 0.4, 0.9, 1.6)[model % 6]
    return {
        "oracle": str(oracle),
        "prior": {"all": [-lean / 2, 0.2 * (model % 3), lean / 2]},
        "context_weight": 0.3 + 0.12 * (model % 5) + 0.05 * version,
        "context_noise": 0.6,
        "image_weight": 0.2 + 0.14 * (model // 2) + 0.03 * version,
        "image_noise": 0.5,
        "noise": 0.3,
        "seed": 100 * model + version,
    }


def people_options(model: int, version: int, oracle: Path) -> dict[str, object]:
    return {
        "oracle": str(oracle),
        "recall": 0.45 + 0.04 * model + 0.01 * version,
        "effects": {
            "female": -0.04 * (model % 4),
            "dark": -0.05 * (model % 3),
            "old": 0.03 * (model % 5) - 0.06,
        },
        "false_yes": 0.05 * (model % 4),
        "refusals": 0.02 * (model % 3),
        "ramblings": 1.0 if model == RAMBLES else 0.01,
        "yes_bias": 0.5 * (model % 3),
        "seed": 100 * model + version,
    }


def benchmarks(folder: Path, questions: int, people: int) -> dict[str, Path]:
    """Both suites' benchmark folders, from synthetic raw data."""
    raw = folder / "raw"
    write_sample(raw, max(30, questions // 2), 5)
    build(
        raw, raw / "indicators", folder / "places", Draw(mcq=questions, regression=questions // 3)
    )
    write_people_sample(folder / "people-raw", people, 3)
    build_people(folder / "people-raw", folder / "people")
    return {"sdg": folder / "places", "people": folder / "people"}


def spec_of(model: int, suite: str, version: int, oracle: Path) -> ModelSpec:
    name, title, size = MODELS[model]
    options = places_options if suite == "sdg" else people_options
    backend = "planted" if suite == "sdg" else "planted-people"
    return ModelSpec(
        name=name,
        title=title,
        backend=backend,
        repo="planted" if suite == "sdg" else "planted:people",
        revision=str(version),
        state="enabled",
        params_b=size,
        batch_size=256,
        options=options(model, version, oracle),
    )


def _date(results: Path, run_id: str, at: datetime, planted: bool) -> None:
    """A run's times and kind, as those of the night that it stands for."""
    kind = "planted" if planted else "measured"
    with store.connect(results) as con:
        con.execute(
            "UPDATE runs SET started_at = ?, finished_at = ?, provenance = ? WHERE run_id = ?",
            [at, at + timedelta(minutes=18), kind, run_id],
        )


def fill(folder: Path, size: argparse.Namespace) -> None:
    """folder/sdgbias.duckdb with that many models and nights. Same arguments, same answers."""
    folders = benchmarks(folder, size.questions, size.people)
    ids = {
        s: json.loads((path / "benchmark.json").read_text())["benchmark_id"]
        for s, path in folders.items()
    }
    results, last = folder / "sdgbias.duckdb", {}
    for night in range(size.nights):
        start = FIRST + timedelta(days=night)
        name, rows = f"{start:%Y-%m-%dT%H%M}", []
        for m in range(size.models):
            fresh = night == 0 or (night + 3 * m) % size.every == 0
            for suite in SUITES:
                if fresh:
                    version = night // size.every + (night % size.every > 0)
                    spec = spec_of(m, suite, version, folders[suite])
                    done = evaluate.evaluate(
                        spec, folder, folders[suite], results, EvalSettings(draws=200)
                    )
                    last[m, suite] = done.run_id
                    _date(results, done.run_id, start + timedelta(minutes=m), m >= len(MODELS) - 2)
                rows.append(
                    {
                        "night": name,
                        "model": MODELS[m][0],
                        "suite": suite,
                        "outcome": "published" if fresh else "unchanged",
                        "run_id": last[m, suite],
                        "seconds": 1080.0 if fresh else 0.4,
                    }
                )
        row = {
            "night": name,
            "scheduled_for": start,
            "started_at": start,
            "finished_at": start + timedelta(hours=5),
            "status": "done",
            "by": "timer",
            "benchmarks": ids,
        }
        store.upsert(results, {"nights": pd.DataFrame([row]), "night_outcomes": pd.DataFrame(rows)})


def heights(folder: Path) -> dict[str, tuple[float, int]]:
    """Page -> screens of 800 px at 1280 px, and bytes."""
    sizes = {}
    with tempfile.TemporaryDirectory() as profile:
        driver = chromium.start(Path(profile))
        try:
            chromium.emulate(driver, (1280, 800, False, "light"))
            for page in sorted(folder.glob("*.html")):
                driver.get(page.as_uri())
                time.sleep(1.0)  # charts are drawn
                tall = driver.execute_script("return document.documentElement.scrollHeight")
                sizes[page.name] = (tall / 800, page.stat().st_size)
        finally:
            driver.quit()
    return sizes


def main() -> None:
    parser = measure.parser(__doc__)
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
            fill(folder, args)
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
                record("twelve_by_thirty", [Row(what, n, figure, "6 screens", beside)])


if __name__ == "__main__":
    main()
