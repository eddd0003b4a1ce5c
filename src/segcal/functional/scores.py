"""Class probabilities ("scores"): their histograms against the truth, and the maps that are learned from these.

Isotonic regression, histogram binning and beta calibration learn from the pairs (probability of class c, whether c is
true) of all pixels. Here they are counted into a table whose size does not depend on the number of pixels; tables of
two sets of pixels add. Maps are piecewise linear, or those of beta calibration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.constants import CELLS, NEAREST, OCTAVES, SMALLEST, TIE_BREAK
from segcal.kernels.dispatch import accelerated

_NEVER = 2.0  # a break beyond every probability


class ScoreHistogram(NamedTuple):
    """Scores, scores of the true class, and summed distance of the scores from the nearer of 0 and 1, by class.

    The distance rather than the score, because float64 keeps all digits of 1e-12 but only four of those of 1 - 1e-12.
    """

    total: Int64[Tensor, "L K"]
    hits: Int64[Tensor, "L K"]
    distance: Float64[Tensor, "L K"]


def empty_scores(num_classes: int, cells: int = CELLS, *, device: torch.device | None = None) -> ScoreHistogram:
    """Return a table without scores."""
    shape = (num_classes, cells)
    whole = torch.zeros(shape, dtype=torch.int64, device=device)
    return ScoreHistogram(whole, whole.clone(), torch.zeros(shape, dtype=torch.float64, device=device))


@accelerated
def count_scores(
    logits: Float[Tensor, "L *S"],
    labels: Int64[Tensor, "*S"],
    into: ScoreHistogram,
    edges: Float64[Tensor, " inner"] | None = None,
) -> Float64[Tensor, "3"]:
    """Add probabilities to a table in place; return the pixels, how many are predicted correctly, and their summed NLL.

    Args:
        logits: Scores of the pixels.
        labels: Their true classes; those with a negative label are skipped.
        into: The table: `[L, 65536]`, or one column more than there are edges.
        edges: Ascending inner edges of right-closed bins; by default the cells of `cell_of`.
    """
    logits, labels = logits.flatten(1), labels.flatten()
    valid = labels >= 0
    truth, z = labels[valid], logits[:, valid]
    log_probs = torch.log_softmax(z.double(), dim=0)
    own = z.gather(0, truth[None])[0]
    for c, score in enumerate(log_probs.exp()):
        key = cell_of(score) if edges is None else torch.bucketize(score, edges)
        into.total[c] += torch.bincount(key, minlength=into.total.shape[1])
        into.hits[c] += torch.bincount(key[truth == c], minlength=into.total.shape[1])
        into.distance[c].index_add_(0, key, torch.minimum(score, 1.0 - score))
    correct = (own >= z.amax(dim=0)).sum()
    nll = -log_probs.gather(0, truth[None]).sum()
    return torch.stack([valid.sum().double(), correct.double(), nll])


def cell_of(score: Float64[Tensor, "*A"]) -> Int64[Tensor, "*A"]:
    """Return the index of each probability among 65,536 cells that grow finer towards 0 and towards 1.

    Cells have equal width within an octave of the distance to the nearer end, from 1/2 down to 2**-65, 512 to the
    octave: a cell is never wider than 2**-9 of that distance. Values closer to an end are in the first or last cell.
    """
    near = (torch.minimum(score, 1.0 - score).view(torch.int64) >> 43) - ((1022 - OCTAVES) << 9)
    near = near.clamp(0, CELLS // 2 - 1)
    return torch.where(score < 0.5, near, CELLS - 1 - near)


def largest_of_cells() -> Float64[Tensor, " cells"]:
    """Return the largest probability that falls into each cell."""
    near = np.arange(1, CELLS // 2 + 1) + ((1022 - OCTAVES) << 9)
    above = (near << 43).view(np.float64)  # the end of each cell below 1/2, which is open
    rest = np.concatenate([above[-2::-1], [0.0]])  # and mirrored, where the end is closed
    high = np.where(1.0 - (1.0 - rest) < rest, np.nextafter(1.0 - rest, 0.0), 1.0 - rest)  # rounded down
    return torch.from_numpy(np.concatenate([np.nextafter(above, 0.0), high]))


def mean_distances(table: ScoreHistogram) -> tuple[Float64[Tensor, "L cells"], Float64[Tensor, "L cells"]]:
    """Return the mean score of each cell and the mean of 1 - score, both without cancellation; NaN if it is empty."""
    near = table.distance / table.total.double()
    low = torch.arange(CELLS, device=near.device) < CELLS // 2
    return torch.where(low, near, 1 - near), torch.where(low, 1 - near, near)


class PiecewiseMap(NamedTuple):
    """Functions of a score, one per class or one for all: linear between breaks, where they may jump.

    On `(breaks[k - 1], breaks[k]]` the value increases from `left[k]` to `right[k]`; outside the breaks it is constant.
    """

    breaks: Float64[Tensor, "G K"]
    left: Float64[Tensor, "G K1"]
    right: Float64[Tensor, "G K1"]


def joined_maps(maps: list[PiecewiseMap]) -> PiecewiseMap:
    """Join maps of one class each; the shorter ones are padded with breaks that no score reaches."""
    longest = max(1, *(one.breaks.shape[1] for one in maps))
    fields: list[list[Tensor]] = [[], [], []]
    for one in maps:
        missing = longest - one.breaks.shape[1]
        ends = (one.breaks.new_full((1, 1), _NEVER), one.left[:, -1:], one.right[:, -1:])
        for field, values, end in zip(fields, one, ends, strict=True):
            field.append(torch.cat([values, end.expand(1, missing)], dim=1))
    return PiecewiseMap(*(torch.cat(field) for field in fields))


@accelerated
def mapped_log_probabilities(logits: Float[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    """Return the logarithm of the mapped probabilities, normalised to a sum of 1."""
    mapped = apply_map(torch.softmax(logits.double(), dim=1), maps)
    return mapped.log() - mapped.sum(dim=1, keepdim=True).log()


@accelerated
def beta_log_probabilities(
    logits: Float[Tensor, "B L *S"], coefficients: Float64[Tensor, "L 3"]
) -> Float64[Tensor, "B L *S"]:
    """Return the logarithm of `sigmoid(a log p - b log(1 - p) + c)` with a, b, c of each class, normalised."""
    log_p, log_rest = _log_score_and_rest(logits.double())
    a, b, c = coefficients.view(-1, 3, *[1] * (logits.ndim - 2)).unbind(1)
    return torch.log_softmax(torch.nn.functional.logsigmoid(a * log_p - b * log_rest + c), dim=1)


def apply_map(scores: Float64[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    """Map every score, and add 1e-9 of it: scores with equal values keep their order, and no value is 0.

    Rounding keeps the order too: each step (difference, quotient, product, sum, minimum) is monotone.
    """
    many = scores.shape[1]
    if torch.compiler.is_compiling() or many == 1:
        return _mapped(scores, maps)
    groups = [PiecewiseMap(*(field[min(c, len(field) - 1)][None] for field in maps)) for c in range(many)]
    # one class at a time, since intermediate results are several times as large as the scores
    return torch.cat([_mapped(scores[:, c : c + 1], group) for c, group in enumerate(groups)], dim=1)


def _log_score_and_rest(
    logits: Float64[Tensor, "B L *S"],
) -> tuple[Float64[Tensor, "B L *S"], Float64[Tensor, "B L *S"]]:
    """Return log p and log(1 - p) of every class, at least log 2**-52, without the cancellation of 1 - p near 1."""
    top, winner = logits.max(dim=1, keepdim=True)
    powers = (logits - top).exp()
    total = powers.sum(dim=1, keepdim=True)
    classes = torch.arange(logits.shape[1], device=logits.device).view(-1, *[1] * (logits.ndim - 2))
    is_winner = classes == winner
    others = torch.where(is_winner, 0.0, powers).sum(dim=1, keepdim=True)
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
    """Return how many breaks of its group are below each score."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(breaks[0].contiguous(), scores.contiguous())
    flat, size = breaks.reshape(-1), breaks.shape[1]  # ONNX has no search, so bisect
    at, step = torch.zeros_like(scores, dtype=torch.int64), 1 << (size.bit_length() - 1)
    while step:
        further = at + step
        passed = (further <= size) & (flat[(further - 1).clamp(max=size - 1) + group * size] < scores)
        at, step = torch.where(passed, further, at), step // 2
    return at
