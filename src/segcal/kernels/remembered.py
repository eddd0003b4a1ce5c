"""Values that are computed from buffers once and kept until a buffer changes.

On a GPU, a temperature from one number takes several launches, each as long as a small image takes to calibrate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

T = TypeVar("T")


class Remembered:
    """The value last computed from some tensors.

    >>> doubled, source = Remembered(), torch.tensor([1.0])
    >>> doubled.value((source,), None, lambda: 2 * source)
    tensor([2.])
    >>> _ = source.fill_(4.0)
    >>> doubled.value((source,), None, lambda: 2 * source)
    tensor([8.])
    """

    def __init__(self) -> None:
        self._sources: tuple[Tensor, ...] = ()
        self._key: Any = None
        self._value: Any = None

    def value(self, sources: tuple[Tensor, ...], option: Hashable, compute: Callable[[], T]) -> T:
        """Return `compute()`, or what it returned before if neither the sources nor the option have changed."""
        if not _can_be_kept(sources):
            return compute()
        # PyTorch counts changes in place; other tensors have other identities, since these are kept alive
        key = (option, *[(id(source), source._version) for source in sources])
        if key != self._key:
            with torch.inference_mode(False), torch.no_grad():  # the value must also serve outside of these modes
                self._value = compute()
            self._sources, self._key = sources, key
        found: T = self._value
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered:
        """Return an empty one: copied tensors count their changes from 0."""
        return Remembered()

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        """Return how to build an empty one, so that nothing computed is stored in files."""
        return Remembered, ()


def _can_be_kept(sources: tuple[Tensor, ...]) -> bool:
    """Return whether a graph that is being recorded or a gradient needs no computation of its own."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    recorded = torch.is_grad_enabled()
    for source in sources:
        if type(source) not in _PLAIN or source.is_inference() or (recorded and source.requires_grad):
            return False
    return True


_PLAIN = (Tensor, Parameter)
