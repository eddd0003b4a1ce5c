"""The temperature of `cts` on CUDA: one read of the logits, then passes over a few numbers per pixel.

Means over boxes are linear, so only the weighted sums of the features with the same window are averaged, along one axis
after the other. The distance to the nearest boundary is a minimum of maxima, along one axis after the other too.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import DOUBLINGS, LEAST_TEMPERATURE, LOWEST, MARGIN_CAP, WINDOWS
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.launching import PRECISIONS, launch, pieces
from segcal.kernels.triton.nonfinite import flag, flag_nonfinite
from segcal.kernels.triton.softmax import (
    HELD,
    HELD_WARPS,
    PIXELS,
    WARPS,
    laid_flat,
    read,
    read_classes,
    tile_shape,
)

_CAP, _LOWEST = tl.constexpr(MARGIN_CAP), tl.constexpr(LOWEST)
_NARROW, _BROAD = tl.constexpr(WINDOWS[0] // 2), tl.constexpr(WINDOWS[1] // 2)
_FAR = tl.constexpr(1 << DOUBLINGS)  # a distance beyond the largest that counts
_DOUBLINGS = tl.constexpr(DOUBLINGS)
_LEAST = tl.constexpr(LEAST_TEMPERATURE)
_KEEP = tl.constexpr(tl.PropagateNan.ALL)
_PIXELS = 512  # of a program


@triton.jit
def _describe(
    z_ptr, entropy_ptr, margin_ptr, predicted_ptr, flag_ptr, L, N, zb, zl, zn,
    CLASSES: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Entropy, capped margin and predicted class of each pixel; impossible classes count as `LOWEST` below the top.

    `CLASSES` is L if a program holds them all, else 0.
    """
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    if CLASSES:
        z = read_classes(z_ptr + image * zb + n.to(tl.int64) * zn, n < N, zl, CLASSES)
        top, second, winner, total, weighted = _described(z, CLASSES, BN)
    else:
        top, second, winner, total, weighted = _described_in_chunks(z_ptr + image * zb, n, L, N, zl, zn, BL, BN)
    at, inside = image * N + n, n < N
    flag_nonfinite(flag_ptr, ((total < float("inf")) == 0) & inside)  # NaN
    tl.store(entropy_ptr + at, tl.log(total) - weighted / total, mask=inside)
    tl.store(margin_ptr + at, tl.minimum(top - second, _CAP), mask=inside)
    tl.store(predicted_ptr + at, winner, mask=inside)


@triton.jit
def _described(z, L: tl.constexpr, BN: tl.constexpr):
    """Return the two largest logits, the class of the first, and both moments; they are NaN as `_moments` says."""
    top, second, winner = z[0], tl.full([BN], float("-inf"), tl.float32), tl.zeros([BN], tl.int32)
    for c in tl.static_range(1, L):
        second = tl.maximum(second, tl.minimum(top, z[c]))
        winner = tl.where(z[c] > top, c, winner)
        top = tl.maximum(top, z[c])
    total, weighted = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
    for c in tl.static_range(L):
        below = tl.maximum(z[c] - top, _LOWEST, _KEEP)
        power = tl.exp(below)
        total += power
        weighted += power * below
    return top, second, winner, total, weighted


@triton.jit
def _moments(z, top, c, L):
    """Return the sums of `exp(below)` and of `below exp(below)`, with `below` the logits minus the largest.

    They are NaN if a logit is NaN or +infinity, or if all are -infinity.
    """
    below = tl.maximum(z - top[None, :], _LOWEST, _KEEP)
    powers = tl.where((c < L)[:, None], tl.exp(below), 0.0)
    return tl.sum(powers, axis=0), tl.sum(powers * below, axis=0)


