"""What a shared beginning saves in transformers on a CPU, and what a bare loop costs on the same
cells: random weights at the width of a real model, few layers.

    python -m bench.sharing [--width 1024] [--layers 1] [--tokens 576 1225]
        [--questions 1 10] [--pictures 1] [--runs 3]

Protocols, in turn, CPU seconds of this process, medians: *bare*: a loop over all 20 cells a
question as the model's documentation shows it, processor and one forward pass for each batch of 8;
*plain*: the distinct prompts of the plan in left-padded batches of 8; *shared*: what a picture's
prompts begin with computed once. Ratios hardly depend on the number of layers; a real vision tower,
small here, adds to what sharing saves.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
from typing import Any

import sdgbias.engines  # noqa: F401  # isort: skip  # before transformers: torchvision

import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from bench import summary
from bench.gpu_shapes import TEMPLATE, tokenizer
from bench.gpu_views import Work, cells, loaded, picture, works


def shape(tokens: Any, seen: int, width: int, layers: int) -> tuple[Any, Any]:
    """LLaVA's: configuration and processor whose pictures are ``seen`` tokens."""
    side = 14 * round(seen**0.5)
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            image_size=side, patch_size=14, num_attention_heads=2, **tower
        ),
        text_config=transformers.LlamaConfig(
            vocab_size=len(tokens),
            hidden_size=width,
            intermediate_size=width * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
        ),
        image_token_index=3,
        image_seq_length=(side // 14) ** 2,
    )
    processor = transformers.LlavaProcessor(
        CLIPImageProcessorPil(size={"height": side, "width": side}, do_center_crop=False),
        tokens,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    return config, processor


def score(engine: Any, work: Work, share: bool) -> None:
    engine.counts.clear()
    engine.share_prefix = share
    for batch in work.batches:
        engine.candidate_scores(batch)


@torch.inference_mode()
def bare(engine: Any, parts: list[Work]) -> None:
    for work in parts:
        for batch in work.batches:
            pictures = [[Image.open(io.BytesIO(i)) for i in p.images] for p in batch]
            inputs = engine.processor(
                images=pictures if batch[0].images else None,
                text=[engine.render(p) for p in batch],
                padding=True,
                return_tensors="pt",
            )
            inputs.pop("token_type_ids", None)
            engine.model(**inputs).logits[:, -1].log_softmax(-1)


def measure(args: argparse.Namespace, seen: int, questions: int) -> summary.Row:
    table = cells(args.pictures, questions)
    tokens = tokenizer(sorted(set(table["text"])))
    pngs = {f"p{n:03d}": picture(n, 224) for n in range(args.pictures)}
    engine = loaded(*shape(tokens, seen, args.width, args.layers), "float32", args)
    parts = works(table, pngs, args.batch)
    plan = parts.pop("plan")
    todo = {
        "bare": lambda: bare(engine, list(parts.values())),
        "plain": lambda: score(engine, plan, False),
        "shared": lambda: score(engine, plan, True),
    }
    took: dict[str, list[float]] = {name: [] for name in todo}
    read: dict[str, int] = {}
    score(engine, Work(plan.batches[-1:], True), True)  # what is imported at first use
    for _ in range(args.runs):
        for name, do in todo.items():
            began = time.process_time()
            do()
            took[name].append(time.process_time() - began)
            read[name] = engine.counts["tokens_prefilled"]
    median = {name: statistics.median(times) for name, times in took.items()}
    print(
        f"| {seen} | {questions} | {table['item_id'].nunique() * 20} / {plan.prompts} |"
        f" {median['bare']:.2f} | {median['plain']:.2f} ({read['plain']:,}) |"
        f" {median['shared']:.2f} ({read['shared']:,}) | {median['plain'] / median['shared']:.2f} |"
        f" {median['bare'] / median['shared']:.2f} |",
        flush=True,
    )
    return summary.Row(
        f"shared beginnings at {seen} picture tokens",
        f"{questions} questions a picture, {args.runs} runs",
        f"{median['shared']:.2f} CPU s",
        "plain / 1.3",
        f"plain batches: {median['plain']:.2f} CPU s; bare loop: {median['bare']:.2f} CPU s",
    )


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[576, 1225])
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--pictures", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder")
    args = parser.parse_args(given)
    transformers.utils.logging.disable_progress_bar()
    print(
        f"width {args.width}, {args.layers} layer(s), float32, {torch.get_num_threads()} threads,"
        f" load {os.getloadavg()[0]:.1f}, {args.runs} runs\n\n| picture tokens | questions a"
        " picture | cells / prompts | bare, CPU s | plain (tokens) | shared (tokens) | plain /"
        " shared | bare / shared |\n|---|---|---|---|---|---|---|---|"
    )
    rows = [measure(args, seen, n) for seen in args.tokens for n in args.questions]
    summary.record("sharing", rows)


if __name__ == "__main__":
    main()
