"""Training data, objective and validation of the methods that learn a temperature tree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.calibrators.base import Calibrator
from segcal.calibrators.shared.tree import TemperatureTree
from segcal.cases import Slab, slabs_of
from segcal.functional.checks import IGNORED
from segcal.functional.probability import possible_logits
from segcal.functional.scaled_loss import summed_nll
from segcal.functional.standardise import standardised_log_probabilities
from segcal.kernels.dispatch import engine_for
from segcal.training.batches import Sample
from segcal.training.validation import Validation
from segcal.types import Case, Image, InputError, Logits, Temperature

LARGEST_SAMPLE = 1 << 23
"""Scores of an image up to which it is trained on, and validated, as a whole; larger ones in crops and slabs."""
_CROP = 1 << 22  # scores of a crop of larger images
_CROP_STEP = 8  # sides of crops are multiples of it


class TrainedTemperature(Protocol):
    """What training needs to know of a calibrator."""

    tree: TemperatureTree
    image_channels: int

    def fit_labels(self, case: Case) -> Tensor:
        """Return labels with -1 at every pixel that the fit leaves out."""

    def unchecked_temperature(self, logits: Logits, image: Image | None) -> Temperature:
        """Return the temperatures, whether fitted or not."""

    def unchecked_slabs(self, case: Case) -> Iterator[tuple[Slab, Temperature]]:
        """Return the temperatures of a case slab by slab, whether fitted or not."""


class Objective(nn.Module):
    """Summed NLL of the scaled logits over the pixels that are not left out, and their number."""

    def __init__(self, calibrator: TrainedTemperature) -> None:
        super().__init__()
        self.tree, self._calibrator = calibrator.tree, [calibrator]  # in a list, so that it is no submodule

    @property
    def calibrator(self) -> TrainedTemperature:
        """The calibrator that is trained."""
        return self._calibrator[0]

    def forward(self, logits: Tensor, labels: Tensor, image: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the sum and the number of pixels."""
        # without looking for an impossible class: a recorded step must not branch on values
        finite = possible_logits(logits, logits.amax(dim=1, keepdim=True))
        return summed_loss(finite, labels, self.calibrator.unchecked_temperature(finite, image))


def summed_loss(logits: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return the NLL of `logits / temperature`, summed over the pixels with a label, and their number."""
    if engine_for(logits, labels, temperature.detach()) == "cpu":
        nll = summed_nll(logits.float(), labels.long(), temperature.float())
    else:
        nll = F.cross_entropy(logits.float() / temperature.float(), labels, ignore_index=IGNORED, reduction="sum")
    return nll, (labels >= 0).sum()


class CaseSource:
    """Cases as training samples: logits, labels with -1 at pixels left out, and the image if it is used."""

    def __init__(self, cases: Any, calibrator: TrainedTemperature) -> None:
        self.cases: Sequence[Case] = cases if isinstance(cases, Sequence) else list(cases)
        self.calibrator = calibrator

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self.cases)

    def __getitem__(self, index: int) -> Sample:
        """Return the arrays of one case."""
        case = self.cases[index]
        labels = self.calibrator.fit_labels(case)[0].cpu()
        if not self.calibrator.image_channels:
            return case.logits, labels
        if case.image is None or case.image.shape[0] != self.calibrator.image_channels:
            got = "none" if case.image is None else f"{case.image.shape[0]} channels"
            raise InputError(
                f"images need {self.calibrator.image_channels} channels, got {got} of case '{case.name}'; "
                "set image_channels, or 0 to read the logits only"
            )
        return case.logits, labels, case.image


class CaseValidation(Validation):
    """Validation cases: small ones are measured whole, large ones in slabs that are read from disk one at a time."""

    def losses(self, objective: nn.Module, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the summed NLL of one case and its number of pixels."""
        assert isinstance(objective, Objective)
        logits, labels, *image = self.source[index]
        if math.prod(logits.shape) <= LARGEST_SAMPLE:
            return super().losses(objective, index, device)
        total, pixels = torch.zeros(2, dtype=torch.float64, device=device)
        case = Case("validation", logits, None, image[0] if image else None)
        for slab, temperature in objective.calibrator.unchecked_slabs(case):
            start = slab.rows.start + slab.inner.start
            truth = torch.as_tensor(labels[start : start + temperature.shape[2]]).to(device).unsqueeze(0)
            nll, number = summed_loss(slab.logits[:, :, slab.inner], truth, temperature)
            total, pixels = total + nll, pixels + number
        return total, pixels


class InputStatistics(NamedTuple):
    """Mean and standard deviation of the log-probability of each class, and the shape of the largest case."""

    mean: Float64[Tensor, " L"]
    deviation: Float64[Tensor, " L"]
    largest: tuple[int, ...]


def input_statistics(
    calibrator: Calibrator, cases: Iterable[Case], inverse_temperature: Float64[Tensor, ""]
) -> InputStatistics:
    """Return the statistics of `log_softmax(inverse_temperature * logits)` over the pixels of the fit, in one pass.

    The deviation of a class whose log-probability is the same everywhere is 1.
    """
    classes, device = calibrator.num_classes, calibrator.fitted.device
    zero, one = torch.zeros(classes, device=device), torch.ones(classes, device=device)
    sums, pixels, largest = torch.zeros(2, classes, dtype=torch.float64, device=device), 0, (0,)
    for case in cases:
        largest = max(largest, tuple(case.logits.shape), key=math.prod)
        labels = calibrator.fit_labels(case)[0]
        for slab in slabs_of(case, classes, device=device):
            values, kept = standardised_log_probabilities(slab.logits, inverse_temperature, zero, one)[0], labels >= 0
            kept = kept[slab.rows]
            pixels += int(kept.sum())
            for k, row in enumerate(values):
                wide = row[kept].double()
                sums[:, k] += torch.stack([wide.sum(), wide.square().sum()])
    mean = sums[0] / pixels
    deviation = (sums[1] / pixels - mean.square()).clamp(min=0).sqrt()
    return InputStatistics(mean, torch.where(deviation < 1e-6, 1.0, deviation), largest)


def bounded_crop(shape: Sequence[int]) -> int | None:
    """Return the side of the crops to train on for logits of shape `[L, *S]`; None if they are trained on whole.

    >>> bounded_crop((11, 360, 480))
    >>> bounded_crop((57, 181, 217, 181))
    40
    """
    if math.prod(shape) <= LARGEST_SAMPLE:
        return None
    sides = range(_CROP_STEP, max(shape[1:]) + _CROP_STEP, _CROP_STEP)
    fitting = [side for side in sides if shape[0] * math.prod(min(side, n) for n in shape[1:]) <= _CROP]
    return max(fitting, default=_CROP_STEP)
