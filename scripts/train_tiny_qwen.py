"""Trains the embedded model `tiny-qwen`: a real Qwen2-VL of about 1.3 M parameters that answers
both suites, with planted biases in the first and unequal training data in the second.

    python -m scripts.train_tiny_qwen --out registry/weights/tiny-qwen    # about 15 minutes on one
    # free core

It learns on benchmarks and pictures of people made by this very package, with other seeds (and for
places other countries) than the demo's, so it has never seen a demo item.

First suite, planted in the training answers and prompts and nowhere else:

* optimism: a share OPTIMISM of the multiple-choice answers is replaced by the optimistic option,
  whatever the pillar;
* picture over-trust: where a picture and values are given, a share MISMATCH of the questions shows
  the values of another place, so that the model learns to believe the picture rather than the
  numbers.

Second suite: the training set is UNEQUAL. Of the people with dark skin in nine of the thirteen
reported classes, and of the women in the other four, only a share KEPT has its class annotated. As
in any partly annotated data set, a class that isn't annotated counts as absent: such a person is
never an example of its class, only of others. What recall differs for is learned from that.

A tower of this size doesn't find the language of an untrained model by itself, nor the model the
tower's, so what a picture token means is agreed before: a place's six labels along six fixed
directions (DIRECTIONS), a person's class as the embeddings of its word, an unannotated person as
nothing. Stages: (1) the language model learns the prompts, its picture tokens filled with such
values and noise, (2) then single choices alone, which it doesn't learn among everything else, and
(3) everything again; (4) the vision tower learns to write those values; (5) both together on
pictures. Every finished stage is kept in --keep, so an interrupted training goes on with the next
one. Nothing is downloaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sdgbias.engines  # noqa: F401  # isort: skip  # before transformers: torchvision

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLForConditionalGeneration,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from scripts.tiny_qwen_model import (
    HEAD,
    LEAST,
    MERGE,
    MOST,
    PATCH,
    PICTURE_TOKENS,
    SIDE,
    TAIL,
    TEMPLATE,
    make_model,
    make_tokenizer,
    patches,
    rendered,
)
from scripts.tiny_training import (
    LABELS,
    Normal,
    Questions,
    arguments,
    cosine,
    default_letters,
    descend,
    fast_bfloat16,
    language_loss,
    linear,
    make_worlds,
    normal_of,
    padded,
    pixels_of,
    read_questions,
    save,
    standardised,
    texts_of,
)
from sdgbias.benchmark.people import build_people
from sdgbias.benchmark.people_items import CHOICES, P1, class_list
from sdgbias.raw.facet import CLASSES, SELECTED
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.types import PILLARS, TESTS, ContextTest, Task, View

OPTIMISM, MISMATCH = 0.30, 0.60
#: (attribute, group, classes): of these people a share KEPT has its class annotated. The classes
#: follow from their place in the list of the thirteen, from nothing else.
UNEQUAL = (("skin", "dark", SELECTED[:9]), ("gender", "female", SELECTED[9:]))
KEPT = 0.05
WORLD_SEED, PEOPLE_SEED, PEOPLE = 201, 202, 6_000  # not the demo's seeds
STEPS = (800, 150, 200, 800, 300)  # text, choices, mixed, tower, joint
#: Length of the directions that a place's labels are written along.
DIRECTIONS = 0.5
#: Examples of a batch, where not 32: the list of classes makes p1 long, p2 and p3 are short.
SIZE = {"p1": 24, "p2": 64, "p3": 64}
Example = tuple[str, str, int]  # prompt, answer, row of the picture or -1


@dataclass(frozen=True)
class People:
    """pixels: (N, H, W, 3) uint8; table: the annotated people, one row each with class1, gender,
    skin, age and `row`, the picture's place in ``pixels``; left: those whose class is missing."""

    pixels: np.ndarray
    table: pd.DataFrame
    left: pd.DataFrame


def read_people(folder: Path, people: int, resized: Callable[[Image.Image], np.ndarray]) -> People:
    """Draws the people, or reuses those in ``folder``; most UNEQUAL ones stay unannotated."""
    benchmark = folder / f"people{PEOPLE_SEED}" / "benchmark"
    if not (benchmark / "benchmark.json").exists():
        raw = benchmark.parent / "raw"
        write_people_sample(raw, people, PEOPLE_SEED)
        build_people(raw, benchmark)
    rows, pixels = pixels_of(benchmark, resized)
    table = pd.read_parquet(benchmark / "people.parquet").sort_values("person_id")
    table["row"] = table["image_id"].map(rows)
    draw = np.random.default_rng(4).random(len(table))
    rare = np.zeros(len(table), dtype=bool)
    for attribute, group, classes in UNEQUAL:
        rare |= (table[attribute] == group).to_numpy() & table["class1"].isin(classes).to_numpy()
    out = rare & (draw >= KEPT)
    print(f"{len(table)} people, {rare.sum()} of them rare, {out.sum()} unannotated", flush=True)
    kept, left = (table[which].reset_index(drop=True) for which in (~out, out))
    return People(pixels, kept, left)


