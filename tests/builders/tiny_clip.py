"""Random-weight CLIP, T5 and ViT of the real classes, saved as a person would find them on disk."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import processors
from transformers import (
    CLIPConfig,
    CLIPModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from tests.builders.character_tokenizer import make_tokenizer

_SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}
_PIXELS = {"image_size": 28, "patch_size": 14}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte between two marks, as CLIP's text tower needs: it reads the text off the
    end mark. That one has another id than 2, which transformers takes for a sign of old
    checkpoints."""
    made = make_tokenizer(special=("</box>",))
    made.eos_token = "</box>"
    ends = processors.TemplateProcessing(
        single="<s> $A </box>", special_tokens=[("<s>", 1), ("</box>", 6)]
    )
    made.backend_tokenizer.post_processor = ends
    return made


def save_clip(folder: Path, seed: int = 0, positions: int = 512) -> Path:
    torch.manual_seed(seed)
    tokens = byte_tokenizer()
    text = {
        **_SMALL,
        "vocab_size": len(tokens),
        "max_position_embeddings": positions,
        "bos_token_id": 1,
        "eos_token_id": 6,
        "pad_token_id": 0,
        "projection_dim": 8,
    }
    model = CLIPModel(
        CLIPConfig(text_config=text, vision_config={**_SMALL, **_PIXELS}, projection_dim=8)
    )
    for weight in (model.text_projection.weight, model.visual_projection.weight):
        torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    CLIPImageProcessorPil(size={"height": 28, "width": 28}, do_center_crop=False).save_pretrained(
        folder
    )
    return folder


def save_t5(folder: Path, seed: int = 0, dense: bool = True) -> Path:
    torch.manual_seed(seed)
    tokens = byte_tokenizer()
    config = T5Config(
        vocab_size=len(tokens),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    T5EncoderModel(config).save_pretrained(folder)
    tokens.save_pretrained(folder)
    if dense:
        (folder / "2_Dense").mkdir()
        listed = [
            {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        ]
        (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
        said = {
            "in_features": 16,
            "out_features": 6,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (folder / "2_Dense" / "config.json").write_text(json.dumps(said), encoding="utf-8")
        save_file({"linear.weight": torch.randn(6, 16)}, folder / "2_Dense" / "model.safetensors")
    return folder


def save_vit(folder: Path, names: list[str], seed: int = 0) -> Path:
    torch.manual_seed(seed)
    model = ViTForImageClassification(
        ViTConfig(
            **_SMALL,
            **_PIXELS,
            id2label=dict(enumerate(names)),
            label2id={n: i for i, n in enumerate(names)},
        )
    )
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 28, "width": 28}).save_pretrained(folder)
    return folder
