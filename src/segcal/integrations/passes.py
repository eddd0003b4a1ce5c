"""Further passes over images: mirrored, rescaled, with dropout, by other networks; run and aligned with the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from segcal.integrations.outputs import read_output, resized
from segcal.types import Image, InputError, Logits
from segcal.types import Passes as PassLogits

Pass: TypeAlias = Callable[[nn.Module, Image], Any]
"""Function of a network and images `[B, C, *S]` that returns what the network returns for the images as they are."""
Run: TypeAlias = Callable[[Image], Any]
"""A network, or one whose image is changed before."""
Wanted: TypeAlias = bool | str | nn.Module | Pass | Sequence[str | nn.Module | Pass] | None
"""Passes as users name them."""

DEFAULT = {
    2: ("mirror", "scale:0.75", "scale:1.25", "mirror+scale:0.75", "mirror+scale:1.25"),
    3: ("mirror:2", "mirror:1", "mirror:0", "mirror:1,2", "mirror:0,2", "mirror:0,1", "mirror:0,1,2"),
}
"""The passes of `passes=True` by the number of spatial axes: the smallest of the sets that were measured with most of
the gain (docs/results/passes.md). 0.75 and 1.25 of the size were of no use to a volume."""
_DROPOUTS = 8
_LARGEST_STRIDE = 32
_KNOWN = (
    "'mirror', 'mirror:AXES' such as 'mirror:0,1', 'scale:FACTOR', 'mirror+scale:FACTOR', 'dropout', 'dropout:RUNS'"
)


class PassRunner(nn.Module):
    """Runs a network several times over an image, and returns the logits of all passes in the place of the first.

    Args:
        wanted: "mirror" (left and right: the last axis), "mirror:AXES" (all of these axes of the image at once, 0 is
            the first), "scale:FACTOR", both as "mirror+scale:FACTOR", "dropout" or "dropout:RUNS" (with dropout as in
            training, the same at each call), networks, functions `f(network, image)` that return logits, or a sequence
            of such; True for those of `DEFAULT`.
    """

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        items = _items_of(wanted)
        self.networks = nn.ModuleList(item for item in items if isinstance(item, nn.Module))
        self._default, self._passes = wanted is True, _passes_of(items)

    def forward(self, network: nn.Module, image: Image, size: Sequence[int]) -> PassLogits | None:
        """Return the logits `[B, K, L, *S]` of all passes at a size; None if there are none."""
        passes = _passes_of(DEFAULT[image.ndim - 2]) if self._default else self._passes
        found = [resized(read_output(run(network, image)), size) for run in passes]
        return torch.stack(found, dim=1) if found else None


def _items_of(wanted: Wanted) -> Sequence[str | nn.Module | Pass]:
    """Return what users name, one after another; nothing for True, whose passes depend on the image."""
    if wanted is None or isinstance(wanted, bool):
        return ()
    if isinstance(wanted, str) or callable(wanted):  # networks are callable, too
        return (wanted,)
    if isinstance(wanted, Iterable):
        return tuple(wanted)
    raise _unknown(wanted)


def _unknown(item: object) -> InputError:
    return InputError(f"passes must be {_KNOWN}, networks or functions, got {item!r}")


def _passes_of(items: Iterable[object]) -> list[Pass]:
    return [found for item in items for found in _passes_named(item)]


def _passes_named(item: object) -> Iterator[Pass]:
    """Yield the passes that an item stands for."""
    if isinstance(item, nn.Module):
        yield partial(_other_network, item)
    elif callable(item):
        yield item
    else:
        name, _, runs = str(item).partition(":")
        try:
            if name == "dropout":
                yield from (partial(_dropped, number) for number in range(int(runs or _DROPOUTS)))
            else:
                changes = str(item).split("+")
                if len(set(changes)) < len(changes):
                    raise ValueError(item)  # a change that is repeated: two mirrors are none
                yield partial(_changed, [_change_of(change) for change in changes])
        except ValueError as error:
            raise _unknown(item) from error


def _change_of(text: str) -> Callable[[Run, Image], Any]:
    """Return the function that runs a network over the changed image; raise a ValueError if there is none."""
    name, _, value = text.partition(":")
    if name == "mirror":
        return partial(mirrored, [int(axis) for axis in value.split(",")] if value else [-1])
    if name == "scale" and 0 < float(value) < float("inf"):
        return partial(_rescaled, float(value))
    raise ValueError(name)


def _changed(changes: Sequence[Callable[[Run, Image], Any]], network: nn.Module, image: Image) -> Any:
    """Return the output for the image after all changes, the first of which is made first and undone last."""
    run: Run = network
    for change in reversed(changes):
        run = partial(change, run)
    return run(image)


def _other_network(other: nn.Module, network: nn.Module, image: Image) -> Any:
    return other(image)


def mirrored(axes: Sequence[int], network: Run, image: Image) -> Logits:
    """Return the logits of the mirrored image, mirrored back."""
    dims = image.ndim - 2
    if not all(-dims <= axis < dims for axis in axes):
        raise InputError(f"axes to mirror must be among the {dims} of the image, got {list(axes)}; count from 0")
    flipped = [2 + axis % dims for axis in axes]
    return read_output(network(image.flip(flipped))).flip(flipped)


def _rescaled(factor: float, network: Run, image: Image) -> Any:
    """Return the output for the image at another size, which the same power of two divides (up to 32)."""
    steps = [(length, min(length & -length, _LARGEST_STRIDE)) for length in image.shape[2:]]
    size = [max(step, round(length * factor / step) * step) for length, step in steps]
    if size == list(image.shape[2:]) and factor != 1:  # the next size: at its own, a pass would see nothing new
        size = [max(step, length + (step if factor > 1 else -step)) for length, step in steps]
    return network(resized(image, size))


def _dropped(number: int, network: nn.Module, image: Image) -> Any:
    """Return the output with dropout, of the same random numbers at each call."""
    layers = [module for module in network.modules() if isinstance(module, _DropoutNd)]
    if not layers:
        raise InputError("passes with dropout need a network with dropout layers, got one without; use 'mirror'")
    modes = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.train()
        with torch.random.fork_rng([image.device.index] if image.device.index is not None else []):
            torch.manual_seed(number)
            output: Tensor = network(image)
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.train(mode)
    return output
