"""What CADE's twenty cells per question cost on one GPU, at the shapes of LLaVA-1.5-7B and
Qwen2.5-VL-7B with random weights.

    python bench/gpu_views.py [--shape llava qwen] [--pictures 16] [--questions 4] [--runs 3]
    [--tiny]

Needs torch, transformers and this package: pictures, questions and tokenizer are made here, no
weights are read. Time does not depend on the weights. --tiny takes small shapes, for trying it on a
CPU. Beside the figures stand those of the paper: GPU seconds per question (Table K) and the share
of each view (Table L). The protocols are those of bench/views.py.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sdgbias.benchmark.prompts import MCQ_TAIL, view_cells
from sdgbias.engines.hf import engine
from sdgbias.scoring.plan import chunks, make_plan
from sdgbias.types import LETTERS, ModelSpec, Prompt

TABLE_K = "Full .144, CADE .324 (2.25 x)"
TABLE_L = {"full": 40, "img_q": 40, "ctx_q": 10, "q_only": 10}
SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<video>"]
TEMPLATE = (
    "{% for m in messages %}USER: {% for p in m['content'] %}{% if p['type'] == 'image'"
    " %}<image>\n{% else %}{{ p['text'] }}{% endif %}{% endfor %}\n{% endfor %}ASSISTANT:"
)
TOPICS = [
    "access to electricity",
    "completed years of schooling",
    "piped water at home",
    "deaths of children under five",
    "child stunting",
]
NAMES = [
    "Asset Index",
    "Women Education",
    "Women BMI",
    "Under-5 Mortality",
    "Sanitation",
    "Water Source",
]


def cells(pictures: int, questions: int) -> pd.DataFrame:
    """T1-T5 x four views of ``questions`` questions about each of ``pictures`` pictures, worded as
    the benchmark words them."""
    rng = np.random.default_rng(0)
    rows = []
    for picture in range(pictures):
        known = [
            f"{name}={value:.1f}"
            for name, value in zip(NAMES, rng.uniform(0, 40, len(NAMES)), strict=True)
        ]
        contexts = {
            "T1": "Given: " + ", ".join(known),
            "T2": "Given: " + ", ".join(known[:3]),
            "T5": "",
        }
        contexts |= {
            "T3": "You may consider: " + ", ".join(NAMES),
            "T4": "You may consider: " + ", ".join(NAMES[:3]),
        }
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
                item = f"{picture:03d}-{number:02d}"
                rows.append(
                    {
                        "task": "mcq",
                        "item_id": item,
                        "test": test,
                        "text": text,
                        "image_id": f"p{picture:03d}",
                        "candidates": LETTERS,
                    }
                )
    return view_cells(pd.DataFrame(rows))


def picture(number: int, side: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def tokenizer(texts: list[str]) -> Any:
    """A byte-level BPE of these texts, stopped where a token is about as long as in the models' own
    tokenizers."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=len(SPECIAL) + len(alphabet) + 400,
            special_tokens=SPECIAL,
            initial_alphabet=alphabet,
        ),
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>", "video_token": "<video>"},
    )


class NoVideo:
    """The real video processors can't be made without torchvision."""

    model_input_names: tuple[str, ...] = ()


def llava(tokens: Any, tiny: bool) -> tuple[Any, Any]:
    side = 28 if tiny else 336
    tower = {"image_size": side, "patch_size": 14, "projection_dim": 768}
    if tiny:
        tower |= {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
    else:
        tower |= {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        }
    text = {
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**tower),
        text_config=transformers.LlamaConfig(**(_small(tokens) if tiny else text)),
        image_token_index=3,
        image_seq_length=(side // 14) ** 2,
    )
    images = CLIPImageProcessorPil(size={"height": side, "width": side}, do_center_crop=False)
    processor = transformers.LlavaProcessor(
        images,
        tokens,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    return config, processor


def qwen(tokens: Any, tiny: bool) -> tuple[Any, Any]:
    tower: dict[str, Any] = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
    }
    text: dict[str, Any] = {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [16, 24, 24],
        },
    }
    if tiny:
        tower = {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
        }
        text = {
            **_small(tokens),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 3, 3],
            },
        }
    config = transformers.Qwen2_5_VLConfig(
        vision_config=tower, text_config=text, image_token_id=3, video_token_id=4
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, min_pixels=28 * 28, max_pixels=1280 * 28 * 28
    )
    kind = transformers.Qwen2_5_VLProcessor
    checked = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    return config, checked(images, tokens, NoVideo(), chat_template=TEMPLATE)


