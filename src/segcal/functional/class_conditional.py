"""Class-conditional matrix scaling that keeps labels (Kirscher et al., TMLR 2026): an affine map for each prediction.

For the pixels predicted as class k, let f be the margins `z_k - z_j >= 0` over its L - 1 rivals (CMSap), or the gaps
between scores that follow each other in descending order (CMSop). With a separate matrix `B >= 0` and vector `mu >= 0`,

    t = B f + mu,    h_k = 0,    h_j = -t_j (CMSap)    or    h of rank r = -(t_1 + ... + t_r) (CMSop),

so that no score passes that of k (CMSap), or any other score (CMSop). With `h = -M t`, M the unit matrix or the lower
triangle of ones, the NLL is convex in B and mu, and the problems of the predicted classes share no number. The
penalties are those of matrix scaling on the map that is induced on scores, with the predicted class, or rank, first:
`A = 1 e_0' - M B D` with `D z = f`, and `b = -M mu`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional.affine import affine_sums, mapped_scores
from segcal.functional.minimise import Block
from segcal.functional.pixels import ascending
from segcal.types import Array

_WHOLE = 600  # numbers of a predicted class up to which their curvature is found whole; beyond, row by row
_PART = 1 << 14  # pixels at a time


class Expert(NamedTuple):
    """The pixels predicted as one class: `f` with a last row of ones, where the label ranks (0: predicted), weights."""

    features: Float64[Tensor, "L N"]
    place: Int64[Tensor, " N"]
    weight: Float64[Tensor, " N"]


def experts_of(
    logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], importance: Float64[Tensor, " L"], *, ordered: bool
) -> dict[int, Expert]:
    """Return the labelled pixels by predicted class; those labelled c count `importance[c]` times."""
    kept = (labels >= 0).nonzero().squeeze(1)
    winner = logits.max(dim=0).indices[kept].int()
    order = kept[winner.argsort(stable=True)]  # sorted once, so that each class is a range of pixels
    scores, truth = logits.index_select(1, order).double(), labels[order]
    counts, weights = torch.bincount(winner, minlength=len(logits)).tolist(), importance.to(logits.device)
    result = {}
    parts = zip(torch.split(scores, counts, dim=1), torch.split(truth, counts), strict=True)
    for k, (z, y) in enumerate(parts):
        if not len(y):
            continue
        if ordered:
            features, place = ranked_features(z, y)
        else:
            features = torch.cat([z[k] - z[:k], z[k] - z[k + 1 :], torch.ones_like(z[:1])])
            place = torch.where(y == k, 0, y + (y < k))
        result[k] = Expert(features, place, weights[y])
    return result


def ranked_features(
    scores: Float64[Tensor, "L N"], labels: Int64[Tensor, " N"]
) -> tuple[Float64[Tensor, "L N"], Int64[Tensor, " N"]]:
    """Return features and place of pixels for CMSop; see `Expert`. Of equal scores the first class has the first rank.

    Examples:
        >>> ranked_features(torch.tensor([[1.0], [3.0], [1.0]]).double(), torch.tensor([2]))
        (tensor([[2.],
                [0.],
                [1.]], dtype=torch.float64), tensor([2]))
    """
    value, own = ascending(scores).flip(0), scores.gather(0, labels.unsqueeze(0))
    before = torch.arange(len(scores), device=scores.device).unsqueeze(1) < labels
    place = ((scores > own) | ((scores == own) & before)).sum(dim=0)
    return torch.cat([value[:-1] - value[1:], torch.ones_like(value[:1])]), place


def _features(z: Float[Tensor, "L N"], k: int, *, ordered: bool) -> tuple[Float[Tensor, "K N"], Int64[Tensor, "L N"]]:
    """Return the features of pixels predicted as class k, and the class of each rank, the predicted one first."""
    if ordered:
        # the class predicted is the first of the largest, which a stable sort puts first; ONNX has it as TopK
        exported = torch.compiler.is_compiling()
        scores, order = torch.topk(z, len(z), dim=0) if exported else torch.sort(z, dim=0, descending=True, stable=True)
        return scores[:-1] - scores[1:], order
    others = torch.tensor([j for j in range(len(z)) if j != k], dtype=torch.int64, device=z.device)
    order = torch.cat([others.new_tensor([k]), others]).unsqueeze(1).expand(z.shape)
    return z[k] - z[others], order


def _ranked(t: Float[Tensor, "K N"], *, ordered: bool) -> Float[Tensor, "L N"]:
    """Return the scores by rank."""
    below = -t.cumsum(dim=0) if ordered else -t
    return torch.cat([torch.zeros_like(below[:1]), below])


def expert_loss(
    expert: Expert, matrix: Float64[Tensor, "K L"], *, ordered: bool
) -> tuple[Float64[Tensor, ""], Float64[Tensor, "K L"]]:
    """Return the weighted NLL of the pixels predicted as one class, and its gradient in `[B, mu]`."""
    ranks = torch.from_numpy(_maps(len(matrix), ordered)[0])
    induced = torch.nn.functional.pad(-ranks @ matrix.cpu(), (0, 0, 1, 0))  # by rank, the predicted class first
    pixels = expert.features[:-1], expert.place, expert.weight
    sums = affine_sums(*pixels, induced[:, :-1], induced[:, -1], of_log=False)
    slope, shift = sums[1 : -len(induced)], sums[-len(induced) :]
    slopes = torch.cat([slope.view(len(induced), -1), shift.unsqueeze(1)], dim=1)
    return sums[0], -ranks.T @ slopes[1:]


def expert_curvature(expert: Expert, matrix: Float64[Tensor, "K L"], *, ordered: bool) -> list[Block]:
    """Return the second derivatives of `expert_loss`, whole or row by row, in the order of the flattened matrix."""
    rows, width = matrix.shape
    whole = rows * width <= _WHOLE
    own, cross = np.zeros((rows, width, width)), np.zeros((rows * width,) * 2 if whole else 0)
    for start in range(0, len(expert.place), _PART):
        at = slice(start, start + _PART)
        features, share = expert.features[:, at].cpu(), expert.weight[at].cpu().numpy()
        probs = torch.softmax(_ranked(matrix @ features, ordered=ordered), dim=0)[1:]
        moved, f = _upwards(probs, ordered=ordered).numpy(), features.numpy()
        for r in range(rows):
            # of a score alone: p; minus the product of both where rows are taken apart
            bend = share * (moved[r] if whole else moved[r] * (1 - moved[r]))
            own[r] += (bend * f) @ f.T
        if whole:
            u = (moved[:, np.newaxis] * f).reshape(rows * width, -1)
            cross += (share * u) @ u.T
    place = np.arange(rows * width).reshape(rows, width)
    if not whole:
        return [Block(place[r], own[r]) for r in range(rows)]
    curvature = -cross
    for r in range(rows):
        # t_r and t_s move the same ranks from the larger of both on
        for s in range(rows) if ordered else (r,):
            curvature[np.ix_(place[r], place[s])] += own[max(r, s)]
    return [Block(place.reshape(-1), curvature)]


def _upwards(probs: Float64[Tensor, "K N"], *, ordered: bool) -> Float64[Tensor, "K N"]:
    """Return the probability that each t moves: of its own rank, or of all ranks from it on."""
    return probs.flip(0).cumsum(dim=0).flip(0) if ordered else probs


def penalty_of(
    matrix: Float64[np.ndarray, "K L"], off_diagonal: float, bias: float, *, ordered: bool
) -> tuple[float, Float64[np.ndarray, "K L"]]:
    """Return `off_diagonal` times the mean square of A outside its diagonal plus `bias` times that of b; gradient."""
    rows, classes = matrix.shape
    m, d = _maps(rows, ordered)
    induced = np.eye(1, classes) - m @ matrix[:, :-1] @ d
    induced[np.arange(rows), np.arange(rows) + 1] = 0.0  # the diagonal is free; the first row of A is constant
    shift = m @ matrix[:, -1]
    weight = off_diagonal / max(1, classes * (classes - 1))
    value = weight * float((induced**2).sum()) + bias / classes * float((shift**2).sum())
    gradient = np.concatenate(
        [-2 * weight * m.T @ induced @ d.T, (2 * bias / classes * m.T @ shift)[:, np.newaxis]], axis=1
    )
    return value, gradient


def penalty_curvature(rows: int, index: Array, off_diagonal: float, bias: float, *, ordered: bool) -> Array:
    """Return the second derivatives of the penalty among some numbers of the flattened matrix."""
    classes = rows + 1
    zero = np.zeros((rows, classes))
    base = penalty_of(zero, off_diagonal, bias, ordered=ordered)[1].ravel()
    result = np.empty((len(index), len(index)))
    for column, number in enumerate(index.tolist()):
        unit = zero.copy()
        unit.flat[number] = 1.0
        result[:, column] = (penalty_of(unit, off_diagonal, bias, ordered=ordered)[1].ravel() - base)[index]
    return result


@lru_cache(maxsize=8)
def _maps(rows: int, ordered: bool) -> tuple[Array, Array]:
    """Return M, from t to ranks, and D, from scores with the predicted one first to features."""
    if ordered:
        return np.tril(np.ones((rows, rows))), np.eye(rows, rows + 1) - np.eye(rows, rows + 1, 1)
    return np.eye(rows), np.concatenate([np.ones((rows, 1)), -np.eye(rows)], axis=1)


def conditional_map(
    logits: Float[Tensor, "B L *S"], matrices: Float64[Tensor, "L K L"], *, ordered: bool
) -> Float[Tensor, "B L *S"]:
    """Return the scores h of every pixel by the map of its predicted class."""
    flat = logits.movedim(1, 0).flatten(1)
    winner, own = flat.max(dim=0).indices, matrices.to(flat.dtype)
    # of scores near the largest number a sum of products could be infinite
    largest = torch.finfo(flat.dtype).max / (4 * len(flat) * (own.abs().sum(dim=(1, 2)).max() + 1))
    if torch.compiler.is_compiling():  # an exported graph cannot choose pixels: every map sees all of them
        result = flat
        for k in range(len(flat)):
            result = torch.where(winner == k, _mapped(flat, k, own[k], largest, ordered=ordered), result)
    else:
        result = torch.empty_like(flat)
        for k in torch.bincount(winner, minlength=len(flat)).nonzero().squeeze(1).tolist():
            index = (winner == k).nonzero().squeeze(1)
            result[:, index] = _mapped(flat[:, index], k, own[k], largest, ordered=ordered)
    return result.view(logits.shape[1], logits.shape[0], *logits.shape[2:]).movedim(0, 1)


def _mapped(z: Tensor, k: int, matrix: Tensor, largest: Tensor, *, ordered: bool) -> Tensor:
    features, order = _features(z, k, ordered=ordered)
    t = mapped_scores(torch.minimum(features, largest), matrix[:, :-1], matrix[:, -1])
    return torch.zeros_like(z).scatter(0, order, _ranked(t, ordered=ordered))
