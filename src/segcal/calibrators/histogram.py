"""Histogram binning (Zadrozny & Elkan 2001): each class probability becomes the share of true ones in its bin."""

from __future__ import annotations

from typing import Literal, Unpack

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from segcal.calibrators.base import FitRegion
from segcal.calibrators.shared.scores import PiecewiseCalibrator, ScoreMap
from segcal.functional.scores import PiecewiseMap, ScoreHistogram, joined_maps, largest_of_cells
from segcal.types import MOST_BINS, check_choice, check_whole


class HistogramBinning(PiecewiseCalibrator):
    """Replace the probability of each class by the fraction of pixels in its bin that belong to the class.

    Bins are right-closed. In a bin without a score the answer is its middle. The classes are normalised to a sum of 1
    after 1e-9 of the score was added, so that a pixel whose bins all say 0 keeps its probabilities. Labels may change.

    Bins of equal width are counted exactly. Edges of equal mass are taken from a histogram of 65,536 cells, so that
    each is within one cell, at most 2**-9 of its distance from the nearer of 0 and 1, of the exact quantile; bins are
    then counted exactly between those edges. Quantiles that fall into one cell share an edge, and their bins merge.

    Args:
        num_classes: L.
        bins: Of each class.
        equal: "width" or "mass".
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "histogram"
    preserves_labels = False

    def __init__(
        self,
        num_classes: int,
        *,
        bins: int = 10,
        equal: Literal["width", "mass"] = "width",
        **region: Unpack[FitRegion],
    ) -> None:
        super().__init__(num_classes, **region)
        check_whole("bins", bins, 1, MOST_BINS)
        check_choice("equal", equal, ("width", "mass"))
        self.bins, self.equal = int(bins), equal

    def _score_edges(self) -> Float64[Tensor, " inner"] | None:
        return None if self.equal == "mass" else torch.arange(1, self.bins, dtype=torch.float64) / self.bins

    def _fit_table(self, table: ScoreHistogram) -> ScoreMap:
        maps, empty = [], 0
        for count, hits in zip(table.total, table.hits, strict=True):
            edges = self._score_edges()
            if edges is None:
                edges, count, hits = equal_mass(count, hits, self.bins)  # noqa: PLW2901
            maps.append(step_map(edges, count, hits))
            empty += int((count == 0).sum())
        warned = (f"{empty} bins without a score answer with their middle",) if empty else ()
        return ScoreMap(joined_maps(maps)._asdict(), warnings=warned, details={"empty_bins": empty})


def step_map(edges: Float64[Tensor, " inner"], count: Int64[Tensor, " R"], hits: Int64[Tensor, " R"]) -> PiecewiseMap:
    """The share of hits in each bin; the middle of the bin where it is empty."""
    bounds = torch.cat([edges.new_zeros(1), edges, edges.new_ones(1)])
    value = torch.where(count > 0, hits / count.double(), (bounds[1:] + bounds[:-1]) / 2)[None]
    return PiecewiseMap(edges[None], value, value.clone())


def equal_mass(
    count: Int64[Tensor, " cells"], hits: Int64[Tensor, " cells"], bins: int
) -> tuple[Float64[Tensor, " inner"], Int64[Tensor, " R"], Int64[Tensor, " R"]]:
    """Inner edges between cells so that bins hold about equally many scores, and the tables of those bins."""
    passed = count.cumsum(0)
    wanted = passed[-1] * torch.arange(1, bins, dtype=torch.float64) / bins
    # the first cells at which each share is reached, except the last cell with a score: nothing lies beyond it
    ends = torch.from_numpy(np.unique(torch.searchsorted(passed, wanted.ceil().long()).numpy()))
    ends = ends[passed[ends] < passed[-1]]
    limits = torch.cat([ends, torch.tensor([len(count) - 1])])
    total, right = (torch.diff(values.cumsum(0)[limits], prepend=values.new_zeros(1)) for values in (count, hits))
    return largest_of_cells()[ends], total, right
