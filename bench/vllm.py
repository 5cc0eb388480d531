"""vLLM against the transformers engine on the same prompts in the same process, with the engine's
own counters.

    .venv-vllm/bin/python bench/vllm.py [--places 12] [--rounds 5] [--json]

A round takes places that no engine has seen, 28 prompts each, half of them with a picture. Cold is
the first pass over them, warm the second, when pixels, prefixes and encoded pictures are kept. The
engines take turns; medians over the rounds. What the first batch after loading costs is told apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[0] = str(
    REPOSITORY
)  # in place of this folder, whose vllm.py would stand in for the package

from bench import summary  # noqa: E402
from sdgbias.engines.hf.engine import HuggingFace  # noqa: E402
from sdgbias.engines.vllm import VLLM  # noqa: E402
from sdgbias.registry import entries  # noqa: E402
from sdgbias.types import Prompt  # noqa: E402
from tests.builders.sample_prompts import prompts_of  # noqa: E402

BATCH = 32


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_batches(engine: HuggingFace, prompts: list[Prompt]) -> None:
    for start in range(0, len(prompts), BATCH):
        engine.candidate_scores(prompts[start : start + BATCH])


def moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument("--places", type=int, default=12, help="places per round, 28 prompts each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    spec = entries.load(REPOSITORY, args.model)
    loaded: dict[str, float] = {}
    start = time.perf_counter()
    fast = VLLM(replace(spec, options={"max_model_len": 512}), REPOSITORY)
    loaded["vllm"] = time.perf_counter() - start
    start = time.perf_counter()
    plain = HuggingFace(replace(spec, options={}), REPOSITORY)
    loaded["transformers"] = time.perf_counter() - start

    def fresh(number: int) -> list[Prompt]:
        return [
            prompt for place in range(args.places) for prompt in prompts_of(1000 * number + place)
        ]

    first = {
        "vllm": seconds(lambda: fast.candidate_scores(fresh(900))),
        "transformers": seconds(lambda: in_batches(plain, fresh(900))),
    }
    times: dict[str, list[float]] = {}
    counts: list[dict[str, int]] = []
    for number in range(1, args.rounds + 1):
        prompts, others = fresh(number), fresh(number + args.rounds)
        before = fast.counters()
        times.setdefault("vllm cold", []).append(
            seconds(lambda p=prompts: fast.candidate_scores(p))
        )
        counts.append(moved(before, fast.counters()))
        times.setdefault("vllm warm", []).append(
            seconds(lambda p=prompts: fast.candidate_scores(p))
        )
        times.setdefault("transformers cold", []).append(
            seconds(lambda p=prompts: in_batches(plain, p))
        )
        times.setdefault("transformers warm", []).append(
            seconds(lambda p=prompts: in_batches(plain, p))
        )
        fast.warm_first = True
        times.setdefault("vllm cold, warm_first", []).append(
            seconds(lambda p=others: fast.candidate_scores(p))
        )
        fast.warm_first = False
    medians = {name: round(statistics.median(found), 3) for name, found in times.items()}
    ratios = {
        f"transformers / vllm, {state}": round(
            statistics.median(
                a / b
                for a, b in zip(times[f"transformers {state}"], times[f"vllm {state}"], strict=True)
            ),
            2,
        )
        for state in ("cold", "warm")
    }
    result = {
        "model": args.model,
        "prompts_per_pass": 28 * args.places,
        "rounds": args.rounds,
        "load_s": {name: round(value, 1) for name, value in loaded.items()},
        "first_pass_s": {name: round(value, 2) for name, value in first.items()},
        "median_s": medians,
        "median_ratio": ratios,
        "counters_of_a_cold_pass": counts[-1],
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value}")
    n = f"{28 * args.places} prompts, {args.rounds} rounds"
    summary.record(
        "vllm",
        [
            summary.Row(
                f"{args.model} on vLLM, {state}",
                n,
                f"{medians[f'vllm {state}']:.2f} s",
                "none",
                f"transformers: {medians[f'transformers {state}']:.2f} s",
            )
            for state in ("cold", "warm")
        ],
    )


if __name__ == "__main__":
    main()
