"""The temperature tree on CUDA: one pass that standardises and pads, one that convolves and mixes.

The first pass writes log-probabilities in float32 with four more pixels on every side, reflected, so that the second
reads without asking where an image ends. In the second pass a thread computes 7 (in 3D 6) results that lie 2 lines
apart. The 11 values that these share among the 5 taps of a column are each read once, next to those of the neighbouring
threads: for each class and column of taps, 245 multiply-adds with 11 values and 35 weights. The sums are exact float32,
unlike those of PyTorch's convolutions, which round their inputs to TF32 by default.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.launching import PRECISIONS, launch, pieces
from segcal.kernels.triton.nonfinite import flag, flag_nonfinite
from segcal.kernels.triton.softmax import (
    HELD,
    impossible_logit,
    laid_flat,
    largest_of,
    possible_classes,
    read_classes,
    summed_up,
)

_REACH = 4
_RESULTS = {2: 7, 3: 6}  # of a thread, by number of dimensions; they lie 2 lines apart
_COLUMNS, _WARPS = 64, 2  # places of a program, each of so many results
_PREPARED, _PREPARED_WARPS = 256, 4  # pixels that a program prepares
_SMALLEST = tl.constexpr(SMALLEST_LOG_PROBABILITY)
_KEEP = tl.constexpr(tl.PropagateNan.ALL)


class _Frame(NamedTuple):
    """Size of images `[D, H, W]`, and of the same with a margin, in whole groups of lines; one plane in 2D."""

    size: tuple[int, int, int]
    padded: tuple[int, int, int]
    results: int  # of a thread

    @classmethod
    def of(cls, shape: torch.Size) -> _Frame:
        """Return the frame of `[*S]`."""
        depth, height, width = (1, *shape)[-3:]
        results = _RESULTS[len(shape)]
        planes = depth + 2 * _REACH if len(shape) == 3 else 1
        lines = pieces(height, 2 * results) * 2 * results
        return cls((depth, height, width), (planes, lines + 2 * _REACH, width + 2 * _REACH), results)

    @property
    def strides(self) -> tuple[int, int, int]:
        """Distances of lines, planes and channels."""
        planes, lines, columns = self.padded
        return columns, lines * columns, planes * lines * columns

    @property
    def places(self) -> int:
        """Number of positions that results are computed from: the columns of all groups of lines."""
        return pieces(self.size[1], 2 * self.results) * self.padded[2]

    def room(self, images: int, channels: int) -> int:
        """Return the numbers that the inputs take, with some beyond the last that a program may read."""
        return images * channels * self.strides[-1] + 2 * self.results * (_COLUMNS + 3 * self.padded[2])


@triton.jit
def _place(at, length, MIRRORED: tl.constexpr):
    """Return the place to read for one up to 4 beyond an edge: its mirror image, or the edge itself."""
    if MIRRORED:
        at = tl.abs(at)
        found = tl.where(at >= length, 2 * (length - 1) - at, at)
    else:
        found = tl.minimum(tl.maximum(at, 0), length - 1)
    return found


@triton.jit
def _standardised(value, top, rest, scale, mean_ptr, deviation_ptr, c):
    """Return the standardised log-probability of class `c`."""
    log_probability = tl.maximum((value - top) * scale - rest, _SMALLEST, _KEEP)
    return (log_probability - tl.load(mean_ptr + c)) / tl.load(deviation_ptr + c)


@triton.jit
def _prepare(
    z_ptr, scale_ptr, mean_ptr, deviation_ptr, out_ptr, flag_ptr, L, D, H, W, lines, parts, line, plane, channel,
    zb, zl, zn, MARGIN: tl.constexpr, MIRRORED: tl.constexpr, STANDARDISED: tl.constexpr, SCORES: tl.constexpr,
    CLASSES: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write `BC` places of a plane of the tree's inputs, of scores or of an image, which is not standardised.

    `MARGIN` is the number of planes before the first, 0 in 2D; `CLASSES` is L if a program holds all of them, else 0.
    """
    image, p = tl.program_id(1).to(tl.int64), tl.program_id(0) // parts
    place = tl.program_id(0) % parts * BC + tl.arange(0, BC)
    y, x, inside = place // line, place % line, place < lines * line
    x, y, p_from = _place(x - 4, W, MIRRORED), _place(y - 4, H, MIRRORED), _place(p - MARGIN, D, MIRRORED)
    z_ptr += image * zb + ((p_from * H + y).to(tl.int64) * W + x) * zn
    out_ptr += image * L * channel + p.to(tl.int64) * plane + place
    dtype: tl.constexpr = z_ptr.dtype.scalar.element_ty
    scale = 1.0
    if STANDARDISED:
        scale = tl.load(scale_ptr).to(tl.float32)
    if CLASSES:
        z = read_classes(z_ptr, inside, zl, CLASSES)
        top, total = largest_of(z, CLASSES), tl.zeros([BC], tl.float32)
        if SCORES:
            z = possible_classes(z, top, dtype, CLASSES)
            for c in tl.static_range(CLASSES):
                total += tl.exp((z[c] - top) * scale)
        rest = tl.log(total)
        for c in tl.static_range(CLASSES):
            value = z[c]
            if STANDARDISED:
                value = _standardised(value, top, rest, scale, mean_ptr, deviation_ptr, c)
            tl.store(out_ptr + c * tl.cast(channel, tl.int64), value, mask=inside)
    else:
        top, total = summed_up(z_ptr, inside, scale, L, zl, BC)
        rest = tl.log(total)
        for c in range(L):
            value = tl.load(z_ptr, mask=inside, other=0.0).to(tl.float32)
            z_ptr += zl
            if SCORES:
                value = tl.where(value == float("-inf"), impossible_logit(top, dtype), value)
            if STANDARDISED:
                value = _standardised(value, top, rest, scale, mean_ptr, deviation_ptr, c)
            tl.store(out_ptr + c * tl.cast(channel, tl.int64), value, mask=inside)
    if SCORES:
        flag_nonfinite(flag_ptr, ((total < float("inf")) == 0) & inside)  # also where it is NaN


