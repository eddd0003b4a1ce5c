"""Translation-invariant matrix scaling (MSc of Kirscher et al., TMLR 2026)."""

from __future__ import annotations

import numpy as np

from segcal.calibrators.matrix import MatrixScaling
from segcal.functional.minimise import Block
from segcal.types import Array

_WHOLE = 1200  # variables up to which the curvature is projected


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
