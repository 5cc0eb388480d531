"""The common part of the scripts that train the embedded models: their worlds, their questions,
their tokenizers, and the loop.

A world is a benchmark that this very package builds from a synthetic sample with another seed and
other countries than the demo's. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import io
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from sdgbias.benchmark.build import Draw, build
from sdgbias.benchmark.prompts import prompt_texts
from sdgbias.engines import torchvision_ops as torchvision_ops  # before any transformers
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.indicators import directions
from sdgbias.raw.synthetic import write_sample
from sdgbias.types import TESTS, ContextTest, Task, View

LABELS = ["asset_index", "water_index", "sanitation_index", "under5_mort", "women_edu", "women_bmi"]
#: Countries of the worlds, none of them the demo's.
COUNTRIES = (
    "BD GH MZ JO CO ET RW TZ",
    "ZW LS ID EG PK TG BO ML",
    "UG MW PH TJ GN CI KH SL",
    "CM LB GU MM BJ AO KY HT",
    "NG ZM AL MD HN BU TD DR",
)
#: (mean, standard deviation) of the three colours
Normal = tuple[np.ndarray, np.ndarray]


def arguments(doc: str | None, out: str, keep: str, clusters: int) -> argparse.ArgumentParser:
    """The options of a training script. ``out``: where its weights go by default; ``keep``: the
    option that names a folder to keep and reuse, its help."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(out))
    option, _, about = keep.partition(" ")
    parser.add_argument(option, dest="folder", type=Path, help=about)
    parser.add_argument("--clusters", type=int, default=clusters, help="clusters per world")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the number of steps of every stage"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


def normal_of(images: Any) -> Normal:
    """Of an image processor."""
    mean, deviation = (np.array(x, dtype=np.float32) for x in (images.image_mean, images.image_std))
    return mean, deviation


def save(model: Any, processor: Any, out: Path) -> None:
    """The hub's own layout, in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    model.eval().to(torch.bfloat16).save_pretrained(out)
    processor.save_pretrained(out)


def make_worlds(folder: Path, seed: int, clusters: int) -> list[Path]:
    """Builds one benchmark per group of COUNTRIES, with the seeds ``seed``, ``seed`` + 1, ...; kept
    in ``folder`` so that a second run of the script reuses them."""
    done = []
    for at, countries in enumerate(COUNTRIES, seed):
        out = folder / f"world{at}" / "benchmark"
        if not (out / "benchmark.json").exists():
            raw = folder / f"world{at}" / "raw"
            write_sample(raw, clusters, at, countries.split())
            build(raw, raw / "indicators", out, Draw(seed=at))
            shutil.rmtree(raw)
        done.append(out)
        print(f"world {at}: {out}", flush=True)
    return done


def pixels_of(
    benchmark: Path, resized: Callable[[Image.Image], np.ndarray]
) -> tuple[dict[str, int], np.ndarray]:
    """image_id -> row, and uint8 (N, H, W, 3) pictures. ``resized``: a picture -> (3, H, W) as the
    model's own image processor resizes it, 0 to 255."""
    rows: dict[str, int] = {}
    stack: list[np.ndarray] = []
    for image_id, parts in ImageReader(benchmark).items():
        small = resized(Image.open(io.BytesIO(parts[0])).convert("RGB"))
        rows[image_id] = len(stack)
        stack.append(np.clip(small, 0, 255).astype(np.uint8).transpose(1, 2, 0))
    return rows, np.stack(stack)


