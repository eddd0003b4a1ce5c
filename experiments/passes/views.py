"""Views of an image: a change of the image, and the way back for the scores of the changed image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor

from segcal.integrations.outputs import resized
from segcal.integrations.passes import mirrored
from segcal.types import InputError

Network: TypeAlias = Callable[[Tensor], Tensor]
"""From images `[B, C, *S]` to logits `[B, L, *S]`."""

ORIGINAL = "original"
"""The view whose labels are kept."""


def seen(network: Network, image: Tensor, view: str, sides: Sequence[int] | None = None) -> Tensor:
    """Return the logits of one view of images `[B, C, *S]` in 0..255, aligned with the images.

    A view is a sum of changes, such as `mirror:2+scale:0.75`: axes of `*S` that are mirrored, a scale, a brightness.
    Where the last axis is mirrored, each class takes the channel of its other side, which `sides` names.

    >>> import torch
    >>> seen(lambda image: image.cumsum(-1), torch.tensor([[[1.0, 2.0, 4.0]]]), "mirror:0").tolist()
    [[[7.0, 6.0, 4.0]]]
    """
    shape = image.shape[2:]

    def aligned(changed: Tensor) -> Tensor:
        return resized(network(changed), shape)

    run: Network = aligned
    for change in reversed(() if view == ORIGINAL else view.split("+")):
        kind, _, value = change.partition(":")
        if kind == "mirror":
            axes = [int(axis) for axis in value.split(",")]
            run = partial(mirrored, axes, run)
            if sides is not None and image.ndim - 3 in axes:
                run = partial(_exchanged, sides, run)
        elif kind == "scale":
            run = partial(_scaled, float(value), run)
        elif kind == "brightness":
            run = partial(_brightened, float(value), run)
        else:
            raise InputError(f"a view is made of mirror:, scale: and brightness:, got '{change}'")
    return run(image)


def _scaled(factor: float, network: Network, image: Tensor) -> Tensor:
    return network(resized(image, [round(factor * length) for length in image.shape[2:]]))


def _brightened(factor: float, network: Network, image: Tensor) -> Tensor:
    return network((factor * image).clamp(0, 255))


def _exchanged(sides: Sequence[int], network: Network, image: Tensor) -> Tensor:
    return network(image)[:, list(sides)]


def other_sides(classes: Sequence[str]) -> tuple[int, ...] | None:
    """Return, for each class, the place of its other side; None where no class is named by its side.

    >>> other_sides(["background", "thalamus, right", "thalamus, left", "fornix"])
    (0, 2, 1, 3)
    """
    exchanged = {", right": ", left", ", left": ", right"}
    places = {name: place for place, name in enumerate(classes)}
    found = []
    for name in classes:
        side = next((ending for ending in exchanged if name.endswith(ending)), "")
        found.append(places[name.removesuffix(side) + exchanged.get(side, "")])
    return None if found == list(range(len(found))) else tuple(found)
