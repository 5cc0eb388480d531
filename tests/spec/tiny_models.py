"""Random-weight vision-language models of the real classes, small enough to be built inside a test."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

TEMPLATE = (
    "{% for m in messages %}USER: {% for p in m['content'] %}{% if p['type'] == 'image' %}<image>\n{% else %}{{ p['text'] }}"
    "{% endif %}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """'byte': one token per byte. 'metaspace': SentencePiece-like; letters have a variant with the space mark, digits don't,
    so a digit may come after a lone space token. 'no-b': a vocabulary that lacks the letter B."""
    if kind == "metaspace":
        letters = [chr(c) for c in range(33, 127)]
        vocab = [*SPECIAL, "<unk>", "\u2581", "\n", *letters, "\u2581A", "\u2581B", "\u2581C"]
        merges = [("\u2581", c) for c in "ABC"]
        core = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocab)}, merges=merges, unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        core.decoder = decoders.Metaspace(prepend_scheme="never")
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        if kind == "no-b":
            alphabet.remove("B")
        core = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*SPECIAL, *alphabet])}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=4096,
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip


def save_llava(folder: Path, kind: str = "byte", seed: int = 0) -> Path:
    """A random LLaVA with its processor, saved as a person would find it on disk."""
    torch.manual_seed(seed)
    tokens = tokenizer(kind)
    images = CLIPImageProcessorPil(size={"height": 28, "width": 28}, do_center_crop=False)
    processor = LlavaProcessor(
        image_processor=images, tokenizer=tokens, patch_size=14, vision_feature_select_strategy="default",
        chat_template=TEMPLATE, num_additional_image_tokens=1, image_token="<image>",
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14, projection_dim=16
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.3,
        ),
        image_token_index=tokens.convert_tokens_to_ids("<image>"), image_seq_length=4, vision_feature_layer=-1,
    )  # fmt: skip
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
