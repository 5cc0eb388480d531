"""What a whole evaluation at the paper's size costs, stage by stage: 100,000 MCQs x T1-T5 and
50,000 regression questions of a planted model, from the benchmark folder to the published run.

    python bench/full_size.py [--part 10] [--folder DIR] [--ray]

--part 10: a tenth of the clusters and questions. --ray: the same again on two engines of a Ray
cluster of two nodes, with an empty cache; its rows must be those of the local run.
The benchmark is that of `bench/finished.py`: every place has a picture of its own. `evaluate` runs
in a process of its own; each stage shows its wall and CPU seconds, and the largest resident set of
the process during it. Beside them, in the same run: the seconds that scoring spent inside the
engine, DuckDB alone writing the run's Parquet files again, and pandas' mean accuracy by test,
method, pillar and indicator, without intervals. A folder that is kept is not built again, and its
scores are used again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure
from build import ALL, PAPER

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

MEMORY, SECONDS = 3.0, 60.0  # aims: GiB, and seconds after scoring
SCORING = ("cells", "plan", "score", "rest")


def evaluate(folder: Path, address: str = "") -> dict[str, Any]:
    """Cost by stage, in this process; on the Ray cluster at ``address``, below folder/ray."""
    from sdgbias.registry import entries
    from sdgbias.scoring import evaluate, scorer
    from sdgbias.suites import sdg, sdg_tables
    from sdgbias.suites.suite import EvalSettings

    spec, inside = entries.load(folder, "planted"), [0.0]
    stages = measure.Stages()
    for owner, name, stage in (
        (sdg_tables.SUITE, "cells", "cells"),
        (evaluate, "make_plan", "plan"),
        (scorer.Scorer, "run", "score"),
        (evaluate, "score_model", "read scores"),
        (sdg, "run_test", "CADE"),
        (sdg, "predictions", "predictions"),
        (sdg, "metric_rows", "metrics"),
        (sdg_tables, "check_predictions", "check"),
        (sdg_tables.SUITE, "tables", "other tables"),
        (evaluate.Scoring, "tables", "other tables"),
        (evaluate.store, "publish", "publish"),
    ):
        stages.watch(owner, name, stage)
    plain = evaluate._work

    def work(engine: Any, scoring: Any) -> dict[str, float]:
        inside[0] = scoring.scorer.seconds
        return plain(engine, scoring)

    evaluate._work = work
    results = (folder / "ray" if address else folder) / "r.duckdb"
    pool = evaluate.Pool(2 if address else None, address)
    done = evaluate.evaluate(spec, folder, folder / "benchmark", results, EvalSettings(), pool=pool)
    total = stages.total()
    return {
        "stages": {name: vars(cost) for name, cost in {**stages.took, "all": total}.items()},
        "prompts": done.planned,
        "scored": done.scored,
        "engine": inside[0],
    }


def through_ray(folder: Path) -> dict[str, Any]:
    """`evaluate` on two Ray nodes."""
    from tests.builders.ray_nodes import ADDRESS, TwoNodes

    shutil.rmtree(folder / "ray", ignore_errors=True)
    known = {"SDGBIAS_REGISTRY": str(folder), "PYTHONPATH": str(REPOSITORY)}
    nodes = TwoNodes(folder, {**os.environ, **known})
    try:
        script = str(Path(__file__).resolve())
        process = nodes.run(sys.executable, script, "--one", "evaluate", str(folder), ADDRESS)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return dict(json.loads(out.splitlines()[-1]))
    finally:
        nodes.close()


def require_same_rows(folder: Path) -> None:
    """The run of Ray has the files of the local one to the byte, and its metrics."""
    from sdgbias import store

    for sql in (
        'SELECT "table", "rows", sha256 FROM details ORDER BY ALL',
        "SELECT * EXCLUDE (run_id) FROM metric_rows ORDER BY ALL",
    ):
        one, other = (store.query(folder / at / "r.duckdb", sql) for at in (".", "ray"))
        assert len(one) and one.equals(other), f"other rows: {sql}"


def floors(folder: Path) -> dict[str, float]:
    """CPU seconds of the alternatives, on the files of the run."""
    import duckdb

    from sdgbias import store

    stages, results = measure.Stages(), folder / "r.duckdb"
    files = sorted(folder.glob("r.runs/**/*.parquet"))
    with stages("write"), tempfile.TemporaryDirectory(dir=folder) as to, duckdb.connect() as con:
        for number, path in enumerate(files):
            con.execute(
                f"COPY (FROM read_parquet('{path}')) TO '{to}/{number}.parquet' (COMPRESSION zstd)"
            )
    sql = """SELECT test, method, pillar, indicator, correct FROM predictions
             JOIN items USING (task, item_id) WHERE predictions.split = 'test'"""
    answers = store.query(results, sql)
    with stages("pandas"):
        for by in ([], ["pillar"], ["pillar", "indicator"]):
            answers.groupby(["test", "method", *by])["correct"].mean()
            answers.groupby(["method", *by])["correct"].mean()
    return {name: cost.cpu for name, cost in stages.took.items()}


def _prompts(took: dict[str, Any]) -> str:
    return f"{took['prompts']:,} distinct prompts, {took['scored']:,} scored now, once"


def _all(took: dict[str, Any]) -> str:
    whole = took["stages"]["all"]
    return f"{whole['wall']:.0f} s, {whole['cpu']:.0f} CPU s, {whole['peak']:.2f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=int, default=1, help="divide the paper's numbers by this")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ray", action="store_true", help="again through Ray on two nodes")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        what, folder, *more = args.one
        print(json.dumps({"evaluate": evaluate, "floors": floors}[what](Path(folder), *more)))
        return
    import finished
    import summary

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        clusters, mcq, regression = (n // args.part for n in PAPER.values())
        if not (folder / "benchmark" / "benchmark.json").exists():
            finished.register(folder)
            finished.build(folder, clusters, mcq, regression, ALL.split())
        for path in folder.glob("r.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        load = os.getloadavg()[0]
        took = measure.in_a_process(__file__, "--one", "evaluate", folder)
        least = measure.in_a_process(__file__, "--one", "floors", folder)
        load, rows = (load + os.getloadavg()[0]) / 2, []
        if args.ray:
            before = os.getloadavg()[0]
            spread = through_ray(folder)
            require_same_rows(folder)
            rows.append(
                summary.Row(
                    "evaluate, planted model, 2 engines on a Ray cluster of 2 nodes",
                    _prompts(spread),
                    f"{_all(spread)} of the driver; files and metrics as without Ray",
                    "none",
                    f"in one process: {_all(took)}, {_prompts(took)}",
                    (before + os.getloadavg()[0]) / 2,
                )
            )
    print(f"{took['prompts']:,} distinct prompts, {took['scored']:,} scored now; load {load:.1f}\n")
    print("| stage | s | CPU s | peak GiB |\n|---|---|---|---|")
    for name, cost in took["stages"].items():
        print(f"| {name} | {cost['wall']:.1f} | {cost['cpu']:.1f} | {cost['peak']:.2f} |")
    after = [cost for name, cost in took["stages"].items() if name not in (*SCORING, "all")]
    wall, cpu = (sum(cost[unit] for cost in after) for unit in ("wall", "cpu"))
    score = took["stages"]["score"]
    engine = f"inside the engine: {took['engine']:.0f} of {score['wall']:.0f} s of scoring"
    alone = (
        f"DuckDB writing the run's files: {least['write']:.1f} CPU s; pandas' mean accuracy by"
        f" group: {least['pandas']:.1f} CPU s"
    )
    print(f"\n{engine}; after it {wall:.1f} s, {cpu:.1f} CPU s (aim {SECONDS:.0f}); {alone}")
    if args.part == 1:
        n, figure = _prompts(took), f"{cpu:.1f} CPU s, {wall:.0f} s"
        every = _all(took)
        rows += [
            summary.Row("evaluate, planted model", n, every, f"{MEMORY:g} GiB", engine, load),
            summary.Row("its end: CADE to store", n, figure, f"{SECONDS:g} s", alone, load),
        ]
    if rows:
        summary.record("full_size", rows)


if __name__ == "__main__":
    main()
