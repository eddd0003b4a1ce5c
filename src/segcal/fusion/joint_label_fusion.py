"""Joint label fusion (Wang et al. 2012; the paper's appendix): weights that count correlated errors of atlases once.

The weights minimise `w^T (M + alpha I) w` subject to `sum(w) = 1`, where `M(i, j)` estimates the probability that
atlases i and j are both wrong: `w = (M + alpha I)^-1 1 / (1^T (M + alpha I)^-1 1)`.

From probabilities, `M = e e^T` with `e_i = 1 - p_i` has rank one (the paper's approximation), so Sherman and Morrison
give the solution in closed form: `(M + alpha I)^-1 1 = (1 - e s / (alpha + q)) / alpha` with `s = sum e`,
`q = sum e^2`. Weights fall as errors grow, so without negative weights only the atlases of least error remain: as many
as have a positive weight among themselves. Summed over a patch, or taken from intensities, M has full rank, and one
small system per voxel is solved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.ndimage import uniform_filter
from scipy.optimize import nnls

from segcal.functional.arrays import to_array
from segcal.fusion.voting import Values, Weights
from segcal.types import InputError, check_whole

PerAtlas: TypeAlias = Float[np.ndarray, "N *S"]
Matrices: TypeAlias = Float[np.ndarray, "V N N"]

_LARGEST_PATCH = 1000
_VOXELS = 1 << 15  # systems solved together: enough to amortise the call, few enough to stay in memory


def joint_label_fusion_weights(
    probabilities: Weights, alpha: float = 0.1, *, beta: float = 1.0, patch: int = 0, nonnegative: bool = False
) -> PerAtlas:
    """Return the weight of each atlas at each voxel, from the probability that its label is right there.

    Where all errors are 0, all weights are equal. Two atlases with the same error have the same weight.

    Args:
        probabilities: Probability `[n, ...]` that the label of each atlas is right.
        alpha: Added to the diagonal of M. Small values trust the probabilities more.
        beta: Exponent of the entries of M: larger values sharpen the difference between good and bad atlases.
        patch: Radius of the cube over which M is summed; 0 uses each voxel alone.
        nonnegative: Whether to forbid negative weights. Without it, an atlas worse than the others may get one.

    Examples:
        >>> joint_label_fusion_weights(np.array([[1.0], [0.5], [0.5]])).round(3).ravel()
        array([0.75 , 0.125, 0.125])
    """
    probabilities = to_array(probabilities)
    _check(probabilities, alpha, beta, patch)
    errors = (1 - probabilities.astype(np.float64)) ** beta
    if patch == 0:
        return _rank_one(errors, alpha, nonnegative=nonnegative)
    return _solved(errors, patch, 1.0, alpha, nonnegative=nonnegative)


def similarity_weights(
    target: Float[Values, "*S"],
    images: Weights,
    alpha: float = 0.1,
    *,
    beta: float = 2.0,
    patch: int = 1,
    nonnegative: bool = False,
) -> PerAtlas:
    """Return weights from intensities, where no probabilities are known: `M = (sum |T - A_i| |T - A_j|)^beta`.

    The sum is over a cube of radius `patch` (SSD-based M of Wang et al.). Intensities are first normalised to mean 0
    and variance 1 around each voxel, so that brightness and contrast do not count as errors.
    """
    target, images = to_array(target), to_array(images)
    if images.shape[1:] != target.shape:
        raise InputError(f"warped images must have shape (N, {target.shape}), got {images.shape}")
    _check(images, alpha, beta, patch, are_probabilities=False)
    if not (np.isfinite(target).all() and np.isfinite(images).all()):
        raise InputError("intensities must be finite, got NaN or infinity; replace them, for example by 0")
    reference = _standardised(target.astype(np.float64), patch)
    errors: PerAtlas = np.stack(
        [np.abs(reference - _standardised(image.astype(np.float64), patch)) for image in images]
    )
    return _solved(errors, patch, beta, alpha, nonnegative=nonnegative)


def _rank_one(errors: PerAtlas, alpha: float, *, nonnegative: bool) -> PerAtlas:
    """Sherman and Morrison; the common factor 1 / alpha drops out in the normalisation.

    Without negative weights, the same among the k atlases of least error, for the largest k that gives each of them a
    positive weight.
    """
    total, square = errors.sum(axis=0), np.einsum("n...,n...->...", errors, errors)
    if nonnegative:
        ordered = np.sort(errors, axis=0)
        totals, squares = np.cumsum(ordered, axis=0), np.cumsum(ordered**2, axis=0)
        positive = alpha + squares - ordered * totals > 0  # falls with k, so the first k are True
        last = positive.sum(axis=0, keepdims=True) - 1
        total, square = (np.take_along_axis(sums, last, axis=0)[0] for sums in (totals, squares))
    weights: PerAtlas = 1 - errors * (total / (alpha + square))
    if nonnegative:
        weights = np.maximum(weights, 0)
    # 1^T (M + alpha I)^-1 1 > 0 for positive alpha, as the inverse of a positive definite matrix is positive definite
    weights /= weights.sum(axis=0)
    return weights


def _matrices(errors: PerAtlas, radius: int, exponent: float) -> Iterator[tuple[slice, Matrices]]:
    """Yield M in chunks of voxels laid flat: products of errors, summed over a cube."""
    (n, length, *plane), side = errors.shape, 2 * radius + 1
    row = math.prod(plane)
    slices = max(1, _VOXELS // max(1, row))
    for start in range(0, length, slices):
        stop = min(start + slices, length)
        low, high = max(0, start - radius), min(length, stop + radius)
        part = errors[:, low:high]
        matrices = np.empty((stop - start, *plane, n, n))
        for i, j in combinations_with_replacement(range(n), 2):
            summed = part[i] * part[j]
            if radius:  # outside the image there are no errors to add
                summed = side**summed.ndim * uniform_filter(summed, side, mode="constant")
            matrices[..., i, j] = matrices[..., j, i] = np.maximum(summed[start - low : stop - low], 0) ** exponent
        yield slice(start * row, stop * row), matrices.reshape(-1, n, n)


def _solved(errors: PerAtlas, radius: int, exponent: float, alpha: float, *, nonnegative: bool) -> PerAtlas:
    n = len(errors)
    weights = np.empty((n, math.prod(errors.shape[1:])))
    ones, diagonal = np.ones((n, 1)), alpha * np.eye(n)
    for voxels, matrices in _matrices(errors, radius, exponent):
        regular = matrices + diagonal
        found = np.linalg.solve(regular, np.broadcast_to(ones, (len(regular), n, 1)))[..., 0]
        if nonnegative:
            wrong = (found < 0).any(axis=1)
            found[wrong] = _least_nonnegative(regular[wrong], found[wrong])
        weights[:, voxels] = (found / found.sum(axis=1, keepdims=True)).T
    return weights.reshape(errors.shape)


def _least_nonnegative(matrices: Matrices, free: Float[np.ndarray, "V N"]) -> Float[np.ndarray, "V N"]:
    """Return the minima of `x^T M x / 2 - 1^T x` with `x >= 0` from those without the constraint, voxel by voxel.

    With `M = L L^T` that is the least squared distance of `L^T x` from `L^T free`.
    """
    factors = np.linalg.cholesky(matrices).swapaxes(1, 2)
    targets = np.einsum("vij,vj->vi", factors, free)
    found = [nnls(factor, target)[0] for factor, target in zip(factors, targets, strict=True)]
    return np.array(found).reshape(free.shape)


def _standardised(image: Float[np.ndarray, "*S"], radius: int) -> Float[np.ndarray, "*S"]:
    """Each voxel less the mean of its cube, over the standard deviation of its cube."""
    side = 2 * max(radius, 1) + 1
    mean = uniform_filter(image, side, mode="nearest")
    variance = uniform_filter(image * image, side, mode="nearest") - mean * mean
    least = 1e-10 * mean * mean + 1e-12  # where an image is flat, rounding must not look like contrast
    scaled: Float[np.ndarray, "*S"] = (image - mean) / np.sqrt(np.maximum(variance, least))
    return scaled


def _check(values: PerAtlas, alpha: float, beta: float, patch: int, *, are_probabilities: bool = True) -> None:
    if values.ndim < 2 or values.shape[0] < 1:
        raise InputError(
            f"probabilities must have shape (n, ...) with n of at least 1, got ({', '.join(map(str, values.shape))})"
        )
    if not alpha > 0 or not beta > 0:
        raise InputError(f"alpha and beta must be positive, got {alpha} and {beta}")
    check_whole("patch", patch, 0, _LARGEST_PATCH)
    if are_probabilities and not (values.min(initial=0) >= 0 and values.max(initial=0) <= 1):  # NaN fails too
        raise InputError(
            f"probabilities must lie in 0..1, got {values.min()} to {values.max()}; apply a sigmoid to logits first"
        )
