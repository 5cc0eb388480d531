"""A real model folder that thinks before it answers, unless its chat template is told not to.

Its layers add nothing to the embedding of the last token, and its head maps that token to the next:
after the template's "ASSISTANT:" it writes <think>, after a closed, empty block of thoughts it
writes a letter or a digit, each of the thirteen alike. The template is Qwen3's:
`enable_thinking: false` closes the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.builders import families
from tests.builders.family_settings import SMALL

THOUGHT = "<think>\n\n</think>\n\n"
#: Token -> those that come next, each as likely; an answer in one step of thought.
ALOUD = {":": ["<think>"], "<think>": ["5"], "5": ["</think>"], "</think>": ["7"], "7": ["</s>"]}
_CLOSED = {
    ":": ["<think>"],
    "\n": [*"ABC0123456789"],
    "\u010a": [*"ABC0123456789"],
}


def write(folder: Path, follows: Mapping[str, Sequence[str]] = _CLOSED) -> Path:
    """A small LLaVA with the thinking template."""
    settings = replace(SMALL["llava"], words=("<think>", "</think>"))
    families.write(folder, "llava", settings=settings)
    tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    language = model.model.language_model
    for layer in language.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    known = language.embed_tokens.weight
    torch.nn.init.normal_(known, generator=torch.Generator().manual_seed(0))
    known.data /= known.data.norm(dim=1, keepdim=True)
    head = torch.zeros_like(known)
    for last, nexts in follows.items():
        at = tokenizer.convert_tokens_to_ids(last)
        if at is None or at == tokenizer.unk_token_id:
            continue
        for token in nexts:
            head[tokenizer.convert_tokens_to_ids(token)] += 3 * known.data[at]
    model.lm_head.weight.data = head
    model.save_pretrained(folder)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    begin = "{% if enable_thinking is defined and enable_thinking is false %}"
    closed = f"ASSISTANT:{begin}{{{{ '{THOUGHT!s}' }}}}{{% endif %}}".replace("\n", "\\n")
    (folder / "chat_template.jinja").write_text(
        template.replace("ASSISTANT:", closed), encoding="utf-8"
    )
    return folder
