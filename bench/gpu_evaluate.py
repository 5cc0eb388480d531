"""`sdgbias evaluate` on one GPU, as a user calls it, of a model at the shape of LLaVA-1.5-7B,
Qwen2.5-VL-7B or InternVL3-8B with random weights.

    python -m bench.gpu_evaluate [--shape llava] [--benchmark data/benchmark] [--folder FOLDER]
        [--profile FILE] [--tiny] [-- options of sdgbias evaluate]

The model is written as a hub repository's files (15 to 16 GB; FOLDER, else the roomier of /dev/shm
and the temporary folder) with a tokenizer made of the benchmark's prompts. `evaluate FOLDER` then
probes it (alone, in a batch, shuffled, behind a shared beginning), scores the benchmark, tunes
CADE and publishes. Printed: what `evaluate` prints, its seconds, and the run's own figures
(prompts, tokens, seconds of the engine, failed prompts). --profile: where the main thread's time
goes, for `python -m pstats FILE`. --tiny: small shapes on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sdgbias.engines  # noqa: F401  # isort: skip  # before transformers: torchvision on a CPU

import duckdb
import pandas as pd
import torch
import transformers

from bench.gpu_shapes import SHAPES, tokenizer
from bench.gpu_views import roomiest
from tests.builders.hub_files import write_hub_files

RUN = """
SELECT n_prompts_naive, n_prompts_planned, n_scored, n_failed,
       unnest(from_json(config->'engine', '{"seconds": "DOUBLE", "forwards": "BIGINT",
         "images_encoded": "BIGINT", "tokens_of_prompts": "BIGINT",
         "tokens_prefilled": "BIGINT"}')),
       config->'spec'->'options' AS options, config->'spec'->>'dtype' AS dtype
FROM runs
"""


def write_model(shape: str, benchmark: Path, folder: Path, tiny: bool) -> None:
    """Random weights, bfloat16 unless tiny, and a tokenizer of the benchmark's prompts."""
    texts = sorted(set(pd.read_parquet(benchmark / "prompts.parquet")["text"]))
    config, processor = SHAPES[shape](tokenizer(texts), tiny)
    dtype = torch.float32 if tiny else torch.bfloat16
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=dtype)
    write_hub_files(folder, model, processor)
    del model
    gc.collect()
    torch.cuda.empty_cache()


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="llava")
    parser.add_argument("--benchmark", type=Path, default=Path("data/benchmark"))
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one")
    parser.add_argument("--profile", help="file of cProfile's figures")
    parser.add_argument("--tiny", action="store_true")
    args, options = parser.parse_known_args(given)
    with tempfile.TemporaryDirectory(dir=roomiest()) as temporary:
        work = args.folder or Path(temporary)
        model, results = work / f"random-{args.shape}", work / "results.duckdb"
        began = time.perf_counter()
        if not (model / "config.json").exists():
            write_model(args.shape, args.benchmark, model, args.tiny)
        print(f"written: {time.perf_counter() - began:.1f} s", flush=True)
        profiled = ["-m", "cProfile", "-o", args.profile] if args.profile else []
        command = [sys.executable, *profiled, "-m", "sdgbias.cli", "evaluate", str(model)]
        command += ["--benchmark", str(args.benchmark), "--results", str(results)]
        began = time.perf_counter()
        code = subprocess.run([*command, *[o for o in options if o != "--"]]).returncode
        print(f"evaluate: {time.perf_counter() - began:.1f} s, exit {code}", flush=True)
        if results.exists():
            with duckdb.connect(results, read_only=True) as con:
                print(con.sql(RUN).df().T.to_string(header=False), flush=True)


if __name__ == "__main__":
    main()
