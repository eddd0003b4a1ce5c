"""The logits in what segmentation networks return, at the size that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.types import Image, InputError, Logits

_KEYS = ("out", "logits")
_QUERIES = ("class_queries_logits", "masks_queries_logits")
_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}

Remark: TypeAlias = Callable[[str], None]
"""Receives what a user should know about the output of the network."""


def read_output(output: Any, remark: Remark | None = None) -> Logits:
    """Return the logits `[B, L, *S]` in the output of a network, at the network's resolution.

    A network may return a tensor; a mapping with "out" (torchvision) or "logits"; an object with `.logits`
    (transformers); masks and their classes (MaskFormer, Mask2Former, OneFormer); or a tuple or list, whose first
    element is taken (auxiliary heads, deep supervision), of which `remark` is told.
    """
    whole = found = _named(output)
    if isinstance(whole, Sequence) and len(whole) and not isinstance(whole, str):
        found = _named(whole[0])
    if not isinstance(found, Tensor) or found.ndim not in _MODES or not found.is_floating_point():
        raise InputError(
            "the network must return logits [B, L, *S]: a floating-point tensor, a mapping with 'out' or 'logits', an "
            f"object with .logits, or a tuple or list whose first element is one of these, got {_described(output)}; "
            "wrap the network in a module that returns its logits"
        )
    if found is not whole and remark is not None:
        several, shape = f"a {type(whole).__name__} of {len(whole)}", tuple(found.shape)
        remark(f"the network returned {several}; the first, {shape}, is taken as its logits")
    return found


def resized(logits: Logits, size: Sequence[int]) -> Logits:
    """Return logits at another size, by (bi-, tri-)linear interpolation as torchvision and transformers do it."""
    if tuple(logits.shape[2:]) == tuple(size):
        return logits
    if logits.ndim != len(size) + 2:
        raise InputError(
            f"logits [B, L, *S] must have {len(size)} spatial axes as the labels and images have, "
            f"got shape {tuple(logits.shape)}; check the output of the network"
        )
    return F.interpolate(logits, size=tuple(size), mode=_MODES[logits.ndim], align_corners=False)


def check_scale(logits: Logits, size: Sequence[int]) -> None:
    """Raise unless the labels' size is that of the logits, or an integer multiple of it up to rounding.

    Anything else was cropped or padded, and interpolation would stretch scores over the wrong pixels.
    """
    own = tuple(logits.shape[2:])
    if len(own) == len(size) and not all(map(_is_scale, own, size)):
        raise InputError(
            f"labels of size {tuple(size)} must have the size {own} of the network's logits, or an integer multiple of "
            "it; crop or pad images and labels alike"
        )


def _is_scale(small: int, large: int) -> bool:
    """Return whether `small` pixels are `large` ones reduced by an integer stride, which rounds down or up."""
    stride = round(large / small) if small else 0
    return stride >= 1 and small in (large // stride, -(-large // stride))


def logits_of(output: Any, image: Image) -> Logits:
    """Return the logits in the output of a network, at the size of its image."""
    return resized(read_output(output), image.shape[2:])


def _queried(output: Any) -> Logits:
    """Return the logarithm of the scores that mask classification gives each class: the sum over its masks.

    Its softmax normalises these scores, and the labels are those of the scores.
    """
    classes, masks = (getattr(output, name) for name in _QUERIES)
    scores = torch.einsum("bqc,bqhw->bchw", classes.softmax(dim=-1)[..., :-1], masks.sigmoid())  # the last is "none"
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()


def _named(output: Any) -> Any:
    """Return what an output holds under the name of its logits, or the output itself if it has no such name."""
    if all(getattr(output, name, None) is not None for name in _QUERIES):
        return _queried(output)
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, Mapping):
        return next((output[key] for key in _KEYS if key in output), output)
    return output


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{output.dtype} of shape {tuple(output.shape)}"
    if isinstance(output, Mapping):
        return f"{type(output).__name__} with {', '.join(map(repr, output))}"
    return type(output).__name__
