"""Lets torchvision be imported beside a CPU build of torch. Goes into the site-packages of the vLLM environment only.

The published torchvision carries operators for CUDA alone. Beside a CPU torch they don't load, and its import then fails,
because it registers shapes for two operators that don't exist. vLLM imports it for its transforms only, so declaring the two is
enough. A .pth file imports this module at the start of every Python of that environment, hence also in the processes that
vLLM starts; it costs nothing until torchvision itself is imported. Not needed where torchvision fits torch, as on a GPU.
"""

import sys

OPERATORS = ("nms", "qnms")
kept = []


class DeclareFirst:
    """Declares the operators right before the module that wants them is imported. Finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            kept.append(library)  # it takes its operators along when it goes
            for operator in OPERATORS:
                if not hasattr(torch.ops.torchvision, operator):
                    library.define(
                        f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )
        return None


sys.meta_path.insert(0, DeclareFirst())
