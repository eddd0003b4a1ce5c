"""Shared by fits that read the cases several times: the pixels in slabs, sums of the NLL, and a survey of the data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator, TemperatureCalibrator
from segcal.calibrators.shared.sampler import Sampler
from segcal.cases import Slab, slabs_of
from segcal.functional.probability import at_least_float32
from segcal.functional.temperature import likelihood
from segcal.types import Case, InputError, Logits

_PIXELS_PER_NUMBER = 10
"""Pixels per learned number below which a fit is doubtful."""


def pixels_of(calibrator: Calibrator, cases: Collection[Case]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the case name, logits `[L, *S]` and labels `[*S]` of every slab, with -1 at pixels left out of the fit."""
    for case in cases:
        labels = calibrator.fit_labels(case)[0]
        for slab in slabs_of(case, calibrator.num_classes, device=labels.device):
            yield case.name, slab.logits[0], labels[slab.rows]


def summed_nll(calibrator: Calibrator, cases: Iterable[Case]) -> tuple[float, int]:
    """Return the NLL of calibrated cases, summed over the pixels that a fit would use, and their number."""
    nll, pixels = 0.0, 0
    for case in cases:
        labels = calibrator.fit_labels(case)[0]
        for slab, logits in _calibrated_slabs(calibrator, case):
            part = likelihood(logits[0], labels[slab.inner_rows], 1.0)
            nll, pixels = nll + part.nll, pixels + int(part.pixels)
    return nll, pixels


def _calibrated_slabs(calibrator: Calibrator, case: Case) -> Iterator[tuple[Slab, Logits]]:
    """Yield calibrated logits slab by slab; scaled ones relative to the largest, so that a shift costs no precision."""
    if not isinstance(calibrator, TemperatureCalibrator) or not calibrator.only_divides:
        yield from calibrator.calibrate_case(case)
        return
    for slab, temperature in calibrator.temperature_case(case):
        logits = at_least_float32(slab.logits[:, :, slab.inner])
        below = logits - logits.amax(dim=1, keepdim=True)
        yield slab, below.div_(temperature.to(below.dtype))


def uncalibrated_nll(calibrator: Calibrator, cases: Collection[Case]) -> tuple[float, int]:
    """Return the same for the logits as they are."""
    parts = [likelihood(logits, labels, 1.0) for _, logits, labels in pixels_of(calibrator, cases)]
    return sum(part.nll for part in parts), int(sum(part.pixels for part in parts))


@dataclass(frozen=True)
class Survey:
    """Result of a first pass: how much there is to fit on, its mean NLL, and what makes a fit doubtful."""

    cases: int
    names: tuple[str, ...]
    nll: float
    support: Int64[Tensor, " L"]
    """Pixels of each true class."""
    all_right: bool
    all_wrong: bool

    @property
    def pixels(self) -> int:
        """Number of pixels to fit on."""
        return int(self.support.sum())

    def doubts(self, numbers: int) -> Iterator[str]:
        """Yield warnings about data that determine the learned numbers poorly."""
        present = self.support.nonzero().squeeze(1).tolist()
        absent = (self.support == 0).nonzero().squeeze(1).tolist()
        if self.pixels < _PIXELS_PER_NUMBER * numbers:
            yield f"only {self.pixels} pixels to fit {numbers} numbers on; fit on more cases"
        if len(present) == 1 and absent:
            yield f"class {present[0]} is the only one among the labels; the others cannot be learned"
        elif absent:
            yield f"no pixel to fit on is labelled {', '.join(map(str, absent))}; such classes cannot be learned"
        if self.all_right:
            yield "every pixel is predicted right, so that no finite parameters minimise the NLL"
        elif self.all_wrong:
            yield "no pixel is predicted right; do labels and logits belong together?"


def survey(calibrator: Calibrator, cases: Collection[Case], sampler: Sampler | None = None) -> Survey:
    """Read the cases once; a sampler, if given, is shown every pixel."""
    names = dict[str, None]()
    nll, below, above_mean, some_right = 0.0, 0.0, 0.0, False
    support = torch.zeros(calibrator.num_classes, dtype=torch.int64)
    for name, logits, labels in pixels_of(calibrator, cases):
        names[name] = None
        found = likelihood(logits, labels, 1.0)
        nll, below = nll + found.nll, below + found.slope_at_infinity
        above_mean -= found.slope_at_zero
        support += torch.bincount(labels[labels >= 0], minlength=calibrator.num_classes).cpu()
        some_right = some_right or _some_right(logits.reshape(len(logits), -1), labels.reshape(-1))
        if sampler is not None:
            sampler.add(logits, labels)
    pixels = int(support.sum())
    if pixels == 0:
        raise InputError("no labelled pixel to fit on; check ignore_index, background and the labels")
    return Survey(
        cases=len(cases),
        names=tuple(names),
        nll=nll / pixels,
        support=support,
        all_right=below == 0 and above_mean > 0,  # if all logits are equal, both are 0
        all_wrong=not some_right,
    )


def _some_right(logits: Tensor, labels: Tensor) -> bool:
    """Return whether any pixel is predicted right; stops at the first."""
    parts = zip(torch.split(logits, 4096, dim=1), torch.split(labels, 4096), strict=True)
    return any(bool((z.argmax(dim=0) == y).any()) for z, y in parts)
