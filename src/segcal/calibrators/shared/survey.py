"""Shared by fits: the pixels of a stream, sums of the NLL, and a survey of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.shared.sampler import Sampler
from segcal.calibrators.tempered import TemperedSlab
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.pixels import likelihood_sums
from segcal.functional.temperature import Likelihood, likelihood
from segcal.types import InputError

_PIXELS_PER_NUMBER = 10
"""Pixels per learned number below which a fit is doubtful."""

_SHOWN = 10
"""Classes that a warning names."""

_SAMPLED = 61
"""One of so many pixels is in a sample; a prime, so that it is not always the same column."""


def pixels_of(stream: CaseStream) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits `[L, N]` and labels `[N]` of every slab, with -1 at pixels left out of the fit."""
    for slab in stream.slabs():
        assert slab.labels is not None
        yield slab.logits[0].flatten(1), slab.labels[0].flatten()


def nothing_to_fit() -> InputError:
    """Return the error to raise where no pixel has a label."""
    return InputError("no labelled pixel to fit on; check ignore_index, background and the labels")


def summed_likelihood(
    stream: CaseStream, alpha: float, sample: list[tuple[Tensor, Tensor]] | None = None
) -> Likelihood:
    """Return the NLL and its derivatives at an inverse temperature, summed over a stream.

    A few of the pixels are appended to a sample, if there is one.
    """
    total = torch.zeros(len(Likelihood._fields), dtype=torch.float64, device=stream.device)
    for logits, labels in pixels_of(stream):
        if sample is not None:
            few = slice(None, None, _SAMPLED)
            sample.append((logits[:, few].contiguous(), labels[few].contiguous()))
        total += likelihood_sums(logits, labels, alpha)  # read once, so that a GPU is not waited for at every slab
    found = Likelihood(*total.tolist())
    if found.pixels == 0:
        raise nothing_to_fit()
    return found


def summed_nll(calibrator: Calibrator, cases: Iterable[StreamedCase]) -> tuple[float, int]:
    """Return the NLL of calibrated cases, summed over the pixels that a fit would use, and their number."""
    nll, pixels = 0.0, 0
    for case in cases:
        for slab in calibrator.calibrate_case(case):
            assert slab.labels is not None
            logits = slab.relative_logits() if isinstance(slab, TemperedSlab) else slab.logits()
            part = likelihood(logits[0], slab.labels[0], 1.0)
            nll, pixels = nll + part.nll, pixels + int(part.pixels)
            del slab, logits
    return nll, pixels


@dataclass(frozen=True)
class Survey:
    """Result of a first pass: how much there is to fit on, its mean NLL, and what makes a fit doubtful."""

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
            shown = ", ".join(map(str, absent[:_SHOWN])) + (", ..." if len(absent) > _SHOWN else "")
            yield f"no pixel to fit on is labelled {shown}; such classes cannot be learned"
        if self.all_right:
            yield "every pixel is predicted right, so that nothing shows how confident to be"
        elif self.all_wrong:
            yield "no pixel is predicted right; do labels and logits belong together?"


def survey(stream: CaseStream, sampler: Sampler | None = None) -> Survey:
    """Read the cases once; a sampler, if given, is shown every pixel."""
    nll, below, above_mean, some_right = 0.0, 0.0, 0.0, False
    support = torch.zeros(stream.num_classes, dtype=torch.int64)
    for logits, labels in pixels_of(stream):
        found = likelihood(logits, labels, 1.0)
        nll, below = nll + found.nll, below + found.slope_at_infinity
        above_mean -= found.slope_at_zero
        support += torch.bincount(labels[labels >= 0], minlength=stream.num_classes).cpu()
        some_right = some_right or _some_right(logits, labels)
        if sampler is not None:
            sampler.add(logits, labels)
    pixels = int(support.sum())
    if pixels == 0:
        raise nothing_to_fit()
    return Survey(
        nll=nll / pixels,
        support=support,
        all_right=below == 0 and above_mean > 0,  # if all logits are equal, both are 0
        all_wrong=not some_right,
    )


def _some_right(logits: Tensor, labels: Tensor) -> bool:
    """Return whether any pixel is predicted right; stops at the first."""
    parts = zip(torch.split(logits, 4096, dim=1), torch.split(labels, 4096), strict=True)
    return any(bool((z.argmax(dim=0) == y).any()) for z, y in parts)