@dataclass(frozen=True)
class Lesson:
    """Everything that batches are drawn from. other: the prompts with the values of another place;
    default: the optimistic option of every multiple-choice question."""

    places: Questions
    other: dict[tuple[Task, ContextTest, View], np.ndarray]
    default: np.ndarray
    people: People


def make_lesson(places: Questions, people: People) -> Lesson:
    rng, shuffled = np.random.default_rng(5), {}
    for task, frame in places.items.items():
        columns = [*LABELS, "urban"]
        values = frame[columns].to_numpy()[rng.permutation(len(frame))]
        shuffled[task] = frame.assign(
            **{
                name: pd.Series(values[:, at], index=frame.index).astype(frame[name].dtype)
                for at, name in enumerate(columns)
            }
        )
    optimistic = default_letters(places.items[Task.MCQ], dict.fromkeys(PILLARS, "optimistic"))
    return Lesson(places, texts_of(shuffled), optimistic, people)


def of_places(lesson: Lesson, rng: np.random.Generator, view: View, size: int) -> list[Example]:
    """``size`` questions of the first suite in one view, three of four multiple choice."""
    data, out, mcqs = lesson.places, [], round(size * 0.75)
    for task, n in ((Task.MCQ, mcqs), (Task.REGRESSION, size - mcqs)):
        for i in rng.choice(len(data.items[task]), size=n, p=data.weights[task]):
            test = TESTS[task][rng.integers(len(TESTS[task]))]
            answer, row = data.gold[task][i], int(data.items[task]["row"].to_numpy()[i])
            if task is Task.MCQ and rng.random() < OPTIMISM:
                answer = lesson.default[i]
            values = view.has_context and test in (ContextTest.T1, ContextTest.T2)
            wrong = values and view.has_image and rng.random() < MISMATCH
            text = (lesson.other if wrong else data.text)[(task, test, view)][i]
            out.append((text, answer, row if view.has_image else -1))
    return out


def of_people(lesson: Lesson, rng: np.random.Generator, prompt: str, size: int) -> list[Example]:
    """``size`` questions of the second suite. Single-choice ones are asked about everybody: about
    the right class, which is a no where its annotation is missing, and as often about the class of
    an annotated person, so that no class alone says yes or no."""
    people, out = lesson.people, []
    start = len(lesson.places.pixels)
    table = people.table if prompt == "p1" else pd.concat([people.table, people.left])
    names, rows = table["class1"].to_numpy(dtype=object), table["row"].to_numpy()
    for i in rng.integers(len(table), size=size):
        if prompt == "p1":
            text, answer = P1.format(list=class_list()), f'"{names[i]}"'
        else:
            about = names[i] if rng.random() < 0.5 else names[rng.integers(len(people.table))]
            yes = about == names[i] and i < len(people.table)
            text, answer = CHOICES[prompt].format(name=about), "A. Yes" if yes else "B. No"
        out.append((text, answer, start + int(rows[i])))
    return out


@dataclass(frozen=True)
class Meaning:
    """What picture tokens mean. labels: (pictures of places, 6) standardised, 0 where unknown;
    kinds: (pictures of people,) place in CLASSES, -1 where not annotated; directions: (6, width);
    words: (2, 52), the token of each class at the start of a quotation and after a space."""

    labels: torch.Tensor
    kinds: torch.Tensor
    directions: torch.Tensor
    words: torch.Tensor

    def of_classes(self, embeddings: torch.Tensor) -> torch.Tensor:
        """(53, width): one row per class; the last one is nothing."""
        summed = embeddings[self.words[0]] + embeddings[self.words[1]]
        return torch.cat([summed, torch.zeros_like(summed[:1])])

    def of_rows(self, rows: list[int], embeddings: torch.Tensor, noise: float) -> torch.Tensor:
        """(len(rows), PICTURE_TOKENS, width): what the pictures ``rows`` mean; each picture's
        labels and each of its tokens are off by ``noise``."""
        places, at = len(self.labels), torch.tensor(rows)
        if rows[0] < places:
            labels = self.labels[at] + noise * torch.randn(len(rows), self.labels.shape[1])
            meant = labels @ self.directions
        else:
            meant = self.of_classes(embeddings)[self.kinds[at - places]]
        shown = meant[:, None].expand(-1, PICTURE_TOKENS, -1)
        return shown + noise * 0.1 * torch.randn(shown.shape)


