"""The cases that a network makes of the batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

from segcal.integrations.loaders import read_batch
from segcal.integrations.outputs import read_output, resized
from segcal.types import Case, InputError, public

Remark = Callable[[str], None]
"""Receives what a user should know about the output of the network."""


@public
def predict_cases(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    prefix: str = "",
    device: str | torch.device | None = None,
    remark: Remark | None = None,
) -> Iterator[Case]:
    """Yield the cases that a network makes of a loader, for `fit` and `evaluate`, in the memory of one batch.

    The network runs in evaluation mode without gradients; when the cases have been read, or the iterator is closed, it
    is in the mode that it was in before. Logits of another resolution are interpolated to that of the labels.

    Args:
        network: Any segmentation network; see `segcal.integrations.outputs` for what it may return.
        batches: Any loader; see `segcal.integrations.loaders` for what it may yield.
        prefix: Start of the names of cases whose batch has no names; they are numbered.
        device: Where to move the images; by default where the network is.
        remark: Called once with a sentence if the network returns several tensors, of which the first is used.
    """
    there = device_of(network) if device is None else torch.device(device)
    number, seen, said = 0, dict[str, int](), False
    with evaluating(network):
        for batch in batches:
            image, labels, names = read_batch(batch)
            with torch.no_grad():  # never around a yield: the mode would leak to the caller
                output = read_output(network(image.to(there)))
                logits = resized(output.logits, labels.shape[1:]).cpu()
            if len(logits) != len(image):
                raise InputError(
                    f"the network must return logits of {len(image)} images, got shape {tuple(logits.shape)}; "
                    "check its output"
                )
            if output.remark and remark is not None and not said:
                remark(output.remark)
                said = True
            # at another size than the labels, the image cannot help a method that looks at it
            images = image.cpu() if image.shape[2:] == labels.shape[1:] else [None] * len(image)
            own = names or [f"{prefix}{number + k:06d}" for k in range(len(image))]
            number += len(image)
            for name, scores, truth, picture in zip(own, logits, labels.cpu(), images, strict=True):
                times = seen[name] = seen.get(name, 0) + 1
                # several crops of one image come with its name, and belong together
                group = name if times > 1 or own.count(name) > 1 else None
                yield Case(name if times == 1 else f"{name}-{times}", scores, truth, picture, group=group)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and every module of it back into its own mode at the end."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def device_of(network: nn.Module) -> torch.device:
    """Return the device of a network: that of its first parameter or buffer, or the CPU if it has none."""
    first = next(chain(network.parameters(), network.buffers()), None)
    return torch.device("cpu") if first is None else first.device
