"""CUDA graphs of forward and backward passes: many small kernels take longer to launch than to run.

Recording is an optimisation. CUDA refuses some calls while a stream is recorded, so nothing is freed meanwhile, no
other thread of segcal has its turn, and calls of other threads of the process are not refused. Where recording fails
all the same, steps run as they are.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from segcal.kernels.dispatch import device_turn

_SHAPES = 4
"""Shapes that are recorded; batches of any further shape run eagerly, since every graph holds memory of its own."""


class Recorder:
    """Calls a module; in training on a GPU through a CUDA graph of its forward and backward pass, one per shape.

    The gradients of a replay always lie in the same memory, so each optimiser step may call the recorder only once.
    The module must not branch on the values of tensors.

    Args:
        network: Module that maps tensors to one tensor.
        compiled: Compile the module for the first shape before recording, which fuses kernels. Compiling takes minutes,
            which further shapes do not repay.
    """

    def __init__(self, network: nn.Module, *, compiled: bool = False) -> None:
        self.network, self.compiled, self.failed = network, compiled, False
        self.recorded = dict[tuple[tuple[torch.Size, torch.dtype], ...], nn.Module]()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return what the module returns."""
        shapes = tuple((values.shape, values.dtype) for values in inputs)
        if self._can_record(inputs) and shapes not in self.recorded and len(self.recorded) < _SHAPES:
            self.recorded[shapes] = self._record(inputs)
        call = self.recorded.get(shapes, self.network) if self._can_record(inputs) else self.network
        return cast(Tensor, call(*inputs))

    def _can_record(self, inputs: tuple[Tensor, ...]) -> bool:
        return not self.failed and inputs[0].is_cuda and self.network.training and torch.is_grad_enabled()

    def _record(self, inputs: tuple[Tensor, ...]) -> nn.Module:
        """Record the passes for inputs of these shapes, or return the module itself where that fails.

        Buffers changed by the warm-up passes are restored.
        """
        with suppress(AttributeError):  # newer versions warn about gradients from another stream, which is intended
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        kept = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        half, stream = torch.is_autocast_enabled("cuda"), torch.cuda.current_stream()
        samples, compiled = tuple(values.clone() for values in inputs), self.compiled and not self.recorded
        with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=half, cache_enabled=False):
            try:
                with _undisturbed():
                    recorded = torch.cuda.make_graphed_callables(_Pass(self.network, compiled), samples)
            except RuntimeError:  # a genuine error will recur when the module runs as it is
                recorded, self.failed = self.network, True
                _leave(stream)
        for buffer, before in kept:
            buffer.copy_(before)
        return cast(nn.Module, recorded)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Record in a mode that lets other threads call CUDA, and collect garbage before instead of meanwhile.

    Garbage may hold an earlier recording, and CUDA cannot free one while it records.
    """
    with device_turn:
        graph, collects = torch.cuda.graph, gc.isenabled()
        gc.collect()
        gc.disable()
        torch.cuda.graph = partial(graph, capture_error_mode="thread_local")  # type: ignore[misc, assignment]
        try:
            yield
        finally:
            torch.cuda.graph = graph  # type: ignore[misc]
            if collects:
                gc.enable()


def _leave(stream: torch.cuda.Stream) -> None:
    """Leave a recording that failed: go on in the stream from before it.

    Where the end of a recording fails, PyTorch leaves the broken stream in place and would use it again, and takes its
    random generator to be recorded still, until another recording has ended.
    """
    torch.cuda.set_stream(stream)
    torch.cuda.graph.default_capture_stream = None
    with suppress(RuntimeError), _undisturbed(), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
    torch.cuda.set_stream(stream)
    torch.cuda.graph.default_capture_stream = None


class _Pass(nn.Module):
    """A wrapper, so that one module can be recorded for several shapes."""

    def __init__(self, network: nn.Module, compiled: bool) -> None:
        super().__init__()
        self.network = network
        self.call = torch.compile(network.forward, dynamic=False) if compiled else network.forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return cast(Tensor, self.call(*inputs))
