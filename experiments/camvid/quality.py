"""Accuracy of a network's labels, and the statistics of batch normalisation that it needs for whole frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from experiments.datasets.camvid import CLASSES, VOID, Frame
from segcal.types import Array, Image

BATCH = 8
_T = TypeVar("_T")
Labelled = tuple[Tensor, Tensor]
"""A picture `[3, H, W]` and its labels `[H, W]`, uint8, on the device."""


def normalised(image: Image | Tensor) -> Tensor:
    """Pictures as the network takes them: of about mean 0 and variance 1, in the memory order that is fastest."""
    unit = image.float() / 255 if image.dtype == torch.uint8 else image
    return ((unit - 0.4) / 0.28).contiguous(memory_format=torch.channels_last)


def held(frames: Sequence[Frame], device: torch.device) -> list[Labelled]:
    """Frames on a device."""
    return [(torch.from_numpy(frame.image).to(device), torch.from_numpy(frame.labels).to(device)) for frame in frames]


def logits_of(network: nn.Module, frames: Sequence[Labelled]) -> Float[Tensor, "B L H W"]:
    """The network's logits of frames of one size, in the precision of its weights."""
    with torch.no_grad(), choosing_kernels(False):
        found: Tensor = network(normalised(torch.stack([image for image, _ in frames])))
    return found


def fit_statistics(network: nn.Module, frames: Sequence[Labelled], *, seed: int) -> None:
    """Give batch normalisation the mean statistics of whole frames, without dropout, as its weights now make them.

    Those gathered in training belong to other weights, to crops, to recoloured pictures and to maps with dropout.
    Frames of all videos share a batch, since otherwise the variance between videos would be missing.
    """
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.train().reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    order = np.random.default_rng(seed).permutation(len(frames))
    count = max(1, len(frames) // BATCH)
    for chosen in order[: count * BATCH].reshape(count, -1):
        logits_of(network, [frames[k] for k in chosen])
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval().momentum = momentum


def measure(network: nn.Module, frames: Sequence[Labelled]) -> float:
    """The mIoU of a network, as it is, on frames."""
    tables = [
        confusion(logits_of(network, part), torch.stack([labels for _, labels in part]))
        for part in in_batches(frames, BATCH)
    ]
    return mean_iou(torch.stack(tables).sum(0).cpu().numpy())


def confusion(logits: Float[Tensor, "B L H W"], labels: Integer[Tensor, "B H W"]) -> Integer[Tensor, "L L"]:
    """Return the confusion matrix: true classes in rows, predicted classes in columns; void is not counted."""
    size = len(CLASSES)
    pairs = labels.long() * size + logits.argmax(1)
    return torch.bincount(pairs.flatten(), minlength=(VOID + 1) * size)[: size * size].reshape(
        size, size
    )  # void is the last row


def mean_iou(table: Array) -> float:
    """Mean over the classes that occur of intersection over union, pooled over all pixels."""
    hit = np.diag(table)
    union = table.sum(0) + table.sum(1) - hit
    return float(np.mean(hit[union > 0] / union[union > 0]))


def in_batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Neighbours together, the last ones perhaps fewer.

    >>> list(in_batches("abcde", 2))
    ['ab', 'cd', 'e']
    """
    return (items[start : start + size] for start in range(0, len(items), size))


@contextmanager
def choosing_kernels(on: bool) -> Iterator[None]:
    """Set whether cuDNN tries several kernels per shape, which takes half a minute and pays in training only."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
