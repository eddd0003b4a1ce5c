"""What the fits that go through the cases several times share: the pixels in slabs, and a first look at them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.shared.sampler import Sampler
from segcal.cases import slabs_of
from segcal.functional.temperature import likelihood
from segcal.types import Case, InputError

_PIXELS_PER_NUMBER = 10
"""With fewer pixels for each learned number, a fit is doubtful."""


def pixels_of(calibrator: Calibrator, cases: Collection[Case]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The name of the case, logits `[L, *S]` and labels `[*S]` of every slab; -1 where the fit leaves pixels out."""
    for case in cases:
        labels = calibrator.fit_labels(case)[0]
        for slab in slabs_of(case, calibrator.num_classes, device=labels.device):
            yield case.name, slab.logits[0], labels[slab.rows]


def summed_nll(calibrator: Calibrator, cases: Iterable[Case]) -> tuple[float, int]:
    """The NLL of calibrated cases over the pixels that a fit would look at, and how many these are."""
    nll, pixels = 0.0, 0
    for case in cases:
        labels = calibrator.fit_labels(case)[0]
        for slab, logits in calibrator.calibrate_case(case):
            start = slab.rows.start + slab.inner.start
            part = likelihood(logits[0], labels[start : start + logits.shape[2]], 1.0)
            nll, pixels = nll + part.nll, pixels + int(part.pixels)
    return nll, pixels


@dataclass(frozen=True)
class Survey:
    """What a first pass finds: how much there is to fit on, its mean NLL, and what makes a fit doubtful."""

    cases: int
    names: tuple[str, ...]
    nll: float
    support: Int64[Tensor, " L"]
    """Pixels of each true class."""
    all_right: bool
    all_wrong: bool

    @property
    def pixels(self) -> int:
        """To fit on."""
        return int(self.support.sum())

    def doubts(self, numbers: int) -> Iterator[str]:
        """Warnings about data that say too little for the learned numbers."""
        present = self.support.nonzero().squeeze(1).tolist()
        absent = (self.support == 0).nonzero().squeeze(1).tolist()
        if self.pixels < _PIXELS_PER_NUMBER * numbers:
            yield f"only {self.pixels} pixels to fit {numbers} numbers on; fit on more cases"
        if len(present) == 1 and absent:
            yield f"class {present[0]} is the only one among the labels; the fit knows nothing of the others"
        elif absent:
            yield f"no pixel to fit on is labelled {', '.join(map(str, absent))}; the fit knows nothing of such classes"
        if self.all_right:
            yield "every pixel is predicted right, so that no finite answer has the least NLL"
        elif self.all_wrong:
            yield "no pixel is predicted right; do labels and logits belong together?"


def survey(calibrator: Calibrator, cases: Collection[Case], sampler: Sampler | None = None) -> Survey:
    """Go through the cases once; the sampler, where there is one, is shown every pixel."""
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
        all_right=below == 0 and above_mean > 0,  # where all logits are equal, both are 0
        all_wrong=not some_right,
    )


def _some_right(logits: Tensor, labels: Tensor) -> bool:
    """Whether a pixel is predicted right; looks only until it has found one."""
    parts = zip(torch.split(logits, 4096, dim=1), torch.split(labels, 4096), strict=True)
    return any(bool((z.argmax(dim=0) == y).any()) for z, y in parts)
