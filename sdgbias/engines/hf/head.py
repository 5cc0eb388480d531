"""The head of a language model in float32, whatever the dtype of the model.

A head in bfloat16 rounds its logits to steps of 0.06 to 0.125, so that 5 to 10 % of prompts tie at
the top, and argmax gives every tie to the first candidate. Products of two bfloat16 (or float16)
numbers are exact in float32, so the same weights and the same last hidden state give logits without
that rounding. What the model's own forward does with logits afterwards (scaling, soft caps) then
happens in float32, too.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn import functional

#: Rows of the head that are converted at a time: 256 MiB in float32 at a width of 4096.
_ROWS = 16384


def keep_precise(model: torch.nn.Module) -> None:
    """Makes the head of a model in bfloat16 or float16 return float32 logits, where it can be
    identified."""
    head = _find(model)
    weight = None if head is None else next(head.parameters(), None)
    if head is None or weight is None or weight.dtype not in (torch.bfloat16, torch.float16):
        return
    plain = copy.copy(head)  # shares the parameters; its forward is the family's own
    if type(head).forward is torch.nn.Linear.forward:
        head.forward = lambda hidden: _linear(plain, hidden)  # type: ignore[method-assign]
    else:
        head.forward = lambda hidden: torch.func.functional_call(  # type: ignore[method-assign]
            plain,
            {name: p.float() for name, p in plain.named_parameters()},
            (hidden.float(),),
        )


def _find(model: Any) -> torch.nn.Module | None:
    """The module whose output are the logits."""
    head = model.get_output_embeddings()
    if isinstance(head, torch.nn.Module):
        return head
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return next((m for m in reversed(linear) if m.out_features == size), None)


def _linear(head: Any, hidden: torch.Tensor) -> torch.Tensor:
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
