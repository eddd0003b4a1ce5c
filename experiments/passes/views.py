"""Views of an image: a change of the image, and the way back for the scores of the changed image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import interpolate

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
    shape, axes = image.shape[2:], tuple[int, ...]()
    for change in () if view == ORIGINAL else view.split("+"):
        kind, _, value = change.partition(":")
        if kind == "mirror":
            axes = tuple(2 + int(axis) for axis in value.split(","))
            image = image.flip(axes)
        elif kind == "scale":
            image = _resized(image, [round(float(value) * length) for length in shape])
        elif kind == "brightness":
            image = (float(value) * image).clamp(0, 255)
        else:
            raise InputError(f"a view is made of mirror:, scale: and brightness:, got '{change}'")
    logits = network(image)
    logits = logits if logits.shape[2:] == shape else _resized(logits, shape)
    if sides is not None and image.ndim - 1 in axes:
        logits = logits[:, list(sides)]
    return logits.flip(axes) if axes else logits


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


def _resized(values: Tensor, shape: Sequence[int]) -> Tensor:
    mode = "bilinear" if values.ndim == 4 else "trilinear"
    return interpolate(values.float(), size=tuple(shape), mode=mode, align_corners=False)
