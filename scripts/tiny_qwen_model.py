"""The parts of the embedded model `tiny-qwen`: a Qwen2-VL of about 1.3 M parameters, its tokenizer
with Qwen2's words and special tokens, its chat template, and pictures as its processor cuts them.
"""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from scripts.tiny_training import Normal, learn_words, normalised

PATCH, MERGE = 14, 2
#: Pixels of a picture as the image processor resizes it: those of both suites become SIDE x SIDE.
LEAST, MOST, SIDE = 56 * 56, 28 * 28 * 12, 84
PICTURE_TOKENS = (SIDE // PATCH // MERGE) ** 2
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
#: How Qwen2 cuts text into words before the byte-level merges; every digit is a word.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Qwen2-VL's own chat template.
TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for"
    " message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n{% if"
    " message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}{% for content"
    " in message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url'"
    " in content %}{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture"
    " {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif"
    " content['type'] == 'video' or 'video' in content %}{% set video_count.value ="
    " video_count.value + 1 %}{% if add_vision_id %}Video {{ video_count.value }}: {% endif"
    " %}<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text']"
    " }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt"
    " %}<|im_start|>assistant\n{% endif %}"
)
HEAD, TAIL = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Qwen2's byte-level BPE with Qwen's own special tokens, learned from the project's prompts."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learn_words(texts, split, SPECIAL, 1500),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_max_length=1024,
        additional_special_tokens=SPECIAL[1:],
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2VLForConditionalGeneration:
    number = tokenizer.convert_tokens_to_ids
    config = Qwen2VLConfig(
        vision_config={
            "depth": 2,
            "embed_dim": 96,
            "hidden_size": 128,
            "mlp_ratio": 3,
            "num_heads": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "initializer_range": 0.05,
            "bos_token_id": number("<|endoftext|>"),
            "eos_token_id": number("<|im_end|>"),
            "pad_token_id": number("<|endoftext|>"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 6, 6],
            },
            "tie_word_embeddings": True,
        },
        image_token_id=number("<|image_pad|>"),
        video_token_id=number("<|video_pad|>"),
        vision_start_token_id=number("<|vision_start|>"),
        vision_end_token_id=number("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    model = Qwen2VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = [number("<|im_end|>"), number("<|endoftext|>")]
    model.generation_config.pad_token_id = number("<|endoftext|>")
    model.generation_config.bos_token_id = number("<|endoftext|>")
    return model


def patches(pixels: np.ndarray, normal: Normal) -> dict[str, torch.Tensor]:
    """uint8 (N, 84, 84, 3) -> pixel_values (N * 36, 1176) and image_grid_thw, as Qwen2-VL's image
    processor cuts them."""
    x = normalised(pixels, normal)
    n, side = len(x), SIDE // PATCH
    x = x.view(n, 3, side // MERGE, MERGE, PATCH, side // MERGE, MERGE, PATCH)
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None].expand(
        -1, -1, -1, -1, -1, -1, 2, -1, -1
    )
    return {
        "pixel_values": x.reshape(n * side * side, -1),
        "image_grid_thw": torch.tensor([[1, side, side]] * n),
    }


def rendered(text: str, picture: bool) -> str:
    """The prompt as the chat template writes it, its picture as the processor expands it."""
    shown = f"<|vision_start|>{'<|image_pad|>' * PICTURE_TOKENS}<|vision_end|>" if picture else ""
    return f"{HEAD}{shown}{text}{TAIL}"
