"""A network and its calibrator as one module: from image to calibrated probabilities."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.calibrators import Calibrator
from segcal.types import Case, Image, InputError, Labels, Logits, Probs, public


@public
class CalibratedModel(nn.Module):
    """Image to calibrated probabilities; the labels are those of the network alone.

    The network may return logits, a mapping with `"out"` (torchvision) or an object with `.logits` (transformers);
    logits that are coarser than the image are interpolated to its size. The calibrator sees the image as the network
    does, so fit it on such images (`predict_cases` makes them).

    Args:
        network: Any segmentation network.
        calibrator: A fitted one.
    """

    def __init__(self, network: nn.Module, calibrator: Calibrator) -> None:
        super().__init__()
        self.network, self.calibrator = network, calibrator

    def logits(self, image: Image) -> Logits:
        """The network's own scores, at the size of the image."""
        return logits_of(self.network(image), image)

    def forward(self, image: Image) -> Probs:
        """Calibrated probabilities `[B, L, *S]`."""
        return self.calibrator.predict_proba(self.logits(image), image)


def logits_of(output: Any, image: Image) -> Logits:
    """The logits in what a network returned, at the size of the image."""
    if isinstance(output, Mapping) and "out" in output:
        output = output["out"]
    elif hasattr(output, "logits"):
        output = output.logits
    if not isinstance(output, Tensor):
        raise InputError(
            "the network must return logits, a mapping with 'out' or an object with .logits, "
            f"got {type(output).__name__}"
        )
    if output.shape[2:] == image.shape[2:]:
        return output
    mode = {3: "linear", 4: "bilinear", 5: "trilinear"}[output.ndim]
    return F.interpolate(output, size=image.shape[2:], mode=mode, align_corners=False)


@public
def predict_cases(
    network: nn.Module, batches: Iterable[tuple[Image, Labels]], *, device: str | torch.device | None = None
) -> Iterator[Case]:
    """The cases that a network makes of batches of images and labels, for `fit` and `evaluate`.

    They are named by their number; logits are moved to the CPU, one batch at a time. `device` is where the network is,
    if the images are elsewhere.
    """
    network.eval()
    number = 0
    for image, labels in batches:
        moved = image.to(device) if device is not None else image
        with torch.no_grad():
            logits = logits_of(network(moved), moved).cpu()
        for k in range(len(image)):
            yield Case(f"{number:06d}", logits[k], labels[k], image[k])
            number += 1


def import_network(text: str) -> nn.Module:
    """The network that MODULE:FUNCTION returns; modules of the working folder are found too."""
    module, _, function = text.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        network = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"a network is named as MODULE:FUNCTION that returns it, got '{text}' ({error})") from error
    finally:
        sys.path.pop(0)
    if not isinstance(network, nn.Module):
        raise InputError(f"'{text}' must return an nn.Module, got {type(network).__name__}")
    return network
