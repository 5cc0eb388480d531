"""A model of any family that answers in text about pictures (AutoModelForImageTextToText, and those
of AutoModelForMultimodalLM that see) in the files of a hub repository: random
weights of the family's own classes, its processor at the settings that the classes have by default,
so that a picture is as many tokens as in the real model.

Widths and depths are small; sizes of pictures and patches are the family's, but for `write_small`.
The tokenizer is one token per byte, with the special tokens that the family's processor names.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertTokenizer
from transformers.models.auto import configuration_auto, image_processing_auto, processing_auto
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

from tests.builders.character_tokenizer import make_tokenizer
from tests.builders.family_settings import DEPTH, FAMILIES, SMALL, WIDTH, Family
from tests.builders.hub_files import write_hub_files

#: Families of several senses, which AutoModelForImageTextToText doesn't list.
SENSES = ("phi4_multimodal", "qwen2_5_omni", "qwen3_omni_moe")
NAMES = tuple(sorted((*map(str, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES), *SENSES)))
_TOKEN = re.compile(r"""["'](<[^"'\s<>]{1,40}>|\[[A-Z_]{2,12}\])["']""")

#: Names that configurations have for one and the same thing -> the small value.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "embed_dim", "n_embd", "width", "hidden_dim"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "encoder_hidden_size"), 32),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("mlp_hidden_dim", "ffn_hidden_size", "ffn_size", "d_ff", "mlp_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "depth", "n_layer", "num_layers", "num_blocks"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "attention_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "global_head_dim", "attention_head_dim"), 16),
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "swa_head_dim", "hc_lowrank"), 16),
    **dict.fromkeys(("index_head_dim", "linear_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("index_n_heads", "linear_num_heads"), 2),
    **dict.fromkeys(("projection_hidden_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("projector_input_dim", "projector_output_dim"), 32),
    "dense_intermediate_size": 64,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "initializer_range": 0.2,
    "cross_attention_hidden_size": 32,
}
_LAYERS = ("num_hidden_layers", "num_layers", "depth", "n_layer")
_GONE = (
    "per_layer_config",
    "no_rope_layers",
    "moe_layers",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "architectures",
)


_USUAL = (
    "add_bos_token",
    "add_eos_token",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "sep_token",
    "cls_token",
)
#: What tokenizers call them, where the library's source doesn't say.
_NAMED = {
    "image_token": "<image>",
    "video_token": "<video>",
    "audio_token": "<audio>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "image_start_token": "<|vision_start|>",
    "image_end_token": "<|vision_end|>",
}


def write_small(folder: Path, name: str, tokens: Any = "byte", seed: int = 0) -> Path:
    """The repository of one family whose pictures are a few tokens. ``tokens``: a tokenizer, or the
    kind of one (character_tokenizer.py)."""
    return write(folder, name, seed, settings=SMALL[name], tokens=tokens)


def write(
    folder: Path,
    name: str,
    seed: int = 0,
    shard: str = "5GB",
    settings: Family | None = None,
    tokens: Any = "byte",
) -> Path:
    """The repository of one family, its weights in shards of at most ``shard``. Raises whatever its
    classes raise."""
    family = settings or FAMILIES.get(name, Family())
    torch.manual_seed(seed)
    processor = make_processor(name, family, tokens)
    config = make_config(name, family, processor)
    fit_pictures(processor, getattr(config, "thinker_config", config))
    kind = family.model or MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[name]
    model = getattr(transformers, kind)(config).float()
    for key, weight in model.named_parameters():
        # closed in a new model (Mllama), so that no picture would change anything
        if "gate" in key and weight.dim() <= 1:
            torch.nn.init.ones_(weight)
        elif weight.dim() > 1 and not weight.any():  # Gemma's projection: no picture would, either
            torch.nn.init.normal_(weight, std=0.1)
    return write_hub_files(folder, model, processor, shard)


def _class(name: str, home: str) -> Any:
    """A class of transformers that its top level may not export (the Pillow image processors)."""
    found = getattr(transformers, name, None)
    if found is not None:
        return found
    for module in (f"processing_{home}", f"image_processing_pil_{home}"):
        try:
            return getattr(importlib.import_module(f"transformers.models.{home}.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no class {name}")


def image_processor(name: str, family: Family) -> Any:
    """The Pillow one where the family has one, at its defaults."""
    kinds = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(name) or {}
    wanted = family.images or kinds.get("pil") or kinds.get("torchvision")
    if not wanted:
        raise ImportError("the library names no image processor")
    found = image_processing_auto.get_image_processor_class_from_name(wanted)
    return found(**family.image_options)


def make_processor(name: str, family: Family, tokens: Any) -> Any:
    wanted = family.processor or processing_auto.PROCESSOR_MAPPING_NAMES.get(name)
    if not wanted:
        raise ImportError("the library names no processor")
    kind = processing_auto.processor_class_from_name(wanted) or getattr(transformers, wanted)
    takes = inspect.signature(kind.__init__).parameters
    source = inspect.getsource(importlib.import_module(kind.__module__))
    parts: dict[str, Any] = {"image_processor": image_processor(name, family)}
    special = {**_read_off(source), **family.special} if family.named else {}
    marks = re.findall(r"<[^<>\s{}]+>", family.template or "")
    if isinstance(tokens, str):
        words = (*_TOKEN.findall(source), *marks, *family.words, "|SPEAKER|", "|NEWLINE|")
        tokens = make_tokenizer(tokens, words, special)
    parts["tokenizer"] = tokens
    videos = VIDEO_PROCESSOR_MAPPING_NAMES.get(name) or {}
    named = family.videos or videos.get("torchvision")
    if "video_processor" in takes and named:
        parts["video_processor"] = getattr(transformers, named)(**family.video_options)
    heard = family.sounds or FEATURE_EXTRACTOR_MAPPING_NAMES.get(name)
    if heard:
        parts |= dict.fromkeys(("feature_extractor", "audio_processor"), _class(heard, name)())
    if "qformer_tokenizer" in takes:
        parts["qformer_tokenizer"] = word_pieces()
    processor = kind(**{k: v for k, v in {**parts, **family.given}.items() if k in takes})
    if family.template != "":
        shown = (family.template or "{image}").replace(
            "{image}", str(getattr(processor, "image_token", "<image>"))
        )
        processor.chat_template = (
            "{% for m in messages %}USER: {% for p in m['content'] %}{% if p['type'] == 'image' %}"
            + shown
            + "\n{% else %}{{ p['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
            "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
        )
    return processor


def _read_off(source: str) -> dict[str, str]:
    """Tokens that a processor reads off its tokenizer, attribute -> token."""
    found = re.findall(r"tokenizer\.(\w+_token)(?:_id)?\b", source)
    listed = re.findall(r'"(\w+_token)"', source)
    names = dict.fromkeys([*found, *listed])
    # where the processor has a token of its own for a tokenizer that names none, that one is taken
    own = set(re.findall(r'(?:has|get)attr\(\s*tokenizer, "(\w+_token)', source))
    return {n: _NAMED.get(n, f"<{n}>") for n in names if n not in _USUAL and n not in own}


def word_pieces() -> Any:
    """What a Q-Former reads questions with: one piece per character."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = [chr(c) for c in range(33, 127)]
    pieces = [*marks, *characters, *(f"##{c}" for c in characters)]
    return BertTokenizer(vocab={piece: at for at, piece in enumerate(pieces)})


