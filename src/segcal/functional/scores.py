"""Histograms of class probabilities ("scores") against the truth of their class.

Isotonic regression, histogram binning and beta calibration learn from the pairs (probability of class c, whether c is
true) of all pixels. Here they are counted into a table whose size does not depend on the number of pixels; tables of
two sets of pixels add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.constants import CELLS, OCTAVES
from segcal.kernels.dispatch import accelerated


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
