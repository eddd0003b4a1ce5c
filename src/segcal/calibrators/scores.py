"""Calibration of the class probabilities ("scores") of single pixels, learned from a table of counts.

The methods go through the cases twice: once to count the scores into a table (`segcal.functional.scores`), once to
measure what was learned. Histogram binning is that of Zadrozny and Elkan 2001, isotonic regression that of Zadrozny
and Elkan 2002 (over all classes at once: Zhang et al. 2020), beta calibration that of Kull et al. 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.optimize import isotonic_regression
from scipy.special import expit
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import Survey, nothing_to_fit, pixels_of
from segcal.cases import CaseStream
from segcal.functional.scores import (
    PiecewiseMap,
    ScoreHistogram,
    beta_log_probabilities,
    count_scores,
    empty_scores,
    joined_maps,
    largest_of_cells,
    mapped_log_probabilities,
    mean_distances,
)
from segcal.kernels.constants import CELLS, NEAREST
from segcal.types import MOST_BINS, Array, Image, Logits, check_choice, check_whole

_PART = 1 << 22
"""Scores that are calibrated at a time."""
_NO_CHANGE = np.array([1.0, 1.0, 0.0])
_PULL = 1e-6  # weight of the identity a = b = 1, c = 0, against the number of scores
_STEPS = 100
_FACES = ((0, 1, 2), (1, 2), (0, 2), (2,))  # which of a, b, c are free; the others are 0


class ScoreMap(NamedTuple):
    """A map of scores that a method fitted to a table of counts: its buffers, and what the report shall say."""

    values: Mapping[str, Tensor]
    steps: int = 1
    converged: bool = True
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}


class ScoreCalibrator(Calibrator):
    """A calibrator that is learned from a table of scores."""

    @abstractmethod
    def _fit_table(self, table: ScoreHistogram) -> ScoreMap:
        """Fit the map to the table of counts (on the CPU)."""

    @abstractmethod
    def _log_probabilities(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        """Return logarithms of calibrated probabilities, computed in float64."""

    def _score_edges(self) -> Float64[Tensor, " inner"] | None:
        """Return the inner edges of the bins that scores are counted in; None for the fine cells."""
        return None

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Learn from the scores of all labelled pixels; nothing is left to choose, so nothing is validated."""
        table, seen = self._count(stream)
        found = self._fit_table(ScoreHistogram(*(field.cpu() for field in table)))
        for name, value in found.values.items():
            self.register_buffer(name, value.to(self.fitted.device))
        with torch.no_grad():
            after = sum(self._nll(logits, labels) for logits, labels in pixels_of(stream))
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=after / seen.pixels,
            steps=found.steps,
            converged=found.converged,
            # one function for all classes is what keeps the labels
            warnings=(*seen.doubts(0, by_class=not self.preserves_labels), *found.warnings),
            details=found.details,
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return log-probabilities in float64: near 1, float32 does not tell probabilities apart."""
        if torch.compiler.is_compiling() or logits.numel() <= _PART:
            return self._map_part(logits)
        # in parts, since what is needed on the way is several times as large as the logits
        pixels = max(1, _PART // (logits.shape[0] * logits.shape[1]))
        parts = [self._map_part(part) for part in torch.split(logits.flatten(2), pixels, dim=2)]
        return torch.cat(parts, dim=2).view(logits.shape)

    def _map_part(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        calibrated = self._log_probabilities(logits)
        if not self.preserves_labels:
            return calibrated
        # the logarithm of the largest could come out below its neighbour's by one rounding
        return torch.minimum(calibrated, calibrated.gather(1, logits.argmax(dim=1, keepdim=True)))

    def _nll(self, logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> float:
        """Return the summed NLL of the calibrated scores of a slab; negative labels are left out."""
        total, size = 0.0, max(1, _PART // len(logits))
        for z, truth in zip(torch.split(logits, size, dim=1), torch.split(labels, size), strict=True):
            chosen = self._log_probabilities(z[None])[0].gather(0, truth.clamp(min=0)[None])[0]
            total -= float(chosen[truth >= 0].cpu().numpy().sum())  # numpy adds in one order for any number of threads
        return total

    def _count(self, stream: CaseStream) -> tuple[ScoreHistogram, Survey]:
        edges = self._score_edges()
        edges = None if edges is None else edges.to(stream.device)
        table = empty_scores(self.num_classes, CELLS if edges is None else len(edges) + 1, device=stream.device)
        parts = (count_scores(logits, labels, table, edges).cpu() for logits, labels in pixels_of(stream))
        pixels, right, nll = sum(parts, torch.zeros(3, dtype=torch.float64)).tolist()
        if pixels == 0:
            raise nothing_to_fit()
        support = table.hits.sum(dim=1).cpu()
        return table, Survey(nll / int(pixels), support, all_right=right == pixels, all_wrong=right == 0)


class PiecewiseCalibrator(ScoreCalibrator):
    """A calibrator that sends each score through a piecewise linear function and normalises what comes out."""

    sized_by_fit = PiecewiseMap._fields
    breaks: Float64[Tensor, "G K"]
    left: Float64[Tensor, "G K1"]
    right: Float64[Tensor, "G K1"]

    def __init__(self, num_classes: int, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self._register_learned(breaks=(1, 1), left=(1, 2), right=(1, 2))

    def _log_probabilities(self, logits: Logits) -> Float64[Tensor, "B L *S"]:
        return mapped_log_probabilities(logits, PiecewiseMap(self.breaks, self.left, self.right))

    def _problem(self) -> str | None:
        if self.breaks.ndim != 2:
            return "'breaks' must have two axes"
        rows, ends = self.breaks.shape
        if rows not in (1, self.num_classes) or not self.left.shape == self.right.shape == (rows, ends + 1):
            return "the pieces of its maps do not belong together"
        return None if bool((self.breaks.diff(dim=1) >= 0).all()) else "'breaks' must ascend"


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
    target[free] = _NO_CHANGE[free]
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
