"""Bin-wise temperature scaling (Ji et al. 2019): one temperature for each bin of confidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import pixels_of, survey
from segcal.calibrators.temperature import FitLimits, TemperatureCalibrator
from segcal.cases import CaseStream
from segcal.evidence import describe
from segcal.functional.pixels import binned_sums
from segcal.functional.probability import probabilities
from segcal.functional.temperature import optimal_inverse_temperatures
from segcal.types import MOST_BINS, Image, Logits, Temperature, check_whole

_TOP = 0.999
"""Confidences above have a bin of their own, as in the paper: most pixels of a network are there."""
_CELLS = 1 << 16
_PART = 1 << 20  # pixels described at a time, which takes more memory than two or three logits each


class BinwiseTemperatureScaling(TemperatureCalibrator):
    """Divide the logits of a pixel by the temperature of the bin of its uncalibrated confidence.

    The last bin holds the confidences above 0.999; the others share those below equally. Their edges are read from a
    histogram of 65,536 cells, so each is right to 1/65,536. In each bin the temperature is the exact optimum of
    Theorem 1, all bins being solved at once; each step goes through the cases once.

    Args:
        num_classes: L.
        bins: How many, the last one included.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    method = "bts"

    edges: Float64[Tensor, " inner"]
    """The confidences between bins, each the largest of its bin."""
    inverse_temperatures: Float64[Tensor, " R"]
    """The exact optima, NaN until fitted; 1 where no pixel fell."""

    def __init__(self, num_classes: int, *, bins: int = 10, **limits: Unpack[FitLimits]) -> None:
        super().__init__(num_classes, **limits)
        check_whole("bins", bins, 2, MOST_BINS)  # with one it would be temperature scaling
        self.bins = int(bins)
        self._register_learned(edges=(bins - 1,), inverse_temperatures=(bins,))

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the edges, then the temperature of least NLL in each bin."""
        seen = survey(stream)
        edges = equal_shares(_histogram(stream), self.bins)
        sums = _likelihoods(stream, edges, torch.ones(self.bins, dtype=torch.float64))
        alphas, steps, converged = optimal_inverse_temperatures(
            lambda at: sums if (at == 1).all() else _likelihoods(stream, edges, at), self.bins
        )
        applied = 1 / self._bounded(alphas)
        after = _likelihoods(stream, edges, applied)
        self.edges.copy_(edges)
        self.inverse_temperatures.copy_(alphas)
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=float(after[:, 1].sum()) / seen.pixels,
            steps=steps,
            converged=converged,
            warnings=(*seen.doubts(self.bins, by_class=False), *self._doubts(alphas, sums[:, 0])),
            details={
                "edges": edges.tolist(),
                "temperatures": (1 / applied).tolist(),
                "pixels": sums[:, 0].long().tolist(),
            },
        )

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        confidence = probabilities(logits).amax(dim=1, keepdim=True)
        temperatures = self._bounded(self.inverse_temperatures).to(confidence.dtype)
        result = temperatures[0].expand(confidence.shape)
        for r in range(1, self.bins):  # comparisons, because they can be exported
            result = torch.where(confidence > self.edges[r - 1].to(confidence.dtype), temperatures[r], result)
        return result

    def _bounded(self, alphas: Tensor) -> Tensor:
        return (1 / alphas).clamp(*self.bounds)

    def _doubts(self, alphas: Tensor, pixels: Tensor) -> Iterator[str]:
        low, high = self.bounds
        if empty := (pixels == 0).nonzero().squeeze(1).tolist():
            yield f"bins without a pixel, where nothing is changed: {', '.join(map(str, empty))}"
        outside = (1 / alphas < low) | (1 / alphas > high)
        if at := outside.nonzero().squeeze(1).tolist():
            yield f"bins whose optimum is out of bounds, {low} or {high} is used: {', '.join(map(str, at))}"


def _histogram(stream: CaseStream) -> Int64[Tensor, " cells"]:
    """Count pixels whose confidence is at most 0.999 in cells of equal width."""
    total = torch.zeros(_CELLS, dtype=torch.int64)
    for logits, labels in pixels_of(stream):
        for z, y in zip(torch.split(logits, _PART, dim=1), torch.split(labels, _PART), strict=True):
            confidence = describe(z, y).confidence
            chosen = confidence[(y >= 0) & (confidence <= _TOP)]
            cell = (chosen * _CELLS).ceil().long() - 1
            total += torch.bincount(cell.clamp(min=0), minlength=_CELLS).cpu()
    return total


def _likelihoods(stream: CaseStream, edges: Tensor, alphas: Tensor) -> Float64[Tensor, "R 6"]:
    parts = (binned_sums(logits, labels, edges, alphas).cpu() for logits, labels in pixels_of(stream))
    return sum(parts, torch.zeros(len(alphas), 6, dtype=torch.float64))


def equal_shares(histogram: Int64[Tensor, " cells"], bins: int) -> Float64[Tensor, " inner"]:
    """Edges that split a histogram of 0..1 into `bins - 1` equal shares, and 0.999.

    Examples:
        >>> equal_shares(torch.tensor([0, 3, 3, 0]), 3)
        tensor([0.5000, 0.9990], dtype=torch.float64)
    """
    below = histogram.cumsum(dim=0).double()
    wanted = below[-1] * torch.arange(1, bins - 1) / (bins - 1)
    cells = torch.searchsorted(below, wanted.clamp(min=0.5))  # the cell in which the share is reached
    edges = (cells + 1).double() / len(histogram)
    return torch.cat([edges.clamp(max=_TOP), torch.tensor([_TOP], dtype=torch.float64)])
