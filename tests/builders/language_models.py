"""Language models of several families in the files of a hub repository: random weights of the
family's own classes, a tokenizer of one token per byte, with a chat template or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.builders.character_tokenizer import make_tokenizer

#: Content is one text here, unlike in the templates of vision-language models.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
_SIZE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZE, "num_key_value_heads": 1}
#: model_type -> its configuration's values. GPT-2 has learned positions, Bloom none that a caller
#: could give.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "qwen2": _GROUPED,
    "gemma": {**_GROUPED, "head_dim": 32},
    "gpt_neox": _SIZE,
    "gpt2": {**_SIZE, "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 4096},
    "bloom": {**_SIZE, "n_head": 2, "n_layer": 2},
}
_WINDOW = {"sliding_window": 60}
#: What else an engine has to get right: soft caps and scales behind the head, a head with a bias,
#: layers that see a window of the prompt, states of recurrent and convolutional layers, experts.
MORE: dict[str, dict[str, Any]] = {
    "gemma2": {**_GROUPED, **_WINDOW, "head_dim": 32, "final_logit_softcapping": 3.0},
    "cohere": {**_SIZE, "logit_scale": 0.3},
    "phi": _SIZE,
    "mistral": {**_GROUPED, **_WINDOW},
    "lfm2": {**_GROUPED, "layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {**_GROUPED, "head_dim": 32, "num_hidden_layers": 3, "lru_width": 64},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "initializer_range": 0.3},
    "mixtral": {**_GROUPED, "num_local_experts": 4},
}


def write(folder: Path, family: str, *, template: bool = True, seed: int = 0) -> Path:
    """The whole repository: config, generation_config, tokenizer, chat_template.jinja where it has
    one, safetensors."""
    torch.manual_seed(seed)
    tokens = make_tokenizer()
    if template:
        tokens.chat_template = TEMPLATE
    config = CONFIG_MAPPING[family](vocab_size=len(tokens), **{**FAMILIES, **MORE}[family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, weight in model.named_parameters():
        if name == "lm_head.bias":
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder
