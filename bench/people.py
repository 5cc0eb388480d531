"""The second suite: overhead of a run against a bare loop, what is asked and reused at FACET's
size, and the time of all statistics.

    python bench/people.py [--people 60] [--delay 20] [--full 21560]

Overhead: the planted model of people, each engine call made slower by DELAY milliseconds a prompt,
run by `evaluate` on an empty cache, against the same batches of the same prompts in a plain loop.
Plan and statistics: tables of FULL drawn people, without pictures.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import summary

from sdgbias.types import ModelSpec, Prompt, ScoreBatch


def drawn_people(n: int, seed: int = 0) -> pd.DataFrame:
    """n people whose groups are about as frequent as in FACET's single-person subset, all 52
    classes alike."""
    from sdgbias.benchmark.people import split_of
    from sdgbias.raw.facet import CLASSES

    rng = np.random.default_rng(seed)
    people = pd.DataFrame(
        {"person_id": [f"p{i}" for i in range(n)], "image_id": [f"image-{i:06d}" for i in range(n)]}
    )
    people["class1"] = rng.choice(CLASSES, n)
    people["gender"] = rng.choice(["male", "female", "unknown"], n, p=[0.65, 0.22, 0.13])
    people["skin"] = rng.choice(
        ["light", "medium", "dark", "unknown"], n, p=[0.42, 0.3, 0.07, 0.21]
    )
    people["age"] = rng.choice(["young", "middle", "old", "unknown"], n, p=[0.17, 0.55, 0.07, 0.21])
    return people.assign(race="", split=people["image_id"].map(split_of))


def at_size(n: int) -> list[tuple[str, str]]:
    from sdgbias.benchmark.people_items import build_items, build_prompts, view_cells
    from sdgbias.scoring.plan import make_plan
    from sdgbias.suites import facet

    people = drawn_people(n)
    began = time.perf_counter()
    items = build_items(people)
    cells = view_cells(build_prompts(items))
    plan = make_plan(cells, "bench")
    planned = time.perf_counter() - began
    pictures = int((plan.distinct["image_id"] != "").sum())
    rng = np.random.default_rng(1)
    right = rng.random(len(items)) < 0.7
    pred = np.where(right, items["gold"], np.where(items["prompt"] == "p1", "nurse", "unknown"))
    table = items[["item_id", "split"]].assign(
        task=items["prompt"].map({"p1": "direct"}).fillna("choice"),
        test=items["prompt"],
        method="full",
        pred=pred,
        how="exact",
    )
    table["correct"] = table["pred"] == items["gold"]
    scored = table[table["test"] != "p1"]
    table = pd.concat(
        [table, scored.assign(method="full_argmax"), scored.assign(method="q_only")],
        ignore_index=True,
    )
    began, cpu = time.perf_counter(), time.process_time()
    rows = facet.metric_rows(items, table)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return [
        ("people", f"{n:,}"),
        ("questions (p1, p2, p3; p2 and p3 also about a wrong class)", f"{len(items):,}"),
        ("cells (question x view)", f"{plan.naive:,}"),
        (
            "distinct prompts",
            (
                f"{plan.planned:,} ({pictures:,} with a picture, {plan.planned - pictures:,} of"
                " text alone)"
            ),
        ),
        ("prompts not asked again", f"{1 - plan.planned / plan.naive:.1%}"),
        ("prompts of one picture, which stand together", f"{pictures / n:.2f}"),
        ("time: questions, prompts and plan", f"{planned:.1f} s"),
        (
            "time: all statistics",
            (
                f"{took:.1f} s ({cpu:.1f} s of one CPU) for {len(rows):,} metric rows of"
                f" {len(table):,} answers"
            ),
        ),
    ]


def overhead(n: int, delay: float) -> list[tuple[str, str]]:
    """delay: seconds a prompt."""
    from sdgbias.benchmark.people import build_people
    from sdgbias.engines.planted_people import PlantedPeople
    from sdgbias.raw.synthetic.schematic_people import write_people_sample
    from sdgbias.scoring import evaluate

    calls: list[tuple[str, Sequence[Prompt], tuple[object, ...]]] = []

    class Slow(PlantedPeople):
        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            calls.append(("candidate_scores", prompts, ()))
            time.sleep(delay * len(prompts))
            return super().candidate_scores(prompts)

        def generate(
            self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
        ) -> list[list[str]]:
            calls.append(("generate", prompts, (starts, max_new_tokens)))
            time.sleep(delay * len(prompts))
            return super().generate(prompts, starts, max_new_tokens)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_people_sample(folder / "raw", n, 0)
        build_people(folder / "raw", folder / "b")
        options = {"oracle": str(folder / "b")}
        spec = ModelSpec(
            name="slow",
            title="slow",
            backend="planted-people",
            repo="planted:people",
            revision="1",
            state="enabled",
            options=options,
        )
        engine = Slow(spec, folder)
        began = time.perf_counter()
        done = evaluate.score_model(engine, spec, folder / "b", folder / "r.duckdb")
        scored, scorer, asked = done.scored, done.scorer, done.asked
        ours = time.perf_counter() - began
        assert len(scored.scores) and not scorer.failures
        made = list(calls)
        began = time.perf_counter()
        for name, prompts, rest in made:
            getattr(engine, name)(prompts, *rest)
        bare = time.perf_counter() - began
    count = sum(len(prompts) for _, prompts, _ in made)
    return [
        (
            "engine calls and prompts in them",
            (
                f"{len(made):,} and {count:,} ({len(asked):,} distinct, some scored and answered"
                " freely)"
            ),
        ),
        ("bare loop", f"{bare:.2f} s"),
        (
            "the suite: plan, pictures, cache and the same calls",
            f"{ours:.2f} s, {ours / bare - 1:+.1%}",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=int, default=60)
    parser.add_argument("--delay", type=float, default=20.0, help="milliseconds a prompt")
    parser.add_argument("--full", type=int, default=21_560)
    args = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    found = [*overhead(args.people, args.delay / 1000), *at_size(args.full)]
    for what, value in found:
        print(f"{what:62} {value}")
    known = dict(found)
    n, bare = f"{args.people} people, once", f"bare loop: {known['bare loop']}"
    suite = known["the suite: plan, pictures, cache and the same calls"]
    rows = [summary.Row(f"people suite, {args.delay:g} ms a prompt", n, suite, "5 %", bare)]
    if args.full >= 21_560:
        n, plan = f"{args.full:,} people, once", known["time: questions, prompts and plan"]
        statistics = known["time: all statistics"]
        what, beside = "people suite, all statistics", f"questions, prompts and plan: {plan}"
        rows.append(summary.Row(what, n, statistics, "10 s", beside))
    summary.record("people", rows)


if __name__ == "__main__":
    main()