def _small(tokens: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }


def engine_of(config: Any, processor: Any, share: bool, model: Any, dtype: str, batch: int) -> Any:
    """The engine around a model in memory."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        spec = ModelSpec(
            name="random",
            title="",
            backend="hf",
            repo=f"path:{folder}",
            revision="local",
            state="enabled",
        )
        spec = ModelSpec(
            **{
                **spec.__dict__,
                "dtype": dtype,
                "batch_size": batch,
                "options": {"share_prefix": share},
            }
        )
        with (
            patch.object(engine.AutoProcessor, "from_pretrained", lambda *_, **__: processor()),
            patch.object(
                engine.AutoModelForImageTextToText, "from_pretrained", lambda *_, **__: model
            ),
        ):
            return engine.HuggingFace(spec, Path())


def measure(shape: str, args: argparse.Namespace) -> None:
    table = cells(args.pictures, args.questions)
    texts = sorted(set(table["text"]))
    pngs = {f"p{n:03d}": picture(n, 56 if args.tiny else 672) for n in range(args.pictures)}
    tokens = tokenizer(texts)
    config, _ = SHAPES[shape](tokens, args.tiny)
    dtype = "float32" if args.tiny else "bfloat16"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model = transformers.AutoModelForImageTextToText.from_config(
            config, dtype=getattr(torch, dtype)
        )
    engines = {
        s: engine_of(
            config,
            lambda: SHAPES[shape](tokenizer(texts), args.tiny)[1],
            s,
            model,
            dtype,
            args.batch,
        )
        for s in (False, True)
    }

    def prompts(rows: pd.DataFrame) -> list[Prompt]:
        return [
            Prompt(t, c, (pngs[i],) if i else (), i)
            for t, c, i in zip(rows["text"], rows["candidates"], rows["image_id"], strict=True)
        ]

    distinct = make_plan(table, "").distinct
    planned, start = [], 0
    while start < len(distinct):
        end = chunks(distinct["image_id"], start, args.batch)
        planned.append(prompts(distinct.iloc[start:end]))
        start = end
    views = {
        str(view): [prompts(part) for _, part in rows.groupby("test")]
        for view, rows in table.groupby("view")
    }
    took: dict[str, list[float]] = {name: [] for name in (*views, "plan")}

    def seconds(share: bool, work: list[list[Prompt]]) -> float:
        engines[share].pixels.forget()
        engines[share].counts.clear()
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for part in work:
            for at in [0] if share else range(0, len(part), args.batch):
                engines[share].candidate_scores(part if share else part[at : at + args.batch])
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(True, [planned[0], planned[-1]])
    counted = {}
    for _ in range(args.runs):
        for name, work in (*views.items(), ("plan", planned)):
            took[name].append(seconds(name == "plan", work))
            counted[name] = engines[name == "plan"].counts["tokens_prefilled"]
    median = {name: statistics.median(times) for name, times in took.items()}
    items = table["item_id"].nunique()
    naive = sum(median[view] for view in views)
    card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    long = sum(map(len, texts)) / sum(len(ids) for ids in tokens(texts)["input_ids"])
    print(
        f"\n{shape}{' (tiny)' if args.tiny else '-7B'}, {dtype}, {card}; {items} questions,"
        f" {args.pictures} pictures, {args.runs} runs"
    )
    print(
        f"{long:.1f} characters a token; sharing"
        f" {'on' if engines[True].shares else 'REFUSED: the two ways disagree'}"
    )
    print(
        f"naive: {naive:.2f} s, {sum(counted[v] for v in views):,} tokens, {naive / items / 5:.4f}"
        " s a question and test"
    )
    print(
        f"full:  {median['full']:.2f} s, {counted['full']:,} tokens,"
        f" {median['full'] / items / 5:.4f} s a question and test"
    )
    print(
        f"plan:  {median['plan']:.2f} s, {counted['plan']:,} tokens,"
        f" {median['plan'] / items / 5:.4f} s a question and test"
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
        )
    )


SHAPES = {"llava": llava, "qwen": qwen}


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES))
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--questions", type=int, default=4, help="questions about each picture")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(given)
    for shape in args.shape:
        measure(shape, args)


if __name__ == "__main__":
    main()
