"""Reliability histograms, and every calibration error read from them (appendix "Evaluation Metrics").

A region's evidence is small: pixels, correct pixels and summed confidence for each predicted class and bin, in int64
and float64. ECE, MCE, SCE, ACE, curves and tables are readings of it, and the evidence of two sets of pixels together
is the sum of theirs. Every reading takes any number of regions at once: histograms have shape `[*G, L, R]`.

Bins are right-closed intervals `(j / R, (j + 1) / R]`; a confidence of 0 belongs to the first.

SCE and ACE have three forms. `tables`: pixels are split by predicted label and the gaps of all cells are weighted by
their share of pixels, as the paper's printed tables follow. `equations`: the paper's printed equations, with 1/|L| and
1/(|L| R). `marginal`: Nixon et al. 2019, the probability of every class is binned against the truth of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64, Num
from torch import Tensor

from segcal.functional import counting
from segcal.functional.masks import positions
from segcal.functional.pixels import pixel_statistics
from segcal.kernels.constants import CELLS

Form = Literal["tables", "equations", "marginal"]


class Pixels(NamedTuple):
    """What the metrics need from each pixel of one image."""

    confidence: Float64[Tensor, " N"]
    predicted: Int32[Tensor, " N"]
    labels: Int64[Tensor, " N"]
    nll: Float64[Tensor, " N"]
    brier: Float64[Tensor, " N"]
    entropy: Float64[Tensor, " N"]


class Histogram(NamedTuple):
    """Pixels, correct pixels and summed confidence by class and bin."""

    pixels: Int64[Tensor, "*G L R"]
    hit: Int64[Tensor, "*G L R"]
    confidence: Float64[Tensor, "*G L R"]


class Evidence(NamedTuple):
    """All that is kept of a region; adding two gives the evidence of both.

    `top` holds equal bins of the confidence by predicted class; `static` and `adaptive` are what SCE and ACE are read
    from (`static` is `top` itself unless the form is marginal). `support` counts pixels by true class.
    """

    top: Histogram
    static: Histogram
    adaptive: Histogram
    support: Int64[Tensor, "*G L"]
    sums: Float64[Tensor, "*G 3"]


def describe(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Pixels:
    """Return confidence, prediction, NLL, Brier score and entropy of each pixel of one image."""
    flat = labels.reshape(-1)
    confidence, predicted, nll, brier, entropy = pixel_statistics(logits.reshape(logits.shape[0], -1), flat)
    return Pixels(confidence, predicted, flat, nll, brier, entropy)


def described_on_cpu(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Pixels:
    """Return the same on the CPU, where regions are counted; what is copied does not grow with the classes."""
    return Pixels(*(values.cpu() for values in describe(logits, labels)))


class PixelStore:
    """The pixels of one image, added part by part; each part is copied to its place, so memory is held once."""

    def __init__(self, count: int) -> None:
        """Prepare for `count` pixels."""
        self._count, self._filled = count, 0
        self._columns: tuple[Tensor, ...] = ()

    def add(self, part: Pixels) -> None:
        """Add the pixels that follow those added before."""
        own = part.labels.numel()
        if own == self._count:
            self._columns = part
        else:
            self._columns = self._columns or tuple(values.new_empty(self._count) for values in part)
            for column, values in zip(self._columns, part, strict=True):
                column[self._filled : self._filled + own] = values
        self._filled += own

    def pixels(self) -> Pixels:
        """Return all of them."""
        if self._filled != self._count:
            raise ValueError(f"{self._count} pixels are needed, got {self._filled}")
        return Pixels(*self._columns)


def index_of(mask: Bool[Tensor, "*S"]) -> Int64[Tensor, " K"]:
    """Return the positions of the pixels of a mask, in an image laid flat."""
    return positions(mask)


def equal_edges(bins: int, like: Tensor) -> Float64[Tensor, " R1"]:
    """Return the edges 0, 1/R, ..., 1."""
    return torch.arange(bins + 1, dtype=torch.float64, device=like.device) / bins


def quantile_edges(pixels: Pixels, index: Int64[Tensor, " K"], *, bins: int) -> Float64[Tensor, " R1"]:
    """Return percentiles of the confidences at `index`, the edges of equal-mass bins; NaN where there is no pixel."""
    return counting.percentile_edges(pixels.confidence, index, bins)


def region_evidence(
    pixels: Pixels,
    regions: Sequence[Int64[Tensor, " _"]],
    *,
    num_classes: int,
    bins: int = 10,
    form: Form = "tables",
    class_probs: Float[Tensor, "L N"] | None = None,
    adaptive_edges: Float64[Tensor, " R1"] | None = None,
) -> Evidence:
    """Return the evidence of several regions of one image, each given by its pixels, none of which may be ignored.

    Args:
        pixels: Result of `describe`.
        regions: Positions of each region's pixels.
        num_classes: L.
        bins: R.
        form: Form of SCE and ACE.
        class_probs: The probabilities of all classes, needed by the marginal form.
        adaptive_edges: Edges of the equal-mass bins; by default the percentiles within each region.
    """
    fixed = equal_edges(bins, pixels.confidence)
    count, hit, confidence, support, sums = counting.measure(regions, pixels, fixed, adaptive_edges, num_classes)
    top, adaptive = (Histogram(count[:, k], hit[:, k], confidence[:, k]) for k in (0, 1))
    static = top
    if form == "marginal":
        if class_probs is None:
            raise TypeError("the marginal form needs class_probs")
        each = [marginal_histograms(class_probs, pixels.labels, index, bins=bins) for index in regions]
        static, adaptive = (_stack([pair[k] for pair in each]) for k in (0, 1))
    return Evidence(top, static, adaptive, support, sums)


def marginal_histograms(
    class_probs: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], index: Int64[Tensor, " K"], *, bins: int
) -> tuple[Histogram, Histogram]:
    """Bin the probability of each class against the truth of that class, in equal and equal-mass bins."""
    fixed = equal_edges(bins, class_probs)
    tables = []
    for c, probability in enumerate(class_probs.double()):
        edges = torch.stack([fixed, counting.percentile_edges(probability, index, bins)])
        tables.append(Histogram(*counting.count_between(edges, index, probability, *_one_class(labels, c), 1)))
    return tuple(Histogram(*(torch.cat([t[f][k] for t in tables]) for f in range(3))) for k in (0, 1))  # type: ignore[return-value]


def empty_cells(num_classes: int) -> Histogram:
    """Return a fine histogram of zeros; numpy allocates no memory for pages that are never written to."""
    shape = (num_classes, CELLS)
    count, hit, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    return Histogram(torch.from_numpy(count), torch.from_numpy(hit), torch.from_numpy(total))


def count_cells(pixels: Pixels, index: Int64[Tensor, " K"], table: Histogram) -> None:
    """Add the pixels of a region to a fine histogram `[L, 65536]`, in place."""
    counting.count_cells(index, pixels.confidence, pixels.predicted, pixels.labels, *table)


def count_marginal_cells(
    class_probs: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    index: Int64[Tensor, " K"],
    table: Sequence[Num[Tensor, "L cells"]],
    count: Callable[..., None] = counting.count_cells,
) -> None:
    """Add the probability of every class to a fine histogram `[L, 65536]`, in place, by a function of `counting`."""
    for c, probability in enumerate(class_probs.double()):
        count(index, probability, *_one_class(labels, c), *(field[c : c + 1] for field in table))


def adaptive_from_cells(cells: Histogram, *, bins: int, form: Form) -> Histogram:
    """Read equal-mass bins `[L, R]` from a fine histogram `[L, 65536]`; `cells_error_bound` bounds the error."""
    by_class = form == "marginal"
    counts = cells.pixels if by_class else cells.pixels.sum(dim=0, keepdim=True)
    at = torch.arange(CELLS, device=counts.device)
    bin_of = (at > _edge_cells(counts, bins).unsqueeze(-1)).sum(dim=-2)  # [L or 1, cells]
    where = bin_of.expand(cells.pixels.shape[0], -1)
    shape = (cells.pixels.shape[0], bins)
    return Histogram(*(field.new_zeros(shape).scatter_add_(1, where, field) for field in cells))


def cells_error_bound(cells: Histogram, *, bins: int) -> Float64[Tensor, ""]:
    """Return a bound of the error of ACE (tables) read from a fine histogram.

    A pixel can only be in the wrong bin if an edge cuts its cell, and then it changes two gaps by less than its share.
    """
    counts = cells.pixels.sum(dim=0)
    cut = torch.zeros_like(counts, dtype=torch.bool)
    for nudge in (0.0, 1e-6):  # a position rounded to just below a whole rank may be that rank
        cut[_edge_cells(counts.unsqueeze(0), bins, nudge).squeeze(0)] = True
    return 2 * counts[cut].sum().double() / counts.sum()


def ece(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins, weighted by pixels.

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
    by_share = _excess(h).sum(dim=(-2, -1)) / _pixels(h)
    return by_share / h.pixels.shape[-2] if form == "equations" else by_share


def ace(h: Histogram, form: Form = "tables") -> Float64[Tensor, "*G"]:
    """Return the adaptive calibration error: gaps by class and equal-mass bin."""
    if form == "tables":
        return sce(h)
    mean_gap = _gaps(h).sum(dim=(-2, -1)) / (h.pixels.shape[-2] * h.pixels.shape[-1])
    return mean_gap.where(_pixels(h) > 0, torch.nan)


def accuracy(h: Histogram) -> Float64[Tensor, "*G"]:
    """Return the share of pixels whose predicted label is correct."""
    return h.hit.sum(dim=(-2, -1)) / _pixels(h)


def intersection_over_union(h: Histogram, support: Int64[Tensor, "*G L"]) -> Float64[Tensor, "*G L"]:
    """Return the IoU of each class; NaN for a class that is neither predicted nor true anywhere."""
    hit = h.hit.sum(dim=-1).double()
    return hit / (h.pixels.sum(dim=-1) + support - hit)


def mean_iou(evidence: Evidence) -> Float64[Tensor, "*G"]:
    """Return the mean IoU of the classes that are predicted or true somewhere."""
    return intersection_over_union(evidence.top, evidence.support).nanmean(dim=-1)


def reliability_curve(h: Histogram) -> dict[str, Tensor]:
    """Return mean confidence, accuracy and pixels of each bin `[*G, R]`, classes merged; NaN in an empty bin."""
    merged = merge_classes(h)
    count = merged.pixels.squeeze(-2).double()
    return {
        "confidence": merged.confidence.squeeze(-2) / count,
        "accuracy": merged.hit.squeeze(-2) / count,
        "pixels": merged.pixels.squeeze(-2),
    }


def class_table(evidence: Evidence) -> dict[str, Tensor]:
    """Return figures of each class `[*G, L]`: of the pixels predicted as it, and its overlap with the truth."""
    h = evidence.top
    predicted = h.pixels.sum(dim=-1).double()
    return {
        "pixels": predicted.long(),
        "support": evidence.support,
        "confidence": h.confidence.sum(dim=-1) / predicted,
        "accuracy": h.hit.sum(dim=-1) / predicted,
        "ece": _excess(h).sum(dim=-1) / predicted,
        "mce": _gaps(h).amax(dim=-1).where(predicted > 0, torch.nan),
        "iou": intersection_over_union(h, evidence.support),
    }


def _one_class(labels: Int64[Tensor, " N"], c: int) -> tuple[Int32[Tensor, " N"], Int64[Tensor, " N"]]:
    """Return predictions and labels for "is this pixel of class c?": 0 means yes, and is predicted everywhere."""
    return torch.zeros_like(labels, dtype=torch.int32), (labels != c).long()


def _edge_cells(counts: Int[Tensor, "K cells"], bins: int, nudge: float = 0.0) -> Int64[Tensor, "K inner"]:
    """Return the cell that each inner percentile falls into; any cell where there is no pixel."""
    cumulative = counts.cumsum(dim=-1)
    position = (cumulative[:, -1:] - 1).clamp(min=0) * counting.percentiles(bins, counts.device)[1:-1]
    return torch.searchsorted(cumulative, (position + nudge).floor().long(), right=True).clamp(max=CELLS - 1)


def _stack(histograms: Sequence[Histogram]) -> Histogram:
    return Histogram(*(torch.stack(fields) for fields in zip(*histograms, strict=True)))


def merge_classes(h: Histogram) -> Histogram:
    """Add up the histograms of all classes: `[*G, 1, R]`."""
    if h.pixels.shape[-2] == 1:
        return h
    return Histogram(*(field.sum(dim=-2, keepdim=True) for field in h))


def _excess(h: Histogram) -> Float64[Tensor, "*G L R"]:
    """Return pixels times gap: |correct pixels - summed confidence|."""
    return (h.hit - h.confidence).abs()


def _gaps(h: Histogram) -> Float64[Tensor, "*G L R"]:
    """Return |accuracy - confidence| of each cell, 0 where it is empty."""
    return _excess(h) / h.pixels.clamp(min=1).double()


def _pixels(h: Histogram) -> Float64[Tensor, "*G"]:
    return h.pixels.sum(dim=(-2, -1)).double()  # a quotient of two int64 tensors would be float32