@triton.jit
def _described_in_chunks(z_ptr, n, L, N, zl, zn, BL: tl.constexpr, BN: tl.constexpr):
    top = tl.full([BN], float("-inf"), tl.float32)
    second = tl.full([BN], float("-inf"), tl.float32)
    winner = tl.zeros([BN], tl.int32)
    for start in range(0, L, BL):
        c = start + tl.arange(0, BL)
        z = read(z_ptr, c, n, L, N, zl, zn)
        here, place = tl.max(z, axis=0, return_indices=True, return_indices_tie_break_left=True)
        rest = tl.max(tl.where(c[:, None] == (start + place)[None, :], float("-inf"), z), axis=0)
        second = tl.maximum(tl.maximum(second, rest), tl.minimum(top, here))
        winner = tl.where(here > top, start + place, winner)
        top = tl.maximum(top, here)
    total, weighted = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
    for start in range(0, L, BL):
        c = start + tl.arange(0, BL)
        more, heavier = _moments(read(z_ptr, c, n, L, N, zl, zn), top, c, L)
        total += more
        weighted += heavier
    return top, second, winner, total, weighted


@triton.jit
def _differs(predicted_ptr, own, at, step, length, stride, inside):
    """Return whether the neighbours along an axis have another predicted class."""
    position = step // stride % length
    before = tl.load(predicted_ptr + at - stride, mask=inside & (position > 0), other=-1)
    after = tl.load(predicted_ptr + at + stride, mask=inside & (position < length - 1), other=-1)
    return ((before >= 0) & (before != own)) | ((after >= 0) & (after != own))


@triton.jit
def _number(at):
    """Read one number of a model, which keeps them in float64."""
    return tl.load(at).to(tl.float32)


@triton.jit
def _combine(
    entropy_ptr, margin_ptr, predicted_ptr, weight_ptr, intercept_ptr, offset_ptr,
    own_ptr, narrow_ptr, broad_ptr, distance_ptr, D, H, W, BN: tl.constexpr,
):  # fmt: skip
    """Write what each pixel adds to its own log-temperature, and to that of the pixels in both boxes around it."""
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    N = D * H * W
    at, inside = image * N + n, n < N
    heat = tl.load(entropy_ptr + at, mask=inside, other=0.0)
    apart = tl.load(margin_ptr + at, mask=inside, other=0.0)
    winner = tl.load(predicted_ptr + at, mask=inside, other=0)
    near = _differs(predicted_ptr, winner, at, n, W, 1, inside)
    near = near | _differs(predicted_ptr, winner, at, n, H, W, inside)
    near = near | _differs(predicted_ptr, winner, at, n, D, W * H, inside)
    edge = near.to(tl.float32)
    own = _number(weight_ptr) * heat + _number(weight_ptr + 1) * apart + _number(intercept_ptr)
    own += tl.load(offset_ptr + winner, mask=inside, other=0.0).to(tl.float32)
    narrow = _number(weight_ptr + 3) * heat + _number(weight_ptr + 4) * apart + _number(weight_ptr + 5) * edge
    broad = _number(weight_ptr + 6) * heat + _number(weight_ptr + 7) * apart + _number(weight_ptr + 8) * edge
    tl.store(own_ptr + at, own, mask=inside)
    tl.store(narrow_ptr + at, narrow, mask=inside)
    tl.store(broad_ptr + at, broad, mask=inside)
    tl.store(distance_ptr + at, tl.where(near, 0, _FAR).to(tl.uint8), mask=inside)


@triton.jit
def _mean_along(
    values_ptr, at, position, length, stride, inside, REACH: tl.constexpr, LONG: tl.constexpr, BN: tl.constexpr
):
    """Mean over a window along an axis whose ends are mirrors; where it is not `LONG`, they reflect each other."""
    total = tl.zeros([BN], tl.float32)
    for j in tl.static_range(2 * REACH + 1):
        place = position + (j - REACH)
        if LONG:
            place = tl.abs(place)
        else:
            period = tl.maximum(2 * (length - 1), 1)
            place = (place + REACH * period) % period
        place = tl.minimum(place, 2 * (length - 1) - place)
        total += tl.load(values_ptr + at + (place - position) * stride, mask=inside, other=0.0)
    return total / (2 * REACH + 1)


@triton.jit
def _above_floor(exponent, floor, softness):
    """See `segcal.functional.division.soft_floor`."""
    least = tl.log(tl.maximum(floor, _LEAST))
    above = exponent - least
    rest = tl.log(1.0 + tl.exp(-tl.abs(above) / tl.maximum(softness, 1e-6)))
    return least + tl.maximum(above, 0.0) + softness * rest


