"""First passes over the pixels of a stream: sums of the NLL, a survey of the data, and a sample drawn by class.

In a sample rare classes are whole, frequent ones thinned and weighted. With one class for all pixels it is a plain
draw, to which each image contributes in proportion to its size. `functional.draws` decides which are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.draws import SAMPLE_LEVELS, Sample, sample_levels
from segcal.functional.pixels import likelihood_sums
from segcal.functional.temperature import Likelihood, likelihood, optimal_inverse_temperature
from segcal.types import Array, InputError

_PIXELS_PER_NUMBER = 10
"""Pixels per learned number below which a fit is doubtful."""

_SHOWN = 10
"""Classes that a warning names."""

_PIXELS = 1 << 15
"""Most pixels that a sample keeps, of all classes together."""

_LARGE = 1e6
"""Logits above which sums of their products may be the reason for an error in float64."""

_SAMPLED = 61
"""One of so many pixels is in a sample; a prime, so that it is not always the same column."""


def pixels_of(stream: CaseStream) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits `[L, N]` and labels `[N]` of every slab, with -1 at pixels left out of the fit."""
    for slab in stream.slabs():
        assert slab.labels is not None
        yield slab.logits[0].flatten(1), slab.labels[0].flatten()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch work on the calling thread only.

    Where operations are small, its threads take several times longer to wake, and then spin, than the work takes.
    """
    threads = torch.get_num_threads()
    if threads == 1:  # as a thread that began meanwhile sees it, which must not make it last
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


def inverse_temperature_of(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> float:
    """Return the inverse temperature of least NLL of pixels in memory."""
    values = logits.contiguous()
    return optimal_inverse_temperature(lambda alpha: likelihood(values, labels, alpha)).inverse_temperature


def summed_nll(calibrator: Calibrator, cases: Iterable[StreamedCase]) -> tuple[float, int]:
    """Return the NLL of calibrated cases, summed over the pixels that a fit would use, and their number."""
    nll, pixels = 0.0, 0
    for case in cases:
        for slab in calibrator.calibrate_case(case):
            assert slab.labels is not None
            part = likelihood(slab.relative_logits()[0], slab.labels[0], 1.0)
            nll, pixels = nll + part.nll, pixels + int(part.pixels)
            del slab
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

    def doubts(self, numbers: int, *, by_class: bool = True) -> Iterator[str]:
        """Yield warnings about data that determine the learned numbers poorly; `by_class` if classes have their own."""
        present = self.support.nonzero().squeeze(1).tolist()
        absent = (self.support == 0).nonzero().squeeze(1).tolist()
        if self.pixels < _PIXELS_PER_NUMBER * numbers:
            yield f"only {self.pixels} pixels to fit {numbers} numbers on; fit on more cases"
        if len(present) == 1 and absent:
            yield f"class {present[0]} is the only one among the labels; the others cannot be learned"
        elif absent and by_class:
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


class Sampler:
    """Draws pixels from images that are shown one after the other.

    Args:
        num_classes: Number of classes that are drawn from separately; labels beyond count as the last of them.
        pixels: Most pixels that are kept, of all classes together.
        rows: Numbers that are kept of each pixel; by default its logits.
        narrow: Whether they are kept in float32, or in float64.
    """

    def __init__(
        self, num_classes: int, pixels: int = _PIXELS, *, rows: int | None = None, narrow: bool = False
    ) -> None:
        self._classes, self._room = num_classes, max(2, pixels // num_classes)
        self._counts = np.zeros((num_classes, SAMPLE_LEVELS), np.int64)
        self._seen = self._size = 0
        # in one piece from the start: small pieces, kept among images that come and go, would fragment the memory
        room = 2 * self._room * num_classes
        self._levels, self._labels, self._places = np.empty(room, np.uint8), *np.empty((2, room), np.int64)
        self._values = np.zeros((num_classes if rows is None else rows, room), np.float32 if narrow else np.float64)

    @one_thread()
    def add(self, values: Float[Tensor, "R *S"], labels: Int64[Tensor, "*S"], *more: Shaped[Tensor, "_ *S"]) -> None:
        """Add an image, or a part of one; pixels with a negative label are skipped."""
        flat = labels.reshape(-1).cpu()
        kind = flat.clamp(max=self._classes - 1)
        levels = sample_levels(kind, self._seen, torch.from_numpy(self._counts)).numpy()
        index = np.flatnonzero((kind.numpy() >= 0) & (levels >= self._least()[kind.numpy()]))
        if self._size + index.size > self._labels.size:
            self._thin()
        place = slice(self._size, self._size + index.size)
        self._levels[place], self._labels[place], self._places[place] = levels[index], flat[index], self._seen + index
        row, chosen = 0, torch.from_numpy(index)
        for part in (values, *more):
            kept = part.reshape(len(part), flat.numel())[:, chosen.to(part.device)].double()
            self._values[row : row + len(part), place] = kept.cpu().numpy()
            row += len(part)
        self._size += index.size
        self._seen += flat.numel()

    def kept(self) -> tuple[Array, Array, Array]:
        """Return numbers `[R, N]` and labels of the pixels that are kept, and their places among those shown."""
        self._thin()
        return self._values[:, : self._size], self._labels[: self._size], self._places[: self._size]

    def sample(self) -> Sample:
        """Return the pixels that are kept, by class."""
        logits, truth, _ = self.kept()
        order = np.argsort(truth, kind="stable")
        kept, seen = np.bincount(truth, minlength=len(self._counts)), self._counts.sum(axis=1)
        return Sample(
            torch.from_numpy(np.ascontiguousarray(logits[:, order])),
            torch.from_numpy(truth[order]),
            torch.from_numpy(seen / np.maximum(kept, 1)),
            torch.from_numpy(np.concatenate([[0], np.cumsum(kept)])),
        )

    def _least(self) -> Array:
        """Return the lowest level of each class for which there is room."""
        above = self._counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        return (above > self._room).sum(axis=1)  # type: ignore[no-any-return]

    def _thin(self) -> None:
        """Drop the pixels for which there is no more room."""
        kind = np.minimum(self._labels[: self._size], self._classes - 1)
        stays = np.flatnonzero(self._levels[: self._size] >= self._least()[kind])
        for kept in (self._levels, self._labels, self._places, self._values):
            kept[..., : stays.size] = kept[..., stays]
        self._size = stays.size


@contextmanager
def refusing_large(drawn: Sample, method: str) -> Iterator[None]:
    """Refuse logits whose products are infinite, or so large that penalties are lost next to them, in a fit to them."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            yield
    except (np.linalg.LinAlgError, ValueError) as error:
        largest = float(drawn.logits.abs().max())
        if isinstance(error, InputError) or largest < _LARGE:
            raise
        raise InputError(
            f"logits of up to {largest:.3g} are too large for '{method}', which adds up their products; divide them by "
            "a constant, or write -inf for a class that is impossible"
        ) from error
