"""CUDA graphs of forward and backward passes: many small kernels take longer to launch than to run."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import torch
from torch import Tensor, nn

_SHAPES = 4
"""Shapes that are recorded; batches of any further shape run eagerly, since every graph holds memory of its own."""


class Recorder:
    """Calls a module; in training on a GPU through a CUDA graph of its forward and backward pass, one per shape.

    The gradients of a replay always lie in the same memory, so each optimiser step may call the recorder only once.
    The module must not branch on the values of tensors.

    Args:
        network: Module that maps tensors to one tensor.
        compiled: Compile the module before recording, which fuses kernels.
    """

    def __init__(self, network: nn.Module, *, compiled: bool = False) -> None:
        self.network, self.compiled = network, compiled
        self.recorded = dict[tuple[tuple[torch.Size, torch.dtype], ...], nn.Module]()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return what the module returns."""
        if not (inputs[0].is_cuda and self.network.training and torch.is_grad_enabled()):
            return cast(Tensor, self.network(*inputs))
        shapes = tuple((values.shape, values.dtype) for values in inputs)
        if shapes not in self.recorded:
            if len(self.recorded) == _SHAPES:
                return cast(Tensor, self.network(*inputs))
            self.recorded[shapes] = self._record(inputs)
        return cast(Tensor, self.recorded[shapes](*inputs))

    def _record(self, inputs: tuple[Tensor, ...]) -> nn.Module:
        """Record the passes for inputs of these shapes, or return the module itself where that fails.

        Buffers changed by the warm-up passes are restored.
        """
        with suppress(AttributeError):  # newer versions warn about gradients from another stream, which is intended
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        kept = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        half = torch.is_autocast_enabled("cuda")
        samples = tuple(values.clone() for values in inputs)
        with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=half, cache_enabled=False):
            try:
                recorded = torch.cuda.make_graphed_callables(_Pass(self.network, self.compiled), samples)
            except RuntimeError:  # another thread used the device, to fetch a batch say; an own error comes again
                recorded = self.network
        for buffer, before in kept:
            buffer.copy_(before)
        return cast(nn.Module, recorded)


class _Pass(nn.Module):
    """A wrapper, so that one module can be recorded for several shapes."""

    def __init__(self, network: nn.Module, compiled: bool) -> None:
        super().__init__()
        self.network = network
        self.call = torch.compile(network.forward, dynamic=False) if compiled else network.forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return cast(Tensor, self.call(*inputs))
