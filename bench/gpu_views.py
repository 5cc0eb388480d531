"""What CADE's twenty cells per question cost on one GPU, at the shapes of LLaVA-1.5-7B,
Qwen2.5-VL-7B and InternVL3-8B with random weights.

    python -m bench.gpu_views [--shape llava qwen internvl] [--quick] [--tiny]
        [--pictures 16] [--questions 4] [--runs 3] [--side 448] [--folder FOLDER]

Pictures, questions and tokenizer are made here. Each model is written to a folder in the files of
a hub repository (15 to 16 GB of weights for a moment; FOLDER, else the roomier of /dev/shm and the
temporary folder) and loaded from there by the hf engine. Time does not depend on the weights.
Needs torch, transformers, torchvision, pandas, pydantic and pyyaml beside this package's folder;
neither DuckDB, Arrow nor the rest of the installation. The plan is timed in batches and behind
shared beginnings whatever the probes decide, which is printed.

Printed for each shape: prompts per second of the score plan, of the Full view prompt by prompt,
and of plain `model.generate` for one token on the prompts of each; naive / plan and plan / Full in
seconds; the paper's figures beside them: GPU seconds per question (Table K) and the share of each
view (Table L). The protocols are those of bench/views.py. --quick: one run over fewer pictures,
for all three in about 8 minutes on an H100; --tiny: small shapes, for trying it on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import io
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sdgbias.engines  # isort: skip  # before transformers: torchvision beside a CPU torch

import numpy as np
import pandas as pd
import torch
import transformers
from PIL import Image

from bench.gpu_shapes import SHAPES, tokenizer
from sdgbias.benchmark.prompts import MCQ_TAIL, view_cells
from sdgbias.engines.hf import ways
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.plan import chunk_end, make_plan
from sdgbias.types import LETTERS, Prompt
from tests.builders.hub_files import write_hub_files

TABLE_K = "Full .144, CADE .324 (2.25 x)"
TABLE_L = {"full": 40, "img_q": 40, "ctx_q": 10, "q_only": 10}
TOPICS = ["access to electricity", "completed years of schooling", "piped water at home"]
TOPICS += ["deaths of children under five", "child stunting"]
NAMES = ["Asset Index", "Women Education", "Women BMI", "Under-5 Mortality", "Sanitation"]
NAMES += ["Water Source"]


def cells(pictures: int, questions: int) -> pd.DataFrame:
    """T1-T5 x four views of ``questions`` questions about each of ``pictures`` pictures, worded as
    the benchmark words them."""
    rng = np.random.default_rng(0)
    rows = []
    for picture in range(pictures):
        values = rng.uniform(0, 40, len(NAMES))
        facts = [f"{name}={value:.1f}" for name, value in zip(NAMES, values, strict=True)]
        contexts = {"T1": "Given: " + ", ".join(facts), "T2": "Given: " + ", ".join(facts[:3])}
        contexts |= {"T5": "", "T3": "You may consider: " + ", ".join(NAMES)}
        contexts["T4"] = "You may consider: " + ", ".join(NAMES[:3])
        for number in range(questions):
            topic = TOPICS[(picture + number) % len(TOPICS)]
            low, high = sorted(rng.uniform(1, 99, 2))
            options = (
                f"Options: A. below {low:.1f} %; B. {low:.1f} to {high:.1f} %; C. above {high:.1f}"
                " %\nVALID OPTIONS: A, B, C\n"
            )
            for test, context in contexts.items():
                line = f"Context: {context}\n" if context else ""
                text = (
                    f"Question: Which level of {topic} fits the place in the picture"
                    f" best?\n{line}{options}{MCQ_TAIL}"
                )
                rows.append((f"{picture:03d}-{number:02d}", test, text, f"p{picture:03d}"))
    frame = pd.DataFrame(rows, columns=["item_id", "test", "text", "image_id"])
    return view_cells(frame.assign(task="mcq", candidates=LETTERS))


def picture(number: int, side: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def loaded(config: Any, processor: Any, dtype: str, args: argparse.Namespace) -> Any:
    """The hf engine of random weights, from the files of a repository that is gone afterwards."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(dir=args.folder or roomiest()) as folder:
        with device:
            torch.manual_seed(0)
            model = transformers.AutoModelForImageTextToText.from_config(
                config, dtype=getattr(torch, dtype)
            )
        write_hub_files(Path(folder), model, processor)
        del model
        gc.collect()
        torch.cuda.empty_cache()
        spec = ModelSpec(
            name="random",
            title="",
            backend="hf",
            repo=f"path:{folder}",
            revision="local",
            state="enabled",
        )
        spec = replace(spec, dtype=dtype, batch_size=args.batch)
        return sdgbias.engines.load(spec, Path())


