"""Training data, objective and validation of the methods that learn a temperature tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.calibrators.temperature import TemperatureCalibrator
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.checks import IGNORED
from segcal.functional.division import Standardisation, standardised_log_probabilities, summed_nll
from segcal.kernels.dispatch import engine_for
from segcal.training.batches import Batch, Box, Source
from segcal.types import InputError

LARGEST_SAMPLE = 1 << 23
"""Scores of an image up to which it is trained on as a whole; larger ones in crops."""
_CROP = 1 << 22  # scores of a crop of larger images
_CROP_STEP = 8  # sides of crops are multiples of it


class Objective(nn.Module):
    """Summed NLL of the scaled logits over the pixels that are not left out, and their number."""

    def __init__(self, calibrator: TemperatureCalibrator) -> None:
        super().__init__()
        self.tree = calibrator.tree
        object.__setattr__(self, "calibrator", calibrator)  # not as a submodule

    calibrator: TemperatureCalibrator
    """The calibrator that is trained."""

    def forward(self, logits: Tensor, labels: Tensor, image: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the sum and the number of pixels."""
        return summed_loss(logits, labels, self.calibrator._temperature(logits, image))


def summed_loss(logits: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return the NLL of `logits / temperature`, summed over the pixels with a label, and their number."""
    if engine_for(logits, labels, temperature.detach()) == "cpu":
        nll = summed_nll(logits.float(), labels.long(), temperature.float())
    else:
        nll = F.cross_entropy(logits.float() / temperature.float(), labels, ignore_index=IGNORED, reduction="sum")
    return nll, (labels >= 0).sum()


class CaseSource(Source):
    """The cases of a stream as training samples: logits, labels with -1 at pixels left out, and the image if used."""

    def __init__(self, stream: CaseStream, image_channels: int) -> None:
        self.stream, self.image_channels = stream, image_channels

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self.stream)

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of the logits of a case."""
        return self.stream[index].shape

    def read(self, index: int, box: Box) -> Batch:
        """Return the part of a case inside a box."""
        slab = self._case(index).crop(box)
        return tuple(part[0] for part in (slab.logits, slab.labels, slab.image) if part is not None)

    def measure(self, objective: nn.Module, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the summed NLL of a case and its pixels, slab by slab."""
        assert isinstance(objective, Objective)
        total, pixels = torch.zeros(2, dtype=torch.float64, device=device)
        for slab in objective.calibrator._calibrate_streamed(self._case(index)):
            assert slab.labels is not None
            assert slab.temperature is not None
            nll, number = summed_loss(slab.raw, slab.labels, slab.temperature)
            total, pixels = total + nll, pixels + number
            del slab
        return total, pixels

    @property
    def is_on_device(self) -> bool:
        """True if every case is kept in the memory of a GPU."""
        kept = [facts.logits for facts in self.stream.facts]
        return len(kept) == len(self) and all(logits is not None and logits.is_cuda for logits in kept)

    def _case(self, index: int) -> StreamedCase:
        """Return a case; raise unless it has the image that is read."""
        case, channels = self.stream[index], self.image_channels
        image = case.case.image
        if channels and (image is None or image.shape[0] != channels):
            got = "none" if image is None else f"{image.shape[0]} channels"
            raise InputError(
                f"images need {channels} channels, got {got} of case '{case.name}'; "
                "set image_channels, or 0 to read the logits only"
            )
        return case


def standardisation_of(stream: CaseStream, inverse_temperature: Float64[Tensor, ""]) -> Standardisation:
    """Return the inverse temperature, with the mean and deviation of the log-probability of each class over the fit.

    The deviation of a class whose log-probability is the same everywhere is 1.
    """
    classes, device = stream.num_classes, stream.device
    zero, one = torch.zeros(classes, device=device), torch.ones(classes, device=device)
    sums, pixels = torch.zeros(2, classes, dtype=torch.float64, device=device), 0
    for slab in stream.slabs():
        assert slab.labels is not None
        kept = slab.labels[0] >= 0
        values = standardised_log_probabilities(slab.logits, inverse_temperature.to(device), zero, one)[0]
        pixels += int(kept.sum())
        for k, row in enumerate(values):
            wide = row[kept].double()
            sums[:, k] += torch.stack([wide.sum(), wide.square().sum()])
    mean = sums[0] / pixels
    deviation = (sums[1] / pixels - mean.square()).clamp(min=0).sqrt()
    return inverse_temperature, mean, torch.where(deviation < 1e-6, 1.0, deviation)


def bounded_crop(shape: Sequence[int]) -> int | None:
    """Return the side of the crops to train on for logits of shape `[L, *S]`; None if they are trained on whole.

    Examples:
        >>> bounded_crop((11, 360, 480))
        >>> bounded_crop((57, 181, 217, 181))
        40
    """
    if math.prod(shape) <= LARGEST_SAMPLE:
        return None
    sides = range(_CROP_STEP, max(shape[1:]) + _CROP_STEP, _CROP_STEP)
    fitting = [side for side in sides if shape[0] * math.prod(min(side, n) for n in shape[1:]) <= _CROP]
    return max(fitting, default=_CROP_STEP)
