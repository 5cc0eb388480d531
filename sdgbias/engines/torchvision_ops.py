"""Lets torchvision be imported beside a CPU build of torch.

The published torchvision includes operators for CUDA only. Beside a CPU torch they don't load, and
its import then fails, because it registers shapes for two operators that don't exist. The
transforms and video processors need neither, so declaring the two is enough. Where torchvision
matches torch, as on a GPU, nothing is declared.

``sdgbias.engines`` imports this module before anything imports transformers. In the vLLM
environment `make vllm` copies it into site-packages and a .pth file imports it at the start of
every Python there, hence also in the processes that vLLM starts. So it imports nothing of this
package, and costs nothing until torchvision itself is imported.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

OPERATORS = ("nms", "qnms")
#: Kept referenced: a garbage-collected library removes its operators.
_kept: list[Any] = []


def declare() -> None:
    """Declares the schemas of those operators that torchvision's binary did not register."""
    import torch

    missing = [name for name in OPERATORS if not hasattr(torch.ops.torchvision, name)]
    if not missing:
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _kept.append(library)
    for name in missing:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class _DeclareFirst(MetaPathFinder):
    """Declares the operators right before the module that needs them is imported. Finds nothing
    itself."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torchvision._meta_registrations":
            sys.meta_path.remove(self)
            declare()


if not any(type(finder).__name__ == _DeclareFirst.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _DeclareFirst())