@triton.jit
def _mixed(gate, left, right):
    """Return a value between two, by the sigmoid of a gate."""
    return right + (left - right) / (1.0 + tl.exp(-gate))


@triton.jit
def _pair(at):
    """Read two float32 at once, as the halves of an integer: loads, not multiplications, are what takes time."""
    both = tl.load(at)
    return both.to(tl.int32).to(tl.float32, bitcast=True), (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _values(z_ptr, line, RESULTS: tl.constexpr):
    """Return the values of a column that results 2 lines apart read: one more for each result after the first."""
    found = ()
    for j in tl.static_range(RESULTS + 4):
        found += (tl.load(z_ptr + 2 * j * line),)
    return found


@triton.jit
def _with_column(sums, values, w_ptr, NODES: tl.constexpr, RESULTS: tl.constexpr):
    """Return the sums of nodes and results plus those of five taps of a column; weights are in pairs, 8 to a tap."""
    for tap in tl.static_range(5):
        weights = ()
        for pair in tl.static_range((NODES + 1) // 2):
            first, second = _pair(w_ptr + tap * 4 + pair)
            weights += (first, second)
        more = ()
        for r in tl.static_range(RESULTS):
            for node in tl.static_range(NODES):
                more += (sums[r * NODES + node] + weights[node] * values[r + tap],)
        sums = more
    return sums


@triton.jit
def _with_leaf(sums, values, v_ptr, RESULTS: tl.constexpr):
    """Return the same for the leaf of the image."""
    for tap in tl.static_range(5):
        weight, more = tl.load(v_ptr + tap), ()
        for r in tl.static_range(RESULTS):
            more += (sums[r] + weight * values[r + tap],)
        sums = more
    return sums


@triton.jit
def _top(sums, leaf, bias_ptr, FIRST: tl.constexpr, WITH_IMAGE: tl.constexpr):
    """Return the value at the root from the sums of all nodes, which start at `FIRST`."""
    v1, v2 = sums[FIRST] + tl.load(bias_ptr), sums[FIRST + 1] + tl.load(bias_ptr + 1)
    v3, v4 = sums[FIRST + 2] + tl.load(bias_ptr + 2), sums[FIRST + 3] + tl.load(bias_ptr + 3)
    left = _mixed(sums[FIRST + 4] + tl.load(bias_ptr + 4), v1, v2)
    right = _mixed(sums[FIRST + 5] + tl.load(bias_ptr + 5), v3, v4)
    value = _mixed(sums[FIRST + 6] + tl.load(bias_ptr + 6), left, right)
    if WITH_IMAGE:
        value = _mixed(sums[FIRST + 7] + tl.load(bias_ptr + 7), leaf + tl.load(bias_ptr + 8), value)
    return value


@triton.jit
def _root(
    z_ptr, image_ptr, w_ptr, v_ptr, bias_ptr, out_ptr, L, C, D, H, W, line, plane, channel, offset, least,
    PLANES: tl.constexpr, WITH_IMAGE: tl.constexpr, RECTIFIED: tl.constexpr, NODES: tl.constexpr,
    RESULTS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    image, p, plane = tl.program_id(2).to(tl.int64), tl.program_id(1) // 2, tl.cast(plane, tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    first, x = n // line * (2 * RESULTS) + tl.program_id(1) % 2, n % line
    at = p * plane + first * line + x
    sums, leaves = (tl.zeros([BN], tl.float32),) * (NODES * RESULTS), (tl.zeros([BN], tl.float32),) * RESULTS
    for k in range(PLANES):
        for own in range(L):
            z = z_ptr + (image * L + own) * channel + k * 2 * plane + at
            w = w_ptr + (k * L + own) * 100
            for tap in tl.static_range(5):
                sums = _with_column(sums, _values(z + 2 * tap, line, RESULTS), w + tap * 20, NODES, RESULTS)
        if WITH_IMAGE:
            for own in range(C):
                z = image_ptr + (image * C + own) * channel + k * 2 * plane + at
                v = v_ptr + (k * C + own) * 25
                for tap in tl.static_range(5):
                    leaves = _with_leaf(leaves, _values(z + 2 * tap, line, RESULTS), v + tap * 5, RESULTS)
    for r in tl.static_range(RESULTS):
        value = _top(sums, leaves[r], bias_ptr, r * NODES, WITH_IMAGE) + offset
        if RECTIFIED:
            value = tl.maximum(value, 0.0, _KEEP) + least
        y = first + 2 * r
        tl.store(out_ptr + ((image * D + p) * H + y) * W + x, value, mask=(x < W) & (y < H))


class _Weights(NamedTuple):
    """The weights of a tree in the order in which the kernel reads them."""

    taps: Tensor  # [planes, L, 25 taps, column by column, 8 nodes] float32, as pairs in int64
    leaf: Tensor  # [planes, C, 25 taps, column by column] of the image
    biases: Tensor

    @classmethod
    def of(cls, convolutions: list[tuple[Tensor, Tensor]], planes: int) -> _Weights:
        """Return those of the convolution over the scores and, if there is one, over the image."""
        (weight, bias), *of_image = ([each.detach() for each in both] for both in convolutions)
        taps = weight.reshape(-1, weight.shape[1], planes, 5, 5).permute(2, 1, 4, 3, 0)
        taps = torch.nn.functional.pad(taps, (0, 8 - taps.shape[-1])).contiguous().view(torch.int64)
        biases, leaf = torch.nn.functional.pad(bias, (0, 9 - len(bias))), taps
        if of_image:
            leaf = of_image[0][0].reshape(-1, planes, 5, 5).permute(1, 0, 3, 2).contiguous()
            biases[8:] = of_image[0][1]
        return cls(taps, leaf, biases)


def root_of_scores(
    logits: Tensor,
    standardisation: tuple[Tensor, Tensor, Tensor] | None,
    image: Tensor | None,
    of_logits: tuple[Tensor, Tensor],
    of_image: tuple[Tensor, Tensor] | None,
    offset: float,
    *,
    least: float | None = None,
) -> Tensor:
    """Twin of `segcal.functional.tree.root_of_scores`, for weights in float32."""
    weight = of_logits[0]
    with_image = of_image is not None and image is not None
    read_from = (logits, image) if with_image else (logits,)
    if weight.dtype != torch.float32 or not logits.numel() or any(x.dtype not in PRECISIONS for x in read_from):  # type: ignore[union-attr]
        return DECLINED
    size, (images, classes) = logits.shape[2:], logits.shape[:2]
    if len(size) not in (2, 3) or math.prod(size) >= 1 << 30:
        return DECLINED
    frame, planes = _Frame.of(size), 5 if len(size) == 3 else 1
    own = inputs = _prepared(logits, standardisation, frame, scores=True)  # first, so that the device has work
    if with_image:
        own = _prepared(image, None, frame, scores=False)  # type: ignore[arg-type]
    weights = _Weights.of([of_logits, of_image] if with_image else [of_logits], planes)  # type: ignore[list-item]
    found = torch.empty((images, 1, *size), dtype=torch.float32, device=logits.device)
    launch(
        _root, (pieces(frame.places, _COLUMNS), 2 * frame.size[0], images),
        inputs, own, weights.taps, weights.leaf, weights.biases, found, classes, image.shape[1] if with_image else 0,  # type: ignore[union-attr]
        *frame.size, *frame.strides, float(offset), float(least or 0.0), PLANES=planes, WITH_IMAGE=with_image,
        RECTIFIED=least is not None, NODES=8 if with_image else 7, RESULTS=frame.results, BN=_COLUMNS, num_warps=_WARPS,
    )  # fmt: skip
    return found


def _prepared(
    values: Tensor, standardisation: tuple[Tensor, Tensor, Tensor] | None, frame: _Frame, *, scores: bool
) -> Tensor:
    """Return standardised log-probabilities, or the values themselves, in float32 with a margin."""
    z = laid_flat(values)
    images, channels, _ = z.shape
    found = torch.empty(frame.room(images, channels), dtype=torch.float32, device=values.device)
    numbers: Any = (z, z, z) if standardisation is None else (each.contiguous() for each in standardisation)
    lines = frame.size[1] + 2 * _REACH  # those beyond are read for results that nobody asks for
    parts = pieces(lines * frame.padded[2], _PREPARED)
    launch(
        _prepare, (frame.padded[0] * parts, images),
        z, *numbers, found, flag(), channels, *frame.size, lines, parts, *frame.strides, *z.stride(),
        MARGIN=_REACH if values.ndim == 5 else 0, MIRRORED=min(values.shape[2:]) > _REACH,
        STANDARDISED=standardisation is not None, SCORES=scores, CLASSES=channels if channels <= HELD else 0,
        BC=_PREPARED, num_warps=_PREPARED_WARPS,
    )  # fmt: skip
    return found


def tree_root(
    logits: Tensor,
    image: Tensor | None,
    of_logits: tuple[Tensor, Tensor],
    of_image: tuple[Tensor, Tensor] | None,
    offset: float,
    *,
    least: float | None = None,
) -> Tensor:
    """Twin of `segcal.functional.tree.tree_root`, for weights in float32."""
    return root_of_scores(logits, None, image, of_logits, of_image, offset, least=least)
