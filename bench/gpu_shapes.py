"""LLaVA-1.5-7B, Qwen2.5-VL-7B and InternVL3-8B by their shapes: configuration and processor, with a
tokenizer made of the texts at hand. Small ones of the same kinds for a CPU."""

from __future__ import annotations

from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<video>", "<img>", "</img>"]
MARKS = {"image_token": "<image>", "video_token": "<video>", "context_image_token": "<image>"}
MARKS |= {"start_image_token": "<img>", "end_image_token": "</img>"}
TEMPLATE = (
    "{% for m in messages %}USER: {% for p in m['content'] %}{% if p['type'] == 'image'"
    " %}<image>\n{% else %}{{ p['text'] }}{% endif %}{% endfor %}\n{% endfor %}ASSISTANT:"
)


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
        extra_special_tokens=MARKS,
    )


def _sizes(hidden: int, between: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """The four sizes of a transformer, and what else its configuration sets."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (hidden, between, layers, heads), strict=True)) | more


def _small_text(tokens: Any) -> dict[str, Any]:
    return _sizes(32, 64, 2, 2, num_key_value_heads=2, vocab_size=len(tokens))


def _tower(tiny: bool) -> dict[str, Any]:
    """The vision tower of LLaVA and of InternVL."""
    return _sizes(16, 32, 2, 2) if tiny else _sizes(1024, 4096, 24, 16)


def _qwen_text(vocabulary: int) -> dict[str, Any]:
    return _sizes(3584, 18944, 28, 28, num_key_value_heads=4, vocab_size=vocabulary)


def _rope(theta: float, *section: int) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "mrope_section": list(section)}


def llava(tokens: Any, tiny: bool) -> tuple[Any, Any]:
    side = 28 if tiny else 336
    text = _small_text(tokens) if tiny else _sizes(4096, 11008, 32, 32, vocab_size=32064)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **_tower(tiny), image_size=side, patch_size=14, projection_dim=768
        ),
        text_config=transformers.LlamaConfig(**text),
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
    tower: dict[str, Any] = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420}
    tower |= {"num_heads": 16, "out_hidden_size": 3584}
    text = _qwen_text(152064) | {"rope_parameters": _rope(1e6, 16, 24, 24)}
    if tiny:
        tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
        tower |= {"out_hidden_size": 32, "fullatt_block_indexes": [1]}
        text = _small_text(tokens) | {"rope_parameters": _rope(1e4, 2, 3, 3)}
    most = 4 if tiny else 1280  # tokens of a picture
    config = transformers.Qwen2_5_VLConfig(
        vision_config=tower, text_config=text, image_token_id=3, video_token_id=4
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, min_pixels=28 * 28, max_pixels=most * 28 * 28
    )
    videos = transformers.Qwen2VLVideoProcessor(patch_size=14, merge_size=2)
    return config, transformers.Qwen2_5_VLProcessor(images, tokens, videos, chat_template=TEMPLATE)


def internvl(tokens: Any, tiny: bool) -> tuple[Any, Any]:
    side = 28 if tiny else 448
    tower = _tower(tiny) | ({} if tiny else {"use_qk_norm": False})
    text = _small_text(tokens) if tiny else _qwen_text(151674)
    seen = (side // 14 // 2) ** 2
    config = transformers.InternVLConfig(
        vision_config={**tower, "image_size": [side, side], "patch_size": [14, 14]},
        text_config={"model_type": "qwen2", **text},
        image_token_id=3,
        image_seq_length=seen,
    )
    square = {"height": side, "width": side}
    processor = transformers.InternVLProcessor(
        GotOcr2ImageProcessorPil(size=square, crop_to_patches=True, max_patches=12),
        tokens,
        transformers.InternVLVideoProcessor(size=square),
        image_seq_length=seen,
        chat_template=TEMPLATE,
    )
    return config, processor


SHAPES = {"llava": llava, "qwen": qwen, "internvl": internvl}
