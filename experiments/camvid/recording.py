"""A network's passes on a GPU, recorded once and replayed: its thousands of kernels start slower than they run."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import torch
from torch import Tensor, nn


class Recorder:
    """Calls a network; in training on a GPU by CUDA graphs of its forward and backward pass, one for each shape.

    The gradients of a replay lie in the same memory each time, so an optimiser's step takes one batch, not several.

    Args:
        network: What is called.
        compiled: Whether what is recorded is compiled first, so that one kernel does what several did.
    """

    def __init__(self, network: nn.Module, *, compiled: bool = False) -> None:
        self.network, self.compiled = network, compiled
        self.recorded = dict[tuple[torch.Size, torch.dtype], nn.Module]()

    def __call__(self, image: Tensor) -> Tensor:
        """What the network gives."""
        if not (image.is_cuda and self.network.training and torch.is_grad_enabled()):
            return cast(Tensor, self.network(image))
        shape = image.shape, image.dtype
        if shape not in self.recorded:
            self.recorded[shape] = self._record(image)
        return cast(Tensor, self.recorded[shape](image))

    def _record(self, image: Tensor) -> nn.Module:
        """The network's passes for images of this shape; the passes that recording takes leave its statistics alone."""
        with suppress(AttributeError):  # newer versions say that gradients come of another stream; here that is meant
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        kept = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        half = torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=half, cache_enabled=False):
            recorded = torch.cuda.make_graphed_callables(_Pass(self.network, self.compiled), (image.clone(),))
        for buffer, before in kept:
            buffer.copy_(before)
        return cast(nn.Module, recorded)


class _Pass(nn.Module):
    """The network, so that one and the same can be recorded for several shapes."""

    def __init__(self, network: nn.Module, compiled: bool) -> None:
        super().__init__()
        self.network = network
        self.call = torch.compile(network.forward, dynamic=False) if compiled else network.forward

    def forward(self, image: Tensor) -> Tensor:
        return cast(Tensor, self.call(image))
