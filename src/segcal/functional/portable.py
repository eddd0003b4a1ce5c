"""The functions of `kernels` in plain PyTorch, for every device; also the readable statement of what those compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import CELLS, LOW_OCTAVES


def describe(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Confidence, predicted class, NLL, Brier score and entropy of `[L, N]` logits, each `[N]`."""
    z = logits.double()
    predicted = logits.argmax(dim=0)
    below = z - z.gather(0, predicted.unsqueeze(0))
    powers = below.exp()
    # not the exponential of a log-softmax: k equal logits must give exactly 1 / k, which may be the edge of a bin
    total = powers.sum(dim=0)
    probs = powers / total
    truth = labels.clamp(min=0).unsqueeze(0)
    nll = total.log() - below.gather(0, truth).squeeze(0)
    brier = probs.square().sum(dim=0) - 2 * probs.gather(0, truth).squeeze(0) + 1
    return 1 / total, predicted.int(), nll, brier, total.log() - (probs * below).sum(dim=0)


def shares(bins: int, like: Tensor) -> Tensor:
    """0, 1/R, ..., 1 to the last bit as `np.percentile` sees them when it is given percentages."""
    return torch.from_numpy(np.linspace(0, 100, bins + 1) / 100).to(like.device)


def quantile_edges(confidence: Tensor, index: Tensor, bins: int) -> Tensor:
    """`np.percentile` of the confidences at `index` for `bins + 1` equally spaced shares; NaN where there is none."""
    n = index.shape[0]
    if n == 0:
        return confidence.new_full((bins + 1,), torch.nan)
    ordered = confidence[index].sort().values
    position = (n - 1) * shares(bins, confidence)
    lower = position.floor().long()
    low, high, share = ordered[lower], ordered[(lower + 1).clamp(max=n - 1)], position - lower
    return torch.where(share >= 0.5, high - (high - low) * (1 - share), low + (high - low) * share)


def count_between(
    edges: Tensor, index: Tensor, confidence: Tensor, predicted: Tensor, labels: Tensor, num_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels, right pixels and summed confidence `[G, L, R]` by predicted class and interval, for G sets of edges.

    Intervals are open on the left and closed on the right; what lies outside the edges goes to the nearest interval.
    """
    bins = edges.shape[1] - 1
    value, winner = confidence[index], predicted[index].long()
    tables = []
    for inner in edges[:, 1:-1]:
        key = winner * bins + torch.bucketize(value, inner.contiguous())
        tables.append(_count(key, value, winner == labels[index], num_classes * bins))
    return tuple(torch.stack(parts).view(-1, num_classes, bins) for parts in zip(*tables, strict=True))  # type: ignore[return-value]


def measure(
    regions: Sequence[Tensor], pixels: Sequence[Tensor], edges: Tensor, adaptive: Tensor | None, num_classes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything that is kept of each of G regions; see `kernels.measure`."""
    confidence, predicted, labels, nll, brier, entropy = pixels
    found = []
    for index in regions:
        own = quantile_edges(confidence, index, edges.shape[0] - 1) if adaptive is None else adaptive
        tables = count_between(torch.stack([edges, own]), index, confidence, predicted, labels, num_classes)
        found.append((*tables, *sums(index, labels, nll, brier, entropy, num_classes)))
    count, hit, total, support, totals = (torch.stack(parts) for parts in zip(*found, strict=True))
    return count, hit, total, support, totals


def cell_of(confidence: Tensor) -> Tensor:
    """Index of each confidence among 65,536 cells that grow finer towards 1.

    Cells have equal width within an octave of `1 - confidence` (from 1/2 down to 2**-53) or, below 1/2, of the
    confidence (down to 2**-13), 1,024 to the octave. So a cell is at most 2**-11 wide, and 0.1 % of `1 - confidence`
    near 1, where the pixels of a confident network are.
    """
    low = (confidence.view(torch.int64) >> 42) - ((1022 - LOW_OCTAVES) << 10)
    high = CELLS - 1 - ((1.0 - confidence).view(torch.int64) >> 42) + ((958 + LOW_OCTAVES) << 10)
    return torch.where(confidence < 0.5, low, high).clamp(0, CELLS - 1)


def count_cells(
    index: Tensor, confidence: Tensor, predicted: Tensor, labels: Tensor, count: Tensor, hit: Tensor, total: Tensor
) -> None:
    """Add pixels, right pixels and confidences by predicted class and cell to `[L, 65536]` tables, in place."""
    value, winner = confidence[index], predicted[index].long()
    parts = _count(winner * CELLS + cell_of(value), value, winner == labels[index], count.numel())
    for table, part in zip((count, hit, total), parts, strict=True):
        table.add_(part.view(table.shape))


def sums(
    index: Tensor, labels: Tensor, nll: Tensor, brier: Tensor, entropy: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Pixels of each true class, and the sums of NLL, Brier score and entropy."""
    support = torch.bincount(labels[index], minlength=num_classes)
    return support, torch.stack([values[index].sum() for values in (nll, brier, entropy)])


def relabel(labels: Tensor, ignored: Sequence[int], num_classes: int) -> tuple[Tensor, int]:
    """Labels as int64 with -1 for ignored ones, and the position of the first that is neither class nor ignored."""
    wide = labels.long()  # first of all: compared as uint8, -1 would be 255
    skip = torch.isin(wide, torch.tensor(ignored, dtype=torch.int64, device=wide.device))
    wrong = (((wide < 0) | (wide >= num_classes)) & ~skip).reshape(-1).nonzero()
    return wide.masked_fill(skip, -1), int(wrong[0]) if len(wrong) else -1


def likelihood(logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Pixels, NLL, its slope and curvature in the inverse temperature at `alpha`, and its slope at 0 and at infinity.

    Sums over the labelled pixels of `[L, N]` logits: Float64[6].
    """
    valid = labels >= 0
    z = logits[:, valid].double()
    below = z - z.amax(dim=0)
    truth = below.gather(0, labels[valid].unsqueeze(0)).squeeze(0)
    log_probs = torch.log_softmax(alpha * below, dim=0)
    probs = log_probs.exp()
    average = (probs * below).sum(dim=0)
    curvature = ((probs * below.square()).sum(dim=0) - average.square()).clamp(min=0)
    nll = torch.logsumexp(alpha * below, dim=0) - alpha * truth
    terms = (torch.ones_like(truth), nll, average - truth, curvature, below.mean(dim=0) - truth, -truth)
    return torch.stack([term.sum() for term in terms])


def _count(key: Tensor, value: Tensor, right: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    count = torch.bincount(key, minlength=size)
    hit = torch.bincount(key[right], minlength=size)
    # scatter-add, because torch.bincount with weights is not deterministic on a GPU under strict settings
    total = torch.zeros(size, dtype=torch.float64, device=key.device).index_add_(0, key, value)
    return count, hit, total
