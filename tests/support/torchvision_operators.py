"""Lets torchvision's CUDA wheel import beside a CPU build of PyTorch, as packages that need it do in the tests."""

from __future__ import annotations

import importlib.util
import sys

import torch

_LIBRARIES: list[torch.library.Library] = []  # the operators exist as long as their library does


def define_missing_operators() -> None:
    """Define the operators that torchvision registers at import, if it cannot register them itself."""
    if importlib.util.find_spec("torchvision") is None or _LIBRARIES:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
