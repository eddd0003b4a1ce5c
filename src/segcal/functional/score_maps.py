"""Maps of class probabilities ("scores"): piecewise linear ones, and those of beta calibration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.constants import NEAREST, SMALLEST, TIE_BREAK
from segcal.kernels.dispatch import accelerated

_NEVER = 2.0  # a break beyond every probability


class PiecewiseMap(NamedTuple):
    """Functions of a score, one per class or one for all: linear between breaks, where they may jump.

    On `(breaks[k - 1], breaks[k]]` the value increases from `left[k]` to `right[k]`; outside the breaks it is constant.
    """

    breaks: Float64[Tensor, "G K"]
    left: Float64[Tensor, "G K1"]
    right: Float64[Tensor, "G K1"]


def joined_maps(maps: list[PiecewiseMap]) -> PiecewiseMap:
    """Join maps of one class each; the shorter ones are padded with breaks that no score reaches."""
    longest = max(1, *(one.breaks.shape[1] for one in maps))
    fields: list[list[Tensor]] = [[], [], []]
    for one in maps:
        missing = longest - one.breaks.shape[1]
        ends = (one.breaks.new_full((1, 1), _NEVER), one.left[:, -1:], one.right[:, -1:])
        for field, values, end in zip(fields, one, ends, strict=True):
            field.append(torch.cat([values, end.expand(1, missing)], dim=1))
    return PiecewiseMap(*(torch.cat(field) for field in fields))


@accelerated
def mapped_log_probabilities(logits: Float[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    """Return the logarithm of the mapped probabilities, normalised to a sum of 1."""
    mapped = apply_map(torch.softmax(logits.double(), dim=1), maps)
    return mapped.log() - mapped.sum(dim=1, keepdim=True).log()


@accelerated
def beta_log_probabilities(
    logits: Float[Tensor, "B L *S"], coefficients: Float64[Tensor, "L 3"]
) -> Float64[Tensor, "B L *S"]:
    """Return the logarithm of `sigmoid(a log p - b log(1 - p) + c)` with a, b, c of each class, normalised."""
    log_p, log_rest = _log_score_and_rest(logits.double())
    a, b, c = coefficients.view(-1, 3, *[1] * (logits.ndim - 2)).unbind(1)
    return torch.log_softmax(torch.nn.functional.logsigmoid(a * log_p - b * log_rest + c), dim=1)


def apply_map(scores: Float64[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    """Map every score, and add 1e-9 of it: scores with equal values keep their order, and no value is 0.

    Rounding keeps the order too: each step (difference, quotient, product, sum, minimum) is monotone.
    """
    many = scores.shape[1]
    if torch.compiler.is_compiling() or many == 1:
        return _mapped(scores, maps)
    groups = [PiecewiseMap(*(field[min(c, len(field) - 1)][None] for field in maps)) for c in range(many)]
    # one class at a time, since intermediate results are several times as large as the scores
    return torch.cat([_mapped(scores[:, c : c + 1], group) for c, group in enumerate(groups)], dim=1)


def _log_score_and_rest(
    logits: Float64[Tensor, "B L *S"],
) -> tuple[Float64[Tensor, "B L *S"], Float64[Tensor, "B L *S"]]:
    """Return log p and log(1 - p) of every class, at least log 2**-52, without the cancellation of 1 - p near 1."""
    top, winner = logits.max(dim=1, keepdim=True)
    powers = (logits - top).exp()
    total = powers.sum(dim=1, keepdim=True)
    classes = torch.arange(logits.shape[1], device=logits.device).view(-1, *[1] * (logits.ndim - 2))
    is_winner = classes == winner
    others = torch.where(is_winner, 0.0, powers).sum(dim=1, keepdim=True)
    rest = torch.where(is_winner, others, total - powers)
    return (powers / total).clamp(min=NEAREST).log(), (rest / total).clamp(min=NEAREST).log()


def _mapped(scores: Float64[Tensor, "B L *S"], maps: PiecewiseMap) -> Float64[Tensor, "B L *S"]:
    groups, size = maps.breaks.shape
    group = torch.arange(groups, device=scores.device).view(-1, *[1] * (scores.ndim - 2))
    at = _segment_of(scores, maps.breaks, group)
    breaks, left, right = (field.reshape(-1) for field in maps)
    low = breaks[(at - 1).clamp(min=0) + group * size]
    width = (breaks[at.clamp(max=size - 1) + group * size] - low).clamp(min=SMALLEST)
    place = at + group * (size + 1)
    start, end = left[place], right[place]
    value = torch.minimum(start + (end - start) * ((scores - low) / width).clamp(0.0, 1.0), end)
    return (value + TIE_BREAK * scores).clamp(min=SMALLEST)


def _segment_of(
    scores: Float64[Tensor, "B L *S"], breaks: Float64[Tensor, "G K"], group: Int64[Tensor, "G *one"]
) -> Int64[Tensor, "B L *S"]:
    """Return how many breaks of its group are below each score."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(breaks[0].contiguous(), scores.contiguous())
    flat, size = breaks.reshape(-1), breaks.shape[1]  # ONNX has no search, so bisect
    at, step = torch.zeros_like(scores, dtype=torch.int64), 1 << (size.bit_length() - 1)
    while step:
        further = at + step
        passed = (further <= size) & (flat[(further - 1).clamp(max=size - 1) + group * size] < scores)
        at, step = torch.where(passed, further, at), step // 2
    return at
