"""Sums over the pixels of an image for the relatives of temperature scaling: ensembles, bins and attended samples."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional import scaling_portable
from segcal.kernels.cpu import scaling as scaling_kernels
from segcal.types import Array


class Mixture(NamedTuple):
    """Sums over pixels for weights of `{softmax(alpha z), softmax(z), 1 / L}`; those of two sets of pixels add."""

    nll: float
    gradient: Array
    curvature: Array
    gram: Array
    """Products of the three vectors of probabilities."""
    truth: Array
    """Their probabilities of the true class."""


def mixture(
    logits: Float[Tensor, "L *S"],
    labels: Int64[Tensor, "*S"],
    importance: Float64[Tensor, " L"],
    inverse_temperature: float,
    weights: Float64[Tensor, "3"],
) -> Array:
    """One row of sums of one image, to be added up and read by `read_mixture`."""
    z, y = logits.reshape(logits.shape[0], -1), labels.reshape(-1)
    engine = scaling_kernels if logits.device.type == "cpu" else scaling_portable
    settings = importance.to(z.device), inverse_temperature, weights.to(z.device)
    return engine.mixture(z, y, *settings).cpu().numpy()  # type: ignore[no-any-return]


def read_mixture(sums: Array, num_classes: int) -> Mixture:
    """What a row of sums says."""
    scaled, cross, raw, truth_scaled, truth_raw, pixels = sums[13:19]
    each = pixels / num_classes
    gram = np.array([[scaled, cross, each], [cross, raw, each], [each, each, each]])
    return Mixture(float(sums[0]), sums[1:4], sums[4:13].reshape(3, 3), gram, np.array([truth_scaled, truth_raw, each]))


def binned_likelihood(
    logits: Float[Tensor, "L *S"],
    labels: Int64[Tensor, "*S"],
    edges: Float64[Tensor, " inner"],
    inverse_temperatures: Float64[Tensor, " R"],
) -> Float64[Tensor, "R 6"]:
    """The sums of `temperature.Likelihood` for the pixels of each bin of confidence, whose inner edges are given."""
    engine = scaling_kernels if logits.device.type == "cpu" else scaling_portable
    settings = edges.to(logits.device), inverse_temperatures.to(logits.device)
    sums: Tensor = engine.binned_likelihood(logits.reshape(logits.shape[0], -1), labels.reshape(-1), *settings)
    return sums.cpu()


def attended_likelihood(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], threshold: float, inverse_temperature: float
) -> Float64[Tensor, "7"]:
    """The sums of `temperature.Likelihood` for the attended loss, and the number of its borrowed terms.

    To `-log S_y` each class k that is not the truth, and whose raw probability is at least `threshold`, adds
    `-log(1 - S_k)`, with `S = softmax(alpha z)`.
    """
    engine = scaling_kernels if logits.device.type == "cpu" else scaling_portable
    z, y = logits.reshape(logits.shape[0], -1), labels.reshape(-1)
    sums: Tensor = engine.attended_likelihood(z, y, threshold, inverse_temperature)
    return sums.cpu()


def least_on_simplex(curvature: Float64[np.ndarray, "N N"], slope: Float64[np.ndarray, " N"]) -> Array:
    """The point of the simplex with the least `v' curvature v / 2 + slope' v`, found face by face.

    >>> least_on_simplex(np.eye(3), np.array([-1.0, -1.0, 5.0])).round(6)
    array([0.5, 0.5, 0. ])
    """
    n = len(slope)
    best: Array = np.eye(n)[0]
    least = np.inf
    for size in range(1, n + 1):
        for face in combinations(range(n), size):
            found = _least_on_face(curvature, slope, list(face))
            value = float(found @ curvature @ found / 2 + slope @ found)
            if (found >= 0).all() and value < least:
                best, least = found, value
    return best


def _least_on_face(curvature: Array, slope: Array, face: list[int]) -> Array:
    """The least value where only some entries are not 0 and all sum to 1, wherever it lies."""
    k = len(face)
    system = np.ones((k + 1, k + 1))
    system[:k, :k], system[k, k] = curvature[np.ix_(face, face)], 0.0
    solution = np.linalg.lstsq(system, np.append(-slope[face], 1.0), rcond=None)[0][:k]
    point = np.zeros_like(slope)
    point[face] = solution / solution.sum()
    return point
