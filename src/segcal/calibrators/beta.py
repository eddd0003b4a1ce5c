"""Beta calibration (Kull et al. 2017): logistic regression on log p and -log(1 - p), of each class against the rest."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import expit
from torch import Tensor

from segcal.calibrators.base import FitRegion
from segcal.calibrators.shared.scores import ScoreCalibrator, ScoreMap
from segcal.functional.scores import ScoreHistogram, beta_log_probabilities, mean_distances
from segcal.kernels.constants import NEAREST
from segcal.types import Array, Logits

_IDENTITY = np.array([1.0, 1.0, 0.0])
_PULL = 1e-6  # weight of the identity a = b = 1, c = 0, against the number of scores
_STEPS = 100
_FACES = ((0, 1, 2), (1, 2), (0, 2), (2,))  # which of a, b, c are free; the others are 0


class BetaCalibration(ScoreCalibrator):
    """Map the probability p of each class to `sigmoid(a log p - b log(1 - p) + c)` with a, b >= 0, then normalise.

    Each class has its a, b and c of least binary NLL against all other classes; a negative a or b is set to 0 and the
    rest fitted again, as in the authors' package. Labels may change, since the classes have different maps. Where the
    data do not determine the three numbers (a class that is never true, scores that separate perfectly) they stay
    finite because of a pull of 1e-6 pixels towards the identity.

    Scores are pooled in 65,536 cells and stand at their cell's mean, so that log p and log(1 - p) of each differ from
    the exact ones by less than 2**-9, and the mean NLL at any a, b, c by less than (a + b) 2**-9. Since the mean of a
    cell is kept, what remains is of second order, about (a + b) 2**-21.

    Args:
        num_classes: L.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "beta"
    preserves_labels = False

    coefficients: Float64[Tensor, "L 3"]
    """a, b and c of each class, NaN until fitted."""

    def __init__(self, num_classes: int, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self._register_learned(coefficients=(num_classes, 3))

    def _log_probabilities(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        return beta_log_probabilities(logits, self.coefficients)

    def _fit_table(self, table: ScoreHistogram) -> ScoreMap:
        score, rest = (values.clamp(NEAREST, 1.0) for values in mean_distances(table))
        found = []
        for c in range(self.num_classes):
            seen = table.total[c] > 0
            fields = (score[c].log(), -rest[c].log(), table.total[c].double(), table.hits[c].double())
            found.append(fit_beta(*(field[seen].numpy() for field in fields)))
        coefficients = torch.from_numpy(np.stack([one.coefficients for one in found]))
        converged = all(one.converged for one in found)
        warned = list[str]()
        if flat := [str(c) for c, one in enumerate(found) if not one.coefficients[:2].any()]:
            warned.append(f"the score says nothing of class {', '.join(flat[:10])}: it has one answer for every pixel")
        return ScoreMap({"coefficients": coefficients}, sum(one.steps for one in found), converged, tuple(warned))


class BetaFit(NamedTuple):
    """a, b and c, with how they were found."""

    coefficients: Array
    steps: int
    converged: bool


def fit_beta(log_score: Array, minus_log_rest: Array, count: Array, hits: Array) -> BetaFit:
    """Least NLL of `hits` out of `count` at each score, over a, b >= 0 and c.

    The NLL is convex. Its least value over a, b >= 0 is on one of four faces (both free, a = 0, b = 0, both 0), and is
    the least of those faces' own minima that are feasible.
    """
    features = np.stack([log_score, minus_log_rest, np.ones_like(log_score)])
    least, found, steps = np.inf, BetaFit(np.zeros(3), 0, True), 0
    for free in _FACES:
        value, own = _newton(features, count, hits, np.array(free))
        steps += own.steps
        if (own.coefficients[:2] >= 0).all() and value < least:
            least, found = value, own
            if len(free) == 3:
                break
    return found._replace(steps=steps)


def _newton(x: Array, count: Array, hits: Array, free: Array) -> tuple[float, BetaFit]:
    """Take damped Newton steps on some of the three numbers, the others being 0; return the NLL and the fit."""
    target = np.zeros(3)
    target[free] = _IDENTITY[free]
    w, move, value = target.copy(), np.zeros(3), _nll(target, x, target, count, hits)
    for step in range(1, _STEPS + 1):
        p = expit(w @ x)
        slope = x @ (count * p - hits) + _PULL * (w - target)
        curvature = (x[free] * (count * p * (1 - p))) @ x[free].T + _PULL * np.eye(len(free))
        move[free] = np.linalg.solve(curvature, slope[free])
        gain = float(slope @ move)
        if gain <= 1e-14 * max(value, 1.0):  # twice what this step can gain, and the next its square
            return value, BetaFit(w - move, step, True)
        for halving in 0.5 ** np.arange(40):
            trial = _nll(w - halving * move, x, target, count, hits)
            if trial <= value - 1e-4 * halving * gain:
                break
        else:
            return value, BetaFit(w, step, True)  # rounding leaves nothing to gain
        w, value = w - halving * move, trial
    return value, BetaFit(w, _STEPS, False)


def _nll(w: Array, x: Array, target: Array, count: Array, hits: Array) -> float:
    u = w @ x
    pull = 0.5 * _PULL * float(np.square(w - target).sum())
    return float((count * np.logaddexp(0.0, u) - hits * u).sum()) + pull