def roomiest() -> str:
    """The temporary folder, or memory where there is more room."""
    places = [p for p in ("/dev/shm", tempfile.gettempdir()) if Path(p).is_dir()]
    return max(places, key=lambda place: shutil.disk_usage(place).free)


@dataclass(frozen=True)
class Work:
    """Prompts in the batches of one protocol; whether they share beginnings."""

    batches: list[list[Prompt]]
    shares: bool

    @property
    def prompts(self) -> int:
        return sum(map(len, self.batches))


def clock(do: Any, *given: Any) -> float:
    """Seconds that do(*given) takes, the accelerator's pending work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    do(*given)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def score(engine: Any, work: Work) -> None:
    """As `sdgbias evaluate` would, nothing prepared before."""
    engine.counts.clear()
    engine.share_prefix = work.shares
    for batch in work.batches:
        engine.candidate_scores(batch)


@torch.inference_mode()
def generate(engine: Any, work: Work, size: int) -> None:
    """Plain transformers: the processor as it is called by hand, then `generate` of one token, in
    padded batches of prompts that all show a picture or none."""
    flat = [prompt for batch in work.batches for prompt in batch]
    for shown in (True, False):
        of_kind = [prompt for prompt in flat if bool(prompt.images) is shown]
        for at in range(0, len(of_kind), size):
            part = of_kind[at : at + size]
            pictures = [[Image.open(io.BytesIO(i)) for i in p.images] for p in part]
            inputs = engine.processor(
                images=pictures if shown else None,
                text=[engine.chat.render(p) for p in part],
                padding=True,
                return_tensors="pt",
            ).to(engine.device)
            if shown:
                inputs["pixel_values"] = inputs["pixel_values"].to(engine.dtype)
            inputs.pop("token_type_ids", None)
            engine.model.generate(**inputs, max_new_tokens=1, do_sample=False)


def works(table: pd.DataFrame, pngs: dict[str, bytes], batch: int) -> dict[str, Work]:
    """The four views prompt by prompt, and the score plan of them all."""

    def prompts(rows: pd.DataFrame) -> list[Prompt]:
        return [
            Prompt(t, c, (pngs[i],) if i else (), i)
            for t, c, i in zip(rows["text"], rows["candidates"], rows["image_id"], strict=True)
        ]

    by_view = {}
    for view, rows in table.groupby("view"):
        parts = [prompts(part) for _, part in rows.groupby("test")]
        cut = [p[at : at + batch] for p in parts for at in range(0, len(p), batch)]
        by_view[str(view)] = Work(cut, shares=False)
    distinct = make_plan(table, "").distinct
    image_ids = list(distinct["image_id"])
    planned, start = [], 0
    while start < len(distinct):
        end = chunk_end(image_ids, start, batch)
        planned.append(prompts(distinct.iloc[start:end]))
        start = end
    return {**by_view, "plan": Work(planned, shares=True)}


def measure(shape: str, args: argparse.Namespace) -> None:
    table = cells(args.pictures, args.questions)
    texts = sorted(set(table["text"]))
    side = 56 if args.tiny else args.side
    pngs = {f"p{n:03d}": picture(n, side) for n in range(args.pictures)}
    tokens = tokenizer(texts)
    dtype = "float32" if args.tiny else "bfloat16"
    began = time.perf_counter()
    engine = loaded(*SHAPES[shape](tokens, args.tiny), dtype, args)
    ready = time.perf_counter() - began
    print(f"{shape}: written and loaded in {ready:.0f} s", flush=True)
    work = works(table, pngs, args.batch)
    # kernels are chosen before anything is timed
    first = work["plan"].batches
    decision = ways.decide(engine, [*first[0][:6], *first[-1][-6:]])
    print(f"probes: {decision.line}", flush=True)
    took: dict[str, list[float]] = {name: [] for name in (*work, "generate full", "generate plan")}
    counted = {}
    for _ in range(args.runs):
        for name, part in work.items():
            took[name].append(clock(score, engine, part))
            counted[name] = engine.counts["tokens_prefilled"], engine.counts["tokens_of_prompts"]
            print(f"{name}: {took[name][-1]:.2f} s", flush=True)  # stands if the rest is cut off
        for name in ("full", "plan"):
            part = work[name]
            seconds = clock(generate, engine, part, args.batch)
            took[f"generate {name}"].append(seconds)
    median = {name: statistics.median(times) for name, times in took.items()}
    long = sum(map(len, texts)) / sum(len(ids) for ids in tokens(texts)["input_ids"])
    most = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"\n{shape}{' (tiny)' if args.tiny else ' at 7B shapes'}, {dtype}, {card}, torch"
        f" {torch.__version__}, transformers {transformers.__version__}; {args.pictures} pictures"
        f" of {side} x {side}, batches of {args.batch}, {args.runs} runs (medians); written and"
        f" loaded in {ready:.0f} s; {long:.1f} characters a token; at most {most:.1f} GiB"
    )
    report(table["item_id"].nunique(), median, counted, work)
    del engine
    gc.collect()
    torch.cuda.empty_cache()


def report(
    items: int,
    median: dict[str, float],
    counted: dict[str, tuple[int, int]],
    work: dict[str, Work],
) -> None:
    """Prints the figures of one shape: ``items`` questions; by protocol seconds, and the tokens
    that were computed, of those that its prompts have."""
    views = [name for name in work if name != "plan"]
    naive = sum(median[view] for view in views)
    computed, needed = (sum(counted[view][of] for view in views) for of in (0, 1))
    for name, seconds, (read, long) in (
        ("naive", naive, (computed, needed)),
        ("full", median["full"], counted["full"]),
        ("plan", median["plan"], counted["plan"]),
    ):
        each = seconds / items / 5
        print(
            f"{name}: {seconds:.2f} s, {read:,} tokens of {long:,},"
            f" {each:.4f} s a question and test"
        )
    for name in ("full", "plan"):
        n, took, plain = work[name].prompts, median[name], median[f"generate {name}"]
        print(
            f"{name}, {n} prompts: engine {n / took:.1f} prompts/s, model.generate {n / plain:.1f}"
            f" prompts/s, {plain / took:.2f} x"
        )
    print(f"Table K: {TABLE_K} GPU seconds a question")
    print(
        f"naive / plan {naive / median['plan']:.2f} (aim 6 or more); plan / full"
        f" {median['plan'] / median['full']:.2f} (aim 0.4 or less)"
    )
    print(
        "view shares of naive: "
        + ", ".join(
            f"{v} {100 * median[v] / naive:.0f} % (Table L {TABLE_L[v]} %)" for v in TABLE_L
        ),
        flush=True,
    )


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--pictures", type=int, default=None, help="default 16, with --quick 8")
    parser.add_argument("--questions", type=int, default=4, help="questions about each picture")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--runs", type=int, default=None, help="default 3, with --quick 1")
    parser.add_argument("--side", type=int, default=448, help="pixels of a picture's side")
    parser.add_argument("--folder", help="where the weights lie until they are loaded")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(given)
    args.pictures = args.pictures or (8 if args.quick else 16)
    args.runs = args.runs or (1 if args.quick else 3)
    transformers.utils.logging.disable_progress_bar()
    for shape in args.shape:
        measure(shape, args)


if __name__ == "__main__":
    main()
