"""What can't be read off a family's classes: settings of the small models that families.py writes.

Most are values that repositories of the family state and the classes leave out, or sizes that have
to fit each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

WIDTH, DEPTH = 32, 2


@dataclass(frozen=True)
class Family:
    """What can't be read off the family's classes. ``processor``: its class, where the mapping has
    none; ``given``: arguments of it; ``special``: tokens that the tokenizer names as attributes;
    ``template``: what stands for a picture in the chat template, '' for no template at all;
    ``config``: values by path ('text_config.x'), or functions of the tokenizer; ``images``,
    ``videos``, ``sounds``: classes; ``named``: whether the tokenizer has attributes for the tokens
    that the processor reads off it; ``words``: further tokens; ``model``: its class, where its
    repositories name another one than the library's list."""

    processor: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    images: str = ""
    videos: str = ""
    sounds: str = ""
    named: bool = True
    image_options: Mapping[str, Any] = field(default_factory=dict)
    video_options: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    model: str = ""


def _id(token: str) -> Callable[[Any], int]:
    """The value of a configuration that is a token's id."""
    return lambda tokenizer: int(tokenizer.convert_tokens_to_ids(token))


_QWEN = "<|vision_start|>{image}<|vision_end|>"
_MROPE = {
    "text_config.rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [2, 3, 3],
    }
}
_MROPE_HALF = {
    "text_config.rope_parameters": {
        **_MROPE["text_config.rope_parameters"],
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 2],
    }
}
_SOUNDS = {"audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>"}
_LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default"}
_QWEN_OMNI = Family(
    images="Qwen2VLImageProcessorPil",
    videos="Qwen2VLVideoProcessor",
    sounds="WhisperFeatureExtractor",
    template=_QWEN,
)
_GEMMA_TOWER = {"vision_config.image_size": 896, "vision_config.patch_size": 14}
#: Of 16 visual tokens the codes as Chameleon writes them: letters for digits.
_CODES = tuple("".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) for code in range(16))
_OVIS = ("<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
_GLM = "<|begin_of_image|>{image}<|end_of_image|>"
FAMILIES: dict[str, Family] = {
    "aria": Family(
        given={"size_conversion": {490: 128, 980: 256}},
        config={"vision_config.image_size": 980, "vision_config.patch_size": 14},
    ),
    "aya_vision": Family(config={"vision_config.image_size": 364}),
    "chameleon": Family(
        template="",
        words=tuple(f"IMGIMG{code}Z" for code in _CODES),
        config={
            "vocabulary_map": lambda tokens: tokens.get_vocab(),
            "vq_config.num_embeddings": 16,
            "vq_config.embed_dim": 16,
            "vq_config.latent_channels": 16,
            "vq_config.base_channels": 32,
            "vq_config.channel_multiplier": [1, 1, 1, 1, 1],
            "vq_config.num_res_blocks": 1,
        },
    ),
    "cohere_compass": Family(
        template=_QWEN,
        config={
            "text_config.rope_parameters": {
                "full_attention": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [2, 3, 3],
                }
            },
        },
    ),
    "deepseek_ocr2": Family(
        config={
            "text_config.mlp_layer_types": ["dense", "sparse"],
            "text_config.num_experts_per_tok": 2,
            "vision_config.sam_config.output_channels": 32,
            "vision_config.sam_config.downsample_channels": [32, 32],
            "vision_config.sam_config.global_attn_indexes": [1],
        }
    ),
    "deepseek_vl": Family(config={"vision_config.image_size": 384}),
    "deepseek_vl_hybrid": Family(
        config={
            "vision_config.image_size": 384,
            "high_res_vision_config.global_attn_indexes": [0, 1],
            "high_res_vision_config.output_channels": 32,
        }
    ),
    "diffusion_gemma": Family(
        images="Gemma4ImageProcessorPil",
        videos="Gemma4VideoProcessor",
        sounds="Gemma4AudioFeatureExtractor",
    ),
    "emu3": Family(
        words=("<|extra_200|>", *(f"<|visual token {code:06d}|>" for code in range(16))),
        special={
            "boi_token": "<|image start|>",
            "eoi_token": "<|image end|>",
            "image_wrapper_token": "<|image token|>",
            "eof_token": "<|extra_201|>",
        },
        config={
            "vocabulary_map": lambda tokens: tokens.get_vocab(),
            "vq_config.codebook_size": 16,
            "vq_config.embed_dim": 4,
            "vq_config.base_channels": 32,
            "vq_config.channel_multiplier": [1, 1, 1, 1],
            "vq_config.num_res_blocks": 1,
        },
    ),
    "ernie4_5_vl_moe": Family(
        video_options={"draw_on_frames": False},
        template=_QWEN,
        config={
            "text_config.rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e5,
                "mrope_section": [3, 3, 2],
            },
            "text_config.moe_intermediate_size": [32, 32],
        },
    ),
    "florence2": Family(
        template="",
        images="CLIPImageProcessorPil",
        image_options={
            "size": {"height": 768, "width": 768},
            "crop_size": {"height": 768, "width": 768},
            "image_seq_length": 577,
        },
        config={
            "vision_config.depths": [1, 1, 1, 1],
            "vision_config.embed_dim": [8, 16, 16, 32],
            "vision_config.num_heads": [1, 1, 2, 2],
            "vision_config.num_groups": [1, 1, 2, 2],
            "vision_config.num_attention_heads": [1, 1, 2, 2],
        },
    ),
    "exaone4_5": Family(template=_QWEN),
    "fast_vlm": Family(processor="LlavaProcessor", images="CLIPImageProcessorPil"),
    "gemma3": Family(
        template="<start_of_image>", given={"image_seq_length": 256}, config=_GEMMA_TOWER
    ),
    "fuyu": Family(template=""),
    "gemma4": Family(
        special=_SOUNDS,
        config={
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": WIDTH,
                "intermediate_size": 64,
                "num_hidden_layers": DEPTH,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
            }
        },
    ),
    "gemma4_unified": Family(
        special=_SOUNDS,
        config={
            "vision_config": {
                "model_type": "gemma4_unified_vision",
                "mm_embed_dim": WIDTH,
                "output_proj_dims": WIDTH,
            }
        },
    ),
    "glm5_next": Family(
        template=_GLM,
        config={
            "text_config.layer_types": ["linear_attention", "indexed_attention"],
            "vision_config.projection_intermediate_size": 64,
        },
    ),
    "granite4_vision": Family(
        given={"patch_size": 16, "vision_feature_select_strategy": "full"},
        config={
            "vision_feature_select_strategy": "full",
            "vision_config.image_size": 384,
            "text_config.model_type": "granite",
            "downsample_rate": "4/8",
            "deepstack_layer_map": [[0, 0], [1, 1]],
            "spatial_target_layers": [0, 0, 1, 1],
            "text_config.attention_multiplier": 0.25,
        },
    ),
    "hunyuan_vl": Family(template=_QWEN, config={"text_config.head_dim": 16, **_MROPE}),
    "idefics": Family(template=""),
    "inkling_mm_model": Family(
        config={
            "vision_config.n_layers": 2,
        },
    ),
    "kimi_k25": Family(
        config={
            "text_config.qk_rope_head_dim": 16,
        }
    ),
    "llama4": Family(
        config={
            "image_token_id": _id("<|patch|>"),
            "vision_config.vision_output_dim": WIDTH,
            "vision_config.intermediate_size": 128,
        }
    ),
    "minimax_m3_vl": Family(
        words=("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>["),
        config={
            "projector_hidden_size": WIDTH,
            "merged_hidden_size": 4 * WIDTH,
            "text_config.rotary_dim": 8,
        },
    ),
    "muse_glimmer": Family(
        config={"out_hidden_size": 4 * WIDTH, "projector_hidden_size": WIDTH},
    ),
    "nemotron_h_omni": Family(
        sounds="ParakeetFeatureExtractor",
        config={
            "projector_hidden_size": WIDTH,
            "vision_hidden_size": WIDTH,
            "text_config.mamba_num_heads": 4,
            "text_config.mamba_head_dim": 16,
            "text_config.ssm_state_size": 16,
            "text_config.n_groups": 1,
            "text_config.moe_shared_expert_intermediate_size": 32,
        },
    ),
    "ovis2": Family(
        words=_OVIS,
        config={
            "image_token_id": _id("<IMG_ATOM>"),
            "visual_indicator_token_ids": lambda tokens: tokens.convert_tokens_to_ids([*_OVIS[1:]]),
            "vision_config.vocab_size": 64,
            "vision_config.hidden_stride": 2,
            "vision_config.image_size": 448,
        },
    ),
    "qianfan_ocr": Family(
        template="<image>",
        given={"image_seq_length": 256},
        config={"image_token_id": _id("<IMG_CONTEXT>")},
    ),
    "qwen4_exp": Family(
        template=_QWEN,
        config={
            **_MROPE,
            "text_config.indexer_n_heads": 2,
            "text_config.indexer_kv_heads": 1,
            "text_config.indexer_head_dim": 16,
            "text_config.indexer_budget": 64,
            "text_config.indexer_compress_ratio": 4,
        },
    ),
    "step3p7": Family(config={"text_config.sliding_window": 64}),
    "mllama": Family(
        config={
            "vision_config.intermediate_layers_indices": [0, 1],
            "vision_config.num_global_layers": 1,
            "vision_config.vision_output_dim": 3 * WIDTH,
            "text_config.cross_attention_layers": [1],
        }
    ),
    "mistral3": Family(given={"patch_size": 14, "spatial_merge_size": 2}),
    "glm4v_moe": Family(
        images="Glm4vImageProcessorPil",
        videos="Glm4vVideoProcessor",
        template=_GLM,
        config=_MROPE_HALF,
    ),
    "glm4v": Family(template=_GLM, config=_MROPE),
    "smolvlm": Family(
        given={"image_seq_len": 169},
        config={"vision_config.image_size": 364, "vision_config.patch_size": 14},
        image_options={"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}},
    ),
    "glm_ocr": Family(
        processor="Glm46VProcessor",
        images="Glm46VImageProcessorPil",
        videos="Glm46VVideoProcessor",
        template=_GLM,
        config=_MROPE,
    ),
    "glmga": Family(processor="Glm46VProcessor", template=_GLM, config=_MROPE),
    "paddleocr_vl": Family(config=_MROPE),
    "instructblip": Family(named=False, template="", given={"num_query_tokens": 32}),
    "internvl": Family(given={"image_seq_length": 256}),
    "kosmos-2": Family(processor="Kosmos2Processor"),
    "kosmos-2.5": Family(processor="Kosmos2_5Processor", template=""),
    "llava": Family(
        given={**_LLAVA, "num_additional_image_tokens": 1},
        images="CLIPImageProcessorPil",
        image_options={"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        config={"vision_config.image_size": 336},
    ),
    "llava_next": Family(given={**_LLAVA, "num_additional_image_tokens": 1}),
    "llava_onevision": Family(
        given={"num_image_tokens": 729, "vision_feature_select_strategy": "full"}
    ),
    "paligemma": Family(template=""),
    # its processor leaves every token of the picture to the chat template
    "phi4_multimodal": Family(
        config={
            "vision_config.image_token_id": lambda tokens: tokens.image_token_id,
            "audio_config.audio_token_id": lambda tokens: tokens.audio_token_id,
            "audio_config.ext_pw_out_channel": WIDTH,
            "audio_config.depthwise_separable_out_channel": WIDTH,
            "audio_config.nemo_conv_channels": WIDTH,
            "eos_token_id": [2],
        },
    ),
    "pp_chart2table": Family(template="<img>" + "<image>" * 256 + "</img>"),
    "qwen2_5_omni": replace(_QWEN_OMNI, template="<|vision_bos|>{image}<|vision_eos|>"),
    "qwen2_5_omni_thinker": replace(
        _QWEN_OMNI,
        processor="Qwen2_5OmniProcessor",
        template="<|vision_bos|>{image}<|vision_eos|>",
        config={
            **_MROPE,
            "vision_start_token_id": _id("<|vision_bos|>"),
            "vision_end_token_id": _id("<|vision_eos|>"),
        },
    ),
    "qwen2_5_vl": Family(template=_QWEN, config=_MROPE),
    "qwen3_omni_moe": _QWEN_OMNI,
    "qwen3_omni_moe_thinker": replace(
        _QWEN_OMNI,
        processor="Qwen3OmniMoeProcessor",
        config={
            **_MROPE,
            "vision_start_token_id": _id("<|vision_start|>"),
            "vision_end_token_id": _id("<|vision_end|>"),
        },
    ),
    "qwen3_vl_moe": Family(template=_QWEN, config=_MROPE, images="Qwen2VLImageProcessorPil"),
    "shieldgemma2": Family(
        processor="ShieldGemma2Processor",
        model="ShieldGemma2ForImageClassification",
        template="<start_of_image>",
        special={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image>",
        },
        config=_GEMMA_TOWER,
    ),
    "t5gemma2": Family(
        template="<start_of_image>",
        given={"image_seq_length": 256},
        image_options={"size": {"height": 896, "width": 896}},
        config={
            "encoder.vision_config.image_size": 896,
            "encoder.vision_config.patch_size": 14,
        },
    ),
    "vipllava": Family(
        given={**_LLAVA, "num_additional_image_tokens": 1},
        image_options={"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        config={"vision_config.image_size": 336, "vision_feature_layers": [-1, -2]},
    ),
}


#: Families whose settings are those of another one.
FAMILIES |= {
    "blip-2": FAMILIES["instructblip"],
    "glm46v": FAMILIES["glm4v"],
    "idefics3": FAMILIES["smolvlm"],
    "llava_next_video": FAMILIES["llava_next"],
    **dict.fromkeys(("qwen2_vl", "qwen3_vl"), FAMILIES["qwen2_5_vl"]),
}


def _small(name: str, config: Mapping[str, Any], images: Mapping[str, Any], **given: Any) -> Family:
    """A family whose pictures are 28 x 28 in patches of 14, a few tokens each."""
    family = FAMILIES[name]
    tower = {"vision_config.image_size": 28, "vision_config.patch_size": 14}
    return replace(
        family,
        config={**family.config, **tower, **config},
        image_options=images,
        given={**family.given, **given},
    )


_SIDE = {"size": {"height": 28, "width": 28}}
_GRID = {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]}
_RATIOS = {"vision_config.supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
#: What tests of one property each use: the picture of a real one would be hundreds of tokens.
SMALL: dict[str, Family] = {
    "llava": _small("llava", {}, {**_SIDE, "do_center_crop": False}),
    # several crops of a picture, features unpadded to its shape
    "llava_onevision": _small("llava_onevision", _GRID, {**_SIDE, **_GRID}, num_image_tokens=4),
    # as many tokens as the picture has patches, placed in space (mRoPE)
    "qwen2_5_vl": _small(
        "qwen2_5_vl",
        {"vision_config.window_size": 56},
        {"patch_size": 14, "merge_size": 2, "min_pixels": 28 * 28, "max_pixels": 84 * 84},
    ),
    # a picture cut into tiles, the tiles of all pictures in one row
    "internvl": _small(
        "internvl",
        {
            "vision_config.image_size": [28, 28],
            "vision_config.patch_size": [14, 14],
            "image_seq_length": 1,
        },
        {**_SIDE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        image_seq_length=1,
    ),
    # the Q-Former reads the question, so a picture's features differ from prompt to prompt
    "instructblip": _small(
        "instructblip",
        {"num_query_tokens": 3, "qformer_config.vocab_size": 256},  # of word_pieces()
        _SIDE,
        num_query_tokens=3,
    ),
    # tokens of a picture see each other both ways; pictures come in a list per prompt
    "gemma3": _small("gemma3", {"mm_tokens_per_image": 4}, _SIDE, image_seq_length=4),
    # pictures are read by cross-attention, and every token says which of them it sees
    "mllama": _small(
        "mllama",
        {"vision_config.max_num_tiles": 2, **_RATIOS},
        {**_SIDE, "max_image_tiles": 2},
    ),
    # no chat template, and a processor that refuses words without a picture
    "paligemma": _small("paligemma", {"vision_config.num_image_tokens": 4}, _SIDE),
}
