"""Isotonic regression (Zadrozny & Elkan 2002; over all classes at once: Zhang et al. 2020): the best increasing map."""

from __future__ import annotations

from typing import Literal, Unpack

import numpy as np
import torch
from scipy.optimize import isotonic_regression

from segcal.calibrators.base import FitRegion
from segcal.calibrators.shared.scores import PiecewiseCalibrator, ScoreMap
from segcal.functional.scores import PiecewiseMap, ScoreHistogram, joined_maps, mean_distances
from segcal.types import Array, check_choice


class IsotonicRegression(PiecewiseCalibrator):
    """Map class probabilities by the increasing function with the least squared error to the 0/1 truth.

    Between the scores that were seen the function is linear, beyond them constant, as in scikit-learn; 1e-9 of the
    score itself is added, so that equal values keep their order, and the classes are normalised to a sum of 1.

    Scores are pooled in 65,536 cells, each no wider than 2**-9 of its distance from the nearer of 0 and 1, and stand
    at their cell's mean. If every cell holds one distinct score, the fit is scikit-learn's. In general, let cell k hold
    the share w_k of all scores, of which the share q_k is of the true class. Then the mean squared error of the best
    increasing function of the cell exceeds that of the best increasing function f of the score by at most
    `max_k w_k sqrt(q_k (1 - q_k))`, and the mean squared difference between the two is at most that excess. For the
    cells allow the mean of f in each cell; it costs at most twice the covariance of f and the truth within each cell,
    which is at most f's rise there times the standard deviation of the truth; and all rises together are at most 1.
    The report's `error_bound` is this number.

    Args:
        num_classes: L.
        scope: "pooled" learns one function from the scores of all classes, which keeps every label; "one-vs-rest"
            one for each class, which does not.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "isotonic"

    def __init__(
        self, num_classes: int, *, scope: Literal["pooled", "one-vs-rest"] = "pooled", **region: Unpack[FitRegion]
    ) -> None:
        super().__init__(num_classes, **region)
        check_choice("scope", scope, ("pooled", "one-vs-rest"))
        self.scope = scope
        self.preserves_labels = scope == "pooled"

    def _fit_table(self, table: ScoreHistogram) -> ScoreMap:
        if self.scope == "pooled":
            table = ScoreHistogram(*(field.sum(dim=0, keepdim=True) for field in table))
        scores, _ = mean_distances(table)
        fields = [field.numpy() for field in (scores, table.total, table.hits)]
        lines = [increasing_map(*line) for line in zip(*fields, strict=True)]
        knots = [line.breaks.shape[1] for line in lines]
        bound = max(error_bound(*line) for line in zip(*fields[1:], strict=True))
        details = {"knots": knots[0] if self.scope == "pooled" else knots, "error_bound": bound}
        return ScoreMap(joined_maps(lines)._asdict(), details=details)


def increasing_map(score: Array, count: Array, hits: Array) -> PiecewiseMap:
    """The increasing function of least squared error to `hits / count` at the scores, weighted by `count`."""
    seen = count > 0
    x, weight = score[seen], count[seen].astype(np.float64)
    y = isotonic_regression(hits[seen] / weight, weights=weight).x
    corner = np.ones(len(y), bool)  # points on a level stretch say nothing
    corner[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    x, y = x[corner], y[corner]
    left, right = np.concatenate([y[:1], y]), np.concatenate([y, y[-1:]])
    return PiecewiseMap(*(torch.from_numpy(values)[None] for values in (x, left, right)))


def error_bound(count: Array, hits: Array) -> float:
    """Return a bound of the excess of the mean squared error that pooling scores in cells causes."""
    rate = hits / np.maximum(count, 1)
    return float((count * np.sqrt(rate * (1 - rate))).max() / max(count.sum(), 1))
