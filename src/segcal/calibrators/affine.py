"""Affine maps of the scores: vector, matrix, Dirichlet, translation-invariant and structured vector scaling.

`softmax(W x + b)` has a convex NLL in `W` and `b`. A sample drawn by class (`functional.draws`) is solved first,
in memory; its solution is the start, and its curvature the metric, of L-BFGS on gradients summed over all cases.
Five to ten passes over the cases are usual, and no more than one slab of pixels is held at a time.

Vector and matrix scaling are those of Guo et al. 2017, matrix scaling with the off-diagonal and intercept
regularisation (ODIR) of Kull et al. 2019, whose Dirichlet calibration does the same to log-probabilities (DirODIR).
Equal row sums are the MSc of Kirscher et al. (TMLR 2026), small deviations from temperature scaling the SVS of Berta,
Holzmueller, Jordan and Bach (AISTATS 2026).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import Sampler, one_thread, pixels_of, refusing_large, survey
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import CaseStream
from segcal.cases.collections import as_collection
from segcal.functional.affine import affine_curvature, affine_map, affine_sums
from segcal.functional.draws import Sample
from segcal.functional.minimise import Block, Objective, Preconditioner, minimise
from segcal.functional.temperature import Likelihood, likelihood, optimal_inverse_temperature
from segcal.types import Array, Case, Image, InputError, Logits, check_weight

_GRID = (0.01, 0.1, 1.0, 10.0, 100.0)  # of plain sums, so that useful penalties grow with the number of weights
_WHOLE = 1200  # variables up to which the curvature of equal row sums is projected
_ROUNDS = 3  # of computing the curvature of the sample again
_SAMPLE_EVALUATIONS = 100
_PASSES = 100
_STARTS = (0.05, 20.0)  # smallest and largest inverse temperature to start from
_ANCHOR = 1e-7
"""Penalty on the squared distance of the numbers from the identity, in nats: it makes the answer unique where the data
leave a number free or would send it to infinity (a class that never occurs, pixels that are all right). On other data
it moves the NLL by less than a millionth."""


class AffineCalibrator(Calibrator):
    """A map `W x + b` of the scores of each pixel, of least mean NLL plus penalties.

    Besides those of the method there is a very small penalty on the distance from the identity, which makes the answer
    unique.

    Args:
        num_classes: L.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    preserves_labels = False
    of_log: ClassVar[bool] = False
    """True if the map is applied to log-probabilities rather than to logits."""
    one_scale: ClassVar[bool] = False
    """True if each class has one scale instead of a row of the matrix."""

    weights: Float64[Tensor, "L K"]
    """`[L, L]`, or `[L, 1]` for one scale for each class; NaN until fitted."""
    bias: Float64[Tensor, " L"]

    def __init__(self, num_classes: int, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self._register_learned(weights=(num_classes, 1 if self.one_scale else num_classes), bias=(num_classes,))

    def _penalties(self) -> tuple[Float64[Tensor, "L K"], Float64[Tensor, " L"]]:
        """Return the penalty on the squared difference of each weight and bias from the identity: none by default."""
        return torch.zeros(self.weights.shape, dtype=torch.float64), torch.zeros(self.num_classes, dtype=torch.float64)

    @abstractmethod
    def _details(self) -> dict[str, Any]:
        """Return what the report says about the learned map."""

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the map of least NLL plus penalties; a convex problem needs no validation."""
        sampler = Sampler(self.num_classes)
        seen = survey(stream, sampler)
        drawn = sampler.sample()
        with refusing_large(drawn, self.method):
            start, metric = self._solve_sample(drawn, seen.pixels)
        everyone = torch.ones(self.num_classes, dtype=torch.float64)
        objective = self._objective(lambda: pixels_of(stream), everyone, seen.pixels)
        found = minimise(objective, start, metric, evaluations=_PASSES)
        found = replace(found, point=self._constrained(found.point))
        weights, bias = self._split(found.point)
        self.weights.copy_(weights)
        self.bias.copy_(bias)
        penalty = float((self._costs() * (found.point - self._identity()) ** 2).sum())
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=found.value - penalty,
            steps=found.evaluations,
            converged=found.converged,
            warnings=tuple(seen.doubts(found.point.size)),
            details={**self._details(), "penalty": penalty, "gradient": found.slope},
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return affine_map(logits, self.weights, self.bias, of_log=self.of_log)

    def mean_nll(self, cases: Iterable[Case]) -> float:
        """Return the mean NLL of calibrated cases, in nats."""
        self._check_fitted()
        nll, pixels, everyone = 0.0, 0, torch.ones(self.num_classes, dtype=torch.float64)
        for logits, labels in pixels_of(self.stream(cases)):
            importance = everyone.to(labels.device)[labels]
            nll += float(affine_sums(logits, labels, importance, self.weights, self.bias, of_log=self.of_log)[0])
            pixels += int((labels >= 0).sum())
        if pixels == 0:
            raise InputError("no labelled pixel to measure; check ignore_index, background and the labels")
        return nll / pixels

    @one_thread()
    def _solve_sample(self, sample: Sample, pixels: int) -> tuple[Array, Preconditioner]:
        """The solution of a sample that stands for `pixels`, from the best temperature on, and the metric there."""
        objective = self._objective(lambda: iter([(sample.logits, sample.labels)]), sample.importance, pixels)
        alpha = float(np.clip(_inverse_temperature(sample), *_STARTS))
        point = self._start(alpha)
        for _ in range(_ROUNDS):
            found = minimise(objective, point, self._metric(sample, point), evaluations=_SAMPLE_EVALUATIONS)
            point = found.point
            if found.evaluations <= 2:
                break
        return point, self._metric(sample, point)

    def _objective(
        self, slabs: Callable[[], Iterator[tuple[Tensor, Tensor]]], importance: Tensor, pixels: int
    ) -> Objective:
        """Mean NLL plus penalties of what each call of `slabs` goes through."""
        penalty, identity = self._costs(), self._identity()

        def value(point: Array) -> tuple[float, Array]:
            inside = self._constrained(point)
            weights, bias = self._split(inside)
            total = np.zeros(1 + point.size)
            for logits, labels in slabs():
                share = importance.to(labels.device)[labels]
                total += affine_sums(logits, labels, share, weights, bias, of_log=self.of_log).numpy()
            mean, off, astray = total / pixels, inside - identity, point - inside
            slope = self._constrained(mean[1:] + 2 * penalty * off) + 2 * _ANCHOR * astray
            return float(mean[0] + (penalty * off**2).sum() + _ANCHOR * (astray**2).sum()), slope

        return value

    def _metric(self, sample: Sample, point: Array) -> Preconditioner:
        weights, bias = self._split(self._constrained(point))
        return Preconditioner(
            self._projected(affine_curvature(sample, weights, bias, self._costs(), of_log=self.of_log))
        )

    def _constrained(self, point: Array) -> Array:
        """Return the nearest point that the method allows: an orthogonal projection, by default the point itself."""
        return point

    def _projected(self, blocks: list[Block]) -> list[Block]:
        """Return the curvature along the points that the method allows; whole ones only, since it is but a metric."""
        return blocks

    def _costs(self) -> Array:
        return _joined(*self._penalties()) + _ANCHOR

    def _identity(self) -> Array:
        """The weights and the bias that change nothing."""
        classes, width = self.weights.shape
        weights = torch.ones(classes, 1) if width == 1 else torch.eye(classes)
        return _joined(weights.double(), torch.zeros(classes, dtype=torch.float64))

    def _start(self, alpha: float) -> Array:
        """Return the point to start from, given the inverse temperature of the sample."""
        return alpha * self._identity()

    def _split(self, point: Array) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(np.array(point))
        size = self.weights.numel()
        return values[:size].view(self.weights.shape), values[size:]


class VectorScaling(AffineCalibrator):
    """`softmax(s * z + b)` with the L scales and L biases of the lowest NLL (2 L parameters).

    The scales multiply the logits as they are, so a constant added to all logits of a pixel matters. Labels may change.

    Args:
        num_classes: L.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "vector"
    one_scale = True

    def _details(self) -> dict[str, Any]:
        return {"scales": self.weights.squeeze(1).tolist(), "biases": self.bias.tolist()}


class MatrixScaling(AffineCalibrator):
    """`softmax(W z + b)` of the lowest mean NLL plus penalties (L L + L parameters).

    The penalties are `off_diagonal_penalty` times the mean square of the off-diagonal weights, and `bias_penalty` times
    the mean square of the biases (ODIR). Labels may change.

    Args:
        num_classes: L.
        off_diagonal_penalty: Lambda of ODIR.
        bias_penalty: Mu of ODIR.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "matrix"

    def __init__(
        self,
        num_classes: int,
        *,
        off_diagonal_penalty: float = 0.01,
        bias_penalty: float = 0.01,
        **region: Unpack[FitRegion],
    ) -> None:
        super().__init__(num_classes, **region)
        self.off_diagonal_penalty = check_weight("off_diagonal_penalty", off_diagonal_penalty)
        self.bias_penalty = check_weight("bias_penalty", bias_penalty)

    def _penalties(self) -> tuple[Tensor, Tensor]:
        classes = self.num_classes
        others = 1 - torch.eye(classes, dtype=torch.float64)
        every = torch.ones(classes, dtype=torch.float64)
        return self.off_diagonal_penalty / max(1, classes * (classes - 1)) * others, self.bias_penalty / classes * every

    def _details(self) -> dict[str, Any]:
        others = self.weights - self.weights.diag().diag()
        return {
            "diagonal": self.weights.diag().tolist(),
            "largest_off_diagonal": float(others.abs().max()),
            "biases": self.bias.tolist(),
        }


class DirichletCalibration(MatrixScaling):
    """`softmax(W log p + b)` of the lowest mean NLL plus penalties, with the probabilities `p` (L L + L parameters).

    As matrix scaling, but of log-probabilities: a constant added to all logits of a pixel changes nothing. They are
    taken from the logits directly, so that no probability is rounded to 0 on the way; below that of the smallest
    float32 (-87.3) they count as this much.

    The penalties are plain sums of squares, as in the code of Kull et al. that the paper uses; their printed equation,
    and `matrix` here, divide them by L (L - 1) and L.

    Args:
        num_classes: L.
        off_diagonal_penalty: Lambda of ODIR, times the sum of squares of the off-diagonal weights.
        bias_penalty: Mu of ODIR, times the sum of squares of the biases.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "dirichlet"
    of_log = True

    def _penalties(self) -> tuple[Tensor, Tensor]:
        others = 1 - torch.eye(self.num_classes, dtype=torch.float64)
        every = torch.ones(self.num_classes, dtype=torch.float64)
        return self.off_diagonal_penalty * others, self.bias_penalty * every


class TranslationInvariantMatrixScaling(MatrixScaling):
    """`softmax(W z + b)` with equal row sums of W, of the lowest mean NLL plus penalties (L L + 1 parameters).

    With equal row sums a constant added to all logits of a pixel is added to all results, so it changes nothing. The
    penalties are those of matrix scaling. Labels may change. Log-probabilities below that of the smallest float32
    (-87.3) count as this much.

    Args:
        num_classes: L.
        off_diagonal_penalty: Weight of the mean square of the off-diagonal weights.
        bias_penalty: Weight of the mean square of the biases.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "msc"
    of_log = True  # which differ from the logits by a constant, but do not depend on how large the logits are

    def _constrained(self, point: Array) -> Array:
        weights = point[: self.weights.numel()].reshape(self.weights.shape)
        sums = weights.mean(axis=1, keepdims=True)
        return np.concatenate([(weights - sums + sums.mean()).ravel(), point[self.weights.numel() :]])

    def _projected(self, blocks: list[Block]) -> list[Block]:
        if len(blocks) > 1 or blocks[0].index.size > _WHOLE:
            return blocks
        index, curvature = blocks[0].index, blocks[0].curvature
        projection = np.stack([self._constrained(row) for row in np.eye(index.size)])[np.ix_(index, index)]
        rest = np.eye(index.size) - projection
        return [Block(index, projection @ curvature @ projection + np.diag(curvature).mean() * rest)]


class StructuredVectorScaling(AffineCalibrator):
    """`softmax((1 + v) * a log p + b)`: temperature scaling and small deviations of each class (2 L + 1 parameters).

    The factor a is the inverse temperature of temperature scaling. The deviations v and biases b are those of least
    mean NLL plus `penalty L / N (|v|^2 + |b|^2)` for N pixels, so that with few pixels temperature scaling is left.
    Labels may change.

    Args:
        num_classes: L.
        penalty: Strength of the penalty on the class deviations, as published; its effect shrinks as pixels are added.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "svs"
    of_log = one_scale = True

    inverse_temperature: Float64[Tensor, ""]
    """Inverse temperature of temperature scaling; NaN until fitted."""

    def __init__(self, num_classes: int, *, penalty: float = 1.0, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self.penalty = check_weight("penalty", penalty)
        self._register_learned(inverse_temperature=())
        self._pixels = 1

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the temperature, then the deviations of least NLL plus penalty."""
        scaling = TemperatureScaling(self.num_classes)._learn(stream)
        self.inverse_temperature.fill_(1 / scaling.details["temperature"])
        self._pixels = scaling.pixels
        return super()._learn(stream)

    def _identity(self) -> Array:
        alpha = float(self.inverse_temperature)
        return np.concatenate([np.full(self.num_classes, alpha), np.zeros(self.num_classes)])

    def _start(self, alpha: float) -> Array:
        return self._identity()

    def _penalties(self) -> tuple[Tensor, Tensor]:
        each = torch.full((self.num_classes,), self.penalty * self.num_classes / self._pixels, dtype=torch.float64)
        return (each / float(self.inverse_temperature) ** 2).unsqueeze(1), each

    def _details(self) -> dict[str, Any]:
        alpha = float(self.inverse_temperature)
        return {
            "temperature": 1 / alpha,
            "deviations": (self.weights.squeeze(1) / alpha - 1).tolist(),
            "biases": self.bias.tolist(),
        }


def search_dirichlet(
    cases: Iterable[Case],
    validation: Iterable[Case],
    num_classes: int,
    *,
    off_diagonal_penalties: Sequence[float] = _GRID,
    bias_penalties: Sequence[float] = _GRID,
    **settings: Any,
) -> DirichletCalibration:
    """Fit one for each pair of penalties and return the one of least NLL on the validation cases.

    All pairs and their NLL are in `fit_report_.details["search"]`.
    """
    fitting, held_out = as_collection(cases), as_collection(validation)
    if not off_diagonal_penalties or not bias_penalties:
        raise InputError("at least one off_diagonal_penalty and one bias_penalty are needed, got none")
    tried = []
    for off_diagonal, bias in product(off_diagonal_penalties, bias_penalties):
        penalties: dict[str, Any] = {"off_diagonal_penalty": float(off_diagonal), "bias_penalty": float(bias)}
        calibrator = DirichletCalibration(num_classes, **penalties, **settings).fit(fitting)
        tried.append((calibrator.mean_nll(held_out), penalties, calibrator))
    _, _, best = min(tried, key=lambda found: found[0])
    search = [{**penalties, "validation_nll": nll} for nll, penalties, _ in tried]
    best.fit_report_ = replace(best.fit_report_, details={**best.fit_report_.details, "search": search})
    return best


def _joined(weights: Tensor, bias: Tensor) -> Array:
    return np.concatenate([weights.reshape(-1).numpy(), bias.numpy()])


def _inverse_temperature(sample: Sample) -> float:
    """The inverse temperature of least NLL of a sample."""
    bounds = list(pairwise(sample.starts.tolist()))
    classes = [(sample.logits[:, start:stop].contiguous(), sample.labels[start:stop]) for start, stop in bounds]

    def at(alpha: float) -> Likelihood:
        parts = torch.tensor([likelihood(logits, labels, alpha) for logits, labels in classes], dtype=torch.float64)
        return Likelihood(*(sample.importance @ parts).tolist())

    return optimal_inverse_temperature(at).inverse_temperature
