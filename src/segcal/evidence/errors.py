"""Reliability histograms, and every calibration error read from them (appendix "Evaluation Metrics").

A reliability histogram holds pixels, correct pixels and summed confidence for each predicted class and bin, in int64
and float64. ECE, MCE, SCE, ACE and curves are readings of it, and the histogram of two sets of pixels together is the
sum of theirs. Every reading takes any number of regions at once: histograms have shape `[*G, L, R]`.

Bins are right-closed intervals `(j / R, (j + 1) / R]`; a confidence of 0 belongs to the first.

SCE and ACE have three forms. `tables`: pixels are split by predicted label and the gaps of all cells are weighted by
their fraction of pixels, as the paper's printed tables follow. `equations`: the paper's printed equations, with 1/|L|
and 1/(|L| R). `marginal`: Nixon et al. 2019, the probability of every class is binned against the truth of that class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Form = Literal["tables", "equations", "marginal"]


class Histogram(NamedTuple):
    """Pixels, correct pixels and summed confidence by class and bin, or by class and cell (`segcal.evidence.cells`)."""

    pixels: Int64[Tensor, "*G L R"]
    hit: Int64[Tensor, "*G L R"]
    confidence: Float64[Tensor, "*G L R"]

    def of(self, region: int | slice) -> Histogram:
        """Return the histogram of one region, or of some."""
        return Histogram(*(field[region] for field in self))


def stack(histograms: Sequence[Histogram]) -> Histogram:
    """Return the histograms of several regions as one."""
    return Histogram(*(torch.stack(fields) for fields in zip(*histograms, strict=True)))


def merge_classes(h: Histogram) -> Histogram:
    """Add up the histograms of all classes: `[*G, 1, R]`."""
    if h.pixels.shape[-2] == 1:
        return h
    return Histogram(*(field.sum(dim=-2, keepdim=True) for field in h))


def equal_edges(bins: int, device: torch.device | None = None) -> Float64[Tensor, " R1"]:
    """Return the edges 0, 1/R, ..., 1."""
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def ece(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins, weighted by pixels.

    Examples:
        >>> one_bin = Histogram(torch.tensor([[4]]), torch.tensor([[2]]), torch.tensor([[3.0]]).double())
        >>> float(ece(one_bin))  # accuracy 1/2 at a mean confidence of 3/4
        0.25
    """
    return _excess(merge_classes(h)).sum(dim=(-2, -1)) / _pixels(h)


def mce(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the maximum calibration error: the largest gap of all bins that contain pixels."""
    largest = _gaps(merge_classes(h)).amax(dim=(-2, -1))
    return largest.where(_pixels(h) > 0, torch.nan)


def sce(h: Histogram, form: Form = "tables") -> Float64[Tensor, "*G"]:
    """Return the static calibration error: gaps by class and bin, weighted by pixels."""
    weighted = _excess(h).sum(dim=(-2, -1)) / _pixels(h)
    return weighted / h.pixels.shape[-2] if form == "equations" else weighted


def ace(h: Histogram, form: Form = "tables") -> Float64[Tensor, "*G"]:
    """Return the adaptive calibration error: gaps by class and equal-mass bin."""
    if form == "tables":
        return sce(h)
    mean_gap = _gaps(h).sum(dim=(-2, -1)) / (h.pixels.shape[-2] * h.pixels.shape[-1])
    return mean_gap.where(_pixels(h) > 0, torch.nan)


def accuracy(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the fraction of pixels whose predicted label is correct."""
    return h.hit.sum(dim=(-2, -1)) / _pixels(h)


def intersection_over_union(h: Histogram, support: Int64[Tensor, "*G L"]) -> Float64[Tensor, "*G L"]:
    """Return the IoU of each class; NaN for a class that is neither predicted nor true anywhere."""
    hit = h.hit.sum(dim=-1).double()
    return hit / (h.pixels.sum(dim=-1) + support - hit)


def reliability_curve(h: Histogram) -> dict[str, Tensor]:
    """Return mean confidence, accuracy and pixels of each bin `[*G, R]`, classes merged; NaN in an empty bin."""
    merged = merge_classes(h)
    count = merged.pixels.squeeze(-2).double()
    return {
        "confidence": merged.confidence.squeeze(-2) / count,
        "accuracy": merged.hit.squeeze(-2) / count,
        "pixels": merged.pixels.squeeze(-2),
    }


def class_table(h: Histogram, support: Int64[Tensor, "*G L"]) -> dict[str, Tensor]:
    """Return metrics of each class `[*G, L]`: of the pixels predicted as it, and its overlap with the truth."""
    predicted = h.pixels.sum(dim=-1).double()
    return {
        "pixels": predicted.long(),
        "support": support,
        "confidence": h.confidence.sum(dim=-1) / predicted,
        "accuracy": h.hit.sum(dim=-1) / predicted,
        "ece": _excess(h).sum(dim=-1) / predicted,
        "mce": _gaps(h).amax(dim=-1).where(predicted > 0, torch.nan),
        "iou": intersection_over_union(h, support),
    }


def _excess(h: Histogram) -> Float64[Tensor, "*G L R"]:
    """Return pixels times gap: |correct pixels - summed confidence|."""
    return (h.hit - h.confidence).abs()


def _gaps(h: Histogram) -> Float64[Tensor, "*G L R"]:
    """Return |accuracy - confidence| of each cell, 0 where it is empty."""
    return _excess(h) / h.pixels.clamp(min=1).double()


def _pixels(h: Histogram) -> Float64[Tensor, "*G"]:
    return h.pixels.sum(dim=(-2, -1)).double()  # a quotient of two int64 tensors would be float32
