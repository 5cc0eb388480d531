"""A model in memory: what it takes, its kernels of attention, its greedy settings, and its head in
float32.

A head in bfloat16 rounds its logits to steps of 0.06 to 0.125, so that 5 to 10 % of prompts tie at
the top, and argmax gives every tie to the first candidate. Products of two bfloat16 (or float16)
numbers are exact in float32, so the same weights and the same last hidden state give logits without
that rounding, and what the model's own forward does with logits afterwards (scaling, soft caps)
happens in float32, too.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedConfig

from sdgbias.errors import NotAnswerable, OutOfMemory

#: Text of the plain RuntimeError that torch raises when main memory is full.
NO_MEMORY = "can't allocate memory"
#: Rows of the head that are converted at a time: 256 MiB in float32 at a width of 4096.
_ROWS = 16384


@contextmanager
def memory_errors(where: str = "out of memory") -> Iterator[None]:
    """OutOfMemory in place of what torch raises when the device's or the machine's is full."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
            raise OutOfMemory(f"{where}: {str(error).splitlines()[0]}") from None
        raise


def accepted(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that the model's forward takes; a cache is handed on by `generate`."""
    names = {*inspect.signature(model.forward).parameters, "past_key_values"}
    return {name: value for name, value in inputs.items() if name in names}


def keep_greedy(model: Any) -> None:
    """Leaves of every generation_config.json inside the model the tokens that begin and end
    answers: beams, penalties on repetition, forbidden and forced tokens would turn greedy answers
    into others wherever the library's own generation writes them."""
    for part in model.modules():
        config = getattr(part, "generation_config", None)
        if config is not None:
            tokens = {k: v for k, v in config.to_dict().items() if k.endswith("_token_id")}
            kept = {k: v for k, v in tokens.items() if k != "forced_eos_token_id"}
            part.generation_config = GenerationConfig(**kept)


def language_part(model: Any, name: str) -> Any:
    """The language model with its head inside a model that requires a picture: it answers what is
    asked without one. Raises NotAnswerable where there is none."""
    for part in ("language_model", "text_model", "text_decoder"):
        module = getattr(model, part, None)
        if getattr(module, "get_output_embeddings", lambda: None)() is not None:
            return module
    raise NotAnswerable(
        f"{name}: {type(model).__name__} answers no prompt without a picture; its views Q-only and"
        " CTX+Q don't exist"
    )


def attention(config: Any) -> str:
    """The attention implementations that the model and its parts selected, e.g. 'sdpa
    text_config:sdpa vision_config:sdpa'."""
    parts = {
        name: getattr(config, name, None) for name in sorted(getattr(config, "sub_configs", ()))
    }
    named = [
        f"{name}:{getattr(part, '_attn_implementation', None)}"
        for name, part in parts.items()
        if part is not None
    ]
    return " ".join([str(getattr(config, "_attn_implementation", None)), *named])


@contextmanager
def plain_attention(model: torch.nn.Module) -> Iterator[bool]:
    """Inside, attention is plain matrix products in place of the kernels that the model selected;
    False where it is so already."""
    configs = (getattr(part, "config", None) for part in model.modules())
    parts: list[Any] = [c for c in configs if isinstance(c, PreTrainedConfig)]
    selected = [getattr(part, "_attn_implementation", None) for part in parts]
    try:
        for part in parts:
            part._attn_implementation = "eager"  # noqa: SLF001
        yield any(name not in (None, "eager") for name in selected)
    finally:  # in this order, because a configuration sets those of its parts
        for part, name in zip(parts, selected, strict=True):
            part._attn_implementation = name  # noqa: SLF001


def keep_precise(model: torch.nn.Module) -> None:
    """Makes the head of a model in bfloat16 or float16 return float32 logits, where it can be
    identified."""
    head = _head_of(model)
    weight = None if head is None else next(head.parameters(), None)
    if head is None or weight is None or weight.dtype not in (torch.bfloat16, torch.float16):
        return
    plain = copy.copy(head)  # shares the parameters; its forward is the family's own
    if type(head).forward is torch.nn.Linear.forward:
        head.forward = lambda hidden: _precise_linear(plain, hidden)  # type: ignore[method-assign]
    else:
        head.forward = lambda hidden: torch.func.functional_call(  # type: ignore[method-assign]
            plain,
            {name: p.float() for name, p in plain.named_parameters()},
            (hidden.float(),),
        )


def _head_of(model: Any) -> torch.nn.Module | None:
    """The module whose output are the logits."""
    head = model.get_output_embeddings()
    if isinstance(head, torch.nn.Module):
        return head
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return next((m for m in reversed(linear) if m.out_features == size), None)


def _precise_linear(head: Any, hidden: torch.Tensor) -> torch.Tensor:
    """(..., V) float32 logits of the hidden states (..., D)."""
    weight, bias = head.weight, head.bias
    hidden = hidden.to(weight.device)  # of a model split over devices
    if weight.is_cuda and hidden.dtype == weight.dtype:
        # accumulated in float32 and returned so, without a converted copy of the weights
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = torch.mm(flat, weight.t(), out_dtype=torch.float32)
        logits = logits if bias is None else logits + bias.float()
        return logits.reshape(*hidden.shape[:-1], -1)
    exact = hidden.float()
    parts = [
        functional.linear(
            exact,
            weight[at : at + _ROWS].float(),
            None if bias is None else bias[at : at + _ROWS].float(),
        )
        for at in range(0, len(weight), _ROWS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
