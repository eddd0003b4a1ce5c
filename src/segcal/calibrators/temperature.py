"""Temperatures that are solved exactly: one for all pixels (Sec. 3.3), also of the attended loss, or one per bin.

Attended temperature scaling is that of Mozafari et al. 2018: wrong classes that a pixel nearly belongs to inform, too.
Bin-wise temperature scaling is that of Ji et al. 2019: one temperature for each bin of confidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Unpack

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import pixels_of, summed_likelihood, survey
from segcal.calibrators.tempered import FitLimits, TemperatureCalibrator
from segcal.cases import CaseStream
from segcal.evidence import describe
from segcal.functional.probability import at_least_float32_dtype, probabilities
from segcal.functional.scaling import attended_sums, binned_sums
from segcal.functional.temperature import (
    Likelihood,
    likelihood,
    optimal_inverse_temperature,
    optimal_inverse_temperatures,
)
from segcal.types import MOST_BINS, Image, InputError, Logits, Temperature, check_whole

_NEAR = 1e-6
"""Relative distance at which two derivatives describe the NLL to the last digit."""
_TOP = 0.999
"""Confidences above have a bin of their own, as in the paper: most pixels of a network are there."""
_CELLS = 1 << 16
_PART = 1 << 20  # pixels described at a time, which takes more memory than two or three logits each


class TemperatureScaling(TemperatureCalibrator):
    """Divide all logits by the temperature with the lowest NLL (Eq. 3.3).

    The NLL is convex in the inverse temperature, so its slope has one root (Theorem 1) and there is no step size to
    tune. Each step of the root finder goes through the cases once and sums in float64; from the optimum of a few
    pixels on, three or four steps are usual.

    Args:
        num_classes: L.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    method = "ts"

    inverse_temperature: Float64[Tensor, ""]
    """The exact optimum, NaN until fitted: 0 for scores no better than chance, infinite if every pixel is right."""

    def __init__(self, num_classes: int, **limits: Unpack[FitLimits]) -> None:
        super().__init__(num_classes, **limits)
        self._register_learned(inverse_temperature=())

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the temperature of least NLL; one number cannot overfit, so nothing is validated."""
        sample, found = list[tuple[Tensor, Tensor]](), dict[float, Likelihood]()

        def at(alpha: float) -> Likelihood:
            found[alpha] = summed_likelihood(stream, alpha, None if found else sample)
            return found[alpha]

        root = optimal_inverse_temperature(at, lambda: _of_sample(sample))
        self.inverse_temperature.fill_(root.inverse_temperature)
        before, applied = found[1.0], 1 / self._bounded()
        nearest = min(found, key=lambda alpha: abs(alpha - applied))
        if abs(nearest - applied) > _NEAR * applied:
            nearest = applied
            at(applied)
        return Learned(
            pixels=int(before.pixels),
            nll_before=before.nll / before.pixels,
            nll_after=found[nearest].nll_near(applied - nearest) / before.pixels,
            steps=root.steps,
            converged=root.converged,
            warnings=tuple(self._doubts()),
            details={"temperature": self._bounded()},
        )

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        found = self._within_bounds().to(at_least_float32_dtype(logits.dtype))
        return found.expand(logits.shape[0], 1, *logits.shape[2:])

    def _refuses(self, logits: Logits, image: Image | None) -> bool:
        return True  # the logits are not read

    def _summary(self) -> dict[str, object]:
        return {"temperature": self._bounded()}

    def _bounded(self) -> float:
        return float(self._within_bounds())

    def _within_bounds(self) -> Float64[Tensor, ""]:
        return (1 / self.inverse_temperature).clamp(*self.bounds)

    def _doubts(self) -> Iterator[str]:
        alpha, (low, high) = float(self.inverse_temperature), self.bounds
        if alpha == 0:
            yield f"the scores are no better than chance: the optimum is an infinite temperature, {high} is used"
        elif alpha == float("inf"):
            yield f"every pixel is predicted right: the optimum is a temperature of 0, {low} is used"
        elif not low <= 1 / alpha <= high:
            yield f"the optimum {1 / alpha:.6g} is out of bounds, {self._bounded():.6g} is used"


def _of_sample(sample: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the inverse temperature of least NLL of a few pixels; 1 where they have none."""
    logits, labels = (torch.cat(parts, dim=-1) for parts in zip(*sample, strict=True))
    root = optimal_inverse_temperature(lambda alpha: likelihood(logits, labels, alpha)).inverse_temperature
    return root if 0 < root < float("inf") else 1.0


class AttendedTemperatureScaling(TemperatureScaling):
    """Divide all logits by the temperature with the lowest attended loss.

    Class k has as its samples the pixels labelled k, and those of other classes whose raw posterior of k is at least
    `threshold` (its attended samples). By Bayes' rule a pixel that is not of class k stands for one that is with the
    weight `Q(k | x) / (1 - Q(k | x))`, so on it `1 - S_k` is matched instead of `S_k`. With `S = softmax(z / T)` the
    loss is

        sum_k [ sum_{y = k} -log S_k  +  sum_{y != k, softmax(z)_k >= threshold} -log(1 - S_k) ].

    A class that attends to a pixel has its own binary, proper score there, so that wrong pixels, which are few where a
    network is accurate, count more than once. A class that does not attend has only the half of one, which draws the
    temperature up: on calibrated pixels of 3 classes T is 1.00 with a threshold of 0.01, 1.07 with 0.05 and 1.44 with
    0.3. The loss is not convex for every data set: the root finder then finds a local minimum. The NLL in the report
    may have risen.

    Args:
        num_classes: L.
        threshold: Lowest probability at which a class also counts pixels of another class.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    method = "ats"

    def __init__(self, num_classes: int, *, threshold: float = 0.01, **limits: Unpack[FitLimits]) -> None:
        super().__init__(num_classes, **limits)
        if not 0 < threshold <= 1:
            raise InputError(f"threshold must be above 0 and at most 1, got {threshold}")
        self.threshold = float(threshold)

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the temperature of least attended loss; one number cannot overfit, so nothing is validated."""
        seen = survey(stream)
        sums = cache(lambda alpha: self._attended(stream, alpha))
        root = optimal_inverse_temperature(lambda alpha: Likelihood(*sums(alpha)[:6].tolist()))
        self.inverse_temperature.fill_(root.inverse_temperature)
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=summed_likelihood(stream, 1 / self._bounded()).nll / seen.pixels,
            steps=root.steps,
            converged=root.converged,
            warnings=(*seen.doubts(1), *self._doubts()),
            details={"temperature": self._bounded(), "attended": int(sums(1.0)[6])},
        )

    def _attended(self, stream: CaseStream, alpha: float) -> Tensor:
        parts = (attended_sums(z, labels, self.threshold, alpha) for z, labels in pixels_of(stream))
        return sum(parts, torch.zeros(7, dtype=torch.float64))


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
            warnings=(*seen.doubts(self.bins), *self._doubts(alphas, sums[:, 0])),
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
    parts = (binned_sums(logits, labels, edges, alphas) for logits, labels in pixels_of(stream))
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
