"""Class-conditional matrix scaling that preserves the argmax or the order (Kirscher et al., TMLR 2026).

The definitions follow the paper and fiducio 0.2.0, its reference implementation. There the parameters are softplus of
free numbers, trained by Adam with all pixels in memory; here the convex problem is solved over nonnegative numbers, on
a sample first and then in passes over all pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import Sampler, one_thread, pixels_of, refusing_large, survey
from segcal.cases import CaseStream
from segcal.functional.class_conditional import (
    Expert,
    conditional_map,
    expert_curvature,
    expert_loss,
    experts_of,
    penalty_curvature,
    penalty_of,
)
from segcal.functional.minimise import Block, Problems, minimise_above
from segcal.functional.probability import at_least_float32
from segcal.types import Array, Image, Logits, check_weight

_SAMPLE = 1 << 16
_ROUNDS = 6  # of computing the curvature of the sample again
_SAMPLE_EVALUATIONS = 30
_PASSES = 60
_TOLERANCE = 1e-7  # nats
_ANCHOR = 1e-7
"""Cost of the squared distance of the numbers from those that change nothing, in nats: where the data leave a number
free or would send it to infinity (a class that is never predicted, pixels that are all right), it has an answer still.
On other data this moves the NLL by less than a millionth."""


class ClassConditionalScaling(Calibrator):
    """An affine map, of nonnegative numbers, for the pixels predicted as each class (L (L - 1) L numbers).

    Args:
        num_classes: L.
        off_diagonal_penalty: Weight of the mean square of the off-diagonal entries of the induced map of scores.
        bias_penalty: Weight of the mean square of its biases.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    preserves_labels = True
    ordered: ClassVar[bool]
    """True if the whole order of classes is preserved, rather than the first."""

    matrices: Float64[Tensor, "L K L"]
    """`[B, mu]` of each predicted class, K = L - 1; NaN until fitted."""

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
        self._register_learned(matrices=(num_classes, num_classes - 1, num_classes))

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the maps of least NLL plus penalties; a convex problem needs no validation."""
        sampler = Sampler(self.num_classes, _SAMPLE)
        seen = survey(stream, sampler)
        drawn = sampler.sample()
        experts = experts_of(drawn.logits, drawn.labels, drawn.importance, ordered=self.ordered)
        at = self._objective(lambda: self._all_experts(stream), seen.pixels)
        with refusing_large(drawn, self.method):
            point, blocks = self._solve_sample(experts, seen.pixels)
            found = minimise_above(at, point, blocks, evaluations=_PASSES, tolerance=_TOLERANCE)
        matrices = torch.from_numpy(found.point).view(self.matrices.shape)
        self.matrices.copy_(matrices)
        penalty = sum(self._penalty(matrix)[0] for matrix in matrices.numpy())
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=found.value - penalty,
            steps=found.evaluations,
            converged=found.converged,
            warnings=tuple(seen.doubts(self.matrices.numel())),
            details={
                "penalty": penalty,
                "zero_share": float((matrices == 0).double().mean()) if matrices.numel() else 0.0,
            },
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return conditional_map(at_least_float32(logits), self.matrices, ordered=self.ordered)

    def _problem(self) -> str | None:
        return "'matrices' must not be negative" if (self.matrices < 0).any() else None

    def _all_experts(self, stream: CaseStream) -> Iterator[dict[int, Expert]]:
        everyone = torch.ones(self.num_classes, dtype=torch.float64)
        for logits, labels in pixels_of(stream):
            for z, y in zip(torch.split(logits, _SAMPLE, dim=1), torch.split(labels, _SAMPLE), strict=True):
                with one_thread():
                    experts = experts_of(z, y, everyone, ordered=self.ordered)
                yield experts

    def _objective(self, parts: Callable[[], Iterator[dict[int, Expert]]], pixels: int) -> Problems:
        """Return the function to minimise: for each predicted class, its share of the mean NLL plus penalties."""

        def value(point: Array) -> tuple[Array, Array, None]:
            matrices = torch.from_numpy(point).view(self.matrices.shape)
            values, slopes = np.zeros(len(point)), np.zeros(self.matrices.shape)
            for experts in parts():
                for k, expert in experts.items():
                    loss, slope = expert_loss(expert, matrices[k], ordered=self.ordered)
                    values[k] += float(loss) / pixels
                    slopes[k] += slope.numpy() / pixels
            for k in range(len(point)):
                cost, tilt = self._penalty(matrices[k].numpy())
                values[k] += cost
                slopes[k] += tilt
            return values, slopes.reshape(point.shape), None

        return value

    def _penalty(self, matrix: Array) -> tuple[float, Array]:
        """Return what the map of one predicted class costs, and the gradient."""
        weights = self.off_diagonal_penalty / self.num_classes, self.bias_penalty / self.num_classes
        value, gradient = penalty_of(matrix, *weights, ordered=self.ordered)
        off = matrix - np.eye(*matrix.shape)
        return value + _ANCHOR * float((off**2).sum()), gradient + 2 * _ANCHOR * off

    @one_thread()
    def _solve_sample(self, experts: dict[int, Expert], pixels: int) -> tuple[Array, list[list[Block]]]:
        """Return the solution of a sample that stands for `pixels`, and the curvature there."""
        at = self._objective(lambda: iter([experts]), pixels)
        point = np.stack([np.eye(*self.matrices.shape[1:]).ravel()] * self.num_classes)
        blocks = self._curvature(experts, point, pixels)
        for _ in range(_ROUNDS):
            found = minimise_above(at, point, blocks, evaluations=_SAMPLE_EVALUATIONS, tolerance=_TOLERANCE)
            point = found.point
            blocks = self._curvature(experts, point, pixels)
            if found.converged:
                break
        return point, blocks

    def _curvature(self, experts: dict[int, Expert], point: Array, pixels: int) -> list[list[Block]]:
        rows, width = self.matrices.shape[1:]
        weights = self.off_diagonal_penalty / self.num_classes, self.bias_penalty / self.num_classes
        fixed: dict[bytes, Array] = {}
        result = []
        for k in range(self.num_classes):
            matrix = torch.from_numpy(point[k]).view(rows, width)
            expert = experts.get(k, _nobody(width))
            blocks = []
            for block in expert_curvature(expert, matrix, ordered=self.ordered):
                key = block.index.tobytes()
                if key not in fixed:
                    bent = penalty_curvature(rows, block.index, *weights, ordered=self.ordered)
                    fixed[key] = bent + 2 * _ANCHOR * np.eye(len(block.index))
                blocks.append(Block(block.index, block.curvature / pixels + fixed[key]))
            result.append(blocks)
        return result


class ArgmaxPreservingScaling(ClassConditionalScaling):
    """CMSap: margins of the predicted class over its rivals, mixed with nonnegative weights; the label stays."""

    method = "cmsap"
    ordered = False


class OrderPreservingScaling(ClassConditionalScaling):
    """CMSop: gaps between consecutive scores, mixed with nonnegative weights; the whole order of classes stays."""

    method = "cmsop"
    ordered = True


def _nobody(width: int) -> Expert:
    """Return the pixels of a class that is never predicted."""
    empty = torch.empty(0, dtype=torch.float64)
    return Expert(torch.empty(width, 0, dtype=torch.float64), torch.empty(0, dtype=torch.int64), empty)