def learn_words(
    texts: list[str], split: pre_tokenizers.PreTokenizer, special: Sequence[str], size: int
) -> Tokenizer:
    """Byte-level BPE of at most ``size`` tokens over ``texts`` cut by ``split``; it stops where
    every word is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(set(texts)), trainer)
    return tokenizer


@dataclass(frozen=True)
class Questions:
    """All questions of all worlds. items, gold, weights: by task, one row per question, `row` being
    the picture's place in ``pixels`` (N, H, W, 3; uint8). labels: (N, 6), NaN where unknown. text:
    (task, test, view) -> prompts. weights: every indicator equally often."""

    pixels: np.ndarray
    labels: np.ndarray
    items: dict[Task, pd.DataFrame]
    text: dict[tuple[Task, ContextTest, View], np.ndarray]
    gold: dict[Task, np.ndarray]
    weights: dict[Task, np.ndarray]


def read_questions(worlds: list[Path], resized: Callable[[Image.Image], np.ndarray]) -> Questions:
    frames, stacks, offset = [], [], 0
    for benchmark in worlds:
        rows, stack = pixels_of(benchmark, resized)
        for task in Task:
            items = pd.read_parquet(benchmark / f"items_{task.value}.parquet")
            items["row"] = items["image_id"].map(rows) + offset
            frames.append(items.assign(task=task.value))
        stacks.append(stack)
        offset += len(stack)
    items_of = {
        t: pd.concat([f for f in frames if f["task"].iloc[0] == t.value], ignore_index=True)
        for t in Task
    }
    clusters = (
        pd.concat([f.groupby("row").first()[LABELS] for f in frames]).groupby(level=0).first()
    )
    weights = {}
    for task, frame in items_of.items():
        w = 1.0 / frame.groupby("indicator")["item_id"].transform("size").to_numpy(dtype=float)
        weights[task] = w / w.sum()
    numbers = items_of[Task.REGRESSION]["answer"].map("{:.1f}".format)
    return Questions(
        pixels=np.concatenate(stacks),
        labels=clusters.reindex(range(offset)).to_numpy(dtype=float),
        items=items_of,
        text=texts_of(items_of),
        gold={
            Task.MCQ: items_of[Task.MCQ]["answer"].to_numpy(dtype=object),
            Task.REGRESSION: numbers.to_numpy(dtype=object),
        },
        weights=weights,
    )


def texts_of(
    items: Mapping[Task, pd.DataFrame],
) -> dict[tuple[Task, ContextTest, View], np.ndarray]:
    """The prompts of all questions under every context test and view."""
    return {
        (task, test, view): prompt_texts(items[task], task, test, view).to_numpy(dtype=object)
        for task in Task
        for test in TESTS[task]
        for view in View
    }


def default_letters(mcq: pd.DataFrame, wanted: Mapping[str, str]) -> np.ndarray:
    """The option of every multiple-choice question that states its pillar's ``wanted`` direction; A
    where none does."""
    letters = mcq["option_c"].ne("").map({True: 3, False: 2})
    table = {(p, k): directions(p, k) for p in ("higher", "lower") for k in (2, 3)}
    says = [table[(p, k)] for p, k in zip(mcq["polarity"], letters, strict=True)]
    return np.array(
        [
            "ABC"[s.index(wanted[p])] if wanted[p] in s else "A"
            for s, p in zip(says, mcq["pillar"], strict=True)
        ]
    )


def standardised(labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels with mean 0 and deviation 1, 0 where unknown; and which are known."""
    target = torch.tensor(
        (labels - np.nanmean(labels, 0)) / np.nanstd(labels, 0), dtype=torch.float32
    )
    labelled = torch.isfinite(target)
    return torch.nan_to_num(target), labelled


def normalised(pixels: np.ndarray, normal: Normal) -> torch.Tensor:
    """uint8 (N, H, W, 3) -> float (N, 3, H, W) as the image processor normalises."""
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(normal[0]).view(1, 3, 1, 1)) / torch.tensor(normal[1]).view(1, 3, 1, 1)


def padded(pairs: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    """(prompt, answer) token ids -> input_ids, labels (-100 on the prompt) and attention_mask,
    filled up on the left."""
    width = max(len(prompt) + len(reply) for prompt, reply in pairs)
    room = [width - len(prompt) - len(reply) for prompt, reply in pairs]
    return {
        "input_ids": torch.tensor(
            [[pad] * r + p + a for r, (p, a) in zip(room, pairs, strict=True)]
        ),
        "labels": torch.tensor(
            [[-100] * (r + len(p)) + a for r, (p, a) in zip(room, pairs, strict=True)]
        ),
        "attention_mask": torch.tensor([[0] * r + [1] * (width - r) for r in room]),
    }


def language_loss(
    model: Any,
    inputs: dict[str, torch.Tensor],
    image_token: int,
    autocast: bool,
    embedded: dict[str, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Next-token loss on the answers, and at a tenth of the weight on the prompts (it teaches the
    words). ``inputs``: of the model, and ``labels``. ``embedded``: what the model is given instead
    of ``inputs``, where its picture tokens don't come from a picture."""
    labels = inputs.pop("labels")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        hidden = model.model(**(embedded or inputs)).last_hidden_state
        wanted = labels[:, 1:] != -100
        logits = model.lm_head(hidden[:, :-1][wanted]).float()
        prompt = (
            (labels[:, 1:] == -100)
            & (inputs["attention_mask"][:, :-1] == 1)
            & (inputs["input_ids"][:, 1:] != image_token)
        )
        prompt[8:] = False  # eight prompts of the batch are enough for the words
        words = model.lm_head(hidden[:, :-1][prompt]).float()
    loss = nn.functional.cross_entropy(logits, labels[:, 1:][wanted])
    return loss + 0.1 * nn.functional.cross_entropy(words, inputs["input_ids"][:, 1:][prompt])


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32."""
    flags = Path("/proc/cpuinfo").read_text()
    return "amx_bf16" in flags or "avx512_bf16" in flags


def cosine(step: int, steps: int, highest: float) -> float:
    """Learning rate: 100 steps up, then half a cosine down to 3 %."""
    down = 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / steps))
    return highest * min(1.0, step / 100) * down


def linear(step: int, steps: int, highest: float) -> float:
    """Learning rate: 50 steps up, then straight down to 2 %."""
    return highest * min(1.0, step / 50) * max(1 - step / steps, 0.02)


def descend(
    name: str,
    parameters: list[nn.Parameter],
    loss: Callable[[], torch.Tensor],
    rates: Sequence[float],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    every: int = 50,
) -> None:
    """One AdamW step per learning rate in ``rates``; every ``every`` steps the mean loss is
    printed."""
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, betas=betas, weight_decay=0.05)
    began, losses = time.time(), []
    for step, rate in enumerate(rates, 1):
        for group in optimiser.param_groups:
            group["lr"] = rate
        error = loss()
        optimiser.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(error.item())
        if step % every == 0:
            took = time.time() - began
            print(f"{name} {step}: loss {np.mean(losses[-every:]):.3f} ({took:.0f} s)", flush=True)
