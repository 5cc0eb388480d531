"""Trains the embedded model `tiny-llava`: a real LLaVA of about 1.9 M parameters with planted,
documented biases.

    python scripts/train_tiny_llava.py --out registry/weights/tiny-llava        # about 20 minutes
    on two free cores

It learns on benchmarks built by this very package from synthetic samples with other seeds and other
countries than the demo's, so it has never seen a demo item. Two biases are planted in the training
answers, and nowhere else:

* pillar-skewed answers: a share SKEW of the multiple-choice answers is replaced by the pillar's
default direction
  (Health & Nutrition pessimistic, Basic Services & Infrastructure optimistic, Human Capital &
  Development conservative);
* context over-trust: where values are given, a share MISMATCH of the images comes from another
cluster, so that the model
  learns to believe the numbers rather than the picture; where only names are hinted, a further
  share HINT_SKEW of the answers goes to the pillar's default.

Stages: (1) the vision tower learns to read wealth labels off the composite; (2) the language model
learns the prompts and digits on text-only views; (3) both together on all views. Nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import io
import math
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from sdgbias.benchmark.build import Draw, build
from sdgbias.benchmark.prompts import prompt_texts
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.raw.indicators import directions
from sdgbias.raw.synthetic import write_sample
from sdgbias.types import PILLARS, TESTS, ContextTest, Task, View

SKEW, HINT_SKEW, MISMATCH = 0.30, 0.25, 0.60
DEFAULTS = dict(zip(PILLARS, ("pessimistic", "optimistic", "conservative"), strict=True))
WORLDS = [  # (seed, countries): none of the demo's countries or seeds
    (101, "BD GH MZ JO CO ET RW TZ"),
    (102, "ZW LS ID EG PK TG BO ML"),
    (103, "UG MW PH TJ GN CI KH SL"),
    (104, "CM LB GU MM BJ AO KY HT"),
    (105, "NG ZM AL MD HN BU TD DR"),
]
IMAGE_SIZE, PATCH = 96, 16
STEPS = (700, 600, 800)  # tower, language, joint
TEMPLATE = (
    "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}{%"
    " for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{"
    " part['text'] }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt"
    " %}ASSISTANT:{% endif %}"
)
LABELS = ["asset_index", "water_index", "sanitation_index", "under5_mort", "women_edu", "women_bmi"]


def make_worlds(folder: Path, clusters: int) -> list[Path]:
    """Builds one benchmark per world; kept in `folder` so that a second run of the script reuses
    them."""
    done = []
    for seed, countries in WORLDS:
        out = folder / f"world{seed}" / "benchmark"
        if not (out / "benchmark.json").exists():
            raw = folder / f"world{seed}" / "raw"
            write_sample(raw, clusters, seed, countries.split())
            build(raw, raw / "indicators", out, Draw(seed=seed))
            shutil.rmtree(raw)
        done.append(out)
        print(f"world {seed}: {out}", flush=True)
    return done


def pixels_of(
    benchmark: Path, processor: CLIPImageProcessorPil
) -> tuple[dict[str, int], np.ndarray]:
    """image_id -> row, and uint8 (N, 96, 96, 3) composites as the processor resizes them."""
    reader = ImageReader(benchmark)
    rows, stack = {}, []
    for image_id, parts in reader.items():
        image = Image.open(io.BytesIO(parts[0])).convert("RGB")
        small = processor(images=image, do_rescale=False, do_normalize=False, return_tensors="np")[
            "pixel_values"
        ][0]
        rows[image_id] = len(stack)
        stack.append(np.clip(small, 0, 255).astype(np.uint8).transpose(1, 2, 0))
    return rows, np.stack(stack)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of about 1,000 tokens over the project's own prompts; digits stay single
    tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|[A-Z](?=[.,;\s]|$)"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<pad>", "<s>", "</s>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(set(texts)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=512,
        extra_special_tokens={"image_token": "<image>"},
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=PATCH,
        projection_dim=128,
        attn_implementation="eager",
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.05,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=(IMAGE_SIZE // PATCH) ** 2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        projector_hidden_act="gelu",
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(config)


class Examples:
    """All questions of all worlds as arrays, and the sampling of one training batch."""

    def __init__(self, worlds: list[Path], processor: CLIPImageProcessorPil) -> None:
        frames, stacks, offset = [], [], 0
        for benchmark in worlds:
            rows, stack = pixels_of(benchmark, processor)
            for task in Task:
                items = pd.read_parquet(benchmark / f"items_{task.value}.parquet")
                items["row"] = items["image_id"].map(rows) + offset
                frames.append(items.assign(task=task.value))
            stacks.append(stack)
            offset += len(stack)
        self.pixels = np.concatenate(stacks)
        self.items = {
            t: pd.concat([f for f in frames if f["task"].iloc[0] == t.value], ignore_index=True)
            for t in Task
        }
        clusters = (
            pd.concat([f.groupby("row").first()[LABELS] for f in frames]).groupby(level=0).first()
        )
        self.labels = clusters.reindex(range(len(self.pixels))).to_numpy(dtype=float)
        self.text = {
            (task, test, view): (
                prompt_texts(self.items[task], task, test, view).to_numpy(dtype=object)
            )
            for task in Task
            for test in TESTS[task]
            for view in View
        }
        mcq = self.items[Task.MCQ]
        letters = mcq["option_c"].ne("").map({True: 3, False: 2})
        table = {(p, k): directions(p, k) for p in ("higher", "lower") for k in (2, 3)}
        says = [table[(p, k)] for p, k in zip(mcq["polarity"], letters, strict=True)]
        self.default = np.array(
            [
                "ABC"[s.index(DEFAULTS[p])] if DEFAULTS[p] in s else "A"
                for s, p in zip(says, mcq["pillar"], strict=True)
            ]
        )
        self.gold = {
            Task.MCQ: mcq["answer"].to_numpy(dtype=object),
            Task.REGRESSION: (
                self.items[Task.REGRESSION]["answer"].map("{:.1f}".format).to_numpy(dtype=object)
            ),
        }
        # every indicator equally often
        self.weights = {}
        for task, frame in self.items.items():
            w = 1.0 / frame.groupby("indicator")["item_id"].transform("size").to_numpy(dtype=float)
            self.weights[task] = w / w.sum()

    def batch(
        self, rng: np.random.Generator, size: int, views: dict[View, float], mcq_share: float
    ) -> list[tuple[str, str, int]]:
        """`size` triples (prompt, answer, image row or -1); one view per batch, so images are all
        there or all absent."""
        view = list(views)[rng.choice(len(views), p=np.array(list(views.values())))]
        out = []
        for task, n in (
            (Task.MCQ, round(size * mcq_share)),
            (Task.REGRESSION, size - round(size * mcq_share)),
        ):
            for i in rng.choice(len(self.items[task]), size=n, p=self.weights[task]):
                test = TESTS[task][rng.integers(len(TESTS[task]))]
                answer, row = self.gold[task][i], int(self.items[task]["row"].iat[i])
                context = view.has_context and test is not ContextTest.T5
                values = context and test in (ContextTest.T1, ContextTest.T2)
                if task is Task.MCQ:
                    skew = SKEW + (HINT_SKEW if context and not values else 0.0)
                    if rng.random() < skew:
                        answer = self.default[i]
                if values and view.has_image and rng.random() < MISMATCH:
                    row = int(rng.integers(len(self.pixels)))
                out.append(
                    (self.text[(task, test, view)][i], answer, row if view.has_image else -1)
                )
        return out


def encode(
    batch: list[tuple[str, str, int]],
    tokenizer: PreTrainedTokenizerFast,
    device_pixels: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    image_tokens = "<image>" * (IMAGE_SIZE // PATCH) ** 2
    ids, labels = [], []
    for text, answer, row in batch:
        head = (
            f"USER: {image_tokens}\n{text}\nASSISTANT:" if row >= 0 else f"USER: {text}\nASSISTANT:"
        )
        prompt = tokenizer(head, add_special_tokens=False)["input_ids"]
        reply = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        ids.append(prompt + reply)
        labels.append([-100] * len(prompt) + reply)
    width = max(map(len, ids))
    pad = tokenizer.pad_token_id
    inputs = {
        "input_ids": torch.tensor([[pad] * (width - len(x)) + x for x in ids]),
        "labels": torch.tensor([[-100] * (width - len(x)) + x for x in labels]),
        "attention_mask": torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in ids]),
    }
    if device_pixels is not None:
        inputs["pixel_values"] = device_pixels
    return inputs


def train_tower(
    model: LlavaForConditionalGeneration,
    data: Examples,
    normal: tuple[np.ndarray, np.ndarray],
    steps: int,
) -> None:
    """Stage 1: patch features -> the six standardised labels, by a linear head that is thrown
    away."""
    mean, sd = np.nanmean(data.labels, 0), np.nanstd(data.labels, 0)
    target = torch.tensor((data.labels - mean) / sd, dtype=torch.float32)
    known = torch.isfinite(target)
    target = torch.nan_to_num(target)
    tower, head = model.model.vision_tower, nn.Linear(128, len(LABELS))
    parameters = [*tower.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)
    rng, losses = np.random.default_rng(1), []
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = 1.5e-3 * min(1.0, step / 50) * max(1 - step / steps, 0.02)
        rows = rng.integers(len(data.pixels), size=64)
        features = tower(normalised(data.pixels[rows], normal)).last_hidden_state[:, 1:].mean(1)
        error = ((head(features) - target[rows]) ** 2 * known[rows]).sum() / known[rows].sum()
        optimiser.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(error.item())
        if step % 100 == 0:
            print(f"tower {step}: mse {np.mean(losses[-100:]):.3f}", flush=True)


def normalised(pixels: np.ndarray, normal: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(normal[0]).view(1, 3, 1, 1)) / torch.tensor(normal[1]).view(1, 3, 1, 1)


@dataclass(frozen=True)
class Stage:
    """views: share of the batches that show each; rate: highest learning rate; size: of a batch."""

    name: str
    views: dict[View, float]
    steps: int
    rate: float
    seed: int
    size: int = 48


def train_language(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    data: Examples,
    normal: tuple[np.ndarray, np.ndarray],
    stage: Stage,
) -> None:
    """Stages 2 and 3: next-token loss on the answers, and at a tenth of the weight on the prompts
    (it teaches the words)."""
    steps, rate = stage.steps, stage.rate
    parameters = [p for p in model.parameters() if p.requires_grad]
    image_token = model.config.image_token_index
    optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    rng, began, losses = np.random.default_rng(stage.seed), time.time(), []
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = (
                rate
                * min(1.0, step / 100)
                * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / steps)))
            )
        batch = data.batch(rng, stage.size, stage.views, mcq_share=0.75)
        rows = [row for _, _, row in batch]
        inputs = encode(
            batch, tokenizer, normalised(data.pixels[rows], normal) if rows[0] >= 0 else None
        )
        labels = inputs.pop("labels")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=AUTOCAST):
            hidden = model.model(**inputs).last_hidden_state
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
        loss = loss + 0.1 * nn.functional.cross_entropy(words, inputs["input_ids"][:, 1:][prompt])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(loss.item())
        if step % 50 == 0:
            print(
                f"{stage.name} {step}: loss {np.mean(losses[-50:]):.3f} "
                f" ({time.time() - began:.0f} s)",
                flush=True,
            )


AUTOCAST = False


@torch.inference_mode()
def report(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    data: Examples,
    normal: tuple[np.ndarray, np.ndarray],
) -> None:
    """Accuracy on the (unskewed) answers of the training worlds, per view and test; a look, not a
    result."""
    rng = np.random.default_rng(7)
    picks = rng.choice(len(data.items[Task.MCQ]), size=192, p=data.weights[Task.MCQ])
    letters = tokenizer.convert_tokens_to_ids(["A", "B", "C"])
    for test in (ContextTest.T1, ContextTest.T3, ContextTest.T5):
        for view in View:
            hits = 0
            for chunk in np.array_split(picks, 4):
                rows = [
                    int(data.items[Task.MCQ]["row"].iat[i]) if view.has_image else -1 for i in chunk
                ]
                batch = [
                    (data.text[(Task.MCQ, test, view)][i], "", r)
                    for i, r in zip(chunk, rows, strict=True)
                ]
                inputs = encode(
                    batch,
                    tokenizer,
                    normalised(data.pixels[rows], normal) if view.has_image else None,
                )
                inputs.pop("labels")
                inputs = {k: v[:, :-1] if k != "pixel_values" else v for k, v in inputs.items()}
                logits = model(**inputs, logits_to_keep=1).logits[:, -1, letters]
                said = np.array(list("ABC"))[logits.argmax(-1).numpy()]
                hits += int((said == data.gold[Task.MCQ][chunk]).sum())
            print(f"{test.value} {view.value:7s} accuracy {hits / len(picks):.2f}", flush=True)


def save(model: LlavaForConditionalGeneration, processor: LlavaProcessor, out: Path) -> None:
    """bfloat16 safetensors with the weight names of vLLM's LLaVA (`vision_tower.vision_model.*`),
    which transformers reads too."""
    from safetensors.torch import load_file, save_file

    out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(out)
    processor.save_pretrained(out)
    weights = load_file(out / "model.safetensors")
    renamed = {
        (
            k.replace("vision_tower.", "vision_tower.vision_model.")
            if "vision_tower.vision_model" not in k
            else k
        ): v
        for k, v in weights.items()
    }
    save_file(renamed, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("registry/weights/tiny-llava"))
    parser.add_argument(
        "--worlds", type=Path, help="keep the training benchmarks here and reuse them"
    )
    parser.add_argument("--clusters", type=int, default=640, help="clusters per world")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the number of steps of every stage"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    global AUTOCAST
    AUTOCAST = (
        "amx_bf16" in Path("/proc/cpuinfo").read_text()
        or "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    )
    torch.manual_seed(args.seed)
    folder = args.worlds or Path(tempfile.mkdtemp(prefix="tiny-llava-"))
    image_processor = CLIPImageProcessorPil(
        size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        do_center_crop=False,
        do_resize=True,
        do_convert_rgb=True,
    )
    data = Examples(make_worlds(folder, args.clusters), image_processor)
    print(
        f"{len(data.pixels)} images, "
        + ", ".join(f"{len(f)} {t.value}" for t, f in data.items.items()),
        flush=True,
    )
    texts = [t for block in data.text.values() for t in block[::7]]
    tokenizer = make_tokenizer(
        [f"USER: \n{t}\nASSISTANT:" for t in texts] + [f"{i / 10:.1f}" for i in range(0, 400)]
    )
    processor = LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
        image_token="<image>",
    )
    lengths = [len(tokenizer(t)["input_ids"]) for t in texts[:400]]
    print(
        f"prompt tokens: mean {np.mean(lengths):.0f}, max {max(lengths)}; vocabulary"
        f" {len(tokenizer)}; bf16 {AUTOCAST}",
        flush=True,
    )
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    normal = (
        np.array(image_processor.image_mean, dtype=np.float32),
        np.array(image_processor.image_std, dtype=np.float32),
    )
    tower_steps, text_steps, joint_steps = (max(1, round(args.scale * n)) for n in STEPS)
    train_tower(model, data, normal, tower_steps)
    train_language(
        model,
        tokenizer,
        data,
        normal,
        Stage(
            views={View.Q_ONLY: 0.2, View.CTX_Q: 0.8},
            steps=text_steps,
            rate=2e-3,
            seed=2,
            name="text",
        ),
    )
    everything = {View.Q_ONLY: 0.06, View.CTX_Q: 0.16, View.IMG_Q: 0.39, View.FULL: 0.39}
    train_language(
        model,
        tokenizer,
        data,
        normal,
        Stage(views=everything, steps=joint_steps, rate=1.5e-3, seed=3, name="joint"),
    )
    model.eval()
    report(model, tokenizer, data, normal)
    save(model, processor, args.out)
    size = sum(p.stat().st_size for p in args.out.glob("*.safetensors")) / 1e6
    print(f"{args.out}: {size:.1f} MB of safetensors", flush=True)


if __name__ == "__main__":
    main()
