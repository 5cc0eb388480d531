"""How long the report's queries take on a results file of many models and nights.

    python bench/queries.py [--models 10] [--nights 5] [--items 100000] [--keep FILE]

A night of one model is items x T1-T5 x four views of scores and five methods of predictions; 10
models x 5 nights x 2,000,000 are 10 million scores a model. The file is filled by SQL from a
formula and not timed. Then the report is read as `sdgbias report` reads it (newest run of each
model), and every statement that it sends is timed: the slowest are printed, aim 2 s each.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import summary
from analysis import big_items
from PIL import Image

from sdgbias import store
from sdgbias.report import data
from sdgbias.report.pages import examples
from sdgbias.store import database, parquet

TESTS = "['T1', 'T2', 'T3', 'T4', 'T5']"


def fill(path: Path, models: int, nights: int, size: int) -> None:
    items = big_items(size, 0).assign(context="{}")
    items["image_id"] = items["cluster_id"]
    picture = io.BytesIO()
    Image.new("RGB", (448, 448), (120, 140, 90)).save(picture, "PNG")
    shown = pd.DataFrame(
        {"image_id": sorted(set(items["image_id"]))[:120], "png": picture.getvalue()}
    )
    for m in range(models):
        for night in range(nights):
            run = f"model-{m:02d}-night-{night}"
            record = store.RunRecord(
                run,
                f"model-{m:02d}",
                "full-size",
                finished_at=f"2026-01-0{night + 1}T00:00:00",
                provenance="planted",
            )
            store.publish(
                path, record, {"items": items, "previews": shown} if not (m or night) else {}
            )
            with store.connect(path) as con:
                cells = f"range({size}) r(item_id), unnest({TESTS}) t(test)"
                scores = con.sql(
                    f"""FROM detail.scores UNION ALL BY NAME SELECT '{run}' AS run_id, 'mcq' AS
                        task, item_id, test, "view", 'ABC' AS candidates,
                    [hash(item_id, test, "view") % 100 / 50, hash(item_id, "view") % 100 / 50, {m}
                    / 10]::FLOAT[] AS logits, 0.97 AS mass,
                    'A' AS top_token, 120 AS n_tokens FROM {cells}, unnest(['q_only', 'ctx_q',
                    'img_q', 'full']) v("view")"""
                ).to_arrow_table()
                answers = con.sql(
                    f"""FROM detail.predictions UNION ALL BY NAME SELECT '{run}' AS run_id, 'mcq'
                        AS task, item_id, test, method,
                    CASE WHEN hash(item_id, 7) % 5 = 0 THEN 'val' ELSE 'test' END AS split,
                    ['A', 'B', 'C'][(1 + hash(item_id, test, method, {m}) % 3)::BIGINT] AS pred,
                    hash(item_id, test, method, {m}, {night}) % 2 = 0 AS correct, 0.5 AS
                    confidence, 0.1 AS kl, true AS kept
                    FROM {cells}, unnest(['q_only', 'ctx_q', 'img_q', 'full', 'cade']) v(method)"""
                ).to_arrow_table()
                made = [
                    parquet.write(path, run, "scores", scores),
                    parquet.write(path, run, "predictions", answers),
                ]
                con.register("made", database.catalogue(made))
                con.execute("INSERT INTO details BY NAME SELECT * FROM made")
                con.execute(
                    f"""INSERT INTO metric_rows BY NAME SELECT '{run}' AS run_id, 'model-{m:02d}'
                        AS model, 'sdg' AS suite, 'mcq' AS task,
                    test, method, 'all' AS pillar, 'all' AS indicator, 'accuracy' AS metric, 0.5 AS
                    "value", {size} AS n, 0.4 AS ci_low,
                    0.6 AS ci_high FROM unnest({TESTS} || ['all']) t(test), unnest(['q_only',
                    'ctx_q', 'img_q', 'full', 'cade']) v(method)"""
                )
                con.execute(
                    f"""INSERT INTO cade_params BY NAME SELECT '{run}' AS run_id, 'mcq' AS task,
                        test, 0.8 AS alpha, 0.5 AS lambda_kl,
                    0.6 AS beta, 0.85 AS tau FROM unnest({TESTS}) t(test)"""
                )


@contextmanager
def timed() -> Iterator[list[tuple[float, str]]]:
    """Collects (seconds, statement) of every `store.query` inside the block."""
    took: list[tuple[float, str]] = []
    plain = store.query

    def ask(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*given, **named)
        finally:
            took.append((time.perf_counter() - began, " ".join(str(given[1]).split())[:90]))

    store.query = ask  # type: ignore[assignment]
    try:
        yield took
    finally:
        store.query = plain


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--nights", type=int, default=5)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument(
        "--keep", type=Path, help="Results file to make here, or to use if it is there."
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = args.keep or Path(scratch) / "nights.duckdb"
        if not path.exists():
            fill(path, args.models, args.nights, args.items)
        began = time.perf_counter()
        with timed() as took:
            found = data.load(path)
            examples.context(path, list(found.runs["run_id"]))
        total = time.perf_counter() - began
        scores = store.query(path, "SELECT count(*) AS n FROM scores")["n"][0]
        size = sum(p.stat().st_size for p in (path, *path.with_suffix(".runs").rglob("*.parquet")))
        print(
            f"{scores:,} scores of {args.models} models, {size / 1e9:.2f} GB; {len(took)}"
            f" statements, {total:.1f} s in all"
        )
        for seconds, sql in sorted(took, reverse=True)[:8]:
            print(f"{seconds:7.2f} s  {sql}")
        worst, n = max(took)[0], f"{scores:,} scores, {len(took)} statements, once"
        beside = f"all statements: {total:.1f} s"
        row = summary.Row("slowest statement of the report", n, f"{worst:.2f} s", "2 s", beside)
        if scores >= 10**8:
            summary.record("queries", [row])


if __name__ == "__main__":
    main()