@triton.jit
def _along(
    narrow_ptr, broad_ptr, distance_ptr, own_ptr, weight_ptr, floor_ptr, softness_ptr,
    narrow_out, broad_out, distance_out, heat_ptr, length, stride, N, low, high,
    LAST: tl.constexpr, LONG: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Means and distances along one axis; along the last one, the temperature."""
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    at, inside = image * N + n, n < N
    position = n // stride % length
    narrow = _mean_along(narrow_ptr, at, position, length, stride, inside, _NARROW, LONG, BN)
    broad = _mean_along(broad_ptr, at, position, length, stride, inside, _BROAD, LONG, BN)
    distance = tl.full([BN], _FAR, tl.int32)
    for j in tl.static_range(2 * _FAR - 1):
        step = j - (_FAR - 1)
        valid = inside & (position + step >= 0) & (position + step < length)
        there = tl.load(distance_ptr + at + step * stride, mask=valid, other=_FAR).to(tl.int32)
        distance = tl.minimum(distance, tl.maximum(there, step if step > 0 else -step))
    if LAST:
        free = (distance > 0).to(tl.float32)
        for doubling in tl.static_range(1, _DOUBLINGS + 1):
            free += (distance > (1 << doubling) - 1).to(tl.float32)
        own = tl.load(own_ptr + at, mask=inside, other=0.0)
        exponent = own + _number(weight_ptr + 2) * free + narrow + broad
        raised = _above_floor(exponent, _number(floor_ptr), _number(softness_ptr))
        tl.store(heat_ptr + at, tl.minimum(tl.maximum(tl.exp(raised), low), high), mask=inside)
    else:
        tl.store(narrow_out + at, narrow, mask=inside)
        tl.store(broad_out + at, broad, mask=inside)
        tl.store(distance_out + at, distance.to(tl.uint8), mask=inside)


def context_temperature(
    logits: Tensor,
    weights: Tensor,
    intercept: Tensor,
    offsets: Tensor,
    bounds: tuple[float, float],
    floor: Tensor,
    softness: Tensor,
) -> Tensor:
    """Twin of `segcal.functional.context.context_temperature`, in float32."""
    size = tuple(logits.shape[2:])
    if logits.dtype not in PRECISIONS or not logits.numel() or len(size) > 3 or math.prod(size) >= 1 << 31:
        return DECLINED
    z = laid_flat(logits)
    images, classes, pixels = z.shape
    # contents: entropy, margin, own; then narrow and broad of two sets of maps
    entropy, margin, own, *rest = torch.empty((7, images, pixels), dtype=torch.float32, device=logits.device)
    predicted = torch.empty((images, pixels), dtype=torch.int32, device=logits.device)
    held = classes <= HELD
    rows, columns = (1, PIXELS) if held else tile_shape(classes)
    launch(  # as soon as possible, so that the device has work
        _describe, (pieces(pixels, columns), images),
        z, entropy, margin, predicted, flag(), classes, pixels, *z.stride(),
        CLASSES=classes if held else 0, BL=rows, BN=columns, num_warps=HELD_WARPS if held else WARPS,
    )  # fmt: skip
    distances = torch.empty((2, images, pixels), dtype=torch.uint8, device=logits.device)
    found = torch.empty((images, 1, *size), dtype=torch.float32, device=logits.device)
    maps = [(rest[0], rest[1], distances[0]), (rest[2], rest[3], distances[1])]
    weights, offsets = weights.contiguous(), offsets.contiguous()
    grid, shape = (pieces(pixels, _PIXELS), images), (1, 1, *size)[-3:]
    launch(
        _combine, grid,
        entropy, margin, predicted, weights, intercept, offsets, own, *maps[0], *shape, BN=_PIXELS, num_warps=4,
    )  # fmt: skip
    for axis in range(len(size)):
        source, target = maps[axis % 2], maps[(axis + 1) % 2]
        launch(
            _along, grid,
            *source, own, weights, floor, softness, *target, found, size[axis], math.prod(size[axis + 1 :]), pixels,
            *map(float, bounds), LAST=axis == len(size) - 1, LONG=size[axis] > max(WINDOWS) // 2, BN=_PIXELS,
            num_warps=4,
        )  # fmt: skip
    return found
