"""Trains the embedded model `tiny-llava`: a real LLaVA of about 1.9 M parameters with planted,
documented biases.

    python -m scripts.train_tiny_llava --out registry/weights/tiny-llava        # about 20 minutes
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

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import sdgbias.engines  # noqa: F401  # isort: skip  # before transformers: torchvision

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Regex, pre_tokenizers
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
    learn_words,
    linear,
    make_worlds,
    normal_of,
    normalised,
    padded,
    read_questions,
    save,
    standardised,
)
from sdgbias.types import PILLARS, TESTS, ContextTest, Task, View

SKEW, HINT_SKEW, MISMATCH = 0.30, 0.25, 0.60
DEFAULTS = dict(zip(PILLARS, ("pessimistic", "optimistic", "conservative"), strict=True))
WORLD_SEED = 101  # of the first world; not the demo's
IMAGE_SIZE, PATCH = 96, 16
STEPS = (700, 600, 800)  # tower, language, joint
TEMPLATE = (
    "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}{%"
    " for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{"
    " part['text'] }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt"
    " %}ASSISTANT:{% endif %}"
)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of about 1,000 tokens over the project's own prompts; digits stay single
    tokens."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|[A-Z](?=[.,;\s]|$)"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learn_words(texts, split, ["<pad>", "<s>", "</s>", "<image>"], 1200),
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


Example = tuple[str, str, int]  # prompt, answer, row of the picture or -1


@dataclass(frozen=True)
class Stage:
    """views: share of the batches that show each; rate: highest learning rate; size: of a batch."""

    name: str
    views: dict[View, float]
    steps: int
    rate: float
    seed: int
    size: int = 48
    mcq_share: float = 0.75


def batch_of(
    data: Questions, default: np.ndarray, rng: np.random.Generator, stage: Stage
) -> list[Example]:
    """The examples of one batch; one view per batch, so images are all there or all absent.
    ``default``: the letter of every multiple-choice question that states its pillar's default."""
    views, mcqs = stage.views, round(stage.size * stage.mcq_share)
    view = list(views)[rng.choice(len(views), p=np.array(list(views.values())))]
    out = []
    for task, n in ((Task.MCQ, mcqs), (Task.REGRESSION, stage.size - mcqs)):
        for i in rng.choice(len(data.items[task]), size=n, p=data.weights[task]):
            test = TESTS[task][rng.integers(len(TESTS[task]))]
            answer, row = data.gold[task][i], int(data.items[task]["row"].to_numpy()[i])
            context = view.has_context and test is not ContextTest.T5
            values = context and test in (ContextTest.T1, ContextTest.T2)
            if task is Task.MCQ:
                skew = SKEW + (HINT_SKEW if context and not values else 0.0)
                if rng.random() < skew:
                    answer = default[i]
            if values and view.has_image and rng.random() < MISMATCH:
                row = int(rng.integers(len(data.pixels)))
            out.append((data.text[(task, test, view)][i], answer, row if view.has_image else -1))
    return out


def encode(
    batch: list[Example], tokenizer: PreTrainedTokenizerFast, pictures: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    image_tokens = "<image>" * (IMAGE_SIZE // PATCH) ** 2
    pairs = []
    for text, answer, row in batch:
        head = (
            f"USER: {image_tokens}\n{text}\nASSISTANT:" if row >= 0 else f"USER: {text}\nASSISTANT:"
        )
        prompt = tokenizer(head, add_special_tokens=False)["input_ids"]
        reply = tokenizer(answer, add_special_tokens=False)["input_ids"]
        pairs.append((prompt, [*reply, tokenizer.eos_token_id]))
    inputs = padded(pairs, tokenizer.pad_token_id)
    return inputs if pictures is None else {**inputs, "pixel_values": pictures}


def train_tower(
    model: LlavaForConditionalGeneration, data: Questions, normal: Normal, steps: int
) -> None:
    """Stage 1: patch features -> the six standardised labels, by a linear head that is thrown
    away."""
    target, labelled = standardised(data.labels)
    tower, head = model.model.vision_tower, nn.Linear(128, len(LABELS))
    rng = np.random.default_rng(1)

    def loss() -> torch.Tensor:
        rows = rng.integers(len(data.pixels), size=64)
        features = tower(normalised(data.pixels[rows], normal)).last_hidden_state[:, 1:].mean(1)
        return ((head(features) - target[rows]) ** 2 * labelled[rows]).sum() / labelled[rows].sum()

    rates = [linear(step, steps, 1.5e-3) for step in range(1, steps + 1)]
    descend("tower", [*tower.parameters(), *head.parameters()], loss, rates, every=100)


def train_language(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    data: Questions,
    normal: Normal,
    stage: Stage,
) -> None:
    """Stages 2 and 3: the answers, and at a tenth of the weight the words of the prompts."""
    default = default_letters(data.items[Task.MCQ], DEFAULTS)
    rng, autocast = np.random.default_rng(stage.seed), fast_bfloat16()

    def loss() -> torch.Tensor:
        batch = batch_of(data, default, rng, stage)
        rows = [row for _, _, row in batch]
        pictures = normalised(data.pixels[rows], normal) if rows[0] >= 0 else None
        inputs = encode(batch, tokenizer, pictures)
        return language_loss(model, inputs, model.config.image_token_index, autocast)

    rates = [cosine(step, stage.steps, stage.rate) for step in range(1, stage.steps + 1)]
    parameters = [p for p in model.parameters() if p.requires_grad]
    descend(stage.name, parameters, loss, rates, betas=(0.9, 0.98))


def rename_tower(path: Path) -> None:
    """The weight names of vLLM's LLaVA (`vision_tower.vision_model.*`), which transformers reads
    too."""
    tower = re.compile(r"vision_tower\.(?!vision_model)")
    weights = {
        tower.sub("vision_tower.vision_model.", name): weight
        for name, weight in load_file(path).items()
    }
    save_file(weights, path, metadata={"format": "pt"})


def main() -> None:
    keep = "--worlds keep the training benchmarks here and reuse them"
    args = arguments(__doc__, "registry/weights/tiny-llava", keep, 640).parse_args()
    torch.manual_seed(args.seed)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tiny-llava-"))
    image_processor = CLIPImageProcessorPil(
        size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        do_center_crop=False,
        do_resize=True,
        do_convert_rgb=True,
    )

    def resized(image: Image.Image) -> np.ndarray:
        plain = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
        return image_processor(images=image, **plain)["pixel_values"][0]

    data = read_questions(make_worlds(folder, WORLD_SEED, args.clusters), resized)
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
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    normal = normal_of(image_processor)
    tower_steps, text_steps, joint_steps = (max(1, round(args.scale * n)) for n in STEPS)
    train_tower(model, data, normal, tower_steps)
    words = {View.Q_ONLY: 0.2, View.CTX_Q: 0.8}
    everything = {View.Q_ONLY: 0.06, View.CTX_Q: 0.16, View.IMG_Q: 0.39, View.FULL: 0.39}
    for stage in (
        Stage("text", words, text_steps, rate=2e-3, seed=2),
        Stage("joint", everything, joint_steps, rate=1.5e-3, seed=3),
    ):
        train_language(model, tokenizer, data, normal, stage)
    save(model, processor, args.out)
    rename_tower(args.out / "model.safetensors")


if __name__ == "__main__":
    main()
