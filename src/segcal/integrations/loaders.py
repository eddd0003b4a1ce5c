"""Images, labels and names in the batches of a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.types import Activation, Image, InputError, Labels, Masks, Shares

_IMAGES = ("image", "images", "pixel_values", "img", "data", "input", "inputs")
_LABELS = ("label", "labels", "mask", "masks", "target", "seg", "segmentation", "semantic_mask", "sem_seg")
_NAMES = ("name", "names", "case", "case_id", "id", "image_id", "file_name", "filename", "filename_or_obj", "path")

_REMEDY = "give it pairs, such as ((batch['scan'], batch['truth']) for batch in loader)"


class Batch(NamedTuple):
    """Images `[B, C, *S]` and labels of a batch, in one of the forms of `read_batch`; names if the batch has them."""

    image: Image
    labels: Labels | Masks | Shares
    names: tuple[str, ...] | None

    @property
    def size(self) -> tuple[int, ...]:
        """Spatial size of the labels."""
        return tuple(self.labels.shape[2 - self.image.ndim :])


def read_batch(batch: Any, activation: Activation | None = None, *, soft: bool = False) -> Batch:
    """Return images, labels and names of a batch.

    A batch is a pair (image, labels), a triple (image, labels, names), or a mapping with the keys that MONAI,
    transformers, albumentations and nnU-Net use (image/label, pixel_values/labels, image/mask, data/target ...), where
    names are read from "name", "id", "file_name" and the like, or from the metadata of MONAI's tensors.

    Args:
        batch: What a loader yields.
        activation: With "sigmoid", labels are masks of 0 and 1 of each channel `[B, C, *S]`. Otherwise, and for a
            single channel, they are classes `[B, *S]` or `[B, 1, *S]`. Both may be integers or whole numbers.
        soft: Whether labels are the shares of raters that chose each class or channel, `[B, L, *S]`.
    """
    if isinstance(batch, Mapping):
        image, labels = batch[_key(batch, _IMAGES, "images")], batch[_key(batch, _LABELS, "labels")]
        names = next((batch[key] for key in _NAMES if key in batch), None)
    elif isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch) in (2, 3):
        (image, labels), names = batch[:2], batch[2] if len(batch) == 3 else None
    else:
        raise InputError(
            f"a loader must yield (image, labels), (image, labels, names) or a dict, got {_kind(batch)}; {_REMEDY}"
        )
    if isinstance(labels, Mapping):  # a target as torchvision's detection data sets have it
        labels = labels[_key(labels, _LABELS, "labels")]
    pixels = _tensor(image, "images")
    truth = _labels(_tensor(labels, "labels"), pixels, activation, soft=soft)
    return Batch(pixels, truth, _names(names if names is not None else getattr(image, "meta", None), len(pixels)))


def _key(batch: Mapping[str, Any], known: Sequence[str], what: str) -> str:
    """Return the one key that holds images or labels; numbers of classes (image classification) have no space."""
    found = [key for key in known if key in batch and len(getattr(batch[key], "shape", ())) > 1]
    if len(found) != 1:
        got = " and ".join(map(repr, found)) if found else f"the keys {', '.join(map(repr, batch))}"
        raise InputError(f"a batch must hold {what} under one of {', '.join(known)}, got {got}; {_REMEDY}")
    return found[0]


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().as_subclass(Tensor)  # MONAI's tensors compute more slowly
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    raise InputError(f"{what} must be a tensor or an array with a batch axis, got {_kind(values)}; use a DataLoader")


def _labels(labels: Tensor, image: Tensor, activation: Activation | None, *, soft: bool) -> Labels | Masks | Shares:
    """Return classes `[B, *S]`, masks `[B, C, *S]` of the channels of a sigmoid head, or shares of raters."""
    if labels.ndim not in (image.ndim, image.ndim - 1) or image.ndim < 3 or len(labels) != len(image):
        raise InputError(
            f"images [B, C, *S] and labels [B, *S] must have the same batch and space, got shapes {tuple(image.shape)} "
            f"and {tuple(labels.shape)}; put a DataLoader around a data set of single images"
        )
    has_channels = labels.ndim == image.ndim
    if soft and not has_channels:
        raise InputError(
            f"shares of raters must have an axis of classes or channels, [B, L, *S], got shape {tuple(labels.shape)}; "
            "give labels[:, None] if there is one channel, or leave raters out if they are classes"
        )
    if soft:
        return labels.float()
    if not has_channels or activation == "sigmoid":
        return whole_labels(labels)
    if labels.shape[1] != 1:
        raise InputError(
            f"labels must be class numbers [B, *S] or [B, 1, *S], got shape {tuple(labels.shape)}; if they are "
            "one-hot, give labels.argmax(1); if they are masks of channels that overlap, set activation='sigmoid'; if "
            "they are shares of several raters, set raters"
        )
    return whole_labels(labels[:, 0])


def whole_labels(labels: Tensor) -> Tensor:
    """Return labels as integers; MONAI loads them as floats."""
    if not labels.is_floating_point():
        return labels
    whole = labels.long()
    if not torch.equal(whole.to(labels.dtype), labels):
        raise InputError(
            "labels must be whole numbers, got fractions; resample labels with nearest neighbours (mode='nearest') or, "
            "if they are shares of several raters [B, L, *S], set raters"
        )
    return whole


def _names(given: Any, many: int) -> tuple[str, ...] | None:
    """Return one name per image; None if the batch has none."""
    if isinstance(given, Mapping):
        given = next((given[key] for key in _NAMES if key in given), None)
    if given is None:
        return None
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Tensor | np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if not isinstance(given, Sequence) or not all(isinstance(name, str | int) for name in given):
        raise InputError(f"names in a batch must be strings or whole numbers, got {_kind(given)}; {_REMEDY}")
    if len(given) != many:
        raise InputError(f"a batch of {many} images must have {many} names, got {len(given)}; {_REMEDY}")
    return tuple(str(name) for name in given)


def _kind(thing: Any) -> str:
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return f"a {type(thing).__name__} of {len(thing)}"
    return type(thing).__name__