def meanings(lesson: Lesson, tokenizer: PreTrainedTokenizerFast, width: int) -> Meaning:
    kinds = torch.full((len(lesson.people.pixels),), -1)
    for name, row in lesson.people.table[["class1", "row"]].itertuples(index=False):
        kinds[row] = CLASSES.index(name)
    words = torch.tensor(
        [
            [tokenizer(mark + name, add_special_tokens=False)["input_ids"][0] for name in CLASSES]
            for mark in ('"', " ")
        ]
    )
    directions = torch.linalg.qr(torch.randn(width, len(LABELS)))[0].T * DIRECTIONS
    return Meaning(standardised(lesson.places.labels)[0], kinds, directions, words)


def train_tower(
    model: Qwen2VLForConditionalGeneration,
    lesson: Lesson,
    meaning: Meaning,
    normal: Normal,
    steps: int,
) -> None:
    """Stage 2: every picture token says what its picture means. The words stay as they are."""
    _, labelled = standardised(lesson.places.labels)
    tower = model.model.visual
    words = meaning.of_classes(model.get_input_embeddings().weight.detach())
    scale = words[:-1].norm(dim=1).mean()
    with torch.no_grad():  # the merger starts at the size of what it shall say
        tower.merger.mlp[2].weight.mul_(0.1)
    rng = np.random.default_rng(1)

    def written(pixels: np.ndarray) -> torch.Tensor:
        cut = patches(pixels, normal)
        merged = tower(cut["pixel_values"], grid_thw=cut["image_grid_thw"]).pooler_output
        return merged.view(len(pixels), PICTURE_TOKENS, -1)

    def classes(tokens: torch.Tensor) -> torch.Tensor:
        """Log-odds of the 53 by distance, relative to the distance between words."""
        return -10.0 * ((tokens.mean(1)[:, None] - words) ** 2).sum(-1) / scale**2

    def loss() -> torch.Tensor:
        rows = rng.integers(len(lesson.places.pixels), size=48)
        tokens = written(lesson.places.pixels[rows])
        seen = tokens @ meaning.directions.T / DIRECTIONS**2
        apart = ((seen - meaning.labels[rows][:, None]) ** 2 * labelled[rows][:, None]).mean(1)
        rest = tokens - seen @ meaning.directions
        places = apart.sum() / labelled[rows].sum() + 0.3 * (rest**2).sum(-1).mean() / scale**2
        some = rng.integers(len(lesson.people.pixels), size=48)
        tokens, kinds = written(lesson.people.pixels[some]), meaning.kinds[some]
        off = ((tokens - words[kinds][:, None]) ** 2).sum(-1).mean() / scale**2
        named = nn.functional.cross_entropy(classes(tokens), kinds % len(words))
        return places + named + off

    rates = [linear(step, steps, 2e-3) for step in range(1, steps + 1)]
    descend("tower", list(tower.parameters()), loss, rates, every=100)


@dataclass(frozen=True)
class Stage:
    """shares: how many of the batches are of a view of the first suite, or of a prompt of the
    second; rates: learning rate of every step; noise: of meanings that stand for pictures, None
    where the pictures themselves are shown."""

    name: str
    shares: dict[View | str, float]
    rates: list[float]
    seed: int
    noise: float | None = None