def fit_pictures(processor: Any, config: Any) -> None:
    """Gives the image processor the picture and patch sizes of the vision tower, as the family's
    repositories do."""
    images, tower = processor.image_processor, getattr(config, "vision_config", None)
    side, patch = getattr(tower, "image_size", None), getattr(tower, "patch_size", None)
    side, patch = (v[0] if isinstance(v, list | tuple) else v for v in (side, patch))
    size = dict(getattr(images, "size", None) or {})
    if isinstance(side, int) and size.get("height") and size.get("width"):
        images.size = type(images.size)(height=side, width=side)
    elif isinstance(side, int) and size.get("shortest_edge") and not size.get("longest_edge"):
        images.size = type(images.size)(shortest_edge=side)
    crop = getattr(images, "crop_size", None)
    if isinstance(side, int) and crop:
        images.crop_size = type(crop)(height=side, width=side)
    if isinstance(patch, int) and isinstance(getattr(images, "patch_size", None), int):
        images.patch_size = patch
        if hasattr(processor, "video_processor") and hasattr(
            processor.video_processor, "patch_size"
        ):
            processor.video_processor.patch_size = patch
    if (
        isinstance(side, int)
        and isinstance(patch, int)
        and not getattr(images, "image_seq_length", None)
    ):
        images.image_seq_length = (side // patch) ** 2


def make_config(name: str, family: Family, processor: Any) -> Any:
    """The family's configuration, narrow and shallow, with the tokens of this processor."""
    kind = configuration_auto.CONFIG_MAPPING[name]
    if hasattr(kind(), "thinker_config"):  # it also speaks, with further parts that are left out
        part = f"{name}_thinker"
        thinker = make_config(part, FAMILIES[part], processor)
        return kind(thinker_config=thinker.to_dict(), enable_audio_output=False)
    tokens = processor.tokenizer
    values = _small(kind().to_dict(), len(tokens))
    # Gemma's processors call the mark in the prompt their picture token, not what it becomes
    image = getattr(tokens, "image_token_id", None) or getattr(processor, "image_token_id", None)
    if image is None:
        image = tokens.convert_tokens_to_ids(str(getattr(processor, "image_token", "<image>")))
    for key in ("image_token_id", "image_token_index", "image_token"):
        if isinstance(values.get(key), int) or key != "image_token":
            values[key] = image
    for key, value in list(values.items()):
        found = re.fullmatch(r"(\w+)_token_(?:id|index)", key)
        if found and isinstance(value, int) and "image_token_" not in key:
            token = getattr(processor, f"{found[1]}_token", None)
            token = token or getattr(tokens, f"{found[1]}_token", None)
            values[key] = tokens.convert_tokens_to_ids(str(token)) if token else 5
    for path, value in family.config.items():
        at = values
        *way, last = path.split(".")
        for step in way:
            at = at[step]
        at[last] = value(tokens) if callable(value) else value
    return kind.from_dict(values)


def _small(values: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    layers = next((values[k] for k in _LAYERS if isinstance(values.get(k), int)), 0)
    for key, value in values.items():
        if key in _GONE:
            continue
        elif isinstance(value, dict) and (key.endswith("_config") or "model_type" in value):
            made[key] = _small(value, vocabulary)
        elif key.endswith("_types") and isinstance(value, list) and len(value) == layers > DEPTH:
            made[key] = [value[0], value[-1]]  # of a mixed model one layer of each kind
        elif key in _SMALL and isinstance(value, int | float) and not isinstance(value, bool):
            made[key] = _SMALL[key]
        elif key == "vocab_size" and isinstance(value, int):
            made[key] = vocabulary
        elif re.fullmatch(r"(pad|bos|eos)_token_id", key):
            made[key] = {"p": 0, "b": 1, "e": 2}[key[0]]
        elif key in ("out_hidden_size", "projection_dim", "output_hidden_size", "text_hidden_size"):
            made[key] = WIDTH if isinstance(value, int) else value
        elif key in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            sections = {"mrope_section": [2, 3, 3]} if "mrope_section" in value else {}
            made[key] = {**value, **sections}
        elif isinstance(value, list) and len(value) == layers > DEPTH:
            made[key] = _SMALL.get(key, value[:DEPTH])
        elif key == "deepstack_visual_indexes":
            made[key] = [0, 1]
        elif key == "fullatt_block_indexes":
            made[key] = [1]
        else:
            made[key] = value
    return made
