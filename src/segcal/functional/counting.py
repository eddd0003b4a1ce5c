"""Counting pixels into bins and cells of the confidence: percentiles, histograms and sums of regions.

A region is given by the positions of its pixels in an image laid flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64, Num
from torch import Tensor

from segcal.functional.pixels import ascending, pixel_statistics
from segcal.functional.probability import possible_logits
from segcal.functional.scores import cell_of
from segcal.kernels.constants import CELLS
from segcal.kernels.dispatch import accelerated, engine_for

Measured = tuple[
    Int64[Tensor, "G E L R"], Int64[Tensor, "G E L R"], Float64[Tensor, "G E L R"],
    Int64[Tensor, "G L"], Float64[Tensor, "G 3"],
]  # fmt: skip

Batch = tuple[
    Int64[Tensor, "G L R"],
    Int64[Tensor, "G L R"],
    Float64[Tensor, "G L R"],
    Int64[Tensor, "G L"],
    Float64[Tensor, "G 3"],
]

_PART = 1 << 22  # pixels described at a time


def positions(mask: Bool[Tensor, "*S"]) -> Int64[Tensor, " K"]:
    """Return the positions of the pixels of a mask in an image laid flat.

    Examples:
        >>> positions(torch.tensor([[False, True], [False, True]]))
        tensor([1, 3])
    """
    if engine_for(mask) == "cpu":  # in a fourth of the time where most pixels are inside
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.reshape(-1).nonzero().squeeze(1)


def positions_in_box(mask: Bool[Tensor, "*S"], box: Sequence[slice]) -> Int64[Tensor, " K"]:
    """Return the positions, in an image laid flat, of the pixels of a box that lie inside a mask.

    The slices of the box have a start and a stop within the image.

    Examples:
        >>> positions_in_box(torch.ones(4, 5, dtype=torch.bool), (slice(1, 3), slice(2, 4)))
        tensor([ 7,  8, 12, 13])
    """
    found = torch.zeros(1, dtype=torch.int64, device=mask.device)
    for interval, length in zip(box, mask.shape, strict=True):
        along = torch.arange(interval.start, interval.stop, device=mask.device)
        found = (found.unsqueeze(1) * length + along).reshape(-1)
    return found.masked_select(mask[tuple(box)].reshape(-1))


def percentiles(bins: int, device: torch.device) -> Float64[Tensor, " R1"]:
    """Return 0, 1/R, ..., 1 to the last bit as `np.percentile` computes them from percentages."""
    return torch.from_numpy(np.linspace(0, 100, bins + 1) / 100).to(device)


def percentile_edges(
    confidence: Float64[Tensor, " N"], index: Int64[Tensor, " K"], bins: int
) -> Float64[Tensor, " R1"]:
    """Return `np.percentile` of the confidences at `index` for `bins + 1` equal steps; NaN where there is no pixel."""
    n = index.shape[0]
    if n == 0:
        return confidence.new_full((bins + 1,), torch.nan)
    ordered = ascending(confidence[index])
    position = (n - 1) * percentiles(bins, confidence.device)
    lower = position.floor().long()
    low, high, share = ordered[lower], ordered[(lower + 1).clamp(max=n - 1)], position - lower
    return torch.where(share >= 0.5, high - (high - low) * (1 - share), low + (high - low) * share)


def measure(
    regions: Sequence[Int64[Tensor, " _"]],
    pixels: Sequence[Num[Tensor, " N"]],
    edges: Float64[Tensor, " R1"],
    adaptive: Float64[Tensor, " R1"] | None,
    num_classes: int,
) -> Measured:
    """Return what `count_regions` does for equal-width and equal-mass bins.

    Args:
        regions: Positions of the pixels of each region.
        pixels: Confidence, predicted class, label, NLL, Brier score and entropy of each pixel.
        edges: Edges of the equal-width bins.
        adaptive: Edges of the equal-mass bins; by default the percentiles within each region.
        num_classes: L.
    """
    bins = edges.shape[0] - 1
    own = [percentile_edges(pixels[0], index, bins) if adaptive is None else adaptive for index in regions]
    return count_regions(regions, pixels, torch.stack([torch.stack([edges, each]) for each in own]), num_classes)


@accelerated
def count_regions(
    regions: Sequence[Int64[Tensor, " _"]],
    pixels: Sequence[Num[Tensor, " N"]],
    edges: Float64[Tensor, "G E R1"],
    num_classes: int,
) -> Measured:
    """Return all that is kept of each of G regions.

    Args:
        regions: Positions of the pixels of each region.
        pixels: Confidence, predicted class, label, NLL, Brier score and entropy of each pixel.
        edges: E sets of edges for each region. Intervals are open on the left and closed on the right; values outside
            the edges go to the nearest interval.
        num_classes: L.

    Returns:
        Pixels, correct pixels and summed confidence by predicted class and bin, pixels of each true class, and the sums
        of NLL, Brier score and entropy.
    """
    confidence, predicted, labels, nll, brier, entropy = pixels
    bins, found = edges.shape[2] - 1, []
    for index, sets in zip(regions, edges, strict=True):
        value, winner, truth = confidence[index], predicted[index].long(), labels[index]
        tables = [
            _count(winner * bins + torch.bucketize(value, inner), value, winner == truth, num_classes * bins)
            for inner in sets[:, 1:-1].contiguous()
        ]
        histograms = (torch.stack(parts).view(-1, num_classes, bins) for parts in zip(*tables, strict=True))
        support = torch.bincount(truth, minlength=num_classes)
        found.append((*histograms, support, torch.stack([values[index].sum() for values in (nll, brier, entropy)])))
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))  # type: ignore[return-value]


def measure_batch(
    logits: Float[Tensor, "B L *S"],
    labels: Int64[Tensor, "B *S"],
    masks: Bool[Tensor, "G B *S"],
    edges: Float64[Tensor, " R1"],
    *cells: Num[Tensor, "G L cells"],
) -> Batch:
    """Return what is kept of G regions of a batch, and add their pixels to `[G, L, 65536]` tables if given, in place.

    Pixels with a negative label are skipped.

    Returns:
        Pixels, correct pixels and summed confidence by predicted class and bin, pixels of each true class, and the sums
        of NLL, Brier score and entropy.
    """
    regions, (images, classes), bins = len(masks), logits.shape[:2], len(edges) - 1
    size = math.prod(labels.shape[1:])
    z, truth = logits.reshape(images, classes, size), labels.reshape(images, size)
    inside = (truth >= 0) & masks.reshape(regions, images, size)
    tables = [truth.new_zeros(regions, classes, bins) for _ in range(2)]
    confidence, support = edges.new_zeros(regions, classes, bins), truth.new_zeros(regions, classes)
    sums = edges.new_zeros(regions, 3)
    for image in range(images):
        for start in range(0, size, _PART):
            at = slice(start, start + _PART)
            own = truth[image, at]
            statistics = pixel_statistics(z[image, :, at], own)
            pixels = (*statistics[:2], own, *statistics[2:])
            index = [positions(inside[g, image, at]) for g in range(regions)]
            found = count_regions(index, pixels, edges.expand(regions, 1, -1), classes)
            for total, values in zip((*tables, confidence), found[:3], strict=True):
                total.add_(values[:, 0])
            support += found[3]
            sums += found[4]
            for g, chosen in enumerate(index if cells else ()):
                count_cells(chosen, *pixels[:3], *(table[g] for table in cells))
    return tables[0], tables[1], confidence, support, sums


class Totals(NamedTuple):
    """Counts and sums of G regions over all batches so far.

    Pixels, correct pixels and summed confidence by predicted class and bin, pixels of each true class, the sums of NLL,
    Brier score and entropy, and the first three again by predicted class and cell.
    """

    pixels: Int64[Tensor, "G L R"]
    hit: Int64[Tensor, "G L R"]
    confidence: Float64[Tensor, "G L R"]
    support: Int64[Tensor, "G L"]
    sums: Float64[Tensor, "G 3"]
    cell_count: Int64[Tensor, "G L cells"]
    cell_hit: Int64[Tensor, "G L cells"]
    cell_confidence: Float64[Tensor, "G L cells"]


_POSITIONS, _FIRST = 1 << 40, 1 << 62
"""A problem is kept as one number: the second of these, less that of the batch times the first, less the position of
the pixel. So 0 is none, the largest is the first, and those of several processes can be added like all else."""


@accelerated
def add_unchecked_batch(
    logits: Float[Tensor, "B L *S"],
    labels: Int[Tensor, "B *S"],
    masks: Bool[Tensor, "G B *S"] | None,
    ignored: Int64[Tensor, " K"],
    edges: Float64[Tensor, " R1"],
    totals: Totals,
    problems: Int64[Tensor, "2"],
    number: int,
) -> None:
    """Add a batch to the totals, in place; invalid pixels are left out and noted, so that nothing waits for a GPU.

    Args:
        logits: Scores.
        labels: True classes, not yet checked.
        masks: Pixels of each region; None for all.
        ignored: Labels to skip.
        edges: Edges of the bins.
        totals: What is added to.
        problems: Place (see `place_of_problem`) of the first label that is neither a class nor ignored, and of the
            first pixel with a score that is NaN or +inf or with -inf for every class; 0 for none; changed in place.
        number: Number of the batch, counted from 1.
    """
    wide = labels.long()
    skip = torch.isin(wide, ignored)
    wrong = ((wide < 0) | (wide >= logits.shape[1])) & ~skip
    top = logits.amax(dim=1, keepdim=True)  # NaN if a logit is
    strange = ~torch.isfinite(top.squeeze(1))
    places = _FIRST - number * _POSITIONS - torch.arange(wide.numel(), device=wide.device).view(wide.shape)
    for k, bad in enumerate((wrong, strange)):
        problems[k] = torch.cat([problems[k : k + 1], torch.where(bad, places, 0).reshape(-1)]).amax()
    finite = possible_logits(logits, top).masked_fill(strange.unsqueeze(1), 0.0)
    truth = wide.masked_fill(skip | wrong | strange, -1)
    inside = (truth >= 0).unsqueeze(0).expand(len(totals.pixels), *truth.shape) if masks is None else masks
    found = measure_batch(finite, truth, inside, edges, *totals[5:])
    for total, value in zip(totals[:5], found, strict=True):
        total.add_(value)


def place_of_problem(problem: int) -> tuple[int, int]:
    """Return the number of the batch of a problem, and the position of its pixel in the batch laid flat."""
    return divmod(_FIRST - problem, _POSITIONS)


@accelerated
def count_cells(
    index: Int64[Tensor, " K"],
    confidence: Float64[Tensor, " N"],
    predicted: Int32[Tensor, " N"],
    labels: Int64[Tensor, " N"],
    count: Int64[Tensor, "L cells"],
    hit: Int64[Tensor, "L cells"],
    total: Float64[Tensor, "L cells"],
) -> None:
    """Add pixels, correct pixels and confidences by predicted class and cell to `[L, 65536]` tables, in place."""
    value, winner = confidence[index], predicted[index].long()
    parts = _count(winner * CELLS + cell_of(value), value, winner == labels[index], count.numel())
    for table, part in zip((count, hit, total), parts, strict=True):
        table.add_(part.view(table.shape))


def _count(
    key: Int64[Tensor, " K"], value: Float64[Tensor, " K"], correct: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    count = torch.bincount(key, minlength=size)
    hit = torch.bincount(key[correct], minlength=size)
    # scatter-add, because torch.bincount with weights is not deterministic on a GPU under strict settings
    total = torch.zeros(size, dtype=torch.float64, device=key.device).index_add_(0, key, value)
    return count, hit, total
