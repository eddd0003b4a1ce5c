"""Histograms of class probabilities ("scores") against the truth of their class, and piecewise linear maps of scores.

What isotonic regression, histogram binning and beta calibration learn from is the pairs (probability of class c,
whether c is true) of all pixels. Here they are counted into a table whose size does not depend on the pixels; tables of
two sets of pixels add.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.constants import CELLS
from segcal.kernels.cpu import scores as score_kernels
from segcal.kernels.cpu.scores import OCTAVES, SMALLEST, TIE_BREAK

__all__ = [
    "CELLS",
    "NEAREST",
    "PiecewiseMap",
    "ScoreHistogram",
    "Totals",
    "apply_map",
    "beta_log_probabilities",
    "cell_of",
    "count_scores",
    "empty_scores",
    "joined_maps",
    "largest_of_cells",
    "mapped_log_probabilities",
    "mapped_nll",
    "mean_distances",
]

NEAREST = 2.0**-52
"""To 0 and to 1, for beta calibration: as in the published packages in float64."""

_NEVER = 2.0  # a break beyond every probability


class ScoreHistogram(NamedTuple):
    """Scores, scores of the true class, and summed distance of the scores from the nearer of 0 and 1, by class.

    The distance rather than the score itself, because of 1 - 1e-12 float64 keeps four digits that matter and of 1e-12
    all of them.
    """

    total: Int64[Tensor, "L K"]
    hits: Int64[Tensor, "L K"]
    distance: Float64[Tensor, "L K"]


class Totals(NamedTuple):
    """Of the pixels counted: their number, how many are predicted right, their summed NLL."""

    pixels: int
    right: int
    nll: float


class PiecewiseMap(NamedTuple):
    """Functions of a score, one for each class or one for all: linear between breaks, and they may jump there.

    On `(breaks[k - 1], breaks[k]]` the value goes from `left[k]` to `right[k]`, which is not less; outside the breaks
    it is constant.
    """

    breaks: Float64[Tensor, "G K"]
    left: Float64[Tensor, "G K1"]
    right: Float64[Tensor, "G K1"]


def empty_scores(num_classes: int, cells: int = CELLS, *, device: torch.device | None = None) -> ScoreHistogram:
    """A table without scores."""
    shape = (num_classes, cells)
    whole = torch.zeros(shape, dtype=torch.int64, device=device)
    return ScoreHistogram(whole, whole.clone(), torch.zeros(shape, dtype=torch.float64, device=device))


def count_scores(
    logits: Float[Tensor, "L *S"],
    labels: Int64[Tensor, "*S"],
    into: ScoreHistogram,
    edges: Float64[Tensor, " inner"] | None = None,
) -> Totals:
    """Add the probabilities of one image to a table, in place; negative labels are left out.

    Args:
        logits: Of the image.
        labels: Of the image.
        into: The table: `[L, 65536]`, or one column more than there are edges.
        edges: Ascending inner edges of right-closed bins; by default `cell_of` says where a score goes.
    """
    z, truth = logits.reshape(logits.shape[0], -1), labels.reshape(-1)
    if into.total.shape != (len(logits), CELLS if edges is None else len(edges) + 1):
        raise ValueError(f"a table of shape {tuple(into.total.shape)} is not for these classes and bins")
    if logits.device.type == "cpu":
        pixels, right, nll = score_kernels.count_scores(z, truth, edges, *into).tolist()
        return Totals(int(pixels), int(right), nll)
    return _count_scores(z, truth, edges, into)


def cell_of(score: Float64[Tensor, "*A"]) -> Int64[Tensor, "*A"]:
    """Index of each probability among 65,536 cells that grow finer towards 0 and towards 1.

    Cells have equal width within an octave of the distance to the nearer end, from 1/2 down to 2**-65, 512 to the
    octave: a cell is never wider than 2**-9 of that distance. What is nearer still is in the first and last cell.
    """
    near = (torch.minimum(score, 1.0 - score).view(torch.int64) >> 43) - ((1022 - OCTAVES) << 9)
    near = near.clamp(0, CELLS // 2 - 1)
    return torch.where(score < 0.5, near, CELLS - 1 - near)


def largest_of_cells() -> Float64[Tensor, " cells"]:
    """The largest probability that falls into each cell."""
    near = np.arange(1, CELLS // 2 + 1) + ((1022 - OCTAVES) << 9)
    above = (near << 43).view(np.float64)  # the end of each cell below 1/2, which is open
    rest = np.concatenate([above[-2::-1], [0.0]])  # and mirrored, where the end is closed
    high = np.where(1.0 - (1.0 - rest) < rest, np.nextafter(1.0 - rest, 0.0), 1.0 - rest)  # rounded down
    return torch.from_numpy(np.concatenate([np.nextafter(above, 0.0), high]))


def mean_distances(table: ScoreHistogram) -> tuple[Float64[Tensor, "L cells"], Float64[Tensor, "L cells"]]:
    """Mean score of each cell, and mean of 1 - score, both without cancellation; NaN in an empty cell."""
    near = table.distance / table.total.double()
    low = torch.arange(CELLS, device=near.device) < CELLS // 2
    return torch.where(low, near, 1 - near), torch.where(low, 1 - near, near)


def apply_map(scores: Float64[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    """Every score mapped, plus 1e-9 of itself: what the map does not tell apart keeps its order, and nothing is 0.

    Rounding keeps the order too: each step (difference, quotient, product, sum, minimum) is monotone.
    """
    many = scores.shape[1]
    if torch.compiler.is_compiling() or many == 1:
        return _mapped(scores, maps)
    groups = [PiecewiseMap(*(field[min(c, len(field) - 1)][None] for field in maps)) for c in range(many)]
    # one class at a time, since what is needed on the way is several times as large as the scores
    return torch.cat([_mapped(scores[:, c : c + 1], group) for c, group in enumerate(groups)], dim=1)


def mapped_log_probabilities(logits: Float[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    """Logarithm of the mapped probabilities, normalised to a sum of 1."""
    if _may_compile(logits):
        return _of_each(logits, lambda image: score_kernels.map_scores(image, *maps))
    mapped = apply_map(torch.softmax(logits.double(), dim=1), maps)
    return mapped.log() - mapped.sum(dim=1, keepdim=True).log()


def mapped_nll(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], maps: PiecewiseMap) -> float:
    """Summed NLL after `mapped_log_probabilities`; negative labels are left out."""
    if _may_compile(logits):
        return score_kernels.mapped_nll(logits, labels, *maps)
    chosen = mapped_log_probabilities(logits[None], maps)[0].gather(0, labels.clamp(min=0)[None])[0]
    return -float(chosen[labels >= 0].sum())


def beta_log_probabilities(
    logits: Float[Tensor, "B L *S"], coefficients: Float64[Tensor, "L 3"]
) -> Float64[Tensor, "B L *S"]:
    """Logarithm of `sigmoid(a log p - b log(1 - p) + c)` with a, b, c of each class, normalised to a sum of 1."""
    if _may_compile(logits):
        return _of_each(logits, lambda image: score_kernels.beta_scores(image, coefficients, NEAREST))
    log_p, log_rest = _log_score_and_rest(logits.double())
    a, b, c = coefficients.view(-1, 3, *[1] * (logits.ndim - 2)).unbind(1)
    return torch.log_softmax(torch.nn.functional.logsigmoid(a * log_p - b * log_rest + c), dim=1)


def joined_maps(maps: list[PiecewiseMap]) -> PiecewiseMap:
    """Maps of one class each as one; the shorter are padded with breaks that no score reaches."""
    longest = max(1, *(one.breaks.shape[1] for one in maps))
    fields: list[list[Tensor]] = [[], [], []]
    for one in maps:
        missing = longest - one.breaks.shape[1]
        ends = (one.breaks.new_full((1, 1), _NEVER), one.left[:, -1:], one.right[:, -1:])
        for field, values, end in zip(fields, one, ends, strict=True):
            field.append(torch.cat([values, end.expand(1, missing)], dim=1))
    return PiecewiseMap(*(torch.cat(field) for field in fields))


def _may_compile(logits: Tensor) -> bool:
    eager = not torch.compiler.is_compiling() and not logits.requires_grad
    return eager and logits.device.type == "cpu" and logits.numel() > 0


def _of_each(logits: Float[Tensor, "B L *S"], function: Callable[[Tensor], Tensor]) -> Float64[Tensor, "B L *S"]:
    """A function of `[L, N]` logits for each image of a batch."""
    found = [function(image.flatten(1))[None] for image in logits]
    return (found[0] if len(found) == 1 else torch.cat(found)).view(logits.shape)


def _log_score_and_rest(
    logits: Float64[Tensor, "B L *S"],
) -> tuple[Float64[Tensor, "B L *S"], Float64[Tensor, "B L *S"]]:
    """Logarithms of p and of 1 - p of every class, at least log 2**-52, without the cancellation of 1 - p near 1."""
    top, winner = logits.max(dim=1, keepdim=True)
    powers = (logits - top).exp()
    total = powers.sum(dim=1, keepdim=True)
    classes = torch.arange(logits.shape[1], device=logits.device).view(-1, *[1] * (logits.ndim - 2))
    is_winner = classes == winner
    others = torch.where(is_winner, 0.0, powers).sum(dim=1, keepdim=True)  # than the winner
    rest = torch.where(is_winner, others, total - powers)
    return (powers / total).clamp(min=NEAREST).log(), (rest / total).clamp(min=NEAREST).log()


def _mapped(scores: Float64[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    groups, size = maps.breaks.shape
    group = torch.arange(groups, device=scores.device).view(-1, *[1] * (scores.ndim - 2))
    at = _segment_of(scores, maps.breaks, group)
    breaks, left, right = (field.reshape(-1) for field in maps)
    low = breaks[(at - 1).clamp(min=0) + group * size]
    width = (breaks[at.clamp(max=size - 1) + group * size] - low).clamp(min=SMALLEST)
    place = at + group * (size + 1)
    start, end = left[place], right[place]
    value = torch.minimum(start + (end - start) * ((scores - low) / width).clamp(0.0, 1.0), end)
    return (value + TIE_BREAK * scores).clamp(min=SMALLEST)


def _segment_of(
    scores: Float64[Tensor, "B L *S"], breaks: Float64[Tensor, "G K"], group: Int64[Tensor, "G *one"]
) -> Int64[Tensor, "B L *S"]:
    """How many breaks of its group are below each score."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(breaks[0].contiguous(), scores.contiguous())
    flat, size = breaks.reshape(-1), breaks.shape[1]  # ONNX has no search, so halve the steps by hand
    at, step = torch.zeros_like(scores, dtype=torch.int64), 1 << (size.bit_length() - 1)
    while step:
        further = at + step
        passed = (further <= size) & (flat[(further - 1).clamp(max=size - 1) + group * size] < scores)
        at, step = torch.where(passed, further, at), step // 2
    return at


def _count_scores(
    logits: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    edges: Float64[Tensor, " inner"] | None,
    into: ScoreHistogram,
) -> Totals:
    """`score_kernels.count_scores` in plain PyTorch, for every device; also the readable statement of it."""
    valid = labels >= 0
    truth, z = labels[valid], logits[:, valid]
    log_probs = torch.log_softmax(z.double(), dim=0)
    own = z.gather(0, truth[None])[0]
    for c, score in enumerate(log_probs.exp()):
        key = cell_of(score) if edges is None else torch.bucketize(score, edges)
        into.total[c] += torch.bincount(key, minlength=into.total.shape[1])
        into.hits[c] += torch.bincount(key[truth == c], minlength=into.total.shape[1])
        into.distance[c].index_add_(0, key, torch.minimum(score, 1.0 - score))
    nll = -float(log_probs.gather(0, truth[None]).sum())
    return Totals(len(truth), int((own >= z.amax(dim=0)).sum()) if len(truth) else 0, nll)