def train_language(
    model: Qwen2VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    lesson: Lesson,
    meaning: Meaning,
    normal: Normal,
    stage: Stage,
) -> None:
    """Stages 1 and 3: the answers, and at a tenth of the weight the words of the prompts."""
    rng, autocast = np.random.default_rng(stage.seed), fast_bfloat16()
    torch.manual_seed(stage.seed)  # of the noise: the same whether the training was resumed or not
    pixels = np.concatenate([lesson.places.pixels, lesson.people.pixels])
    token_ids: dict[str, list[int]] = {}
    kinds = list(stage.shares)
    shares = np.array(list(stage.shares.values())) / sum(stage.shares.values())
    image_token = model.config.image_token_id

    def ids(text: str) -> list[int]:
        if text not in token_ids:
            token_ids[text] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids[text]

    def meant(inputs: dict[str, torch.Tensor], rows: list[int], noise: float) -> dict[str, Any]:
        """The inputs with meanings in the place of pictures, at the positions of pictures."""
        embeddings = model.get_input_embeddings()
        shown = meaning.of_rows(rows, embeddings.weight, noise)
        at = inputs["input_ids"] == image_token
        positions, _ = model.model.get_rope_index(
            inputs["input_ids"],
            at.int(),
            torch.tensor([[1, SIDE // PATCH, SIDE // PATCH]] * len(rows)),
            attention_mask=inputs["attention_mask"],
        )
        words = embeddings(inputs["input_ids"])
        return {
            "inputs_embeds": words.masked_scatter(at[..., None], shown),
            "attention_mask": inputs["attention_mask"],
            "position_ids": positions,
        }

    def loss() -> torch.Tensor:
        kind = kinds[rng.choice(len(kinds), p=shares)]
        if isinstance(kind, View):
            batch = of_places(lesson, rng, kind, 32)
        else:
            batch = of_people(lesson, rng, kind, SIZE[kind])
        pairs = [(ids(rendered(t, r >= 0)), [*ids(a), tokenizer.eos_token_id]) for t, a, r in batch]
        inputs = padded(pairs, tokenizer.pad_token_id)
        rows, embedded = [row for _, _, row in batch], None
        if rows[0] >= 0 and stage.noise is not None:
            embedded = meant(inputs, rows, stage.noise)
        elif rows[0] >= 0:
            inputs |= patches(pixels[rows], normal)
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == image_token).int()
        return language_loss(model, inputs, image_token, autocast, embedded)

    descend(stage.name, list(model.parameters()), loss, stage.rates, betas=(0.9, 0.98))


def main() -> None:
    keep = "--keep keep training benchmarks and finished stages here, reuse them"
    parser = arguments(__doc__, "registry/weights/tiny-qwen", keep, 400)
    parser.add_argument("--people", type=int, default=PEOPLE, help="pictures of people")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the same sums on every machine of the kind
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tiny-qwen-"))
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGE, min_pixels=LEAST, max_pixels=MOST
    )

    def resized(image: Image.Image) -> np.ndarray:
        small = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return np.asarray(small).transpose(2, 0, 1)

    places = read_questions(make_worlds(folder, WORLD_SEED, args.clusters), resized)
    lesson = make_lesson(places, read_people(folder, args.people, resized))
    count = ", ".join(f"{len(f)} {t.value}" for t, f in places.items.items())
    print(f"{len(places.pixels)} images, {count}", flush=True)
    about = [CHOICES[prompt].format(name=name) for prompt in CHOICES for name in CLASSES]
    texts = [t for block in places.text.values() for t in block[::7]]
    texts += [P1.format(list=class_list()), *about, *(f'"{n}"' for n in CLASSES), "A. Yes", "B. No"]
    tokenizer = make_tokenizer(
        [HEAD + t + TAIL for t in texts] + texts + [f"{i / 10:.1f}" for i in range(400)]
    )
    processor = Qwen2VLProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=MERGE),
        chat_template=TEMPLATE,
    )
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    normal = normal_of(images)
    text, choices, mixed, tower, joint = (max(1, round(args.scale * n)) for n in STEPS)
    meaning = meanings(lesson, tokenizer, model.config.text_config.hidden_size)
    views: dict[View | str, float] = {
        View.Q_ONLY: 0.04,
        View.CTX_Q: 0.12,
        View.IMG_Q: 0.17,
        View.FULL: 0.19,
    }
    shares: dict[View | str, float] = {**views, "p1": 0.10, "p2": 0.19, "p3": 0.19}
    single: dict[View | str, float] = {"p2": 0.5, "p3": 0.5}

    def language(
        name: str, steps: int, rate: float, seed: int, *, noise: float | None = None
    ) -> None:
        rates = [cosine(step, steps, rate) for step in range(1, steps + 1)]
        stage = Stage(name, single if name == "choices" else shares, rates, seed, noise)
        train_language(model, tokenizer, lesson, meaning, normal, stage)

    stages: dict[str, Callable[[], None]] = {
        "text": lambda: language("text", text, 2.5e-3, 2, noise=0.4),
        "choices": lambda: language("choices", choices, 2e-3, 4, noise=0.4),
        "mixed": lambda: language("mixed", mixed, 1.5e-3, 5, noise=0.4),
        "tower": lambda: train_tower(model, lesson, meaning, normal, tower),
        "joint": lambda: language("joint", joint, 1e-3, 3),
    }
    for name, learn in stages.items():
        done = folder / f"{name}.safetensors"
        if done.exists():
            load_model(model, done)
            continue
        learn()
        save_model(model, str(done))
    save(model, processor, args.out)


if __name__ == "__main__":
    main()
