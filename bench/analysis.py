"""How long the laboratory takes for one model at the paper's size: 100,000 questions x T1-T5 and
50,000 regression questions x T2, T5.

    python bench/analysis.py [--mcq 100000] [--regression 50000] [--draws 10000] [--bootstrap 2000]
    [--keep FILE]

The scores are drawn from a formula and published as a run of a planted model; then every study is
run from the results file, each timed by itself, and "all" is what `sdgbias analyse` does: read,
study, publish. The results file is made once and not timed. Peak is the largest resident set of the
process while it analyses.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import summary

from sdgbias import store
from sdgbias.raw.indicators import load_indicators
from sdgbias.types import TESTS, TOLERANCES, Task, View

PLACES, COUNTRIES = 20_000, 56


def big_items(mcq: int, regression: int, seed: int = 0) -> pd.DataFrame:
    """Items as the results file keeps them, places and countries drawn, gold letters and numbers at
    random."""
    rng = np.random.default_rng(seed)
    country = rng.integers(0, COUNTRIES, PLACES)
    blocks = []
    indicators = list(load_indicators())
    for task, size in ((Task.MCQ, mcq), (Task.REGRESSION, regression)):
        place = rng.integers(0, PLACES, size)
        frame = pd.DataFrame(
            {
                "task": task.value,
                "item_id": np.arange(size),
                "cluster_id": [f"P{p:06d}" for p in place],
                "country": [f"Country {c}" for c in country[place]],
                "urban": np.where(place % 3 == 0, "U", "R"),
                "wealth": np.array(["poorest", "middle", "richest"])[place % 3],
                "split": np.where(rng.random(size) < 0.2, "val", "test"),
                "question": "What is it here?",
                "options": "{}",
            }
        )
        if task is Task.MCQ:
            which = rng.integers(0, len(indicators), size)
            frame["indicator"], frame["pillar"] = (
                np.array([i.slug for i in indicators])[which],
                np.array([i.pillar for i in indicators])[which],
            )
            frame["polarity"] = np.array([i.polarity for i in indicators])[which]
            frame["gold"] = np.array(list("ABC"))[rng.integers(0, 3, size)]
            frame["options"], frame["gold_value"] = json.dumps(["low", "middle", "high"]), 1.0
            frame["target"], frame["tolerance"] = "", np.nan
        else:
            targets = np.array(sorted(TOLERANCES))
            frame["target"] = targets[rng.integers(0, len(targets), size)]
            frame["indicator"], frame["pillar"], frame["polarity"] = (
                frame["target"],
                indicators[0].pillar,
                "",
            )
            frame["tolerance"] = frame["target"].map(TOLERANCES)
            frame["gold_value"] = rng.normal(20, 8, size).round(1)
            frame["gold"] = frame["gold_value"].astype(str)
        blocks.append(frame)
    return pd.concat(blocks, ignore_index=True)


def big_tables(items: pd.DataFrame, seed: int = 0) -> dict[str, pd.DataFrame]:
    """scores, decoded numbers and CADE parameters of a planted model on those items."""
    rng = np.random.default_rng(seed + 1)
    scores, decoded, params = [], [], []
    for task in Task:
        mine = items[items["task"] == task.value]
        n, letters = len(mine), "ABC" if task is Task.MCQ else "0123456789"
        evidence = np.zeros((n, len(letters)))
        if task is Task.MCQ:
            evidence[np.arange(n), mine["gold"].map("ABC".index)] = 1.0
        prior = np.linspace(0, 1.0, len(letters))
        for test in TESTS[task]:
            params.append((task.value, test.value, 0.8, 0.5, 0.6, 0.85))
            for view in View:
                z = (
                    prior
                    + rng.normal(0, 0.7, evidence.shape)
                    + evidence * (0.6 * view.has_context + 0.6 * view.has_image)
                )
                scores.append(
                    pd.DataFrame(
                        {
                            "task": task.value,
                            "item_id": mine["item_id"].to_numpy(),
                            "test": test.value,
                            "view": view.value,
                            "logits": list(z.astype(np.float32)),
                            "candidates": letters,
                            "mass": 0.97,
                            "minus_logit": np.nan,
                            "top_token": "A",
                            "n_tokens": 120,
                        }
                    )
                )
                if task is Task.REGRESSION:
                    digits = (
                        [np.arange(10.0) * 10 for _ in range(n)]
                        if view is View.FULL
                        else [None] * n
                    )
                    decoded.append(
                        pd.DataFrame(
                            {
                                "item_id": mine["item_id"].to_numpy(),
                                "test": test.value,
                                "view": view.value,
                                "free": rng.integers(0, 10, n) * 10.0,
                                "parsed": True,
                                "by_digit": digits,
                            }
                        )
                    )
    columns = ["task", "test", "alpha", "lambda_kl", "beta", "tau"]
    return {
        "scores": pd.concat(scores, ignore_index=True),
        "decoded": pd.concat(decoded, ignore_index=True),
        "cade_params": pd.DataFrame(params, columns=columns),
    }


def make_store(path: Path, mcq: int, regression: int) -> None:
    items = big_items(mcq, regression)
    record = store.RunRecord(
        "full-size",
        "planted-full-size",
        "full-size",
        finished_at="2026-01-01T00:00:00",
        provenance="planted",
    )
    store.publish(path, record, big_tables(items) | {"items": items})


def measure(path: Path, draws: int, bootstrap: int) -> None:
    """Prints the table; runs in a process of its own, so that the peak is that of the analysis."""
    from sdgbias.analysis import analyse
    from sdgbias.analysis.rows import AnalysisSettings
    from sdgbias.analysis.run import load

    settings = AnalysisSettings(draws, 0, bootstrap)
    began = time.perf_counter()
    run = load(path, "full-size")
    read = time.perf_counter() - began
    print(f"{'read':16} {read:8.1f} s")
    for name, study in analyse.STUDIES.items():
        began = time.perf_counter()
        rows = study.rows(run, settings)
        print(f"{name:16} {time.perf_counter() - began:8.1f} s {len(rows):8,} rows", flush=True)
    del run
    began = time.perf_counter()
    analyse.analyse(path, ["full-size"], settings, again=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = time.perf_counter() - began
    print(f"{'all':16} {took:8.1f} s, peak {peak:.2f} GiB (aim: 60 s)")
    n = f"{draws:,} draws, bootstrap of {bootstrap:,}, once"
    figure = f"{took:.1f} s, {peak:.2f} GiB"
    beside = f"reading the scores: {read:.1f} s"
    row = summary.Row("every study of a full-size model", n, figure, "60 s", beside)
    if draws >= 10_000:
        summary.record("analysis", [row])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mcq", type=int, default=100_000)
    parser.add_argument("--regression", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--bootstrap", type=int, default=2_000)
    parser.add_argument(
        "--keep", type=Path, help="Results file to make here, or to use if it is there."
    )
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.draws, args.bootstrap)
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = args.keep or Path(scratch) / "full.duckdb"
        if not path.exists():
            make_store(path, args.mcq, args.regression)
        print(
            f"{args.mcq:,} questions x T1-T5, {args.regression:,} regression questions x T2, T5;"
            f" {path.stat().st_size / 1e6:.0f} MB"
        )
        command = [
            sys.executable,
            __file__,
            "--measure",
            str(path),
            "--draws",
            str(args.draws),
            "--bootstrap",
            str(args.bootstrap),
        ]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
