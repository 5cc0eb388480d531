"""Random-weight vision-language models of the real classes, small enough to be built inside a
test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertTokenizer,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    InstructBlipProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    MllamaConfig,
    MllamaForConditionalGeneration,
    MllamaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from tests.builders.hub_files import write_hub_files

TEMPLATE = (
    "{% for m in messages %}USER: {% for p in m['content'] %}{% if p['type'] == 'image'"
    " %}<image>\n{% else %}{{ p['text'] }}{% endif %}{% endfor %}\n{% endfor %}{% if"
    " add_generation_prompt %}ASSISTANT:{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<video>", "<box>", "</box>"]


def tokenizer(kind: str, named: bool = True, **special: str) -> PreTrainedTokenizerFast:
    """'byte': one token per byte. 'metaspace': SentencePiece-like; letters have a variant with the
    space mark, digits don't, so a digit may come after a lone space token. 'no-b': a vocabulary
    that lacks the letter B. ``named``: the tokenizer says itself which token stands for a picture;
    ``special``: these tokens instead."""
    if kind == "metaspace":
        letters = [chr(c) for c in range(33, 127)]
        vocab = [*SPECIAL, "<unk>", "\u2581", "\n", *letters, "\u2581A", "\u2581B", "\u2581C"]
        merges = [("\u2581", c) for c in "ABC"]
        core = Tokenizer(
            models.BPE(vocab={t: i for i, t in enumerate(vocab)}, merges=merges, unk_token="<unk>")
        )
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        core.decoder = decoders.Metaspace(prepend_scheme="never")
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        if kind == "no-b":
            alphabet.remove("B")
        core = Tokenizer(
            models.BPE(vocab={t: i for i, t in enumerate([*SPECIAL, *alphabet])}, merges=[])
        )
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=4096,
        extra_special_tokens=special or ({"image_token": "<image>"} if named else {}),
    )


def _text(tokens: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


_CLIP = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def save_llava(folder: Path, kind: str = "byte", seed: int = 0) -> Path:
    """A random LLaVA with its processor, saved as a person would find it on disk."""
    torch.manual_seed(seed)
    tokens = tokenizer(kind)
    images = CLIPImageProcessorPil(size={"height": 28, "width": 28}, do_center_crop=False)
    processor = LlavaProcessor(
        image_processor=images,
        tokenizer=tokens,
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
        image_token="<image>",
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_CLIP, projection_dim=16),
        text_config=LlamaConfig(**_text(tokens)),
        image_token_index=tokens.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return write_hub_files(folder, LlavaForConditionalGeneration(config), processor)


def onevision(kind: str) -> tuple[Any, Any]:
    """LLaVA-OneVision: a SigLIP tower, several crops of a picture, features unpadded to its
    shape."""
    tokens = tokenizer(kind, image_token="<image>", video_token="<video>")
    images = LlavaOnevisionImageProcessorPil(
        size={"height": 28, "width": 28}, image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]]
    )
    processor = LlavaOnevisionProcessor(
        image_processor=images,
        video_processor=LlavaOnevisionVideoProcessor(size={"height": 28, "width": 28}),
        tokenizer=tokens,
        num_image_tokens=4,
        chat_template=TEMPLATE,
        vision_feature_select_strategy="full",
    )
    config = LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", **_CLIP, "vision_use_head": False},
        text_config={"model_type": "qwen2", **_text(tokens)},
        image_token_index=3,
        video_token_index=4,
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return LlavaOnevisionForConditionalGeneration(config), processor


def qwen(kind: str) -> tuple[Any, Any]:
    """Qwen2.5-VL: as many tokens as the picture has patches, placed in space (mRoPE)."""
    tokens = tokenizer(kind, image_token="<image>", video_token="<video>")
    images = Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, min_pixels=28 * 28, max_pixels=84 * 84
    )
    processor = Qwen2_5_VLProcessor(
        image_processor=images,
        tokenizer=tokens,
        video_processor=Qwen2VLVideoProcessor(patch_size=14, merge_size=2),
        chat_template=TEMPLATE,
    )
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "patch_size": 14,
            "out_hidden_size": 32,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        text_config={
            **_text(tokens),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 3, 3],
            },
        },
        image_token_id=3,
        video_token_id=4,
        vision_start_token_id=5,
        vision_end_token_id=6,
    )
    return Qwen2_5_VLForConditionalGeneration(config), processor


def internvl(kind: str) -> tuple[Any, Any]:
    """InternVL3: a picture cut into tiles, the tiles of all pictures in one row."""
    tokens = tokenizer(
        kind,
        start_image_token="<box>",
        end_image_token="</box>",
        context_image_token="<image>",
        video_token="<video>",
    )
    images = GotOcr2ImageProcessorPil(
        size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=4
    )
    processor = InternVLProcessor(
        image_processor=images,
        video_processor=InternVLVideoProcessor(size={"height": 28, "width": 28}),
        tokenizer=tokens,
        image_seq_length=1,
        chat_template=TEMPLATE,
    )
    config = InternVLConfig(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [28, 28],
            "patch_size": [14, 14],
        },
        text_config={"model_type": "qwen2", **_text(tokens)},
        image_token_id=3,
        image_seq_length=1,
    )
    return InternVLForConditionalGeneration(config), processor


def instructblip(kind: str) -> tuple[Any, Any]:
    """InstructBLIP: the Q-Former reads the question, so a picture's features differ from prompt to
    prompt."""
    tokens = tokenizer(kind, named=False)
    words = {
        t: i
        for i, t in enumerate(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(c) for c in range(33, 127))]
        )
    }
    words |= {f"##{chr(c)}": len(words) + at for at, c in enumerate(range(33, 127))}
    images = BlipImageProcessorPil(size={"height": 28, "width": 28})
    processor = InstructBlipProcessor(
        images, tokens, BertTokenizer(vocab=words), num_query_tokens=3
    )
    config = InstructBlipConfig(
        vision_config={**_CLIP, "initializer_range": 0.3},
        qformer_config={
            "vocab_size": len(words),
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "encoder_hidden_size": 16,
            "initializer_range": 0.3,
            "max_position_embeddings": 4096,
        },
        text_config={"model_type": "llama", **_text(tokens)},
        num_query_tokens=3,
        image_token_index=3,
    )
    model = InstructBlipForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens)
    return model, processor


def gemma3(kind: str) -> tuple[Any, Any]:
    """Gemma 3: tokens of a picture see each other both ways, so its beginning can't be shared;
    pictures come in a list per prompt."""
    tokens = tokenizer(kind, image_token="<image>", boi_token="<box>", eoi_token="</box>")
    images = Gemma3ImageProcessorPil(size={"height": 28, "width": 28}, do_pan_and_scan=False)
    processor = Gemma3Processor(
        images, tokens, chat_template=TEMPLATE.replace("<image>", "<box>"), image_seq_length=4
    )
    config = Gemma3Config(
        text_config={**_text(tokens), "head_dim": 16},
        vision_config={**_CLIP, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=3,
        boi_token_index=5,
        eoi_token_index=6,
    )
    model = Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    return model, processor


def mllama(kind: str) -> tuple[Any, Any]:
    """Llama 3.2 Vision: pictures are read by cross-attention, and every token says which of them it
    sees."""
    tokens = tokenizer(kind, image_token="<image>")
    images = MllamaImageProcessorPil(size={"height": 28, "width": 28}, max_image_tiles=2)
    config = MllamaConfig(
        text_config={**_text(tokens), "num_hidden_layers": 3, "cross_attention_layers": [1]},
        vision_config={
            "hidden_size": 16,
            "attention_heads": 2,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_global_layers": 1,
            "image_size": 28,
            "patch_size": 14,
            "max_num_tiles": 2,
            "intermediate_layers_indices": [0, 1],
            "vision_output_dim": 48,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        image_token_index=3,
    )
    model = MllamaForConditionalGeneration(config)
    for name, gate in model.named_parameters():
        if (
            "gate" in name and gate.dim() == 1
        ):  # closed in a new model: no picture would change anything
            torch.nn.init.ones_(gate)
    return model, MllamaProcessor(images, tokens, chat_template=TEMPLATE)


def paligemma(kind: str) -> tuple[Any, Any]:
    """PaliGemma: no chat template, and a processor that refuses words without a picture."""
    tokens = tokenizer(kind, image_token="<image>")
    images = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    images.image_seq_length = 4
    processor = PaliGemmaProcessor(images, tokens)
    vision = {
        **_CLIP,
        "model_type": "siglip_vision_model",
        "vision_use_head": False,
        "projection_dim": 32,
        "num_image_tokens": 4,
    }
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", **_text(tokens), "head_dim": 16},
        vision_config=vision,
        projection_dim=32,
        image_token_index=tokens.convert_tokens_to_ids("<image>"),
    )
    return PaliGemmaForConditionalGeneration(config), processor


MAKERS = {
    "onevision": onevision,
    "qwen": qwen,
    "internvl": internvl,
    "instructblip": instructblip,
    "gemma3": gemma3,
    "mllama": mllama,
    "paligemma": paligemma,
}


def save(folder: Path, family: str, kind: str = "byte", seed: int = 0) -> Path:
    """A random model of a family in the files of a hub repository."""
    if family == "llava":
        return save_llava(folder, kind, seed)
    torch.manual_seed(seed)
    return write_hub_files(folder, *MAKERS[family](kind))
