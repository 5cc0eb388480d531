"""A year of nights in one results file: how big it gets, and how fast it stays.

    python bench/year.py [--nights 60] [--models 6] [--every 7] [--items 200] [--metrics 3000]
    [--studies 3000] [--keep DIR]

The full size is --nights 365 --models 12; --every 1 is the worst case (every model changes every
night: 4,380 runs), --every 7 a usual one (on the other nights a model is unchanged and nothing is
published). A run is items x T1-T5 x four views of scores and five methods of predictions, with
--metrics metric rows and --studies study rows, all drawn from a formula, and goes through
`store.publish`.
Measured: publishing in the first and the last thirty nights, sizes, `sdgbias report`, the questions
that pages ask (each with a connection of its own, as a request has), and what retention and
compaction give back. Nothing here is a result about a model.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from analysis import big_items
from PIL import Image
from queries import timed
from summary import Row, record

from sdgbias import progress, store
from sdgbias.report.build import write_report
from sdgbias.store import maintenance

TESTS, VIEWS = ("T1", "T2", "T3", "T4", "T5"), ("q_only", "ctx_q", "img_q", "full")
METHODS = (*VIEWS, "cade")
START = datetime(2026, 1, 1)


def frames(items: pd.DataFrame, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    """scores and predictions of one run; `again` draws the next run's from them."""
    n = len(items)
    cells = pd.MultiIndex.from_product(
        [items["item_id"], TESTS, VIEWS], names=["item_id", "test", "view"]
    ).to_frame(index=False)
    scores = cells.assign(
        task="mcq",
        candidates="ABC",
        logits=list(rng.normal(0, 2, (len(cells), 3)).astype("float32")),
        top_token="A",
        n_tokens=120,
    )
    answers = pd.MultiIndex.from_product(
        [items["item_id"], TESTS, METHODS], names=["item_id", "test", "method"]
    ).to_frame(index=False)
    split = np.repeat(items["split"].to_numpy(), len(answers) // n)
    return {"scores": scores, "predictions": answers.assign(task="mcq", split=split, kept=True)}


def again(made: dict[str, pd.DataFrame], rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    scores, answers = made["scores"], made["predictions"]
    pred = rng.integers(0, 3, len(answers))
    drawn = {
        "pred": np.array(list("ABC"))[pred],
        "correct": pred == 0,
        "confidence": rng.random(len(answers)),
        "kl": rng.random(len(answers)),
    }
    return {
        "scores": scores.assign(mass=rng.random(len(scores))),
        "predictions": answers.assign(**drawn),
    }


def rows_of(metrics: int, studies: int) -> dict[str, pd.DataFrame]:
    """Metric and study rows of the shape that runs have: every test x method, as many indicators as
    it takes."""
    cells = pd.MultiIndex.from_product(
        [(*TESTS, "all"), METHODS], names=["test", "method"]
    ).to_frame(index=False)
    made = {}
    for table, many in (("metric_rows", metrics), ("study_rows", studies)):
        frame = pd.concat(
            [
                cells.assign(indicator="all" if k == 0 else f"indicator-{k}")
                for k in range(max(1, many // len(cells)))
            ]
        )
        made[table] = frame.assign(task="mcq", pillar="all", metric="accuracy", n=1000).reset_index(
            drop=True
        )
    made["study_rows"] = made["study_rows"].assign(
        study="groups", by="pillar", level="all", x=np.nan, note=""
    )
    params = {
        "alpha": 0.8,
        "lambda_kl": 0.5,
        "beta": 0.6,
        "tau": 0.85,
        "val_value": 0.5,
        "n_val": 100,
        "n_draws": 500,
    }
    made["cade_params"] = pd.DataFrame({"test": TESTS}).assign(task="mcq", **params)
    return made


def fill(
    path: Path,
    nights: int,
    models: int,
    every: int,
    items: pd.DataFrame,
    small: dict[str, pd.DataFrame],
) -> list[tuple[int, float]]:
    """(night, seconds) of every publish."""
    rng, took = np.random.default_rng(0), []
    base = frames(items, rng)
    picture = io.BytesIO()
    Image.new("RGB", (448, 448), (120, 140, 90)).save(picture, "PNG")
    once = {
        "items": items,
        "previews": pd.DataFrame(
            {"image_id": sorted(set(items["image_id"]))[:120], "png": picture.getvalue()}
        ),
    }
    last: dict[str, str] = {}
    for night in range(nights):
        at, seen = START + timedelta(days=night, hours=1), []
        for m in range(models):
            model = f"model-{m:02d}"
            changed = model not in last or (night + m) % every == 0
            if changed:
                last[model] = f"{model}-{night:04d}"
                record = store.RunRecord(
                    last[model],
                    model,
                    "year",
                    finished_at=at + timedelta(minutes=m),
                    fingerprint=last[model],
                    numerics="exact",
                    provenance="planted",
                )
                value = {
                    name: t.assign(value=rng.random(len(t)), ci_low=0.4, ci_high=0.6)
                    for name, t in small.items()
                    if "rows" in name
                }
                made = (
                    again(base, rng)
                    | value
                    | {"cade_params": small["cade_params"]}
                    | (once if night + m == 0 else {})
                )
                began = time.perf_counter()
                store.publish(path, record, made)
                took.append((night, time.perf_counter() - began))
            outcome = "published" if changed else "unchanged"
            seen.append(
                {
                    "night": f"{at:%Y-%m-%dT%H%M}",
                    "model": model,
                    "suite": "sdg",
                    "outcome": outcome,
                    "run_id": last[model],
                }
            )
        row = {
            "night": [f"{at:%Y-%m-%dT%H%M}"],
            "started_at": [at],
            "finished_at": [at + timedelta(hours=1)],
            "status": ["done"],
        }
        store.upsert(path, {"nights": pd.DataFrame(row), "night_models": pd.DataFrame(seen)})
        progress.update("nights", night + 1, nights)
    return took


def pages(path: Path, models: int) -> dict[str, Callable[[int], Any]]:
    """Name -> the questions of one page; the number picks the model or question."""
    runs = store.latest_runs(path)
    every = store.query(path, "SELECT run_id, model FROM runs ORDER BY finished_at")

    def leaderboard(k: int) -> Any:
        return store.query(
            path,
            """SELECT model, finished_at, value, ci_low, ci_high, n FROM metrics JOIN runs USING
               (run_id, model)
            WHERE test = 'all' AND method = 'full' AND metric = 'accuracy' AND indicator = 'all'
            AND pillar = 'all' ORDER BY ALL""",
        )

    def model(k: int) -> Any:
        return store.query(path, "FROM metrics WHERE run_id = ? ORDER BY ALL", [runs[k % models]])

    def questions(k: int) -> Any:
        run = [runs[k % models]]
        return store.query(
            path,
            """SELECT i.item_id, i.question, i.gold, p.pred, p.correct FROM predictions p JOIN
               items i USING (task, item_id)
            WHERE p.run_id = ? AND p.test = 'T1' AND p.method = 'full' AND NOT p.correct AND
            i.country = ? ORDER BY 1 LIMIT 50""",
            [*run, f"Country {k % 50}"],
            runs=run,
        )

    def compare(k: int) -> Any:
        mine = list(every.loc[every["model"] == every["model"][0], "run_id"])
        two = [mine[-1], mine[-1 - k % max(1, len(mine) - 1)]]
        return store.query(
            path,
            """SELECT a.test, a.method, count(*) AS n, sum((a.pred <> b.pred)::INT) AS moved FROM
               predictions a
            JOIN predictions b USING (task, item_id, test, method) WHERE a.run_id = ? AND b.run_id
            = ? GROUP BY ALL ORDER BY ALL""",
            two,
            runs=two,
        )

    def one_question(k: int) -> Any:
        return store.query(
            path,
            'SELECT run_id, test, "view", logits FROM scores WHERE item_id = ?',
            [k],
            runs=runs,
        )

    def any_sql(k: int) -> Any:  # a person's --sql, which names no runs beforehand
        return store.query(
            path,
            "SELECT count(*) FROM predictions WHERE run_id = ? AND correct",
            [runs[k % models]],
        )

    return {
        "leaderboard over time": leaderboard,
        "model": model,
        "question browser": questions,
        "compare two runs": compare,
        "one question, all models": one_question,
        "any SQL on one run": any_sql,
    }


def said_sizes(path: Path, runs: int) -> None:
    found = maintenance.info(path)
    sizes = {k: maintenance.size(found[k]) for k in ("duckdb_bytes", "details_bytes")}
    per_run = maintenance.size(int((found["duckdb_bytes"] + found["details_bytes"]) / runs))
    files = sum(t["files"] for t in found["tables"].values())
    print(
        f"  DuckDB {sizes['duckdb_bytes']}, Parquet {sizes['details_bytes']} in {files:,} files,"
        f" {per_run} a run, orphans {found['orphans']['files']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument(
        "--every", type=int, default=7, help="A model changes every so many nights; 1: every night."
    )
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=3000, help="Metric rows a run.")
    parser.add_argument("--studies", type=int, default=3000, help="Study rows a run.")
    parser.add_argument(
        "--repeats", type=int, default=20, help="Times that each page is asked for."
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="Folder to fill, or to use if it is filled (retention is applied to it).",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = (args.keep or Path(scratch)) / "year.duckdb"
        items = big_items(args.items, 0).assign(context="{}", indicator_title="x", unit="%")
        items["image_id"] = items["cluster_id"]
        rows, size = [], f"{args.nights} nights x {args.models} models, changing every {args.every}"
        if not path.exists():
            took = fill(
                path,
                args.nights,
                args.models,
                args.every,
                items,
                rows_of(args.metrics, args.studies),
            )
            first = [s for night, s in took if night < 30]
            late = [s for night, s in took if night >= args.nights - 30]
            print(
                f"publish: {np.median(first):.2f} s in the first 30 nights, {np.median(late):.2f} s"
                f" in the last 30 (median, {len(took)} runs)"
            )
            last, beside = f"{np.median(late):.2f} s", f"in the first 30: {np.median(first):.2f} s"
            what = f"publishing a run in the last 30 nights, {size}"
            rows.append(Row(what, f"{len(late)} runs", last, "none", beside))
        runs = len(store.run_ids(path))
        print(
            f"{args.nights} nights x {args.models} models, {runs:,} runs of {args.items} questions:"
        )
        said_sizes(path, runs)
        began = time.perf_counter()
        with timed() as asked:
            write_report(path, Path(scratch) / "report")
        seconds = time.perf_counter() - began
        print(f"report: {seconds:.1f} s, {len(asked)} statements; the slowest:")
        beside = f"its slowest statement: {max(asked)[0]:.2f} s"
        what = f"sdgbias report, {size}"
        rows.append(Row(what, f"{runs:,} runs, once", f"{seconds:.1f} s", "none", beside))
        slowest: dict[str, float] = {}
        for seconds, sql in sorted(asked, reverse=True)[:4]:
            print(f"  {1000 * seconds:6.0f} ms  {sql}")
        print(f"pages, {args.repeats} times each, each with its own connection:   p50      p95")
        for name, ask in pages(path, args.models).items():
            times = []
            for k in range(args.repeats):
                began = time.perf_counter()
                ask(k)
                times.append(1000 * (time.perf_counter() - began))
            slowest[name] = float(np.percentile(times, 95))
            print(
                f"  {name:40} {np.percentile(times, 50):9.0f} ms {np.percentile(times, 95):6.0f} ms"
            )
        now = START.replace(tzinfo=UTC) + timedelta(days=args.nights)
        began = time.perf_counter()
        planned = maintenance.apply(path, 90 if args.nights > 180 else args.nights // 4, 3, now)
        print(
            f"retention: details of {(planned['kept'] == '').sum()} of {runs} runs removed in"
            f" {time.perf_counter() - began:.1f} s"
        )
        began = time.perf_counter()
        maintenance.compact(path, now=now)
        print(f"compaction: {time.perf_counter() - began:.1f} s")
        said_sizes(path, runs)
        name = max(slowest, key=lambda name: slowest[name])
        n, figure = f"{args.repeats} times each", f"{name}: p95 {slowest[name]:.0f} ms"
        beside = f"least of them: {min(slowest.values()):.0f} ms"
        rows.append(Row(f"slowest SQL of a page, {size}", n, figure, "none", beside))
        if args.nights >= 365:
            record("year", rows)


if __name__ == "__main__":
    main()
